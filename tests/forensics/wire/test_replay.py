"""Replays of scripted exchanges: when a rebalance begins and ends, and which timers end memberships."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kcoord_wire.forensics.causes import Cause
from tests.support.exchange_script import Script, at, two_members


def test_a_join_refused_with_a_member_id_starts_nothing() -> None:
    script = Script()
    script.join("c1", 0, 1, member_id="", error_code=79, given_member_id="c1-id")
    script.join("c1", 2, 3_002, 1, members=["c1"])
    script.sync("c1", 3_003, 3_004, 1, {"orders": [0]}, {"c1": {"orders": [0]}})
    (only,) = script.history().rebalances
    assert (only.started_ns, only.joined_ns, only.ended_ns) == (at(2), at(3_002), at(3_004))
    assert (only.joining_ms, only.syncing_ms, only.duration_ms) == (3_000.0, 2.0, 3_002.0)
    assert (only.outcome, only.generation_id, only.confidence) == ("stable", 1, 1.0)
    assert [life.member_id for life in script.history().members] == ["c1-id"]


def test_a_member_whose_join_is_lost_is_whom_its_id_was_given_to() -> None:
    script = Script()
    script.form("c1")
    script.join("c2", 5_000, 5_001, member_id="", error_code=79, given_member_id="c2-id")
    script.join("c1", 5_900, 6_000, 2, members=["c1", "c2"])
    script.sync("c1", 6_001, 6_002, 2, {"orders": [0]}, {"c1": {"orders": [0]}, "c2": {"orders": [1]}})
    assert [(life.client_id, life.client_host) for life in script.history().members] == [
        ("c1", "10.0.0.1"),
        ("c2", "10.0.0.2"),
    ]


def test_a_start_while_members_join_adds_to_the_rebalance() -> None:
    script = Script()
    script.form("c1")
    script.join("c2", 5_000, 6_000, 2, member_id="")
    script.join("c3", 5_500, 6_000, 2, member_id="")
    script.join("c1", 5_900, 6_000, 2, members=["c1", "c2", "c3"])
    last = script.last()
    assert (last.number, last.generation_id, last.client_id, last.members_before, last.members_after) == (
        2,
        2,
        "c2",
        1,
        3,
    )
    assert "c3 (10.0.0.3) joined" in last.detail
    assert (last.last_client_id, last.late_ms) == ("c1", 400.0)
    assert last.outcome == "open"
    assert "ends in the middle" in " ".join(script.history().group.blind)


def test_a_start_before_the_leaders_sync_interrupts() -> None:
    script = Script()
    script.form("c1", "c2")
    script.leave("c2", 1_000, 1_001, "the consumer is being closed")
    script.join("c1", 1_500, 1_500, 2, members=["c1"])
    script.join("c3", 1_600, 2_000, 3, member_id="")
    script.sync("c1", 1_700, 1_700, 2, error_code=27)
    script.join("c1", 1_800, 2_000, 3, members=["c1", "c3"], more=b"!")
    history = script.history()
    assert [each.outcome for each in history.rebalances] == ["stable", "interrupted", "open"]
    assert [each.cause for each in history.rebalances] == [Cause.NEW_MEMBER, Cause.MEMBER_LEFT, Cause.NEW_MEMBER]
    assert history.rebalances[1].ended_ns == at(1_600)
    assert [each.why for each in history.rebalances[1].removed] == ["left"]


def test_a_join_answered_at_once_is_not_a_rebalance() -> None:
    script = Script()
    script.form("c1", "c2")
    script.join("c2", 5_000, 5_001, 1)  # unchanged: its answer got lost
    assert script.causes() == [Cause.NEW_MEMBER]


def test_a_static_member_returns_without_a_rebalance() -> None:
    script = Script()
    for client in ("c1", "c2"):
        script.join(
            client, 0, 10, 1, member_id="", instance_id=f"i-{client}", members=["c1", "c2"] if client == "c1" else ()
        )
    script.sync("c1", 11, 12, 1, {"orders": [0]}, {"c1": {"orders": [0]}, "c2": {"orders": [1]}})
    script.sync("c2", 12, 13, 1, {"orders": [1]}, instance_id="i-c2")
    script.join("c2", 3_000, 3_001, 1, member_id="", instance_id="i-c2", given_member_id="c2-new", connection="b")
    script.sync("c2", 3_002, 3_003, 1, {"orders": [1]}, member_id="c2-new", instance_id="i-c2", connection="b")
    history = script.history()
    assert len(history.rebalances) == 1
    assert [(life.member_id, life.why_left) for life in history.members] == [
        ("c1-id", None), ("c2-id", "replaced"), ("c2-new", None),
    ]  # fmt: skip
    assert [(row.member_id, row.from_ns, row.to_ns) for row in history.ownership if row.partition == 1] == [
        ("c2-id", at(13), at(3_000)), ("c2-new", at(3_003), None),
    ]  # fmt: skip


@pytest.mark.parametrize(("last_s", "left"), [(2, ("replaced", at(3_000))), (19, (None, None))])
def test_a_static_member_is_back_whose_join_is_missing(last_s: int, left: tuple[str | None, int | None]) -> None:
    """A new member id has the instance id of c1, which is answered until `last_s`."""
    script = Script()
    script.join("c1", 0, 10, 1, member_id="", instance_id="i", members=["c1"])
    script.sync("c1", 11, 12, 1, {"orders": [0]}, {"c1": {"orders": [0]}})
    script.beats("c1", 1_000, 1_000 * last_s + 1, 1)
    script.beat("c1", 3_000, 1, member_id="c1-new", instance_id="i", connection="b")
    script.beats("c2", 4_000, 20_000, 1)  # the source goes on beyond the session of c1
    history = script.history()
    assert [(life.member_id, life.why_left, life.left_ns) for life in history.members if life.client_id == "c1"] == [
        ("c1-id", *left), ("c1-new", None, None),
    ]  # fmt: skip


def test_the_last_member_leaves_an_empty_group() -> None:
    script = Script()
    script.form("c1", owners={"c1": {"orders": [0]}})
    script.leave("c1", 2_000, None)
    last = script.last()
    assert (last.outcome, last.generation_id, last.members_after, last.joined_ns) == ("empty", 2, 0, None)
    assert [state.state for state in script.history().states][-1] == "Empty"


def test_states_follow_each_other_without_a_gap() -> None:
    script = Script()
    script.form("c1", "c2")
    script.leave("c2", 1_000, 1_001)
    script.join("c1", 1_500, 1_500, 2, members=["c1"])
    script.sync("c1", 1_600, 1_601, 2, {}, {"c1": {}})
    states = script.history().states
    assert [state.state for state in states] == [
        "PreparingRebalance", "CompletingRebalance", "Stable", "PreparingRebalance", "CompletingRebalance", "Stable",
    ]  # fmt: skip
    assert all(before.to_ns == after.from_ns for before, after in pairwise(states))
    assert states[-1].to_ns is None
    assert [generation.generation_id for generation in script.history().generations] == [1, 2]
    assert script.history().generations[0].ended_ns == at(1_000)


def test_requests_behind_a_parked_join_are_read_after_it() -> None:
    """A broker reads the next request of a connection when the one before is answered."""
    script = Script()
    script.form("c1", "c2")
    script.join("c1", 1_000, 3_000, 2, members=["c1", "c2"])
    script.leave("c1", 2_000, 3_000)
    script.join("c2", 2_999, 3_000, 2)
    script.join("c2", 3_500, 3_500, 3, leader="c2", members=["c2"])
    causes = script.history().rebalances
    assert [each.cause for each in causes] == [Cause.NEW_MEMBER, Cause.LEADER_REJOINED, Cause.MEMBER_LEFT]
    assert causes[1].outcome == "interrupted"


def test_a_session_times_out() -> None:
    script = Script()
    script.form("c1", "c2")
    script.beats("c1", 1_000, 9_000, 1)
    script.beats("c2", 1_000, 3_000, 1)  # last at 2 s; 6 s later it is gone
    script.beat("c1", 9_000, 1, error=27)
    script.join("c1", 9_001, 9_001, 2, members=["c1"])
    last = script.last()
    assert (last.cause, last.client_id, last.started_ns) == (Cause.SESSION_EXPIRED, "c2", at(8_000))
    assert [(each.client_id, each.why) for each in last.removed] == [("c2", "session timeout")]
    assert last.evidence[0].time_ns == at(2_000)
    assert 0.8 <= last.confidence < 1
    assert [life.why_left for life in script.history().members] == [None, "session timeout"]


def test_a_member_that_is_answered_later_has_not_timed_out() -> None:
    script = Script()
    script.form("c1", "c2")
    script.beats("c1", 1_000, 30_000, 1)
    script.beats("c2", 20_000, 30_000, 1)  # frames are missing, no more
    assert script.causes() == [Cause.NEW_MEMBER]


def test_a_parked_member_does_not_time_out() -> None:
    script = Script()
    script.form("c1", "c2")
    script.beats("c1", 1_000, 9_000, 1)
    script.join("c3", 2_000, 12_000, 2, member_id="")
    script.join("c2", 2_500, 12_000, 2)
    script.beat("c1", 9_000, 1, error=27)
    script.join("c1", 12_000, 12_000, 2, members=["c1", "c2", "c3"])
    last = script.last()
    assert (last.cause, last.removed, last.members_after) == (Cause.NEW_MEMBER, [], 3)


def test_a_member_that_does_not_rejoin_in_time_is_removed() -> None:
    script = Script()
    script.form("c1", "c2")
    script.join("c3", 1_000, 11_000, 2, member_id="")
    script.join("c1", 1_500, 11_000, 2, members=["c1", "c3"])
    for ms in range(2_000, 11_000, 1_000):
        script.beat("c2", ms, 1, error=27)
    script.sync("c1", 11_001, 11_002, 2, {}, {"c1": {}, "c3": {}})
    script.sync("c3", 11_001, 11_002, 2, {})
    script.beat("c2", 11_500, 1, error=25)
    script.join("c2", 11_600, 12_500, 3, member_id="", given_member_id="c2-again")
    script.join("c1", 12_400, 12_500, 3, members=["c1", "c3"])
    history = script.history()
    assert [(each.client_id, each.why) for each in history.rebalances[1].removed] == [("c2", "rebalance timeout")]
    assert history.rebalances[2].cause == Cause.REBALANCE_TIMEOUT
    assert "missed the join of generation 2" in history.rebalances[2].detail


def test_a_member_that_does_not_sync_in_time_is_removed() -> None:
    script = Script()
    script.session_ms = 60_000
    script.form("c1", "c2")
    script.leave("c2", 500, 500)
    script.join("c1", 600, 700, 2, members=["c1", "c3"])
    script.join("c3", 650, 700, 2, member_id="")
    script.sync("c1", 701, 702, 2, {}, {"c1": {}, "c3": {}})  # c3 never sends its own
    script.beats("c1", 1_000, 10_000, 2)
    script.beat("c1", 11_000, 2, error=27)
    script.join("c1", 11_001, 11_001, 3, members=["c1"])
    last = script.last()
    assert (last.cause, last.client_id, last.started_ns) == (Cause.SYNC_EXPIRED, "c3", at(10_700))
    assert [each.why for each in last.removed] == ["sync timeout"]


def test_a_coordinator_is_lost_while_members_join() -> None:
    script = Script()
    script.form("c1", "c2")
    script.join("c3", 1_000, None, member_id="c3-id")
    script.join("c1", 1_500, 2_000, error_code=16)
    script.join("c2", 1_600, 2_000, error_code=16)
    script.join("c1", 3_000, 3_500, 2, members=["c1", "c2"], more=b"2")
    script.join("c2", 3_400, 3_500, 2, more=b"2")
    script.sync("c1", 3_501, 3_502, 2, {}, {"c1": {}, "c2": {}})
    history = script.history()
    assert [each.outcome for each in history.rebalances] == ["stable", "interrupted", "stable"]
    last = history.rebalances[-1]
    assert (last.cause, last.started_ns) == (Cause.COORDINATOR_FAILOVER, at(3_000))
    assert any("16" in fact.text for fact in last.evidence)


def test_members_refused_for_group_max_size_are_removed() -> None:
    script = two_members()
    script.beat("c1", 1_000, 1, error=16)
    script.beat("c1", 3_000, 1, error=27)
    script.beat("c2", 3_100, 1, error=27)
    script.join("c1", 3_200, 3_400, 2, members=["c1"])
    script.join("c2", 3_300, 3_301, error_code=81)
    last = script.last()
    assert last.cause == Cause.GROUP_TOO_LARGE
    assert [(each.client_id, each.why) for each in last.removed] == [("c2", "group.max.size")]
    assert "group.max.size" in last.detail
