"""`kcoord simulate`: the summary, the status, and the script that a failure prints."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.planted_bugs import two_leaders

Run = Callable[..., tuple[int, str, str]]


def test_the_summary_counts_seeds_steps_and_failures(kcoord: Run) -> None:
    status, out, err = kcoord("simulate", "--seeds", "0:4", "--jobs", "1")
    assert (status, err) == (0, "")
    assert "4 of 4 seeds" in out
    assert "0 failures" in out


def test_it_stops_after_the_steps_asked_for(kcoord: Run) -> None:
    status, out, _ = kcoord("simulate", "--seeds", "5:100000", "--steps", "1500", "--jobs", "1")
    assert status == 0
    assert "of 99,995 seeds" in out


def test_a_failure_prints_its_seed_and_its_script(kcoord: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    two_leaders(monkeypatch)
    status, out, err = kcoord("simulate", "--seeds", "0", "--jobs", "1")
    assert status == 1
    assert "1 failures" in out
    assert "run_script(GroupScript(seed=0" in err
    assert err.endswith("kcoord: seeds that break a law: 0\n")


def test_seeds_run_in_several_processes(kcoord: Run) -> None:
    status, out, _ = kcoord("simulate", "--seeds", "0:6", "--jobs", "2")
    assert status == 0
    assert "6 of 6 seeds" in out


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (("--seeds", "many"), "'many' is neither a seed nor FIRST:END"),
        (("--seeds", "7:3"), "'7:3' has no seeds"),
        (("--jobs", "0"), "'0' is not a whole number"),
        (("--steps", "-1"), "'-1' is not a whole number"),
    ],
)
def test_wrong_arguments_end_with_status_2(kcoord: Run, wrong: tuple[str, str], sentence: str) -> None:
    status, out, err = kcoord("simulate", *wrong)
    assert (status, out) == (2, "")
    assert sentence in err
