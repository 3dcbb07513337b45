"""Captures and recordings, log segments and text logs as undecoded rows of `Frame`, `LogRow` and `LogLine`.

Laws:

* The content of a file raises nothing: damage becomes rows with an error, a place and a size, and reading continues
  behind it wherever something sound is found. A file of an unknown kind is one row of damage.
* Every byte of a recording or segment is in a sound row's record or batch, or in the `lost` of a row; every byte of a
  capture in a packet that was read, or in the `lost` of a row.
* Frames come in the order in which they were complete; `Frame.seq` counts the rows of a source, damage included.
* Memory holds a batch of rows, a frame of each direction, what arrived out of order, and open transactions.
* Of a source packed with gzip, places are those of its content (`unpacked`); where that ends early, a row says so.
* Times of text without a zone are read in the zone given. Where a year is missing, the file's own time decides it.

Transactions: offsets committed in a transaction become rows at its commit marker; those of an aborted one are dropped.
Where the segment ends before the marker, they become rows with an error and their key and value: the outcome is in the
next segment, and a guess would be wrong in one of two ways.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from kcoord_wire.capture.frames import GoesOn, read_raw_frames
from kcoord_wire.capture.pcap import CaptureError
from kcoord_wire.errors import DecodeError
from kcoord_wire.forensics.lines.wrapping import parse_zone
from kcoord_wire.forensics.model import Frame, LogLine, LogRow, arrow_schema, record_time_ns, table_of
from kcoord_wire.forensics.sources.files import SourceError, kind_of, plain_name, unpacked
from kcoord_wire.recorder.recording import Damage, RecordingError, is_repeated, read_header, read_recording, refusal

if TYPE_CHECKING:
    from kcoord_wire.records.model import Batch, RecordBatch

MAX_BATCH_BYTES: Final = 16 * 1024 * 1024
"""Bytes of frames or records at which a batch ends, however few rows it has."""

_ROWS_BETWEEN: Final = 512  # calls of `GoesOn`
_MAX_BATCH: Final = 100 * 1024 * 1024
_SEARCHES: Final = 64  # how often each byte of a segment is examined in the search for sound batches, on average
# Where a batch may begin: an offset below 2**40, a size below 2**24, any epoch, a known magic.
_LIKELY_BATCH: Final = re.compile(rb"(?=\x00{3}.{5}\x00.{7}[\x00-\x02])", re.DOTALL)
_MAX_OFFSET: Final = 2**63 - 1
_OFFSETS_OF_SEGMENT: Final = 2**31  # its index counts them in 31 bits
_PARTITIONS: Final = 2**31


def _batches_of(
    row: type, source: str, rows: Iterable[tuple[Any, ...]], batch_rows: int, at: int
) -> Iterator[pa.RecordBatch]:
    """Yield rows in batches.

    :param row: the row type
    :param rows: values of its columns, without the source
    :param at: index of the bytes by which a batch is bounded
    """
    schema = arrow_schema(row)

    def batch() -> pa.RecordBatch:
        columns = zip(*held, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, list(schema)[1:], strict=True)]
        return pa.RecordBatch.from_arrays([pa.repeat(pa.scalar(source), len(held)), *arrays], schema=schema)

    held: list[tuple[Any, ...]] = []
    size = 0
    for item in rows:
        held.append(item)
        size += len(item[at] or b"")
        if len(held) >= batch_rows or size >= MAX_BATCH_BYTES:
            yield batch()
            held, size = [], 0
    if held:
        yield batch()


def read_frames(
    path: str | os.PathLike[str],
    *,
    ports: Collection[int] | None = None,
    batch_rows: int = 8192,
    goes_on: GoesOn | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the frames of a capture or a recording, as rows of `Frame`.

    :param ports: the brokers' ports, for captures; None to detect them
    :param batch_rows: rows of a batch, at most
    :param goes_on: see `GoesOn`
    :raises OSError: the file cannot be read
    :raises MissingLibraryError: the extra ``capture`` or ``records`` is not installed
    """
    source = os.fspath(path)
    yield from _batches_of(Frame, source, _frames_of(path, ports, goes_on), batch_rows, 5)


_Row = tuple[int, int, int, str, str, bytes, str | None, int, str | None, int | None]
"""A `Frame` without its source."""


