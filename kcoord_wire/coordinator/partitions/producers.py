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
from operator import attrgetter
from typing import Final, NamedTuple

from kcoord_wire.coordinator.core.apis import Refused
from kcoord_wire.coordinator.partitions.batch_header import MAX_SEQUENCE, Header
from kcoord_wire.coordinator.partitions.journal import Journal
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.records import ControlRecord, ControlType

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


class LastBatch(NamedTuple):
    """What is the latest in the log of a producer.

    :ivar epoch: its epoch
    :ivar offset: of its last record; -1 if only markers are left of it
    """

    epoch: int
    offset: int


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


class _Producer:
    """A producer.

    :ivar epoch: its epoch
    :ivar batches: first and last sequence number and offset of its last batches
    :ivar timestamp: the greatest of the last batch
    :ivar coordinator_epoch: of its last marker; -1 without one
    :ivar first_offset: of its open transaction; -1 if there is none
    """

    __slots__ = ("batches", "coordinator_epoch", "epoch", "first_offset", "timestamp")

    def __init__(self, epoch: int, coordinator_epoch: int = -1, first_offset: int = -1) -> None:
        self.epoch = epoch
        self.coordinator_epoch = coordinator_epoch
        self.first_offset = first_offset
        self.batches: tuple[tuple[int, int, int], ...] = ()
        self.timestamp = -1

    def state(self, producer_id: int) -> ProducerState:
        last = self.batches[-1][1] if self.batches else -1
        return ProducerState(producer_id, self.epoch, last, self.timestamp, self.coordinator_epoch, self.first_offset)

    @property
    def last_offset(self) -> int:
        """Of its last record; -1 if only markers are left of it."""
        if not self.batches:
            return -1
        first, last, offset = self.batches[-1]
        return offset + ((last - first) & MAX_SEQUENCE)

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


class Producers:
    """The idempotent producers of a partition, and their transactions.

    :ivar aborted: the transactions that were aborted, by their markers
    """

    __slots__ = ("_idle", "_open", "aborted")

    def __init__(self) -> None:
        self._idle: dict[int, _Producer] = {}  # by id, in the order of their last writes
        self._open: dict[int, _Producer] = {}  # those with an open transaction, in the order in which these began
        self.aborted: list[AbortedTransaction] = []

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

    def states(self) -> list[ProducerState]:
        """Describe all producers."""
        return [producer.state(producer_id) for producer_id, producer in (*self._open.items(), *self._idle.items())]

    def update(self, batch: Header, base_offset: int, marker: ControlRecord | None) -> None:
        """Note that the log has this batch at this offset.

        :param marker: the record of a control batch; None for any other batch, and where compaction has left none
        """
        producer_id = batch.producer_id
        if producer_id < 0:
            return
        producer = self._known(producer_id)
        if producer is None:
            producer = _Producer(batch.producer_epoch)
        elif producer.epoch != batch.producer_epoch:
            producer = _Producer(batch.producer_epoch, producer.coordinator_epoch, producer.first_offset)
        producer.timestamp = batch.max_timestamp
        if batch.is_control:  # it has no sequence number, and fences producers with an older epoch
            if marker is not None:
                self._end(producer_id, producer, marker, base_offset)
            producer.first_offset = -1
        else:
            producer.batches = (*producer.batches, (batch.base_sequence, batch.last_sequence, base_offset))
            producer.batches = producer.batches[-_BATCHES_REMEMBERED:]
            if batch.is_transactional and producer.first_offset < 0:
                producer.first_offset = base_offset
        self._idle.pop(producer_id, None)
        if producer.first_offset >= 0:
            self._open[producer_id] = producer
            return
        self._open.pop(producer_id, None)
        self._idle[producer_id] = producer
        if len(self._idle) > _MOST_REMEMBERED:
            del self._idle[next(iter(self._idle))]

    def _end(self, producer_id: int, producer: _Producer, marker: ControlRecord, offset: int) -> None:
        if marker.coordinator_epoch is not None:
            producer.coordinator_epoch = marker.coordinator_epoch
        if producer.first_offset >= 0 and marker.type == ControlType.ABORT:
            self.aborted.append(AbortedTransaction(producer_id, producer.first_offset, offset))

    def last_batches(self) -> dict[int, LastBatch]:
        """Return what is the latest of each producer, by id."""
        known = (*self._open.items(), *self._idle.items())
        return {producer_id: LastBatch(producer.epoch, producer.last_offset) for producer_id, producer in known}

    # ---- their transactions

    @property
    def first_unstable(self) -> int | None:
        """Offset of the first record whose transaction is open; None if none is."""
        return next(iter(self._open.values())).first_offset if self._open else None

    @property
    def is_full(self) -> bool:
        """Whether no further transaction may begin."""
        return len(self._open) >= MOST_OPEN

    def has_open(self, producer_id: int) -> bool:
        """Return whether a producer has an open transaction here."""
        return producer_id in self._open

    def aborted_between(self, first: int, end: int) -> list[AbortedTransaction]:
        """Return the aborted transactions of which a reader of the offsets from `first` up to `end` has to know."""
        at = bisect_left(self.aborted, first, key=_LAST_OFFSET)
        return [transaction for transaction in self.aborted[at:] if transaction.first_offset < end]

    def compacted(self, end: int, left: list[AbortedTransaction]) -> None:
        """Note which of the aborted transactions that end before an offset are left in the log."""
        at = bisect_left(self.aborted, end, key=_LAST_OFFSET)
        self.aborted[:at] = sorted((each for each in left if each.last_offset < end), key=_LAST_OFFSET)

    def forget_before(self, start_offset: int) -> None:
        """Forget the aborted transactions that end before the log starts."""
        at = bisect_left(self.aborted, start_offset, key=_LAST_OFFSET)
        del self.aborted[:at]


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
