"""What the log keeps of a streams group: record types 17 and 19 to 23.

Laws:

* Writing and reading are inverse: `replay_groups` returns what the other functions have written.
* A member of which the log has only a part (after compaction) comes back with defaults for the rest.

Source: Kafka's `StreamsCoordinatorRecordHelpers.java`, and the ``replay`` methods of `GroupMetadataManager.java`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from kcoord_wire import messages as m
from kcoord_wire.assignors.streams import Task
from kcoord_wire.coordinator.consumer_groups.epoch_records import read_target_epoch, replay
from kcoord_wire.coordinator.core.apis import filled
from kcoord_wire.coordinator.core.events import LogRecord
from kcoord_wire.coordinator.core.groups import TopicNames
from kcoord_wire.coordinator.streams_groups.streams_group import (
    NO_TASKS,
    HeldTasks,
    StreamsGroup,
    StreamsMember,
    TargetTasks,
    TaskState,
    UserEndpoint,
    by_subtopology,
)
from kcoord_wire.coordinator.streams_groups.topology import Topology

_Held = m.StreamsGroupCurrentMemberAssignmentValueTaskIds
_Targeted = m.StreamsGroupTargetAssignmentMemberValueTaskIds


def epoch_record(group: StreamsGroup) -> LogRecord:
    """Return the record of the group epoch (type 17)."""
    return LogRecord(
        m.StreamsGroupMetadataKey(group_id=group.group_id),
        m.StreamsGroupMetadataValue(
            epoch=group.epoch,
            metadata_hash=group.metadata_hash,
            validated_topology_epoch=group.validated_epoch,
            last_assignment_configs=[
                m.StreamsGroupMetadataValueLastAssignmentConfig(key=key, value=value)
                for key, value in sorted(group.configs.items())
            ],
            stored_description_topology_epoch=group.stored_description,
            failed_description_topology_epoch=group.failed_description,
        ),
    )


def member_record(group: StreamsGroup, member: StreamsMember) -> LogRecord:
    """Return the record of what a member has sent of itself (type 19)."""
    endpoint = member.user_endpoint
    return LogRecord(
        m.StreamsGroupMemberMetadataKey(group_id=group.group_id, member_id=member.member_id),
        filled(
            m.StreamsGroupMemberMetadataValue,
            member,
            user_endpoint=None if endpoint is None else filled(m.StreamsGroupMemberMetadataValueEndpoint, endpoint),
            client_tags=[
                m.StreamsGroupMemberMetadataValueKeyValue(key=key, value=value)
                for key, value in sorted(member.client_tags.items())
            ],
        ),
    )


def target_record(group: StreamsGroup, member_id: str) -> LogRecord:
    """Return the record of a member's target (type 21)."""
    target: TargetTasks = group.target[member_id]
    return LogRecord(
        m.StreamsGroupTargetAssignmentMemberKey(group_id=group.group_id, member_id=member_id),
        m.StreamsGroupTargetAssignmentMemberValue(
            active_tasks=task_ids(_Targeted, target.active),
            standby_tasks=task_ids(_Targeted, target.standby),
            warmup_tasks=task_ids(_Targeted, target.warmup),
        ),
    )


def assignment_record(group: StreamsGroup, member: StreamsMember) -> LogRecord:
    """Return the record of what a member holds (type 22)."""
    assigned, revoking = member.assigned, member.revoking
    return LogRecord(
        m.StreamsGroupCurrentMemberAssignmentKey(group_id=group.group_id, member_id=member.member_id),
        m.StreamsGroupCurrentMemberAssignmentValue(
            member_epoch=member.epoch,
            previous_member_epoch=member.previous_epoch,
            state=member.state,
            active_tasks=_with_epochs(assigned.active),
            standby_tasks=task_ids(_Held, assigned.standby),
            warmup_tasks=task_ids(_Held, assigned.warmup),
            active_tasks_pending_revocation=_with_epochs(revoking.active),
            standby_tasks_pending_revocation=task_ids(_Held, revoking.standby),
            warmup_tasks_pending_revocation=task_ids(_Held, revoking.warmup),
        ),
    )


def topology_record(group: StreamsGroup, topology: Topology) -> LogRecord:
    """Return the record of the topology (type 23)."""
    return LogRecord(m.StreamsGroupTopologyKey(group_id=group.group_id), topology.value)


def task_ids(kind: Callable[..., Any], tasks: Iterable[Task]) -> list[Any]:
    """Return tasks as messages have them.

    :param kind: the class of a subtopology's part
    """
    return [kind(subtopology_id=name, partitions=numbers) for name, numbers in by_subtopology(tasks).items()]


