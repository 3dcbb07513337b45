"""What a partition knows of its idempotent producers, by which it recognises a batch that was sent twice (KIP-98).

Laws:

* It is a function of the headers of the batches in the log, in their order: `Producers.update` is called for each batch
  when it is appended, and again for each when the log is read after a restart.
* A batch that is sent again is found if it is among its producer's last five. The least recent producers are forgotten,
  never one whose transaction is open: its epoch fences late batches.

Source: kafka/storage `ProducerAppendInfo.java`, `ProducerStateEntry.java`, `ProducerStateManager.java`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kcoord_wire.coordinator.partitions.batch_header import MAX_SEQUENCE, Header, Refused
from kcoord_wire.protocol.error_codes import ErrorCode

_MOST_REMEMBERED = 256  # producers without an open transaction, about 250 KB
_BATCHES_REMEMBERED = 5  # max.in.flight.requests.per.connection of an idempotent producer


class ProducerState(NamedTuple):
    """A producer, as DescribeProducers describes it.

    :ivar producer_id: its id
    :ivar producer_epoch: its epoch
    :ivar last_sequence: of its last record; -1 if only markers are left of it
    :ivar last_timestamp: the greatest of its last batch, markers included, ms
    :ivar coordinator_epoch: of the coordinator that ended its last transaction; -1, as Kafka has it without one
    :ivar current_txn_start_offset: of its open transaction; -1 if there is none
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int


class Producers:
    """The idempotent producers of a partition."""

    __slots__ = ("_idle", "_open")

    def __init__(self) -> None:
        self._idle: dict[int, _Producer] = {}  # by id, in the order of their last writes
        self._open: dict[int, _Producer] = {}  # those with an open transaction

    def find(self, batch: Header) -> int | None:
        """Return the offset of this batch if it was stored before; None if it is to be stored.

        :raises Refused: OUT_OF_ORDER_SEQUENCE_NUMBER (45), INVALID_PRODUCER_EPOCH (47)
        """
        producer = self._known(batch.producer_id)
        return None if producer is None else producer.find(batch)

    def epoch(self, producer_id: int) -> int:
        """Return the epoch of a producer; -1 if it is not known."""
        producer = self._known(producer_id)
        return -1 if producer is None else producer.epoch

    def _known(self, producer_id: int) -> _Producer | None:
        return self._idle.get(producer_id) or self._open.get(producer_id)

    def states(self, first_offset: Callable[[int], int | None]) -> list[ProducerState]:
        """Describe all producers.

        :param first_offset: of a producer's open transaction; None if it has none
        """
        states = []
        for producer_id, producer in (*self._open.items(), *self._idle.items()):
            last = producer.batches[-1][1] if producer.batches else -1
            start = first_offset(producer_id)
            states.append(
                ProducerState(
                    producer_id,
                    producer.epoch,
                    last,
                    producer.timestamp,
                    producer.coordinator_epoch,
                    -1 if start is None else start,
                )
            )
        return states

    def update(self, batch: Header, base_offset: int, coordinator_epoch: int | None, *, is_open: bool) -> None:
        """Note that the log has this batch at this offset.

        :param coordinator_epoch: that the batch names, if it is a marker; else None
        :param is_open: whether the producer has an open transaction with this batch
        """
        if batch.producer_id < 0:
            return
        producer = self._idle.pop(batch.producer_id, None) or self._open.pop(batch.producer_id, None)
        if producer is None or producer.epoch != batch.producer_epoch:
            producer = _Producer(batch.producer_epoch, -1 if producer is None else producer.coordinator_epoch)
        producer.timestamp = batch.max_timestamp
        if coordinator_epoch is not None:
            producer.coordinator_epoch = coordinator_epoch
        if not batch.is_control:  # a marker has no sequence number, and fences producers with an older epoch
            producer.batches = (*producer.batches, (batch.base_sequence, batch.last_sequence, base_offset))
            producer.batches = producer.batches[-_BATCHES_REMEMBERED:]
        (self._open if is_open else self._idle)[batch.producer_id] = producer
        if len(self._idle) > _MOST_REMEMBERED:
            del self._idle[next(iter(self._idle))]


class _Producer:
    """A producer.

    :ivar epoch: its epoch
    :ivar batches: first and last sequence number and offset of its last batches
    :ivar timestamp: the greatest of the last batch
    :ivar coordinator_epoch: of its last marker; -1 without one
    """

    __slots__ = ("batches", "coordinator_epoch", "epoch", "timestamp")

    def __init__(self, epoch: int, coordinator_epoch: int) -> None:
        self.epoch = epoch
        self.coordinator_epoch = coordinator_epoch
        self.batches: tuple[tuple[int, int, int], ...] = ()
        self.timestamp = -1

    def find(self, batch: Header) -> int | None:
        """Return the offset of this batch if it was stored before; None if it is the expected next one.

        :raises Refused: it is neither
        """
        if batch.producer_epoch < self.epoch:
            detail = f"epoch {batch.producer_epoch} of producer {batch.producer_id}, which is at {self.epoch}"
            raise Refused(ErrorCode.INVALID_PRODUCER_EPOCH, detail)
        due = 0
        if batch.producer_epoch == self.epoch and self.batches:
            for first, last, offset in self.batches:
                if (first, last) == (batch.base_sequence, batch.last_sequence):
                    return offset
            due = (self.batches[-1][1] + 1) & MAX_SEQUENCE
        if batch.base_sequence != due:
            detail = f"sequence {batch.base_sequence} of producer {batch.producer_id}, where {due} is due"
            raise Refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, detail)
        return None
