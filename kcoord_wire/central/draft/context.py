"""What the parts of an elected coordinator share: the epoch, time, the ways out, who owns what, and the topics.

The assignment is the computation of 1.3 (section 9); `TopicWatches` has the topics and their partitions as ZooKeeper
has them (section 5, steps 2 and 3; section 6).

Laws:

* Everything that is written to ZooKeeper goes through `write`, so it fails once another coordinator has been elected;
  `is_fenced_off` then says so, and the coordinator resigns after the event.
* A `Multi` has at most `MOST_WRITES` writes, so it stays below ZooKeeper's limit of 1 MB for a request.
* Every partition of a subscribed topic goes to exactly one thread. Threads and partitions of a topic are sorted, and
  each thread gets a run of consecutive partitions, the first ones one more (as the consumers of 0.7 did themselves).
* The assignment depends on the subscriptions and partitions alone, but for topics whose rebalancing is switched off
  (KAFKA-364, `keep_owners`): their partitions stay with the owners that ZooKeeper has, present or not.
* Each node of a topic is read with a watch, and read again when the watch fires, so `partitions` follows ZooKeeper.
* `topic_changed` is called for each topic whose partitions or switch have changed, after `partitions` and `fixed` have.
* A number of partitions that cannot be read, or is more than `MOST_PARTITIONS`, counts as no partitions at that broker,
  and is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

from kcoord_wire.assignors import MemberSubscription, range_assign
from kcoord_wire.central.draft.events import CoordinatorSettings, Partition
from kcoord_wire.central.draft.groups import Group, Groups, RegisteredConsumer, consumer_of
from kcoord_wire.central.draft.subscription import TopicCount, is_topic_name
from kcoord_wire.kernel.machines import BrokerAddress, Close, LogEvent, Send
from kcoord_wire.kernel.procedures import Procedure, Sleep
from kcoord_wire.kernel.timers import Timers
from kcoord_wire.zookeeper.layout import BROKER_TOPICS, is_switched_off, topic_path
from kcoord_wire.zookeeper.leadership import is_fenced_off
from kcoord_wire.zookeeper.requests import (
    RETRY_MS,
    Fired,
    Multi,
    Node,
    Read,
    ReadChildren,
    RegistryError,
    Write,
    ZooKeeperProcedures,
)

FenceT = TypeVar("FenceT")
ResultT = TypeVar("ResultT")

MOST_WRITES: Final = 200  # of a Multi: paths have at most 800 bytes


class Context:
    """One term of an elected coordinator.

    :param guarded: makes a `Multi` that only the leader of this epoch can execute
    :param brokers: returns those of the cluster
    :ivar elected_at: ms
    :ivar now: of the present event, ms
    :ivar has_topics: the topics and their partitions have been read; until then no rebalance begins
    :ivar least_generation: of groups that are new in memory; so a group that was dropped goes on counting
    :ivar is_fenced_off: another coordinator has been elected
    """

    def __init__(
        self,
        settings: CoordinatorSettings,
        epoch: int,
        elected_at: int,
        emit: Callable[[Any], None],
        guarded: Callable[..., Multi],
        brokers: Callable[[], Sequence[BrokerAddress]],
        make_procedures: Callable[[Timers], ZooKeeperProcedures],
    ) -> None:
        self.settings = settings
        self.epoch = epoch
        self.elected_at = self.now = elected_at
        self.emit = emit
        self.brokers = brokers
        self.groups = Groups()
        self.timers = Timers()
        self.procedures = make_procedures(self.timers)
        self.has_topics = False
        self.least_generation = 0
        self.is_fenced_off = False
        self._guarded = guarded

    def start(self, procedure: Procedure) -> Procedure:
        """Run a procedure until it first waits."""
        return self.procedures.start(procedure, self.now)

    def note(self, level: int, what: str, **facts: Any) -> None:
        """Log something."""
        self.emit(LogEvent(level, what, facts))

    def send(self, member: RegisteredConsumer, message: Any) -> None:
        """Send a message to a consumer."""
        self.emit(Send(member.connection, message))

    def close(self, member: RegisteredConsumer) -> None:
        """Close a consumer's connection."""
        self.emit(Close(member.connection))

    def fence(self, kind: Callable[..., FenceT], member: RegisteredConsumer, generation: int) -> list[FenceT] | None:
        """Return the fence of a message to a consumer; None if it did not ask for one.

        :param kind: its class in the message
        """
        return [kind(epoch=self.epoch, generation=generation)] if member.is_fenced else None

    def write(self, groups: Sequence[Group], writes: Iterable[Write]) -> Procedure:
        """Execute writes to the nodes of some groups, in their order; a part of other procedures.

        :raises RegistryError: one failed; the stores of these groups are then unknown
        """
        left = iter(writes)
        try:
            while batch := list(islice(left, MOST_WRITES)):
                yield self._guarded(*batch)
        except RegistryError as error:
            for group in groups:
                group.store.forget()
            if is_fenced_off(error):
                self.is_fenced_off = True
            else:
                self.note(logging.WARNING, "write failed", group=groups[0].group_id, reason=str(error))
            raise


def again(
    context: Context, procedure: Callable[[], Generator[Any, Any, ResultT]], **facts: Any
) -> Generator[Any, Any, ResultT]:
    """Run a procedure until ZooKeeper executes its requests, and return what it returns.

    :param facts: for the log, where it does not
    """
    while True:
        try:
            return (yield from procedure())
        except RegistryError as error:
            context.note(logging.WARNING, "read failed", **facts, reason=str(error))
        yield Sleep(RETRY_MS)


