"""One partition's records in memory: batches as the producer wrote them, found by offset and by time.

Laws:

* The header of a batch is checked before it is stored: size, checksum, number of records, producer. Its bytes are kept;
  only base offset and leader epoch are set, which the checksum does not cover.
* Records are read only to find one by its time, in one batch, and at most `_MOST_READ` of them: reading all, as Kafka
  does, would let a few compressed bytes stop the server for minutes.
* Offsets are assigned without a gap, from 0. The only leader epoch is `LEADER_EPOCH`.
* A batch that an idempotent producer sends twice is stored once, if it is among its last five (KIP-98).

Source: kafka `ProduceRequest.java` (validateRecords), `LogValidator.java`, `ProducerAppendInfo.java`, `UnifiedLog`.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple

from kcoord_wire.error_codes import ErrorCode
from kcoord_wire.errors import DecodeError
from kcoord_wire.records import Compression, read_records
from kcoord_wire.records.batch import (
    AT_CHECKED,
    AT_LEADER_EPOCH,
    AT_MAGIC,
    CHECKED,
    HEADER_SIZE,
    LENGTH_FROM,
    UNCHECKED,
    crc32c,
)
from kcoord_wire.records.model import COMPRESSION_MASK, CONTROL_BIT, TRANSACTIONAL_BIT
from kcoord_wire.records.record import MIN_RECORD_SIZE

__all__ = ["BATCH_OVERHEAD", "LEADER_EPOCH", "Appended", "Header", "PartitionLog", "RecordAt", "Refused", "check_batch"]

LEADER_EPOCH = 0
BATCH_OVERHEAD = 384  # bytes that CPython needs for a stored batch, besides those of the batch
_PRODUCERS = 256  # idempotent producers that a partition remembers, about 250 KB; the least recent is dropped
_BATCHES_REMEMBERED = 5  # max.in.flight.requests.per.connection of an idempotent producer
_MAX_SEQUENCE = (1 << 31) - 1
_MOST_READ = 50_000  # records, 0.15 s
_MOST_DECOMPRESSED = 16 << 20
_MAGIC: Final = 2
_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")


class Refused(Exception):
    """A part of a request fails with its own error code.

    :ivar error: the code
    :ivar detail: what is wrong, for versions that have a text
    """

    def __init__(self, error: ErrorCode, detail: str = "") -> None:
        super().__init__(error, detail)
        self.error = error
        self.detail = detail or error.meaning


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


class Header(NamedTuple):
    """The header fields of a batch that a log needs."""

    attributes: int
    last_offset_delta: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def compression(self) -> int:
        """A `Compression`."""
        return self.attributes & COMPRESSION_MASK

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record. After the greatest int32 they continue at 0."""
        return (self.base_sequence + self.last_offset_delta) & _MAX_SEQUENCE


def check_batch(data: bytes | None, max_size: int) -> Header:
    """Return the header of a producer's records, which must be one batch.

    :param max_size: bytes (``max.message.bytes``)
    :raises Refused: CORRUPT_MESSAGE (2) if the size or the checksum is wrong, MESSAGE_TOO_LARGE (10),
        TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53) for a batch of a transaction, else INVALID_RECORD (87)
    """
    size = _check_frame(data, max_size)
    attributes, last_offset_delta, _, *rest = CHECKED.unpack_from(data or b"", AT_CHECKED)
    header = Header(attributes, last_offset_delta, *rest)
    _check_header(header, size)
    return header


def _check_frame(data: bytes | None, max_size: int) -> int:
    """Return the size of a batch whose size and checksum are right."""
    if not data:
        raise Refused(ErrorCode.INVALID_RECORD, "one record batch is needed, none was sent")
    if len(data) > AT_MAGIC and data[AT_MAGIC] != _MAGIC:
        raise Refused(ErrorCode.INVALID_RECORD, f"magic {data[AT_MAGIC]} where {_MAGIC} is needed")
    if len(data) > max_size:
        raise Refused(ErrorCode.MESSAGE_TOO_LARGE, f"{len(data)} bytes, at most {max_size} are taken")
    if len(data) < HEADER_SIZE:
        raise Refused(ErrorCode.CORRUPT_MESSAGE, f"{len(data)} bytes are less than a header")
    _, length, _, _, crc = UNCHECKED.unpack_from(data)
    size: int = length + LENGTH_FROM
    if not HEADER_SIZE <= size <= len(data):
        raise Refused(ErrorCode.CORRUPT_MESSAGE, f"a batch of {size} bytes in {len(data)}")
    if size < len(data):
        raise Refused(ErrorCode.INVALID_RECORD, "more than one record batch for a partition")
    if crc32c(memoryview(data)[AT_CHECKED:]) != crc:
        raise Refused(ErrorCode.CORRUPT_MESSAGE, "the checksum is wrong")
    return size


