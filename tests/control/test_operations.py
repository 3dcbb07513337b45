"""Bodies of requests, checked before anything is done."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator, validate

from kcoord_wire.control.operations import OPERATIONS, FaultCounts, checked_body, json_form, openapi, operation_schemas
from kcoord_wire.coordinator import Fault, GroupDescription, RebalanceAccount, Trigger
from kcoord_wire.coordinator.core.events import Removal
from kcoord_wire.coordinator.description import describe_group
from kcoord_wire.kernel.settings import SettingsError
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.group_states import STATES, group_in

BY_NAME = {operation.name: operation for operation in OPERATIONS}


@pytest.mark.parametrize(
    ("name", "body", "text"),
    [
        ("createTopic", [], "body: must be a JSON object"),
        ("createTopic", {"name": "orders"}, "body.partitions: is missing: how many"),
        ("createTopic", {"name": "orders", "partitions": "3"}, "body.partitions: must be a whole number"),
        ("createTopic", {"name": "orders", "partitions": True}, "body.partitions: must be a whole number"),
        ("createTopic", {"name": 3, "partitions": 3}, "body.name: must be text"),
        ("createTopic", {"name": "orders", "partition": 3}, r"body.partition: unknown; did you mean partitions\?"),
        ("clearFaults", {"all": 1}, "body.all: unknown; it is empty"),
        ("groups", {"x" * 5000: 1}, "body.xxx"),
    ],
)
def test_wrong_bodies_are_refused(name: str, body: Any, text: str) -> None:
    with pytest.raises(SettingsError, match=text) as error:
        checked_body(BY_NAME[name], body)
    assert len(str(error.value)) < 300


def test_a_body_becomes_arguments() -> None:
    assert checked_body(BY_NAME["waitUntilStable"], {"members": 2}) == {"members": 2}
    assert checked_body(BY_NAME["groups"], {}) == {}


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_every_argument_is_one_of_the_function(operation: Any) -> None:
    taken = inspect.signature(operation.run).parameters
    given = {*re.findall(r"\{(\w+)\}", operation.path), *(operation.query or {}), *(operation.body or {})}
    if all(each.kind is not inspect.Parameter.VAR_KEYWORD for each in taken.values()):
        assert given == set(list(taken)[1:])
    assert all(
        each.required
        for name, each in (operation.body or {}).items()
        if name in taken and taken[name].default is inspect.Parameter.empty
    )


def check(value: Any, kind: Any) -> Any:
    """The JSON of a value, which must be as the schema says, and which no other member may be in."""
    schemas = operation_schemas()
    schema = schemas.of(kind)
    form = json_form(value)
    components = {"schemas": schemas.definitions}
    jsonschema.validate(form, {**schema, "components": components}, jsonschema.Draft202012Validator)
    return form


def test_a_rebalance() -> None:
    account = RebalanceAccount("g", 7, Trigger.NEW_MEMBER, "m", "c", "/h", None, None, 1_000)
    account.joins.append(("m", 3))
    account.removed.append(Removal("x", "c", "/h", "left"))
    form = check(account, RebalanceAccount)
    assert form["trigger"] == "new member"
    assert form["joins"] == [["m", 3]]
    assert form["removed"] == [{"member_id": "x", "client_id": "c", "client_host": "/h", "why": "left"}]


@pytest.mark.parametrize("state", STATES[1:])
def test_a_group(state: str) -> None:
    script, _, _ = group_in(state)
    script.commit(5)
    form = check(describe_group(script.machine.groups["g"], script.topics), GroupDescription)
    assert form["state"] == state
    assert (form["rebalance"] is not None) == (state in ("PreparingRebalance", "CompletingRebalance"))


def test_a_fault() -> None:
    fault = Fault("error", api="Heartbeat", error=27, versions="3-5")
    form = check([FaultCounts(1, fault, 3, 2)], list[FaultCounts])
    assert form[0]["fault"]["error"] == "REBALANCE_IN_PROGRESS"
    assert form[0]["fault"]["versions"] == "3-5"
    assert Fault(**form[0]["fault"]) == fault, "what is returned can be sent back"


def test_mappings_and_unions() -> None:
    assert check({"orders": {3: 5}}, Mapping[str, Mapping[int, int]]) == {"orders": {"3": 5}}
    assert check(None, str | None) is None
    assert check(ErrorCode.NONE, ErrorCode) == "NONE"
    assert check((1, 2), tuple[int, ...]) == [1, 2]
    with pytest.raises(jsonschema.ValidationError):
        check((1, "2"), tuple[int, ...])


def test_types_without_a_form() -> None:
    with pytest.raises(TypeError, match="object has no form"):
        json_form(object())
    with pytest.raises(TypeError, match="has no form"):
        operation_schemas().of(object)


def test_the_description_is_valid() -> None:
    validate(openapi("http://127.0.0.1:9180"), cls=OpenAPIV31SpecValidator)


def test_every_operation_is_described() -> None:
    description = openapi("http://127.0.0.1:9180")
    for operation in OPERATIONS:
        described = description["paths"][operation.path][operation.method.lower()]
        assert described["operationId"] == operation.name
        assert described["summary"]
        named = {parameter["name"] for parameter in described.get("parameters", [])}
        assert named == {*re.findall(r"\{(\w+)\}", operation.path), *(operation.query or {})}
        assert ("requestBody" in described) == (operation.body is not None)
    assert {"/stop", "/events"} <= set(description["paths"])
