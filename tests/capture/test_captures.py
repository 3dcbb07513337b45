"""The captures of real clients: every frame is there, every response finds its request, nothing is left over.

The counts are those of another implementation, Wireshark's dissector (tests/interop/test_dissector.py).
"""

from __future__ import annotations

import io
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kcoord_wire.capture import CapturedFrame, CaptureReport, read_capture

CAPTURES = Path(__file__).parents[1] / "data" / "captures"
NAMES = sorted(file.name.removesuffix(".pcap") for file in CAPTURES.glob("*.pcap"))

# What the mock broker writes and no schema allows, but lenient reading takes: bytes after the message, and a null
# assignment in a SyncGroup that failed.
ODD = {("ApiVersions", 3): "trailing", ("Metadata", 13): "trailing", ("SyncGroup", 3): "null"}
HAS_ODD = {
    "aiokafka": set(),
    "cooperative": {("ApiVersions", 3), ("Metadata", 13)},
    "eager_range": set(ODD),
    "static_bounce": {("ApiVersions", 3), ("Metadata", 13)},
}


def read(name: str, **options: Any) -> tuple[list[CapturedFrame], CaptureReport]:
    report = CaptureReport()
    return list(read_capture(CAPTURES / f"{name}.pcap", report=report, **options)), report


def expected(name: str) -> dict[str, Any]:
    counts: dict[str, Any] = json.loads((CAPTURES / f"{name}.counts.json").read_text())
    return counts


def test_all_four_captures_are_present() -> None:
    assert NAMES == ["aiokafka", "cooperative", "eager_range", "static_bounce"]


@pytest.mark.parametrize("given", ["port given", "port inferred"])
@pytest.mark.parametrize("name", NAMES)
def test_counts_are_those_of_the_dissector(name: str, given: str) -> None:
    counts = expected(name)
    frames, report = read(name, ports=[counts["port"]] if given == "port given" else None)
    found: Counter[tuple[Any, ...]] = Counter()
    sizes: Counter[tuple[Any, ...]] = Counter()
    for frame in frames:
        key = (frame.direction, frame.api_key, frame.api_version)
        found[key] += 1
        sizes[key] += frame.size
    rows = {(row["direction"], row["api_key"], row["api_version"]): row for row in counts["counts"]}
    assert found == {key: row["frames"] for key, row in rows.items()}
    assert sizes == {key: row["bytes"] for key, row in rows.items()}
    assert len(frames) == counts["frames"] == report.requests + report.responses


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_lost(name: str) -> None:
    _, report = read(name)
    assert (report.unmatched_responses, report.holes, report.skipped_bytes, report.stray_bytes) == (0, 0, 0, 0)
    assert (report.cut_packets, report.unread_packets, report.damage) == (0, {}, None)
    assert (report.foreign_connections, report.sasl_tokens) == (0, 0)
    assert report.complete


@pytest.mark.parametrize("name", NAMES)
def test_every_frame_decodes(name: str) -> None:
    frames, report = read(name)
    assert [frame.error for frame in frames if frame.error is not None] == []
    without_message = {frame.api for frame in frames if frame.message is None}
    assert without_message == set()
    odd = [frame for frame in frames if frame.irregularity is not None]
    assert {(frame.api, frame.api_version) for frame in odd} == HAS_ODD[name]
    for frame in odd:
        assert (frame.irregularity or "").endswith(f"[{ODD[frame.api or '', frame.api_version or 0]}]")
    assert len(report.notes) == len(odd)


@pytest.mark.parametrize("name", NAMES)
def test_every_frame_has_its_fields(name: str) -> None:
    frames, _ = read(name)
    port = expected(name)["port"]
    asked = {}
    for frame in frames:
        assert frame.connection.rpartition("#")[0].endswith(f"-127.0.0.1:{port}")
        assert len(frame.raw) == frame.size
        assert frame.time == pytest.approx(frame.time_ns / 1e9)
        key = (frame.connection, frame.correlation_id)
        if frame.direction == "request":
            asked[key] = frame
            assert frame.header.client_id == frame.client_id
            assert frame.header.request_api_key == frame.api_key
            if frame.message is not None:
                assert type(frame.message).__name__ == f"{frame.api}Request"
        else:
            request = asked.pop(key)
            assert request.time_ns <= frame.time_ns
            assert (request.api_key, request.api_version) == (frame.api_key, frame.api_version)
            assert request.client_id == frame.client_id
            assert frame.header.correlation_id == frame.correlation_id
            if frame.message is not None:
                assert type(frame.message).__name__ == f"{frame.api}Response"
    assert all(request.api in ("Fetch", "Metadata") for request in asked.values())


@pytest.mark.parametrize("seed", range(40))
def test_damaged_files_are_survived(seed: int) -> None:
    """Bytes overwritten at random, some with the largest and smallest numbers: a report, no error, no frame made up."""
    chance = random.Random(seed)
    data = bytearray((CAPTURES / f"{chance.choice(NAMES)}.pcap").read_bytes())
    for _ in range(chance.choice([1, 10, 100])):
        place = chance.randrange(24, len(data) - 4)
        data[place : place + 4] = chance.choice([bytes(4), b"\xff" * 4, b"\x7f\xff\xff\xff", chance.randbytes(4)])
    report = CaptureReport()
    frames = list(read_capture(io.BytesIO(data), report=report))
    assert len(frames) == report.requests + report.responses
    assert sum(4 + len(frame.raw) for frame in frames) <= len(data)
    assert [frame.error for frame in frames].count(None) == len(frames) - report.undecodable


@pytest.mark.parametrize("name", NAMES)
def test_a_file_cut_anywhere_gives_the_frames_before_the_cut(name: str, tmp_path: Path) -> None:
    whole = (CAPTURES / f"{name}.pcap").read_bytes()
    frames, _ = read(name)
    for length in range(24, len(whole), len(whole) // 23):
        cut = tmp_path / "cut.pcap"
        cut.write_bytes(whole[:length])
        report = CaptureReport()
        found = list(read_capture(cut, report=report))
        complete = [frame for frame in found if len(frame.raw) == frame.size]
        assert complete == frames[: len(complete)]
        assert len(found) - len(complete) <= 1
        assert report.damage is None or "the file ends" in report.damage
