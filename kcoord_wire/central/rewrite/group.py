"""A group at its coordinator: its members, its state, and its assignment.

Laws:

* Every change of state is a row of `MOVES`.
* An assignment is a function of the members' topics, the strategy and the partition counts of the generation, so it is
  computed again where it is not in memory, and gives the same.

Source: "Kafka 0.9 Consumer Rewrite Design"; the states are those of Kafka's trunk from February to May 2015
(kafka.coordinator.Group), whose Rebalancing is COMPLETING here.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kcoord_wire.assignors import ASSIGNORS, Assignment, MemberSubscription
from kcoord_wire.central.rewrite.layout import ConsumerRecord, GroupMetadata
from kcoord_wire.kernel.procedures import Procedure
from kcoord_wire.kernel.timers import Timer


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
class Member:
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
    members: dict[str, Member] = field(default_factory=dict)
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

    def add(self, member: Member) -> None:
        """Add a member, which has not joined yet."""
        self.members[member.consumer_id] = member
        self.subscribe(member, member.record)

    def subscribe(self, member: Member, wanted: ConsumerRecord) -> None:
        """Replace what a member has asked for."""
        self._forget(member)
        member.topics, member.session_timeout_ms = wanted.topics, wanted.session_timeout_ms
        member.size = wanted.size(member.consumer_id)
        self.topics.update(member.topics)
        self.size += member.size

    def remove(self, member: Member) -> None:
        """Take a member out."""
        self.set_joined(member, False)
        self._forget(member)
        del self.members[member.consumer_id]

    def _forget(self, member: Member) -> None:
        if member.size:
            self.topics -= Counter(member.topics)
            self.size -= member.size

    def set_joined(self, member: Member, has_joined: bool) -> None:
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
