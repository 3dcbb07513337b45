"""A streams group (KIP-1071) and its members: what the coordinator knows of them.

Epochs are those of `consumer_groups.epoch_group`; what a member holds are tasks, each active, standby or warm-up.

Laws:

* A task is active in one member at most, or still to be revoked by it (`StreamsGroup.active_process`).
* The topology is that of the first member; it does not change while the group exists (Kafka has no updates yet).
* What is in memory only (the topology with the topics that exist, the epoch of the addresses, who asked for a shutdown,
  offsets of tasks) is worked out or asked for again after a restart.

Source: KIP-1071; Kafka's `StreamsGroup.java`, `StreamsGroupMember.java`, `TasksTuple.java`,
`TasksTupleWithEpochs.java`.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple

from kcoord_wire import messages as m
from kcoord_wire.assignors.streams import Task
from kcoord_wire.coordinator.consumer_groups.epoch_group import EpochGroup, RecordTypes
from kcoord_wire.coordinator.consumer_groups.epoch_records import tombstones
from kcoord_wire.coordinator.core.apis import Refused
from kcoord_wire.coordinator.core.events import LogRecord, cancel
from kcoord_wire.coordinator.core.groups import Committed, TopicNames
from kcoord_wire.coordinator.streams_groups.topology import ConfiguredTopology, Topology
from kcoord_wire.kernel.timers import Timer
from kcoord_wire.protocol.error_codes import ErrorCode

STREAMS: Final = "streams"
"""The protocol type, and how ListGroups names the type of group."""

NO_TOPOLOGY: Final = -1
"""The epoch of a topology that was not found right, or that a member has not named."""

_MEMBER_EPOCHS_FROM: Final = 9  # OffsetCommit


class StreamsState(enum.StrEnum):
    """State of a group, by the name that StreamsGroupDescribe and ListGroups give it."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class TaskState(enum.IntEnum):
    """A member's progress towards its target, with the number that the log has."""

    STABLE = 1
    UNREVOKED_TASKS = 2
    UNRELEASED_TASKS = 3
    UNKNOWN = 127


class TargetTasks(NamedTuple):
    """What a member is to hold."""

    active: frozenset[Task] = frozenset()
    standby: frozenset[Task] = frozenset()
    warmup: frozenset[Task] = frozenset()


class HeldTasks(NamedTuple):
    """What a member holds.

    :ivar active: task to the epoch at which the member got it
    """

    active: Mapping[Task, int] = {}
    standby: frozenset[Task] = frozenset()
    warmup: frozenset[Task] = frozenset()


NO_TASKS: Final = HeldTasks()


class UserEndpoint(NamedTuple):
    """The address at which a process answers queries of its state."""

    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsMember:
    """A member of a group: one thread of an application. Instances do not change: an update is another instance.

    :cvar topics: what members of other kinds subscribe to
    :ivar member_id: chosen by the client
    :ivar instance_id: None if it is dynamic
    :ivar rebalance_timeout_ms: what it may take to give tasks up
    :ivar topology_epoch: of the topology that it runs
    :ivar process_id: members of one process share its disk
    :ivar user_endpoint: None if it has none
    :ivar client_tags: by key
    :ivar epoch: that it has reached, or that it is away
    :ivar previous_epoch: the one before; a heartbeat with it is accepted once, because the answer may have been lost
    :ivar assigned: what it may run
    :ivar revoking: what it has to give up, and may still run
    """

    topics: ClassVar[tuple[str, ...]] = ()

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = NO_TOPOLOGY
    process_id: str = ""
    user_endpoint: UserEndpoint | None = None
    client_tags: Mapping[str, str] = field(default_factory=dict)
    epoch: int = 0
    previous_epoch: int = 0
    state: TaskState = TaskState.STABLE
    assigned: HeldTasks = NO_TASKS
    revoking: HeldTasks = NO_TASKS

    def is_reconciled(self, assignment_epoch: int) -> bool:
        """Return whether it has all of its target of this epoch, and nothing else."""
        return self.epoch == assignment_epoch and self.state is TaskState.STABLE


class TaskOffsets(NamedTuple):
    """How far the states of a member's tasks have got, as it said last.

    :ivar offsets: of its disk
    :ivar ends: of the changelogs
    """

    offsets: Mapping[Task, int] = {}
    ends: Mapping[Task, int] = {}


