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
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kcoord_wire import messages as m
from kcoord_wire.coordinator.consumer_groups.epoch_group import EpochGroup, RecordTypes, add_counts
from kcoord_wire.coordinator.consumer_groups.epoch_records import tombstones
from kcoord_wire.coordinator.core.apis import Refused
from kcoord_wire.coordinator.core.events import LogRecord
from kcoord_wire.coordinator.core.groups import CONSUMER, Committed
from kcoord_wire.coordinator.core.regexes import Resolution
from kcoord_wire.protocol.error_codes import ErrorCode

JOINING: Final = 0
"""The member epoch of a heartbeat that joins."""

LEAVING: Final = -1
"""The member epoch of a heartbeat that leaves."""

AWAY: Final = -2
"""The member epoch of a static member that has left for a while, and of the heartbeat that says so."""

NOBODY: Final = -1
"""The epoch of a partition that no member holds."""

_NEWEST_COMMIT_FROM: Final = 9  # OffsetCommit: the first version with member epochs

Held = Mapping[uuid.UUID, Mapping[int, int]]
"""What a member holds: topic id to partition to the epoch at which the member got it."""


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


class ConsumerGroup(EpochGroup[Member]):
    """A group of the newer protocol; members of the classic one may be in it.

    :ivar instances: group instance id to member id
    :ivar regexes: patterns that are resolved
    :ivar resolution: of the patterns, while it is under way
    :ivar tested: names of the topics of the last resolution
    :ivar matching: pattern to how many members subscribe to it
    :ivar assignors: server assignor to how many members ask for it
    :ivar offered: assignor of the classic protocol to how many members offer it
    :ivar classic_members: how many members use the classic protocol
    """

    __slots__ = (
        "_epochs",
        "assignors",
        "classic_members",
        "instances",
        "matching",
        "offered",
        "regexes",
        "resolution",
        "tested",
    )

    kind = "consumer"
    protocol_type = CONSUMER
    heartbeat = "ConsumerGroupHeartbeat"
    types = RecordTypes(
        m.ConsumerGroupMetadataKey,
        m.ConsumerGroupMetadataValue,
        m.ConsumerGroupMemberMetadataKey,
        m.ConsumerGroupTargetAssignmentMetadataKey,
        m.ConsumerGroupTargetAssignmentMetadataValue,
        m.ConsumerGroupTargetAssignmentMemberKey,
        m.ConsumerGroupTargetAssignmentMemberValue,
        m.ConsumerGroupTargetAssignmentMemberValueTopicPartition,
        m.ConsumerGroupCurrentMemberAssignmentKey,
    )

    def __init__(self, group_id: str, now: int) -> None:
        super().__init__(group_id, now)
        self.instances: dict[str, str] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        self.resolution: Resolution | None = None
        self.tested: frozenset[str] = frozenset()
        self.matching: Counter[str] = Counter()
        self.assignors: Counter[str] = Counter()
        self.offered: Counter[str] = Counter()
        self.classic_members = 0
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

    # ---- members

    def put(self, member: Member) -> None:
        """See `EpochGroup`."""
        super().put(member)
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.member_id

    def remove(self, member_id: str) -> Member | None:
        """See `EpochGroup`."""
        member = super().remove(member_id)
        instance_id = None if member is None else member.instance_id
        if instance_id is not None and self.instances.get(instance_id) == member_id:
            del self.instances[instance_id]
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
        super()._count(member, step)
        add_counts(self.matching, (member.regex,) if member.regex else (), step)
        add_counts(self.assignors, () if member.assignor is None else (member.assignor,), step)
        if member.classic is not None:
            self.classic_members += step
            add_counts(self.offered, dict(member.classic.protocols), step)
        if step > 0:
            self._hold(member)
        else:
            self._release(member)

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
        patterns = (
            m.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=pattern)
            for pattern in self.regexes
        )
        # Brokers before 4.1 have written the last.
        return tombstones(self, *patterns, m.ConsumerGroupPartitionMetadataKey(group_id=group_id))


def _stale(member: Member) -> ErrorCode:
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION
