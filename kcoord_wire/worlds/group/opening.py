"""An application that opens its partitions beside its work, as Kafka Streams restores state (KAFKA-10199).

Laws:

* One partition is opened at a time, in the order of their assignment; a batch goes in the order of topic and number.
* A partition that is dropped before it is open is never reported, and takes no time from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.kernel.virtual.clock import VirtualClock


class Opening:
    """The partitions of one process that are not open yet.

    :param ms: how long one takes
    :param opened: called with each when it is open
    """

    __slots__ = ("_clock", "_ms", "_opened", "_serial", "_waiting")

    def __init__(self, clock: VirtualClock, ms: int, opened: Callable[[TopicPartition], None]) -> None:
        self._clock = clock
        self._ms = ms
        self._opened = opened
        self._waiting: list[TopicPartition] = []  # the first is being opened
        self._serial = 0  # of the opening that is under way

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Open these after those that wait already."""
        is_idle = not self._waiting
        self._waiting += sorted(partitions)
        if is_idle:
            self._begin()

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Do not open these any more."""
        dropped = set(partitions)
        is_first_dropped = bool(self._waiting) and self._waiting[0] in dropped
        self._waiting = [partition for partition in self._waiting if partition not in dropped]
        if is_first_dropped:
            self._begin()

    def _begin(self) -> None:
        self._serial += 1
        if self._waiting:
            self._clock.after(self._ms, self._end, self._serial)

    def _end(self, serial: int) -> None:
        if serial == self._serial:
            partition = self._waiting.pop(0)
            self._begin()
            self._opened(partition)
