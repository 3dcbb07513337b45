"""A group of the newer consumer protocol (KIP-848) and its members: what the coordinator knows of them.

A group has three kinds of epochs. The group epoch counts what an assignment depends on: members, subscriptions, topics.
The assignment epoch is the group epoch for which the target assignment was computed. A member's epoch is the assignment
epoch that it has reached: it reports partitions as revoked before it may move to the next one.

Laws:

* A partition is assigned to, or still to be revoked by, one member at most (`ConsumerGroup.partition_epoch`).
* A group's epoch never decreases; a member's does only when it leaves for a while (-2) or joins again.
* What an assignment depends on is counted as members change, never recounted: a heartbeat that brings nothing new costs
  the same in a group of ten and of ten thousand.

Source: KIP-848, KIP-1251 (assignment epochs); Kafka's `ConsumerGroup.java`, `ConsumerGroupMember.java`.
"""

from __future__ import annotations

import enum
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.apis import Refused
from kcoord_wire.coordinator.core.events import LogRecord, cancel
from kcoord_wire.coordinator.core.groups import CONSUMER, BaseGroup, Committed
from kcoord_wire.coordinator.core.regexes import Resolution
from kcoord_wire.kernel.timers import Timer
from kcoord_wire.protocol.error_codes import ErrorCode

JOINING: Final = 0
"""The member epoch of a heartbeat that joins."""

LEAVING: Final = -1
"""The member epoch of a heartbeat that leaves."""

AWAY: Final = -2
"""The member epoch of a static member that has left for a while, and of the heartbeat that says so."""

NOBODY: Final = -1
"""The epoch of a partition that no member holds."""

FIRST_EPOCH: Final = 1
"""The epoch of a new group: its assignment is empty, so that a member can be given an epoch before the first one is
computed (KAFKA-20268)."""

_NEWEST_COMMIT_FROM: Final = 9  # OffsetCommit: the first version with member epochs

Held = Mapping[uuid.UUID, Mapping[int, int]]
"""What a member holds: topic id to partition to the epoch at which the member got it."""

Target = Mapping[uuid.UUID, frozenset[int]]
"""What a member is to hold: topic id to partitions."""


class GroupState(enum.StrEnum):
    """State of a group, by the name that ConsumerGroupDescribe and ListGroups give it."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class MemberState(enum.IntEnum):
    """A member's progress towards its target, with the number that the log has."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


