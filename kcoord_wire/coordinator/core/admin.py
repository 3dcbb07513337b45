"""Requests of operators: finding the coordinator, listing, describing and deleting groups.

Source: KIP-222 (DeleteGroups), KIP-518 and KIP-848 (filters), KIP-699 (batched FindCoordinator), KIP-1043 (groups that
do not exist); Kafka's `GroupMetadataManager.java`, `KafkaApis.scala`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core import apis
from kcoord_wire.coordinator.core.apis import filled, refusal
from kcoord_wire.coordinator.core.brokers import Brokers
from kcoord_wire.coordinator.core.config import Endpoint
from kcoord_wire.coordinator.core.events import EffectCollector, Request
from kcoord_wire.coordinator.core.groups import BaseGroup, Group, State, tombstones
from kcoord_wire.coordinator.core.offsets import PendingOffsets
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.protocol.key_partitions import is_share_state_key

GROUP_KEY, TRANSACTION_KEY, SHARE_KEY = 0, 1, 2  # key types of FindCoordinator
GROUP_OPERATIONS: Final = sum(1 << code for code in (3, 6, 8, 10, 11))
"""Operations on a group as other apis than DescribeGroups count them: with describe and alter configs."""

OPERATIONS: Final = 1 << 3 | 1 << 6 | 1 << 8  # read, delete and describe, as KIP-430 counts them


def find_coordinator(
    effects: EffectCollector, brokers: Brokers, request: Request, message: m.FindCoordinatorRequest
) -> None:
    """Answer FindCoordinator: the broker that leads the partition of the group, transactional id or share partition."""
    kind = message.key_type
    if kind == SHARE_KEY and request.version >= apis.SHARE_GROUPS_FROM:
        return _find_shares(effects, brokers, request, message)
    if kind not in (GROUP_KEY, TRANSACTION_KEY):
        return effects.reply(request, refusal(message, request.version, ErrorCode.INVALID_REQUEST))
    is_group = kind == GROUP_KEY
    brokers.has_groups |= is_group
    brokers.has_transactions |= not is_group
    leaders = brokers.groups if is_group else brokers.transactions
    if request.version < apis.BATCH_FIND_FROM:
        endpoint = brokers.coordinator_of(leaders, message.key)
        if endpoint is None:
            return effects.reply(request, refusal(message, request.version, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return effects.reply(request, m.FindCoordinatorResponse(error_message="NONE", **endpoint._asdict()))
    found = [_coordinator(key, brokers.coordinator_of(leaders, key)) for key in message.coordinator_keys]
    return effects.reply(request, m.FindCoordinatorResponse(coordinators=found))


def _find_shares(
    effects: EffectCollector, brokers: Brokers, request: Request, message: m.FindCoordinatorRequest
) -> None:
    brokers.has_shares = True
    found = [
        _coordinator(key, brokers.coordinator_of(brokers.shares, key))
        if is_share_state_key(key)
        else _no_coordinator(key, ErrorCode.INVALID_REQUEST, "")
        for key in message.coordinator_keys
    ]
    effects.reply(request, m.FindCoordinatorResponse(coordinators=found))


def _coordinator(key: str, endpoint: Endpoint | None) -> m.FindCoordinatorResponseCoordinator:
    if endpoint is not None:
        return m.FindCoordinatorResponseCoordinator(key=key, **endpoint._asdict())
    error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return _no_coordinator(key, error, error.meaning)


def _no_coordinator(key: str, error: ErrorCode, text: str) -> m.FindCoordinatorResponseCoordinator:
    return m.FindCoordinatorResponseCoordinator(
        key=key, node_id=-1, host="", port=-1, error_code=error, error_message=text
    )


def list_groups(
    effects: EffectCollector, groups: Mapping[str, BaseGroup], request: Request, message: m.ListGroupsRequest
) -> None:
    """Answer ListGroups; states and types are compared without regard to case."""
    states = {state.lower() for state in message.states_filter}
    types = {kind.lower() for kind in message.types_filter}
    listed = [
        m.ListGroupsResponseListedGroup(
            group_id=group.group_id,
            protocol_type=group.protocol_type or "",
            group_state=group.state.value if request.version >= apis.GROUP_STATE_FROM else "",
            group_type=group.kind if request.version >= apis.GROUP_TYPE_FROM else "",
        )
        for group in groups.values()
        if (not states or group.state.lower() in states) and (not types or group.kind in types)
    ]
    after = max([effects.deleted, *(group.written for group in groups.values())])
    effects.reply(request, m.ListGroupsResponse(groups=listed), after)


def not_found(kind: str, group_id: str, group: BaseGroup | None) -> str:
    """Say that there is no group of this id, or that it is of another kind.

    :param kind: ``share``
    """
    return f"Group {group_id} {'not found' if group is None else f'is not a {kind} group'}."


def missing_group(kind: str, group_id: str, group: BaseGroup | None) -> dict[str, Any]:
    """Return what answers about a group that is not there have: the error, and a text.

    :param kind: ``share``
    """
    error = ErrorCode.GROUP_ID_NOT_FOUND if group_id else ErrorCode.INVALID_GROUP_ID
    return {"error_code": error, "error_message": not_found(kind, group_id, group)}


def describe_each(
    effects: EffectCollector,
    groups: Mapping[str, BaseGroup],
    group_ids: Iterable[str],
    answer: Callable[..., Any],
    describe: Callable[[BaseGroup], Any | None],
    missing: Callable[[str, BaseGroup | None], dict[str, Any]],
) -> tuple[list[Any], int]:
    """Return the answers for groups, and the `Append` that must be on disk before they may be sent.

    A group with members is described once, and refused with INVALID_REQUEST (42) where the request names it again:
    otherwise a short request could ask for an answer larger than memory.

    :param answer: makes the answer for a group that is not described
    :param describe: returns the answer for a group; None if it is of another protocol
    :param missing: returns the fields of the answer for a group that does not exist, or is of another protocol
    """
    answers = []
    described: set[str] = set()
    after = 0
    for group_id in group_ids:
        group = groups.get(group_id)
        after = max(after, effects.written(group))
        if group_id in described:
            answers.append(answer(group_id=group_id, error_code=ErrorCode.INVALID_REQUEST))
        elif group is None or (found := describe(group)) is None:
            answers.append(answer(group_id=group_id, **missing(group_id, group)))
        else:
            answers.append(found)
            if group.members:
                described.add(group_id)
    return answers, after


def describe(
    effects: EffectCollector, groups: Mapping[str, BaseGroup], request: Request, message: m.DescribeGroupsRequest
) -> None:
    """Answer DescribeGroups; protocol and metadata are shown while the group is Stable."""

    def missing(group_id: str, group: BaseGroup | None) -> dict[str, Any]:
        if request.version < apis.NO_DESCRIPTION_FROM:
            return {"group_state": State.DEAD.value}
        text = not_found(Group.kind, group_id, group)
        return {"group_state": State.DEAD.value, "error_code": ErrorCode.GROUP_ID_NOT_FOUND, "error_message": text}

    kind = m.DescribeGroupsResponseDescribedGroup
    answers, after = describe_each(effects, groups, message.groups, kind, _described, missing)
    for answer in answers if message.include_authorized_operations else ():
        answer.authorized_operations = OPERATIONS
    effects.reply(request, m.DescribeGroupsResponse(groups=answers), after)


def _described(group: BaseGroup) -> m.DescribeGroupsResponseDescribedGroup | None:
    if not isinstance(group, Group):
        return None
    stable = group.state is State.STABLE
    return m.DescribeGroupsResponseDescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol or "") if stable else "",
        members=[
            filled(
                m.DescribeGroupsResponseDescribedGroupMember,
                member,
                member_metadata=member.metadata(group.protocol) if stable else b"",
                member_assignment=member.assignment,
            )
            for member in group.members.values()
        ],
    )


def delete_groups(
    effects: EffectCollector,
    groups: dict[str, BaseGroup],
    pending: PendingOffsets,
    request: Request,
    message: m.DeleteGroupsRequest,
    errors: Mapping[str, ErrorCode],
) -> None:
    """Answer DeleteGroups: groups without members are deleted, with their offsets.

    :param errors: group id to why the group is not deleted, of those for which that is known
    """
    results = []
    after = 0
    for group_id in dict.fromkeys(message.groups_names):
        error = errors.get(group_id, ErrorCode.NONE)
        group = groups.get(group_id)
        if error:
            pass
        elif group is None:
            error = ErrorCode.GROUP_ID_NOT_FOUND
        elif not group.is_empty:
            error = ErrorCode.NON_EMPTY_GROUP
        else:
            unstable = pending.of_group(group_id)
            pending.drop(group_id.__eq__)
            effects.delete(group, tombstones(group, unstable))
            group.end(effects.now)
            del groups[group_id]
        after = max(after, effects.written(group))
        results.append(m.DeleteGroupsResponseDeletableGroupResult(group_id=group_id, error_code=error))
    effects.reply(request, m.DeleteGroupsResponse(results=results), after)