class StreamsGroup(EpochGroup[StreamsMember]):
    """A streams group.

    :param topics: that exist
    :ivar instances: group instance id to member id
    :ivar topology: None until the log has one
    :ivar validated_epoch: epoch of the topology whose topics were found right; `NO_TOPOLOGY` if none was
    :ivar configs: settings with which the last group epoch began
    :ivar stored_description: epoch of the topology whose description another broker has stored, as the log has it
    :ivar failed_description: likewise of one that could not be stored
    :ivar configured: the topology with the topics that exist; None if that has to be worked out
    :ivar endpoint_epoch: counts changes of the addresses, and of the tasks there
    :ivar shutdown_by: the member that wants all to shut down; None if none does
    :ivar offsets_of: by member id
    :ivar delay: while the first assignment is delayed
    """

    __slots__ = (
        "_topics",
        "active_process",
        "configs",
        "configured",
        "delay",
        "endpoint_epoch",
        "failed_description",
        "instances",
        "offsets_of",
        "shutdown_by",
        "standby_processes",
        "stored_description",
        "topology",
        "validated_epoch",
        "warmup_processes",
    )

    kind = STREAMS
    protocol_type = STREAMS
    heartbeat = "StreamsGroupHeartbeat"
    types = RecordTypes(
        m.StreamsGroupMetadataKey,
        m.StreamsGroupMetadataValue,
        m.StreamsGroupMemberMetadataKey,
        m.StreamsGroupTargetAssignmentMetadataKey,
        m.StreamsGroupTargetAssignmentMetadataValue,
        m.StreamsGroupTargetAssignmentMemberKey,
        m.StreamsGroupTargetAssignmentMemberValue,
        m.StreamsGroupTargetAssignmentMemberValueTaskIds,
        m.StreamsGroupCurrentMemberAssignmentKey,
    )

    def __init__(self, group_id: str, now: int, topics: TopicNames) -> None:
        super().__init__(group_id, now)
        self._topics = topics
        self.target: dict[str, Any] = {}  # of `TargetTasks`
        self.instances: dict[str, str] = {}
        self.topology: Topology | None = None
        self.validated_epoch = NO_TOPOLOGY
        self.configs: Mapping[str, str] = {}
        self.stored_description = NO_TOPOLOGY
        self.failed_description = NO_TOPOLOGY
        self.active_process: dict[Task, str] = {}
        self.standby_processes: dict[Task, set[str]] = {}
        self.warmup_processes: dict[Task, set[str]] = {}
        self.delay: Timer | None = None
        self.forget_unwritten()

    def forget_unwritten(self) -> None:
        """Forget what is in memory only."""
        self.configured: ConfiguredTopology | None = None
        self.endpoint_epoch = 0
        self.shutdown_by: str | None = None
        self.offsets_of: dict[str, TaskOffsets] = {}

    @property
    def state(self) -> StreamsState:
        """The state; it follows from the epochs."""
        if self.is_dead:
            return StreamsState.DEAD
        if not self.members:
            return StreamsState.EMPTY
        if self.topology is None or self.topology.epoch != self.validated_epoch:
            return StreamsState.NOT_READY
        if self.epoch > self.assignment_epoch:
            return StreamsState.ASSIGNING
        return StreamsState.RECONCILING if self.unsettled else StreamsState.STABLE

    @property
    def is_delayed(self) -> bool:
        """Whether the first assignment waits for more members."""
        return self.delay is not None and self.delay.live

    def end(self, now: int) -> None:
        """See `BaseGroup`."""
        super().end(now)
        cancel(self.delay)

    # ---- members

    def put(self, member: StreamsMember) -> None:
        """See `EpochGroup`."""
        super().put(member)
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.member_id

    def remove(self, member_id: str) -> StreamsMember | None:
        """See `EpochGroup`."""
        member = super().remove(member_id)
        if member is None:
            return None
        if member.instance_id is not None and self.instances.get(member.instance_id) == member_id:
            del self.instances[member.instance_id]
        self.offsets_of.pop(member_id, None)
        if not self.members:
            self.shutdown_by = None
        return member

    def static_member(self, instance_id: str) -> StreamsMember | None:
        """Return the member with this instance id; None if there is none."""
        return self.members.get(self.instances.get(instance_id, ""))

    def member(self, member_id: str, instance_id: str | None) -> StreamsMember:
        """Return a member that a request names.

        :raises Refused: UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID where another member has its instance id
        """
        if instance_id is None:
            if member_id not in self.members:
                text = f"Member {member_id} is not a member of group {self.group_id}."
                raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, text)
            return self.members[member_id]
        member = self.static_member(instance_id)
        if member is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if member.member_id != member_id:
            text = f"Static member {member_id} with instance id {instance_id} was fenced by member {member.member_id}."
            raise Refused(ErrorCode.FENCED_INSTANCE_ID, text)
        return member

    def _count(self, member: StreamsMember, step: int) -> None:
        process = member.process_id
        for held in (member.assigned, member.revoking):
            for task in held.active:
                if step > 0:
                    self.active_process[task] = process
                elif self.active_process.get(task) == process:
                    del self.active_process[task]
            _count_process(self.standby_processes, held.standby, process, step)
            _count_process(self.warmup_processes, held.warmup, process, step)

    # ---- topics

    def subscribed_topics(self) -> set[str]:
        """Return the topics of the topology."""
        return set() if self.topology is None else self.topology.required_topics()

    def subscription(self, member: StreamsMember) -> frozenset[str]:
        """See `EpochGroup`: every member may get tasks of every subtopology."""
        return frozenset(() if self.topology is None else self.topology.subtopology_of)

    def inputs(self, tasks: Iterable[Task]) -> dict[str, list[int]]:
        """Return what tasks read: topic to partitions, in the order in which Kafka names them."""
        found: dict[str, list[int]] = {}
        for name, numbers in by_subtopology(tasks).items():
            for topic in () if self.topology is None else self.topology.inputs(name):
                count = self._topics.partitions(topic) or 0
                if partitions := [number for number in numbers if number < count]:
                    found.setdefault(topic, []).extend(partitions)
        return found

    def is_subscribed(self, topic: str) -> bool:
        """See `BaseGroup`."""
        return bool(self.members) and self.topology is not None and topic in self.topology.subtopology_of

    # ---- offsets

    def check_commit(self, member_id: str, group_instance_id: str | None, epoch: int, version: int) -> ErrorCode:
        """See `BaseGroup`. A member needs OffsetCommit v9."""
        if epoch < 0 and not self.members:
            return ErrorCode.NONE
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if version < _MEMBER_EPOCHS_FROM:
            return ErrorCode.UNSUPPORTED_VERSION
        return ErrorCode.STALE_MEMBER_EPOCH if epoch > member.epoch else ErrorCode.NONE

    def check_partition(self, member_id: str, epoch: int, topic_id: uuid.UUID | None, partition: int) -> ErrorCode:
        """See `BaseGroup`: an epoch that the member has left is good for tasks it has had active since (KIP-1251)."""
        member = self.members.get(member_id)
        if member is None or epoch == member.epoch:
            return ErrorCode.NONE
        topic = None if topic_id is None else self._topics.name_of(topic_id)
        subtopology = None if self.topology is None else self.topology.subtopology_of.get(topic or "")
        task = Task(subtopology or "", partition)
        got_at = member.assigned.active.get(task, member.revoking.active.get(task))
        return ErrorCode.STALE_MEMBER_EPOCH if got_at is None or epoch < got_at else ErrorCode.NONE

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """See `BaseGroup`: who names no member may always read offsets."""
        if member_id is None and epoch < 0:
            return ErrorCode.NONE
        member = self.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if epoch == member.epoch else ErrorCode.STALE_MEMBER_EPOCH

    @property
    def may_expire(self) -> bool:
        """See `BaseGroup`."""
        return True

    def unused_since(self, committed: Committed) -> int:
        """See `BaseGroup`."""
        return committed.commit_timestamp

    def tombstones(self) -> list[LogRecord]:
        """See `BaseGroup`."""
        return [*tombstones(self), LogRecord(m.StreamsGroupTopologyKey(group_id=self.group_id), None)]


def by_subtopology(tasks: Iterable[Task]) -> dict[str, list[int]]:
    """Return the partitions of tasks by subtopology, both ascending."""
    found: dict[str, list[int]] = {}
    for subtopology, partition in sorted(tasks):
        found.setdefault(subtopology, []).append(partition)
    return found


def _count_process(processes: dict[Task, set[str]], tasks: Iterable[Task], process: str, step: int) -> None:
    for task in tasks:
        if step > 0:
            processes.setdefault(task, set()).add(process)
        elif task in processes:
            processes[task].discard(process)
            if not processes[task]:
                del processes[task]