def tasks_from(entries: Iterable[Any]) -> frozenset[Task]:
    """Return the tasks that a message names."""
    return frozenset(Task(entry.subtopology_id, number) for entry in entries for number in entry.partitions)


def _with_epochs(tasks: Mapping[Task, int]) -> list[_Held]:
    found = task_ids(_Held, tasks)
    for entry in found:
        entry.assignment_epochs = [tasks[Task(entry.subtopology_id, number)] for number in entry.partitions]
    return found


# ---- reading


def replay_groups(records: Iterable[LogRecord], now: int, topics: TopicNames) -> dict[str, StreamsGroup]:
    """Return the streams groups in a log, by id. Records of other types are skipped."""
    return replay(records, lambda group_id: StreamsGroup(group_id, now, topics), _READERS)


def _read_epoch(group: StreamsGroup, key: Any, value: m.StreamsGroupMetadataValue | None) -> None:
    if value is not None:
        group.epoch = value.epoch
        group.metadata_hash = value.metadata_hash
        group.validated_epoch = value.validated_topology_epoch
        group.configs = {each.key: each.value for each in value.last_assignment_configs or ()}
        group.stored_description = value.stored_description_topology_epoch
        group.failed_description = value.failed_description_topology_epoch


def _read_topology(group: StreamsGroup, key: Any, value: m.StreamsGroupTopologyValue | None) -> None:
    group.topology = None if value is None else Topology(value)


def _read_member(group: StreamsGroup, key: Any, value: m.StreamsGroupMemberMetadataValue | None) -> None:
    if value is None:
        group.remove(key.member_id)
        return
    endpoint = value.user_endpoint
    group.put(
        replace(
            _known(group, key.member_id),
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            topology_epoch=value.topology_epoch,
            process_id=value.process_id,
            user_endpoint=None if endpoint is None else UserEndpoint(endpoint.host, endpoint.port),
            client_tags={each.key: each.value for each in value.client_tags},
        )
    )


def _read_target(group: StreamsGroup, key: Any, value: m.StreamsGroupTargetAssignmentMemberValue | None) -> None:
    if value is None:
        group.target.pop(key.member_id, None)
    else:
        group.target[key.member_id] = TargetTasks(
            tasks_from(value.active_tasks), tasks_from(value.standby_tasks), tasks_from(value.warmup_tasks)
        )


def _read_assignment(group: StreamsGroup, key: Any, value: m.StreamsGroupCurrentMemberAssignmentValue | None) -> None:
    if value is None:
        if key.member_id in group.members:
            member = group.members[key.member_id]
            blank = replace(member, epoch=0, previous_epoch=0, state=TaskState.STABLE)
            group.put(replace(blank, assigned=NO_TASKS, revoking=NO_TASKS))
        return
    epoch = value.member_epoch
    group.put(
        replace(
            _known(group, key.member_id),
            epoch=epoch,
            previous_epoch=value.previous_member_epoch,
            state=TaskState(value.state) if value.state in TaskState._value2member_map_ else TaskState.UNKNOWN,
            assigned=HeldTasks(
                _epochs_from(value.active_tasks, epoch),
                tasks_from(value.standby_tasks),
                tasks_from(value.warmup_tasks),
            ),
            revoking=HeldTasks(
                _epochs_from(value.active_tasks_pending_revocation, epoch),
                tasks_from(value.standby_tasks_pending_revocation),
                tasks_from(value.warmup_tasks_pending_revocation),
            ),
        )
    )


def _epochs_from(entries: Iterable[_Held], member_epoch: int) -> dict[Task, int]:
    """Return active tasks with the epochs at which the member got them, which may be missing."""
    found: dict[Task, int] = {}
    for entry in entries:
        epochs = entry.assignment_epochs
        if epochs is None or len(epochs) != len(entry.partitions):
            epochs = [member_epoch] * len(entry.partitions)
        found |= {
            Task(entry.subtopology_id, number): epoch for number, epoch in zip(entry.partitions, epochs, strict=True)
        }
    return found


def _known(group: StreamsGroup, member_id: str) -> StreamsMember:
    return group.members.get(member_id) or StreamsMember(member_id=member_id)


_READERS: Final[Mapping[type, Callable[[StreamsGroup, Any, Any], None]]] = {
    m.StreamsGroupMetadataKey: _read_epoch,
    m.StreamsGroupTopologyKey: _read_topology,
    m.StreamsGroupMemberMetadataKey: _read_member,
    m.StreamsGroupTargetAssignmentMetadataKey: read_target_epoch,
    m.StreamsGroupTargetAssignmentMemberKey: _read_target,
    m.StreamsGroupCurrentMemberAssignmentKey: _read_assignment,
}
