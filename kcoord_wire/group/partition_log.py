"""One partition's records in memory: batches as the producer wrote them, found by offset and by time.

Laws:

* What is appended is a batch that any consumer can read: checksum, count, offsets and every record have been looked at,
  compressed ones too. Its bytes are kept; only base offset and leader epoch are set, which the checksum leaves out.
* Offsets are given without a gap, from 0. The only leader epoch is `LEADER_EPOCH`.
* A batch that an idempotent producer sends twice is stored once, as long as it is among its last five (KIP-98).
* What one batch may cost to check is bounded: bytes, bytes once decompressed, and the number of its records.

Source: kafka `ProduceRequest.java` (validateRecords), `LogValidator.java`, `ProducerAppendInfo.java`, `UnifiedLog`.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import deque
from operator import attrgetter
from typing import NamedTuple

from kcoord_wire.error_codes import ErrorCode
from kcoord_wire.errors import DecodeError
from kcoord_wire.records import RecordBatch, read_records
from kcoord_wire.records.batch import HEADER_SIZE

__all__ = ["BATCH_OVERHEAD", "LEADER_EPOCH", "Appended", "PartitionLog", "RecordAt", "Refused", "check_batch"]

LEADER_EPOCH = 0
BATCH_OVERHEAD = 384  # bytes that CPython takes for a stored batch besides those of the batch
_PRODUCERS = 1_000  # idempotent producers that a partition remembers, the last to write of all
_BATCHES_REMEMBERED = 5  # max.in.flight.requests.per.connection of an idempotent producer
_MAX_SEQUENCE = (1 << 31) - 1
_MAX_EXPANSION = 16  # a batch may decompress to this many times the greatest batch
_RECORD_SIZE = 7  # the least that a record takes, so no plain batch has more records than its bytes allow by this
_AT_MAGIC, _AT_COUNT = 16, 57
_BASE_OFFSET, _LEADER_EPOCH = struct.Struct(">q"), struct.Struct(">i")
_AT_LEADER_EPOCH = 12


class Refused(Exception):
    """A part of a request fails with an error code of its own.

    :ivar error: the code
    :ivar detail: what is wrong, in words, for versions that can carry them
    """

    def __init__(self, error: ErrorCode, detail: str = "") -> None:
        super().__init__(error, detail)
        self.error = error
        self.detail = detail or error.meaning


class Appended(NamedTuple):
    """Where a batch stands in the log.

    :ivar size: bytes that the log has grown by; 0 for a batch that was there already
    """

    base_offset: int
    size: int


class RecordAt(NamedTuple):
    """A record that was looked for by its time."""

    offset: int
    timestamp: int


class _Stored(NamedTuple):
    base_offset: int
    last_offset: int
    max_timestamp: int
    data: bytes


_LAST_OFFSET = attrgetter("last_offset")


def check_batch(data: bytes | None, max_size: int) -> RecordBatch:
    """The one batch that a producer's records are.

    :param max_size: bytes (``max.message.bytes``)
    :raises Refused: CORRUPT_MESSAGE (2) if the size or the checksum is wrong, MESSAGE_TOO_LARGE (10),
        TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53) for a batch of a transaction, else INVALID_RECORD (87)
    """
    if not data:
        raise Refused(ErrorCode.INVALID_RECORD, "one record batch is needed, none was sent")
    if len(data) > _AT_MAGIC and data[_AT_MAGIC] != 2:
        raise Refused(ErrorCode.INVALID_RECORD, f"magic {data[_AT_MAGIC]} where 2 is needed")
    if len(data) > max_size:
        raise Refused(ErrorCode.MESSAGE_TOO_LARGE, f"{len(data)} bytes, at most {max_size} are taken")
    if int.from_bytes(data[_AT_COUNT:HEADER_SIZE], "big", signed=True) > max_size // _RECORD_SIZE:
        raise Refused(ErrorCode.MESSAGE_TOO_LARGE, f"more than {max_size // _RECORD_SIZE} records in a batch")
    try:
        batch = next(read_records(data, max_decompressed=max_size * _MAX_EXPANSION))
    except DecodeError as error:
        damaged = error.kind == "checksum" or error.path.endswith("Batch.size")
        raise Refused(ErrorCode.CORRUPT_MESSAGE if damaged else ErrorCode.INVALID_RECORD, str(error)) from None
    assert isinstance(batch, RecordBatch)
    if batch.size != len(data):
        raise Refused(ErrorCode.INVALID_RECORD, "more than one record batch for a partition")
    if batch.is_transactional:
        raise Refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactions are not served")
    if batch.is_control:
        raise Refused(ErrorCode.INVALID_RECORD, "control batches are the broker's own")
    if not batch.records or len(batch.records) != batch.last_offset_delta + 1:
        detail = f"{len(batch.records)} records with a last offset delta of {batch.last_offset_delta}"
        raise Refused(ErrorCode.INVALID_RECORD, detail)
    if batch.producer_id >= 0 and batch.base_sequence < 0:
        raise Refused(ErrorCode.INVALID_RECORD, f"an idempotent producer's base sequence is {batch.base_sequence}")
    return batch


class PartitionLog:
    """The batches of one partition.

    :ivar start_offset: of the first record that is still there
    :ivar end_offset: of the record that comes next; the high watermark too, as there is no other replica
    """

    __slots__ = ("_batches", "_producers", "end_offset", "start_offset")

    def __init__(self) -> None:
        self.start_offset = 0
        self.end_offset = 0
        self._batches: list[_Stored] = []
        self._producers: dict[int, _Producer] = {}  # by id, the last to write at the end

    def append(self, batch: RecordBatch, data: bytes) -> Appended:
        """Store a batch.

        :param batch: what `check_batch` has made of `data`
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
        _BASE_OFFSET.pack_into(patched, 0, base)
        _LEADER_EPOCH.pack_into(patched, _AT_LEADER_EPOCH, LEADER_EPOCH)
        self.end_offset = base + len(batch.records)
        max_timestamp = max(record.timestamp for record in batch.records)
        self._batches.append(_Stored(base, self.end_offset - 1, max_timestamp, bytes(patched)))
        return Appended(base, len(data))

    def _remember(self, batch: RecordBatch, producer: _Producer | None) -> None:
        if producer is None or producer.epoch != batch.producer_epoch:
            producer = _Producer(batch.producer_epoch)
        producer.batches.append((batch.base_sequence, _last_sequence(batch), self.end_offset))
        self._producers.pop(batch.producer_id, None)
        self._producers[batch.producer_id] = producer
        if len(self._producers) > _PRODUCERS:
            del self._producers[next(iter(self._producers))]

    def read(self, offset: int, max_bytes: int, first_whole: bool) -> bytes:
        """Whole batches from the one that holds `offset` on, which may begin before it.

        :param first_whole: the first batch is given even if it alone is larger than `max_bytes`
        """
        parts: list[bytes] = []
        left = max_bytes
        for index in range(bisect_left(self._batches, offset, key=_LAST_OFFSET), len(self._batches)):
            data = self._batches[index].data
            left -= len(data)
            if left < 0 and not (first_whole and not parts):
                break
            parts.append(data)
        return b"".join(parts)

    def first_since(self, timestamp: int) -> RecordAt | None:
        """The first record of this time or later; None if there is none."""
        for batch in self._batches:
            if batch.max_timestamp >= timestamp:
                return _first_since(batch, timestamp)
        return None

    def latest(self) -> RecordAt | None:
        """The first of the records with the greatest timestamp; None if there is no record."""
        if not self._batches:
            return None
        batch = max(self._batches, key=attrgetter("max_timestamp"))
        return _first_since(batch, batch.max_timestamp)

    def drop_oldest(self) -> int:
        """Forget the first batch; the log starts after it. Gives the bytes of the batch."""
        batch = self._batches.pop(0)
        self.start_offset = batch.last_offset + 1
        return len(batch.data)


