"""Which consumer thread owns which partition: the computation of 1.3, and the comparison of step 3 (section 9).

Laws:

* Every partition of a subscribed topic goes to exactly one thread. Threads and partitions of a topic are sorted, and
  each thread gets a run of consecutive partitions, the first ones one more (as the consumers of 0.7 did themselves).
* The result depends on the subscriptions and partitions alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kcoord_wire.assignors import MemberSubscription, range_assign
from kcoord_wire.central.draft.events import Partition
from kcoord_wire.central.draft.group_store import consumer_of
from kcoord_wire.central.draft.groups import Group, Member
from kcoord_wire.central.draft.topic_count import TopicCount


def partition_order(name: str) -> tuple[int, int]:
    """Return the sort key of a partition's name: broker, then number."""
    broker, _, number = name.partition("-")
    return int(broker), int(number)


def assign(members: Sequence[Member], partitions: Mapping[str, Sequence[str]]) -> dict[Partition, str]:
    """Return the owner of each partition, as a thread id.

    :param partitions: names of the partitions of each topic, in order; a topic that does not exist has no entry
    """
    wanted = {
        subscription: _wanted(subscription, partitions) for subscription in {each.topic_count for each in members}
    }
    threads: dict[str, list[str]] = {}
    for member in members:
        for topic, streams in wanted[member.topic_count]:
            for number in range(streams):
                threads.setdefault(f"{member.consumer_id}-{number}", []).append(topic)
    counts = {topic: len(partitions[topic]) for topics in wanted.values() for topic, _ in topics}
    subscriptions = {thread_id: MemberSubscription(topics) for thread_id, topics in threads.items()}
    return {
        Partition(topic, partitions[topic][number]): thread_id
        for thread_id, assigned in range_assign(counts, subscriptions).items()
        for topic, numbers in assigned.items()
        for number in numbers
    }


def _wanted(subscription: TopicCount, partitions: Mapping[str, Sequence[str]]) -> list[tuple[str, int]]:
    """Return the topics with partitions that a subscription has, and the threads of each.

    There are at most as many as partitions: more would get nothing, and streams are numbers from outside."""
    topics = partitions if subscription.is_wildcard else subscription.streams
    streams = {topic: min(subscription.streams_of(topic), len(partitions.get(topic, ()))) for topic in topics}
    return sorted((topic, count) for topic, count in streams.items() if count)


def why_rebalance(group: Group, computed: Mapping[Partition, str]) -> str:
    """Return why a rebalance is necessary (3.1 to 3.4); empty if it is not (3.5).

    The draft compares what is in ZooKeeper. That misses consumers that registered again and wait for their fetchers to
    be started, after a failover or an out-of-range error, although the owners are still the same; and consumers that a
    former coordinator may have started with other partitions.
    """
    owners = group.store.owners
    starting = {group.members[consumer_of(thread_id)] for thread_id in computed.values()}
    checks = (
        ("3.1 no owners are registered", computed and not owners),
        ("3.2 some partitions have no owner", computed.keys() - owners.keys()),
        ("3.3 some owned partitions no longer exist", owners.keys() - computed.keys()),
        ("3.4 the owners are not those of the new assignment", owners != computed),
        ("the former coordinator did not finish", group.store.record.is_starting),
        ("a consumer has registered again", not all(member.is_started for member in starting)),
    )
    return next((reason for reason, is_so in checks if is_so), "")
