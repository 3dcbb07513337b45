"""`kw.check` and the coordinator refuse the same, with the same error code: every rule of the schemas, one by one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import kcoord_wire as kw
from kcoord_wire.coordinator import Coordinator, GroupConfig
from kcoord_wire.coordinator.core.apis import api_of
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.schema.describe import refusal_doc, walk_fields
from tests.support.refused import CASES, Case, Member
from tests.support.wire import Wire, errors_in

SERVED = [case for case in CASES if api_of(case.make(Member("billing", "m", 1))) is not None]
"""Share groups are not; Kafka is asked about them: tests/interop/exchanges/refusals.py."""


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    config = GroupConfig(initial_rebalance_delay_ms=0)
    with Coordinator(topics={"orders": 1}, config=config) as coordinator, Wire(coordinator.address) as connection:
        yield connection


@pytest.fixture(scope="module")
def member(wire: Wire) -> Member:
    request = kw.JoinGroupRequest(
        group_id="billing",
        session_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[kw.JoinGroupRequestProtocol(name="range")],
    )
    joined = wire.call(request, 2)
    assert joined.error_code == 0
    return Member("billing", joined.member_id, joined.generation_id)


@pytest.mark.parametrize("case", SERVED, ids=str)
def test_the_coordinator_refuses_what_check_finds(wire: Wire, member: Member, case: Case) -> None:
    finding = case.finding(member)
    assert finding.path == case.path
    answer = wire.call(case.request(member), case.version)
    assert {*errors_in(answer)} - {ErrorCode.NONE} == {finding.error}


def test_every_rule_of_the_schemas_has_a_case() -> None:
    rules = {
        (codec.name, path.replace("[]", "[0]") + "[0]" * refusal.each, refusal_doc(refusal))
        for codec in kw.registry.values()
        for path, field in walk_fields(codec.schema)
        for refusal in field.refused
    }
    member = Member("billing", "m", 1)
    shown = {(type(c.request(member)).__name__, (found := c.finding(member)).path, found.rule) for c in CASES}
    assert shown == rules
