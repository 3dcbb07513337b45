"""What can be asked of a coordinator over HTTP: one row for each operation, from which requests are routed and checked,
and from which the OpenAPI description is made. Values as JSON, and the schema of that JSON, are both derived from the
types, so that they agree.

Laws:

* A body is checked before its operation runs: names, types, and what is missing.
* Waits are bounded by `LONGEST_WAIT_MS`.
* A dataclass or named tuple is an object with its fields by name; a mapping is an object, whose keys become text.
* An enumeration is its name where it is of numbers (error codes), and its value where it is of text.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

import kcoord_wire
from kcoord_wire.coordinator import Coordinator, Fault, GroupDescription, RebalanceAccount
from kcoord_wire.coordinator.fault_injection import ACTIONS
from kcoord_wire.coordinator.overview import PartitionDescription, TopicLag, TransactionDescription
from kcoord_wire.json_schemas import Schemas, field_names
from kcoord_wire.kernel.settings import MAX_INT32, SettingsError, declarations, suggestion

LONGEST_WAIT_MS: Final = 600_000
_MOST_IN_QUERY: Final = 10
_MOST_DIGITS: Final = 9


class Item(NamedTuple):
    """A member of a body, or a parameter of a query.

    :ivar kind: ``str``, ``int``, or ``object`` for what the operation itself checks
    """

    kind: type
    about: str
    required: bool = False


class Topic(NamedTuple):
    """A topic and how many partitions it has."""

    name: str
    partitions: int


class CompactedPartition(NamedTuple):
    """A partition with the bytes of its batches before it was compacted, and after."""

    partition: int
    before: int
    after: int


class Broker(NamedTuple):
    """A broker: its node id, and whether it is running, paused or stopped."""

    node: int
    state: str


class CoordinatedBy(NamedTuple):
    """A group and the node id of the broker that coordinates it; -1 if none runs."""

    group_id: str
    node: int


class FaultCounts(NamedTuple):
    """A fault in force: how many requests or responses it was for, and how many it has struck."""

    number: int
    fault: Fault
    matches: int
    hits: int


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation.

    :ivar method: of HTTP
    :ivar path: a template, as OpenAPI writes it; a part in braces is an argument
    :ivar name: its ``operationId``
    :ivar summary: what it does
    :ivar result: the type of what it returns; None for nothing (204)
    :ivar run: called with the coordinator, and the arguments of path, query and body by name
    :ivar body: members of the body
    :ivar query: parameters of the query
    """

    method: str
    path: str
    name: str
    summary: str
    result: Any
    run: Callable[..., Any]
    body: Mapping[str, Item] | None = None
    query: Mapping[str, Item] | None = None


def checked_body(operation: Operation, body: Any) -> dict[str, Any]:
    """Return the arguments that a body has for an operation.

    :raises SettingsError: it is no object, names what does not exist, has a wrong type, or lacks something
    """
    known = operation.body or {}
    if not isinstance(body, dict):
        raise SettingsError("body", "must be a JSON object")
    for name, value in body.items():
        if name not in known:
            raise SettingsError(f"body.{name}"[:100], f"unknown; {suggestion(name, known) if known else 'it is empty'}")
        if known[name].kind is not object and type(value) is not known[name].kind:
            kind = {"str": "text", "int": "a whole number"}[known[name].kind.__name__]
            raise SettingsError(f"body.{name}", f"must be {kind}")
    for name, item in known.items():
        if item.required and name not in body:
            raise SettingsError(f"body.{name}", f"is missing: {item.about}")
    return body


def checked_query(operation: Operation, query: str) -> dict[str, Any]:
    """Return the arguments that the query of an address has for an operation.

    :raises ValueError: it names what does not exist, or has too many parts
    """
    given = dict(parse_qsl(query, keep_blank_values=True, max_num_fields=_MOST_IN_QUERY))
    for name in given:
        if name not in (operation.query or {}):
            raise SettingsError(f"query.{name}"[:100], "unknown")
    return given


# ---- what they do


def _timeout(timeout_ms: int) -> float:
    if not 0 <= timeout_ms <= LONGEST_WAIT_MS:
        raise SettingsError("body.timeout_ms", f"must be from 0 to {LONGEST_WAIT_MS}, not {timeout_ms}")
    return timeout_ms / 1000


def _rebalances(c: Coordinator, group: str | None = None) -> list[RebalanceAccount]:
    return [account for account in c.rebalances if group in (None, account.group_id)]


