"""The scale benchmark of the draft runs, small, and its report says what was measured. No time is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .report import markdown, summary

ROOT = Path(__file__).resolve().parents[3]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the coordinator is measured by /proc"),
]


def test_forty_consumers(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.bench.central", "--consumers", "20", "40", "--group-size", "20"]
    command += ["--session-ms", "3000", "--seconds", "2.5", "--out", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
    made = json.loads((tmp_path / "latest.json").read_text("utf-8"))
    assert [row["consumers"] for row in made["rows"]] == [20, 40]
    for row in made["rows"]:
        assert row["pings"]["count"] >= row["consumers"]
        assert row["rebalance"]["seconds"] >= row["rebalance"]["stopped"] > 0
        assert row["peak_rss"] > 0
    assert (tmp_path / "latest.md").read_text("utf-8") == markdown(made)
    assert "| 40 | 20 |" in summary(made)
