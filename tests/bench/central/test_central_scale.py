"""The scale benchmark of the draft runs, small, and its report says what was measured. No time is asserted."""

from __future__ import annotations

import sys

import pytest

from ..runner import RunBench

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the coordinator is measured by /proc"),
]


def test_forty_consumers(bench: RunBench) -> None:
    options = ("--consumers", "20", "40", "--group-size", "20", "--session-ms", "3000", "--seconds", "2.5")
    made, text = bench("central", *options)
    assert [row["consumers"] for row in made["rows"]] == [20, 40]
    for row in made["rows"]:
        assert row["pings"]["count"] >= row["consumers"]
        assert row["rebalance"]["seconds"] >= row["rebalance"]["stopped"] > 0
        assert row["peak_rss"] > 0
    assert "| 40 | 20 |" in text