def _rebalance(c: Coordinator, group: str, reason: str = "asked for over HTTP") -> GroupDescription:
    c.trigger_rebalance(group, reason)
    return c.describe(group)


def _wait_until_stable(
    c: Coordinator, group: str, members: int | None = None, timeout_ms: int = 60_000
) -> GroupDescription:
    return c.wait_until_stable(group, members, _timeout(timeout_ms))


def _wait_for_commit(
    c: Coordinator, group: str, topic: str, partition: int, offset: int, timeout_ms: int = 60_000
) -> GroupDescription:
    c.wait_for_commit(group, topic, partition, offset, _timeout(timeout_ms))
    return c.describe(group)


def _faults(c: Coordinator) -> list[FaultCounts]:
    return [FaultCounts(tally.number, tally.fault, tally.matches, tally.hits) for tally in c.fault_tallies()]


def _add_fault(c: Coordinator, **rule: Any) -> FaultCounts:
    fault = Fault(**rule)
    c.add_fault(fault)
    return next(each for each in reversed(_faults(c)) if each.fault == fault)


def _remove_fault(c: Coordinator, number: str) -> None:
    c.remove_fault(_number(number, "fault"))


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
        raise KeyError(f"no {what} {text[:100]}")
    return int(text)


def _brokers(c: Coordinator) -> list[Broker]:
    return [Broker(node, state) for node, state in zip(c.node_ids, c.brokers, strict=True)]


def _broker(c: Coordinator, node: str) -> int:
    number = _number(node, "broker")
    if number not in c.node_ids:
        raise KeyError(f"no broker {node}")
    return number


def _stop_broker(c: Coordinator, node: str) -> list[Broker]:
    c.stop_broker(_broker(c, node))
    return _brokers(c)


def _restart_broker(c: Coordinator, node: str) -> list[Broker]:
    c.restart_broker(_broker(c, node))
    return _brokers(c)


def _pause_broker(c: Coordinator, node: str, failover_ms: int | None = None) -> list[Broker]:
    if failover_ms is not None and not 0 <= failover_ms <= LONGEST_WAIT_MS:
        raise SettingsError("body.failover_ms", f"must be from 0 to {LONGEST_WAIT_MS}, not {failover_ms}")
    c.pause_broker(_broker(c, node), failover_ms)
    return _brokers(c)


def _resume_broker(c: Coordinator, node: str) -> list[Broker]:
    c.resume_broker(_broker(c, node))
    return _brokers(c)


def _coordinator_of(c: Coordinator, group: str) -> CoordinatedBy:
    return CoordinatedBy(group, c.coordinator_of(group))


def _move(c: Coordinator, group: str, to: int) -> CoordinatedBy:
    c.move_coordinator(group, to)
    return _coordinator_of(c, group)


def _topics(c: Coordinator) -> list[Topic]:
    return [Topic(*topic) for topic in c.topics().items()]


def _partitions(c: Coordinator, topic: str) -> list[PartitionDescription]:
    return c.partitions(topic)


def _create_topic(c: Coordinator, name: str, partitions: int) -> Topic:
    c.create_topic(name, partitions)
    return Topic(name, partitions)


def _delete_topic(c: Coordinator, topic: str) -> None:
    _known(c, topic)
    c.delete_topic(topic)


def _add_partitions(c: Coordinator, topic: str, count: int) -> Topic:
    _known(c, topic)
    return Topic(topic, c.add_partitions(topic, count))


def _known(c: Coordinator, topic: str) -> None:
    if topic not in c.topics():
        raise KeyError(f"no topic {topic!r}")


def _compact(c: Coordinator, topic: str, timeout_ms: int = 60_000) -> list[CompactedPartition]:
    return [CompactedPartition(*each) for each in c.compact(topic, _timeout(timeout_ms))]


_TIMEOUT = Item(int, f"ms; 60,000 if left out, at most {LONGEST_WAIT_MS:,}")
_FAULT = {key: Item(object, declared.about) for key, declared in declarations(Fault).items()}
_FAULT["action"] = Item(
    str, "; ".join(f"{name}: {action.on_request}" for name, action in ACTIONS.items()), required=True
)

