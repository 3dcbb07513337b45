"""Causes and rebalances beside holes."""

from __future__ import annotations

from kcoord_wire.forensics.model import Cause, SightingKind
from tests.support.exchange_script import Script, at, two_members


def silent(script: Script) -> Script:
    """c2 sends nothing after 4 s; the others see the rebalance at 11 s."""
    script.beats("c1", 1_000, 11_000, 1)
    script.beats("c2", 1_000, 5_000, 1)
    script.beat("c1", 11_000, 1, error=27)
    script.join("c1", 11_100, 11_200, 2, members=["c1"])
    script.sync("c1", 11_300, 11_310, 2, {}, {"c1": {}})
    return script


def hole(script: Script, client: str, since: float, ms: float) -> None:
    script.closed(client, ms, kind=SightingKind.HOLE, by="client", since_ns=at(since), text="bytes were not captured")


def test_a_silence_with_a_hole_is_a_guess() -> None:
    script = silent(two_members())
    whole = script.last()
    assert (whole.cause, whole.confidence >= 0.9) == (Cause.SESSION_EXPIRED, True)
    hole(script, "c2", 5_000, 6_000)
    row = script.last()
    assert row.confidence <= 0.4
    assert "may have sent something" in row.detail
    assert len(script.history().rebalances) == 2


def test_no_rebalance_is_made_of_a_silence_with_a_hole() -> None:
    script = two_members()
    script.beats("c1", 1_000, 5_000, 1)
    script.beats("c2", 1_000, 30_000, 1)
    hole(script, "c1", 5_000, 6_000)
    assert len(script.history().rebalances) == 1


def test_a_hole_of_another_member_leaves_some_doubt() -> None:
    script = two_members()
    script.join("c3", 5_000, 5_500, 2, member_id="")
    assert script.last().confidence == 1.0
    hole(script, "c2", 3_000, 4_000)
    assert script.last().confidence == 0.8


def test_holes_are_rows_and_are_said() -> None:
    script = two_members()
    hole(script, "c2", 3_000, 4_000)
    script.closed("c9", 4_000, "10.0.0.9:1-10.0.9.9:9092#other", kind=SightingKind.HOLE)
    history = script.history()
    (row,) = history.holes
    assert (row.from_ns, row.to_ns, row.by, row.members) == (at(3_000), at(4_000), "client", ["c2-id"])
    assert any("may be missing" in sentence for sentence in history.group.blind)
