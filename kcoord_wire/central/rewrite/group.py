"""A group at its coordinator, the partition counts of its topics, and the shards of groups that a broker coordinates.

"The co-ordinator for a group detects changes to the number of partitions for the subscribed list of topics": a watch on
each topic, and an index from topics to groups. "As part of becoming the leader for a subset of the offset topic
partitions, the co-ordinator reads metadata for each group that it is responsible for, from zookeeper."

Laws:

* Every change of a group's state is a row of `MOVES`.
* An assignment is a function of the members' topics, the strategy and the partition counts of the generation, so it is
  computed again where it is not in memory, and gives the same.
* A topic is watched while a group subscribes to it, and one watch serves all groups. A topic that does not exist has no
  partitions, and is watched for its creation.
* A takeover begins with a write: it counts the shard's epoch up if the assignment of shards is still the one that names
  this broker. Every later write for a group checks that epoch in the same `Multi` (`guarded`), so a broker that has
  lost a shard, or an earlier process of this broker, cannot write; and what is read after that write is not older.
* A shard's groups are known when all of them have been read (`Shard.is_loaded`), not before.

Source: "Kafka 0.9 Consumer Rewrite Design": "Partition changes for subscribed topics", point 1, "Co-ordinator failover
or connection loss to the co-ordinator", point 1. The states are those of Kafka's trunk from February to May 2015
(kafka.coordinator.Group), whose Rebalancing is COMPLETING here.
"""

from __future__ import annotations

import enum
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kcoord_wire.assignors import ASSIGNORS, Assignment, MemberSubscription
from kcoord_wire.central.rewrite.context import Outbox
from kcoord_wire.central.rewrite.layout import (
    SHARDS,
    ConsumerRecord,
    GroupMetadata,
    metadata_path,
    parse_metadata,
    parse_owners,
    parse_topic,
    shard_path,
)
from kcoord_wire.kernel.procedures import Procedure
from kcoord_wire.kernel.timers import Timer
from kcoord_wire.protocol.key_partitions import partition_of
from kcoord_wire.zookeeper.layout import topic_path
from kcoord_wire.zookeeper.requests import (
    Check,
    Multi,
    Node,
    Outcome,
    Read,
    ReadChildren,
    RegistryError,
    SetData,
    Write,
    create_missing,
)


class GroupState(enum.StrEnum):
    """What the coordinator waits for."""

    EMPTY = "empty"
    PREPARING = "preparing"  # for the JoinGroup of every member
    COMPLETING = "completing"  # for ZooKeeper to have the new generation
    STABLE = "stable"


MOVES: Final[Mapping[GroupState, frozenset[GroupState]]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING}),
    GroupState.PREPARING: frozenset({GroupState.COMPLETING}),
    GroupState.COMPLETING: frozenset({GroupState.STABLE, GroupState.EMPTY}),
    GroupState.STABLE: frozenset({GroupState.PREPARING}),
}


@dataclass(slots=True, eq=False)
class GroupMember:
    """A consumer of a group.

    :ivar connection: of its last request; None if that has ended
    :ivar has_joined: its JoinGroup is parked, or was when its connection ended
    :ivar is_new: it has not been sent its consumer id
    :ivar timer: at its end the member is dead; None while its JoinGroup is parked
    :ivar size: at least its bytes in ZooKeeper; 0 while it is no member of a group
    """

    consumer_id: str
    topics: tuple[str, ...]
    session_timeout_ms: int
    connection: int | None = None
    has_joined: bool = False
    is_new: bool = True
    timer: Timer | None = None
    size: int = 0

    @property
    def record(self) -> ConsumerRecord:
        """What ZooKeeper has of it."""
        return ConsumerRecord(self.session_timeout_ms, self.topics)


