"""Which records of a partition compaction keeps: a round over its batches, without IO.

Laws:

* Of the records before the end of a round the latest of each key is kept, and no record without a key. A later round
  starts where the one before ended: what that has left has each key once.
* A tombstone is kept until its batch's delete horizon: the time of the first round that kept it, and
  ``delete.retention.ms``. A marker likewise, from the first round in which no batch of its transaction is left.
* Records of aborted transactions are dropped, and hide no record of their keys.
* A batch keeps its offsets, producer, epoch, sequence numbers, codec, kind and leader epoch; one that loses nothing
  keeps its bytes. Without records it is kept where it has the last sequence number or epoch of a producer, or the last
  offset of the round.
* A batch whose records cannot be read, or that has more than are read (`decoded`), is kept as it is, and hides nothing.

Source: kafka/storage `Cleaner.java`, `CleanedTransactionMetadata.java`; kafka/clients `MemoryRecords.java` (filterTo),
`DefaultRecordBatch.java` (writeEmptyHeader); KIP-58, KIP-354, KIP-534.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Final, NamedTuple

from kcoord_wire.coordinator.partitions.batch_header import Header, read_header
from kcoord_wire.coordinator.partitions.producers import AbortedTransaction, LastBatch
from kcoord_wire.coordinator.partitions.segments import control_record, decoded
from kcoord_wire.records import ControlType, Record, RecordBatch, TimestampType, encode_batch
from kcoord_wire.records.batch import (
    AT_CHECKED,
    CHECKED,
    HEADER_SIZE,
    LENGTH_FROM,
    UNCHECKED,
    crc32c,
)
from kcoord_wire.records.model import (
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    LOG_APPEND_TIME_BIT,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
)

MOST_KEYS: Final = 1_000_000
"""Keys that a round remembers, about 150 MB: it ends before the batch that follows, and the next goes on there."""

_EMPTY: Final = LOG_APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT


class Round(NamedTuple):
    """What a round goes by.

    :ivar begin: offset from which on records are newer than the last round
    :ivar end: offset before which it ends
    :ivar now: ms
    :ivar delete_retention_ms: ``delete.retention.ms``
    :ivar aborted: transactions, by their markers
    :ivar producers: those that the log remembers, by id
    """

    begin: int
    end: int
    now: int
    delete_retention_ms: int
    aborted: Iterable[AbortedTransaction] = ()
    producers: Mapping[int, LastBatch] = {}


class _Transactions:
    """Which batches and markers of transactions can go, in the order of the log.

    :ivar left: the aborted ones of which batches were there
    """

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self.left: list[AbortedTransaction] = []
        self._due = deque(sorted(aborted, key=attrgetter("first_offset")))
        self._aborted: dict[int, AbortedTransaction] = {}  # those that are open here, by producer
        self._seen: set[int] = set()  # producers of these that had batches
        self._committed: set[int] = set()  # producers of others that had

    def can_discard(self, header: Header, last_offset: int, data: bytes) -> bool:
        """Return whether a batch is of an aborted transaction, or the marker of one of which no batch is left."""
        while self._due and self._due[0].first_offset <= last_offset:
            transaction = self._due.popleft()
            self._aborted.setdefault(transaction.producer_id, transaction)
        if header.is_control:
            return header.record_count == 0 or self._ends(header.producer_id, data)
        if not header.is_transactional:
            return False
        is_aborted = header.producer_id in self._aborted
        (self._seen if is_aborted else self._committed).add(header.producer_id)
        return is_aborted

    def _ends(self, producer_id: int, data: bytes) -> bool:
        if control_record(data).type != ControlType.ABORT:
            had = producer_id in self._committed
            self._committed.discard(producer_id)
            return not had
        transaction = self._aborted.pop(producer_id, None)
        if transaction is None or producer_id not in self._seen:
            return True
        self._seen.discard(producer_id)
        self.left.append(transaction)
        return False


class Cleaning:
    """A round: first each batch from its `begin` on is noted, then each batch of the log before its end is cleaned,
    both in the order of the log.

    :param most_keys: after which no batch is noted
    :ivar end: the offset before which records are cleaned; less than the round's where there are too many keys
    """

    def __init__(self, what: Round, most_keys: int = MOST_KEYS) -> None:
        self.end = what.end
        self._round = what
        self._most = most_keys
        self._latest: dict[bytes, int] = {}
        self._noted = _Transactions(what.aborted)
        self._cleaned = _Transactions(what.aborted)

    @property
    def aborted(self) -> list[AbortedTransaction]:
        """The aborted transactions of which a reader of what is left has to know, as far as it is cleaned."""
        return self._cleaned.left

    def note(self, data: bytes) -> bool:
        """Remember the keys of a batch; return whether the next is to be noted, too."""
        base_offset = UNCHECKED.unpack_from(data)[0]
        if base_offset >= self.end:
            return False
        if len(self._latest) >= self._most:
            self.end = base_offset
            return False
        header = read_header(data)
        is_aborted = self._noted.can_discard(header, base_offset + header.last_offset_delta, data)
        batch = None if header.is_control or is_aborted else decoded(data)
        for record in () if batch is None else batch.records:
            if record.key is not None and self._round.begin <= record.offset < self.end:
                self._latest[record.key] = record.offset
        return True

    def clean(self, data: bytes) -> bytes:
        """Return what is left of a batch; nothing where it goes as a whole."""
        header = read_header(data)
        last_offset = UNCHECKED.unpack_from(data)[0] + header.last_offset_delta
        can_discard = self._cleaned.can_discard(header, last_offset, data)
        horizon = _horizon(header, data)
        is_over = not header.is_control or (horizon is not None and horizon <= self._round.now)
        left = b""
        if header.record_count and not (can_discard and is_over):
            left = self._left(header, data, horizon, is_marker_alone=can_discard)
        if not left and self._keeps_empty(header, last_offset):
            return _without_records(header, data)
        return left

    def _left(self, header: Header, data: bytes, horizon: int | None, *, is_marker_alone: bool) -> bytes:
        """Return a batch with the records that are left; nothing where none is."""
        batch = decoded(data)
        if batch is None:
            return data
        kept = batch.records if header.is_control else [each for each in batch.records if self._keeps(each, horizon)]
        if not kept:
            return b""
        if horizon is None and (is_marker_alone or any(record.value is None for record in kept)):
            return _rebuilt(batch, kept, self._round.now + self._round.delete_retention_ms)
        return data if len(kept) == len(batch.records) else _rebuilt(batch, kept, horizon)

    def _keeps(self, record: Record, horizon: int | None) -> bool:
        if record.offset >= self.end:
            return True
        if record.key is None or record.offset < self._latest.get(record.key, -1):
            return False
        return record.value is not None or horizon is None or self._round.now < horizon

    def _keeps_empty(self, header: Header, last_offset: int) -> bool:
        last = self._round.producers.get(header.producer_id) if header.producer_id >= 0 else None
        if last_offset + 1 == self._round.end:
            return True
        if last is None:
            return False
        return (
            last_offset == last.offset
            if last.offset >= 0
            else header.is_control and header.producer_epoch == last.epoch
        )


def _horizon(header: Header, data: bytes) -> int | None:
    """Return when tombstones and markers of a batch may go; None if that is not set."""
    if not header.attributes & DELETE_HORIZON_BIT:
        return None
    horizon: int = CHECKED.unpack_from(data, AT_CHECKED)[2]
    return horizon


def _rebuilt(batch: RecordBatch, kept: Iterable[Record], horizon: int | None) -> bytes:
    return encode_batch(
        kept,
        base_offset=batch.base_offset,
        last_offset=batch.last_offset,
        compression=batch.compression,
        log_append_time=batch.max_timestamp if batch.timestamp_type is TimestampType.LOG_APPEND_TIME else None,
        delete_horizon_ms=horizon,
        transactional=batch.is_transactional,
        control=batch.is_control,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        partition_leader_epoch=batch.partition_leader_epoch,
    )


def _without_records(header: Header, data: bytes) -> bytes:
    base_offset, _, leader_epoch, magic, _ = UNCHECKED.unpack_from(data)
    fields = (
        header.attributes & _EMPTY,
        header.last_offset_delta,
        NO_TIMESTAMP,
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        0,
    )
    checked = CHECKED.pack(*fields)
    return UNCHECKED.pack(base_offset, HEADER_SIZE - LENGTH_FROM, leader_epoch, magic, crc32c(checked)) + checked
