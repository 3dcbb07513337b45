"""Dead members: who died, what it cost, and which ends are none."""

from __future__ import annotations

import pytest

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.model import Awaited, GroupHistory, MemberLife, Pause
from tests.support.detector_groups import SECOND, group, life, of, rebalance


def dead(name: str, died_s: float, left_s: float | None, end: str = "process died", **more: object) -> MemberLife:
    why = None if left_s is None else "session timeout"
    at_ns = int(died_s * SECOND)
    return life(name, 0, left_s, **{"why_left": why, "end": end, "died_ns": at_ns, "last_seen_ns": at_ns, **more})


def died(*more: MemberLife, end: str = "process died", **columns: object) -> GroupHistory:
    """A group of c1 and c2, of which c2 died at 100 s and was removed at 110 s."""
    row = rebalance(1, 110, Cause.SESSION_EXPIRED, "c2", members_before=2, members_after=1, paused_ms=20_000.0)
    lives = [life("c1"), dead("c2", 100, 110, end, **columns), *more]
    return group(600, members=lives, rebalances=[row])


def test_a_death_is_told_with_its_cost() -> None:
    (found,) = of("dead_member", died())
    assert (found.severity, found.subject, found.rebalances) == ("warning", "c2", [1])
    assert found.text == (
        "c2 (10.0.0.1) died at 00:01:40 UTC: its connection was closed without LeaveGroup; the coordinator noticed "
        "10.0 s later (session timeout), and it did not come back; 20.0 s of partition time without an owner"
    )
    (found,) = of("dead_member", died(life("c2", 130, member_id="c2-again")))
    assert "and it was back 30.0 s after that moment" in found.text


def test_a_static_member_that_is_back_in_time_is_no_death() -> None:
    assert of("dead_member", died(end="process ended", why_left="replaced", instance_id="i-2")) == []
    assert len(of("dead_member", died(end="process ended"))) == 1


def test_the_last_members_are_a_shutdown() -> None:
    assert of("dead_member", group(600, members=[dead("c1", 100, None), dead("c2", 101, None)])) == []


def test_members_that_die_together_are_one_finding() -> None:
    (found,) = of("dead_member", died(dead("c3", 102, 111)))
    assert found.text.startswith("c2 (10.0.0.1), c3 (10.0.0.1) died at 00:01:40 UTC: their connections were closed")
    assert "none came back" in found.text


def test_a_pause_that_belongs_to_no_rebalance_counts() -> None:
    history = died()
    history.rebalances[0].paused_ms = 0.0
    history.pauses = [Pause("billing", "orders", 0, 100 * SECOND, 140 * SECOND, "c2-id", None, None)]
    (found,) = of("dead_member", history)
    assert found.cost_ms == 40_000.0


@pytest.mark.parametrize("is_waited", [True, False])
def test_a_rebalance_that_waits_for_the_dead_is_its_cost(is_waited: bool) -> None:
    history = died()
    waits = [Awaited("c2-id", "c2", None, 105 * SECOND, 5_000.0, "process died", 100 * SECOND)] if is_waited else []
    history.rebalances.append(rebalance(2, 105, client="c3", waited_for=waits, paused_ms=7_000.0))
    (found,) = of("dead_member", history)
    assert found.rebalances == ([1, 2] if is_waited else [1])
