"""Requests about groups that reached a broker which does not coordinate them, or that is still loading them.

Laws:

* The machines see only what the broker coordinates. The rest is answered NOT_COORDINATOR (16) or
  COORDINATOR_LOAD_IN_PROGRESS (14), in the order of the request; while its group is loaded a Heartbeat is answered
  without an error, as by Kafka, so that members do not give up their generation.
* ListGroups lists the groups that the broker coordinates: clients ask every broker.

Partitions of topics have other brokers for leaders, too; the topics answer that for each partition by itself.

Source: kafka `GroupCoordinatorService.java`, `CoordinatorRuntime.java`, `KafkaApis.scala`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core import versions
from kcoord_wire.coordinator.core.brokers import Brokers
from kcoord_wire.coordinator.core.error_responses import refusal
from kcoord_wire.coordinator.permissions import Finish, merge
from kcoord_wire.error_codes import ErrorCode

__all__ = ["route"]


class _Groups(NamedTuple):
    """An api that asks for several groups at once.

    :ivar asked: the name of the request's list
    :ivar answered: the name of the response's list
    :ivar group_of: returns the group id of an item of the request
    """

    asked: str
    answered: str
    group_of: Callable[[Any], str]


_BATCHED: Final[Mapping[type, _Groups]] = {
    m.DescribeGroupsRequest: _Groups("groups", "groups", str),
    m.DeleteGroupsRequest: _Groups("groups_names", "results", str),
    m.ConsumerGroupDescribeRequest: _Groups("group_ids", "groups", str),
    m.OffsetFetchRequest: _Groups("groups", "groups", lambda asked: asked.group_id),
}


def route(brokers: Brokers, request: Any, version: int, broker: int) -> tuple[Any | None, Finish | None]:
    """Split a request about groups into what the broker that has received it may serve, and what it has to refuse.

    :return: as `Permissions.split`
    """
    if isinstance(request, m.FindCoordinatorRequest):
        return request, None
    if isinstance(request, m.ListGroupsRequest):
        return request, lambda response: _without_others(brokers, response, broker)
    batched = _BATCHED.get(type(request))
    if batched is not None and not (isinstance(request, m.OffsetFetchRequest) and version < versions.BATCH_FETCH_FROM):
        return _split(batched, brokers, request, version, broker)
    error = brokers.refuses_group(request.group_id, broker)
    if not error:
        return request, None
    if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and isinstance(request, m.HeartbeatRequest):
        return None, lambda _: m.HeartbeatResponse()
    return None, lambda _: refusal(request, version, error)


def _without_others(brokers: Brokers, response: m.ListGroupsResponse, broker: int) -> m.ListGroupsResponse:
    groups = [group for group in response.groups if not brokers.refuses_group(group.group_id, broker)]
    return replace(response, groups=groups)


def _split(
    batched: _Groups, brokers: Brokers, request: Any, version: int, broker: int
) -> tuple[Any | None, Finish | None]:
    asked = getattr(request, batched.asked)
    errors = [brokers.refuses_group(batched.group_of(item), broker) for item in asked]
    if not any(errors):
        return request, None
    refused = []
    for item, error in zip(asked, errors, strict=True):
        if error:
            refused += getattr(refusal(replace(request, **{batched.asked: [item]}), version, error), batched.answered)
    verdicts = [not error for error in errors]

    def finish(response: Any) -> Any:
        if response is None:
            return replace(whole, **{batched.answered: refused})
        return replace(response, **{batched.answered: merge(verdicts, refused, getattr(response, batched.answered))})

    whole = refusal(replace(request, **{batched.asked: []}), version, ErrorCode.NONE)
    left = [item for item, error in zip(asked, errors, strict=True) if not error]
    return (replace(request, **{batched.asked: left}) if left else None), finish
