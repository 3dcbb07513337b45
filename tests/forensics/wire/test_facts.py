"""The facts that rules ask for, and the evidence that they cite."""

from __future__ import annotations

import pytest

from kcoord_wire.forensics.wire.facts import Background, describe_member, evidence_of, identity_of, says
from kcoord_wire.forensics.wire.signs import UNKNOWN_SEQ, Moment
from kcoord_wire.forensics.wire.trace import MemberTrace
from tests.support.exchange_script import Script, at, two_members


@pytest.mark.parametrize(
    ("client_id", "instance_id", "host", "text"),
    [
        ("app", "i-1", "10.0.0.1", "app (instance i-1, 10.0.0.1)"),
        ("app", None, "", "app"),
        (None, None, "10.0.0.1", "app-77 (10.0.0.1)"),
    ],
)
def test_a_member_is_described_as_people_know_it(
    client_id: str | None, instance_id: str | None, host: str, text: str
) -> None:
    member = MemberTrace("app-77", instance_id, client_id, host, Moment(0, "", 0), is_new=True)
    assert describe_member(member) == text
    assert identity_of(member) == ("app-77", client_id, host or None, instance_id)


def test_evidence_may_cite_the_request() -> None:
    script = Script()
    script.beat("c1", 1_000, 1, error=27)
    script.rows[-1].answer_seq = None
    (request,) = script.traffic().requests
    assert request.answered is not None
    assert request.answered.seq == UNKNOWN_SEQ
    fact = evidence_of(request, "text", answer=True)
    assert (fact.time_ns, fact.source, fact.seq) == (at(1_000), "script", request.asked.seq)


def test_reasons_are_compared_without_their_case() -> None:
    assert says("Consumer Poll Timeout has expired.", "poll timeout")
    assert not says(None, "poll timeout")


def test_a_join_that_got_its_assignment_is_not_repeated() -> None:
    background = Background(two_members().traffic())
    joins = [request.asked for request in background.joins]
    assert background.assigned == set(joins)


def test_a_member_did_not_poll_if_its_connection_goes_on() -> None:
    script = two_members(rebalance_ms=4_000)
    script.leave("c2", 5_000, 5_001)
    script.join("c2", 60_000, 60_001, member_id="", error_code=79, given_member_id="c2-b")
    background = Background(script.traffic())
    (leave,) = [request for request in background.traffic.requests if request.api == "LeaveGroup"]
    member = MemberTrace(
        "c2-id", None, "c2", "", Moment(at(0), "", 0), is_new=True, leave=leave, joins=background.joins
    )
    assert background.goes_on(leave) is not None
    assert background.did_not_poll(member)
    member.leave = None
    assert not background.did_not_poll(member)
