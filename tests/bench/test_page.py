"""docs/benchmarks.md is what the latest results give."""

from __future__ import annotations

from .page import PAGE, page


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text("utf-8") == page(), "run python -m tests.bench.page"