def _frames_of(path: str | os.PathLike[str], ports: Collection[int] | None, goes_on: GoesOn | None) -> Iterator[_Row]:
    try:
        kind = kind_of(path)
        with unpacked(Path(path)) as content:
            last: _Row = (-1, 0, 0, "", "damage", b"", None, 0, None, None)
            is_recording = kind == "recording"
            rows = _of_recording(content.path) if is_recording else _of_capture(content.path, ports, goes_on)
            size = content.path.stat().st_size
            for last in rows:
                yield last
                if is_recording and goes_on and not last[0] % _ROWS_BETWEEN and not goes_on(last[1], size):
                    break
            if content.fault is not None:
                yield last[0] + 1, last[1], last[2], "", "damage", b"", content.fault, content.lost, None, last[2]
    except (SourceError, CaptureError, RecordingError) as error:
        yield 0, 0, 0, "", "damage", b"", str(error), Path(path).stat().st_size, None, None


def _of_capture(path: Path, ports: Collection[int] | None, goes_on: GoesOn | None) -> Iterator[_Row]:
    for seq, found in enumerate(read_raw_frames(path, ports=ports, goes_on=goes_on)):
        row = (seq, found.position, found.time_ns, found.connection, found.kind, found.body, found.error, found.lost)
        yield *row, found.by, found.since_ns


def _of_recording(path: Path) -> Iterator[_Row]:
    header = read_header(path)
    began_ns = header.began_ns if header else 0
    names: dict[int, str] = {}
    time_ns, seq = began_ns, -1
    for found in read_recording(path):
        seq += 1
        if isinstance(found, Damage):
            yield seq, found.position, time_ns, "", "damage", b"", found.why, found.size, None, time_ns
            continue
        position, time_ns, number, direction, body, size, _, by = found
        name = names.get(number) or f"?:0-?:0#{number}"
        if size == len(body) and (direction == "request" or direction == "response"):
            yield seq, position, time_ns, name, direction, body, None, 0, None, None
        elif direction == "opened":
            name = names[number] = body.decode(errors="replace")
            if is_repeated(found, header):
                seq -= 1  # it was opened in an earlier file
            else:
                yield seq, position, time_ns, name, direction, b"", None, 0, None, None
        elif direction == "refused":
            name, why = refusal(body)
            yield seq, position, time_ns, name, direction, b"", why, 0, None, None
        elif direction == "closed" or direction == "reset":
            names.pop(number, None)
            yield seq, position, time_ns, name, direction, b"", None, 0, by, None
        else:
            error = f"{size - len(body)} of its {size} bytes were not recorded"
            yield seq, position, time_ns, name, direction, body, error, len(body), None, None


