"""The benchmark of embedding runs with either codec, and its report has every row. No time is asserted."""

from __future__ import annotations

from ..runner import RunBench
from .bench import TITLES


def test_a_quick_run_measures_every_row(bench: RunBench) -> None:
    made, text = bench("embedding", "--quick")
    assert all(made["us"][way].keys() == TITLES.keys() for way in ("theirs", "ours"))
    assert all(title in text for title in TITLES.values())
