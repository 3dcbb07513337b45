"""One partition's records: batches as the producer wrote them, in segments on a disk, found by offset and by time.

Laws:

* The bytes of a batch are kept; only base offset and leader epoch are set, which the checksum does not cover.
* A batch is given to the disk as a whole before it is acknowledged, and so survives the end of the process. fsync is
  left to the operating system, as Kafka leaves it.
* Records are read only to find one by its time, in one batch, and for compaction, and at most `MOST_READ` of a batch:
  reading all, as Kafka does, would let a few compressed bytes stop the server for minutes.
* Offsets are assigned without a gap. Records are dropped from the start of the log, segment by segment, and by
  compaction anywhere before its last segment and the last stable offset; its end never moves back.
* What compaction makes of segments takes their place as a whole, or not at all: see `segments`.
* What is derived from the batches is a function of their headers and markers, in their order, which is computed in one
  place: when a batch is appended, and when the log is read after a restart.
* No batch begins a transaction unless the coordinator has said that the partition is in it (KIP-890).
* When the disk fails, the request is answered KAFKA_STORAGE_ERROR (56), the log is as it was, and the next request
  tries again.
* The leader epochs are a function of the epochs of the batches in the log, and of the present epoch; an epoch without a
  batch leaves no entry behind, as in Kafka's cache (KIP-101, KIP-320).

Source: kafka/storage `UnifiedLog.java`, `LogLoader.java`, `LeaderEpochFileCache.java` (assign, endOffsetFor,
truncateFromStart).
"""

from __future__ import annotations

import logging
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple

from kcoord_wire.coordinator.core.apis import Refused
from kcoord_wire.coordinator.partitions.batch_header import Header, read_header
from kcoord_wire.coordinator.partitions.compaction import Cleaning, Round
from kcoord_wire.coordinator.partitions.journal import Compacted, Journal
from kcoord_wire.coordinator.partitions.producers import (
    MOST_OPEN,
    AbortedTransaction,
    Producers,
    ProducerState,
)
from kcoord_wire.coordinator.partitions.segments import (
    INDEX_SIZE,
    Found,
    OpenFiles,
    Segment,
    cleaned_name,
    control_record,
    decoded,
    find_files,
)
from kcoord_wire.kernel.disk import Disk
from kcoord_wire.log.tail import base_offset
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.records import ControlRecord, ControlType, encode_batch, end_transaction_record
from kcoord_wire.records.batch import AT_LEADER_EPOCH, UNCHECKED
from kcoord_wire.records.model import MAX_INT64


class LeaderEpochs:
    """Epochs with the offsets of their first records, both ascending.

    :ivar latest: the present epoch
    """

    __slots__ = ("_epochs", "_starts", "latest")

    def __init__(self, epoch: int, start_offset: int) -> None:
        self._epochs = [epoch]
        self._starts = [start_offset]
        self.latest = epoch

    def begin(self, epoch: int, offset: int) -> None:
        """Note that the records from `offset` on are of `epoch`, which is not less than the latest."""
        if epoch == self.latest:
            return
        while self._starts and self._starts[-1] >= offset:
            self._starts.pop()
            self._epochs.pop()
        self._epochs.append(epoch)
        self._starts.append(offset)
        self.latest = epoch

    def forget_before(self, offset: int) -> None:
        """Note that the log begins at `offset` now."""
        first = max(bisect_right(self._starts, offset) - 1, 0)
        del self._epochs[:first], self._starts[:first]
        self._starts[0] = max(self._starts[0], offset)

    def at(self, offset: int) -> int:
        """Return the epoch of the record at `offset`, which is in the log."""
        return self._epochs[max(bisect_right(self._starts, offset) - 1, 0)]

    def end_of(self, epoch: int, log_end: int) -> tuple[int, int] | None:
        """Return the greatest epoch up to `epoch` and the offset after its last record; None if `epoch` is unknown.

        :param log_end: the offset after the last record of the log
        """
        if epoch == self.latest:
            return epoch, log_end
        later = bisect_right(self._epochs, epoch)
        if epoch < 0 or later == len(self._epochs):
            return None
        return (self._epochs[later - 1] if later else epoch), self._starts[later]


