"""Rows of captures, recordings and segments; transactions.

Logs as sources: recognised by their text, packed, in folders, damaged; time zones.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from kcoord_wire.capture import read_capture
from kcoord_wire.forensics import analyze
from kcoord_wire.forensics.lines.wrapping import parse_zone
from kcoord_wire.forensics.model import Frame, LogRow, arrow_schema
from kcoord_wire.forensics.sources import frames as frames_module
from kcoord_wire.forensics.sources.files import find_sources
from kcoord_wire.forensics.sources.frames import read_frames, read_lines, read_log
from kcoord_wire.recorder.recording import RecordingWriter, recording_files
from kcoord_wire.records import (
    Compression,
    ControlType,
    Record,
    encode_batch,
    encode_message_set,
    end_transaction_record,
)
from tests.support.recordings import record_capture
from tests.support.segments import CAPTURES, commit, rows, segment
from tests.support.text_logs import recorded
from tests.support.wire_samples import canonical, match_all

NAMES = ["aiokafka", "cooperative", "eager_range", "static_bounce"]


@pytest.mark.parametrize("name", NAMES)
def test_a_capture_gives_the_frames_that_read_capture_gives(name: str) -> None:
    path = CAPTURES / f"{name}.pcap"
    found = rows(read_frames(path))
    said = [row for row in found if row["direction"] in ("request", "response")]
    wanted = list(read_capture(path))
    assert [(row["direction"], row["connection"], row["time_ns"], row["frame"]) for row in said] == [
        (frame.direction, frame.connection, frame.time_ns, frame.raw) for frame in wanted
    ]
    seqs = [row["seq"] for row in found]
    assert seqs == sorted(set(seqs))
    positions = [row["position"] for row in found if row["direction"] != "closed"]
    assert positions == sorted(positions)
    assert {row["error"] for row in found} == {None}
    for direction in ("opened", "closed"):
        ends = [row["connection"] for row in found if row["direction"] == direction]
        assert sorted(ends) == sorted({frame.connection for frame in wanted})


def test_the_brokers_ports_can_be_given() -> None:
    path = CAPTURES / "aiokafka.pcap"
    assert rows(read_frames(path, ports=[41741])) == rows(read_frames(path))
    (none,) = rows(read_frames(path, ports=[1]))
    assert none["error"].startswith("no Kafka connection in ")
    assert none["error"].endswith("packets: none to the ports [1]")


def test_a_connection_that_outlives_the_capture_is_not_closed(tmp_path: Path) -> None:
    path = tmp_path / "short.pcap"
    path.write_bytes((CAPTURES / "aiokafka.pcap").read_bytes()[:40_000])
    found = rows(read_frames(path))
    opened = {row["connection"] for row in found if row["direction"] == "opened"}
    closed = {row["connection"] for row in found if row["direction"] == "closed"}
    assert closed < opened
    assert found[-1]["error"] is not None


@pytest.mark.parametrize("batch_rows", [1, 7, 8192])
def test_batches_are_as_large_as_asked_for(batch_rows: int) -> None:
    batches = list(read_frames(CAPTURES / "aiokafka.pcap", batch_rows=batch_rows))
    assert {batch.schema for batch in batches} == {arrow_schema(Frame)}
    assert {batch.num_rows for batch in batches[:-1]} <= {batch_rows}
    assert sum(batch.num_rows for batch in batches) == 286


def test_a_batch_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames_module, "MAX_BATCH_BYTES", 5_000)
    batches = list(read_frames(CAPTURES / "aiokafka.pcap"))
    assert len(batches) > 10
    assert rows(batches) == rows(read_frames(CAPTURES / "aiokafka.pcap"))


PLACES = ("source", "seq", "answer_seq", "position", "answer_position")


def told(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what differs between sources of the same."""
    return [{name: value for name, value in row.items() if name not in PLACES} for row in found]


@pytest.mark.parametrize("max_file_bytes", [1 << 30, 3_000])
def test_a_recording_has_the_rows_of_its_capture(tmp_path: Path, max_file_bytes: int) -> None:
    capture = CAPTURES / "cooperative.pcap"
    record_capture(tmp_path, capture, max_file_bytes=max_file_bytes)
    sources = find_sources([tmp_path])
    assert [source.path for source in sources] == recording_files(tmp_path)
    assert {source.kind for source in sources} == {"recording"}
    assert (len(sources) > 10) == (max_file_bytes == 3_000)
    found = [row for source in sources for row in rows(read_frames(source.path))]
    assert told(found) == told(rows(read_frames(capture)))
    recorded = match_all(batch for source in sources for batch in read_frames(source.path))
    captured = match_all(read_frames(capture))
    assert canonical(told(recorded[0])) == canonical(told(captured[0]))
    assert canonical(told(recorded[1])) == canonical(told(captured[1]))
    assert recorded[2].losses == []


