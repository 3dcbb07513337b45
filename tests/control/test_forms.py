"""Values as JSON and the schemas of that JSON: they agree, for every type that the control port returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest

from kcoord_wire.control.operations import FaultCounts, json_form, json_schema
from kcoord_wire.coordinator import Fault, GroupDescription, RebalanceAccount, Trigger
from kcoord_wire.coordinator.core.events import Removal
from kcoord_wire.coordinator.description import describe_group
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.group_states import STATES, group_in


def check(value: Any, kind: Any) -> Any:
    """The JSON of a value, which must be as the schema says, and which no other member may be in."""
    components: dict[str, Any] = {}
    schema = json_schema(kind, components)
    form = json_form(value)
    jsonschema.validate(form, {**schema, "components": {"schemas": components}}, jsonschema.Draft202012Validator)
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
        json_schema(object, {})
