"""The log of a coordinator: the segments of ``__consumer_offsets`` or ``__transaction_state``, synced before anything
is acknowledged, and repaired after a crash.

A segment holds record batches (magic 2), as a Kafka broker writes them and its dump tool reads them.

Laws:

* One write is one batch and one fsync, and the next begins when that has succeeded. So in a whole log all batches but
  the last are durable, and may have been acknowledged.
* A crash can leave a damaged last batch, which is cut off. Damage that anything follows is not from a crash: it raises
  `CorruptLogError`, and no file is touched.
* After a failed write or fsync nothing is written until `Store.recover` has cut the file back to what was durable.
  fsync is never retried: after a failed one the kernel may mark dirty pages clean.
* Compaction replaces the closed segments by one. A crash at any step leaves the old log, or one that `Store.recover`
  makes into the new one.

Source: kafka/storage `UnifiedLog.java`, `LogCleaner.java`, `LogLoader.java` (``.cleaned`` and ``.swap`` files).
Rebello et al., "Can Applications Recover from fsync Failures?", USENIX ATC 2020.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from errno import EIO
from threading import Lock
from typing import NamedTuple

from kcoord_wire.coordinator.core.events import AppendMarker, LogRecord, PendingRecord, Producer
from kcoord_wire.coordinator.log.batches import (
    OFFSETS,
    LogBatch,
    RecordFormat,
    Visibility,
    batches_without_gap,
    kept_records,
)
from kcoord_wire.errors import DecodeError
from kcoord_wire.kernel.disk import Disk, DiskFile
from kcoord_wire.log.segments import read_segments
from kcoord_wire.log.tail import CorruptLogError, Tail, base_offset, segment_name, segment_names, write_file
from kcoord_wire.records import ControlType, Record, RecordBatch, end_transaction_record, group_of_key

_FIRST = segment_name(0)
_CLEANED = f"{0:020}.cleaned"  # compaction at work
_SWAP = f"{0:020}.swap"  # compaction done, its result on the way to its name


class Replay:
    """Reads segments in order, and keeps the records that count.

    :param wanted: whether records of a key count at all
    :ivar end: offset after the last batch
    :ivar size: bytes of its file up to the end of that batch
    """

    def __init__(self, record_format: RecordFormat, wanted: Callable[[bytes], bool] | None = None) -> None:
        self.end = self.size = 0
        self._at = "", 0
        self._format = record_format
        self._visible: Visibility[tuple[bytes, tuple[str, int]]] = Visibility(self._keep, wanted)
        self._kinds: set[bytes] = set()  # record types with the versions of their values

    @property
    def live(self) -> int:
        """Bytes of the records that count."""
        return sum(len(key) + len(kept.what[0]) for key, kept in self._visible.latest.items())

    def read(self, found: Iterable[tuple[str, RecordBatch]]) -> None:
        """Read further batches. Errors as theirs, and CorruptLogError for a record that the log does not have."""
        for name, batch in found:
            self._at = name, batch.position
            try:
                self._visible.add(batch)
            except DecodeError as error:
                raise CorruptLogError(*self._at, str(error)) from error
            self.end, self.size = batch.last_offset + 1, batch.position + batch.size

    def _keep(self, batch: RecordBatch, record: Record) -> tuple[bytes, tuple[str, int]] | None:
        key, value, at = record.key or b"", record.value, self._at
        kind = key[:2] + (value or b"")[:2]
        if kind not in self._kinds:  # one value of each is decoded: superseded ones need no more, which halves the time
            self._decoded(record.key, value, at)
            self._kinds.add(kind)
        return None if value is None else (value, at)

    def records(self) -> tuple[list[LogRecord], list[PendingRecord], int]:
        """Return the last record of each key with a value, those of transactions that are open, and the number of those
        of unknown types."""
        decoded = [self._decoded(key, *kept.what) for key, kept in self._visible.latest.items()]
        known = [record for record in decoded if record is not None]
        pending = [(producer, self._decoded(key, *kept.what)) for producer, key, kept in self._visible.open_records()]
        open_known = [PendingRecord(producer, record) for producer, record in pending if record is not None]
        return known, open_known, len(decoded) - len(known)

    def _decoded(self, key: bytes | None, value: bytes | None, at: tuple[str, int]) -> LogRecord | None:
        try:
            return self._format.decode(key, value)
        except DecodeError as error:
            raise CorruptLogError(*at, str(error)) from error


class Recovered(NamedTuple):
    """What `Store.recover` has found.

    :ivar records: number of keys with a value
    :ivar ignored: number of keys of unknown types with a value
    :ivar bytes: size of the log
    :ivar truncated: bytes of the damaged batch that was cut off
    """

    records: int = 0
    ignored: int = 0
    bytes: int = 0
    truncated: int = 0


class Sync:
    """Appends that are being written.

    :ivar batches: the batches
    :ivar last: number of the last append
    :ivar appends: how many they are
    :ivar seconds: how long the write has taken
    """

    __slots__ = ("_store", "appends", "batches", "last", "seconds")

    def __init__(self, store: Store, batches: list[LogBatch], last: int, appends: int) -> None:
        self._store = store
        self.batches = batches
        self.last = last
        self.appends = appends
        self.seconds = 0.0

    def run(self) -> None:
        """Write and fsync. May run in any thread, while `Store.append` is called.

        :raises OSError: nothing more can be written before `Store.recover`
        """
        began = time.monotonic()
        self._store._write(self)
        self.seconds = time.monotonic() - began


class Store:
    """The log in a folder. All calls come from one thread, except `Sync.run` and `compact`, which may have their own.

    :param record_format: of its records
    :param segment_bytes: a file that would grow beyond this is followed by another
    :param batch_bytes: appends of the same write share a batch up to this size; one append is never divided
    :param min_compaction_bytes: bytes to be written between two compactions, and at least as many as the log had after
        the first
    :ivar recovered: what the last `recover` has found
    :ivar pending: the records of transactions that were open then, in their order
    """

    def __init__(
        self,
        disk: Disk,
        record_format: RecordFormat = OFFSETS,
        /,
        *,
        segment_bytes: int = 100 * 1024 * 1024,
        batch_bytes: int = 1024 * 1024,
        min_compaction_bytes: int = 16 * 1024 * 1024,
    ) -> None:
        self.recovered = Recovered()
        self.pending: list[PendingRecord] = []
        self._disk = disk
        self._format = record_format
        self._segment_bytes = segment_bytes
        self._batch_bytes = batch_bytes
        self._min_compaction_bytes = min_compaction_bytes
        self._writing = Lock()  # held while files, sizes and ends change
        self._compacting = Lock()
        self._names: list[str] = []  # of all segments; the last is the active one
        self._file: DiskFile | None = None  # that one
        self._tail = Tail()  # what of it is durable
        self._end = 0  # offset after the last durable record
        self._next_offset = 0
        self._bytes = 0  # of all segments
        self._compact_at = 0  # bytes at which to compact next
        self._usable = False
        self._forget()

    def _forget(self) -> None:
        self._waiting: list[LogBatch] = []
        self._waiting_bytes = 0
        self._appended = self._taken = 0
        self._under_way: Sync | None = None

    @property
    def size(self) -> int:
        """Bytes of the log on disk. May be read in any thread."""
        return self._bytes

    # ---- writing

    def append(self, records: Sequence[LogRecord], now: int, producer: Producer | None = None) -> None:
        """Accept records for the next write, all or none. Appends are numbered 1, 2, 3 ... since `recover`.

        :param now: their timestamp, ms
        :param producer: of the transaction that they belong to; None if they belong to none
        :raises EncodeError: none was accepted
        """
        encoded = [self._format.encode(key, value) for key, value in records]
        self._appended += 1
        if not encoded:
            return
        size = sum(len(key) + len(value or b"") for key, value in encoded)
        last = self._waiting[-1] if self._waiting else None
        if last is None or last[1:] != (producer, False) or self._waiting_bytes + size > self._batch_bytes:
            self._waiting.append(LogBatch([], producer))
            self._waiting_bytes = 0
        self._waiting_bytes += size
        batch, offset = self._waiting[-1].records, self._next_offset
        for key, value in encoded:
            batch.append(Record(key, value, now, offset))
            offset += 1
        self._next_offset = offset

    def append_marker(self, marker: AppendMarker, now: int) -> None:
        """Accept the end of a transaction for the next write; it is numbered like the appends."""
        self._appended += 1
        control = ControlType.COMMIT if marker.committed else ControlType.ABORT
        offset, self._next_offset = self._next_offset, self._next_offset + 1
        record = end_transaction_record(control, marker.coordinator_epoch, timestamp=now, offset=offset)
        self._waiting.append(LogBatch([record], marker.producer, is_marker=True))

    def begin_sync(self) -> Sync | None:
        """Return what was appended since the last sync; None if nothing was, or the last sync has not ended."""
        if self._under_way is not None or self._taken == self._appended:
            return None
        self._under_way = Sync(self, self._waiting, self._appended, self._appended - self._taken)
        self._taken = self._appended
        self._waiting = []
        return self._under_way

    def end_sync(self, sync: Sync) -> None:
        """Note that `sync` has succeeded."""
        assert sync is self._under_way, "one sync at a time"
        self._under_way = None

    def _write(self, sync: Sync) -> None:
        with self._writing:
            file = self._active()
            if sync is not self._under_way:
                raise OSError(EIO, "the log was recovered without this sync")
            try:
                for batch in sync.batches:
                    data = batch.encode()
                    if self._tail.size and self._tail.size + len(data) > self._segment_bytes:
                        file = self._roll()
                    self._tail.write(file, data, sync=True)
                    self._bytes += len(data)
                    self._end = batch.records[-1].offset + 1
            except BaseException:
                self._usable = False
                raise

    def _active(self) -> DiskFile:
        if self._file is None or not self._usable:
            raise OSError(EIO, "the log takes no writes until it is recovered")
        return self._file

    def _roll(self) -> DiskFile:
        """Begin a new segment; everything written to the old one is durable."""
        old, name = self._active(), segment_name(self._end)
        file = self._disk.open(name, new=True)
        try:
            self._disk.sync_names()
        except OSError:
            file.close()
            raise
        old.close()
        self._names.append(name)
        self._file, self._tail = file, Tail()
        return file

    # ---- reading

    def recover(self) -> list[LogRecord]:
        """Read the log, repair what a crash or a failed write has left, and make the store ready for appends.

        What was appended and not synced is lost. Needs as much memory as the keys that have a value.

        :returns: the last record of every key, in the order in which they were written, without tombstones
        :raises CorruptLogError: no file was touched
        :raises OSError: may be called again
        """
        with self._compacting, self._writing:
            self._usable = False
            self._forget()
            if self._file is not None:
                self._file.truncate(self._tail.size)
                self._file.close()
                self._file = None
            return self._recover()

    def _recover(self) -> list[LogRecord]:
        sizes = self._disk.sizes()
        names = segment_names(sizes)
        obsolete: list[str] = []
        replay = Replay(self._format)
        if _SWAP in sizes:
            replay.read(read_segments(self._disk, [_SWAP], 0, last=False))
            obsolete = [name for name in names if base_offset(name) < replay.end]
            names = names[len(obsolete) :]
            if not names:
                raise CorruptLogError(_SWAP, sizes[_SWAP], f"no segment follows, where one begins at {replay.end}")
        replay.read(read_segments(self._disk, names, replay.end))
        found, self.pending, ignored = replay.records()

        # The whole log is understood; files are changed only from here on.
        if _CLEANED in sizes:
            self._disk.remove(_CLEANED)
        if _SWAP in sizes:
            self._replace(obsolete)
            names.insert(0, _FIRST)
        name = names[-1] if names else _FIRST
        size = 0 if replay.end == base_offset(name) else replay.size
        truncated = sizes.get(name, 0) - size
        file = self._disk.open(name)
        try:
            if truncated:
                file.truncate(size)
            file.sync()  # an earlier process may have written this without syncing it
            self._disk.sync_names()
            sizes = self._disk.sizes()
        except OSError:
            file.close()
            raise
        self._names = names or [name]
        self._file, self._tail = file, Tail(size)
        self._end = self._next_offset = replay.end
        self._bytes = sum(sizes[name] for name in self._names)
        self._compact_at = replay.live + max(self._min_compaction_bytes, replay.live)
        self.recovered = Recovered(len(found), ignored, self._bytes, truncated)
        self._usable = True
        return found

    def batches(self) -> Iterator[RecordBatch]:
        """Yield the batches that are durable now, in their order. May run in any thread, during appends and syncs;
        compaction waits until it has ended.

        :raises CorruptLogError: the log cannot be read back
        :raises OSError: the disk fails, or the log has to be recovered first
        """
        return (batch for _, batch in self._durable())

    def _durable(self) -> Iterator[tuple[str, RecordBatch]]:
        with self._compacting:
            with self._writing:
                self._active()
                names, end = list(self._names), self._end
            for name, batch in read_segments(self._disk, names, 0):
                if batch.base_offset >= end:
                    return
                yield name, batch

    def read(self, wanted: Callable[[str], bool]) -> tuple[list[LogRecord], list[PendingRecord]]:
        """Return the last durable record of every key whose group or transactional id is wanted, in the order in which
        they were written, without tombstones; and those of open transactions. Threads and errors as `batches`."""
        replay = Replay(self._format, lambda key: wanted(group_of_key(key)))
        replay.read(self._durable())
        found, pending, _ = replay.records()
        return found, pending

    # ---- compaction

    def compaction_due(self) -> bool:
        """Return whether `compact` is worthwhile."""
        return self._bytes > self._compact_at

    def compact(self) -> None:
        """Make one segment, with the last record of every key, of everything written so far.

        May run in any thread, during appends and syncs. Needs as much memory as the keys in the log.

        :raises OSError: the disk fails; if that leaves the log between two states, the next sync fails too
        :raises CorruptLogError: the log cannot be read back; no file was touched
        """
        with self._compacting:
            with self._writing:
                self._active()
                # do not try again at once
                self._compact_at = self._bytes + max(self._min_compaction_bytes, self._bytes)
                if self._tail.size:
                    with self._unusable_on_error():
                        self._roll()
                closed, end = self._names[:-1], base_offset(self._names[-1])
            if not closed:
                return
            sizes = self._disk.sizes()
            try:
                size = self._write_cleaned(closed, end)
            except BaseException:
                with suppress(OSError):
                    self._disk.remove(_CLEANED)
                raise
            with self._writing, self._unusable_on_error():
                self._disk.rename(_CLEANED, _SWAP)
                self._disk.sync_names()
                self._replace(closed)
                self._names[: len(closed)] = [_FIRST]
                self._bytes += size - sum(sizes[name] for name in closed)
                self._compact_at = self._bytes + max(self._min_compaction_bytes, size)

    def _write_cleaned(self, closed: list[str], end: int) -> int:
        """Write what is kept of the `closed` segments to a file, sync it, and return its size."""
        visible: Visibility[bool] = Visibility(lambda batch, record: record.value is not None or None)
        for batch in self._read_closed(closed, end):
            visible.add(batch)
        kept = (found for batch in self._read_closed(closed, end) for found in kept_records(visible, batch))
        return write_file(self._disk, _CLEANED, batches_without_gap(kept, end, self._batch_bytes))

    def _read_closed(self, closed: list[str], end: int) -> Iterator[RecordBatch]:
        reached = 0
        for _, batch in read_segments(self._disk, closed, 0, last=False):
            yield batch
            reached = batch.last_offset + 1
        if reached != end:
            detail = f"ends at offset {reached} where the next segment has {end}"
            raise CorruptLogError(closed[-1], self._disk.sizes()[closed[-1]], detail)

    def _replace(self, obsolete: list[str]) -> None:
        """Replace segments by the swap file. They are removed first: a log must not begin with new records and go
        on with those that they replace."""
        for name in obsolete:
            self._disk.remove(name)
        self._disk.sync_names()
        self._disk.rename(_SWAP, _FIRST)

    @contextmanager
    def _unusable_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._usable = False
            raise

    def close(self) -> None:
        """Close all files, once other threads are done with them. What was not synced is lost."""
        with self._compacting, self._writing:
            self._usable = False
            if self._file is not None:
                self._file.close()
                self._file = None
            self._disk.close()
