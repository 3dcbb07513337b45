"""The report on compiled peers: every row in both directions, and what was missed. Our side is measured for real."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import pytest

import kcoord_wire as kw

from ..rows import ROWS
from . import ours, report


def made_up(slow: str) -> dict[str, Any]:
    """Peers take twice our time, but for the row `slow`, where kmsg decodes in half of it."""
    cells: dict[str, Any] = {"ours": {row.key: {"bytes": 10, "decode": 100.0, "encode": 100.0} for row in ROWS}}
    for peer in report.PEERS:
        cells[peer] = {row.key: {"bytes": 10, "decode": 200.0, "encode": 200.0} for row in ROWS}
    cells["franz-go"][slow]["decode"] = 50.0
    return {
        "date": "2026-11-22",
        "machine": {"processor": "p", "cores": 2, "system": "Linux", "python": "CPython 3.11"},
        "load": 0.1,
        "quick": True,
        "programs": {"kafka-clients": "kafka-clients 4.4.0", "franz-go": "kmsg v1"},
        "cells": cells,
    }


def test_a_row_where_a_peer_is_faster_is_missed() -> None:
    text = report.markdown(made_up("join-100"))
    missed = [line for line in text.splitlines() if line.startswith("- Missed")]
    assert missed == ["- Missed: decode level with franz-go, in JoinGroupResponse, 100 members (v7): 0.50x."]
    for row in ROWS:
        assert text.count(f"| {row.title} (v{row.version}) |") == 2
    assert "| 0.10 | 0.20 (2.00x) |" in text


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_our_side_answers_the_question(
    row: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    message = row.message(quick=True)
    data = base64.b64encode(kw.encode(message, row.version)).decode()
    question = {"message": type(message).__name__, "version": row.version, "data": data}
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(question | {"warm": 0, "seconds": 0, "batch": 2}) + "\n"))
    monkeypatch.setattr("gc.freeze", lambda: None)  # it is for a process of its own
    ours.main()
    answer = json.loads(capsys.readouterr().out)
    assert answer["data"] == data
    assert len(answer["decode"]) == len(answer["encode"]) == 1
