"""What a coordinator answers at once, writes and reads, against what its classic groups were before the event.

``answers``          a request is refused for the first thing that is wrong with it in the state of its group, and is
                     not refused if nothing is wrong; each partition, member or group that it names is answered
``described``        DescribeGroups and ListGroups show what the groups are, and members as their JoinGroup named them
``log is complete``  what is written of a group or an offset is what it is, and what is read is what was written

Source of the errors and their order: Kafka's `GroupMetadataManager.java`, `ClassicGroup.java`,
`OffsetMetadataManager.java`. Of groups of KIP-848 only the offsets are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core import apis, events
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.groups import CONSUMER, FOREVER, BaseGroup, Group, State, TopicNames
from kcoord_wire.coordinator.core.machine import GroupMachine
from kcoord_wire.kernel.virtual.scripts import ViolationError
from kcoord_wire.protocol.error_codes import ErrorCode

_UNCHANGING: Final = (m.HeartbeatRequest, m.OffsetFetchRequest, m.DescribeGroupsRequest, m.ListGroupsRequest)
_AT_REST: Final = (State.EMPTY, State.STABLE)


class _Seen(NamedTuple):
    """A classic group as it was.

    :ivar members: by id, with the names of the protocols that each offers
    :ivar joined: members whose JoinGroup is parked
    :ivar pending: ids that were given out and are not used yet
    :ivar subscribed: topics of the members; None if they are not known
    """

    state: State
    generation_id: int
    protocol_type: str | None
    protocol: str | None
    members: Mapping[str, frozenset[str]]
    joined: frozenset[str]
    instances: Mapping[str, str]
    pending: frozenset[str]
    subscribed: frozenset[str] | None

    @classmethod
    def of(cls, group: Group) -> _Seen:
        """Return it of a group."""
        members = group.members.values()
        return cls(
            group.state,
            group.generation_id,
            group.protocol_type,
            group.protocol,
            {each.member_id: frozenset(name for name, _ in each.protocols) for each in members},
            frozenset(each.member_id for each in members if each.join is not None),
            dict(group.instances),
            frozenset(group.pending),
            group.subscribed,
        )

    def accepts(self, message: m.JoinGroupRequest) -> bool:
        """Return whether who joins offers a protocol that all members do."""
        offered = frozenset(each.name for each in message.protocols)
        if self.state is State.EMPTY:
            return bool(message.protocol_type and offered)
        return message.protocol_type == self.protocol_type and bool(offered.intersection(*self.members.values()))

    def has_room(self, member_id: str, most: int) -> bool:
        """Return whether who joins finds less than `most` members."""
        if self.state is State.PREPARING:
            return member_id in self.joined or len(self.joined) < most
        return self.state is State.EMPTY or member_id in self.members or len(self.members) < most


_NEW: Final = _Seen(State.EMPTY, 0, None, None, {}, frozenset(), {}, frozenset(), None)


class _Case(NamedTuple):
    """A request.

    :ivar group: before it; None if there was none
    """

    group: _Seen | None
    message: Any
    version: int
    config: GroupConfig
    topics: TopicNames


# ---- what is wrong with a request: the first that is yielded counts


def _in_name_of(group: _Seen, message: Any, generation_id: int | None = None) -> Iterator[ErrorCode]:
    instance_id = getattr(message, "group_instance_id", None)
    if instance_id is not None and instance_id not in group.instances:
        yield ErrorCode.UNKNOWN_MEMBER_ID
    if instance_id is not None and group.instances[instance_id] != message.member_id:
        yield ErrorCode.FENCED_INSTANCE_ID
    if message.member_id not in group.members:
        yield ErrorCode.UNKNOWN_MEMBER_ID
    if generation_id not in (None, group.generation_id):
        yield ErrorCode.ILLEGAL_GENERATION


def _of_heartbeat(case: _Case) -> Iterator[ErrorCode]:
    if not case.message.group_id:
        yield ErrorCode.INVALID_GROUP_ID
    if case.group is None:
        yield ErrorCode.UNKNOWN_MEMBER_ID
        return
    yield from _in_name_of(case.group, case.message, case.message.generation_id)
    yield from _of_protocol(case.group, case.message)
    if case.group.state is State.PREPARING:
        yield ErrorCode.REBALANCE_IN_PROGRESS


def _of_protocol(group: _Seen, message: Any) -> Iterator[ErrorCode]:
    if isinstance(message, m.SyncGroupRequest):
        if message.protocol_type not in (None, group.protocol_type):
            yield ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if message.protocol_name not in (None, group.protocol):
            yield ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def _of_sync(case: _Case) -> Iterator[ErrorCode]:
    if case.version >= apis.PROTOCOL_NAMED_FROM and None in (case.message.protocol_type, case.message.protocol_name):
        yield ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    yield from _of_heartbeat(case)


def _of_join(case: _Case) -> Iterator[ErrorCode]:
    message, config = case.message, case.config
    if not message.group_id:
        yield ErrorCode.INVALID_GROUP_ID
    if not config.min_session_timeout_ms <= message.session_timeout_ms <= config.max_session_timeout_ms:
        yield ErrorCode.INVALID_SESSION_TIMEOUT
    if case.group is None and message.member_id:
        yield ErrorCode.UNKNOWN_MEMBER_ID
    group = case.group or _NEW
    if not group.has_room(message.member_id, config.max_size):
        yield ErrorCode.GROUP_MAX_SIZE_REACHED
    if not group.accepts(message):
        yield ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    yield from _of_id(group, message, case.version)


def _of_id(group: _Seen, message: m.JoinGroupRequest, version: int) -> Iterator[ErrorCode]:
    is_static = message.group_instance_id is not None
    if message.member_id in group.pending:
        if is_static:  # only others are given ids to join with
            yield ErrorCode.UNKNOWN_SERVER_ERROR
    elif message.member_id:
        yield from _in_name_of(group, message)
    elif not is_static and version >= apis.MEMBER_ID_REQUIRED_FROM:
        yield ErrorCode.MEMBER_ID_REQUIRED


def _of_leave(case: _Case, leaver: Any) -> Iterator[ErrorCode]:
    if not case.message.group_id:
        yield ErrorCode.INVALID_GROUP_ID
    if case.group is None:
        yield ErrorCode.UNKNOWN_MEMBER_ID
    else:
        is_named = not leaver.member_id and getattr(leaver, "group_instance_id", None) in case.group.instances
        if not is_named and leaver.member_id not in case.group.pending:
            yield from _in_name_of(case.group, leaver)


def _of_commit(case: _Case) -> Iterator[ErrorCode]:
    group, generation_id = case.group, case.message.generation_id_or_member_epoch
    if group is None:
        if generation_id >= 0:
            is_newer = case.version >= apis.GROUP_NOT_FOUND_FROM
            yield ErrorCode.GROUP_ID_NOT_FOUND if is_newer else ErrorCode.ILLEGAL_GENERATION
    elif generation_id >= 0 or group.state is not State.EMPTY:
        yield from _in_name_of(group, case.message, generation_id)
        if group.state is State.COMPLETING:
            yield ErrorCode.REBALANCE_IN_PROGRESS


def _of_offset_deletion(case: _Case) -> Iterator[ErrorCode]:
    if not case.message.group_id:
        yield ErrorCode.INVALID_GROUP_ID
    if case.group is None:
        yield ErrorCode.GROUP_ID_NOT_FOUND
    elif case.group.state is not State.EMPTY and case.group.protocol_type != CONSUMER:
        yield ErrorCode.NON_EMPTY_GROUP


_OF_REQUEST: Final[Mapping[type, Callable[[_Case], Iterator[ErrorCode]]]] = {
    m.HeartbeatRequest: _of_heartbeat,
    m.SyncGroupRequest: _of_sync,
    m.JoinGroupRequest: _of_join,
}


# ---- partitions

_Parts = dict[tuple[str, int], ErrorCode]


def _asked(case: _Case) -> Iterator[tuple[tuple[str, int], Any, bool]]:
    """Yield the partitions that a request names, and whether each is there."""
    for topic in case.message.topics:
        for item in topic.partitions:
            is_there = 0 <= item.partition_index < (case.topics.partitions(topic.name) or 0)
            yield (topic.name, item.partition_index), item, is_there


def _commits(case: _Case) -> _Parts:
    asked = list(_asked(case))
    is_any_there = any(is_there for *_, is_there in asked)
    refused = next(_of_commit(case), ErrorCode.NONE) if is_any_there else ErrorCode.NONE
    most = case.config.offset_metadata_max_bytes
    found: _Parts = {}
    for key, item, is_there in asked:
        error = ErrorCode.NONE if is_there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        is_too_long = is_there and len(item.committed_metadata or "") > most
        found[key] = refused or (ErrorCode.OFFSET_METADATA_TOO_LARGE if is_too_long else error)
    return found


def _deletions(case: _Case) -> _Parts:
    group, found = case.group or _NEW, {}
    is_unread = group.subscribed is None and group.protocol_type == CONSUMER
    for key, _, is_there in _asked(case):
        is_used = is_unread or key[0] in (group.subscribed or ())
        error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_used else ErrorCode.NONE
        found[key] = error if is_there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return found


def _answered(answer: Any) -> _Parts:
    return {
        (topic.name, item.partition_index): ErrorCode(item.error_code)
        for topic in answer.topics
        for item in topic.partitions
    }


# ---- the laws


class Answers:
    """Checks the laws."""

    def __init__(self) -> None:
        self._clients: dict[str, tuple[str, str]] = {}  # by member id: client id and host
        self.forget()

    def forget(self) -> None:
        """The coordinator begins anew."""
        self._groups: dict[str, _Seen | None] = {}  # None for one of KIP-848
        self._joins: dict[int, events.Request] = {}
        self._is_serving = False

    def handled(self, machine: GroupMachine, event: events.Event, effects: Sequence[events.Effect], now: int) -> None:
        """The machine has handled an event.

        :raises ViolationError: a law is broken
        """
        if isinstance(event, events.Request):
            self._asked(machine, event, effects, now)
        elif isinstance(event, events.Load):
            self._is_serving |= event.partitions is None
            self._check_records(machine, event.records)
        elif isinstance(event, events.Resign):
            self._is_serving &= event.partitions is not None
        self._check_records(machine, _written(effects))
        for effect in effects:
            if isinstance(effect, events.Reply):
                self._note_join(self._joins.pop(effect.token, None), effect.message)
        if not isinstance(event, events.Request) or not isinstance(event.message, _UNCHANGING):
            groups = machine.groups.items()
            self._groups = {name: _Seen.of(group) if isinstance(group, Group) else None for name, group in groups}

    def _asked(
        self, machine: GroupMachine, request: events.Request, effects: Sequence[events.Effect], now: int
    ) -> None:
        if isinstance(request.message, m.JoinGroupRequest):
            self._joins[request.token] = request
        if self._is_serving:
            self._check(machine, request, effects)
        if isinstance(request.message, m.OffsetCommitRequest):
            _check_committed(request, effects, now)

    def _note_join(self, join: events.Request | None, answer: Any) -> None:
        if join is not None and not answer.error_code:
            self._clients.setdefault(answer.member_id, (join.client_id, join.client_host))

    def _check(self, machine: GroupMachine, request: events.Request, effects: Sequence[events.Effect]) -> None:
        replies = (each for each in effects if isinstance(each, events.Reply) and each.token == request.token)
        message: Any = request.message
        answer: Any = next((each.message for each in replies), None)
        if isinstance(message, m.OffsetFetchRequest):
            _check_fetch(machine.groups, request, answer)
        elif isinstance(message, m.ListGroupsRequest):
            _check_list(machine.groups, request, answer)
        elif isinstance(message, m.DescribeGroupsRequest):
            for found in answer.groups:
                self._check_described(machine.groups.get(found.group_id), request, found)
        elif isinstance(message, m.DeleteGroupsRequest):
            given = {each.group_id: ErrorCode(each.error_code) for each in answer.results}
            _compare(request, given, {name: self._deletion_of(name) for name in message.groups_names})
        elif self._groups.get(getattr(message, "group_id", ""), _NEW) is not None:
            case = _Case(
                self._groups.get(getattr(message, "group_id", "")),
                *(message, request.version, machine.config, machine.topics),
            )
            _check_case(case, request, answer)

    def _deletion_of(self, name: str) -> ErrorCode:
        """Return what must become of the deletion of a group."""
        if name not in self._groups:
            return ErrorCode.GROUP_ID_NOT_FOUND
        seen = self._groups[name]
        return ErrorCode.NONE if seen is not None and seen.state is State.EMPTY else ErrorCode.NON_EMPTY_GROUP

    def _check_described(self, group: BaseGroup | None, request: events.Request, found: Any) -> None:
        if not isinstance(group, Group):
            is_newer = request.version >= apis.NO_DESCRIPTION_FROM
            error = ErrorCode.GROUP_ID_NOT_FOUND if is_newer else ErrorCode.NONE
            _compare(request, (found.group_state, ErrorCode(found.error_code)), ("Dead", error), "described")
            return
        is_stable = group.state is State.STABLE
        shown = [(each.member_id, each.group_instance_id, each.client_id, each.client_host) for each in found.members]
        members = [
            (
                each.member_id,
                each.group_instance_id,
                *self._clients.get(each.member_id, (each.client_id, each.client_host)),
            )
            for each in group.members.values()
        ]
        of = (group.state, group.protocol_type or "", (group.protocol or "") if is_stable else "", members)
        _compare(request, (found.group_state, found.protocol_type, found.protocol_data, shown), of, "described")
        if is_stable:
            given = [(each.member_metadata, each.member_assignment) for each in found.members]
            has = [(each.metadata(group.protocol), each.assignment) for each in group.members.values()]
            _compare(request, given, has, "described")

    def _check_records(self, machine: GroupMachine, records: Iterable[events.LogRecord]) -> None:
        """Check that the last records of groups and offsets, written or read, are what the machine has."""
        offsets: dict[tuple[str, str, int], Any] = {}
        groups: dict[str, Any] = {}
        for key, value in records:
            if isinstance(key, m.OffsetCommitKey):
                offsets[key.group, key.topic, key.partition] = value
            elif isinstance(key, m.GroupMetadataKey):
                groups[key.group] = value
        for (group_id, topic, number), value in offsets.items():
            group = machine.groups.get(group_id)
            kept = None if group is None else group.offsets.get(topic, {}).get(number)
            logged = None if value is None else _committed(value)
            if logged != (None if kept is None else tuple(kept)):
                raise ViolationError("log is complete", f"{topic}-{number} of {group_id!r} is {kept}, logged {logged}")
        for group_id, value in groups.items():
            group = machine.groups.get(group_id)
            if value is not None and isinstance(group, Group) and group.state in _AT_REST:
                self._check_logged(group, value)

    def _check_logged(self, group: Group, value: m.GroupMetadataValue) -> None:
        logged, has = _logged(value), _as_logged(group)
        if logged != has:
            raise ViolationError("log is complete", f"{group.group_id!r} is {has}, the log has {logged}")
        for each in value.members:
            client = each.client_id, each.client_host
            if client != (joined := self._clients.setdefault(each.member_id, client)):
                raise ViolationError("log is complete", f"{each.member_id} is of {joined}, the log has {client}")


def _check_case(case: _Case, request: events.Request, answer: Any) -> None:
    if (errors := _OF_REQUEST.get(type(case.message))) is not None:
        given = ErrorCode.NONE if answer is None else ErrorCode(answer.error_code)  # or it is parked
        _compare(request, given, next(errors(case), ErrorCode.NONE))
    elif isinstance(case.message, m.LeaveGroupRequest):
        _check_leave(case, request, answer)
    elif isinstance(case.message, m.OffsetCommitRequest) and request.version < apis.TOPIC_IDS_FROM:
        _compare(request, _answered(answer), _commits(case))
    elif isinstance(case.message, m.OffsetDeleteRequest):
        refused = next(_of_offset_deletion(case), ErrorCode.NONE)
        _compare(request, ErrorCode(answer.error_code), refused)
        if not refused:
            _compare(request, _answered(answer), _deletions(case))


def _check_committed(request: events.Request, effects: Sequence[events.Effect], now: int) -> None:
    """Check that what is written of a commit is what was asked for."""
    message: Any = request.message
    expires = FOREVER if message.retention_time_ms < 0 else now + message.retention_time_ms
    asked = {
        (message.group_id, topic.name, each.partition_index): (
            *(each.committed_offset, each.committed_leader_epoch, each.committed_metadata or "", now, expires),
        )
        for topic in message.topics
        for each in topic.partitions
    }
    for key, value in _written(effects) if request.version < apis.TOPIC_IDS_FROM else ():
        assert isinstance(key, m.OffsetCommitKey)
        assert isinstance(value, m.OffsetCommitValue)
        _compare(request, _committed(value), asked.get((key.group, key.topic, key.partition)), "commits")


def _written(effects: Sequence[events.Effect]) -> list[events.LogRecord]:
    return [record for effect in effects if isinstance(effect, events.Append) for record in effect.records]


def _check_leave(case: _Case, request: events.Request, answer: m.LeaveGroupResponse) -> None:
    leavers = case.message.members if case.version >= apis.BATCH_LEAVE_FROM else [case.message]
    expected = next(_of_leave(case, leavers[0]), ErrorCode.NONE)
    if not case.message.group_id or case.version < apis.BATCH_LEAVE_FROM:
        _compare(request, ErrorCode(answer.error_code), expected)
        return
    shown = [(each.member_id, each.group_instance_id) for each in answer.members]
    _compare(request, shown, [(each.member_id, each.group_instance_id) for each in leavers])
    _compare(request, ErrorCode(answer.members[0].error_code), expected)  # the next depends on what became of it


def _check_fetch(groups: Mapping[str, BaseGroup], request: events.Request, answer: m.OffsetFetchResponse) -> None:
    message: Any = request.message
    is_batch = request.version >= apis.BATCH_FETCH_FROM
    asked: Sequence[Any] = message.groups if is_batch else [message]
    found: Sequence[Any] = answer.groups if is_batch else [answer]
    for of, got in zip(asked, found, strict=True):
        if got.error_code or request.version >= apis.TOPIC_IDS_FROM:
            continue
        group = groups.get(of.group_id)
        offsets = {} if group is None else group.offsets
        known = {(topic, number): each[:3] for topic, numbers in offsets.items() for number, each in numbers.items()}
        if of.topics is not None:
            wanted = ((topic.name, number) for topic in of.topics for number in topic.partition_indexes)
            known = {key: known.get(key, (-1, -1, "")) for key in wanted}
        given = {
            (topic.name, each.partition_index): (each.committed_offset, each.committed_leader_epoch, each.metadata)
            for topic in got.topics
            for each in topic.partitions
        }
        _compare(request, given, known, "commits")


def _check_list(groups: Mapping[str, BaseGroup], request: events.Request, answer: m.ListGroupsResponse) -> None:
    message: Any = request.message
    states, kinds = ({each.lower() for each in names} for names in (message.states_filter, message.types_filter))
    of = [
        (
            *(group_id, group.protocol_type or ""),
            group.state.value if request.version >= apis.GROUP_STATE_FROM else "",
            group.kind if request.version >= apis.GROUP_TYPE_FROM else "",
        )
        for group_id, group in groups.items()
        if (not states or group.state.value.lower() in states) and (not kinds or group.kind in kinds)
    ]
    shown = [(each.group_id, each.protocol_type, each.group_state, each.group_type) for each in answer.groups]
    _compare(request, shown, of, "described")


def _compare(request: events.Request, given: object, expected: object, law: str = "answers") -> None:
    if given != expected:
        raise ViolationError(law, f"{request.message} of version {request.version} gets {given}, expected {expected}")


def _committed(value: m.OffsetCommitValue) -> tuple[object, ...]:
    return (value.offset, value.leader_epoch, value.metadata, value.commit_timestamp, value.expire_timestamp)


def _logged(value: m.GroupMetadataValue) -> tuple[object, ...]:
    members = [
        (
            *(each.member_id, each.group_instance_id, each.client_id, each.client_host),
            *(each.rebalance_timeout, each.session_timeout, bytes(each.subscription), bytes(each.assignment)),
        )
        for each in value.members
    ]
    named = (value.protocol_type, value.protocol, value.leader)
    return (value.generation, *named, value.current_state_timestamp, members)


def _as_logged(group: Group) -> tuple[object, ...]:
    members = [
        (
            *(each.member_id, each.group_instance_id, each.client_id, each.client_host),
            *(each.rebalance_timeout_ms, each.session_timeout_ms),
            *(bytes(each.metadata(group.protocol)), bytes(each.assignment)),
        )
        for each in group.members.values()
    ]
    named = (group.protocol_type or "", group.protocol, group.leader_id)
    return (group.generation_id, *named, group.state_since, members)
