"""Failovers, found in refusals and in connections that end together."""

from __future__ import annotations

from kcoord_wire.forensics.model import Cause
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
