"""A share group (KIP-932) and its members: what the coordinator knows of them.

Members share partitions: several may have the same one, so nothing is given up before something is given. A member
takes its part of the target with its next heartbeat, and is then in the target's epoch.

Laws:

* Only partitions whose state has been initialized are assigned: they are in `ShareGroup.initialized`.
* A share group has no committed offsets: where its members are is in the state of its partitions.

Source: KIP-932; Kafka's `ShareGroup.java`, `ShareGroupMember.java`.
"""

from __future__ import annotations

import enum
import uuid
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kcoord_wire import messages as m
from kcoord_wire.coordinator.consumer_groups.epoch_group import EpochGroup, RecordTypes, Target
from kcoord_wire.coordinator.consumer_groups.epoch_records import tombstones
from kcoord_wire.coordinator.core.events import LogRecord
from kcoord_wire.coordinator.core.groups import Committed
from kcoord_wire.protocol.error_codes import ErrorCode

STABLE: Final = 0
"""The state of a member, as the log has it: there is no other in share groups."""

NO_EPOCH: Final = -1
"""The previous epoch of a member that has just come."""


class ShareGroupState(enum.StrEnum):
    """State of a share group, by the name that ShareGroupDescribe and ListGroups give it."""

    EMPTY = "Empty"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareMember:
    """A member of a share group. Instances do not change: an update is another instance.

    :ivar member_id: chosen by the client
    :ivar topics: names that it subscribes to, ascending
    :ivar epoch: that it has reached
    :ivar previous_epoch: the one before; a heartbeat with it is accepted, because the answer may have been lost
    :ivar assigned: what it may fetch from
    :ivar instance_id: None, since members of share groups are dynamic
    """

    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    epoch: int = 0
    previous_epoch: int = NO_EPOCH
    state: int = STABLE
    assigned: Target = field(default_factory=dict)
    instance_id: None = None

    def is_reconciled(self, assignment_epoch: int) -> bool:
        """Return whether it has its target of this epoch."""
        return self.epoch == assignment_epoch and self.state == STABLE


class StatePartitions(NamedTuple):
    """The partitions of a topic of which a share group has, or is getting, state.

    :ivar name: the topic's
    :ivar partitions: their numbers
    :ivar since: ms at which that was noted
    """

    name: str
    partitions: frozenset[int]
    since: int


class ShareGroup(EpochGroup[ShareMember]):
    """A share group.

    :ivar initializing: topic id to the partitions whose state is being initialized
    :ivar initialized: topic id to the partitions whose state is there
    :ivar deleting: id to name of the topics whose state is being deleted
    :ivar unchecked: whether the target may lack partitions whose state is there: no heartbeat has looked yet
    """

    __slots__ = ("deleting", "initialized", "initializing", "unchecked")

    kind = "share"
    protocol_type = "share"
    heartbeat = "ShareGroupHeartbeat"
    has_offsets = False
    types = RecordTypes(
        m.ShareGroupMetadataKey,
        m.ShareGroupMetadataValue,
        m.ShareGroupMemberMetadataKey,
        m.ShareGroupTargetAssignmentMetadataKey,
        m.ShareGroupTargetAssignmentMetadataValue,
        m.ShareGroupTargetAssignmentMemberKey,
        m.ShareGroupTargetAssignmentMemberValue,
        m.ShareGroupTargetAssignmentMemberValueTopicPartition,
        m.ShareGroupCurrentMemberAssignmentKey,
    )

    def __init__(self, group_id: str, now: int) -> None:
        super().__init__(group_id, now)
        self.initializing: dict[uuid.UUID, StatePartitions] = {}
        self.initialized: dict[uuid.UUID, StatePartitions] = {}
        self.deleting: dict[uuid.UUID, str] = {}
        self.unchecked = True

    @property
    def state(self) -> ShareGroupState:
        """The state: a share group with members is always stable."""
        if self.is_dead:
            return ShareGroupState.DEAD
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    @property
    def is_homogeneous(self) -> bool:
        """Whether all members subscribe to the same names."""
        return all(count == len(self.members) for count in self.named.values())

    @property
    def is_incomplete(self) -> bool:
        """Whether another assignment is certain to follow."""
        is_waiting = any(coming.name in self.named for coming in self.initializing.values())
        return self.epoch > self.assignment_epoch or is_waiting or self.has_unassigned

    @property
    def has_unassigned(self) -> bool:
        """Whether the target lacks partitions of subscribed topics whose state is there."""
        given: dict[uuid.UUID, set[int]] = {}
        for target in self.target.values():
            for topic_id, partitions in target.items():
                given.setdefault(topic_id, set()).update(partitions)
        return any(
            known.name in self.named and given.get(topic_id, set()) ^ known.partitions
            for topic_id, known in self.initialized.items()
        )

    # ---- offsets, which it has not

    def check_commit(self, member_id: str, group_instance_id: str | None, epoch: int, version: int) -> ErrorCode:
        """See `BaseGroup`."""
        return ErrorCode.GROUP_ID_NOT_FOUND

    def check_partition(self, member_id: str, epoch: int, topic_id: uuid.UUID | None, partition: int) -> ErrorCode:
        """See `BaseGroup`."""
        return ErrorCode.GROUP_ID_NOT_FOUND

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """See `BaseGroup`: as in Kafka there is no error, and nothing is committed."""
        return ErrorCode.NONE

    @property
    def may_expire(self) -> bool:
        """See `BaseGroup`: a share group stays until it is deleted."""
        return False

    def unused_since(self, committed: Committed) -> int:
        """See `BaseGroup`."""
        return committed.commit_timestamp

    def tombstones(self) -> list[LogRecord]:
        """See `BaseGroup`."""
        return tombstones(self, m.ShareGroupStatePartitionMetadataKey(group_id=self.group_id))
