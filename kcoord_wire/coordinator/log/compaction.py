"""What compaction keeps of a log, and the batches that it writes of that.

Laws:

* Records keep their offsets. The batches cover the offsets of dropped records too, so that none is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from kcoord_wire.coordinator.core.events import Producer
from kcoord_wire.coordinator.log.segments import MAX_OFFSET_DELTA, encode_log_batch
from kcoord_wire.coordinator.log.visibility import Visibility
from kcoord_wire.records import Record, RecordBatch
from kcoord_wire.records.model import MAX_INT64


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
