"""The detector uneven_assignment on a group with the problem, and on groups that only look like it."""

from __future__ import annotations

from dataclasses import replace

from tests.support.detector_groups import generation, group, held, life, of


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
