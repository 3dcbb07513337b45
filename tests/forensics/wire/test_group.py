"""The state of a group: its moves, its members, and what a JoinGroup starts."""

from __future__ import annotations

import pytest

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
from tests.support.exchange_script import Script


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
