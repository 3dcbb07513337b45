"""A coordination log in a folder, for members of one machine without a broker; and the log that a URL names.

Laws, beside those of `log.Log`:

* Several processes append and read: an append holds the partition's file lock, reading shares it. A process that was
  stopped while it holds one delays the others; an append fails after `_LOCK_SECONDS`, and has not landed.
* Times of entries are append times, by the machine's clock, and do not go back within a partition.
* An entry is on the disk (fsync) before its append has succeeded. A batch that a crash has torn was never returned to
  anybody, and the next append cuts it off; any other damage is a `LogError`.
* The files are those of a Kafka broker, ``__marshal-3/00000000000000000000.log``: record batches of one record with a
  null key, so that `forensics.sources`, and what stands on it, reads them.
* A segment is removed once it is full and its last entry older than `retention_ms`.

open_log("kafka://broker:9092/__marshal")       # several brokers with commas; the topic may be left out
open_log("file:/var/lib/marshal")

Source: `kcoord_wire.log`; kafka/storage `LogSegment.java`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from kcoord_wire.errors import EncodeError
from kcoord_wire.kernel.disk import FileLock, FolderDisk
from kcoord_wire.log.segments import LEADER_EPOCH, read_segments
from kcoord_wire.log.tail import CorruptLogError, Tail, base_offset, segment_name, segment_names
from kcoord_wire.marshal.kafka_log import TOPIC, KafkaLog
from kcoord_wire.marshal.log import Appended, AppendFailed, Log, LogError, RawEntry, grown, trimmed
from kcoord_wire.records import Record, RecordBatch, encode_batch

_TOPIC: Final = "__marshal"
_LOCK: Final = ".lock"
_LOOK_SECONDS: Final = 0.01  # between looks at the files: their readers get no events
_LOCK_SECONDS: Final = 5.0
_LOCK_LOOK_SECONDS: Final = 0.002
_MOST_PARTITIONS: Final = 1_000  # each has a folder
_MOST_RECORDS: Final = 10_000  # of a partition, in one `poll`

Done = Callable[[Appended | AppendFailed], None]


class FileLog(Log):
    """One member's view of the log in a folder.

    :param path: the folder
    :param partitions: of a new log; one that is there keeps its number
    :param segment_bytes: a segment is full from this size on
    :param retention_ms: how long entries are kept, at least; below 0 for ever
    :raises LogError: the folder cannot be made, read or written, or another process holds its lock
    """

    def __init__(
        self,
        path: Path | str,
        partitions: int = 8,
        *,
        segment_bytes: int = 1 << 20,
        retention_ms: int = 7 * 24 * 3_600_000,
    ) -> None:
        if not 0 < partitions <= _MOST_PARTITIONS:
            raise LogError(f"a log in a folder has 1 to {_MOST_PARTITIONS} partitions, not {partitions}")
        self._path = Path(path)
        self._positions: dict[int, _Cursor] = {}
        self._results: deque[tuple[Done, Appended | AppendFailed]] = deque()
        self._parts: list[_Partition] = []
        with _as_log_error():
            self._path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self._path / _LOCK)
            try:
                with _holding(lock, _LOCK_SECONDS):
                    self.partitions = self._count() or partitions
                    for number in range(self.partitions):
                        self._parts.append(_Partition(self._folder(number), segment_bytes, retention_ms))
            except _LockHeldError as error:
                raise LogError(str(error)) from None
            finally:
                lock.close()

    def read_from_start(self, partitions: Collection[int]) -> None:
        if wrong := [partition for partition in partitions if not 0 <= partition < self.partitions]:
            raise LogError(f"{self._path} has {self.partitions} partitions, and no {wrong[0]}")
        self._positions = {partition: _Cursor() for partition in partitions}

    def poll(self, seconds: float) -> Sequence[RawEntry]:
        end = time.monotonic() + seconds
        while True:
            has_results = bool(self._results)
            self._deliver_results()
            entries: list[RawEntry] = []
            for partition, cursor in self._positions.items():
                with _as_log_error():
                    records = self._part(partition).read(cursor, min(seconds, _LOCK_SECONDS))
                entries += [RawEntry(partition, each.offset, each.timestamp, True, each.value) for each in records]
            left = end - time.monotonic()
            if entries or has_results or left <= 0:
                return entries
            if self._count() != self.partitions:
                raise grown(_TOPIC, self.partitions, self._count())
            time.sleep(min(left, _LOOK_SECONDS))

    def append(self, request: int, partition: int, value: bytes, done: Done) -> None:
        result: Appended | AppendFailed
        try:
            result = Appended(request, self._part(partition).append(value))
        except (LogError, CorruptLogError, EncodeError, _LockHeldError) as error:
            result = AppendFailed(request, str(error), may_have_landed=False)
        except OSError as error:
            result = AppendFailed(request, str(error), may_have_landed=True)
        self._results.append((done, result))

    def position(self, partition: int) -> int:
        return self._positions[partition].offset

    def end(self, partition: int, seconds: float = 5.0) -> int:
        with _as_log_error():
            return self._part(partition).end(seconds)

    def close(self) -> None:
        self._deliver_results()
        self._positions.clear()
        for part in self._parts:
            part.close()
        self._parts.clear()

    def _deliver_results(self) -> None:
        while self._results:
            done, result = self._results.popleft()
            done(result)

    def _folder(self, partition: int) -> Path:
        return self._path / f"{_TOPIC}-{partition}"

    def _count(self) -> int:
        return len([*self._path.glob(f"{_TOPIC}-*")])

    def _part(self, partition: int) -> _Partition:
        if not 0 <= partition < len(self._parts):
            raise LogError(f"{self._path} has no partition {partition}")
        return self._parts[partition]


@dataclass(slots=True)
class _Cursor:
    """How far a partition was read.

    :ivar name: of the segment; empty before the first one was seen
    :ivar position: byte in it
    :ivar offset: of the next entry
    :ivar time_ms: of the last entry
    """

    name: str = ""
    position: int = 0
    offset: int = 0
    time_ms: int = 0


class _Partition:
    """The segments of one partition. Every method may raise OSError and CorruptLogError."""

    def __init__(self, folder: Path, segment_bytes: int, retention_ms: int) -> None:
        self._disk = FolderDisk(folder)
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._retention_ms = retention_ms
        self._tail = _Cursor()
        self._lock = FileLock(folder / _LOCK)

    def close(self) -> None:
        self._lock.close()

    def read(self, cursor: _Cursor, seconds: float) -> list[Record]:
        """Return records behind a cursor, and move it; none if the partition is locked for so long.

        :raises LogError: records behind it were removed
        """
        records: list[Record] = []
        if self._has_more(cursor):
            with suppress(_LockHeldError), _holding(self._lock, seconds, shared=True):
                for batch in self._advance(cursor):
                    records += batch.records
                    if len(records) >= _MOST_RECORDS:
                        break
        return records

    def end(self, seconds: float) -> int:
        """Return the offset behind the last record. TimeoutError: the partition is locked for so long."""
        with _holding(self._lock, seconds, shared=True):
            deque(self._advance(self._tail), maxlen=0)
            return self._tail.offset

    def append(self, value: bytes) -> int:
        """Append a record, and return its offset. TimeoutError: the partition stays locked."""
        with _holding(self._lock, _LOCK_SECONDS):
            tail = self._tail
            deque(self._advance(tail), maxlen=0)
            now_ms = time.time_ns() // 1_000_000
            if not tail.name or tail.position >= self._segment_bytes:
                self._begin_segment(now_ms)
            elif not tail.position:
                self._disk.sync_names()  # whoever has made the segment may have ended before that
            record = Record(value=value, timestamp=max(now_ms, tail.time_ms))
            data = encode_batch([record], base_offset=tail.offset, partition_leader_epoch=LEADER_EPOCH)
            is_torn = self._disk.sizes()[tail.name] > tail.position  # a crash has left something of a batch
            file = self._disk.open(tail.name)
            try:
                Tail(tail.position, is_dirty=is_torn).write(file, data, sync=True)
            finally:
                file.close()
            return tail.offset  # the next look at the file moves the tail, as for a batch of another process

    def _has_more(self, cursor: _Cursor) -> bool:
        """Return whether it pays to take the lock."""
        if not cursor.name:
            return any(self._segments())
        try:
            if (self._folder / cursor.name).stat().st_size != cursor.position:
                return True
        except FileNotFoundError:
            return True
        following = segment_name(cursor.offset)
        return following != cursor.name and (self._folder / following).exists()

    def _segments(self) -> list[str]:
        return segment_names(self._disk.sizes())

    def _advance(self, cursor: _Cursor) -> Iterator[RecordBatch]:
        """Yield the batches up to the end, and move the cursor with each; the lock is held."""
        names = self._segments()
        if not names:
            return
        if not cursor.name:
            cursor.name, cursor.offset = names[0], base_offset(names[0])
        elif cursor.name not in names:
            if base_offset(names[0]) > cursor.offset:
                raise trimmed(_TOPIC, int(self._folder.name.rpartition("-")[2]), cursor.offset, base_offset(names[0]))
            cursor.name, cursor.position = names[0], 0
        names = names[names.index(cursor.name) :]
        for name, batch in read_segments(self._disk, names, cursor.offset, position=cursor.position):
            cursor.name, cursor.position, cursor.offset = name, batch.position + batch.size, batch.last_offset + 1
            cursor.time_ms = batch.max_timestamp
            yield batch
        if cursor.name != names[-1]:  # which is empty
            cursor.name, cursor.position = names[-1], 0

    def _begin_segment(self, now_ms: int) -> None:
        """Let the tail be a new segment, and remove those that are too old. Its name keeps the offset at which the log
        goes on, so that it is durable before; each removal is before the next, so that no crash leaves a gap."""
        old, name = self._segments(), segment_name(self._tail.offset)
        self._disk.open(name, new=True).close()
        self._disk.sync_names()
        self._tail.name, self._tail.position = name, 0
        for each in old:
            is_old = (self._folder / each).stat().st_mtime_ns // 1_000_000 < now_ms - self._retention_ms
            if self._retention_ms < 0 or not is_old:
                break
            self._disk.remove(each)
            self._disk.sync_names()


class _LockHeldError(TimeoutError):
    """Another process has held a lock for too long; nothing was done. A disk may raise TimeoutError itself (ETIMEDOUT
    of a network's), after it has written."""


@contextmanager
def _holding(lock: FileLock, seconds: float, *, shared: bool = False) -> Iterator[None]:
    """Hold a file lock in a block. _LockHeldError: it was not to be had for so long."""
    end = time.monotonic() + seconds
    while not lock.take(shared=shared):
        if time.monotonic() >= end:
            raise _LockHeldError(f"another process has held the log's lock for {seconds:g} s")
        time.sleep(_LOCK_LOOK_SECONDS)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _as_log_error() -> Iterator[None]:
    try:
        yield
    except _LockHeldError:
        raise
    except (OSError, CorruptLogError) as error:
        raise LogError(str(error)) from None


_FORMS: Final = "kafka://HOST:PORT[,HOST:PORT]/TOPIC or file:/FOLDER"


def open_log(url: str, config: Mapping[str, str] | None = None) -> Log:
    """Open a coordination log.

    :param config: settings of librdkafka, for Kafka
    :raises MissingLibraryError: a library of the extra ``kafka`` or ``records`` is not installed
    :raises LogError: the URL has no such form, or the log cannot be used
    """
    scheme, separator, rest = url.partition(":")
    if scheme == "kafka" and rest.startswith("//"):
        brokers, _, topic = rest[2:].partition("/")
        if brokers and "/" not in topic:
            return KafkaLog(brokers, topic or TOPIC, config)
    elif scheme == "file" and separator:
        path = unquote(rest.removeprefix("//"))
        if path.startswith("/"):
            return FileLog(path)
    raise LogError(f"{url!r} names no log: {_FORMS} is needed")