OPERATIONS: Final = (
    Operation("GET", "/groups", "groups", "All groups as they are now", list[GroupDescription], Coordinator.groups),
    Operation("GET", "/groups/{group}", "group", "A group as it is now", GroupDescription, Coordinator.describe),
    Operation(
        "POST",
        "/groups/{group}/rebalance",
        "rebalance",
        "Let a group rebalance: its members learn of it by their next heartbeat, and join again",
        GroupDescription,
        _rebalance,
        {"reason": Item(str, "for the account of the rebalance")},
    ),
    Operation(
        "POST",
        "/groups/{group}/wait-until-stable",
        "waitUntilStable",
        "Wait until a group is Stable, every member has its assignment, and no rebalance is certain to follow",
        GroupDescription,
        _wait_until_stable,
        {"members": Item(int, "how many it must have; any number but 0 if left out"), "timeout_ms": _TIMEOUT},
    ),
    Operation(
        "POST",
        "/groups/{group}/wait-for-commit",
        "waitForCommit",
        "Wait until a group has committed at least an offset",
        GroupDescription,
        _wait_for_commit,
        {
            "topic": Item(str, "its name", required=True),
            "partition": Item(int, "its number", required=True),
            "offset": Item(int, "the least one", required=True),
            "timeout_ms": _TIMEOUT,
        },
    ),
    Operation(
        "GET",
        "/groups/{group}/coordinator",
        "coordinatorOf",
        "The broker that coordinates a group",
        CoordinatedBy,
        _coordinator_of,
    ),
    Operation(
        "POST",
        "/groups/{group}/coordinator",
        "move",
        "Let another broker coordinate a group, and all of the same partition of __consumer_offsets",
        CoordinatedBy,
        _move,
        {"to": Item(int, "its node id", required=True)},
    ),
    Operation("GET", "/brokers", "brokers", "All brokers", list[Broker], _brokers),
    Operation(
        "POST",
        "/brokers/{node}/stop",
        "stopBroker",
        "Stop a broker: the others lead and coordinate what it did",
        list[Broker],
        _stop_broker,
    ),
    Operation(
        "POST",
        "/brokers/{node}/restart",
        "restartBroker",
        "Stop a broker, unless it is stopped, and start it again",
        list[Broker],
        _restart_broker,
    ),
    Operation(
        "POST",
        "/brokers/{node}/pause",
        "pauseBroker",
        "Pause a broker: clients may connect, and nothing is answered",
        list[Broker],
        _pause_broker,
        {"failover_ms": Item(int, f"ms until others lead what it led, at most {LONGEST_WAIT_MS:,}; never if left out")},
    ),
    Operation(
        "POST",
        "/brokers/{node}/resume",
        "resumeBroker",
        "Let a paused broker go on",
        list[Broker],
        _resume_broker,
    ),
    Operation(
        "GET",
        "/rebalances",
        "rebalances",
        "The last rebalances that have ended, oldest first",
        list[RebalanceAccount],
        _rebalances,
        query={"group": Item(str, "of this group only")},
    ),
    Operation("GET", "/faults", "faults", "The faults and how often they have struck", list[FaultCounts], _faults),
    Operation("POST", "/faults", "addFault", "Add a fault, which applies from now on", FaultCounts, _add_fault, _FAULT),
    Operation("DELETE", "/faults", "clearFaults", "Remove all faults", None, Coordinator.clear_faults),
    Operation("DELETE", "/faults/{number}", "removeFault", "Remove a fault", None, _remove_fault),
    Operation("GET", "/topics", "topics", "All topics", list[Topic], _topics),
    Operation(
        "POST",
        "/topics",
        "createTopic",
        "Create a topic",
        Topic,
        _create_topic,
        {
            "name": Item(str, "of at most 249 letters, digits and ._-", required=True),
            "partitions": Item(int, "how many, from 1 to 100,000", required=True),
        },
    ),
    Operation(
        "DELETE",
        "/topics/{topic}",
        "deleteTopic",
        "Delete a topic, its records, and what groups have committed to it",
        None,
        _delete_topic,
    ),
    Operation(
        "GET",
        "/topics/{topic}/partitions",
        "partitions",
        "The partitions of a topic: who leads them, where they end, what groups have committed",
        list[PartitionDescription],
        _partitions,
    ),
    Operation(
        "POST",
        "/topics/{topic}/partitions",
        "addPartitions",
        "Give a topic more partitions",
        Topic,
        _add_partitions,
        {"count": Item(int, "how many more", required=True)},
    ),
    Operation(
        "POST",
        "/topics/{topic}/compact",
        "compact",
        "Compact a topic: begin new segments, and drop what has a later record of its key from those before",
        list[CompactedPartition],
        _compact,
        {"timeout_ms": _TIMEOUT},
    ),
    Operation(
        "GET",
        "/lags",
        "lags",
        "Each topic, the brokers' own too, and how far groups are behind in it",
        list[TopicLag],
        Coordinator.topic_lags,
    ),
    Operation(
        "GET",
        "/transactions",
        "transactions",
        "The transactional ids that have changed last, at most 500, the newest first",
        list[TransactionDescription],
        Coordinator.transactions,
    ),
)
"""All operations on a coordinator. The description, the page, its events and the end are the server's own."""