def _check_header(header: Header, size: int) -> None:
    if header.attributes & TRANSACTIONAL_BIT:
        raise Refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactions are not served")
    if header.attributes & CONTROL_BIT:
        raise Refused(ErrorCode.INVALID_RECORD, "control batches are the broker's own")
    if header.compression > Compression.ZSTD:
        raise Refused(ErrorCode.INVALID_RECORD, f"no codec has number {header.compression}")
    if header.record_count < 1 or header.record_count != header.last_offset_delta + 1:
        detail = f"{header.record_count} records with a last offset delta of {header.last_offset_delta}"
        raise Refused(ErrorCode.INVALID_RECORD, detail)
    if not header.compression and header.record_count > (size - HEADER_SIZE) // MIN_RECORD_SIZE:
        raise Refused(ErrorCode.INVALID_RECORD, f"{header.record_count} records in {size} bytes")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise Refused(ErrorCode.INVALID_RECORD, f"an idempotent producer's base sequence is {header.base_sequence}")


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
        self._producers: dict[int, _Producer] = {}  # by id, in the order of their last writes

    def append(self, batch: Header, data: bytes) -> Appended:
        """Store a batch.

        :param batch: the header that `check_batch` returned for `data`
        :raises Refused: OUT_OF_ORDER_SEQUENCE_NUMBER (45), INVALID_PRODUCER_EPOCH (47)
        """
        if batch.producer_id >= 0:
            producer = self._producers.get(batch.producer_id)
            before = producer.find(batch) if producer is not None else None
            if before is not None:
                return Appended(before, 0)
            self._remember(batch, producer)
        base = self.end_offset
        patched = bytearray(data)
        _OFFSET.pack_into(patched, 0, base)
        _EPOCH.pack_into(patched, AT_LEADER_EPOCH, LEADER_EPOCH)
        self.end_offset = base + batch.record_count
        self._batches.append(_Stored(base, self.end_offset - 1, batch.max_timestamp, bytes(patched)))
        return Appended(base, len(data))

    def _remember(self, batch: Header, producer: _Producer | None) -> None:
        if producer is None or producer.epoch != batch.producer_epoch:
            producer = _Producer(batch.producer_epoch)
        producer.batches = (*producer.batches, (batch.base_sequence, batch.last_sequence, self.end_offset))
        producer.batches = producer.batches[-_BATCHES_REMEMBERED:]
        self._producers.pop(batch.producer_id, None)
        self._producers[batch.producer_id] = producer
        if len(self._producers) > _PRODUCERS:
            del self._producers[next(iter(self._producers))]

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


class _Producer:
    """What a partition remembers of an idempotent producer.

    :ivar epoch: the producer's
    :ivar batches: first and last sequence number and offset of its last batches
    """

    __slots__ = ("batches", "epoch")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: tuple[tuple[int, int, int], ...] = ()

    def find(self, batch: Header) -> int | None:
        """Return the offset of this batch if it was stored before; None if it is the expected next one.

        :raises Refused: it is neither
        """
        if batch.producer_epoch < self.epoch:
            detail = f"epoch {batch.producer_epoch} of producer {batch.producer_id}, which is at {self.epoch}"
            raise Refused(ErrorCode.INVALID_PRODUCER_EPOCH, detail)
        due = 0
        if batch.producer_epoch == self.epoch:
            for first, last, offset in self.batches:
                if (first, last) == (batch.base_sequence, batch.last_sequence):
                    return offset
            due = (self.batches[-1][1] + 1) & _MAX_SEQUENCE
        if batch.base_sequence != due:
            detail = f"sequence {batch.base_sequence} of producer {batch.producer_id}, where {due} is due"
            raise Refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, detail)
        return None