def _first_since(stored: _Stored, timestamp: int) -> RecordAt:
    (batch,) = read_records(stored.data, check_crc=False)
    record = next(record for record in batch.records if record.timestamp >= timestamp)
    return RecordAt(record.offset, record.timestamp)


def _last_sequence(batch: RecordBatch) -> int:
    """Sequences go on at 0 after the greatest int32."""
    return (batch.base_sequence + batch.last_offset_delta) & _MAX_SEQUENCE


class _Producer:
    """An idempotent producer as a partition remembers it: of each batch first and last sequence, and offset."""

    __slots__ = ("batches", "epoch")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[tuple[int, int, int]] = deque(maxlen=_BATCHES_REMEMBERED)

    def find(self, batch: RecordBatch) -> int | None:
        """The offset that this batch was given before; None if it is the one that is due.

        :raises Refused: it is neither
        """
        if batch.producer_epoch < self.epoch:
            detail = f"epoch {batch.producer_epoch} of producer {batch.producer_id}, which is at {self.epoch}"
            raise Refused(ErrorCode.INVALID_PRODUCER_EPOCH, detail)
        due = 0
        if batch.producer_epoch == self.epoch:
            for first, last, offset in self.batches:
                if (first, last) == (batch.base_sequence, _last_sequence(batch)):
                    return offset
            due = (self.batches[-1][1] + 1) & _MAX_SEQUENCE
        if batch.base_sequence != due:
            detail = f"sequence {batch.base_sequence} of producer {batch.producer_id}, where {due} is due"
            raise Refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, detail)
        return None
