"""The detector generation_reset on a group with the problem, and on groups that only look like it."""

from __future__ import annotations

from tests.support.detector_groups import generation, group, of


def test_generation_reset() -> None:
    growing = [generation(n, n * 10, n * 10 + 10) for n in (7, 8, 9)]
    assert of("generation_reset", group(generations=growing)) == []
    (found,) = of("generation_reset", group(generations=[*growing, generation(1, 200)]))
    assert (found.severity, found.text) == ("critical", "generation 1 follows generation 9")
