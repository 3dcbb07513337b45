"""The report as JSON: its keys, its times, its strings."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from kcoord_wire.forensics.analysis import analyze
from kcoord_wire.forensics.model import GroupHistory, GroupSummary, Loss
from kcoord_wire.report import json_schema, print_summary, to_json, write_html, write_json
from tests.support import watching
from tests.support.histories import HOSTILE, bare, empty, hostile, incident, kip_848, losses, typical
from tests.support.marshal_rows import generated_log, write_segments
from tests.support.rotation import without

DATA = Path(__file__).parents[1] / "data"
HISTORIES = [typical(), incident(), kip_848(), bare(), empty()]


def rows(value: Any) -> list[dict[str, Any]]:
    """Every object in it, however deep."""
    if isinstance(value, list):
        return [row for item in value for row in rows(item)]
    return [value, *(row for item in value.values() for row in rows(item))] if isinstance(value, dict) else []


def test_every_field_of_every_row_is_written() -> None:
    report = to_json(HISTORIES, losses())
    assert list(report) == ["format", "version", "stopped", "groups", "losses"]
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


@cache
def validator() -> Draft202012Validator:
    schema = json_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def written(*reports: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Reports as a program reads them."""
    return (json.loads(json.dumps(report, allow_nan=False)) for report in reports)


def reports_of_sources(folder: Path) -> Iterator[dict[str, Any]]:
    """Reports of captures, recordings, segments, logs and polls, alone and together, sound and damaged."""
    packets = (DATA / "captures" / "aiokafka.pcap").read_bytes()
    (folder / "damaged.pcap").write_bytes(without(packets, 300, 320)[:-9])
    incidents = DATA / "incidents"
    for paths in (
        [DATA / "captures" / "cooperative.pcap", folder / "damaged.pcap"],
        [incidents / "outage-kill.pcap.gz", incidents / "outage-kill.log.gz"],
        [incidents / "poison-record.pcap.gz"],
        [DATA / "logs" / "broker-4.1.0-kip848.log.gz", DATA / "logs" / "librdkafka-2.16.0-a.log.gz"],
        [DATA / "recordings" / "modern-java.kcrec"],
        [DATA / "consumer_groups" / "kafka-4.1.0" / "__consumer_offsets-0"],
        [write_segments(folder / "marshal", generated_log(2))],
    ):
        analysis = analyze(paths)
        yield to_json(analysis.histories, analysis.losses, analysis.stopped)
    watch, first, second = watching.Script(), watching.member("c-1", 0), watching.member("c-2", 1)
    watch.poll(watching.group("Stable", first), committed={0: 5, 1: 7}, ends={0: 9, 1: 7})
    watch.miss()
    watch.poll(watching.group("Stable", first, second), committed={0: 5, 1: 7}, ends={0: 9, 1: 7})
    yield to_json(watch.watched.histories(), [])


def test_reports_are_as_the_schema_says(tmp_path: Path) -> None:
    found = [*written(*reports_of_sources(tmp_path), to_json([typical(), bare(), empty()], losses()))]
    found += written(*(to_json([hostile(name)], losses(name), 0.5) for name in HOSTILE))
    for report in found:
        assert [f"{error.json_path}: {error.message}" for error in validator().iter_errors(report)] == []
    filled = {name for report in found for group in report["groups"] for name, rows in group.items() if rows}
    assert filled >= {field.name for field in dataclasses.fields(GroupHistory)}, "no row of a table was looked at"
    assert any(report["losses"] for report in found)


def test_the_schema_is_closed() -> None:
    """Every object refuses a key that it does not name, and the lack of one that it does."""
    [report] = written(to_json([typical()], losses()))
    assert validator().is_valid(report)
    for row in {tuple(row): row for row in rows(report)}.values():  # one of each kind
        key, value = row.popitem()
        assert not validator().is_valid(report), f"without {key}"
        row.update({key: value, "unknown": 1})
        assert not validator().is_valid(report), f"more than {list(row)}"
        del row["unknown"]
    for definition in validator().schema["$defs"].values():
        assert definition["additionalProperties"] is False
        assert definition["required"] == list(definition["properties"])


def test_the_schema_refuses_wrong_values() -> None:
    [report] = written(to_json([typical()], losses()))
    group = report["groups"][0]
    for row, key, wrong in (
        (report, "version", 1), (report, "stopped", "half"), (group, "severity", "bad"),
        (group["group"], "first", "2025-11-21 15:00"), (group["rebalances"][0], "started_ns", 1.5),
        (group["rebalances"][0], "evidence", None), (group["findings"][0], "advice", None),
    ):  # fmt: skip
        assert validator().is_valid(report)
        right, row[key] = row[key], wrong
        assert not validator().is_valid(report), key
        row[key] = right


def test_the_schema_has_the_words_of_the_model() -> None:
    columns = json_schema()["$defs"]["Finding"]["properties"]
    assert columns["threshold"]["description"] == "value from which on the detector reports"
    assert columns["from"]["description"] == columns["from_ns"]["description"] == "first moment of what was found"


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
