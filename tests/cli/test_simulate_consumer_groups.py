"""`kcoord simulate consumer-groups`: seeds with a summary, and a search with its figures."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.support.planted_consumer_group_bugs import kafka_16147

Run = Callable[..., tuple[int, str, str]]


def test_seeds_are_run_and_summed_up(kcoord: Run) -> None:
    status, out, err = kcoord("simulate", "consumer-groups", "--jobs", "1", "--seeds", "0:3")
    assert (status, err) == (0, "")
    assert re.match(r"3 of 3 seeds, [\d,]+ steps, [\d,]+ steps/s, 0 failures", out)


def test_a_search_says_how_far_it_went(kcoord: Run) -> None:
    status, out, err = kcoord("simulate", "consumer-groups", "--search", "--perturbations", "0")
    assert (status, err) == (0, "")
    assert re.match(r"[\d,]+ states, all there are within these bounds; [\d,]+ steps between them", out)
    status, out, _ = kcoord("simulate", "consumer-groups", "--search", "--depth", "3", "--static", "--topics", "2")
    assert status == 0
    assert "those within 3 steps" in out


def test_a_search_prints_the_run_that_breaks_a_law(kcoord: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    kafka_16147(monkeypatch)
    status, out, err = kcoord("simulate", "consumer-groups", "--search")
    assert status == 1
    assert "ValidPartitionEpoch" in err
    assert "breaks a law:\n  m1 arrives\n" in out


def test_numbers_are_checked(kcoord: Run) -> None:
    status, _, err = kcoord("simulate", "consumer-groups", "--search", "--ticks", "-1")
    assert status == 2
    assert "from 0 up" in err
