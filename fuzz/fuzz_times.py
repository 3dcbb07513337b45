"""Whatever the times in a source are, before 1970, far ahead or beyond 64 bits, `kcoord analyze` ends well."""

from __future__ import annotations

import gzip
import io
import re
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

from kcoord_wire.cli.main import main
from kcoord_wire.forensics.sources.frames import read_frames
from kcoord_wire.recorder.recording import RecordingWriter
from kcoord_wire.records import Record, SegmentReader, encode_batch

DATA = Path(__file__).resolve().parent.parent / "tests" / "data"
CHANGE = struct.Struct(">HBq")  # the number of a time, what is done to it, with which number
MOST = 2**63 - 1
FRAMES, RECORDS, LINES = 120, 60, 80
MS = 1_000_000
DATE = re.compile(rb"\d{4}-(?=\d\d-\d\d[ T])")


def check(data: bytes) -> None:
    """`data`: which kind of source, then `CHANGE`s of its times."""
    make = MAKERS[data[0] % len(MAKERS)] if data else MAKERS[0]
    changes = [CHANGE.unpack_from(data, at) for at in range(1, len(data) - CHANGE.size + 1, CHANGE.size)]
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        source = Path(folder, "source")
        source.mkdir()
        make(source, changes)
        # As JSON: the page takes six times as long as all the rest, and libraries that only it needs.
        with redirect_stdout(io.StringIO()):
            assert main(["analyze", str(source), "--quiet", "--format", "json"]) == 0


def changed(times: list[int], changes: list[tuple[int, int, int]]) -> list[int]:
    """The times, as far as 64 bits hold them."""
    times = list(times)
    for at, what, number in changes if times else []:
        at %= len(times)
        if what % 3 == 0:
            times[at] = number
        elif what % 3 == 1:
            times[at] += number
        else:
            times[at:] = [time + number for time in times[at:]]
    return [max(-MOST - 1, min(MOST, time)) for time in times]


@cache
def frames() -> list[dict[str, Any]]:
    rows = (row for batch in read_frames(DATA / "captures" / "cooperative.pcap") for row in batch.to_pylist())
    return [row for row in rows if row["direction"] != "damage"][:FRAMES]


def recording(folder: Path, changes: list[tuple[int, int, int]]) -> None:
    numbers: dict[str, int] = {}
    times = changed([row["time_ns"] for row in frames()], changes)
    with RecordingWriter(folder) as writer:
        for row, time_ns in zip(frames(), times, strict=True):
            number = numbers.setdefault(row["connection"], len(numbers))
            if row["direction"] == "opened":
                writer.opened(number, row["connection"], time_ns)
            elif row["direction"] in ("closed", "reset"):
                writer.closed(number, time_ns)
            else:
                writer.frame(number, row["direction"], row["frame"], time_ns)


def capture(folder: Path, changes: list[tuple[int, int, int]]) -> None:
    data = bytearray((DATA / "captures" / "eager_range.pcap").read_bytes())
    places = list(_headers(data))
    seconds = [struct.unpack_from("<I", data, at)[0] for at in places]
    for at, second in zip(places, changed(seconds, changes), strict=True):
        struct.pack_into("<I", data, at, second & 0xFFFFFFFF)
    (folder / "trace.pcap").write_bytes(data)
    (folder / "sound.pcap").write_bytes((DATA / "captures" / "cooperative.pcap").read_bytes()[:40_000])


def _headers(data: bytearray) -> Iterator[int]:
    at = 24
    while at + 16 <= len(data) and at < 60_000:
        yield at
        at += 16 + int.from_bytes(data[at + 8 : at + 12], "little")


@cache
def records() -> list[Record]:
    segment = DATA / "consumer_groups" / "kafka-4.1.0" / "__consumer_offsets-0" / f"{0:020}.log"
    return [record for batch in SegmentReader(segment.read_bytes(), strict=False) for record in batch.records][:RECORDS]


def segment(folder: Path, changes: list[tuple[int, int, int]]) -> None:
    times = changed([record.timestamp for record in records()], changes)
    appended = [number for _, what, number in changes if what == 255]
    made = [
        encode_batch(
            [Record(record.key, record.value, time, record.offset)],
            base_offset=record.offset,
            log_append_time=appended[0] if appended else None,
        )
        for record, time in zip(records(), times, strict=True)
    ]
    inner = folder / "__consumer_offsets-0"
    inner.mkdir()
    (inner / f"{0:020}.log").write_bytes(b"".join(made))


def lines(folder: Path, changes: list[tuple[int, int, int]]) -> None:
    text = gzip.decompress((DATA / "logs" / "java-4.1.0-kip848-a.log.gz").read_bytes()).splitlines()[:LINES]
    for at, _, number in changes:
        text[at % len(text)] = DATE.sub(b"%04d-" % (number % 10_000), text[at % len(text)])
        if number < 0:
            text[at % len(text)] = b'{"ts": %d, "message": "Successfully joined group with generation 5"}' % -number
    (folder / "client.log").write_bytes(b"\n".join(text))


MAKERS: list[Callable[[Path, list[tuple[int, int, int]]], None]] = [recording, capture, segment, lines]
