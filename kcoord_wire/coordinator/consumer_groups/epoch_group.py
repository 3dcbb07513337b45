"""A group whose target assignment the coordinator computes, of KIP-848 or of KIP-932: what both kinds have.

It has an epoch, which counts what an assignment depends on; a target assignment with the group epoch for which it was
computed; and members, each with the epoch that it has reached.

Laws:

* A group's epoch never decreases.
* What an assignment depends on is counted as members change, never recounted.

Source: KIP-848, KIP-932; Kafka's `ModernGroup.java`.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar

from kcoord_wire.coordinator.core.events import cancel
from kcoord_wire.coordinator.core.groups import BaseGroup
from kcoord_wire.kernel.timers import Timer

FIRST_EPOCH: Final = 1
"""The epoch of a new group: its assignment is empty, so that a member can be given an epoch before the first one is
computed (KAFKA-20268)."""

Target = Mapping[uuid.UUID, frozenset[int]]
"""What a member is to hold: topic id to partitions."""


@dataclass(slots=True)
class MemberTimers:
    """What ends when a member is silent or late.

    :ivar session: fires when it has sent no heartbeat for its session timeout
    :ivar rebalance: fires when it has not given up its partitions within its rebalance timeout
    :ivar join: of a classic member: fires when it has not joined again in that time
    :ivar sync: of a classic member: fires when it has not fetched its assignment in that time
    """

    session: Timer | None = None
    rebalance: Timer | None = None
    join: Timer | None = None
    sync: Timer | None = None

    def cancel(self) -> None:
        """Prevent all of them from firing."""
        cancel(self.session, self.rebalance, self.join, self.sync)

    def end_classic(self) -> None:
        """Prevent those from firing that only classic members have."""
        cancel(self.join, self.sync)


class EpochMember(Protocol):
    """What the members of all such groups have; instances do not change: an update is another instance."""

    @property
    def member_id(self) -> str:
        """Its id, chosen by the client."""

    @property
    def instance_id(self) -> str | None:
        """Its group instance id; None if it is dynamic."""

    @property
    def client_id(self) -> str:
        """From its last heartbeat."""

    @property
    def client_host(self) -> str:
        """From its last heartbeat."""

    @property
    def topics(self) -> tuple[str, ...]:
        """The names that it subscribes to, ascending."""

    @property
    def epoch(self) -> int:
        """The member epoch."""

    def is_reconciled(self, assignment_epoch: int) -> bool:
        """Return whether it has all of its target of this epoch, and nothing else."""


class RecordTypes(NamedTuple):
    """The classes of the records of a kind of group, where their fields are those of every kind."""

    epoch_key: type[Any]
    epoch_value: type[Any]
    member_key: type[Any]
    target_epoch_key: type[Any]
    target_epoch_value: type[Any]
    target_key: type[Any]
    target_value: type[Any]
    target_topic: type[Any]
    assignment_key: type[Any]


M = TypeVar("M", bound=EpochMember)


class EpochGroup(BaseGroup, Generic[M]):
    """A group whose target assignment the coordinator computes.

    :cvar heartbeat: the api by which members stay, and learn what they are assigned
    :cvar types: the classes of its records
    :ivar epoch: the group epoch
    :ivar assignment_epoch: the group epoch of `target`
    :ivar assigned_at: ms at which `target` was computed; 0 if another may be computed at once
    :ivar members: by id, in the order in which they were added; changed by `put` and `remove` only
    :ivar target: by member id
    :ivar metadata_hash: of the partitions of the subscribed topics, as the log has it
    :ivar topics_seen: how often topics had changed when `metadata_hash` was computed
    :ivar named: topic to how many members subscribe to it by name
    :ivar unsettled: ids of members that have not reached the assignment epoch, or do not hold their whole target
    :ivar timers: by member id
    """

    __slots__ = (
        "assigned_at",
        "assignment_epoch",
        "epoch",
        "is_dead",
        "members",
        "metadata_hash",
        "named",
        "target",
        "timers",
        "topics_seen",
        "unsettled",
    )

    heartbeat: ClassVar[str]
    types: ClassVar[RecordTypes]

    def __init__(self, group_id: str, now: int) -> None:
        super().__init__(group_id, now)
        self.epoch = FIRST_EPOCH
        self.assignment_epoch = FIRST_EPOCH
        self.assigned_at = 0
        self.members: dict[str, M] = {}
        self.target: dict[str, Target] = {}
        self.metadata_hash = 0
        self.topics_seen = -1
        self.named: Counter[str] = Counter()
        self.unsettled: set[str] = set()
        self.timers: dict[str, MemberTimers] = {}
        self.is_dead = False

    def set_assignment_epoch(self, epoch: int, now: int) -> None:
        """Note that `target` is that of a group epoch."""
        self.assignment_epoch = epoch
        self.assigned_at = now
        self.unsettled = {item.member_id for item in self.members.values() if not item.is_reconciled(epoch)}

    def end(self, now: int) -> None:
        """See `BaseGroup`."""
        for timers in self.timers.values():
            timers.cancel()
        self.is_dead = True
        self.state_since = now

    def put(self, member: M) -> None:
        """Add a member, or replace what is known of it."""
        old = self.members.get(member.member_id)
        if old is not None:
            self._count(old, -1)
        self.members[member.member_id] = member
        self._count(member, 1)
        if member.is_reconciled(self.assignment_epoch):
            self.unsettled.discard(member.member_id)
        else:
            self.unsettled.add(member.member_id)
        self.timers.setdefault(member.member_id, MemberTimers())

    def remove(self, member_id: str) -> M | None:
        """Remove a member with its target and timers, and return it; None if there is none."""
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        self._count(member, -1)
        self.unsettled.discard(member_id)
        self.target.pop(member_id, None)
        self.timers.pop(member_id).cancel()
        return member

    def _count(self, member: M, step: int) -> None:
        """Count what a member subscribes to and holds, or, with a step of -1, count it no more."""
        add_counts(self.named, member.topics, step)

    def subscription(self, member: M) -> frozenset[str]:
        """Return the topics that a member subscribes to."""
        return frozenset(member.topics)

    def subscribed_topics(self) -> set[str]:
        """Return the topics that any member subscribes to."""
        return set(self.named)

    def is_subscribed(self, topic: str) -> bool:
        """See `BaseGroup`."""
        return topic in self.named


def add_counts(counts: Counter[str], names: Iterable[str], step: int) -> None:
    """Count names, and forget those of which there are none."""
    for name in names:
        counts[name] += step
        if not counts[name]:
            del counts[name]
