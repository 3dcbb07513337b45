"""The leader epochs of a partition: which began at which offset (KIP-101, KIP-320).

Law: it is a function of the epochs of the batches in the log, and of the present epoch. An epoch without a batch leaves
no entry behind, as in Kafka's cache.

Source: kafka/storage `LeaderEpochFileCache.java` (assign, endOffsetFor, truncateFromStart).
"""

from __future__ import annotations

from bisect import bisect_right


class LeaderEpochs:
    """Epochs with the offsets of their first records, both ascending.

    :ivar latest: the present epoch
    """

    __slots__ = ("_epochs", "_starts", "latest")

    def __init__(self, epoch: int, start_offset: int) -> None:
        self._epochs = [epoch]
        self._starts = [start_offset]
        self.latest = epoch

    def begin(self, epoch: int, offset: int) -> None:
        """Note that the records from `offset` on are of `epoch`, which is not less than the latest."""
        if epoch == self.latest:
            return
        while self._starts and self._starts[-1] >= offset:
            self._starts.pop()
            self._epochs.pop()
        self._epochs.append(epoch)
        self._starts.append(offset)
        self.latest = epoch

    def forget_before(self, offset: int) -> None:
        """Note that the log begins at `offset` now."""
        first = max(bisect_right(self._starts, offset) - 1, 0)
        del self._epochs[:first], self._starts[:first]
        self._starts[0] = max(self._starts[0], offset)

    def at(self, offset: int) -> int:
        """Return the epoch of the record at `offset`, which is in the log."""
        return self._epochs[max(bisect_right(self._starts, offset) - 1, 0)]

    def end_of(self, epoch: int, log_end: int) -> tuple[int, int] | None:
        """Return the greatest epoch up to `epoch` and the offset after its last record; None if `epoch` is unknown.

        :param log_end: the offset after the last record of the log
        """
        if epoch == self.latest:
            return epoch, log_end
        later = bisect_right(self._epochs, epoch)
        if epoch < 0 or later == len(self._epochs):
            return None
        return (self._epochs[later - 1] if later else epoch), self._starts[later]
