"""A growing folder of recordings as a stream: what ``spark.readStream.format("kcoord")`` reads.

    growing = spark.readStream.format("kcoord").load("recording/")

Laws, of which the first is that every record comes exactly once, across restarts:

* An offset has for each file the position up to which it was read, the number of its rows, when the file began, and
  whether it is finished. Reading between two offsets has the same rows after a restart, because recordings only grow.
* An incomplete record waits for a later batch, unless there is a newer file: then its writer is gone, and the rest is a
  row with `error`.
* A finished file with a successor may be deleted. A file that disappears earlier, or becomes shorter, or is replaced,
  ends the query; with failOnDataLoss=false the query reads what remains.
* Rows are those of `Frame`, equal to the batch source's for the same files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from kcoord_wire.forensics.model import Frame, table_of
from kcoord_wire.recorder.recording import (
    Damage,
    Recorded,
    RecordingHeader,
    is_repeated,
    read_header,
    read_recording,
    recording_files,
    refusal,
)
from kcoord_wire.spark.rows import as_arrow, as_spark

STREAM_OPTIONS: Final = (
    "failOnDataLoss",
    "maxBytesPerTrigger",
    "maxFilesPerTrigger",
    "maxRowsPerTrigger",
    "startingOffsets",
)
_BATCH_ROWS: Final = 8192
_KEPT_CURSORS: Final = 64
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class DataLossError(RuntimeError):
    """Bytes that the query has not read yet are gone."""


class _Place(NamedTuple):
    """How far a file was read.

    :ivar position: in bytes
    :ivar rows: number of rows before it
    :ivar began: when the file began, in nanoseconds; 0 if its header is damaged
    :ivar done: whether the file is finished and read to its end
    """

    position: int
    rows: int
    began: int
    done: bool = False


class _Stretch(InputPartition):
    """A part of a file, read by one task."""

    def __init__(self, path: str, start: _Place, end: _Place) -> None:
        super().__init__(path)
        self.path = path
        self.start = start
        self.end = end


class RecordingStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a growing folder of recordings.

    Options: ``path`` (the folder); at most one limit of a batch, which has at least one record: ``maxBytesPerTrigger``
    (a number, also with k, m or g), ``maxFilesPerTrigger`` or ``maxRowsPerTrigger``; ``startingOffsets`` (``earliest``,
    or ``latest`` for records written from now on); ``failOnDataLoss`` (``true`` or ``false``).
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        lower = {name.lower(): value for name, value in options.items()}
        known = {name.lower() for name in (*STREAM_OPTIONS, "path")}
        for name in lower:
            if name not in known:
                names = ", ".join(("path", *STREAM_OPTIONS))
                raise ValueError(f"the stream source kcoord has no option {name!r}; its options are {names}")
        if not lower.get("path"):
            raise ValueError('the stream source kcoord needs a path: .load("recording/")')
        self.folder = Path(lower["path"])
        self.schema = schema
        self.fails_on_loss = _one_of("failOnDataLoss", lower.get("failondataloss", "true"), ("true", "false")) == "true"
        starts = _one_of("startingOffsets", lower.get("startingoffsets", "earliest"), ("earliest", "latest"))
        self.from_now = starts == "latest"
        self.limit = _limit(lower)
        self.target: dict[str, _Place] | None = None

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit of the options."""
        return self.limit

    def initialOffset(self) -> dict[str, Any]:
        """The offset at which a new query begins."""
        return _offset(self._ends({}, ReadAllAvailable()) if self.from_now else {})

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the batch that begins at `start`.

        :raises DataLossError: unread bytes are gone, and failOnDataLoss is true
        """
        return _offset(self._ends(_places(start), limit))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return None: the newest offset is known only by reading all files."""
        return None

    def prepareForTriggerAvailableNow(self) -> None:
        """Limit the query to the bytes that exist now."""
        self.target = self._ends({}, ReadAllAvailable())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The part of each file between the two offsets."""
        before = _places(start)
        stretches = []
        for name, place in _places(end).items():
            first = before.get(name)
            if first is None or first.began != place.began:
                first = _Place(0, 0, place.began)
            if place.position > first.position:
                stretches.append(_Stretch(str(self.folder / name), first, place))
        return stretches

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a part of a file.

        :raises DataLossError: the file is gone, and failOnDataLoss is true
        """
        assert isinstance(partition, _Stretch)
        try:
            rows: list[Frame] = []
            for row in _rows(partition):
                rows.append(row)
                if len(rows) == _BATCH_ROWS:
                    yield self._batch(rows)
                    rows = []
        except FileNotFoundError:
            if self.fails_on_loss:
                raise DataLossError(_lost(partition.path, "is gone")) from None
        if rows:
            yield self._batch(rows)

    def _batch(self, rows: list[Frame]) -> pa.RecordBatch:
        return as_spark(table_of(Frame, rows).combine_chunks().to_batches()[0], as_arrow(self.schema))

    def _ends(self, start: Mapping[str, _Place], limit: ReadLimit) -> dict[str, _Place]:
        """How far each file can be read, at most `limit` after `start`."""
        files = recording_files(self.folder) if self.folder.is_dir() else []
        present = {path.name for path in files}
        for name, place in start.items():
            if name not in present and not place.done and self.fails_on_loss:
                raise DataLossError(_lost(self.folder / name, "is gone"))
        budget = _Budget(limit)
        ends = {}
        for path in files:
            place = self._resumed(path, start.get(path.name))
            if not place.done and not budget.spent:
                place = self._end(path, place, path == files[-1], budget)
            if place.position:
                ends[path.name] = place
        return ends

    def _resumed(self, path: Path, place: _Place | None) -> _Place:
        """Where to go on reading a file.

        :raises DataLossError: it is not the file of `place` any more, and failOnDataLoss is true
        """
        header = read_header(path)
        began = header.began_ns if header is not None else 0
        if place is None:
            return _Place(0, 0, began)
        if place.began != began:
            what = "was replaced by another file"
        elif path.stat().st_size < place.position:
            what = "has become shorter"
        else:
            return place
        if self.fails_on_loss:
            raise DataLossError(_lost(path, what))
        return place if place.began == began else _Place(0, 0, began)

    def _end(self, path: Path, place: _Place, growing: bool, budget: _Budget) -> _Place:
        """How far one file can be read after `place`."""
        position, rows, header = place.position, place.rows, read_header(path)
        stop = None if self.target is None else self.target[path.name].position if path.name in self.target else 0
        for found in read_recording(path, start=position):
            end = _end_of(found)
            if (isinstance(found, Damage) and found.at_end and growing) or (stop is not None and end > stop):
                break
            budget.spend(end - position)
            position = end
            rows += not (isinstance(found, Recorded) and is_repeated(found, header))
            if budget.spent:
                return _Place(position, rows, place.began)
        budget.next_file(position > place.position)
        return _Place(position, rows, place.began, not growing and (stop is None or position >= path.stat().st_size))


