"""Coordinators beside each other do not see each other's groups, and leave nothing behind. No time is asserted."""

from __future__ import annotations

from ..runner import RunBench
from .bench import QUICK_COUNT


def test_each_has_its_own_group_and_leaves_nothing(bench: RunBench) -> None:
    made, text = bench("many", "--quick")
    assert made["groups"] == [1] * QUICK_COUNT
    assert made["started"]["threads"] > 0 < made["started"]["files"]
    assert (made["left"]["threads"], made["left"]["files"]) == (0, 0)
    assert "memory, with a group of one member" in text
