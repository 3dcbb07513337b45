"""One partition's records in memory: batches as the producer wrote them, found by offset and by time.

Laws:

* The bytes of a batch are kept; only base offset and leader epoch are set, which the checksum does not cover.
* Records are read only to find one by its time, in one batch, and at most `_MOST_READ` of them: reading all, as Kafka
  does, would let a few compressed bytes stop the server for minutes.
* Offsets are assigned without a gap, from 0. The only leader epoch is `LEADER_EPOCH`.
* What is derived from the batches is a function of their headers, in their order, which is computed in one place.

Source: kafka/storage `UnifiedLog.java`.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from kcoord_wire.coordinator.topics.batch_header import Header
from kcoord_wire.coordinator.topics.producers import Producers
from kcoord_wire.errors import DecodeError
from kcoord_wire.records import read_records
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

    __slots__ = ("_batches", "_first", "_producers", "end_offset", "start_offset")

    def __init__(self) -> None:
        self.start_offset = 0
        self.end_offset = 0
        self._batches: list[_Stored] = []
        self._first = 0  # index of the first that is kept; those before it are removed together now and then
        self._producers = Producers()

    def append(self, batch: Header, data: bytes) -> Appended:
        """Store a batch that a producer has sent.

        :param batch: the header that `check_batch` returned for `data`
        :raises Refused: OUT_OF_ORDER_SEQUENCE_NUMBER (45), INVALID_PRODUCER_EPOCH (47)
        """
        before = self._producers.find(batch)
        if before is not None:
            return Appended(before, 0)
        return self._store(batch, data)

    def _store(self, batch: Header, data: bytes) -> Appended:
        base = self.end_offset
        patched = bytearray(data)
        _OFFSET.pack_into(patched, 0, base)
        _EPOCH.pack_into(patched, AT_LEADER_EPOCH, LEADER_EPOCH)
        self._batches.append(_Stored(base, base + batch.last_offset_delta, batch.max_timestamp, bytes(patched)))
        self._account(batch, base)
        return Appended(base, len(data))

    def _account(self, batch: Header, base_offset: int) -> None:
        """Update what is derived from the headers of the batches in the log: for a batch that was appended, and for
        each in its turn when the log is read."""
        self._producers.update(batch, base_offset)
        self.end_offset = base_offset + batch.last_offset_delta + 1

    def read(self, offset: int, max_bytes: int, first_whole: bool) -> bytes:
        """Return whole batches from the one with `offset` on, which may begin before it.

        :param first_whole: return the first batch even if it is larger than `max_bytes`
        """
        parts: list[bytes] = []
        left = max_bytes
        for index in range(bisect_left(self._batches, offset, self._first, key=_LAST_OFFSET), len(self._batches)):
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
        return len(batch.data)


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
