"""The detector flapping_member on a group with the problem, and on groups that only look like it."""

from __future__ import annotations

import pytest

from kcoord_wire.forensics.model import Awaited
from tests.support.detector_groups import SECOND, group, life, of, rebalance


def test_flapping_is_one_member_id_after_the_other() -> None:
    flaps = [life("c1", n * 30, n * 30 + 20, member_id=f"c1-{n}", why_left="session timeout") for n in range(5)]
    (found,) = of("flapping_member", group(members=[*flaps, life("c2")]))
    assert (found.subject, found.value) == ("c1 at 10.0.0.1", 4)
    assert "session timeout" in found.text
    together = [life("rdkafka", n, 3000, member_id=f"rdkafka-{n}") for n in range(10)]
    assert of("flapping_member", group(members=together)) == []
    bounced = [life("rdkafka", 3100 + n, member_id=f"new-{n}") for n in range(10)]
    assert of("flapping_member", group(members=[*together, *bounced])) == []  # each of the ten came back once
    hourly = [life("c1", n * 3600, n * 3600 + 20, member_id=f"c1-{n}") for n in range(9)]
    assert of("flapping_member", group(36_000, members=hourly)) == []


def crashes(starts: int, end: str | None = "process died") -> list[dict[str, object]]:
    """Starts of a process every 8 s, each of which dies after 5 s; its session of 45 s goes on."""
    return [
        {"from_s": n * 8, "to_s": n * 8 + 50, "member_id": f"w-{n}", "why_left": "session timeout",
         "died_ns": (n * 8 + 5) * SECOND, "end": end}
        for n in range(starts)
    ]  # fmt: skip


def test_a_crash_loop_is_found_before_a_session_is_over() -> None:
    lives = [life("w", **values) for values in crashes(4)]  # type: ignore[arg-type]  # mixed values by name
    wait = Awaited("w-0", "w", "10.0.0.1", 10 * SECOND, 40_000, "process died", 5 * SECOND)
    history = group(30, members=[*lives, life("c2")], rebalances=[rebalance(1, 8, waited_for=[wait])])
    (found,) = of("flapping_member", history)
    assert found.value == 3
    assert "came back 3 times within 24 s; it was lost by process died (3 x)" in found.text
    assert "a rebalance waited for a dead incarnation of it, 40 s in all" in found.text
    assert "OOM" in found.advice
    assert "max.poll" not in found.advice
    unknown = [life("w", **{**values, "died_ns": None, "end": None}) for values in crashes(4)]  # type: ignore[arg-type]
    assert of("flapping_member", group(30, members=unknown)) == [], "as far as is known, they were there together"


@pytest.mark.parametrize(
    ("end", "why", "word"),
    [
        ("process died", "session timeout", "exit code"),
        ("silent", "session timeout", "garbage collections"),
        ("left", "left", "in order"),
        ("left", "poll timeout", "max.poll.records"),
        (None, "rebalance timeout", "max.poll.records"),
        ("gone", "session timeout", "session.timeout.ms"),
    ],
)
def test_the_advice_fits_how_the_lives_ended(end: str | None, why: str, word: str) -> None:
    lives = [life("w", n * 60, n * 60 + 50, member_id=f"w-{n}", end=end, why_left=why) for n in range(5)]
    (found,) = of("flapping_member", group(members=lives))
    assert word in found.advice
    assert "shorten" not in found.advice