class ClassicMember(NamedTuple):
    """What a member has that uses the classic protocol.

    :ivar session_timeout_ms: as its JoinGroup says
    :ivar protocols: names and metadata that it offers, most preferred first
    """

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class ResolvedRegex(NamedTuple):
    """The topics that match a regular expression.

    :ivar topics: their names
    :ivar version: how often topics had changed when it was resolved
    :ivar timestamp: ms
    """

    topics: frozenset[str]
    version: int
    timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member of a group. Instances do not change: an update is another instance.

    :ivar member_id: chosen by the client, from ConsumerGroupHeartbeat v1 on
    :ivar instance_id: None if it is dynamic
    :ivar rebalance_timeout_ms: what it may take to give partitions up
    :ivar assignor: the server assignor that it asks for; None leaves the choice to others
    :ivar topics: names that it subscribes to, ascending
    :ivar regex: pattern that it subscribes to; empty for none
    :ivar classic: None if it uses the newer protocol
    :ivar epoch: that it has reached, or `AWAY`
    :ivar previous_epoch: the one before; a heartbeat with it is accepted once, because the answer may have been lost
    :ivar assigned: what it may use
    :ivar revoking: what it has to give up, and may still use
    """

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    topics: tuple[str, ...] = ()
    regex: str = ""
    classic: ClassicMember | None = None
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Held = field(default_factory=dict)
    revoking: Held = field(default_factory=dict)

    def is_reconciled(self, assignment_epoch: int) -> bool:
        """Return whether it has all of its target of this epoch, and nothing else."""
        return self.epoch == assignment_epoch and self.state is MemberState.STABLE

    def assignment_epoch(self, topic_id: uuid.UUID, partition: int) -> int | None:
        """Return the epoch at which it got a partition; None if it does not hold it."""
        for held in (self.assigned, self.revoking):
            epoch = held.get(topic_id, {}).get(partition)
            if epoch is not None:
                return epoch
        return None


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


class ConsumerGroup(BaseGroup):
    """A group of the newer protocol; members of the classic one may be in it.

    :ivar epoch: the group epoch
    :ivar assignment_epoch: the group epoch of `target`
    :ivar assigned_at: ms at which `target` was computed; 0 if another may be computed at once
    :ivar members: by id, in the order in which they were added; changed by `put` and `remove` only
    :ivar instances: group instance id to member id
    :ivar target: by member id
    :ivar regexes: patterns that are resolved
    :ivar resolution: of the patterns, while it is under way
    :ivar tested: names of the topics of the last resolution
    :ivar metadata_hash: of the partitions of the subscribed topics, as the log has it
    :ivar topics_seen: how often topics had changed when `metadata_hash` was computed
    :ivar named: topic to how many members subscribe to it by name
    :ivar matching: pattern to how many members subscribe to it
    :ivar assignors: server assignor to how many members ask for it
    :ivar offered: assignor of the classic protocol to how many members offer it
    :ivar classic_members: how many members use the classic protocol
    :ivar unsettled: ids of members that have not reached the assignment epoch, or do not hold their whole target
    :ivar timers: by member id
    """

    __slots__ = (
        "_epochs",
        "assigned_at",
        "assignment_epoch",
        "assignors",
        "classic_members",
        "epoch",
        "instances",
        "is_dead",
        "matching",
        "members",
        "metadata_hash",
        "named",
        "offered",
        "regexes",
        "resolution",
        "target",
        "tested",
        "timers",
        "topics_seen",
        "unsettled",
    )

    kind = "consumer"
    protocol_type = CONSUMER

    def __init__(self, group_id: str, now: int) -> None:
        super().__init__(group_id, now)
        self.epoch = FIRST_EPOCH
        self.assignment_epoch = FIRST_EPOCH
        self.assigned_at = 0
        self.members: dict[str, Member] = {}
        self.instances: dict[str, str] = {}
        self.target: dict[str, Target] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        self.resolution: Resolution | None = None
        self.tested: frozenset[str] = frozenset()
        self.metadata_hash = 0
        self.topics_seen = -1
        self.named: Counter[str] = Counter()
        self.matching: Counter[str] = Counter()
        self.assignors: Counter[str] = Counter()
        self.offered: Counter[str] = Counter()
        self.classic_members = 0
        self.unsettled: set[str] = set()
        self.timers: dict[str, MemberTimers] = {}
        self.is_dead = False
        self._epochs: dict[uuid.UUID, dict[int, int]] = {}

    @property
    def state(self) -> GroupState:
        """The state; it follows from the epochs."""
        if self.is_dead:
            return GroupState.DEAD
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return GroupState.ASSIGNING
        return GroupState.RECONCILING if self.unsettled else GroupState.STABLE

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

    # ---- members

    def put(self, member: Member) -> None:
        """Add a member, or replace what is known of it."""
        old = self.members.get(member.member_id)
        if old is not None:
            self._count(old, -1)
            self._release(old)
        self.members[member.member_id] = member
        self._count(member, 1)
        self._hold(member)
        if member.is_reconciled(self.assignment_epoch):
            self.unsettled.discard(member.member_id)
        else:
            self.unsettled.add(member.member_id)
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.member_id
        self.timers.setdefault(member.member_id, MemberTimers())

    def remove(self, member_id: str) -> Member | None:
        """Remove a member with its target and timers, and return it; None if there is none."""
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        self._count(member, -1)
        self._release(member)
        if member.instance_id is not None and self.instances.get(member.instance_id) == member_id:
            del self.instances[member.instance_id]
        self.unsettled.discard(member_id)
        self.target.pop(member_id, None)
        self.timers.pop(member_id).cancel()
        return member

    def static_member(self, instance_id: str | None) -> Member | None:
        """Return the member with this instance id; None if there is none."""
        return self.members.get(self.instances.get(instance_id or "", ""))

    def member(self, member_id: str, instance_id: str | None) -> Member:
        """Return a member that a request names.

        :raises Refused: UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID where another member has its instance id
        """
        if instance_id is None:
            member = self.members.get(member_id)
        else:
            member = self.static_member(instance_id)
            if member is not None and member.member_id != member_id:
                text = f"Instance {instance_id} belongs to member {member.member_id}."
                raise Refused(ErrorCode.FENCED_INSTANCE_ID, text)
        if member is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not in group {self.group_id}.")
        return member

    def _count(self, member: Member, step: int) -> None:
        _add(self.named, member.topics, step)
        _add(self.matching, (member.regex,) if member.regex else (), step)
        _add(self.assignors, () if member.assignor is None else (member.assignor,), step)
        if member.classic is not None:
            self.classic_members += step
            _add(self.offered, dict(member.classic.protocols), step)

    # ---- partitions

    def partition_epoch(self, topic_id: uuid.UUID, partition: int) -> int:
        """Return the epoch of the member that holds a partition, or has to give it up; `NOBODY` if none does."""
        return self._epochs.get(topic_id, {}).get(partition, NOBODY)

    def _hold(self, member: Member) -> None:
        for held in (member.assigned, member.revoking):
            for topic_id, partitions in held.items():
                self._epochs.setdefault(topic_id, {}).update(dict.fromkeys(partitions, member.epoch))

    def _release(self, member: Member) -> None:
        for held in (member.assigned, member.revoking):
            for topic_id, partitions in held.items():
                epochs = self._epochs.get(topic_id, {})
                for partition in partitions:
                    epochs.pop(partition, None)
                if not epochs:
                    self._epochs.pop(topic_id, None)

    # ---- subscriptions

    def subscription(self, member: Member) -> frozenset[str]:
        """Return the topics that a member subscribes to; a pattern that is not resolved matches none."""
        resolved = self.regexes.get(member.regex)
        names = frozenset(member.topics)
        return names if resolved is None else names | resolved.topics

    def subscribed_topics(self) -> set[str]:
        """Return the topics that any member subscribes to."""
        topics = set(self.named)
        for pattern in self.matching:
            resolved = self.regexes.get(pattern)
            if resolved is not None:
                topics |= resolved.topics
        return topics

    def is_subscribed(self, topic: str) -> bool:
        """See `BaseGroup`."""
        return topic in self.named or any(
            topic in self.regexes[pattern].topics for pattern in self.matching if pattern in self.regexes
        )

    # ---- offsets

    def check_commit(self, member_id: str, group_instance_id: str | None, epoch: int, version: int) -> ErrorCode:
        """See `BaseGroup`. A member of the newer protocol needs OffsetCommit v9."""
        if epoch < 0 and not self.members:
            return ErrorCode.NONE
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if member.classic is None and version < _NEWEST_COMMIT_FROM:
            return ErrorCode.UNSUPPORTED_VERSION
        return _stale(member) if epoch > member.epoch else ErrorCode.NONE

    def check_partition(self, member_id: str, epoch: int, topic_id: uuid.UUID | None, partition: int) -> ErrorCode:
        """See `BaseGroup`: an epoch that the member has left is good for partitions it has had since (KIP-1251)."""
        member = self.members.get(member_id)
        if member is None or epoch == member.epoch:
            return ErrorCode.NONE
        assigned_at = None if topic_id is None else member.assignment_epoch(topic_id, partition)
        return _stale(member) if assigned_at is None or epoch < assigned_at else ErrorCode.NONE

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """See `BaseGroup`: who names no member may always read offsets."""
        if member_id is None and epoch < 0:
            return ErrorCode.NONE
        member = self.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if epoch == member.epoch else _stale(member)

    @property
    def may_expire(self) -> bool:
        """See `BaseGroup`."""
        return True

    def unused_since(self, committed: Committed) -> int:
        """See `BaseGroup`."""
        return committed.commit_timestamp

    def tombstones(self) -> list[LogRecord]:
        """See `BaseGroup`."""
        group_id = self.group_id
        members = [{"group_id": group_id, "member_id": member_id} for member_id in self.members]
        keys: list[Any] = [
            *(m.ConsumerGroupCurrentMemberAssignmentKey(**names) for names in members),
            *(m.ConsumerGroupTargetAssignmentMemberKey(**names) for names in members),
            m.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id),
            *(m.ConsumerGroupMemberMetadataKey(**names) for names in members),
            *(
                m.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=pattern)
                for pattern in self.regexes
            ),
            m.ConsumerGroupPartitionMetadataKey(group_id=group_id),  # which brokers before 4.1 have written
            m.ConsumerGroupMetadataKey(group_id=group_id),
        ]
        return [LogRecord(key, None) for key in keys]


def _stale(member: Member) -> ErrorCode:
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION


def _add(counts: Counter[str], names: Iterable[str], step: int) -> None:
    for name in names:
        counts[name] += step
        if not counts[name]:
            del counts[name]
