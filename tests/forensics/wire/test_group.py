"""The state of a group: its moves, its members, and what a JoinGroup starts.

Starts that no frame shows: candidates that fit what was answered.
"""

from __future__ import annotations

import pytest

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.model import SightingKind
from kcoord_wire.forensics.wire.group import GroupState, is_follower
from kcoord_wire.forensics.wire.signs import Moment
from kcoord_wire.forensics.wire.trace import (
    PREPARING,
    STABLE,
    LeaveReason,
    MemberTrace,
    ResponseIndex,
    Start,
    StartKind,
)
from kcoord_wire.forensics.wire.traffic import GroupRequest
from tests.support.exchange_script import Script, at, both_join, two_members


def moment(ms: int) -> Moment:
    return Moment(ms * 1_000_000, "script", ms)


def group_of(script: Script) -> tuple[GroupState, list[GroupRequest]]:
    traffic = script.traffic()
    return GroupState(ResponseIndex(traffic, [], [])), traffic.requests


def member(name: str, instance_id: str | None = None) -> MemberTrace:
    return MemberTrace(name, instance_id, "c1", "10.0.0.1", moment(0), is_new=True)


def test_a_new_rebalance_interrupts_the_one_under_way() -> None:
    group, _ = group_of(Script())
    first = group.begin(Start(StartKind.HIDDEN, moment(1)))
    second = group.begin(Start(StartKind.HIDDEN, moment(2)))
    assert (first.outcome, first.over, second.outcome) == ("interrupted", moment(2), "open")
    assert (group.state, group.rebalances) == (PREPARING, [first, second])


def test_members_removed_between_rebalances_belong_to_the_next() -> None:
    group, _ = group_of(Script())
    gone = group.admit(member("a"))
    group.move(STABLE, moment(1))
    group.remove(gone, moment(2), LeaveReason.SESSION)
    rebalance = group.begin(Start(StartKind.SESSION, moment(2), gone))
    assert (rebalance.removed, list(rebalance.before)) == ([(gone, LeaveReason.SESSION)], ["a"])
    assert (gone.left, gone.why, group.members, group.was_member("a")) == (moment(2), LeaveReason.SESSION, {}, True)


def test_a_replaced_member_is_removed_from_no_rebalance() -> None:
    group, _ = group_of(Script())
    old = group.admit(member("a", "i"))
    group.remove(old, moment(1), LeaveReason.REPLACED)
    assert (group.lost, group.instances) == ([], {})


def test_a_failover_restores_what_was_written() -> None:
    group, _ = group_of(Script())
    kept, lost = group.admit(member("a", "i")), group.admit(member("b"))
    group.remove(kept, moment(1), LeaveReason.SESSION)
    group.restore(None, {"a": kept}, moment(2))
    assert (group.members, group.instances, group.state) == ({"a": kept}, {"i": "a"}, STABLE)
    assert (kept.why, lost.why) == (None, LeaveReason.FAILOVER)


@pytest.mark.parametrize(
    ("joined", "leads", "changed", "starts"),
    [(True, False, False, False), (True, True, False, True), (True, False, True, True), (False, False, True, False)],
)
def test_which_join_of_a_member_starts_a_rebalance(joined: bool, leads: bool, changed: bool, starts: bool) -> None:
    script = Script()
    script.join("c1", 0, 10, 1)
    script.join("c1", 20, 30, 2, more=b"!" if changed else b"")
    group, (first, second) = group_of(script)
    known = group.admit(member("c1-id"))
    if joined:
        group.take_join(known, first)
    group.leader = "c1-id" if leads else "another"
    group.move(STABLE, moment(15))
    start = group.join_start(second.due, second, "c1-id", known, replaces=False)
    assert (start is not None) is starts
    assert start is None or (start.kind, start.leads) == (StartKind.REJOINED, leads)


def test_the_former_life_of_a_client_is_found_by_its_connection() -> None:
    script = Script()
    script.join("c1", 0, 10, 1)
    group, (request,) = group_of(script)
    old = group.admit(member("old"))
    group.connect(old, request)
    assert group.new_member(request, "new", moment(5)).former is None, "it is still there"
    group.remove(old, moment(4), LeaveReason.LEFT)
    assert group.new_member(request, "new", moment(5)).former is old