def partition_order(name: str) -> tuple[int, int]:
    """Return the sort key of a partition's name: broker, then number."""
    broker, _, number = name.partition("-")
    return int(broker), int(number)


def assign(members: Sequence[RegisteredConsumer], partitions: Mapping[str, Sequence[str]]) -> dict[Partition, str]:
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


def keep_owners(
    computed: Mapping[Partition, str], owners: Mapping[Partition, str], fixed: Collection[str]
) -> dict[Partition, str]:
    """Return an assignment in which the partitions of some topics stay with their owners.

    A topic without any owner is assigned: only a rebalance of it is switched off.
    """
    kept = {partition: thread_id for partition, thread_id in owners.items() if partition.topic in fixed}
    held = {partition.topic for partition in kept}
    return {partition: thread_id for partition, thread_id in computed.items() if partition.topic not in held} | kept


def why_rebalance(group: Group, computed: Mapping[Partition, str]) -> str:
    """Return why a rebalance is necessary (3.1 to 3.4); empty if it is not (3.5).

    The draft compares what is in ZooKeeper. That misses consumers that registered again and wait for their fetchers to
    be started, after a failover or an out-of-range error, although the owners are still the same; and consumers that a
    former coordinator may have started with other partitions.
    """
    owners = group.store.owners
    owning = {consumer_of(thread_id) for thread_id in computed.values()}
    starting = [member for consumer_id, member in group.members.items() if consumer_id in owning]
    checks = (
        ("3.1 no owners are registered", computed and not owners),
        ("3.2 some partitions have no owner", computed.keys() - owners.keys()),
        ("3.3 some owned partitions no longer exist", owners.keys() - computed.keys()),
        ("3.4 the owners are not those of the new assignment", owners != computed),
        ("the former coordinator did not finish", group.store.record.is_starting),
        ("a consumer has registered again", not all(member.is_started for member in starting)),
    )
    return next((reason for reason, is_so in checks if is_so), "")


MOST_PARTITIONS: Final = 10_000  # of a topic at one broker


class TopicWatches:
    """TopicChangeListener and TopicPartitionChangeListener.

    :param topics_added: called with the names of topics that are new
    :param topic_changed: called with the name of a topic whose partitions have changed
    :ivar partitions: names of the partitions of each topic, by broker and number
    :ivar fixed: the topics whose rebalancing is switched off
    """

    def __init__(
        self, context: Context, topics_added: Callable[[Sequence[str]], None], topic_changed: Callable[[str], None]
    ) -> None:
        self._context = context
        self._topics_added = topics_added
        self._topic_changed = topic_changed
        self.partitions: dict[str, tuple[str, ...]] = {}
        self.fixed: set[str] = set()

    def startup(self) -> Procedure:
        """coordinatorStartup, steps 2 and 3: read the topics, and watch them and their partitions."""
        yield from again(self._context, self.handle_topic_change)
        self._context.has_topics = True

    def fired(self, event: Fired) -> None:
        """A watch has fired: read what it watched."""
        if event.path == BROKER_TOPICS:
            self._context.start(again(self._context, self.handle_topic_change))
        elif event.path.startswith(f"{BROKER_TOPICS}/"):
            topic = event.path.split("/")[3]
            self._context.start(again(self._context, lambda: self.handle_partition_change([topic])))

    def handle_topic_change(self) -> Procedure:
        """TopicChangeListener.handleChildChange."""
        topics: tuple[str, ...] = (yield ReadChildren(BROKER_TOPICS, watch=True)) or ()
        known = self._context.groups.topics
        added = [topic for topic in topics if topic not in known and is_topic_name(topic)]
        self._topics_added(added)
        yield from again(self._context, lambda: self.handle_partition_change(added))  # they are not new the next time

    def handle_partition_change(self, topics: Sequence[str]) -> Procedure:
        """TopicPartitionChangeListener.handleChildChange: read, with watches, the partitions of some topics."""
        switches: list[Node | None] = yield [Read(topic_path(topic), watch=True) for topic in topics]
        brokers: list[tuple[str, ...] | None] = yield [ReadChildren(topic_path(topic), watch=True) for topic in topics]
        places = [
            (topic, broker)
            for topic, found in zip(topics, brokers, strict=True)
            for broker in found or ()
            if broker.isdecimal()
        ]
        nodes: list[Node | None] = yield [Read(f"{topic_path(topic)}/{broker}", watch=True) for topic, broker in places]
        names: dict[str, list[str]] = {topic: [] for topic in topics}
        for (topic, broker), node in zip(places, nodes, strict=True):
            count = self._count(topic, broker, node)
            names[topic] += [f"{broker}-{number}" for number in range(count)]
        for topic, switch in zip(topics, switches, strict=True):
            partitions = tuple(sorted(names[topic], key=partition_order))
            self._note(topic, partitions, is_fixed=switch is not None and is_switched_off(switch.data))

    def _note(self, topic: str, partitions: tuple[str, ...], *, is_fixed: bool) -> None:
        if partitions != self.partitions.get(topic, ()) or is_fixed is not (topic in self.fixed):
            self.partitions[topic] = partitions
            (self.fixed.add if is_fixed else self.fixed.discard)(topic)
            self._topic_changed(topic)

    def _count(self, topic: str, broker: str, node: Node | None) -> int:
        text = "0" if node is None else node.data.decode("ascii", "replace")
        if text.isdecimal() and len(text) <= len(str(MOST_PARTITIONS)) and int(text) <= MOST_PARTITIONS:
            return int(text)
        self._context.note(logging.WARNING, "not a number of partitions", topic=topic, broker=broker, data=text[:40])
        return 0
