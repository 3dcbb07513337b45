"""The benchmark of Marshal's world state runs, small, and its report says what was measured. No time is asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .__main__ import main
from .report import markdown, summary


@pytest.mark.slow
def test_twenty_thousand_messages(tmp_path: Path) -> None:
    main(["--messages", "20000", "--out", str(tmp_path)])
    made = json.loads((tmp_path / "latest.json").read_text("utf-8"))
    assert made["messages"] == 20_000
    assert all(seconds > 0 for seconds in made["seconds"].values())
    assert 100 < made["bytes_per_claim"] < 10_000
    assert (tmp_path / "latest.md").read_text("utf-8") == markdown(made)
    assert "20,000 messages" in summary(made)
