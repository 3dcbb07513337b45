"""Random runs of groups of KIP-848 break no law, and each law is one that some planted bug breaks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import pytest

from kcoord_wire.kernel.virtual.script import SimulationFailure, run_script
from kcoord_wire.worlds.consumer_groups.script import random_script
from tests.support.planted_consumer_group_bugs import BY_SEEDS

SEEDS = 60
STEPS = int(os.environ.get("KCOORD_WIRE_STEPS", "100000")) // 10  # `make proof` runs ten times as many


def test_random_runs_break_no_law() -> None:
    steps = rebalances = seed = 0
    while steps < STEPS:
        report = run_script(random_script(seed))
        steps += report.steps
        rebalances += report.rebalances
        seed += 1
    assert rebalances > steps // 1_000, "too few rebalances for the runs to prove anything"


def run_seeds(seeds: Iterable[int]) -> None:
    for seed in seeds:
        run_script(random_script(seed), shrink=False)


@pytest.mark.parametrize(("plant", "law", "first"), BY_SEEDS)
def test_a_planted_bug_is_caught_by_its_law(
    plant: Callable[[pytest.MonkeyPatch], None], law: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(SimulationFailure) as caught:
        run_seeds(range(first, first + SEEDS))
    assert caught.value.law in law.split("|"), caught.value
