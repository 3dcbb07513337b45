"""`kcoord simulate central`: random faults on the draft's cluster; without epochs, a script with two owners."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kcoord_wire.simulation.central.script import random_script
from kcoord_wire.simulation.script import SimulationFailure, run_script
from tests.support.planted_central_bugs import offsets_not_committed_before_start

Run = Callable[..., tuple[int, str, str]]


def test_seeds_break_no_law(kcoord: Run) -> None:
    status, out, err = kcoord("simulate", "central", "--seeds", "0:2", "--jobs", "1")
    assert (status, err) == (0, "")
    assert "2 of 2 seeds" in out
    assert "0 failures" in out


def test_a_broken_law_is_a_failure(kcoord: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    offsets_not_committed_before_start(monkeypatch)
    status, _, err = kcoord("simulate", "central", "--seeds", "0", "--jobs", "1")
    assert status == 1
    assert "run_script(CentralScript(seed=0" in err


def test_two_owners_without_epochs_are_printed(kcoord: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(seed: int) -> str:
        try:
            run_script(random_script(seed, is_fenced=False), shrink=False)
        except SimulationFailure as failure:
            return failure.law
        return ""

    seed = next(seed for seed in range(100) if find(seed) == "one owner")
    status, out, err = kcoord("simulate", "central", "--no-epoch", "--seeds", str(seed), "--jobs", "1")
    assert (status, err) == (0, "")
    assert "1 of 1 runs have two owners of a partition; the shortest script:\none owner: " in out
    assert "is_fenced=False" in out