def json_form(value: Any) -> Any:
    """Return a value as what `json.dumps` writes.

    :raises TypeError: it is of no type that has a form
    """
    if isinstance(value, enum.IntEnum):
        return value.name
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, range):
        return f"{value.start}+" if value.stop > MAX_INT32 else f"{value.start}-{value.stop - 1}"
    names = field_names(type(value))
    if names is not None:
        return {name: json_form(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): json_form(each) for key, each in value.items()}
    if isinstance(value, Sequence):
        return [json_form(each) for each in value]
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def operation_schemas() -> Schemas:
    """Return what makes the schemas of values in the form of `json_form`."""
    return Schemas("#/components/schemas/", {range: {"type": "string"}})


FAILURES: Final = {
    400: "The request is wrong; the text says what",
    401: "The token is missing or wrong",
    403: "The request was not sent to an address of this server, or comes from another site",
    404: "There is no such group, topic, fault or path",
    405: "The path has other methods; the header Allow names them",
    413: "The body is too large",
    500: "A fault of the server",
    503: "The coordinator does not run, or too many requests are in progress",
    504: "What was waited for has not come about; the text shows the group",
}
"""Status to its meaning, of every answer that is not a result. Each is an object with one member, ``error``."""

_KINDS: Final[dict[type, dict[str, Any]]] = {str: {"type": "string"}, int: {"type": "integer"}, object: {}}


_ABOUT_EVENTS: Final = (
    "What /groups and /rebalances have, without committed offsets and joins, as server-sent events: all of it first,"
    " then the groups that have changed, the ids of those that are gone, and the rebalances that have ended"
)


def openapi(url: str) -> dict[str, Any]:
    """Return the description.

    :param url: where the server is
    """
    schemas = operation_schemas()
    error = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation, schemas)
    stop = _shell("stop", "Stop the coordinator", {"204": {"description": "It stops"}})
    events = _shell("events", _ABOUT_EVENTS)
    events["responses"]["200"] = {"description": "A stream", "content": {"text/event-stream": {}}}
    report = _shell("report", "The report that `kcoord analyze` makes of the requests of the last time")
    report["responses"]["200"] = {"description": "A page", "content": {"text/html": {}}}
    paths |= {"/stop": {"post": stop}, "/events": {"get": events}, "/report": {"get": report}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "A coordinator of consumer groups, under test", "version": kcoord_wire.__version__},
        "servers": [{"url": url}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": {"Error": error, **schemas.definitions},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _shell(name: str, summary: str, responses: Mapping[str, Any] | None = None) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    failures = {str(status): {"description": text, "content": error} for status, text in FAILURES.items()}
    return {"operationId": name, "summary": summary, "responses": {**(responses or {}), **failures}}


def _described(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    if operation.result is None:
        responses: dict[str, Any] = {"204": {"description": "Done"}}
    else:
        schema = schemas.of(operation.result)
        responses = {"200": {"description": "Done", "content": {"application/json": {"schema": schema}}}}
    described = _shell(operation.name, operation.summary, responses)
    parts = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    parameters = [{"name": name, "in": "path", "required": True, "schema": _KINDS[str]} for name in parts]
    parameters += [
        {"name": name, "in": "query", "required": item.required, "description": item.about, "schema": _KINDS[item.kind]}
        for name, item in (operation.query or {}).items()
    ]
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        described["requestBody"] = _body(operation.body)
    return described


def _body(members: Mapping[str, Item]) -> dict[str, Any]:
    required = [name for name, item in members.items() if item.required]
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: {**_KINDS[item.kind], "description": item.about} for name, item in members.items()},
        "additionalProperties": False,
    }
    if required:
        schema["required"] = required
    return {"required": bool(required), "content": {"application/json": {"schema": schema}}}
