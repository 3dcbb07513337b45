"""The benchmark of the live page runs, and its report says what was measured. No time is asserted."""

from __future__ import annotations

from ..runner import RunBench


def test_a_quick_run_measures_page_and_server(bench: RunBench) -> None:
    made, text = bench("screen", "--quick")
    assert made["plan"]["members"] == 6
    assert made["first_paint_ms"] > 0
    assert made["groups_ms"] > 0
    assert {"server", "page", "browser"} == made["alone_percent"].keys() == made["watched_percent"].keys()
    assert "6 members in 3 groups" in text
