"""Growing folders of recordings as a stream: what ``spark.readStream.format("kcoord")`` reads.

    growing = spark.readStream.format("kcoord").load("recording/")
    all_of_them = spark.readStream.format("kcoord").load("recorders/*/frames")

Laws, of which the first is that every record comes exactly once, across restarts:

* An offset has for each file a position in bytes, when the file began, and whether it is finished. The driver finds it
  from the sizes of the files, without reading records; only `maxRowsPerTrigger` has to count them.
* A position may cut a record: that one belongs to the batch at whose end it is whole. Damage belongs to the batch at
  whose end the header behind it is whole, because only then is it certain how far the damage goes. So what lies between
  two offsets is the same whenever it is read, because recordings only grow.
* An incomplete record waits for a later batch, unless there is a newer file: then its writer is gone, and the rest is a
  row with `error`.
* A finished file with a successor may be deleted. A file that disappears earlier, or becomes shorter, or is replaced,
  ends the query; with failOnDataLoss=false the query reads what remains. A writer whose disk is full cuts its file back
  to the last whole record: nothing is lost by that.
* A limit is shared by the folders, so that a busy recorder does not keep the others waiting.
* Rows are those of `Frame`, equal to the batch source's for the same files. The names of the connections and the number
  of rows before a position are known from the file alone: a worker keeps them for the files it has read, and one that
  has not reads the file once from its beginning.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from kcoord_wire.forensics.model import Frame, table_of
from kcoord_wire.recorder.recording import (
    FILE_HEADER_SIZE,
    RECORD_HEADER_SIZE,
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
from kcoord_wire.spark.sources import STREAM_OPTIONS
from kcoord_wire.spark.versions import SparkVersionError

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxFiles,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ModuleNotFoundError:  # a reader before 4.2 is not told where a batch begins, nor how large it may be
    raise SparkVersionError("the stream source kcoord", "4.2") from None

_VERSION: Final = 2  # of offsets
_WILDCARD: Final = re.compile(r"[*?\[]")
_BATCH_ROWS: Final = 8192
_KEPT_CURSORS: Final = 64
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class DataLossError(RuntimeError):
    """Bytes that the query has not read yet are gone."""


class _Place(NamedTuple):
    """How far a file was read.

    :ivar position: in bytes
    :ivar began: when the file began, in nanoseconds; 0 if its header is damaged
    :ivar done: whether the file is finished and read to its end
    """

    position: int
    began: int
    done: bool = False

    def includes(self, found: Recorded | Damage) -> bool:
        """Whether this is certain from the bytes before the position, whatever follows them."""
        size = len(found.body) if isinstance(found, Recorded) else found.size
        return self.done or found.position + RECORD_HEADER_SIZE + size <= self.position


class _Stretch(InputPartition):
    """A part of a file, read by one task."""

    def __init__(self, path: str, start: _Place, end: _Place) -> None:
        super().__init__(path)
        self.path = path
        self.start = start
        self.end = end


class RecordingStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads growing folders of recordings.

    Options: ``path`` (a folder, or a pattern of folders); at most one limit of a batch: ``maxBytesPerTrigger`` (a
    number, also with k, m or g), ``maxFilesPerTrigger`` or ``maxRowsPerTrigger``; ``startingOffsets`` (``earliest``,
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
        self.path = lower["path"]
        self.root = _root(self.path)
        self.schema = schema
        self.fails_on_loss = _one_of("failOnDataLoss", lower.get("failondataloss", "true"), ("true", "false")) == "true"
        starts = _one_of("startingOffsets", lower.get("startingoffsets", "earliest"), ("earliest", "latest"))
        self.from_now = starts == "latest"
        self.limit = _limit(lower)
        self.target: dict[str, int] | None = None

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
        """The end of what exists now, for the progress of the query."""
        return _offset(self._ends({}, ReadAllAvailable()))

    def prepareForTriggerAvailableNow(self) -> None:
        """Limit the query to the bytes that exist now."""
        self.target = {name: place.position for name, place in self._ends({}, ReadAllAvailable()).items()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The part of each file between the two offsets."""
        before = _places(start)
        stretches = []
        for name, place in _places(end).items():
            first = before.get(name)
            if first is None or first.began != place.began:
                first = _Place(0, place.began)
            if place.position > first.position or (place.done and not first.done):
                stretches.append(_Stretch(str(self.root / name), first, place))
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

    # ---- where a batch ends

    def _folders(self) -> list[list[Path]]:
        """The files of each folder, in the order in which they were written."""
        pattern = Path(self.path).relative_to(self.root)
        folders = sorted(self.root.glob(str(pattern))) if pattern.parts else [self.root]
        return [recording_files(folder) for folder in folders if folder.is_dir()]

    def _ends(self, start: Mapping[str, _Place], limit: ReadLimit) -> dict[str, _Place]:
        """How far each file can be read, at most `limit` after `start`."""
        folders = self._folders()  # before any size: a file with a successor does not grow after that
        ends: dict[str, _Place] = {}
        left = _amount(limit)
        for number, files in enumerate(folders):
            share = -(-left // (len(folders) - number))
            for path in files:
                name = path.relative_to(self.root).as_posix()
                try:
                    place = self._resumed(path, start.get(name))
                    after, used = place, 0
                    if share and not place.done:
                        after, used = self._end(path, name, place, path != files[-1], limit, share)
                except FileNotFoundError:
                    continue
                if after.position:
                    ends[name] = after
                share, left = share - used, left - used
        for name, place in start.items():
            if name not in ends and not place.done and self.fails_on_loss:
                raise DataLossError(_lost(self.root / name, "is gone"))
        return ends

    def _resumed(self, path: Path, place: _Place | None) -> _Place:
        """Where to go on reading a file.

        :raises DataLossError: it is not the file of `place` any more, and failOnDataLoss is true
        """
        header = read_header(path)
        began = header.began_ns if header is not None else 0
        if place is None:
            return _Place(0, began)
        if place.began != began:
            if self.fails_on_loss and not place.done:
                raise DataLossError(_lost(path, "was replaced by another file"))
            return _Place(0, began)
        size = path.stat().st_size
        if size >= place.position:
            return place
        if not place.done and _ends_whole(path):
            return _Place(size, began)  # its writer has cut off a record that never became whole
        if self.fails_on_loss:
            raise DataLossError(_lost(path, "has become shorter"))
        return place

    def _end(
        self, path: Path, name: str, place: _Place, is_finished: bool, limit: ReadLimit, share: int
    ) -> tuple[_Place, int]:
        """How far one file can be read after `place`, and how much of the limit that takes."""
        size = path.stat().st_size
        if size < FILE_HEADER_SIZE and not is_finished:
            return place, 0
        stop = size if self.target is None else min(size, self.target.get(name, 0))
        if stop < place.position:
            return place, 0
        position = stop
        used = 1 if stop > place.position else 0
        if isinstance(limit, ReadMaxBytes):
            position = min(stop, place.position + share)
            used = position - place.position
        elif isinstance(limit, ReadMaxRows):
            position, used = _counted(_Stretch(str(path), place, _Place(stop, place.began)), share)
        return _Place(position, place.began, is_finished and position == size), used


def _amount(limit: ReadLimit) -> int:
    """What a limit allows, in its own unit: files, if there is none."""
    if isinstance(limit, ReadMaxBytes):
        return limit.max_bytes
    if isinstance(limit, ReadMaxRows):
        return limit.max_rows
    return limit.max_files if isinstance(limit, ReadMaxFiles) else sys.maxsize


def _counted(stretch: _Stretch, most: int) -> tuple[int, int]:
    """The end of so many rows, behind a whole record, and how many there are."""
    cursor = _cursor_at(stretch)
    first = cursor.seq
    for found in read_recording(stretch.path, start=cursor.position):
        if not stretch.end.includes(found):
            break
        cursor.pass_(found)
        if cursor.seq - first >= most and isinstance(found, Recorded):
            _keep(stretch, cursor, found.end)
            return found.end, most
    _keep(stretch, cursor, stretch.end.position)
    return stretch.end.position, min(cursor.seq - first, most)


def _ends_whole(path: Path) -> bool:
    """Whether a file ends with a whole record."""
    return not any(isinstance(found, Damage) and found.at_end for found in read_recording(path))


# ---- rows


class _Cursor:
    """The state of reading a file up to a position, which the rows after it depend on.

    :ivar position: the end of the last record
    :ivar reached: the position of the offset up to which all was read, at or behind that
    :ivar seq: number of the rows so far
    :ivar time_ns: time of the last record
    """

    def __init__(self, header: RecordingHeader | None) -> None:
        self.position = self.reached = self.seq = 0
        self.time_ns = 0 if header is None else header.began_ns
        self._names: dict[int, str] = {}  # of the open connections
        self._header = header

    def pass_(self, found: Recorded | Damage) -> str | None:
        """Take in what comes next; return the name of its connection, None for a repeated opening, which has no row."""
        self.position = _end_of(found)
        name = ""
        if isinstance(found, Recorded):
            self.time_ns = found.time_ns
            if found.direction == "opened":
                self._names[found.connection] = found.body.decode(errors="replace")
                if is_repeated(found, self._header):
                    return None
            name = self._names.get(found.connection) or f"?:0-?:0#{found.connection}"
            if found.direction in ("closed", "reset"):
                self._names.pop(found.connection, None)
        self.seq += 1
        return name

    def row(self, found: Recorded | Damage, source: str) -> Frame | None:
        """The row of what comes next; None for a repeated opening."""
        seq = self.seq
        name = self.pass_(found)
        if name is None:
            return None
        if isinstance(found, Damage):
            at = self.time_ns
            return Frame(source, seq, found.position, at, "", "damage", b"", found.why, found.size, None, at)
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
"""The cursor of each file in this process, so that the next part of it is not read from the file's beginning."""


def _cursor_at(stretch: _Stretch) -> _Cursor:
    """A cursor behind all that an earlier batch has."""
    start = stretch.start
    cursor = _cursors.pop((stretch.path, start.began), None)
    if cursor is None or cursor.reached > start.position:
        cursor = _Cursor(read_header(stretch.path))
    if cursor.reached < start.position:
        for found in read_recording(stretch.path, start=cursor.position):
            if not start.includes(found):
                break
            cursor.pass_(found)
    return cursor


def _keep(stretch: _Stretch, cursor: _Cursor, reached: int) -> None:
    cursor.reached = reached
    if len(_cursors) >= _KEPT_CURSORS:
        _cursors.pop(next(iter(_cursors)))
    _cursors[stretch.path, stretch.start.began] = cursor


def _rows(stretch: _Stretch) -> Iterator[Frame]:
    cursor = _cursor_at(stretch)
    for found in read_recording(stretch.path, start=cursor.position):
        if not stretch.end.includes(found):
            break
        row = cursor.row(found, stretch.path)
        if row is not None:
            yield row
    if not stretch.end.done:
        _keep(stretch, cursor, stretch.end.position)


# ---- offsets and options


def _root(path: str) -> Path:
    """The folder to which the names of files in an offset are relative: the part of a pattern without a wildcard."""
    whole = Path(path)
    if whole.is_dir():
        return whole
    fixed = takewhile(lambda part: not _WILDCARD.search(part), whole.parts)
    return Path(*fixed)


def _offset(places: Mapping[str, _Place]) -> dict[str, Any]:
    return {"version": _VERSION, "files": {name: place._asdict() for name, place in sorted(places.items())}}


def _places(offset: Mapping[str, Any]) -> dict[str, _Place]:
    """The places of an offset; those of version 1, which has no number of its own, are the ends of records.

    :raises ValueError: a later version wrote it
    """
    version = offset.get("version", 1)
    if version not in (1, _VERSION):
        raise ValueError(
            f"the checkpoint has offsets of version {version}, and this kcoord_wire reads versions 1 and {_VERSION}: "
            "a later one wrote it"
        )
    fields = _Place._fields
    return {
        name: _Place(**{field: place[field] for field in fields if field in place})
        for name, place in offset["files"].items()
    }


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