class _Budget:
    """What remains of the limit of a batch; one record is always allowed."""

    def __init__(self, limit: ReadLimit) -> None:
        self.bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        self.rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        self.files = limit.max_files if isinstance(limit, ReadMaxFiles) else None

    @property
    def spent(self) -> bool:
        return 0 in (self.bytes, self.rows, self.files)

    def spend(self, size: int) -> None:
        if self.bytes is not None:
            self.bytes = max(self.bytes - size, 0)
        if self.rows is not None:
            self.rows -= 1

    def next_file(self, used: bool) -> None:
        if self.files is not None and used:
            self.files -= 1


# ---- rows


class _Cursor:
    """The state of reading a file up to a position, which the rows after it depend on.

    :ivar position: the end of the last record
    :ivar names: names of the open connections, by number
    :ivar time_ns: time of the last record
    """

    def __init__(self, header: RecordingHeader | None) -> None:
        self.position = 0
        self.names: dict[int, str] = {}
        self.time_ns = 0 if header is None else header.began_ns
        self._header = header

    def row(self, found: Recorded | Damage, source: str, seq: int) -> Frame | None:
        """The row of the next record; None for a repeated opening."""
        self.position = _end_of(found)
        if isinstance(found, Damage):
            return Frame(
                source, seq, found.position, self.time_ns, "", "damage", b"", found.why, found.size, None, self.time_ns
            )
        self.time_ns = found.time_ns
        if found.direction == "opened":
            self.names[found.connection] = found.body.decode(errors="replace")
            if is_repeated(found, self._header):
                return None
        name = self.names.get(found.connection) or f"?:0-?:0#{found.connection}"
        if found.direction in ("closed", "reset"):
            self.names.pop(found.connection, None)
        is_frame = found.direction in ("request", "response")
        error, lost = None, 0
        if found.direction == "refused":
            name, error = refusal(found.body)
        if is_frame and found.size > len(found.body):
            error = f"{found.size - len(found.body)} of its {found.size} bytes were not recorded"
            lost = len(found.body)
        body = found.body if is_frame else b""
        return Frame(source, seq, found.position, found.time_ns, name, found.direction, body, error, lost, found.by)


