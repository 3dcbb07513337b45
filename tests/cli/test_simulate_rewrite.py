"""`kcoord simulate rewrite`: the summary, and the overlap as a script."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

OVERLAPS = "103"  # a seed in which a member is paused for longer than its session
Run = Callable[..., tuple[int, str, str]]


@pytest.mark.slow
@pytest.mark.parametrize("mode", [[], ["--stops-with-session"]], ids=["as written", "stops with session"])
def test_seeds_are_run_and_summed_up(kcoord: Run, mode: list[str]) -> None:
    status, out, err = kcoord("simulate", "rewrite", "--jobs", "1", "--seeds", "0:3", *mode)
    assert (status, err) == (0, "")
    assert re.match(r"3 of 3 seeds, [\d,]+ steps, [\d,]+ steps/s, 0 failures", out)
    assert "two members" not in out


@pytest.mark.slow
def test_an_overlap_is_printed_as_a_script(kcoord: Run) -> None:
    status, out, _ = kcoord("simulate", "rewrite", "--jobs", "1", "--seeds", OVERLAPS, "--find-overlap")
    assert status == 0
    assert "two members fetch a partition; the shortest script:" in out
    assert "run_script(RewriteScript(" in out
