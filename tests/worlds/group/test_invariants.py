"""The laws hold in random runs, and a bug planted in the coordinator is found by the law that it breaks."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from kcoord_wire.kernel.virtual.script import SimulationFailure, run_script
from kcoord_wire.worlds.group.script import random_script
from tests.support.planted_bugs import PLANTED

SEEDS = range(60)
STEPS = int(os.environ.get("KCOORD_WIRE_STEPS", "100000"))  # `make proof` runs ten times as many
CHUNKS = 4


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_runs_break_no_law(chunk: int) -> None:
    steps = rebalances = 0
    seed = chunk * 1_000_000
    while steps < STEPS // CHUNKS:
        report = run_script(random_script(seed))
        steps += report.steps
        rebalances += report.rebalances
        seed += 1
    assert rebalances > steps // 1_000, "too few rebalances for the runs to prove anything"


def run_seeds() -> None:
    for seed in SEEDS:
        run_script(random_script(seed), shrink=False)


@pytest.mark.parametrize(("plant", "law"), PLANTED)
def test_a_planted_bug_is_caught_by_its_law(
    plant: Callable[[pytest.MonkeyPatch], None], law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(SimulationFailure) as caught:
        run_seeds()
    assert caught.value.law in law.split("|"), caught.value