_cursors: dict[tuple[str, int], _Cursor] = {}
"""The cursor of each file in this worker, so that the next part of it is not read from the file's beginning."""


def _cursor_at(stretch: _Stretch) -> _Cursor:
    cursor = _cursors.pop((stretch.path, stretch.start.began), None)
    if cursor is None or cursor.position > stretch.start.position:
        cursor = _Cursor(read_header(stretch.path))
    if cursor.position < stretch.start.position:
        for found in read_recording(stretch.path, start=cursor.position):
            if found.position >= stretch.start.position:
                break
            cursor.row(found, "", 0)
    return cursor


def _rows(stretch: _Stretch) -> Iterator[Frame]:
    cursor = _cursor_at(stretch)
    seq = stretch.start.rows
    if stretch.start.position < stretch.end.position:
        for found in read_recording(stretch.path, start=stretch.start.position):
            if found.position >= stretch.end.position:
                break
            row = cursor.row(found, stretch.path, seq)
            if row is not None:
                yield row
                seq += 1
    if len(_cursors) >= _KEPT_CURSORS:
        _cursors.clear()
    _cursors[stretch.path, stretch.start.began] = cursor


# ---- offsets and options


def _offset(places: Mapping[str, _Place]) -> dict[str, Any]:
    return {"files": {name: place._asdict() for name, place in sorted(places.items())}}


def _places(offset: Mapping[str, Any]) -> dict[str, _Place]:
    return {name: _Place(**place) for name, place in offset["files"].items()}


def _end_of(found: Recorded | Damage) -> int:
    return found.end if isinstance(found, Recorded) else found.position + found.size


def _lost(path: Path | str, what: str) -> str:
    return f"{path} {what} before all of it was read; failOnDataLoss=false reads what remains"


def _one_of(name: str, value: str, choices: Sequence[str]) -> str:
    if value.lower() not in choices:
        raise ValueError(f"{name} must be {' or '.join(choices)}, not {value!r}")
    return value.lower()


def _limit(lower: Mapping[str, str]) -> ReadLimit:
    kinds: dict[str, Callable[[int], ReadLimit]] = {
        "maxBytesPerTrigger": ReadMaxBytes,
        "maxFilesPerTrigger": ReadMaxFiles,
        "maxRowsPerTrigger": ReadMaxRows,
    }
    named = [name for name in kinds if name.lower() in lower]
    if len(named) > 1:
        raise ValueError(f"{' and '.join(named)}: give only one limit")
    for name in named:
        text = lower[name.lower()]
        found = re.fullmatch(r"(\d+)([kmg]?)b?" if name == "maxBytesPerTrigger" else r"(\d+)()", text.strip().lower())
        if found is None or not int(found[1]):
            raise ValueError(f"{name} must be a number above 0, not {text!r}")
        return kinds[name](int(found[1]) * _UNITS[found[2]])
    return ReadAllAvailable()
