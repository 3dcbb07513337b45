"""The log of a coordinator: the segments of ``__consumer_offsets`` or ``__transaction_state``, synced before anything
is acknowledged, and repaired after a crash.

A file is named after the offset of its first record and holds record batches (magic 2), as a Kafka broker writes them
and its dump tool reads them. Each batch begins at the offset where the one before it ended, over all files.

Laws:

* One write is one batch and one fsync, and the next begins when that has succeeded. So in a whole log all batches but
  the last are durable, and may have been acknowledged.
* A crash can leave a damaged last batch, which is cut off. Damage that anything follows is not from a crash: it raises
  `CorruptLogError`, and no file is touched.
* After a failed write or fsync nothing is written until `Store.recover` has cut the file back to what was durable.
  fsync is never retried: after a failed one the kernel may mark dirty pages clean.
* Compaction replaces the closed segments by one with the last record of every key, at its offset. Tombstones are
  dropped too, as nothing older is left for them to hide; so are markers and what was aborted. What was committed in a
  transaction becomes like any other record, what is pending stays in batches of its producer. The batches also cover
  the offsets of dropped records. A crash at any step leaves the old log, or one that `Store.recover` makes into the new
  one.
* A record of a transaction counts once its marker says so, at the record's own offset: what another record of the key
  has at a later offset wins over it, whichever was committed first. A tombstone outside any transaction removes what is
  pending for its key, too.

Source: kafka/storage `UnifiedLog.java`, `LogCleaner.java`, `LogLoader.java` (``.cleaned`` and ``.swap`` files); KIP-98
and `OffsetMetadataManager.java` (replayEndTransactionMarker).
Rebello et al., "Can Applications Recover from fsync Failures?", USENIX ATC 2020.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from errno import EIO
from itertools import chain
from threading import Lock
from typing import Generic, NamedTuple, TypeVar

from kcoord_wire.coordinator.core.events import AppendMarker, LogRecord, PendingRecord, Producer
from kcoord_wire.coordinator.log.segments import (
    MAX_OFFSET_DELTA,
    OFFSETS,
    CorruptLogError,
    RecordFormat,
    base_offset,
    encode_log_batch,
    read_batches,
    read_closed,
)
from kcoord_wire.errors import DecodeError
from kcoord_wire.kernel.disk import Disk, DiskFile
from kcoord_wire.records import (
    ControlType,
    Record,
    RecordBatch,
    decode_control_record,
    end_transaction_record,
    group_of_key,
)
from kcoord_wire.records.model import MAX_INT64

T = TypeVar("T")


class Kept(NamedTuple, Generic[T]):
    """A record.

    :ivar offset: its offset
    :ivar what: what is kept of it
    """

    offset: int
    what: T


class Visibility(Generic[T]):
    """Takes in batches in their order.

    :param keep: returns what is kept of a record; None for a tombstone
    :param wanted: whether records of a key count at all
    :ivar latest: by key, in the order in which they began to count
    :ivar pending: by producer id and key; None for a tombstone
    :ivar producers: those of `pending`, by id
    """

    def __init__(
        self, keep: Callable[[RecordBatch, Record], T | None], wanted: Callable[[bytes], bool] | None = None
    ) -> None:
        self.latest: dict[bytes, Kept[T]] = {}
        self.pending: dict[int, dict[bytes, Kept[T | None]]] = {}
        self.producers: dict[int, Producer] = {}
        self._keep = keep
        self._wanted = wanted

    def take(self, batch: RecordBatch) -> None:
        """Take in the next batch. Errors as `decode_control_record`."""
        if batch.is_control:
            self._end(batch)
            return
        for record in batch.records:
            key = record.key or b""
            if self._wanted is not None and not self._wanted(key):
                continue
            kept = Kept(record.offset, self._keep(batch, record))
            if batch.is_transactional:
                self.producers[batch.producer_id] = Producer(batch.producer_id, batch.producer_epoch)
                self.pending.setdefault(batch.producer_id, {})[key] = kept
                continue
            if kept.what is None:
                for pending in self.pending.values():
                    pending.pop(key, None)
            self._put(key, kept)

    def _end(self, batch: RecordBatch) -> None:
        ended = self.pending.pop(batch.producer_id, {})
        self.producers.pop(batch.producer_id, None)
        if decode_control_record(batch.records[0]).type == ControlType.COMMIT:
            for key, kept in ended.items():
                before = self.latest.get(key)
                if before is None or before.offset < kept.offset:
                    self._put(key, kept)

    def _put(self, key: bytes, kept: Kept[T | None]) -> None:
        self.latest.pop(key, None)
        if kept.what is not None:
            self.latest[key] = Kept(kept.offset, kept.what)

    def open_records(self) -> list[tuple[Producer, bytes, Kept[T]]]:
        """Return the pending records with a value in their order: each with what counts already, if that is later."""
        found: list[tuple[Producer, bytes, Kept[T]]] = []
        for producer_id, records in self.pending.items():
            for key, kept in records.items():
                if kept.what is not None:
                    before = self.latest.get(key)
                    later = before if before is not None and before.offset > kept.offset else None
                    what = kept.what if later is None else later.what
                    found.append((self.producers[producer_id], key, Kept(kept.offset, what)))
        return sorted(found, key=lambda each: each[2].offset)


def kept_records(visible: Visibility[bool], batch: RecordBatch) -> Iterator[tuple[Record, Producer | None]]:
    """Yield the records of a batch that compaction keeps, with the producer of those whose transaction is open."""
    if batch.is_control:
        return
    pending = visible.pending.get(batch.producer_id, {}) if batch.is_transactional else {}
    for record in batch.records:
        key = record.key or b""
        if key in visible.latest and visible.latest[key].offset == record.offset:
            yield record, None
        elif key in pending and pending[key].offset == record.offset:
            yield record, visible.producers[batch.producer_id]


def _near(record: Record, first: Record) -> bool:
    """Return whether a batch can hold both: it stores the difference of their timestamps as an int64."""
    return abs(record.timestamp - first.timestamp) <= MAX_INT64


def batches_without_gap(
    records: Iterable[tuple[Record, Producer | None]], end: int, batch_bytes: int
) -> Iterator[bytes]:
    """Yield batches of `records` that cover all offsets from 0 up to `end`, including those without a record.

    :param records: each with the producer whose transaction is open; None for those that count
    """
    base = size = 0
    batch: list[Record] = []
    of: Producer | None = None  # the batch's producer
    for record, producer in chain(records, [(None, None)]):
        until = end if record is None else record.offset
        full = record is None or size >= batch_bytes or (batch != [] and not _near(record, batch[0]))
        full = full or (producer != of and batch != [])
        while base < until and (full or until - base > MAX_OFFSET_DELTA):
            last = min(until - 1, base + MAX_OFFSET_DELTA)
            yield encode_log_batch(batch, of if batch else None, base_offset=base, last_offset=last)
            base, size, batch, full = last + 1, 0, [], record is None
        if record is not None:
            of = producer
            batch.append(record)
            size += len(record.key or b"") + len(record.value or b"")


class Replay:
    """Reads files in order, and keeps the records that count.

    :ivar end: offset after the last batch
    :ivar size: bytes of the last file up to the end of that batch
    """

    def __init__(self, disk: Disk, record_format: RecordFormat) -> None:
        self.end = self.size = 0
        self._disk = disk
        self._format = record_format
        self._visible: Visibility[tuple[bytes, tuple[str, int]]] = Visibility(self._keep)
        self._name = ""
        self._kinds: set[bytes] = set()  # record types with the versions of their values

    @property
    def live(self) -> int:
        """Bytes of the records that count."""
        return sum(len(key) + len(kept.what[0]) for key, kept in self._visible.latest.items())

    def read(self, name: str, base: int, *, last: bool) -> None:
        """Read the next file. Errors as `read_batches`, and for a record that the log does not have."""
        if base != self.end:
            raise CorruptLogError(name, 0, f"begins at offset {base} where {self.end} is due")
        self.size = 0
        self._name = name
        for batch in read_batches(self._disk, name, self.end, last=last):
            try:
                self._visible.take(batch)
            except DecodeError as error:
                raise CorruptLogError(name, batch.position, str(error)) from error
            self.end = batch.last_offset + 1
            self.size = batch.position + batch.size

    def _keep(self, batch: RecordBatch, record: Record) -> tuple[bytes, tuple[str, int]] | None:
        key, value, at = record.key or b"", record.value, (self._name, batch.position)
        kind = key[:2] + (value or b"")[:2]
        if (
            kind not in self._kinds
        ):  # one value per (type, version) is decoded: superseded ones need no more, which halves the time
            self._decoded(record.key, value, at)
            self._kinds.add(kind)
        return None if value is None else (value, at)

    def records(self) -> tuple[list[LogRecord], list[PendingRecord], int]:
        """Return the last record of each key with a value, those of transactions that are open, and the number of those
        of unknown types."""
        decoded = [self._decoded(key, *kept.what) for key, kept in self._visible.latest.items()]
        known = [record for record in decoded if record is not None]
        pending = [(producer, self._decoded(key, *kept.what)) for producer, key, kept in self._visible.open_records()]
        return known, known_records(pending), len(decoded) - len(known)

    def _decoded(self, key: bytes | None, value: bytes | None, at: tuple[str, int]) -> LogRecord | None:
        try:
            return self._format.decode(key, value)
        except DecodeError as error:
            raise CorruptLogError(*at, str(error)) from error


def known_records(found: Iterable[tuple[Producer, LogRecord | None]]) -> list[PendingRecord]:
    """Return the records of open transactions, without those of unknown types."""
    return [PendingRecord(producer, record) for producer, record in found if record is not None]


_SEGMENT = re.compile(r"(\d{20})\.log")
_FIRST = f"{0:020}.log"
_CLEANED = f"{0:020}.cleaned"  # compaction at work
_SWAP = f"{0:020}.swap"  # compaction done, its result on the way to its name


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


class Waiting(NamedTuple):
    """A batch that is to be written.

    :ivar records: its records
    :ivar producer: of the transaction that they belong to; None if they belong to none
    :ivar is_marker: whether it ends that transaction
    """

    records: list[Record]
    producer: Producer | None = None
    is_marker: bool = False

    def encode(self) -> bytes:
        """Return its bytes."""
        return encode_log_batch(self.records, self.producer, control=self.is_marker)


class Sync:
    """Appends that are being written.

    :ivar batches: the batches
    :ivar last: number of the last append
    :ivar appends: how many they are
    :ivar seconds: how long the write has taken
    """

    __slots__ = ("_store", "appends", "batches", "last", "seconds")

    def __init__(self, store: Store, batches: list[Waiting], last: int, appends: int) -> None:
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
        self._file: DiskFile | None = None  # the active segment
        self._closed: list[str] = []
        self._name = ""
        self._size = 0  # durable bytes of the active segment
        self._base = 0  # offset it begins at
        self._end = 0  # offset after the last durable record
        self._next_offset = 0
        self._bytes = 0  # of all segments
        self._compact_at = 0  # bytes at which to compact next
        self._usable = False
        self._forget()

    def _forget(self) -> None:
        self._waiting: list[Waiting] = []
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
            self._waiting.append(Waiting([], producer))
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
        self._waiting.append(Waiting([record], marker.producer, is_marker=True))

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
                    if self._size and self._size + len(data) > self._segment_bytes:
                        file = self._roll()
                    file.append(data)
                    file.sync()
                    self._size += len(data)
                    self._bytes += len(data)
                    self._end = batch.records[-1].offset + 1
            except BaseException:
                self._usable = False
                with suppress(OSError):  # a process that dies now should not leave what was not acknowledged
                    file.truncate(self._size)
                raise

    def _active(self) -> DiskFile:
        if self._file is None or not self._usable:
            raise OSError(EIO, "the log takes no writes until it is recovered")
        return self._file

    def _roll(self) -> DiskFile:
        """Begin a new segment; everything written to the old one is durable."""
        old = self._active()
        name = f"{self._end:020}.log"
        file = self._disk.open(name, new=True)
        try:
            self._disk.sync_names()
        except OSError:
            file.close()
            raise
        old.close()
        self._closed.append(self._name)
        self._file, self._name, self._base, self._size = file, name, self._end, 0
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
                self._file.truncate(self._size)
                self._file.close()
                self._file = None
            return self._recover()

    def _recover(self) -> list[LogRecord]:
        sizes = self._disk.sizes()
        logs = sorted(name for name in sizes if _SEGMENT.fullmatch(name))
        obsolete: list[str] = []
        replay = Replay(self._disk, self._format)
        if _SWAP in sizes:
            replay.read(_SWAP, 0, last=False)
            obsolete = [name for name in logs if base_offset(name) < replay.end]
            logs = logs[len(obsolete) :]
            if not logs:
                raise CorruptLogError(_SWAP, sizes[_SWAP], f"no segment follows, where one begins at {replay.end}")
        for name in logs:
            replay.read(name, base_offset(name), last=name == logs[-1])
        found, self.pending, ignored = replay.records()

        # The whole log is understood; files are changed only from here on.
        if _CLEANED in sizes:
            self._disk.remove(_CLEANED)
        if _SWAP in sizes:
            self._replace(obsolete)
            logs.insert(0, _FIRST)
        name = logs[-1] if logs else _FIRST
        truncated = sizes.get(name, 0) - replay.size
        file = self._disk.open(name)
        try:
            if truncated:
                file.truncate(replay.size)
            file.sync()  # an earlier process may have written this without syncing it
            self._disk.sync_names()
            sizes = self._disk.sizes()
        except OSError:
            file.close()
            raise
        self._closed = logs[:-1]
        self._file, self._name, self._base, self._size = file, name, base_offset(name), replay.size
        self._end = self._next_offset = replay.end
        self._bytes = sum(sizes[name] for name in (*self._closed, name))
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
        with self._compacting:
            with self._writing:
                self._active()
                names, end = [*self._closed, self._name], self._end
            for name in names:
                for batch in read_batches(self._disk, name, base_offset(name), last=name == names[-1]):
                    if batch.base_offset >= end:
                        return
                    yield batch

    def read(self, wanted: Callable[[str], bool]) -> tuple[list[LogRecord], list[PendingRecord]]:
        """Return the last durable record of every key whose group or transactional id is wanted, in the order in which
        they were written, without tombstones; and those of open transactions. Threads and errors as `batches`."""
        visible = Visibility(lambda batch, record: record.value, lambda key: wanted(group_of_key(key)))
        for batch in self.batches():
            visible.take(batch)
        decode = self._format.decode
        decoded = [decode(key, kept.what) for key, kept in visible.latest.items()]
        pending = [(producer, decode(key, kept.what)) for producer, key, kept in visible.open_records()]
        return [record for record in decoded if record is not None], known_records(pending)

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
                self._compact_at = self._bytes + max(
                    self._min_compaction_bytes, self._bytes
                )  # do not try again at once
                if self._size:
                    with self._unusable_on_error():
                        self._roll()
                closed, end = list(self._closed), self._base
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
                self._closed = [_FIRST, *self._closed[len(closed) :]]
                self._bytes += size - sum(sizes[name] for name in closed)
                self._compact_at = self._bytes + max(self._min_compaction_bytes, size)

    def _write_cleaned(self, closed: list[str], end: int) -> int:
        """Write what is kept of the `closed` segments to a file, sync it, and return its size."""
        visible: Visibility[bool] = Visibility(lambda batch, record: record.value is not None or None)
        for batch in read_closed(self._disk, closed, end):
            visible.take(batch)
        kept = (found for batch in read_closed(self._disk, closed, end) for found in kept_records(visible, batch))
        size = 0
        file = self._disk.open(_CLEANED, new=True)
        try:
            for data in batches_without_gap(kept, end, self._batch_bytes):
                file.append(data)
                size += len(data)
            file.sync()
        finally:
            file.close()
        return size

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
