"""Which consumer thread owns which partition: the computation of 1.3, and the comparison of step 3 (section 9).

Laws:

* Every partition of a subscribed topic goes to exactly one thread. Threads and partitions of a topic are sorted, and
  each thread gets a run of consecutive partitions, the first ones one more (as the consumers of 0.7 did themselves).
* The result depends on the subscriptions and partitions alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kcoord_wire.assignors import MemberSubscription, range_assign
from kcoord_wire.central.draft.events import Partition
from kcoord_wire.central.draft.groups import Group, Member

__all__ = ["assign", "partition_order", "why_rebalance"]


def partition_order(name: str) -> tuple[int, int]:
    """Return the sort key of a partition's name: broker, then number."""
    broker, _, number = name.partition("-")
    return int(broker), int(number)


def assign(group: Group, partitions: Mapping[str, Sequence[str]]) -> dict[Partition, str]:
    """Return the owner of each partition, as a thread id.

    :param partitions: names of the partitions of each topic, in order; a topic that does not exist has no entry
    """
    threads: dict[str, list[str]] = {}
    topics = sorted(topic for topic in group.interests if partitions.get(topic))
    wanted = {
        subscription: [(topic, subscription.streams_of(topic)) for topic in topics]
        for subscription in group.subscriptions
    }
    for member in group.members.values():
        for topic, streams in wanted[member.topic_count]:
            for number in range(streams):
                threads.setdefault(f"{member.consumer_id}-{number}", []).append(topic)
    subscriptions = {thread_id: MemberSubscription(subscribed) for thread_id, subscribed in threads.items()}
    assignment = range_assign({topic: len(partitions[topic]) for topic in topics}, subscriptions)
    return {
        Partition(topic, partitions[topic][number]): thread_id
        for thread_id, assigned in assignment.items()
        for topic, numbers in assigned.items()
        for number in numbers
    }


def why_rebalance(group: Group, computed: Mapping[Partition, str], starting: Iterable[Member]) -> str:
    """Return why a rebalance is necessary (3.1 to 3.4); empty if it is not (3.5).

    The draft compares what is in ZooKeeper. That misses consumers that registered again and wait for their fetchers to
    be started, after a failover or an out-of-range error, although the owners are still the same.

    :param starting: the members that are to own partitions
    """
    owners = group.store.owners
    if computed and not owners:
        return "3.1 no owners are registered"
    if any(partition not in owners for partition in computed):
        return "3.2 some partitions have no owner"
    if any(partition not in computed for partition in owners):
        return "3.3 some owned partitions no longer exist"
    if owners != computed:
        return "3.4 the owners are not those of the new assignment"
    if not all(member.is_started for member in starting):
        return "a consumer has registered again"
    return ""
