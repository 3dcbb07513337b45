"""The benchmark of the assignors runs, on tiny groups, with ours; its report says what was measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .cases import measurements
from .report import markdown

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured by /proc")
def test_it_runs_on_tiny_groups(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.bench.assignors", "--quick", "--programs", "ours"]
    command += ["--out", str(tmp_path), "--plots", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    made = json.loads((tmp_path / "latest.json").read_text("utf-8"))
    assert len(made["measured"]) == len(list(measurements(quick=True))) == 12
    for each in made["measured"]:
        assert each["calls"] == 3
        assert each["cpu"]["first"] > 0
        assert each["cpu"]["warm"] > 0
    text = (tmp_path / "latest.md").read_text("utf-8")
    assert text == markdown(made)
    assert "| cooperative-sticky | one joins |" in text
    for name in ("range", "cooperative-sticky"):
        assert "members" in (tmp_path / f"assignors-{name}.svg").read_text("utf-8")
        assert (tmp_path / f"assignors-{name}.png").read_bytes().startswith(b"\x89PNG")
