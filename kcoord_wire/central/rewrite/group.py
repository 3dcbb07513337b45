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
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kcoord_wire.assignors import ASSIGNORS, Assignment, MemberSubscription
from kcoord_wire.central.rewrite.layout import ConsumerRecord, GroupRecord
from kcoord_wire.timers import Timer
from kcoord_wire.zookeeper.procedures import Procedure

__all__ = ["MOVES", "Group", "GroupState", "Member"]


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

    :ivar connection: on which it was last heard; None if that has ended
    :ivar has_joined: its JoinGroup is parked, or was when its connection ended
    :ivar is_new: it has not been sent its consumer id
    :ivar timer: at its end the member is dead; None while its JoinGroup is parked
    """

    consumer_id: str
    topics: tuple[str, ...]
    session_timeout_ms: int
    connection: int | None = None
    has_joined: bool = False
    is_new: bool = True
    timer: Timer | None = None


@dataclass(slots=True, eq=False)
class Group:
    """A group.

    :ivar shard: its number
    :ivar version: of its node in ZooKeeper; None if there is none
    :ivar generation: as in ZooKeeper; 0 before the first
    :ivar partitions: the partition counts of this generation's assignment
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
    state: GroupState = GroupState.EMPTY
    late: dict[int, Any] = field(default_factory=dict)
    procedure: Procedure | None = None
    _assignment: Assignment | None = None

    def move(self, state: GroupState) -> None:
        """Change the state."""
        assert state in MOVES[self.state], f"{self.name}: {self.state} to {state}"
        self.state = state

    @property
    def topics(self) -> set[str]:
        """The topics that its members subscribe to."""
        return {topic for member in self.members.values() for topic in member.topics}

    def record(self, partitions: Mapping[str, int]) -> GroupRecord:
        """Return the metadata of the next generation; of a group without members, of this one."""
        consumers = {
            member.consumer_id: ConsumerRecord(member.session_timeout_ms, member.topics)
            for member in self.members.values()
        }
        return GroupRecord(self.generation + bool(consumers), self.strategy, consumers, partitions)

    def begin(self, record: GroupRecord) -> None:
        """Take over a generation that ZooKeeper has."""
        self.generation, self.partitions, self._assignment = record.generation, record.partitions, None

    def assignment(self) -> Assignment:
        """Return this generation's partitions of each member."""
        if self._assignment is None:
            members = {member.consumer_id: MemberSubscription(member.topics) for member in self.members.values()}
            counts = {topic: count for topic, count in self.partitions.items() if count}
            self._assignment = ASSIGNORS[self.strategy].assign(counts, members)
        return self._assignment
