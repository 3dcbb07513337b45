"""Captures and recordings, log segments and text logs as undecoded rows of `Frame`, `LogRow` and `LogLine`.

Laws:

* The content of a file raises nothing: damage becomes rows with an error, a place and a size, and reading continues
  behind it wherever something sound is found. A file of an unknown kind is one row of damage.
* Every byte of a recording or segment is in a sound row's record or batch, or in the `lost` of a row; every byte of a
  capture in a packet that was read, or in the `lost` of a row.
* Frames come in the order in which they were complete; `Frame.seq` numbers the rows of a source, damage included: it
  counts those of a recording, and is `RawFrames.number` for those of a capture.
* The rows of the shares of a source, put together, are those of the whole, whatever the shares are. A share of a
  capture has the connections of some lanes (`capture.lanes`), one of a recording the records that begin in it.
* The files of a rotated capture have the rows of one file with all their packets, but for `Frame.source`, `position`
  and `capture`; a batch has rows of one file. What one of them lacks is a loss of that file.
* Memory holds a batch of rows, a frame of each direction, and what arrived out of order.
* A file that another process cuts off is read as far as it was there; a row says what is lost.
* Of a source packed with gzip, places are those of its content (`unpacked`); where that ends early, a row says so.
* Times of text without a zone are read in the zone given. Where a year is missing, the file's own time decides it.

Segments, their damage and transactions: `segments`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

import pyarrow as pa

from kcoord_wire.capture.conversation import RawFrame
from kcoord_wire.capture.frames import GoesOn, RawFrames
from kcoord_wire.capture.pcap import HEAD_BYTES, CaptureError, read_head
from kcoord_wire.forensics.lines.wrapping import parse_zone
from kcoord_wire.forensics.model import Frame, LogLine, LogRow, arrow_schema, table_of
from kcoord_wire.forensics.sources.files import APART_NS, Content, SourceError, count_in, first_bytes, kind_of, unpacked
from kcoord_wire.forensics.sources.flows import Flows
from kcoord_wire.forensics.sources.segments import MAX_EXPANSION, records_of
from kcoord_wire.kernel.file_bytes import cut_off
from kcoord_wire.protocol.wording import counted
from kcoord_wire.recorder.recording import (
    Damage,
    Recorded,
    RecordingError,
    RecordingHeader,
    is_repeated,
    read_header,
    read_recording,
    refusal,
)

MAX_BATCH_BYTES: Final = 16 * 1024 * 1024
"""Bytes of frames or records at which a batch ends, however few rows it has."""

_ROWS_BETWEEN: Final = 512  # calls of `GoesOn`
_PARTITIONS: Final = 2**31


def _batches_of(row: type, rows: Iterable[tuple[Any, ...]], batch_rows: int, at: int) -> Iterator[pa.RecordBatch]:
    """Yield rows in batches, each of one source.

    :param row: the row type
    :param rows: values of its columns, of which the source is the first
    :param at: index of the bytes by which a batch is bounded
    """
    schema = arrow_schema(row)

    def batch() -> pa.RecordBatch:
        columns = zip(*held, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    held: list[tuple[Any, ...]] = []
    size = 0
    for item in rows:
        if held and item[0] != held[0][0]:
            yield batch()
            held, size = [], 0
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
    share: range | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the frames of a capture or a recording, as rows of `Frame`.

    :param ports: the brokers' ports, for captures; None to detect them
    :param batch_rows: rows of a batch, at most
    :param goes_on: see `GoesOn`
    :param share: the lanes of a capture that are read, or the bytes of a recording; None for all
    :raises OSError: the file cannot be read
    :raises MissingLibraryError: the extra ``capture`` or ``records`` is not installed
    """
    yield from _batches_of(Frame, _frames_of(path, ports, goes_on, share), batch_rows, _FRAME)


