"""The detector uneven_assignment on a group with the problem, and on groups that only look like it."""

from __future__ import annotations

from dataclasses import replace

from tests.support.detector_groups import generation, given, group, held, leader_join, life, of


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
