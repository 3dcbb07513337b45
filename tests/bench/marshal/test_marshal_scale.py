"""The benchmark of Marshal's world state runs, small, and its report says what was measured. No time is asserted."""

from __future__ import annotations

import pytest

from ..runner import RunBench


@pytest.mark.slow
def test_twenty_thousand_messages(bench: RunBench) -> None:
    made, text = bench("marshal", "--messages", "20000")
    assert made["messages"] == 20_000
    assert all(seconds > 0 for seconds in made["seconds"].values())
    assert 100 < made["bytes_per_claim"] < 10_000
    assert "20,000 messages" in text
