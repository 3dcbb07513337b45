"""Slow leaders: how long a leader's assignor takes while others wait."""

from __future__ import annotations

from tests.support.detector_groups import given, group, leader_join, of, rebalance

CLAIMS = {"c1": ({"orders": [0]}, 0), "c2": ({"orders": [1]}, 0)}


def test_the_leader_and_the_time_are_named() -> None:
    rows = [leader_join("c1", 10, 1, CLAIMS), given("c1", 15, 1, {"c1": {}, "c2": {}})]
    (found,) = of("slow_leader", group(60, rebalances=[rebalance(1, 10)]), rows)
    assert (found.severity, found.subject, found.rebalances) == ("warning", "c1", [1])
    assert round(found.value) == 5_000
    assert found.text == "the leader c1 took 5.0 s in its assignor (cooperative-sticky), and 1 other waited for it"


def test_a_quick_leader_or_one_alone_is_normal() -> None:
    quick = [leader_join("c1", 10, 1, CLAIMS), given("c1", 10.5, 1, {"c1": {}})]
    assert of("slow_leader", group(), quick) == []
    alone = [leader_join("c1", 10, 1, {"c1": ({}, 0)}), given("c1", 15, 1, {"c1": {}})]
    assert of("slow_leader", group(), alone) == []


def test_longer_waits_are_those_of_stuck_completing() -> None:
    rows = [leader_join("c1", 10, 1, CLAIMS), given("c1", 25, 1, {"c1": {}})]
    assert of("slow_leader", group(), rows) == []
    assert of("slow_leader", group(), None) == []
