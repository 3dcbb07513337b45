"""The detectors of claims: two owners, stale claims, partitions given away under their owner."""

from __future__ import annotations

import pytest

from tests.support.detector_groups import exchange, given, group, leader_join, life, of, rebalance

HISTORY = group(members=[life("a"), life("b"), life("c")], rebalances=[rebalance(n, n) for n in range(1, 9)])


def test_a_partition_of_two_members_has_two_owners() -> None:
    lists = leader_join("a", 1, 5, {"a": ({}, -1), "b": ({}, -1)})
    sound = given("a", 2, 5, {"a": {"orders": [0]}, "b": {"orders": [1]}})
    assert of("two_owners", HISTORY, [lists, sound]) == []
    broken = given("a", 2, 5, {"a": {"orders": [0, 1]}, "b": {"orders": [1]}})
    (finding,) = of("two_owners", HISTORY, [lists, broken])
    assert (finding.severity, finding.subject, finding.rebalances) == ("critical", "a", [5])
    assert finding.text == (
        "1 partition was assigned to two members of one generation: orders-1, in 1 generation led by a"
    )
    assert finding.evidence[0].text == "generation 5, led by a: orders-1: a, b"


def test_a_refused_assignment_has_no_owners() -> None:
    twice = {"a": {"orders": [1]}, "b": {"orders": [1]}}
    refused = exchange("SyncGroup", 2, **{**vars_of(given("a", 2, 5, twice)), "error_code": 22})
    assert of("two_owners", HISTORY, [leader_join("a", 1, 5, {"a": ({}, -1), "b": ({}, -1)}), refused]) == []


def vars_of(row: object) -> dict[str, object]:
    names = ("client_id", "member_id", "generation_id", "assignments")
    return {name: getattr(row, name) for name in names}


def test_the_claim_of_a_member_that_lost_it_is_stale() -> None:
    rows = [
        leader_join("a", 1, 4, {"a": ({}, -1), "b": ({}, -1)}),
        given("a", 2, 4, {"a": {"orders": [0]}, "b": {"orders": [1]}}),
        leader_join("a", 11, 5, {"a": ({"orders": [0]}, 4), "b": ({"orders": [1]}, 4), "c": ({"orders": [1]}, 2)}),
    ]
    (finding,) = of("stale_claim", HISTORY, rows)
    assert (finding.severity, finding.subject) == ("warning", "c")
    assert of("stale_claim", HISTORY, rows[:2]) == []


@pytest.mark.parametrize(
    ("claims", "assigned", "found"),
    [
        pytest.param({"a": ({"orders": [0, 1]}, 4), "b": ({}, -1)}, {"a": {"orders": [0]}}, 0, id="withheld"),
        pytest.param({"a": ({"orders": [0]}, 4), "b": ({}, -1)}, {"a": {"orders": [0]}}, 0, id="kept"),
        pytest.param({"a": ({}, 4), "b": ({}, -1)}, {"b": {"orders": [0]}}, 0, id="free"),
        pytest.param({"a": ({"orders": [0]}, 4), "b": ({}, -1)}, {"b": {"orders": [0]}}, 1, id="claimed by another"),
        pytest.param(
            {"a": ({"orders": [0]}, 2), "b": ({"orders": [0]}, 4)}, {"b": {"orders": [0]}}, 0, id="to the newer claim"
        ),
        pytest.param(
            {"a": ({"orders": [0]}, 2), "b": ({"orders": [0]}, 4)}, {"a": {"orders": [0]}}, 1, id="to the older claim"
        ),
        pytest.param(
            {"a": ({"orders": [0]}, -1), "b": ({"orders": [0]}, -1)}, {"a": {"orders": [0]}}, 0, id="no generations"
        ),
    ],
)
def test_a_partition_is_handed_over_after_it_is_given_up(
    claims: dict[str, tuple[dict[str, list[int]], int]], assigned: dict[str, dict[str, list[int]]], found: int
) -> None:
    findings = of("handed_over_early", HISTORY, [leader_join("a", 1, 5, claims), given("a", 2, 5, assigned)])
    assert len(findings) == found
    assert all(finding.subject == "a" for finding in findings), "the leader"


@pytest.mark.parametrize("detector", ["two_owners", "stale_claim", "handed_over_early"])
def test_a_source_without_exchanges_shows_no_claims(detector: str) -> None:
    assert of(detector, HISTORY) == []
    assert of(detector, HISTORY, []) == []
