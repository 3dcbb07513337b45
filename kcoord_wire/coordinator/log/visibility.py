"""Which records of a log count: the last of each key, and those of transactions that are open.

Laws:

* A record of a transaction counts once its marker says so, at the record's own offset: what another record of the key
  has at a later offset wins over it, whichever was committed first.
* A tombstone outside any transaction removes what is pending for its key, too.
* Records without a value are tombstones, of which nothing is kept.

Source: KIP-98; Kafka's `OffsetMetadataManager.java` (replayEndTransactionMarker), `LogCleaner.java`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from kcoord_wire.coordinator.core.events import Producer
from kcoord_wire.records import ControlType, Record, RecordBatch, decode_control_record

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