def read_log(
    path: str | os.PathLike[str], *, batch_rows: int = 8192, goes_on: GoesOn | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a segment file of ``__consumer_offsets``, as rows of `LogRow`.

    :param batch_rows: rows of a batch, at most
    :param goes_on: see `GoesOn`
    :raises OSError: the file cannot be read
    :raises MissingLibraryError: the extra ``records`` is not installed
    """
    source = os.fspath(path)
    partition = partition_of(source)
    rows = ((partition, *row) for row in _records_of(Path(path), goes_on))
    yield from _batches_of(LogRow, source, rows, batch_rows, 5)


def partition_of(path: str) -> int:
    """Return the partition of a segment's records, which its folder names; -1 where it does not."""
    name = re.fullmatch(r".*-(\d+)", Path(path).resolve().parent.name)
    return int(name[1]) if name and int(name[1]) < _PARTITIONS else -1


_Record = tuple[int, int, int, bytes | None, bytes | None, str | None, int, bool]
"""A `LogRow` without source and partition."""


def _records_of(path: Path, goes_on: GoesOn | None) -> Iterator[_Record]:
    with unpacked(path) as content:
        size = content.path.stat().st_size
        if size:
            with content.path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
                yield from _of_segment(data, _offsets_of(plain_name(path)), goes_on)
        if content.fault is not None:
            yield -1, size, 0, None, None, content.fault, content.lost, False


def _offsets_of(name: str) -> range:
    """Return the offsets that a segment of that name can have: the name is the first one, in 20 digits."""
    first = int(name.removesuffix(".log")) if re.fullmatch(r"\d{20}\.log", name) else None
    return range(_MAX_OFFSET) if first is None else range(first, first + _OFFSETS_OF_SEGMENT)


def _of_segment(data: mmap, offsets: range, goes_on: GoesOn | None) -> Iterator[_Record]:
    from kcoord_wire.records.model import Batch, RecordBatch, TimestampType

    open_: dict[int, list[_Record]] = {}  # by producer
    for batch in _batches(data, goes_on):
        if not isinstance(batch, Batch):
            position, size, why = batch
            yield -1, position, 0, None, None, why, size, False
            continue
        if batch.base_offset not in offsets:  # the checksum does not cover it
            why = f"a batch with the offset {batch.base_offset}, which cannot be in this segment"
            yield -1, batch.position, 0, None, None, why, batch.size, False
            continue
        if isinstance(batch, RecordBatch) and batch.is_control:
            committed = _ends_well(batch)
            if committed is not None and (held := open_.pop(batch.producer_id, None)) and committed:
                yield from held
            continue
        is_append = batch.timestamp_type is TimestampType.LOG_APPEND_TIME
        found = [
            (
                record.offset,
                batch.position,
                record_time_ns(record.timestamp),
                record.key,
                record.value,
                None,
                0,
                is_append,
            )
            for record in batch.records
        ]
        if isinstance(batch, RecordBatch) and batch.is_transactional:
            open_.setdefault(batch.producer_id, []).extend(found)
        else:
            yield from found
    why = "committed in a transaction whose end is not in this segment"
    for held in open_.values():
        for offset, position, time_ns, key, value, _, _, is_append in held:
            yield offset, position, time_ns, key, value, why, 0, is_append


def _ends_well(batch: RecordBatch) -> bool | None:
    """Whether a control batch commits its transaction; None where it is not the end of one."""
    from kcoord_wire.records.control import ControlType, decode_control_record

    for record in batch.records:
        try:
            control = decode_control_record(record)
        except DecodeError:
            continue
        if control.type in (ControlType.COMMIT, ControlType.ABORT):
            return control.type == ControlType.COMMIT
    return None


def _batches(data: mmap, goes_on: GoesOn | None) -> Iterator[Batch | tuple[int, int, str]]:
    """Yield the batches of a segment, and position, size and reason of the damage between them."""
    position, budget = 0, _SEARCHES * len(data)
    while position < len(data) and (goes_on is None or goes_on(position, len(data))):
        batch = _batch_at(data, position)
        if not isinstance(batch, DecodeError):
            yield batch
            position += batch.size
            continue
        end, budget = _next_batch(data, position, budget)
        yield position, end - position, str(batch)
        position = end


def _batch_at(data: mmap, position: int) -> Batch | DecodeError:
    from kcoord_wire.records.limits import ReadLimits
    from kcoord_wire.records.segment import PREFIX_SIZE, batch_size, decode_any

    try:
        prefix = data[position : position + PREFIX_SIZE]
        size = batch_size(prefix, position) if len(prefix) == PREFIX_SIZE else PREFIX_SIZE
        if size > min(_MAX_BATCH, len(data) - position):
            detail = f"{size} bytes or more where {len(data) - position} are left"
            return DecodeError("truncated", position, "Batch.size", detail)
        return decode_any(memoryview(data[position : position + size]), position, ReadLimits(strict=False))
    except DecodeError as error:
        return error


def _next_batch(data: mmap, position: int, budget: int) -> tuple[int, int]:
    """Return where the next sound batch begins, else the end of the data; and what is left of the budget."""
    from kcoord_wire.records.segment import PREFIX_SIZE

    for match in _LIKELY_BATCH.finditer(data, position + 1):
        place = match.start()
        (size,) = struct.unpack_from(">i", data, place + 8)
        if place + PREFIX_SIZE + size > len(data):
            continue
        budget -= size
        if budget < 0:
            break
        if not isinstance(_batch_at(data, place), DecodeError):
            return place, budget
    return len(data), budget


def read_lines(
    path: str | os.PathLike[str],
    *,
    timezone: str = "UTC",
    batch_rows: int = 8192,
    goes_on: GoesOn | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the lines about groups in a log, as rows of `LogLine`.

    :param timezone: of times that state none, as for `parse_zone`
    :param batch_rows: rows of a batch, at most
    :param goes_on: see `GoesOn`
    :raises OSError: the file cannot be read
    :raises ValueError: the time zone is unknown
    """
    from kcoord_wire.forensics.lines.extraction import lines_of

    zone, source = parse_zone(timezone), os.fspath(path)
    latest = datetime.fromtimestamp(Path(path).stat().st_mtime, UTC)
    held: list[LogLine] = []
    with unpacked(Path(path)) as content, content.path.open("rb") as file:
        size = content.path.stat().st_size
        ask = None if goes_on is None else partial(_ask, goes_on, size)
        for line in lines_of(file, source, zone, latest, ask):
            held.append(line)
            if len(held) >= batch_rows:
                yield from table_of(LogLine, held).to_batches()
                held = []
        if content.fault is not None:
            held.append(LogLine(source, size, 0, False, "", "", "", error=content.fault, lost=content.lost))
        yield from table_of(LogLine, held).to_batches()


def _ask(goes_on: GoesOn, size: int, done: int) -> bool:
    return goes_on(done, size)
