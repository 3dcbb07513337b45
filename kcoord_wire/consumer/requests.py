"""The requests that a consumer sends, and what the leader of a generation computes for the group.

The versions are those that the client library speaks (`MemberSettings.versions`). A field that a version does not have
keeps its default, because the encoder refuses any other value there.

Laws of the leader:

* `assign` is pure, as far as the assignor is; a host may run it in another thread, on its own time.
* `assign_checked` returns an assignment only if it gives every partition to one member at most, and only to members
  that subscribe to it: what an assignor has made of its input reaches the group never otherwise.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from kcoord_wire import messages as m
from kcoord_wire.assignors import MemberAssignment, TopicPartition
from kcoord_wire.assignors.rules import check_assignment
from kcoord_wire.consumer.errors import AssignmentError
from kcoord_wire.consumer.member_events import Assigning, MemberSettings, OffsetAndMetadata, Offsets
from kcoord_wire.protocol.error_codes import ErrorCode

NEVER: Final = 1 << 62
"""Later than any time, in ms."""

_CONSUMER: Final = "consumer"


class Kind(enum.Enum):
    """The kinds of requests; the values are the fields of `Versions`."""

    FIND = "find_coordinator"
    JOIN = "join"
    SYNC = "sync"
    HEARTBEAT = "heartbeat"
    COMMIT = "commit"
    FETCH = "fetch"
    LEAVE = "leave"
    BEAT = "consumer_heartbeat"

    __hash__ = object.__hash__  # Enum's is a function in Python, and machines look kinds up for every event


# ---- requests that wait for their answers


class Pending(NamedTuple):
    """A request that waits for its answer.

    :ivar kind: see `Kind`
    :ivar context: what is needed to understand the answer
    :ivar deadline: until when it waits, in ms
    """

    kind: Kind
    context: Any
    deadline: int


class InFlight:
    """The requests that wait for their answers on the present connection, by number."""

    __slots__ = ("_kinds", "_last", "_pending")

    def __init__(self) -> None:
        self._pending: dict[int, Pending] = {}
        self._kinds: dict[Kind, int] = dict.fromkeys(Kind, 0)
        self._last = 0

    def add(self, kind: Kind, context: Any, deadline: int) -> int:
        """Add a request and return its number: 1, 2, 3 ..."""
        self._last += 1
        self._pending[self._last] = Pending(kind, context, deadline)
        self._kinds[kind] += 1
        return self._last

    def pop(self, request_id: int) -> Pending | None:
        """Remove and return a request; None if it does not wait (any more)."""
        pending = self._pending.pop(request_id, None)
        if pending is not None:
            self._kinds[pending.kind] -= 1
        return pending

    def take_all(self) -> list[Pending]:
        """Remove and return all requests, oldest first."""
        pending = list(self._pending.values())
        self._pending.clear()
        self._kinds = dict.fromkeys(Kind, 0)
        return pending

    def has(self, kind: Kind) -> bool:
        """Whether a request of this kind waits."""
        return self._kinds[kind] > 0

    def kinds(self) -> tuple[Kind, ...]:
        """Return the kinds of the requests that wait, oldest first."""
        return tuple(kind for kind, _, _ in self._pending.values())

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._pending

    def __bool__(self) -> bool:
        return bool(self._pending)

    @property
    def deadline(self) -> int:
        """The earliest deadline; `NEVER` if no request waits."""
        deadline = NEVER
        for _, _, each in self._pending.values():
            if each < deadline:
                deadline = each
        return deadline


# ---- requests


def is_static(settings: MemberSettings) -> bool:
    """Whether the member is static: it has an instance id, and its JoinGroup has the field (version 5)."""
    return settings.group_instance_id is not None and settings.versions.join >= 5


def _instance_id(settings: MemberSettings, *, is_field: bool) -> str | None:
    return settings.group_instance_id if is_field and is_static(settings) else None


def find_coordinator(settings: MemberSettings) -> m.FindCoordinatorRequest:
    """FindCoordinator for the group; batched since version 4."""
    if settings.versions.find_coordinator >= 4:
        return m.FindCoordinatorRequest(coordinator_keys=[settings.group_id])
    return m.FindCoordinatorRequest(key=settings.group_id)


def found_coordinator(settings: MemberSettings, response: m.FindCoordinatorResponse) -> Any:
    """Return the part of FindCoordinator's response that is about the group: its error_code, host and port.

    A response without one says that there is no coordinator.
    """
    if settings.versions.find_coordinator < 4:
        return response
    nothing = m.FindCoordinatorResponseCoordinator(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return next(iter(response.coordinators), nothing)


def join(
    settings: MemberSettings, member_id: str, protocols: list[m.JoinGroupRequestProtocol], reason: str | None
) -> m.JoinGroupRequest:
    """JoinGroup, with the rebalance timeout since version 1 and the reason since version 8 (KIP-800)."""
    version = settings.versions.join
    return m.JoinGroupRequest(
        group_id=settings.group_id,
        session_timeout_ms=settings.session_timeout_ms,
        rebalance_timeout_ms=settings.rebalance_timeout_ms if version >= 1 else -1,
        member_id=member_id,
        group_instance_id=_instance_id(settings, is_field=version >= 5),
        protocol_type=_CONSUMER,
        protocols=protocols,
        reason=reason if version >= 8 else None,
    )


def sync(
    settings: MemberSettings,
    generation_id: int,
    member_id: str,
    protocol: str | None,
    assignments: list[m.SyncGroupRequestAssignment],
) -> m.SyncGroupRequest:
    """SyncGroup; it names the protocol since version 5 (KIP-559)."""
    version = settings.versions.sync
    return m.SyncGroupRequest(
        group_id=settings.group_id,
        generation_id=generation_id,
        member_id=member_id,
        group_instance_id=_instance_id(settings, is_field=version >= 3),
        protocol_type=_CONSUMER if version >= 5 else None,
        protocol_name=protocol if version >= 5 else None,
        assignments=assignments,
    )


def heartbeat(settings: MemberSettings, generation_id: int, member_id: str) -> m.HeartbeatRequest:
    """Heartbeat."""
    return m.HeartbeatRequest(
        group_id=settings.group_id,
        generation_id=generation_id,
        member_id=member_id,
        group_instance_id=_instance_id(settings, is_field=settings.versions.heartbeat >= 3),
    )


def commit(settings: MemberSettings, generation_id: int, member_id: str, offsets: Offsets) -> m.OffsetCommitRequest:
    """OffsetCommit of a member; without a group's generation, of a client that is none. The leader epoch goes with it
    since version 6."""
    version = settings.versions.commit
    instance_id = _instance_id(settings, is_field=version >= 7)
    group_id = settings.group_id
    return commit_of(group_id, generation_id, member_id, instance_id, offsets.items(), has_epochs=version >= 6)


def commit_of(
    group_id: str,
    generation_id: int,
    member_id: str,
    instance_id: str | None,
    offsets: Iterable[tuple[tuple[str, int], int | OffsetAndMetadata]],
    *,
    has_epochs: bool,
) -> m.OffsetCommitRequest:
    """OffsetCommit, of whatever kind of member."""
    topics: dict[str, m.OffsetCommitRequestTopic] = {}
    for (name, partition), given in offsets:
        part = m.OffsetCommitRequestPartition(partition_index=partition)
        if isinstance(given, OffsetAndMetadata):
            part.committed_offset, part.committed_metadata = given.offset, given.metadata
            if has_epochs:
                part.committed_leader_epoch = given.leader_epoch
        else:
            part.committed_offset = given
        topics.setdefault(name, m.OffsetCommitRequestTopic(name=name)).partitions.append(part)
    return m.OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation_id,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=list(topics.values()),
    )


def fetch_offsets(
    settings: MemberSettings, partitions: Iterable[TopicPartition], member: tuple[str | None, int] = (None, -1)
) -> m.OffsetFetchRequest:
    """OffsetFetch; it waits for transactions since version 7, is batched since version 8, and has id and epoch of a
    member of KIP-848 since version 9."""
    version = settings.versions.fetch
    topics: dict[str, list[int]] = {}
    for name, partition in sorted(partitions):
        topics.setdefault(name, []).append(partition)
    request = m.OffsetFetchRequest(require_stable=version >= 7)
    if version >= 8:
        batched = [m.OffsetFetchRequestTopics(name=name, partition_indexes=indexes) for name, indexes in topics.items()]
        group = m.OffsetFetchRequestGroup(group_id=settings.group_id, topics=batched)
        if version >= 9:
            group.member_id, group.member_epoch = member
        request.groups = [group]
    else:
        request.group_id = settings.group_id
        request.topics = [
            m.OffsetFetchRequestTopic(name=name, partition_indexes=indexes) for name, indexes in topics.items()
        ]
    return request


def fetched_offsets(
    settings: MemberSettings, response: m.OffsetFetchResponse, asked: frozenset[TopicPartition]
) -> tuple[int, dict[TopicPartition, OffsetAndMetadata], dict[TopicPartition, int]]:
    """Return what OffsetFetch's response has for the group: its error; the committed offsets, negative for none; and
    the errors of the others that were asked for, which is 0 for those that the answer leaves out."""
    batched = settings.versions.fetch >= 8
    answer: Any = next(iter(response.groups), m.OffsetFetchResponseGroup()) if batched else response
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    refused = dict.fromkeys(sorted(asked), answer.error_code)
    for topic in answer.topics:
        for partition in topic.partitions:
            key = TopicPartition(topic.name, partition.partition_index)
            if key not in asked:
                continue
            if partition.error_code:
                refused[key] = partition.error_code
            else:
                refused.pop(key, None)
                offsets[key] = OffsetAndMetadata(
                    partition.committed_offset, partition.metadata or "", partition.committed_leader_epoch
                )
    return answer.error_code, offsets, refused


def leave(settings: MemberSettings, member_id: str, reason: str | None) -> m.LeaveGroupRequest:
    """LeaveGroup; batched since version 3, with a reason since version 5 (KIP-800)."""
    version = settings.versions.leave
    if version < 3:
        return m.LeaveGroupRequest(group_id=settings.group_id, member_id=member_id)
    member = m.LeaveGroupRequestMemberIdentity(member_id=member_id, reason=reason if version >= 5 else None)
    return m.LeaveGroupRequest(group_id=settings.group_id, members=[member])


def assign(task: Assigning) -> dict[str, MemberAssignment]:
    """Return what each member gets, by member id. Errors of the assignor pass through."""
    assignment = task.assignor.assign(task.partitions, task.subscriptions, task.racks)
    user_data: Mapping[str, bytes] = {}
    if task.assignor.assignment_user_data is not None:
        user_data = task.assignor.assignment_user_data(task.partitions, task.subscriptions, assignment)
    return {
        member_id: MemberAssignment(partitions, user_data.get(member_id, b""))
        for member_id, partitions in assignment.items()
    }


def assign_checked(task: Assigning) -> dict[str, MemberAssignment]:
    """Return what each member gets, by member id.

    :raises AssignmentError: the assignor has failed, or its assignment must not be sent
    """
    name = task.assignor.name
    try:
        assigned = assign(task)
    except Exception as error:  # a plug-in may raise anything
        raise AssignmentError(name, f"{type(error).__name__}: {error}") from error
    found = check_assignment(
        {member_id: each.partitions for member_id, each in assigned.items()},
        task.partitions,
        task.subscriptions,
        task.assignor.protocol,
    )
    if found:
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        raise AssignmentError(name, f"its assignment is not valid: {found[0]}{more}")
    return assigned
