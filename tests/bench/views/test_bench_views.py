"""The benchmark of views runs, and its report says what was measured. No time is asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import kcoord_wire as kw

from .__main__ import ARRAYS, main


@pytest.mark.skipif(kw.backend != "native", reason="measures the native codec alone")
def test_a_quick_run_reports_every_row(tmp_path: Path) -> None:
    main(["--quick", "--out", str(tmp_path)])
    made = json.loads((tmp_path / "latest.json").read_text("utf-8"))
    assert set(made["rows"]) == set(ARRAYS)
    assert all(time > 0 for cell in made["rows"].values() for time in cell["us"].values())
    assert "of 5,000 members" in (tmp_path / "latest.md").read_text("utf-8")
