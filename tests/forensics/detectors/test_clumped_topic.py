"""The detector clumped_topic: topics that are wholly on one member."""

from __future__ import annotations

import pytest

from tests.support.detector_groups import given, group, leader_join, life, of

HISTORY = group(members=[life("a"), life("b")])
LISTED = leader_join("a", 1, 5, {"a": ({}, -1), "b": ({}, -1)}, "sticky")


@pytest.mark.parametrize(
    ("a", "b", "found"),
    [
        ({"orders": range(4)}, {"refunds": range(4)}, 1),
        ({"orders": [0, 1], "refunds": [0, 1]}, {"orders": [2, 3], "refunds": [2, 3]}, 0),
        ({"orders": range(3)}, {"refunds": range(3)}, 0),  # too few to spread
        ({"orders": range(4), "refunds": range(4)}, {}, 0),  # that is an uneven assignment
        ({"orders": range(4)}, {"orders": [], "refunds": range(3)}, 0),  # one topic
    ],
)
def test_whole_topics_on_single_members_are_clumped(a: dict[str, range], b: dict[str, range], found: int) -> None:
    findings = of("clumped_topic", HISTORY, [LISTED, given("a", 2, 5, {"a": a, "b": b})])
    assert len(findings) == found
    assert all(finding.severity == "info" and "orders, refunds" in finding.text for finding in findings)


def test_the_assignment_that_lasted_longest_counts() -> None:
    clumped = given("a", 2, 5, {"a": {"orders": range(4)}, "b": {"refunds": range(4)}})
    later = leader_join("a", 9, 6, {"a": ({}, -1), "b": ({}, -1)}, "sticky")
    spread = {"orders": [0, 1], "refunds": [0, 1]}
    assert of("clumped_topic", HISTORY, [LISTED, clumped, later, given("a", 10, 6, {"a": spread, "b": spread})]) == []
