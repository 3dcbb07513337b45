"""The laws of transactions hold in random runs, and each is broken by a bug that is planted for it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from kcoord_wire.kernel.virtual.script import SimulationFailure, run_script
from kcoord_wire.worlds.transactions import invariants, readers
from kcoord_wire.worlds.transactions.script import TransactionScript, random_script
from tests.support.planted_transaction_bugs import BUGS, SCRIPTS, Plant

SEEDS = range(12)
BEYOND = 20  # seeds that are tried for each planted bug


@pytest.mark.parametrize("seed", SEEDS)
def test_random_runs_break_no_law(seed: int) -> None:
    assert run_script(random_script(seed)).records > 0


def first_failure(script: Callable[[int], TransactionScript], first: int) -> SimulationFailure:
    for seed in range(first, first + BEYOND):
        try:
            run_script(script(seed), shrink=False)
        except SimulationFailure as failure:
            return failure
    pytest.fail(f"no run from seed {first} on finds it")


@pytest.mark.parametrize(("plant", "laws", "first"), BUGS, ids=[plant.__name__ for plant, _, _ in BUGS])
def test_a_planted_bug_is_found(plant: Plant, laws: str, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert first_failure(SCRIPTS.get(plant, random_script), first).law in laws.split("|")


def test_each_law_has_a_bug_that_breaks_it() -> None:
    named = re.findall(r"^``(.+?)``", f"{invariants.__doc__}\n{readers.__doc__}", re.MULTILINE)
    broken = {law for _, laws, _ in BUGS for law in laws.split("|")}
    assert set(named) - broken == set()
