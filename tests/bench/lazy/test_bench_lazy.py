"""The benchmark of lazy messages runs, and its report says what was measured. No time is asserted."""

from __future__ import annotations

from ..runner import RunBench
from .bench import ARRAYS


def test_a_quick_run_reports_every_row(bench: RunBench) -> None:
    made, text = bench("lazy", "--quick")
    assert set(made["rows"]) == set(ARRAYS)
    assert all(time > 0 for cell in made["rows"].values() for time in cell["us"].values())
    assert "a tenth of the elements" in text