def test_a_follower_says_that_the_group_rebalances_already() -> None:
    script = Script()
    script.join("c1", 0, 10, 1, reason="group is already rebalancing")
    script.join("c1", 20, 30, 1, reason="rebalance enforced by user")
    assert [is_follower(request) for request in script.traffic().requests] == [True, False]


def test_an_unanswered_join_may_start_a_rebalance() -> None:
    script = two_members()
    script.join("c3", 5_000, None, member_id="")
    script.rows[-1].api_version = 3
    script.closed("c3", 5_050)
    script.beat("c2", 5_300, 1, error=27)
    script.join("c2", 5_400, 9_000, 2)
    script.join("c1", 5_500, 9_000, 2, members=["c1", "c2"])
    last = script.last()
    assert (last.cause, last.client_id, last.started_ns) == (Cause.NEW_MEMBER, "c3", at(5_000))
    assert last.confidence <= 0.6


def test_a_follower_that_says_so_started_nothing() -> None:
    script = two_members()
    script.beats("c2", 1_000, 2_000, 1)
    script.beats("c1", 1_000, 8_000, 1)
    script.join("c1", 8_100, 8_100, 2, members=["c1"], reason="group is already rebalancing", more=b"x")
    assert (script.last().cause, script.last().client_id) == (Cause.SESSION_EXPIRED, "c2")


def test_an_unchanged_join_of_a_follower_started_nothing() -> None:
    script = two_members()
    both_join(script, "c2")
    assert script.last().cause == Cause.UNKNOWN


def test_a_member_vanishes_whose_timeout_is_not_known() -> None:
    script = Script()
    script.beats("c1", 0, 20_000, 7)
    script.beats("c2", 0, 5_000, 7)
    script.beat("c1", 20_000, 7, error=27)
    script.join("c1", 20_100, 20_100, 8, members=["c1"])
    last = script.last()
    assert (last.cause, last.client_id, last.confidence) == (Cause.SESSION_EXPIRED, "c2", 0.5)


@pytest.mark.parametrize(
    ("session_ms", "returns", "cause", "why"),
    [
        (6_000, False, Cause.SESSION_EXPIRED, "session timeout"),
        (6_000, True, Cause.OUTAGE, "outage"),
        (60_000, False, Cause.GROUP_TOO_LARGE, "rebalance timeout"),
    ],
)
def test_a_session_ends_while_the_broker_is_unreachable(session_ms: int, returns: bool, cause: Cause, why: str) -> None:
    """The first answer of the coordinator that is back shows a rebalance; c2 died with it, or was only cut off."""
    script = Script()
    script.session_ms = session_ms
    script.form("c1", "c2")
    for client in ("c1", "c2"):
        script.beats(client, 1_000, 4_000, 1)
    script.closed("c2", 3_990, by="client")
    script.closed("c1", 4_000, by="broker")
    for ms in range(4_100, 17_000, 500):
        script.closed("c1", ms, f"10.0.0.1:{ms}-10.0.9.9:9092#{ms}", kind=SightingKind.REFUSED)
    again = "10.0.0.1:5000-10.0.9.9:9092#again"
    script.beat("c1", 17_000, 1, error=27, connection=again)
    script.join("c1", 17_010, 17_020, 2, members=["c1"], connection=again)
    script.sync("c1", 17_030, 17_040, 2, {}, {"c1": {}}, connection=again)
    if returns:
        script.beat("c2", 17_100, 1, error=25, connection="10.0.0.2:5000-10.0.9.9:9092#again")
    (rebalance,) = script.history().rebalances[1:]
    assert (rebalance.cause, [each.why for each in rebalance.removed]) == (cause, [why])


def test_who_goes_on_with_a_given_id_had_joined() -> None:
    """Its JoinGroup is missing (KIP-394)."""
    script = two_members()
    refused = {"error_code": 79, "given_member_id": "c3-id", "new_generation_id": -1}
    script.join("c3", 5_000, 5_001, member_id="", **refused)
    script.beat("c1", 5_300, 1, error=27)
    script.join("c1", 5_400, 5_500, 2, members=["c1", "c2", "c3"])
    script.join("c2", 5_450, 5_500, 2)
    script.sync("c3", 5_501, 5_510, 2, {"orders": [2]})
    script.beat("c3", 6_000, 2)
    last = script.last()
    assert (last.cause, last.client_id, last.confidence) == (Cause.NEW_MEMBER, "c3", 0.6)
