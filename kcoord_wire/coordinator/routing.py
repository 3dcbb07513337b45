"""Requests about groups and transactions that reached a broker which does not coordinate them, or is loading them.

Laws:

* The machines see only what the broker coordinates. The rest is answered NOT_COORDINATOR (16) or
  COORDINATOR_LOAD_IN_PROGRESS (14), in the order of the request; while its group is loaded a Heartbeat is answered
  without an error, as by Kafka, so that members do not give up their generation.
* ListGroups and ListTransactions list what the broker coordinates: clients ask every broker.

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
from kcoord_wire.coordinator.security.request_parts import Finish, merge
from kcoord_wire.protocol.error_codes import ErrorCode

_Refuses = Callable[[Brokers, str, int], ErrorCode]  # why a broker cannot serve a group or transactional id


class _Batched(NamedTuple):
    """An api that asks for several groups or transactional ids at once.

    :ivar asked: the name of the request's list
    :ivar answered: the name of the response's list
    :ivar key_of: returns the id of an item of the request
    :ivar refuses: why a broker cannot serve an id
    """

    asked: str
    answered: str
    key_of: Callable[[Any], str] = str
    refuses: _Refuses = Brokers.refuses_group


_BATCHED: Final[Mapping[type, _Batched]] = {
    m.DescribeGroupsRequest: _Batched("groups", "groups"),
    m.DeleteGroupsRequest: _Batched("groups_names", "results"),
    m.ConsumerGroupDescribeRequest: _Batched("group_ids", "groups"),
    m.OffsetFetchRequest: _Batched("groups", "groups", lambda asked: asked.group_id),
    m.DescribeTransactionsRequest: _Batched(
        "transactional_ids", "transaction_states", refuses=Brokers.refuses_transactions
    ),
}
_LISTS: Final[Mapping[type, tuple[str, str, _Refuses]]] = {  # the list of the response, the id of an item
    m.ListGroupsRequest: ("groups", "group_id", Brokers.refuses_group),
    m.ListTransactionsRequest: ("transaction_states", "transactional_id", Brokers.refuses_transactions),
}
_TRANSACTIONAL_ID: Final[Mapping[type, str]] = {  # the field that names it
    m.InitProducerIdRequest: "transactional_id",
    m.AddPartitionsToTxnRequest: "v3_and_below_transactional_id",
    m.AddOffsetsToTxnRequest: "transactional_id",
    m.EndTxnRequest: "transactional_id",
}


def route(brokers: Brokers, request: Any, version: int, broker: int) -> tuple[Any | None, Finish | None]:
    """Split a request for a coordinator into what the broker that has received it may serve, and what it refuses.

    :return: as `Permissions.split`
    """
    if isinstance(request, m.FindCoordinatorRequest):
        return request, None
    if type(request) in _LISTS:
        return request, lambda response: _without_others(brokers, _LISTS[type(request)], response, broker)
    batched = _BATCHED.get(type(request))
    if batched is not None and not (isinstance(request, m.OffsetFetchRequest) and version < versions.BATCH_FETCH_FROM):
        return _split(batched, brokers, request, version, broker)
    error = _refuses(brokers, request, broker)
    if not error:
        return request, None
    if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and isinstance(request, m.HeartbeatRequest):
        return None, lambda _: m.HeartbeatResponse()
    return None, lambda _: refusal(request, version, error)


def _refuses(brokers: Brokers, request: Any, broker: int) -> ErrorCode:
    field = _TRANSACTIONAL_ID.get(type(request))
    if field is None:
        return brokers.refuses_group(request.group_id, broker)
    transactional_id = getattr(request, field)  # None for an idempotent producer, empty for a broker's batch
    return brokers.refuses_transactions(transactional_id, broker) if transactional_id else ErrorCode.NONE


def _without_others(brokers: Brokers, listed: tuple[str, str, _Refuses], response: Any, broker: int) -> Any:
    name, key, refuses = listed
    kept = [item for item in getattr(response, name) if not refuses(brokers, getattr(item, key), broker)]
    return replace(response, **{name: kept})


def _split(
    batched: _Batched, brokers: Brokers, request: Any, version: int, broker: int
) -> tuple[Any | None, Finish | None]:
    asked = getattr(request, batched.asked)
    errors = [batched.refuses(brokers, batched.key_of(item), broker) for item in asked]
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
