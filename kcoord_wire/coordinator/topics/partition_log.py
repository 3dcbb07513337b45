"""One partition's records in memory: batches as the producer wrote them, found by offset and by time.

Laws:

* The bytes of a batch are kept; only base offset and leader epoch are set, which the checksum does not cover.
* Records are read only to find one by its time, in one batch, and at most `_MOST_READ` of them: reading all, as Kafka
  does, would let a few compressed bytes stop the server for minutes.
* Offsets are assigned without a gap, from 0. The only leader epoch is `LEADER_EPOCH`.
* What is derived from the batches is a function of their headers and markers, in their order, which is computed in one
  place.
* No batch begins a transaction unless the coordinator has said that the partition is in it (KIP-890).

Source: kafka/storage `UnifiedLog.java`.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from kcoord_wire.coordinator.topics.batch_header import Header, Refused, read_header
from kcoord_wire.coordinator.topics.open_transactions import AbortedTransaction, OpenTransactions
from kcoord_wire.coordinator.topics.producers import Producers
from kcoord_wire.error_codes import ErrorCode
from kcoord_wire.errors import DecodeError
from kcoord_wire.records import (
    ControlType,
    decode_control_record,
    encode_batch,
    end_transaction_record,
    read_records,
)
from kcoord_wire.records.batch import AT_LEADER_EPOCH

__all__ = ["BATCH_OVERHEAD", "LEADER_EPOCH", "Appended", "PartitionLog", "RecordAt"]

LEADER_EPOCH = 0
BATCH_OVERHEAD = 384  # bytes that CPython needs for a stored batch, besides those of the batch
_MOST_READ = 50_000  # records, 0.15 s
_MOST_DECOMPRESSED = 16 << 20
_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")


class Appended(NamedTuple):
    """The place of a batch in the log.

    :ivar base_offset: of its first record
    :ivar size: bytes by which the log has grown; 0 for a batch that was stored before
    """

    base_offset: int
    size: int


class RecordAt(NamedTuple):
    """A record that was found by its time."""

    offset: int
    timestamp: int


class _Stored(NamedTuple):
    base_offset: int
    last_offset: int
    max_timestamp: int
    data: bytes


_LAST_OFFSET = attrgetter("last_offset")
_DROPPED = _Stored(-1, -1, -1, b"")


class PartitionLog:
    """The batches of one partition.

    :ivar start_offset: of the first record that is kept
    :ivar end_offset: of the next record; also the high watermark, as there is no other replica
    """

    __slots__ = ("_batches", "_first", "_producers", "_transactions", "end_offset", "start_offset")

    def __init__(self) -> None:
        self.start_offset = 0
        self.end_offset = 0
        self._batches: list[_Stored] = []
        self._first = 0  # index of the first that is kept; those before it are removed together now and then
        self._producers = Producers()
        self._transactions = OpenTransactions()

    def append(self, batch: Header, data: bytes, *, verified: bool = False) -> Appended:
        """Store a batch that a producer has sent.

        :param batch: the header that `check_batch` returned for `data`
        :param verified: the coordinator has said that the partition is in the producer's transaction
        :raises Refused: OUT_OF_ORDER_SEQUENCE_NUMBER (45), INVALID_PRODUCER_EPOCH (47), INVALID_TXN_STATE (48)
        """
        before = self._producers.find(batch)
        if before is not None:
            return Appended(before, 0)
        in_transaction = self._transactions.first_offset(batch.producer_id) is not None
        if batch.is_transactional and not (verified or self.in_transaction(batch)):
            raise Refused(ErrorCode.INVALID_TXN_STATE, "the partition is not in the producer's transaction")
        if in_transaction and not batch.is_transactional:
            raise Refused(ErrorCode.INVALID_TXN_STATE, "a batch outside the producer's transaction, which is open")
        return self._store(batch, data)

    def in_transaction(self, batch: Header) -> bool:
        """Return whether the log has a batch of the transaction that this one belongs to."""
        is_open = self._transactions.first_offset(batch.producer_id) is not None
        return is_open and self._producers.epoch(batch.producer_id) == batch.producer_epoch

    def end_transaction(
        self, producer_id: int, epoch: int, control: ControlType, coordinator_epoch: int, now: int
    ) -> Appended:
        """Store the marker that ends a producer's transaction, COMMIT or ABORT; also where it has none, since the
        marker keeps out producers with an older epoch.

        :param now: its timestamp, ms
        :raises Refused: INVALID_PRODUCER_EPOCH (47)
        """
        known = self._producers.epoch(producer_id)
        if epoch < known:
            raise Refused(ErrorCode.INVALID_PRODUCER_EPOCH, f"epoch {epoch} of a producer that is at {known}")
        record = end_transaction_record(control, coordinator_epoch, timestamp=now)
        data = encode_batch([record], transactional=True, control=True, producer_id=producer_id, producer_epoch=epoch)
        return self._store(read_header(data), data)

    @property
    def stable_offset(self) -> int:
        """The last stable offset: the first whose transaction is open, or the end. It may lie before the log's start,
        if retention has dropped what was open; then it is the start."""
        first = self._transactions.first_unstable
        return self.end_offset if first is None else max(first, self.start_offset)

    def aborted_between(self, first: int, end: int) -> list[AbortedTransaction]:
        """Return the aborted transactions of which a reader of the offsets from `first` up to `end` has to know."""
        return self._transactions.aborted_between(first, end)

    def bytes_between(self, first: int, end: int) -> int:
        """Return the bytes of the batches from offset `first` up to `end`, where batches begin."""
        at = bisect_left(self._batches, first, self._first, key=_LAST_OFFSET)
        until = bisect_left(self._batches, end, at, key=_LAST_OFFSET)
        return sum(len(batch.data) for batch in islice(self._batches, at, until))

    def _store(self, batch: Header, data: bytes) -> Appended:
        base = self.end_offset
        patched = bytearray(data)
        _OFFSET.pack_into(patched, 0, base)
        _EPOCH.pack_into(patched, AT_LEADER_EPOCH, LEADER_EPOCH)
        self._batches.append(_Stored(base, base + batch.last_offset_delta, batch.max_timestamp, bytes(patched)))
        self._account(batch, base, data)
        return Appended(base, len(data))

    def _account(self, batch: Header, base_offset: int, data: bytes) -> None:
        """Update what is derived from the headers of the batches in the log, and from the markers: for a batch that was
        appended, and for each in its turn when the log is read."""
        self._producers.update(batch, base_offset)
        if batch.is_transactional:
            self._transactions.update(batch, base_offset, _marker(data) if batch.is_control else None)
        self.end_offset = base_offset + batch.last_offset_delta + 1

    def read(self, offset: int, max_bytes: int, first_whole: bool, end: int) -> bytes:
        """Return whole batches from the one with `offset` on, which may begin before it, up to those before `end`.

        :param first_whole: return the first batch even if it is larger than `max_bytes`
        """
        parts: list[bytes] = []
        left = max_bytes
        for index in range(bisect_left(self._batches, offset, self._first, key=_LAST_OFFSET), len(self._batches)):
            if self._batches[index].base_offset >= end:
                break
            data = self._batches[index].data
            left -= len(data)
            if left < 0 and not (first_whole and not parts):
                break
            parts.append(data)
        return b"".join(parts)

    def first_since(self, timestamp: int) -> RecordAt | None:
        """Return the first record of this time or later; None if there is none."""
        for batch in islice(self._batches, self._first, None):
            if batch.max_timestamp >= timestamp:
                return _first_since(batch, timestamp)
        return None

    def latest(self) -> RecordAt | None:
        """Return the first record with the greatest timestamp; None if there is no record."""
        if self.start_offset == self.end_offset:
            return None
        batch = max(islice(self._batches, self._first, None), key=attrgetter("max_timestamp"))
        return _first_since(batch, batch.max_timestamp)

    def drop_oldest(self) -> int:
        """Drop the first batch, and return its size in bytes. The log starts after it."""
        batch, self._batches[self._first] = self._batches[self._first], _DROPPED
        self._first += 1
        if self._first > len(self._batches) // 2:
            del self._batches[: self._first]
            self._first = 0
        self.start_offset = batch.last_offset + 1
        self._transactions.forget_before(self.start_offset)
        return len(batch.data)


def _marker(data: bytes) -> ControlType | int:
    """Return the type of a control batch, which a broker has written."""
    (batch,) = read_records(data, check_crc=False)
    return decode_control_record(batch.records[0]).type


def _first_since(stored: _Stored, timestamp: int) -> RecordAt:
    """Return the record in this batch; from the batch's header, if its records cannot be read or contradict it."""
    if stored.last_offset - stored.base_offset < _MOST_READ:
        try:
            (batch,) = read_records(stored.data, check_crc=False, strict=False, max_decompressed=_MOST_DECOMPRESSED)
        except DecodeError:
            pass
        else:
            for record in batch.records:
                if record.timestamp >= timestamp:
                    return RecordAt(record.offset, record.timestamp)
    return RecordAt(stored.base_offset, stored.max_timestamp)
