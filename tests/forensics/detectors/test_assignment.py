"""The detector uneven_assignment on a group with the problem, and on groups that only look like it.

The detector clumped_topic: topics that are wholly on one member.

The detector mixed_assignors on a group with the problem, and on groups that only look like it.

The detectors of claims: two owners, stale claims, partitions given away under their owner.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcoord_wire.forensics.model import (
    Offered,
    Subscription,
)
from tests.support.detector_groups import exchange, generation, given, group, held, leader_join, life, of, rebalance


def test_equals_are_compared_in_the_longest_generation() -> None:
    members = [life("c1"), life("c2"), life("c3", topics=["payments"])]
    uneven = group(
        generations=[generation(1, 0, 10), generation(2, 10, None, members=3)],
        members=members,
        ownership=[*[held("c1", n) for n in range(5)], held("c2", 5)],
    )
    (found,) = of("uneven_assignment", uneven)
    assert (found.subject, found.value) == ("c1", 5 / 3)
    assert "where 3.0 would be even" in found.text
    fair = replace(uneven, ownership=[held(f"c{1 + n % 2}", n) for n in range(5)])
    assert of("uneven_assignment", fair) == []
    short = replace(uneven, ownership=[held("c1", n, 0, 5) for n in range(6)] + [held("c2", n, 8) for n in range(1)])
    assert of("uneven_assignment", short) == []


@pytest.mark.parametrize(("topic", "severity"), [("refunds", "info"), ("orders", "warning")])
def test_uneven_counts_follow_from_new_topics(topic: str, severity: str) -> None:
    """c1 gets four partitions more, of a topic that came while both members stayed, or of the one they had."""
    topics = ["orders", "refunds"]
    history = group(
        generations=[generation(1, 0, 10), generation(2, 32)],
        rebalances=[rebalance(1, 0), rebalance(2, 30)],
        members=[life("c1", topics=topics), life("c2", topics=topics)],
        ownership=[held("c1", 0), held("c2", 1)]
        + [replace(held("c1", n, 32), topic=topic, generation_id=2) for n in range(2, 6)],
    )
    (found,) = of("uneven_assignment", history)
    assert (found.severity, found.subject) == (severity, "c1")


def test_the_leaders_assignment_counts_and_not_what_was_received() -> None:
    """c2 and c3 died before they received their partitions."""
    members = [life("c1"), life("c2"), life("c3")]
    history = group(
        generations=[generation(1, 1, None, members=3)], members=members, ownership=[held("c1", n) for n in range(2)]
    )
    join = leader_join("c1", 1, 1, {name: ({}, -1) for name in ("c1", "c2", "c3")})
    even = given("c1", 2, 1, {"c1": {"orders": [0, 1]}, "c2": {"orders": [2, 3]}, "c3": {"orders": [4, 5]}})
    assert of("uneven_assignment", history, [join, even]) == []
    uneven = given("c1", 2, 1, {"c1": {"orders": [0, 1, 2, 3]}, "c2": {"orders": [4, 5]}, "c3": {}})
    (found,) = of("uneven_assignment", history, [join, uneven])
    assert "c1 has 4, where 2.0 would be even; 1 have none: c3" in found.text
    assert of("uneven_assignment", history, [join]) == [], "the assignment is not in the source"


def test_a_dead_member_of_a_server_assigned_group_is_no_equal() -> None:
    members = [life("c1"), life("c2"), life("c3", died_ns=5, end="process died")]
    led = replace(generation(1, 0, None, members=3), leader_id=None)
    owned = [held(f"c{1 + n % 2}", n) for n in range(4)]
    assert of("uneven_assignment", group(generations=[led], members=members, ownership=owned), []) == []


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


def offers(*assignors: str) -> list[Offered]:
    return [Offered(name, Subscription(["orders"], [], -1, None, b"")) for name in assignors]


def test_mixed_assignors_that_stay_side_by_side() -> None:
    rdkafka = life("py", assignors=["range"], library="librdkafka")
    java = life("java", assignors=["cooperative-sticky", "range"])
    (found,) = of("mixed_assignors", group(members=[rdkafka, java]))
    assert found.subject == "py"
    assert "eager to cooperative" in found.text
    assert "librdkafka" in found.text
    bouncing = [life("py", 0, 300), life("java", 0, assignors=["cooperative-sticky", "range"])]
    assert of("mixed_assignors", group(members=bouncing)) == []
    newer = [life("old"), life("new", protocol="consumer", assignors=[])]
    assert "KIP-848" in of("mixed_assignors", group(members=newer))[0].text
    refused = [exchange("JoinGroup", n, error_code=23, client_id="py", offered=offers("range")) for n in (5, 6)]
    (found,) = of("mixed_assignors", group(members=[java]), refused)
    assert (found.severity, found.subject, found.value) == ("critical", "py", 2)
    assert found.evidence[0].text == "it offers range"


def test_a_refusal_that_is_over_is_a_warning() -> None:
    java = life("java", assignors=["cooperative-sticky"])
    refused = [exchange("JoinGroup", n, error_code=23, client_id="py", offered=offers("range")) for n in (5, 6)]
    joined = exchange("JoinGroup", 9, client_id="py", member_id="", given_member_id="py-id")
    (found,) = of("mixed_assignors", group(members=[java]), [*refused, joined])
    assert found.severity == "warning"
    assert "py could not join" in found.text
    assert "it joined 3.0 s after the last refusal" in found.text
    twin = [exchange("JoinGroup", n, client_id="py", member_id="t", given_member_id="t") for n in (1, 9)]
    (found,) = of("mixed_assignors", group(members=[java]), [*refused, *twin])
    assert found.severity == "critical", "the one that joins is another, which was in the group before"
    (found,) = of("mixed_assignors", group(members=[life("java", 0, 20)]), refused)
    assert found.severity == "warning"
    assert found.text.endswith("; the group was empty at the end of the source")


CLAIMS_HISTORY = group(members=[life("a"), life("b"), life("c")], rebalances=[rebalance(n, n) for n in range(1, 9)])


def test_a_partition_of_two_members_has_two_owners() -> None:
    lists = leader_join("a", 1, 5, {"a": ({}, -1), "b": ({}, -1)})
    sound = given("a", 2, 5, {"a": {"orders": [0]}, "b": {"orders": [1]}})
    assert of("two_owners", CLAIMS_HISTORY, [lists, sound]) == []
    broken = given("a", 2, 5, {"a": {"orders": [0, 1]}, "b": {"orders": [1]}})
    (finding,) = of("two_owners", CLAIMS_HISTORY, [lists, broken])
    assert (finding.severity, finding.subject, finding.rebalances) == ("critical", "a", [5])
    assert finding.text == (
        "1 partition was assigned to two members of one generation: orders-1, in 1 generation led by a"
    )
    assert finding.evidence[0].text == "generation 5, led by a: orders-1: a, b"


def test_a_refused_assignment_has_no_owners() -> None:
    twice = {"a": {"orders": [1]}, "b": {"orders": [1]}}
    refused = exchange("SyncGroup", 2, **{**vars_of(given("a", 2, 5, twice)), "error_code": 22})
    assert of("two_owners", CLAIMS_HISTORY, [leader_join("a", 1, 5, {"a": ({}, -1), "b": ({}, -1)}), refused]) == []


def vars_of(row: object) -> dict[str, object]:
    names = ("client_id", "member_id", "generation_id", "assignments")
    return {name: getattr(row, name) for name in names}


def test_the_claim_of_a_member_that_lost_it_is_stale() -> None:
    rows = [
        leader_join("a", 1, 4, {"a": ({}, -1), "b": ({}, -1)}),
        given("a", 2, 4, {"a": {"orders": [0]}, "b": {"orders": [1]}}),
        leader_join("a", 11, 5, {"a": ({"orders": [0]}, 4), "b": ({"orders": [1]}, 4), "c": ({"orders": [1]}, 2)}),
    ]
    (finding,) = of("stale_claim", CLAIMS_HISTORY, rows)
    assert (finding.severity, finding.subject) == ("warning", "c")
    assert of("stale_claim", CLAIMS_HISTORY, rows[:2]) == []


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
    findings = of("handed_over_early", CLAIMS_HISTORY, [leader_join("a", 1, 5, claims), given("a", 2, 5, assigned)])
    assert len(findings) == found
    assert all(finding.subject == "a" for finding in findings), "the leader"


@pytest.mark.parametrize("detector", ["two_owners", "stale_claim", "handed_over_early"])
def test_a_source_without_exchanges_shows_no_claims(detector: str) -> None:
    assert of(detector, CLAIMS_HISTORY) == []
    assert of(detector, CLAIMS_HISTORY, []) == []
