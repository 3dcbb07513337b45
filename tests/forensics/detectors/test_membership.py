"""Two applications in one group: members without a common topic, side by side.

The detector flapping_member on a group with the problem, and on groups that only look like it.

Frozen members: a silence that the same member ends, while others are heard.

Slow polls: who did not poll in time, and how long the poll took.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.detectors.finding import stem
from kcoord_wire.forensics.model import Awaited, Exchange
from tests.support.detector_groups import SECOND, exchange, group, life, of, rebalance


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("web-7d4f", "web"), ("web-2", "web"), ("web2", "web"), ("web", "web"), (None, ""), ("a.b", "a")],
)
def test_stem_of_a_client_id(name: str | None, wanted: str) -> None:
    assert stem(name) == wanted


def test_two_applications_are_named_with_their_topics() -> None:
    lives = [life("billing-1"), life("billing-2", 5), life("audit-1", 10, 14, topics=["bills"])]
    (found,) = of("two_applications", group(60, members=lives))
    assert found.severity == "warning"
    assert found.text == (
        "two applications share the group id: billing-1, billing-2 subscribe to orders, audit-1 to bills, no topic in "
        "common, side by side for 4.0 s"
    )


def test_consumers_of_one_application_are_told_after_a_minute() -> None:
    lives = [life("app-1"), life("app-2", topics=["bills"])]
    (found,) = of("two_applications", group(70, members=lives))
    assert found.severity == "info"
    assert of("two_applications", group(50, members=lives)) == []


def test_a_chain_of_common_topics_is_one_application() -> None:
    lives = [life("a", topics=["x"]), life("b", topics=["y"]), life("c", topics=["x", "y"])]
    assert of("two_applications", group(3600, members=lives)) == []


def test_one_after_the_other_is_normal() -> None:
    lives = [life("a", 0, 20, topics=["x"]), life("b", 20, topics=["y"])]
    assert of("two_applications", group(3600, members=lives)) == []


def test_a_member_that_changes_its_subscription_counts_later() -> None:
    lives = [life("a", topics=["x"]), life("b", topics=["y"])]
    changed = rebalance(2, 10, Cause.SUBSCRIPTION_CHANGED, client="b")
    assert of("two_applications", group(20, members=lives, rebalances=[changed])) == []
    (found,) = of("two_applications", group(22, members=lives, rebalances=[changed]))
    assert found.value == 2


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
    assert "a rebalance waited for a dead incarnation of it, 40.0 s in all" in found.text
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


def beats(client: str, seconds: Iterable[float]) -> list[Exchange]:
    return [exchange("Heartbeat", at, client_id=client, member_id=f"{client}-id") for at in seconds]


WITH_A_GAP = [*range(0, 30, 3), *range(50, 90, 3)]


def test_a_member_that_goes_on_after_a_silence() -> None:
    history = group(90, members=[life("c1"), life("c2")])
    (found,) = of("frozen_member", history, beats("c1", WITH_A_GAP) + beats("c2", range(0, 90, 3)))
    assert (found.severity, found.subject) == ("warning", "c1"), "23 s of a session of 45 s"
    assert found.text == (
        "c1 (10.0.0.1) was silent for 23.0 s, with a heartbeat every 3.0 s before, and then went on as the same "
        "process: it was frozen, or its network carried nothing"
    )
    shorter = beats("c1", [*range(0, 30, 3), *range(40, 90, 3)]) + beats("c2", range(0, 90, 3))
    (found,) = of("frozen_member", history, shorter)
    assert found.severity == "info"


def test_a_member_that_was_removed_meanwhile() -> None:
    history = group(90, members=[life("c1", 0, 35, session_timeout_ms=120_000), life("c2")])
    (found,) = of("frozen_member", history, beats("c1", WITH_A_GAP) + beats("c2", range(0, 90, 3)))
    assert found.severity == "warning"
    assert "when the coordinator had removed it" in found.text


def test_each_life_of_a_member_id_is_looked_at() -> None:
    history = group(90, members=[life("c1", 0, 35), life("c2"), life("c1", 60)])
    (found,) = of("frozen_member", history, beats("c1", WITH_A_GAP) + beats("c2", range(0, 90, 3)))
    assert (found.subject, found.from_ns // SECOND) == ("c1", 27)


def test_a_gap_in_the_capture_is_not_a_silence() -> None:
    history = group(90, members=[life("c1"), life("c2")])
    assert of("frozen_member", history, beats("c1", WITH_A_GAP) + beats("c2", WITH_A_GAP)) == []


def test_waiting_for_a_response_is_not_a_silence() -> None:
    history = group(90, members=[life("c1"), life("c2")])
    waits = exchange("JoinGroup", 28, answered_ns=int(49.5e9))
    assert of("frozen_member", history, [*beats("c1", WITH_A_GAP), waits, *beats("c2", range(0, 90, 3))]) == []


def test_a_member_that_left_is_not_silent() -> None:
    history = group(90, members=[life("c1", 0, 27), life("c2")])
    assert of("frozen_member", history, beats("c1", WITH_A_GAP) + beats("c2", range(0, 90, 3))) == []
    assert of("frozen_member", history, [exchange("JoinGroup", 1, member_id="")]) == []
    assert of("frozen_member", history) == []


def test_the_poll_is_measured_when_the_client_is_back() -> None:
    lives = [
        life("c1", 0, 100, why_left="poll timeout", rebalance_timeout_ms=60_000),
        life("c1", 130, member_id="c1-again"),
        life("c2"),
    ]
    (found,) = of("slow_polls", group(200, members=lives))
    assert (found.severity, found.subject, found.value) == ("warning", "c1", 1)
    assert found.text == (
        "c1 (10.0.0.1) did not poll within max.poll.interval.ms (60.0 s) and left the group; the longest took 90.0 s, "
        "by when it joined again"
    )
    assert "max.poll.interval.ms above 90.0 s" in found.advice


def test_a_client_that_does_not_come_back() -> None:
    (found,) = of(
        "slow_polls", group(members=[life("c1", 0, 100, why_left="poll timeout", rebalance_timeout_ms=60_000)])
    )
    assert found.text.endswith("the poll took more than 60.0 s: the client has not come back")
    assert "above the longest time between polls" in found.advice


def test_a_member_that_left_in_order_is_normal() -> None:
    assert of("slow_polls", group(members=[life("c1", 0, 100)])) == []