def read_unit(
    paths: Iterable[str | os.PathLike[str]],
    *,
    is_rotated: bool,
    ports: Collection[int] | None = None,
    batch_rows: int = 8192,
    goes_on: GoesOn | None = None,
    share: range | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the frames of files that are read together (`files.units`), as rows of `Frame`.

    :param paths: each is opened when the one before it is read
    :param is_rotated: whether they are the files of a rotated capture, in the order of their times. One that begins
        before the file before it ends, or, unless its name has tcpdump's or dumpcap's number, half a minute later,
        begins another capture, whose connections are others
    :param ports: as for `read_frames`, like the others
    :raises OSError: a file cannot be read
    :raises MissingLibraryError: the extra ``capture`` or ``records`` is not installed
    """
    if is_rotated:
        rows = _of_captures(paths, ports, goes_on, share, is_rotated=True)
        yield from _batches_of(Frame, rows, batch_rows, _FRAME)
        return
    for path in paths:
        yield from read_frames(path, ports=ports, batch_rows=batch_rows, goes_on=goes_on, share=share)


_FRAME: Final = 6  # index of the column
_Row = tuple[str, int, int, int, str, str, bytes, str | None, int, str | None, int | None, str | None]
"""A `Frame`."""


def _frames_of(
    path: str | os.PathLike[str], ports: Collection[int] | None, goes_on: GoesOn | None, share: range | None
) -> Iterator[_Row]:
    source = os.fspath(path)
    try:
        if kind_of(path) == "recording":
            yield from _of_recording(Path(path), source, goes_on, share)
        else:
            yield from _of_captures([path], ports, goes_on, share, is_rotated=False)
    except (SourceError, RecordingError) as error:
        yield source, 0, 0, 0, "", "damage", b"", str(error), Path(path).stat().st_size, None, None, None


def _of_captures(
    paths: Iterable[str | os.PathLike[str]],
    ports: Collection[int] | None,
    goes_on: GoesOn | None,
    share: range | None,
    *,
    is_rotated: bool,
) -> Iterator[_Row]:
    reading = _Captures(ports, goes_on, share, is_rotated)
    for path in paths:
        yield from reading.read(os.fspath(path))
    yield from reading.finish()


class _Captures:
    """Captures that are read one after the other, as far as a file does not go on with the one before it."""

    def __init__(
        self, ports: Collection[int] | None, goes_on: GoesOn | None, lanes: range | None, is_rotated: bool
    ) -> None:
        self._ports, self._goes_on, self._lanes, self._is_rotated = ports, goes_on, lanes, is_rotated
        self._begin()

    def _begin(self) -> None:
        share = None if self._lanes is None else Flows(self._lanes)
        self._frames = RawFrames(ports=self._ports, share=share)
        self._sources: list[str] = []

    def read(self, source: str) -> Iterator[_Row]:
        """Yield the rows of the next file, and those of earlier ones that wait for it."""
        with unpacked(Path(source)) as content:
            count = count_in(source)
            if self._sources and not self._is_followed_by(content.path, APART_NS if count is None else None):
                yield from self.finish()
                self._begin()
            self._note_missing(count)
            self._sources.append(source)
            try:
                yield from self._rows(self._frames.read(content.path, self._goes_on))
            except CaptureError as error:
                self._frames.lose(str(error), Path(source).stat().st_size, is_hole=len(self._sources) > 1)
            if content.fault is not None:
                self._frames.lose(content.fault, content.lost)

    def finish(self) -> Iterator[_Row]:
        """Yield the rows that wait for more: there is none."""
        return self._rows(self._frames.finish())

    def _is_followed_by(self, path: Path, within_ns: int | None) -> bool:
        head = read_head(first_bytes(path, HEAD_BYTES))
        return head is None or self._frames.can_follow(head.first_ns, within_ns)

    def _note_missing(self, count: int | None) -> None:
        """Report the files between the last one and the next; in a ring the numbers begin anew."""
        last = count_in(self._sources[-1]) if self._sources else None
        if count is not None and last is not None and count > last + 1:
            missing = counted(count - last - 1, "file")
            self._frames.lose(f"{missing} of the capture missing behind this one", 0)

    def _rows(self, frames: Iterator[RawFrame]) -> Iterator[_Row]:
        for found in frames:
            source, seq = self._sources[found.file], self._frames.number(found)
            capture = self._sources[0] if self._is_rotated else None
            row = (found.position, found.time_ns, found.connection, found.kind, found.body, found.error, found.lost)
            yield source, seq, *row, found.by, found.since_ns, capture


def _of_recording(path: Path, source: str, goes_on: GoesOn | None, share: range | None) -> Iterator[_Row]:
    with unpacked(path) as content, content.path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        at, time_ns = 0 if share is None else share.start, 0
        seq = at - 1  # where the file is cut before the share: more than the rows that come before
        for seq, row in _recorded(content.path, file, share):
            yield source, seq, *row, None
            at, time_ns = row[:2]
            if goes_on and not seq % _ROWS_BETWEEN and not goes_on(at, size):
                break
        for why, lost in _behind(content, file, size, share):
            seq += 1
            yield source, seq, at, time_ns, "", "damage", b"", why, lost, None, time_ns, None


def _behind(content: Content, file: BinaryIO, size: int, share: range | None = None) -> Iterator[tuple[str, int]]:
    """Yield what is lost behind the content that was read, why and how many bytes.

    :param size: of the file when it was opened
    :param share: of its bytes that are read; None for all
    """
    if content.fault is not None:
        yield content.fault, content.lost
    start, stop = (0, size) if share is None else (share.start, share.stop)
    lost = stop - max(start, file.tell())
    cut = cut_off(file, max(size, stop))  # the file may have been longer when its shares were planned
    if cut is not None and lost > 0:
        yield str(cut), lost


_Recorded = tuple[int, int, str, str, bytes, str | None, int, str | None, int | None]
"""The columns of a `Frame` from its position to `since_ns`."""


def _recorded(path: Path, file: BinaryIO, share: range | None) -> Iterator[tuple[int, _Recorded]]:
    """Yield the rows of a recording with their numbers: those that begin in a share of its bytes, None for all.

    Of what is before the share, connections are noted and rows are counted.
    """
    start, stop = (0, sys.maxsize) if share is None else (share.start, share.stop)
    header = read_header(path)
    names: dict[int, str] = {}
    time_ns = header.began_ns if header else 0
    seq = -1
    for found in read_recording(file):
        position = found[0]
        if position >= stop:
            return
        if isinstance(found, Damage):
            row: _Recorded | None = (position, time_ns, "", "damage", b"", found.why, found.size, None, time_ns)
        else:
            time_ns, direction = found.time_ns, found.direction
            if position < start and (direction == "request" or direction == "response"):
                seq += 1
                continue
            row = _recorded_row(found, names, header)
        if row is not None:
            seq += 1
            if position >= start:
                yield seq, row


def _recorded_row(found: Recorded, names: dict[int, str], header: RecordingHeader | None) -> _Recorded | None:
    """Return the row of a record, None for the repeated opening of a connection; `names` follow.

    :param names: of the connections that are open, by number
    """
    position, time_ns, number, direction, body, size, _, by = found
    name = names.get(number) or f"?:0-?:0#{number}"
    if size == len(body) and (direction == "request" or direction == "response"):
        return position, time_ns, name, direction, body, None, 0, None, None
    if direction == "opened":
        name = names[number] = body.decode(errors="replace")
        if is_repeated(found, header):  # it was opened in an earlier file
            return None
        return position, time_ns, name, direction, b"", None, 0, None, None
    if direction == "refused":
        name, why = refusal(body)
        return position, time_ns, name, direction, b"", why, 0, None, None
    if direction == "foreign":
        return position, time_ns, name, "damage", b"", body.decode(errors="replace"), 0, by, None
    if direction == "closed" or direction == "reset":
        names.pop(number, None)
        return position, time_ns, name, direction, b"", None, 0, by, None
    error = f"{size - len(body)} of its {size} bytes were not recorded"
    return position, time_ns, name, direction, body, error, len(body), None, None


def read_log(
    path: str | os.PathLike[str],
    *,
    share: range | None = None,
    max_expansion: int = MAX_EXPANSION,
    batch_rows: int = 8192,
    goes_on: GoesOn | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a segment file of ``__consumer_offsets``, as rows of `LogRow`.

    :param share: the bytes of the file, which is not packed, that are read (`segments`); None for all
    :param max_expansion: see `segments.MAX_EXPANSION`
    :param batch_rows: rows of a batch, at most
    :param goes_on: see `GoesOn`
    :raises OSError: the file cannot be read
    :raises MissingLibraryError: the extra ``records`` is not installed
    """
    source = os.fspath(path)
    partition = partition_of(source)
    rows = ((source, partition, *row) for row in records_of(Path(path), share, goes_on, max_expansion))
    yield from _batches_of(LogRow, rows, batch_rows, 6)


def partition_of(path: str) -> int:
    """Return the partition of a segment's records, which its folder names; -1 where it does not."""
    name = re.fullmatch(r".*-(\d+)", Path(path).resolve().parent.name)
    return int(name[1]) if name and int(name[1]) < _PARTITIONS else -1


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
        size = os.fstat(file.fileno()).st_size
        ask = None if goes_on is None else partial(_ask, goes_on, size)
        for line in lines_of(file, source, zone, latest, ask):
            held.append(line)
            if len(held) >= batch_rows:
                yield from table_of(LogLine, held).to_batches()
                held = []
        for why, lost in _behind(content, file, size):
            held.append(LogLine(source, size, 0, False, "", "", "", error=why, lost=lost))
        yield from table_of(LogLine, held).to_batches()


def _ask(goes_on: GoesOn, size: int, done: int) -> bool:
    return goes_on(done, size)
