"""Whom rebalances waited for, in scripted exchanges."""

from __future__ import annotations

from tests.support.exchange_script import Script, at, two_members


def waited(script: Script, number: int = -1) -> list[tuple[str | None, float, float, str]]:
    """Client, since when (ms), how long (ms), and why, of those that a rebalance waited for."""
    row = script.history().rebalances[number]
    return [(each.client_id, (each.from_ns - at(0)) / 1e6, each.ms, each.end) for each in row.waited_for]


def crash(session_ms: int = 45_000) -> Script:
    """c2 dies at 2 s and is back as c3 at 3 s; the coordinator waits until the session of c2 is over."""
    script = Script()
    script.session_ms, script.rebalance_ms = session_ms, 300_000
    script.form("c1", "c2", owners={"c1": {"orders": [0]}, "c2": {"orders": [1]}})
    script.closed("c2", 2_000, by="client")
    script.join("c3", 3_000, session_ms + 30, 2, member_id="c3-id", client_id="c2")
    script.beat("c1", 4_000, 1, error=27)
    script.join("c1", 4_001, session_ms + 30, 2, members=["c1", "c3"])
    return script


def test_a_rebalance_waits_for_a_dead_member() -> None:
    script = crash()
    assert waited(script) == [("c2", 4_001, 45_020 - 4_001, "process died")]
    assert "; it waited 41.0 s for c2, dead since 22:13:22 UTC" in script.last().detail


def test_a_rebalance_still_waits_where_the_source_ends() -> None:
    script = crash()
    for row in script.rows[-3:]:
        if row.api == "JoinGroup":
            row.answered_ns = row.error_code = row.answer_seq = row.new_generation_id = None
    script.saw("c9", 20_000, "orders", 2)
    assert waited(script) == [("c2", 4_001, 15_999, "process died")]


def test_a_rebalance_waits_for_a_slow_member() -> None:
    script = two_members()
    script.join("c3", 1_000, 6_000, 2, member_id="c3-id")
    script.join("c1", 1_500, 6_000, 2, members=["c1", "c2", "c3"])
    script.beat("c2", 2_000, 1, error=27)
    script.join("c2", 5_999, 6_000, 2)
    assert waited(script) == [("c2", 1_500, 4_499, "late")]
    assert "it waited" not in script.last().detail, "the table has it in its columns"


def test_nobody_is_waited_for_when_a_group_is_new_or_quick() -> None:
    script = two_members()
    script.join("c3", 1_000, 1_400, 2, member_id="c3-id")
    script.join("c1", 1_100, 1_400, 2, members=["c1", "c2", "c3"])
    script.join("c2", 1_399, 1_400, 2)
    assert waited(script, 0) == []
    assert waited(script, 1) == []
