"""Completed joins, found in responses alone."""

from __future__ import annotations

from kcoord_wire.forensics.model import Cause
from tests.support.exchange_script import Script


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
