"""Dead members: who died, what it cost, and which ends are none."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.course import course_of
from kcoord_wire.forensics.detectors import detect
from kcoord_wire.forensics.model import Awaited, GroupHistory, Hole, MemberLife, Pause, RemovedMember
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


def test_a_shutdown_whose_last_leave_is_missing_is_one() -> None:
    row = rebalance(1, 100, Cause.MEMBER_LEFT, members_before=2, members_after=1)
    history = group(600, members=[life("c1", 0, 100), dead("c2", 101, None, "gone")], rebalances=[row])
    assert course_of(history).shutdown == [row]
    history.members.append(life("c3"))
    assert course_of(history).shutdown == [], "a member stays"


REMOVED: dict[str, Any] = {"removed": [RemovedMember("c2-id", "c2", None, "session timeout")]}
AWAITED: dict[str, Any] = {
    "waited_for": [Awaited("c2-id", "c2", None, 110 * SECOND, 5_000.0, "process died", 100 * SECOND)]
}


@pytest.mark.parametrize(
    ("session_ms", "severity", "row"),
    [
        (20_000, "warning", REMOVED),
        (20_001, "info", REMOVED),
        (None, "info", REMOVED),
        (20_000, "info", {"removed": [RemovedMember("c2-id", "c2", None, "left")]}),
        (20_000, "info", {**REMOVED, "outcome": "open"}),
        (45_000, "warning", AWAITED),
    ],
    ids=["half of its session", "less than half", "an unknown session", "it left", "not stable", "others waited"],
)
def test_a_death_that_was_outlived_stands_beside_a_hole(
    session_ms: int | None, severity: str, row: dict[str, Any]
) -> None:
    """The coordinator kept c2 for 10 s after its end, so that no LeaveGroup of it is missing in the hole."""
    history = died(session_timeout_ms=session_ms)
    history.rebalances = [rebalance(1, 110, Cause.SESSION_EXPIRED, "c2", **row)]
    history.holes = [Hole("billing", 99 * SECOND, 101 * SECOND, "", "client", ["c2-id"], "")]
    (found,) = (each for each in detect(history) if each.detector == "dead_member")
    assert found.severity == severity


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


def expired(*spans: tuple[str, float, float | None], **columns: object) -> GroupHistory:
    """A broker's log: members with the end of their session, or without an end."""
    lives = [
        life(
            name,
            a,
            b,
            client_host=None,
            member_id=f"{name}-{a}",
            session_timeout_ms=None,
            why_left=None if b is None else "session timeout",
        )
        for name, a, b in spans
    ]
    return group(600, members=[life("c0", client_host=None), *lives], origin="text", **columns)


UNKNOWN = "its process had ended, stood still, or was cut off from the coordinator; "


@pytest.mark.parametrize(
    ("again_s", "words"),
    [
        (None, f"{UNKNOWN}it did not come back"),
        (104.1, f"{UNKNOWN}it joined again 4.1 s later"),
        (500, f"{UNKNOWN}it joined again 7 min later"),
        (100.028, "it joined again 28 ms later, as a process does that lives and is late with its heartbeats"),
        (60, "its client had joined anew 40.0 s before that, so that it had ended"),
        (
            98,
            "its client had joined anew 2.0 s before that, so that it had ended, or had given its session up by itself",
        ),
    ],
)
def test_a_log_says_that_a_member_was_removed_not_why(again_s: float | None, words: str) -> None:
    again = [] if again_s is None else [("c2", again_s, None)]
    (found,) = of("expired_member", expired(("c2", 50, 100), *again))
    assert (found.severity, found.subject) == ("warning", "c2")
    said = (
        "c2 was removed on heartbeat expiration at 00:01:40 UTC, since nothing of it had come for a session timeout: "
    )
    assert found.text == said + words


def test_a_rebalance_that_waits_for_a_member_until_it_is_removed() -> None:
    row = rebalance(3, 98, client="c2", removed=[RemovedMember("c2-50", "c2", None, "session timeout")])
    (found,) = of("expired_member", expired(("c2", 50, 100), ("c2", 98, None), rebalances=[row]))
    assert found.text.endswith("session up by itself; the others waited 2.0 s for it in a rebalance")
    assert found.rebalances == [3]


def test_members_that_are_removed_together_are_one_finding() -> None:
    (found,) = of("expired_member", expired(("c1", 50, 100), ("c2", 50, 101)))
    assert found.text.startswith("c1, c2 were removed on heartbeat expiration at 00:01:40 UTC")
    assert found.text.endswith("or were cut off from the coordinator; none came back")
    all_back = expired(("c1", 50, 100), ("c2", 50, 101), ("c1", 103, None), ("c2", 104, None))
    all_back.members = all_back.members[1:]
    (found,) = of("expired_member", all_back)
    assert "rather the coordinator stood still, or the network before it, than each of them" in found.text


def test_what_the_wire_shows_and_the_last_members_are_none() -> None:
    assert of("expired_member", group(600, members=expired(("c2", 50, 100)).members)) == []
