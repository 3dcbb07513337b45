"""Slow polls: who did not poll in time, and how long the poll took."""

from __future__ import annotations

from tests.support.detector_groups import group, life, of


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
