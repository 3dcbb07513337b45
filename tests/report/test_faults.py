"""A rebalance in a sentence: how its member ended, whom it waited for, what it cost."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord_wire.forensics.model import Awaited, Cause, GroupHistory, RemovedMember
from kcoord_wire.report.digest import headline
from kcoord_wire.report.faults import awaited, waited_for_dead
from tests.support.detector_groups import SECOND, group, life, rebalance


def expired(end: str | None, *returned: Any, **more: Any) -> GroupHistory:
    """A group of c1 and c2, of which c2 ended at 100 s, and was removed by its session timeout at 145 s."""
    values = {"members_before": 2, "members_after": 1, "paused_ms": 45_000.0, "duration_ms": 800.0, **more}
    dead = life("c2", 0, 145, why_left="session timeout", end=end, died_ns=100 * SECOND if end else None)
    rows = [rebalance(1, 145, Cause.SESSION_EXPIRED, "c2", **values)]
    return group(600, members=[life("c1"), dead, *returned], rebalances=rows)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("process died", "died at 00:01:40 UTC: its connection was closed without LeaveGroup"),
        ("process ended", "ended at 00:01:40 UTC: its connection was closed, and it sends no LeaveGroup"),
        ("silent", "fell silent at 00:01:40 UTC on an open connection, frozen or cut off"),
        ("gone", "was gone at 00:01:40 UTC: its connection ended, and bytes before that are missing"),
    ],
)
def test_a_death_goes_before_the_session_timeout(end: str, words: str) -> None:
    assert headline(expired(end)).text == (
        f"c2 (10.0.0.1) {words}; the coordinator noticed 45 s later (session timeout, at +2:25.000), and it did not "
        "come back; rebalance #1 took 800 ms, 45 s of partition time without an owner"
    )


def test_a_client_that_came_back_is_said_to_be_back() -> None:
    history = expired("process died", life("c2", 160, member_id="c2-again"))
    assert ", and it was back 60 s after that moment; " in headline(history).text


def test_members_that_ended_together_are_counted() -> None:
    gone = [RemovedMember(f"{name}-id", name, None, "session timeout") for name in ("c2", "c3", "c4")]
    assert " (and 2 other members with it); " in headline(expired("process died", removed=gone)).text


def test_without_a_known_end_the_cause_is_named() -> None:
    assert headline(expired(None)).text.startswith("session timeout of c2 (10.0.0.1) at +2:25.000: rebalance #1 took")


def test_the_last_to_join_is_named_beyond_a_heartbeat() -> None:
    last = {"last_member_id": "c1-id", "last_client_id": "c1", "duration_ms": 4_200.0}
    assert "c1 joined last" not in headline(expired(None, late_ms=2_000.0, **last)).text
    assert (
        "took 4.2 s (c1 joined last, 4.0 s after the others)" in headline(expired(None, late_ms=4_000.0, **last)).text
    )


def test_a_wait_for_a_dead_member_is_a_fault() -> None:
    wait = Awaited("c2-id", "c2", "10.0.0.2", 0, 5_000.0, "process died", 0)
    row = rebalance(1, 3, client="c3", waited_for=[wait], duration_ms=6_000.0, members_before=2)
    waiting = awaited(row)
    assert waiting is not None
    assert (waiting.person, waiting.ms, waited_for_dead(row)) == ("c2 (10.0.0.2)", 5_000.0, True)
    found = headline(group(60, members=[life("c3", 3)], rebalances=[row]))
    assert found.severity == "info"
    assert "because it waited 5.0 s for c2 (10.0.0.2), whose process had died" in found.text
