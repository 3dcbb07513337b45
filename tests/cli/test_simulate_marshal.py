"""`kcoord simulate marshal`: the summary, and what the library's rules allow to go wrong, as scripts."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

Run = Callable[..., tuple[int, str, str]]


@pytest.mark.slow
def test_seeds_are_run_and_summed_up(kcoord: Run) -> None:
    status, out, err = kcoord("simulate", "marshal", "--jobs", "1", "--seeds", "0:3")
    assert (status, err) == (0, "")
    assert re.match(r"3 of 3 seeds, [\d,]+ steps, [\d,]+ steps/s, 0 failures\n[\d,]+ tenures; ", out)
    assert "run_script" not in out


@pytest.mark.slow
def test_anomalies_of_the_library_are_printed_as_scripts(kcoord: Run) -> None:
    status, out, _ = kcoord("simulate", "marshal", "--jobs", "1", "--seeds", "0:4", "--rules", "library")
    assert status == 0
    kinds = re.findall(r"^([a-z ]+): [\d,]+ in \d+ runs; the shortest script of the first of them:$", out, re.MULTILINE)
    assert kinds == sorted(kinds)
    assert "phantom claim by replay" in kinds
    assert out.count("run_script(MarshalScript(") == len(kinds)
