"""The batches of the coordinator's logs: formats of their records, which of these count, and what compaction keeps.

Laws:

* A record of a transaction counts once its marker says so, at the record's own offset: what another record of the key
  has at a later offset wins over it, whichever was committed first. A tombstone outside any transaction removes what is
  pending for its key, too.
* Compaction keeps the last record of every key, at its offset. Tombstones are dropped, as nothing older is left for
  them to hide; so are markers and what was aborted. What was committed in a transaction becomes like any other record,
  what is pending stays in batches of its producer. The batches also cover the offsets of dropped records.

Source: kafka `GroupCoordinatorRecordSerde.java`, `TransactionLog.java`; kafka/storage `LogCleaner.java`; KIP-98 and
`OffsetMetadataManager.java` (replayEndTransactionMarker).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Final, Generic, NamedTuple, TypeVar

from kcoord_wire.coordinator.core.events import LogRecord, Producer
from kcoord_wire.log.segments import LEADER_EPOCH
from kcoord_wire.records import (
    ControlType,
    Record,
    RecordBatch,
    decode_control_batch,
    decode_offsets_record,
    decode_transaction_record,
    encode_batch,
    encode_offsets_record,
    encode_transaction_record,
)
from kcoord_wire.records.model import MAX_INT64
from kcoord_wire.records.share_state import decode_share_record, encode_share_record

MAX_OFFSET_DELTA = (1 << 31) - 1


class RecordFormat(NamedTuple):
    """The records of one log.

    :ivar topic: the topic of Kafka that has these records
    :ivar encode: returns key and value in bytes; raises EncodeError
    :ivar decode: returns the record of key and value; None for a type that is not known; raises DecodeError
    """

    topic: str
    encode: Callable[[Any, Any | None], tuple[bytes, bytes | None]]
    decode: Callable[[bytes | None, bytes | None], LogRecord | None]


def _decode_offsets(key: bytes | None, value: bytes | None) -> LogRecord | None:
    record = decode_offsets_record(key, value)
    return None if record.key is None else LogRecord(record.key, record.value)


def _decode_transaction(key: bytes | None, value: bytes | None) -> LogRecord | None:
    return LogRecord(*decode_transaction_record(key, value))


def _decode_share(key: bytes | None, value: bytes | None) -> LogRecord | None:
    record = decode_share_record(key, value)
    return None if record is None else LogRecord(*record)


OFFSETS: Final = RecordFormat("__consumer_offsets", encode_offsets_record, _decode_offsets)
"""Groups and committed offsets."""

TRANSACTIONS: Final = RecordFormat("__transaction_state", encode_transaction_record, _decode_transaction)
"""Transactional ids."""

SHARES: Final = RecordFormat("__share_group_state", encode_share_record, _decode_share)
"""What became of the records that share groups read."""

OFFSETS_FOLDER: Final = "__consumer_offsets-0"
"""The folder of the groups' log in that of a coordinator."""

TRANSACTIONS_FOLDER: Final = "transactions"
"""Likewise, of the log of transactions."""

SHARES_FOLDER: Final = "shares"
"""Likewise, of the log of share groups."""


class LogBatch(NamedTuple):
    """A batch of a log.

    :ivar records: with their offsets
    :ivar producer: of the open transaction that they belong to; None if they belong to none
    :ivar is_marker: whether it ends that transaction
    """

    records: list[Record]
    producer: Producer | None = None
    is_marker: bool = False

    def encode(self, base_offset: int | None = None, last_offset: int | None = None) -> bytes:
        """Return its bytes, from the offset of its first record to that of its last, unless it covers others, too."""
        producer_id, epoch = self.producer or (-1, -1)
        return encode_batch(
            self.records,
            base_offset=base_offset,
            last_offset=last_offset,
            transactional=self.producer is not None,
            control=self.is_marker,
            producer_id=producer_id,
            producer_epoch=epoch,
            partition_leader_epoch=LEADER_EPOCH,
        )


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

    def add(self, batch: RecordBatch) -> None:
        """Take in the next batch. Errors as `decode_control_batch`."""
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
        if decode_control_batch(batch).type == ControlType.COMMIT:
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
            yield LogBatch(batch, of if batch else None).encode(base, last)
            base, size, batch, full = last + 1, 0, [], record is None
        if record is not None:
            of = producer
            batch.append(record)
            size += len(record.key or b"") + len(record.value or b"")