SEGMENT_BYTES: Final = 64 << 20
"""Size of a segment, where retention does not need smaller ones: what is dropped is dropped by segments."""


class Storage:
    """The disk of the topics.

    :param disk: a folder with a folder for each partition
    :param segment_bytes: a segment that would grow beyond this is followed by another
    :ivar files: the open ones
    :ivar journal: which topics there are
    :ivar held: bytes of all records with what is needed for them in memory
    :ivar grown: partitions that have begun a segment since this was cleared
    """

    def __init__(self, disk: Disk, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.disk = disk
        self.files = OpenFiles()
        self.journal = Journal(disk)
        self.segment_bytes = segment_bytes
        self.held = 0
        self.grown: list[PartitionLog] = []
        self._stamp = 0

    def stamp(self) -> int:
        """Return a number greater than any before."""
        self._stamp += 1
        return self._stamp

    def adopt(self, logs: Iterable[PartitionLog]) -> None:
        """Note the segments of partitions that were read, which are as old as their latest records."""
        found = [(log, segment) for log in logs for segment in log.segments]
        for log, segment in sorted(found, key=lambda pair: pair[1].max_timestamp):
            segment.stamp = self.stamp()
            self.grown.append(log)

    def close(self) -> None:
        """Close all files."""
        self.files.close_all()
        self.journal.close()


_MOST_READ = 50_000  # records, 0.15 s
_MOST_DECOMPRESSED = 16 << 20
_MOST_OFFSETS: Final = (1 << 31) - 1  # of a segment: Kafka's index has them as int32
_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_BASE_OFFSET = attrgetter("base_offset")

_log = logging.getLogger("kcoord_wire.coordinator")


class Appended(NamedTuple):
    """The place of a batch in the log.

    :ivar base_offset: of its first record
    :ivar size: bytes by which the log has grown; 0 for a batch that was stored before
    """

    base_offset: int
    size: int


class Rolling(NamedTuple):
    """When a segment is full.

    :ivar bytes: that it may have (``segment.bytes``)
    :ivar ms: between the times of its first batch and of the next (``segment.ms``)
    """

    bytes: int
    ms: int


class _GoneError(Exception):
    """Segments that are compacted were dropped meanwhile."""


class RecordAt(NamedTuple):
    """A record that was found by its time."""

    offset: int
    timestamp: int
    leader_epoch: int


class PartitionLog:
    """The batches of one partition.

    :param storage: what it shares with others
    :param name: of the partition and of its folder: topic and number
    :param leader_epoch: the present one
    :ivar name: as given
    :ivar start_offset: of the first record that is kept
    :ivar end_offset: of the next record; also the high watermark, as there is no other replica
    :ivar epochs: the leader epochs of its records, and the present one
    :ivar size: bytes of its batches
    :ivar compacted: how far it was
    :ivar rolling: when a segment is full; None as long as the topic's configs were not asked for it
    """

    __slots__ = (
        "_cut",
        "_files",
        "_folder",
        "_is_failing",
        "_leftover",
        "_producers",
        "_segments",
        "_storage",
        "compacted",
        "end_offset",
        "epochs",
        "name",
        "rolling",
        "size",
        "start_offset",
    )

    def __init__(self, storage: Storage, name: str, leader_epoch: int = 0) -> None:
        self.name = name
        self.start_offset = self.end_offset = self.size = 0
        self.epochs = LeaderEpochs(leader_epoch, 0)
        self._storage = storage
        self._folder: Disk | None = None
        self._segments: list[Segment] = []
        self._cut: list[Segment] = []  # behind damage, when the log was read
        self._files = Found([], {}, [])  # likewise
        self._leftover: list[str] = []  # files that were replaced, and that the disk may still have
        self._producers = Producers()
        self._is_failing = False
        self.compacted = Compacted()
        self.rolling: Rolling | None = None

    @property
    def topic(self) -> str:
        """The topic that it is a partition of."""
        return self.name.rpartition("-")[0]

    @property
    def leader_epoch(self) -> int:
        """The present leader epoch."""
        return self.epochs.latest

    @property
    def first_segment(self) -> Segment | None:
        """The segment that is dropped next; None if there is none."""
        return self._segments[0] if self._segments else None

    # ---- writing

    def append(self, batch: Header, data: bytes, *, verified: bool = False) -> Appended:
        """Store a batch that a producer has sent.

        :param batch: the header that `check_batch` returned for `data`
        :param verified: the coordinator has said that the partition is in the producer's transaction
        :raises Refused: POLICY_VIOLATION (44), OUT_OF_ORDER_SEQUENCE_NUMBER (45), INVALID_PRODUCER_EPOCH (47),
            INVALID_TXN_STATE (48), KAFKA_STORAGE_ERROR (56)
        """
        if batch.producer_id < 0:  # neither idempotent nor in a transaction
            return self._store(batch, data)
        before = self._producers.find(batch)
        if before is not None:
            return Appended(before, 0)
        if batch.is_transactional:
            if not (verified or self.in_transaction(batch)):
                raise Refused(ErrorCode.INVALID_TXN_STATE, "the partition is not in the producer's transaction")
            if self._producers.is_full and not self.has_open_transaction(batch.producer_id):
                raise Refused(ErrorCode.POLICY_VIOLATION, f"{self.name} has {MOST_OPEN} open transactions")
        elif self.has_open_transaction(batch.producer_id):
            raise Refused(ErrorCode.INVALID_TXN_STATE, "a batch outside the producer's transaction, which is open")
        return self._store(batch, data)

    def show(self, data: bytes, last_offset: int, max_timestamp: int) -> None:
        """Store a batch of another log as it is; between batches offsets may be left out.

        :raises Refused: KAFKA_STORAGE_ERROR (56)
        """
        self._write(data, last_offset, max_timestamp)
        header = read_header(data)
        self._producers.update(header, last_offset - header.last_offset_delta, _marker(header, data))
        self.end_offset = last_offset + 1

    def producers(self) -> list[ProducerState]:
        """Describe the producers that it remembers."""
        return self._producers.states()

    def has_open_transaction(self, producer_id: int) -> bool:
        """Return whether the log has records of a transaction of this producer that has not ended."""
        return self._producers.has_open(producer_id)

    def in_transaction(self, batch: Header) -> bool:
        """Return whether the log has a batch of the transaction that this one belongs to."""
        return (
            self.has_open_transaction(batch.producer_id)
            and self._producers.epoch(batch.producer_id) == batch.producer_epoch
        )

    def end_transaction(
        self, producer_id: int, epoch: int, control: ControlType, coordinator_epoch: int, now: int
    ) -> Appended:
        """Store the marker that ends a producer's transaction, COMMIT or ABORT; also where it has none, since the
        marker keeps out producers with an older epoch.

        :param now: its timestamp, ms
        :raises Refused: INVALID_PRODUCER_EPOCH (47), KAFKA_STORAGE_ERROR (56)
        """
        known = self._producers.epoch(producer_id)
        if epoch < known:
            raise Refused(ErrorCode.INVALID_PRODUCER_EPOCH, f"epoch {epoch} of a producer that is at {known}")
        return self._store(*_marker_batch(producer_id, epoch, control, coordinator_epoch, now))

    @property
    def stable_offset(self) -> int:
        """The last stable offset: the first whose transaction is open, or the end. It may lie before the log's start,
        if retention has dropped what was open; then it is the start."""
        first = self._producers.first_unstable
        return self.end_offset if first is None else max(first, self.start_offset)

    def aborted_between(self, first: int, end: int) -> list[AbortedTransaction]:
        """Return the aborted transactions of which a reader of the offsets from `first` up to `end` has to know."""
        return self._producers.aborted_between(first, end)

    def _store(self, batch: Header, data: bytes) -> Appended:
        base, epoch = self.end_offset, self.epochs.latest
        patched = bytearray(data)
        _OFFSET.pack_into(patched, 0, base)
        _EPOCH.pack_into(patched, AT_LEADER_EPOCH, epoch)
        self._write(patched, base + batch.last_offset_delta, batch.max_timestamp)
        self._account(batch, base, epoch, data)
        return Appended(base, len(data))

    def _write(self, data: bytes | bytearray, last_offset: int, max_timestamp: int) -> None:
        try:
            segment = self._segments[-1] if self._segments else None
            if segment is None or (segment.size and self._is_full(segment, len(data), max_timestamp)):
                segment = self._begin_segment()
            segment.append(data, last_offset, max_timestamp)
        except OSError as error:
            raise self._refusal("written", error) from error
        self._is_failing = False
        segment.stamp = self._storage.stamp()
        self.size += len(data)
        self._storage.held += len(data) + INDEX_SIZE

    def _is_full(self, segment: Segment, size: int, max_timestamp: int) -> bool:
        """Return whether a batch belongs into another segment."""
        most, rolling = self._storage.segment_bytes, self.rolling
        if rolling is not None:
            most = min(most, rolling.bytes)
            if segment.first_timestamp >= 0 and max_timestamp - segment.first_timestamp > rolling.ms:
                return True
        return segment.size + size > most

    def _account(self, batch: Header, base_offset: int, leader_epoch: int, data: bytes) -> None:
        """Update what is derived from the headers of the batches in the log, and from the markers: for a batch that was
        appended, and for each in its turn when the log is read."""
        self._producers.update(batch, base_offset, _marker(batch, data))
        self.epochs.begin(leader_epoch, base_offset)
        self.end_offset = base_offset + batch.last_offset_delta + 1

    def begin_epoch(self, epoch: int) -> None:
        """Take a greater leader epoch, that of all batches from now on. `Catalog.raise_epochs` also keeps it."""
        self.epochs.begin(epoch, self.end_offset)

    def roll(self) -> None:
        """Begin a segment, unless the last one is empty.

        :raises Refused: KAFKA_STORAGE_ERROR (56)
        """
        if self._segments and self._segments[-1].size:
            try:
                self._begin_segment()
            except OSError as error:
                raise self._refusal("written", error) from error

    def _begin_segment(self) -> Segment:
        if self._folder is None:
            self._folder = self._storage.disk.folder(self.name)
        segment = Segment(self._folder, self._storage.files, self.end_offset)
        segment.create()
        self._segments.append(segment)
        segment.stamp = self._storage.stamp()
        self._storage.held += segment.held
        self._storage.grown.append(self)
        return segment

    # ---- reading

    def read(self, offset: int, max_bytes: int, first_whole: bool, end: int) -> bytes:
        """Return whole batches from the one with `offset` on, which may begin before it.

        :param first_whole: return the first batch even if it is larger than `max_bytes`
        :param end: the offset at which the reader's records end; a batch begins there, or the log ends
        :raises Refused: KAFKA_STORAGE_ERROR (56)
        """
        if offset >= end:
            return b""
        parts: list[bytes] = []
        first = max(bisect_right(self._segments, offset, key=_BASE_OFFSET) - 1, 0)
        try:
            for segment in islice(self._segments, first, None):
                part = segment.read(offset, end, max_bytes, first_whole and not parts)
                parts.append(part)
                if len(part) < segment.bytes_between(offset, end):
                    break  # the next segment may have a batch that fits: a reader would take the rest for compacted
                max_bytes -= len(part)
        except OSError as error:
            raise self._refusal("read", error) from error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def bytes_between(self, first: int, end: int) -> int:
        """Return the bytes of the batches from offset `first` up to `end`, where batches begin."""
        at = max(bisect_right(self._segments, first, key=_BASE_OFFSET) - 1, 0)
        return sum(segment.bytes_between(first, end) for segment in islice(self._segments, at, None))

    def first_since(self, timestamp: int) -> RecordAt | None:
        """Return the first record of this time or later; None if there is none.

        :raises Refused: KAFKA_STORAGE_ERROR (56)
        """
        try:
            for segment in self._segments:
                batch = segment.first_since(timestamp, self.start_offset)
                if batch is not None:
                    return _first_since(batch, timestamp, self.start_offset)
        except OSError as error:
            raise self._refusal("read", error) from error
        return None

    def latest(self) -> RecordAt | None:
        """Return the first record with the greatest timestamp; None if there is no record.

        :raises Refused: KAFKA_STORAGE_ERROR (56)
        """
        if self.start_offset == self.end_offset:
            return None
        return self.first_since(max(segment.latest(self.start_offset) for segment in self._segments))

    # ---- compaction

    def compact(self, end: int, now: int, delete_retention_ms: int, most_bytes: int) -> Iterator[int]:
        """Compact the records before an offset, and yield after each batch how many bytes were read.

        Between two steps the log may grow, and lose records at its start; then what is left to do is given up.

        :param end: at most the base offset of the last segment, and the last stable offset
        :param most_bytes: of segments that become one
        :raises Refused: KAFKA_STORAGE_ERROR (56)
        """
        cleaning = Cleaning(
            Round(
                max(self.compacted.clean_before, self.start_offset),
                end,
                now,
                delete_retention_ms,
                tuple(self._producers.aborted),
                self._producers.last_batches(),
            )
        )
        try:
            yield from self._note(cleaning)
            gaps_before = max(self.compacted.gaps_before, cleaning.end)
            self._note_compacted(Compacted(gaps_before, self.compacted.clean_before), sync=True)
            for group in self._grouped(cleaning.end, most_bytes):
                yield from self._rewrite(group, cleaning)
            self._producers.compacted(cleaning.end, cleaning.aborted)
            self._note_compacted(Compacted(gaps_before, cleaning.end), sync=False)
        except _GoneError:
            pass
        except OSError as error:
            raise self._refusal("compacted", error) from error

    def _note_compacted(self, how_far: Compacted, *, sync: bool) -> None:
        if self._folder is None or not self._segments:
            raise _GoneError
        self._storage.journal.compacted(self.name, how_far, sync=sync)
        self.compacted = how_far

    def _note(self, cleaning: Cleaning) -> Iterator[int]:
        for segment in [each for each in self._segments if each.base_offset < cleaning.end]:
            self._check_there([segment])
            for data in segment.batches(max(self.compacted.clean_before, self.start_offset)):
                if not cleaning.note(data):
                    return
                yield len(data)
                self._check_there([segment])

    def _grouped(self, end: int, most_bytes: int) -> list[list[Segment]]:
        """Return the segments before an offset, in groups that become one segment each."""
        groups: list[list[Segment]] = []
        for segment in [each for each in self._segments if each.base_offset < end]:
            group = groups[-1] if groups else []
            is_near = bool(group) and segment.end_offset - group[0].base_offset <= _MOST_OFFSETS
            if is_near and sum(each.size for each in group) + segment.size <= most_bytes:
                group.append(segment)
            else:
                groups.append([segment])
        return groups

    def _rewrite(self, group: Sequence[Segment], cleaning: Cleaning) -> Iterator[int]:
        """Put one segment with what is left of some in their place."""
        assert self._folder is not None, "there are segments"
        first = group[0].base_offset
        new = Segment(self._folder, self._storage.files, first, cleaned_name(first))
        new.create()
        try:
            for segment in group:
                for data in segment.batches():
                    left = cleaning.clean(data)
                    if left:
                        header, base = read_header(left), _OFFSET.unpack_from(left)[0]
                        last_offset = base + header.last_offset_delta
                        new.append(left, last_offset, header.max_timestamp, has_records=header.record_count > 0)
                    yield len(data)
                    self._check_there(group)
            new.seal(group[-1].end_offset)
        except BaseException:
            with suppress(OSError):
                new.remove()
            raise
        self._replace(group, new)

    def _check_there(self, group: Sequence[Segment]) -> None:
        if any(all(each is not other for other in self._segments) for each in group):
            raise _GoneError

    def _replace(self, group: Sequence[Segment], new: Segment) -> None:
        at = next(number for number, each in enumerate(self._segments) if each is group[0])
        new.stamp = group[-1].stamp
        new.max_timestamp = max(each.max_timestamp for each in group)
        self._segments[at : at + len(group)] = [new]
        self.size += new.size - sum(each.size for each in group)
        self._storage.held += new.held - sum(each.held for each in group)
        self._leftover += [each.name for each in group]
        new.install(self._leftover)
        self._leftover.clear()

    # ---- dropping

    def truncate_before(self, offset: int) -> None:
        """Drop the records before `offset`, as DeleteRecords asks; nothing if the log begins later.

        :raises Refused: OFFSET_OUT_OF_RANGE (1): the log ends before; KAFKA_STORAGE_ERROR (56)
        """
        if not 0 <= offset <= self.end_offset:
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE)
        if offset <= self.start_offset:
            return
        try:
            self._storage.journal.start_moved(self.name, offset)
            self._begin_at(offset)
            while len(self._segments) > 1 and self._segments[1].base_offset <= offset:
                self._remove_first()
        except OSError as error:
            raise self._refusal("truncated", error) from error

    def drop_first_segment(self) -> int:
        """Drop the oldest records, and return the size of their batches in bytes.

        :raises Refused: KAFKA_STORAGE_ERROR (56)
        """
        try:
            if len(self._segments) == 1:
                self._begin_segment()  # its name keeps the offset at which the log goes on
            size = self._remove_first()
        except OSError as error:
            raise self._refusal("truncated", error) from error
        self._begin_at(max(self._segments[0].base_offset, self.start_offset))
        return size

    def _remove_first(self) -> int:
        segment = self._segments[0]
        segment.remove()
        del self._segments[0]
        self.size -= segment.size
        self._storage.held -= segment.held
        return segment.size

    def _begin_at(self, offset: int) -> None:
        self.start_offset = offset
        self.epochs.forget_before(offset)
        self._producers.forget_before(offset)

    def remove(self) -> bool:
        """Remove all records: the topic is deleted. OSError: the disk fails, and files are left.

        :returns: whether it had a folder, whose removal is not durable yet
        """
        segments, self._segments = self._segments, []
        for segment in segments:
            segment.close()
            self._storage.held -= segment.held
        self.size = 0
        if self._folder is not None:
            self._storage.disk.remove_folder(self.name)
        return self._folder is not None

    # ---- the disk

    def recover(self, start_offset: int, compacted: Compacted = Compacted()) -> None:  # noqa: B008
        """Read the log, at the start, up to the first damage; then `repair` it. No file is touched.

        :param start_offset: of the first record that was kept; its segment may begin before
        :param compacted: how far it was compacted
        :raises OSError: the disk fails
        """
        present, self.epochs = self.epochs.latest, LeaderEpochs(-1, MAX_INT64)
        self._folder = self._storage.disk.folder(self.name)
        self._files = find_files(self._folder.sizes())
        for name in self._files.names:
            segment = Segment(self._folder, self._storage.files, base_offset(name), name)
            if self._segments and (self._segments[-1].torn or not self._follows(segment, compacted)):
                self._cut.append(segment)
            else:
                has_gaps = segment.base_offset < compacted.gaps_before
                self._recover_segment(segment, last=name == self._files.names[-1], has_gaps=has_gaps)
        if self._segments:
            self._begin_at(max(self._segments[0].base_offset, min(start_offset, self.end_offset)))
        self.begin_epoch(present)
        clean_before = compacted.clean_before if compacted.clean_before <= self.end_offset else 0
        self.compacted = Compacted(min(compacted.gaps_before, self.end_offset), clean_before)

    def _follows(self, segment: Segment, compacted: Compacted) -> bool:
        """Return whether a segment is the next after what was read, apart from what compaction has left out."""
        if segment.base_offset > self.end_offset:
            return segment.base_offset <= compacted.gaps_before
        return segment.base_offset == self.end_offset

    def _recover_segment(self, segment: Segment, *, last: bool, has_gaps: bool) -> None:
        self._segments.append(segment)
        self.end_offset = segment.base_offset
        least_epoch = max(self.epochs.latest, 0)
        for header, head, data in segment.recover(self.name, least_epoch, last=last, has_gaps=has_gaps):
            self._account(header, head.base_offset, head.leader_epoch, data)
        self.size += segment.size
        self._storage.held += segment.held

    def repair(self) -> None:
        """Cut off what follows the last good batch, and end what compaction has begun. OSError: the disk fails."""
        self._end_compaction()
        for segment in self._segments[-1:]:
            torn = segment.torn
            kept = segment.repair()
            if kept:
                detail = "%s; the log is cut there, as Kafka does after a crash: %d bytes are dropped, and kept in %s"
                _log.warning(detail, segment.damage, torn, kept)
            elif torn:
                _log.warning("%s ends in %d bytes of a write that a crash has torn; they are cut off", self.name, torn)
        # Only now: were these gone before, the start after a crash would take the damage for a torn write, and drop it.
        for segment in self._cut:
            kept, size = segment.set_aside()
            detail = "%s ends at offset %d; the segment of offset %d is behind that: %d bytes are dropped, kept in %s"
            _log.warning(detail, self.name, self.end_offset, segment.base_offset, size, kept)
        self._cut.clear()

    def _end_compaction(self) -> None:
        if self._folder is not None:
            for segment in (*self._segments, *self._cut):
                if (replaced := self._files.replaced.get(segment.name)) is not None:
                    segment.install(replaced)
            for name in self._files.unfinished:
                self._folder.remove(name)
            self._files = Found([], {}, [])

    @property
    def segments(self) -> Sequence[Segment]:
        """Its segments, the oldest first."""
        return self._segments

    def _refusal(self, what: str, error: OSError) -> Refused:
        """Return the error of a request that the disk has failed. The first is logged, and the next after a success."""
        if not self._is_failing:
            _log.error("%s cannot be %s: %s; the request is answered KAFKA_STORAGE_ERROR", self.name, what, error)
        self._is_failing = True
        return Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"the log cannot be {what}: {error.strerror}")


@lru_cache(1)  # the same in each partition of a transaction, which may be thousands
def _marker_batch(producer_id: int, epoch: int, control: int, coordinator_epoch: int, now: int) -> tuple[Header, bytes]:
    """Return the batch that ends a transaction."""
    record = end_transaction_record(ControlType(control), coordinator_epoch, timestamp=now)
    data = encode_batch([record], transactional=True, control=True, producer_id=producer_id, producer_epoch=epoch)
    return read_header(data), data


def _marker(batch: Header, data: bytes) -> ControlRecord | None:
    return control_record(data) if batch.is_control and batch.record_count else None


def _first_since(data: bytes, timestamp: int, offset: int) -> RecordAt:
    """Return the record in this batch, from `offset` on; from the batch's header, if its records cannot be read or
    contradict it."""
    base_offset, _, leader_epoch, _, _ = UNCHECKED.unpack_from(data)
    header = read_header(data)
    batch = decoded(data)
    for record in () if batch is None else batch.records:
        if record.timestamp >= timestamp and record.offset >= offset:
            return RecordAt(record.offset, record.timestamp, leader_epoch)
    return RecordAt(max(base_offset, offset), header.max_timestamp, leader_epoch)