@dataclass(slots=True, eq=False)
class Group:
    """A group.

    :ivar shard: its number
    :ivar version: of its node in ZooKeeper; None if there is none
    :ivar generation: as in ZooKeeper; 0 before the first
    :ivar partitions: the partition counts of this generation's assignment
    :ivar topics: that its members subscribe to, each with their number
    :ivar size: at least the bytes of its members in ZooKeeper
    :ivar joined: number of members that have joined
    :ivar late: JoinGroups that came while the generation was being written, by connection
    :ivar procedure: writes the generation
    """

    name: str
    shard: int
    version: int | None = None
    generation: int = 0
    strategy: str = ""
    partitions: Mapping[str, int] = field(default_factory=dict)
    members: dict[str, GroupMember] = field(default_factory=dict)
    topics: Counter[str] = field(default_factory=Counter)
    size: int = 0
    joined: int = 0
    state: GroupState = GroupState.EMPTY
    late: dict[int, Any] = field(default_factory=dict)
    procedure: Procedure | None = None
    _assignment: Assignment | None = None

    def move(self, state: GroupState) -> None:
        """Change the state."""
        assert state in MOVES[self.state], f"{self.name}: {self.state} to {state}"
        self.state = state

    def add(self, member: GroupMember) -> None:
        """Add a member, which has not joined yet."""
        self.members[member.consumer_id] = member
        self.subscribe(member, member.record)

    def subscribe(self, member: GroupMember, wanted: ConsumerRecord) -> None:
        """Replace what a member has asked for."""
        self._forget(member)
        member.topics, member.session_timeout_ms = wanted.topics, wanted.session_timeout_ms
        member.size = wanted.size(member.consumer_id)
        self.topics.update(member.topics)
        self.size += member.size

    def remove(self, member: GroupMember) -> None:
        """Take a member out."""
        self.set_joined(member, False)
        self._forget(member)
        del self.members[member.consumer_id]

    def _forget(self, member: GroupMember) -> None:
        if member.size:
            self.topics -= Counter(member.topics)
            self.size -= member.size

    def set_joined(self, member: GroupMember, has_joined: bool) -> None:
        """Note whether a member has sent JoinGroup for the next generation."""
        self.joined += has_joined - member.has_joined
        member.has_joined = has_joined

    @property
    def have_all_joined(self) -> bool:
        """Whether no member is waited for."""
        return self.joined == len(self.members)

    def record(self, partitions: Mapping[str, int]) -> GroupMetadata:
        """Return the metadata of the next generation; of a group without members, of this one."""
        consumers = {member.consumer_id: member.record for member in self.members.values()}
        return GroupMetadata(self.generation + bool(consumers), self.strategy, consumers, partitions)

    def begin(self, record: GroupMetadata) -> None:
        """Take over a generation that ZooKeeper has."""
        self.generation, self.partitions, self._assignment = record.generation, record.partitions, None

    def assignment(self) -> Assignment:
        """Return this generation's partitions of each member."""
        if self._assignment is None:
            members = {member.consumer_id: MemberSubscription(member.topics) for member in self.members.values()}
            counts = {topic: count for topic, count in self.partitions.items() if count}
            self._assignment = ASSIGNORS[self.strategy].assign(counts, members)
        return self._assignment


class Topics:
    """The topics that groups subscribe to.

    :param changed: called with each group of a topic whose number of partitions is known now, or another than before
    :ivar counts: number of partitions, of the topics that have been read
    """

    def __init__(self, outbox: Outbox, changed: Callable[[Group], None]) -> None:
        self.counts: dict[str, int] = {}
        self._outbox = outbox
        self._changed = changed
        self._groups: dict[str, set[Group]] = {}
        self._subscribed: dict[Group, set[str]] = {}

    def subscribe(self, group: Group, topics: Collection[str]) -> None:
        """Watch these topics for a group, in place of those before; none ends it."""
        wanted, had = set(topics), self._subscribed.pop(group, set())
        if wanted:
            self._subscribed[group] = wanted
        for topic in sorted(wanted - had):
            if topic not in self._groups:
                self._groups[topic] = set()
                self._outbox.start(self._read(topic))
            self._groups[topic].add(group)
        for topic in had - wanted:
            self._groups[topic].discard(group)
            if not self._groups[topic]:
                del self._groups[topic]
                self.counts.pop(topic, None)

    def known(self, group: Group) -> dict[str, int] | None:
        """Return the number of partitions of each of a group's topics; None if one has not been read yet."""
        topics = self._subscribed.get(group, set())
        if not topics <= self.counts.keys():
            return None
        return {topic: self.counts[topic] for topic in sorted(topics)}

    def fired(self, path: str) -> None:
        """Take in that the watch of a node has fired."""
        topic = path.rpartition("/")[2]
        if topic in self._groups and path == topic_path(topic):
            self._outbox.start(self._read(topic))

    def _read(self, topic: str) -> Procedure:
        node: Node | None = yield Read(topic_path(topic), watch=True)
        try:
            count = 0 if node is None else len(parse_topic(node.data))
        except ValueError as error:
            self._outbox.note("topic not readable", logging.ERROR, topic=topic, reason=str(error))
            count = 0
        if topic not in self._groups or self.counts.get(topic) == count:
            return
        self.counts[topic] = count
        for group in sorted(self._groups[topic], key=lambda group: group.name):
            self._changed(group)


@dataclass(slots=True, eq=False)
class Shard:
    """A subset of the groups.

    :ivar epoch: number of takeovers, this one included; 0 before it has happened
    :ivar version: of the epoch's node
    :ivar is_loaded: whether `groups` are all that ZooKeeper has
    :ivar procedure: the takeover
    """

    number: int
    epoch: int = 0
    version: int = 0
    is_loaded: bool = False
    groups: dict[str, Group] = field(default_factory=dict)
    procedure: Procedure | None = None

    def guarded(self, *writes: Write) -> Multi:
        """Return the writes, which fail if another broker has taken the shard over."""
        return Multi((Check(shard_path(self.number), self.version), *writes))


