"""Completed joins, found in responses alone.

Failovers, found in refusals and in connections that end together.
"""

from __future__ import annotations

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.detectors import findings_of
from tests.support.exchange_script import Script, both_join, two_members


def test_refusals_of_a_coordinator_that_goes_on_are_no_failover() -> None:
    script = two_members()
    script.join("c3", 1_000, 2_000, 2, member_id="")
    script.beat("c2", 1_500, 1, error=16)
    script.join("c2", 1_600, 2_000, 2)
    script.join("c1", 1_900, 2_000, 2, members=["c1", "c2", "c3"])
    assert script.causes() == [Cause.NEW_MEMBER, Cause.NEW_MEMBER]
    assert len(script.history().rebalances) == 2


def test_lost_connections_beside_a_live_one_are_no_failover() -> None:
    script = Script()
    script.form("c1", "c2", "c3")
    for client in ("c1", "c2"):
        script.closed(client, 2_000)
    script.beats("c3", 1_000, 10_000, 1)
    both_join(script, "c1", ms=3_000)
    assert script.last().cause != Cause.COORDINATOR_FAILOVER


def test_a_generation_that_comes_again_was_forgotten() -> None:
    script = Script()
    script.form("c1", "c2")
    script.join("c1", 1_000, 1_500, 2, members=["c1", "c2"])
    script.join("c2", 1_400, 1_500, 2)
    script.sync("c1", 1_501, None, 2, gives={"c1": {}, "c2": {}})
    for client in ("c1", "c2"):
        script.closed(client, 1_600)
    script.join("c1", 2_000, 2_500, 2, members=["c1", "c2"], connection="10.0.0.1:5-b#5")
    script.join("c2", 2_400, 2_500, 2, connection="10.0.0.2:6-b#6")
    history = script.history()
    assert [each.generation_id for each in history.rebalances] == [1, 2, 2]
    assert history.rebalances[2].cause == Cause.COORDINATOR_FAILOVER


def test_a_join_of_which_only_the_syncs_were_seen() -> None:
    script = Script()
    script.sync("c1", 10, 12, 5, {"orders": [0]}, {"c1": {"orders": [0]}, "c2": {"orders": [1]}})
    script.sync("c2", 11, 12, 5, {"orders": [1]})
    history = script.history()
    (only,) = history.rebalances
    assert (only.generation_id, only.joined_ns, only.outcome, only.cause) == (5, None, "stable", Cause.UNKNOWN)
    assert len(history.ownership) == 2
    assert any("joins of 1 generations are missing" in said for said in history.group.blind)


def reborn() -> Script:
    """A group becomes empty, is deleted, and is formed again by new processes of the same clients."""
    script = Script()
    script.form("c1", "c2", owners={"c1": {"orders": [0]}, "c2": {"orders": [1]}})
    script.leave("c1", 1_000, 1_001)
    script.leave("c2", 1_100, 1_101)
    script.form("c3", "c4", ms=5_000, owners={"c3": {"orders": [0]}, "c4": {"orders": [1]}})
    return script


def test_a_group_deleted_and_formed_again_loses_no_rebalance() -> None:
    history = reborn().history()
    assert [(row.generation_id, row.outcome) for row in history.rebalances] == [
        (1, "stable"),
        (2, "empty"),
        (1, "stable"),
    ]
    assert history.rebalances[-1].cause == Cause.NEW_MEMBER
    assert [row.first_generation_id for row in history.members] == [1, 1, 1, 1]
    (found,) = findings_of("generation_reset", history, None)
    assert "deleted when it was empty, and formed again" in found.text


def test_a_lower_generation_of_an_empty_group_is_no_failover() -> None:
    script = Script()
    script.form("c1", "c2", generation=7)
    script.leave("c1", 1_000, 1_001)
    script.leave("c2", 1_100, 1_101)
    script.form("c1", "c2", ms=5_000)
    assert script.causes() == [Cause.NEW_MEMBER, Cause.MEMBER_LEFT, Cause.NEW_MEMBER]


def test_a_restarted_static_leader_forms_no_new_group() -> None:
    script = Script()
    join = script.join("c1", 0, 10, 1, members=["c1"], member_id="", instance_id="i1")
    assert join.members is not None
    join.members[0].instance_id = "i1"
    script.sync("c1", 11, 12, 1, {"orders": [0]}, {"c1": {"orders": [0]}}, instance_id="i1")
    again = {"given_member_id": "c1-again", "instance_id": "i1", "member_id": ""}
    script.join("c1", 1_000, 1_001, 1, leader="c1-again", **again)
    assert len(script.history().rebalances) == 1
