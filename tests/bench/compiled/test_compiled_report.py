"""The report on compiled peers: every row in both directions, and what was missed. Our side is measured for real."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

import kcoord_wire as kw

from ..frames import FRAMES
from ..lazy.bench import LARGE
from ..rows import ROWS
from . import ours, report
from .bench import question


def made_up(**of_ours: float) -> dict[str, Any]:
    """Peers take twice our time, but for what is named: rows in which kmsg decodes in that part of our time."""
    ways = dict.fromkeys(report.WAYS, 100.0)
    rows = [row.key for row in (*ROWS, *FRAMES)]
    cells: dict[str, Any] = {"ours": {row: {"bytes": 10, **ways} for row in rows}}
    for row in LARGE:
        cells["ours"][row]["tenth"] = 100.0
    for peer in report.PEERS:
        cells[peer] = {row: {"bytes": 10, **dict.fromkeys(ways, 200.0)} for row in rows}
    for row, part in of_ours.items():
        cells["franz-go"][row]["decode"] = 100.0 * part
    return {
        "date": "2026-11-22",
        "machine": {"processor": "p", "cores": 2, "system": "Linux", "python": "CPython 3.11"},
        "load": 0.1,
        "quick": True,
        "programs": {"kafka-clients": "kafka-clients 4.4.0", "franz-go": "kmsg v1"},
        "cells": cells,
    }


def lost(made: dict[str, Any]) -> list[str]:
    return [line for line in report.summary(made).splitlines() if line.startswith("- Missed")]


def test_a_row_where_a_peer_is_too_near_is_missed() -> None:
    made = made_up(**{"join-100": 1.5, "frame-sync": 1.4999})
    assert lost(made) == [
        "- Missed: whole frames, decode: at least 1.5 times franz-go: SyncGroup request, 100 assignments (v5): 1.4999x."
    ]
    text = report.markdown(made)
    for row in (*ROWS, *FRAMES):
        assert text.count(f"| {row.title} (v{row.version}) |") == 3 + (row.key in LARGE)
    assert "| 0.10 | 0.20 (2.00x) |" in text


def test_kafka_clients_may_be_ahead_in_three_rows_by_a_fifth() -> None:
    made = made_up()
    for row in ROWS[:3]:
        made["cells"]["kafka-clients"][row.key]["decode"] = 80.0
    assert lost(made) == []
    made["cells"]["kafka-clients"][ROWS[3].key]["decode"] = 99.0
    (line,) = lost(made)
    assert line.startswith("- Missed: bodies, decode: in 6 rows ahead of kafka-clients: HeartbeatRequest (v4): 0.80x; ")
    assert line.endswith("; JoinGroupResponse, 100 members (v7): 0.99x.")
    made["cells"]["kafka-clients"][ROWS[0].key]["decode"] = 79.0
    assert "- Missed: bodies, decode: at least 0.8 of kafka-clients: HeartbeatRequest (v4): 0.79x." in lost(made)


def test_lazy_decoding_is_to_take_half_of_kafka_clients_time() -> None:
    made = made_up()
    made["cells"]["ours"]["metadata"]["tenth"] = 101.0
    (line,) = lost(made)
    assert line.endswith(": 2.0 times kafka-clients: MetadataResponse, 50 brokers, 3,000 partitions (v9): 1.98x.")
    del made["cells"]["ours"]["metadata"]["tenth"]
    (line,) = lost(made)
    assert line.endswith(": measured in 3 of 4 rows.")


def test_what_was_not_measured_is_missed() -> None:
    made = made_up()
    for cell in made["cells"]["ours"].values():
        del cell["kept"]
    assert len(lost(made)) == 4
    assert all(line.endswith(": measured in 0 of 9 rows.") for line in lost(made))
    # Some rows are not enough.
    made["cells"]["ours"] = {row: cell | {"kept": 1.0} for row, cell in [*made["cells"]["ours"].items()][1:]}
    assert len(lost(made)) == 6
    assert all(line.endswith(": measured in 8 of 9 rows.") for line in lost(made))


@pytest.mark.parametrize("row", [*ROWS, *FRAMES], ids=lambda row: row.key)
def test_our_side_answers_the_question(
    row: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = question(row, quick=True)
    place = {"folder": str(Path(kw.__file__).parents[1]), "warm": 0, "seconds": 0}
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(asked | place) + "\n"))
    monkeypatch.setattr("gc.freeze", lambda: None)  # it is for a process of its own
    ours.main()
    answer = json.loads(capsys.readouterr().out)
    assert answer.pop("data") == asked["data"]
    assert [(name, len(found)) for name, found in answer.items()] == [(name, 1) for name in asked["operations"]]
