"""`kcoord simulate transactions`: seeds with a summary, and the script of one that fails."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.support.planted_transaction_bugs import stable_offset_is_the_end

Run = Callable[..., tuple[int, str, str]]


def test_seeds_are_run_and_summed_up(kcoord: Run) -> None:
    status, out, err = kcoord("simulate", "transactions", "--jobs", "1", "--seeds", "0:3")
    assert (status, err) == (0, "")
    assert re.match(r"3 of 3 seeds, [\d,]+ steps, [\d,]+ steps/s, 0 failures\n[\d,]+ transactions; settled", out)


def test_a_failure_prints_its_script(kcoord: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    stable_offset_is_the_end(monkeypatch)
    status, out, err = kcoord("simulate", "transactions", "--jobs", "1", "--seeds", "0")
    assert status == 1
    assert "1 failures" in out
    assert "stable offset: " in err
    assert "run_script(TransactionScript(seed=0" in err
