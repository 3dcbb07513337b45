"""What a partition knows of its producers (KIP-98): batches sent twice, and transactions that are open or were aborted;
and ids for producers.

Laws:

* It is a function of the headers and markers of the batches in the log, in their order: `update` is called for each
  batch when it is appended, and again for each when the log is read after a restart.
* A batch that is sent again is found if it is among its producer's last five. The least recent producers are forgotten,
  never one whose transaction is open: its epoch fences late batches.
* The first unstable offset never decreases: a transaction begins at the end of the log, and is never reopened.
* No id is given away twice, nor after a restart: ids are reserved in the journal, in blocks, before they are used.
  The first of a process is not less than the time, so that ids are also unique where the journal is lost with the
  process, or cannot be written.

Source: kafka/storage `ProducerAppendInfo.java`, `ProducerStateEntry.java`, `ProducerStateManager.java`
(firstUnstableOffset), `TransactionIndex.java`, `AbortedTxn.java`; kafka `ProducerIdManager`,
`ProducerIdControlManager.java`.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable
from operator import attrgetter
from typing import Final, NamedTuple

from kcoord_wire.coordinator.core.apis import Refused
from kcoord_wire.coordinator.partitions.batch_header import MAX_SEQUENCE, Header
from kcoord_wire.coordinator.partitions.journal import Journal
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.records import ControlType

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
        return [
            producer.state(producer_id, first_offset(producer_id))
            for producer_id, producer in (*self._open.items(), *self._idle.items())
        ]

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

    def state(self, producer_id: int, first_offset: int | None) -> ProducerState:
        last = self.batches[-1][1] if self.batches else -1
        start = -1 if first_offset is None else first_offset
        return ProducerState(producer_id, self.epoch, last, self.timestamp, self.coordinator_epoch, start)

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


_BLOCK: Final = 1_000

_log = logging.getLogger("kcoord_wire.coordinator")


class ProducerIds:
    """Gives ids away.

    :param journal: has the blocks that are reserved
    :param below: ids below this may have been given away
    """

    def __init__(self, journal: Journal, below: int) -> None:
        self._journal = journal
        self._next: int | None = None
        self._reserved = below

    def allocate(self, now: int) -> int:
        """Return an id that no producer has or had."""
        taken = max(self._reserved, now) if self._next is None else self._next
        if taken >= self._reserved:
            try:
                self._journal.producer_ids_reserved(taken + _BLOCK)
                self._reserved = taken + _BLOCK
            except OSError as error:
                _log.error("ids of producers from %d on cannot be reserved: %s", taken, error)
        self._next = taken + 1
        return taken


MOST_OPEN: Final = 10_000
"""The transactions that may be open in a partition; their producers are remembered, 10 MB. Kafka has no bound."""


class AbortedTransaction(NamedTuple):
    """A transaction whose records do not count.

    :ivar producer_id: of its producer
    :ivar first_offset: of its first record in the partition
    :ivar last_offset: of its marker
    """

    producer_id: int
    first_offset: int
    last_offset: int


_LAST_OFFSET = attrgetter("last_offset")


class OpenTransactions:
    """The transactions of one partition.

    :ivar aborted: by their markers
    """

    __slots__ = ("_open", "aborted")

    def __init__(self) -> None:
        self._open: dict[int, int] = {}  # producer id -> offset of the first record; they begin in this order
        self.aborted: list[AbortedTransaction] = []

    @property
    def first_unstable(self) -> int | None:
        """Offset of the first record whose transaction is open; None if none is."""
        return next(iter(self._open.values())) if self._open else None

    @property
    def is_full(self) -> bool:
        """Whether no further transaction may begin."""
        return len(self._open) >= MOST_OPEN

    def first_offset(self, producer_id: int) -> int | None:
        """Return the offset of the first record of the producer's open transaction; None if it has none here."""
        return self._open.get(producer_id)

    def update(self, batch: Header, base_offset: int, marker: ControlType | int | None) -> None:
        """Note that the log has this batch at this offset.

        :param marker: the type of a control batch; None for any other batch
        """
        if marker is not None:
            first = self._open.pop(batch.producer_id, None)
            if first is not None and marker == ControlType.ABORT:
                self.aborted.append(AbortedTransaction(batch.producer_id, first, base_offset))
        elif batch.is_transactional:
            self._open.setdefault(batch.producer_id, base_offset)

    def aborted_between(self, first: int, end: int) -> list[AbortedTransaction]:
        """Return the aborted transactions of which a reader of the offsets from `first` up to `end` has to know."""
        at = bisect_left(self.aborted, first, key=_LAST_OFFSET)
        return [transaction for transaction in self.aborted[at:] if transaction.first_offset < end]

    def forget_before(self, start_offset: int) -> None:
        """Forget the aborted transactions that end before the log starts."""
        at = bisect_left(self.aborted, start_offset, key=_LAST_OFFSET)
        del self.aborted[:at]