def test_a_frame_that_the_recorder_cut_is_a_row_with_an_error(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path) as writer:
        writer.opened(0, "10.0.0.1:5-10.0.0.2:9092#0", 1)
        writer.frame(0, "request", b"\0\x0c\0\0\0\0\0\x01", 2, size=100)
        writer.frame(1, "request", b"\0\x0c\0\0\0\0\0\x01", 3)
    opened, cut, nameless = rows(read_frames(recording_files(tmp_path)[0]))
    assert opened["direction"] == "opened"
    assert (cut["error"], cut["lost"]) == ("92 of its 100 bytes were not recorded", 8)
    assert nameless["connection"] == "?:0-?:0#1"


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP, Compression.ZSTD])
def test_the_records_of_a_segment(tmp_path: Path, compression: Compression) -> None:
    records = [commit("g", offset) for offset in range(5)]
    first = encode_batch(records[:3], base_offset=10, compression=compression)
    old = encode_message_set(records[4:], magic=1, base_offset=14)
    path = segment(tmp_path, first, encode_batch(records[3:4], base_offset=13), old)
    found = rows(read_log(path))
    assert [row["offset"] for row in found] == [10, 11, 12, 13, 14]
    assert [row["position"] for row in found] == [0, 0, 0, len(first), path.stat().st_size - len(old)]
    assert [(row["key"], row["value"]) for row in found] == [(record.key, record.value) for record in records]
    assert [row["time_ns"] for row in found] == [(1000 + offset) * 1_000_000 for offset in range(5)]
    assert {(row["partition"], row["source"], row["error"], row["lost"]) for row in found} == {(17, str(path), None, 0)}
    assert [batch.schema for batch in read_log(path, batch_rows=2)] == [arrow_schema(LogRow)] * 3


def transactional(producer: int, base_offset: int, *records: Record) -> bytes:
    return encode_batch(
        records, base_offset=base_offset, transactional=True, producer_id=producer, producer_epoch=0, base_sequence=0
    )


def marker(producer: int, base_offset: int, control: ControlType) -> bytes:
    return encode_batch(
        [end_transaction_record(control, 1)],
        base_offset=base_offset,
        transactional=True,
        control=True,
        producer_id=producer,
        producer_epoch=0,
    )


def test_transactional_offsets_appear_at_their_commit(tmp_path: Path) -> None:
    path = segment(
        tmp_path,
        transactional(1, 0, commit("committed", 1), commit("committed", 2)),
        transactional(2, 2, commit("aborted", 3)),
        transactional(3, 3, commit("open", 4)),
        encode_batch([commit("plain", 5)], base_offset=4),
        marker(2, 5, ControlType.ABORT),
        marker(1, 6, ControlType.COMMIT),
        marker(9, 7, ControlType.COMMIT),
        transactional(1, 8, commit("committed", 9)),
        marker(1, 9, ControlType.COMMIT),
    )
    found = rows(read_log(path))
    assert [row["offset"] for row in found if row["error"] is None] == [4, 0, 1, 8]
    (undecided,) = [row for row in found if row["error"]]
    assert (undecided["offset"], undecided["key"], undecided["lost"]) == (3, commit("open", 4).key, 0)
    assert undecided["error"] == "committed in a transaction whose end is not in this segment"


def test_impossible_timestamps_fit_into_64_bits(tmp_path: Path) -> None:
    record = commit("g", 1)
    path = segment(tmp_path, encode_batch([Record(record.key, record.value, timestamp=2**62)], base_offset=0))
    assert rows(read_log(path))[0]["time_ns"] == 2**63 - 1


def test_an_empty_segment_has_no_rows(tmp_path: Path) -> None:
    assert list(read_log(segment(tmp_path))) == []


LINE = b"[2026-11-22 12:00:03,123] INFO Stabilized group g generation 5 (kafka.coordinator.group.GroupCoordinator)\n"


def test_rotated_and_packed_logs_of_a_folder_are_found(tmp_path: Path) -> None:
    for name in ("server.log", "server.log.1", "server.log.2026-11-22-12", "app-json.log"):
        (tmp_path / name).write_bytes(LINE)
    (tmp_path / "old.log.gz").write_bytes(gzip.compress(LINE))
    (tmp_path / "diary.txt").write_bytes(b"the group met\n")
    (tmp_path / "server.bin").write_bytes(LINE)
    found = find_sources([tmp_path])
    assert {source.kind for source in found} == {"text"}
    assert len(found) == 5


def test_a_packed_log_that_is_cut_short_is_read_so_far(tmp_path: Path) -> None:
    path = tmp_path / "server.log.gz"
    path.write_bytes(gzip.compress(LINE + b"".join(b"%d\n" % number for number in range(50_000)))[:-400])
    analysis = analyze([path])
    assert analysis.histories
    assert "cut short" in analysis.losses[0].what


def test_lines_without_a_date_are_a_loss_with_a_place(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(b"12:00:03 Stabilized group g generation 5\n")
    analysis = analyze([path])
    assert not analysis.histories
    assert "without a date" in analysis.losses[0].what


def test_batches_are_bounded() -> None:
    [path] = (path for path in recorded("broker-4.1.0") if "kip848" not in path.name)
    sizes = [batch.num_rows for batch in read_lines(path, batch_rows=10)]
    assert max(sizes) == 10
    assert sum(sizes) > 50


@pytest.mark.parametrize(("zone", "hours"), [("UTC", 0), ("+02:00", 2), ("-0330", -3.5), ("Asia/Tokyo", 9)])
def test_a_zone_shifts_times_that_state_none(tmp_path: Path, zone: str, hours: float) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(LINE)
    [plain], [shifted] = ([b["time_ns"][0].as_py() for b in read_lines(path, timezone=z)] for z in ("UTC", zone))
    assert plain - shifted == hours * 3600 * 10**9


@pytest.mark.parametrize("zone", ["", "Mars", "+25:00", "../etc/passwd", "x" * 5000])
def test_an_unknown_zone_is_a_clear_error(zone: str) -> None:
    with pytest.raises(ValueError, match="is no time zone"):
        parse_zone(zone)