def is_fenced_off(error: RegistryError) -> bool:
    """Whether a guarded write failed because the shard, or the group's node, was written by another."""
    return error.outcome in (Outcome.BAD_VERSION, Outcome.NO_NODE, Outcome.NODE_EXISTS)


class Shards:
    """The shards of the cluster, and those of this broker.

    :param loaded: called with a shard whose groups have been read
    :param lost: called with a shard that is no longer this broker's
    :ivar owners: the broker of each shard as last read; empty before that
    """

    def __init__(
        self, broker_id: int, outbox: Outbox, loaded: Callable[[Shard], None], lost: Callable[[Shard], None]
    ) -> None:
        self.broker_id = broker_id
        self.owners: list[int | None] = []
        self.own: dict[int, Shard] = {}
        self._outbox = outbox
        self._loaded, self._lost = loaded, lost

    def owner(self, group: str) -> int | None:
        """Return the broker that coordinates a group, as far as this one knows."""
        return self.owners[partition_of(group, len(self.owners))] if self.owners else None

    def find(self, group: str) -> Shard | None:
        """Return the shard of a group if it is this broker's."""
        return self.own.get(partition_of(group, len(self.owners))) if self.owners else None

    def clear(self) -> None:
        """Lose all shards."""
        for shard in list(self.own.values()):
            self._drop(shard)
        self.owners = []

    def follow(self) -> Procedure:
        """Read the assignment of shards: take over those that are new, lose those that are no longer this broker's. It
        is done again whenever the node changes (`fired`)."""
        node: Node | None = yield Read(SHARDS, watch=True)
        try:
            owners = [] if node is None else parse_owners(node.data)
        except ValueError as error:
            self._outbox.note("assignment of shards not readable", logging.ERROR, reason=str(error))
            owners = []
        self.owners = owners
        wanted = {number for number, owner in enumerate(owners) if owner == self.broker_id}
        for shard in [shard for number, shard in self.own.items() if number not in wanted]:
            self._drop(shard)
        for number in sorted(wanted):
            shard = self.own.setdefault(number, Shard(number))
            if not shard.epoch and node is not None:
                self._cancel(shard)
                shard.procedure = self._outbox.start(self._take_over(shard, node.version))

    def fired(self, path: str) -> None:
        """Take in that the watch of a node has fired."""
        if path == SHARDS:
            self._outbox.start(self.follow())

    def retake(self, shard: Shard) -> None:
        """Lose a shard whose guarded write was refused, and take it over again if it is still this broker's."""
        self._outbox.note("coordination lost", logging.WARNING, shard=shard.number, epoch=shard.epoch)
        if self.own.get(shard.number) is shard:
            self._drop(shard)
            self._outbox.start(self.follow())

    def _drop(self, shard: Shard) -> None:
        self._cancel(shard)
        del self.own[shard.number]
        self._lost(shard)

    def _cancel(self, shard: Shard) -> None:
        if shard.procedure is not None:
            self._outbox.procedures.cancel(shard.procedure)
            shard.procedure = None

    def _take_over(self, shard: Shard, assignment_version: int) -> Procedure:
        path = shard_path(shard.number)
        yield from create_missing(path)
        node: Node | None = yield Read(path)
        if node is None:
            return
        epoch = node.version + 1  # only takeovers write the node
        try:
            yield Multi((Check(SHARDS, assignment_version), SetData(path, b"%d" % epoch, node.version)))
        except RegistryError as error:
            if error.reply.failed == 0 and is_fenced_off(error):
                return  # the assignment has changed: its watch leads back to `follow`
            raise
        shard.epoch, shard.version = epoch, node.version + 1
        names: tuple[str, ...] = (yield ReadChildren(path)) or ()
        nodes: list[Node | None] = yield [Read(metadata_path(shard.number, name)) for name in names]
        for name, group in zip(names, nodes, strict=True):
            if group is not None:
                shard.groups[name] = self._read_group(shard, name, group)
        shard.is_loaded, shard.procedure = True, None
        self._outbox.note("coordination started", shard=shard.number, epoch=epoch, groups=len(shard.groups))
        self._loaded(shard)

    def _read_group(self, shard: Shard, name: str, node: Node) -> Group:
        try:
            record = parse_metadata(node.data)
        except ValueError as error:
            # Each write adds 1 to the version and at most 1 to the generation, so this one is not lower.
            self._outbox.note("group not readable", logging.ERROR, group=name, reason=str(error))
            record = GroupMetadata(node.version + 1)
        group = Group(name, shard.number, node.version, strategy=record.strategy)
        for consumer_id, consumer in record.consumers.items():
            member = GroupMember(consumer_id, consumer.topics, consumer.session_timeout_ms, is_new=False)
            group.add(member)
        group.begin(record)
        group.state = GroupState.STABLE if group.members else GroupState.EMPTY
        return group
