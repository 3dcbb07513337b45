"""The benchmark of the assignors runs, on tiny groups, with ours; its report says what was measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ..runner import RunBench
from .cases import CURVE, PROGRAMS, SIZES, measurements
from .report import RESULTS, markdown, summary


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured by /proc")
def test_it_runs_on_tiny_groups(tmp_path: Path, bench: RunBench) -> None:
    made, text = bench("assignors", "--quick", "--programs", "ours", "--plots", str(tmp_path))
    assert len(made["measured"]) == len(list(measurements(quick=True))) == 12
    for each in made["measured"]:
        assert each["calls"] == 3
        assert each["cpu"]["first"] > 0
        assert each["cpu"]["warm"] > 0
    assert "| cooperative-sticky | one joins |" in text
    for name in ("range", "cooperative-sticky"):
        assert "members" in (tmp_path / f"assignors-{name}.svg").read_text("utf-8")
        assert (tmp_path / f"assignors-{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_committed_results_are_whole() -> None:
    made = json.loads((RESULTS / "latest.json").read_text("utf-8"))
    measured = set()
    for each in made["measured"]:
        assignor, size, state = each["measurement"]
        measured.add((each["program"], assignor, tuple(size), state))
    assert measured == {(program, *each) for program in PROGRAMS for each in measurements(quick=False)}
    assert (RESULTS / "latest.md").read_text("utf-8") == markdown(made)
    assert all(f"{members:,} members" in summary(made) for members, _, _ in SIZES)
    assert CURVE[-1] == SIZES[0], "the curve ends where the table begins"
