"""The report as JSON: its keys, its times, its strings."""

from __future__ import annotations

import dataclasses
import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kcoord_wire.forensics.model import GroupHistory, GroupSummary, Loss
from kcoord_wire.report import print_summary, to_json, write_html, write_json
from tests.support.histories import HOSTILE, bare, empty, hostile, incident, kip_848, losses, typical

HISTORIES = [typical(), incident(), kip_848(), bare(), empty()]


def rows(value: Any) -> list[dict[str, Any]]:
    """Every object in it, however deep."""
    if isinstance(value, list):
        return [row for item in value for row in rows(item)]
    return [value, *(row for item in value.values() for row in rows(item))] if isinstance(value, dict) else []


def test_every_field_of_every_row_is_written() -> None:
    report = to_json(HISTORIES, losses())
    assert list(report) == ["format", "version", "groups", "losses"]
    assert (report["format"], report["version"]) == ("kcoord-report", 2)
    tables = [field.name for field in dataclasses.fields(GroupHistory)]
    history = typical()
    for group in report["groups"]:
        assert list(group) == ["severity", "opening", "headline", "summary", *tables]
    billing = next(group for group in report["groups"] if group["group"]["group_id"] == "billing")
    for table in tables[1:]:
        kept = getattr(history, table)
        assert len(billing[table]) == len(kept)
        for row, source in zip(billing[table], kept, strict=True):
            fields = {field.name for field in dataclasses.fields(source)}
            assert set(row) == fields | {name[:-3] for name in fields if name.endswith("_ns")}
    assert set(billing["group"]) >= {field.name for field in dataclasses.fields(GroupSummary)}
    assert set(report["losses"][0]) == {field.name for field in dataclasses.fields(Loss)}


def test_times_are_written_twice() -> None:
    seen = 0
    for row in rows(to_json(HISTORIES, [])):
        for name in [name for name in row if name.endswith("_ns")]:
            text, ns = row[name[:-3]], row[name]
            assert (text is None) == (ns is None)
            if ns is not None:
                moment = datetime.fromisoformat(text[:26]).replace(tzinfo=UTC)
                assert round(moment.timestamp() * 1e6) == ns // 1000
                assert text.endswith(f"{ns % 1000:03}Z")
                seen += 1
    assert seen > 1000


@pytest.mark.parametrize("name", HOSTILE)
def test_strings_are_exact_and_the_file_is_ascii(name: str, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_json([hostile(name)], losses(name), path)
    data = path.read_bytes()
    assert all(0x20 <= byte < 0x7F for byte in data.removesuffix(b"\n"))
    assert json.loads(data)["groups"][0]["rebalances"][0]["reason"] == name
    assert json.loads(data)["losses"][0]["source"] == name


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    for at, histories in enumerate((HISTORIES, HISTORIES[::-1])):
        write_json(histories, losses(), tmp_path / str(at), indent=1)
    assert (tmp_path / "0").read_bytes() == (tmp_path / "1").read_bytes()


def test_non_finite_numbers_are_null() -> None:
    history = typical()
    history.findings[0].value, history.findings[1].threshold = float("inf"), float("nan")
    file = io.StringIO()
    write_json([history], [], file)
    [group] = json.loads(file.getvalue())["groups"]
    assert (group["findings"][0]["value"], group["findings"][1]["threshold"]) == (None, None)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_durations_are_unknown(value: float, tmp_path: Path) -> None:
    history = typical()
    history.group.paused_ms = value
    for name in ("confidence", "duration_ms", "joining_ms", "syncing_ms", "late_ms", "paused_ms"):
        for row in history.rebalances:
            setattr(row, name, value)
    [group] = to_json([history], [])["groups"]
    assert {row["duration_ms"] for row in group["rebalances"]} == {None}
    assert {row["confidence"] for row in group["rebalances"]} == {None}
    assert group["group"]["paused_ms"] is None
    write_html([history], [], tmp_path / "report.html")
    assert "nan" not in group["opening"]
    print_summary([history], [], io.StringIO())
