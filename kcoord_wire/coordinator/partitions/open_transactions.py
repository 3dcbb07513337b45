"""The transactions in a partition: which are open, and which were aborted (KIP-98).

Laws:

* It is a function of the batches in the log, in their order: `OpenTransactions.update` is called for each batch when it
  is appended, and again for each when the log is read after a restart.
* The first unstable offset never decreases: a transaction begins at the end of the log, and is never reopened.

Source: kafka/storage `ProducerStateManager.java` (firstUnstableOffset), `TransactionIndex.java`, `AbortedTxn.java`.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import Final, NamedTuple

from kcoord_wire.coordinator.partitions.batch_header import Header
from kcoord_wire.records import ControlType

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
