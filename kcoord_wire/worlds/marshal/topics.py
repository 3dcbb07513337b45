"""The topics that members consume, generated: their records come with the virtual clock.

Laws:

* A partition begins with offset 0 and grows by a constant rate from the moment at which it was added.
* A topic with holes has no record at each tenth offset, as after a transaction or a compaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from kcoord_wire.kernel.virtual.clock import VirtualClock

_HOLE_EACH: Final = 10
_MS: Final = 1000


class VirtualTopics:
    """Topics, and the offsets that groups have committed.

    :param counts: name to number of partitions
    :param rate: offsets a second of each partition
    :param has_holes: whether some offsets have no record
    :ivar counts: as they are now
    :ivar committed: by group, topic and partition
    """

    def __init__(self, clock: VirtualClock, counts: Mapping[str, int], rate: float, *, has_holes: bool) -> None:
        self.counts: dict[str, int] = {}
        self.committed: dict[tuple[str, str, int], int] = {}
        self._clock = clock
        self._rate = rate
        self._has_holes = has_holes
        self._since: dict[tuple[str, int], int] = {}
        for topic, count in counts.items():
            self.grow(topic, count)

    def grow(self, topic: str, count: int) -> None:
        """Add partitions of a topic, or create it."""
        before = self.counts.get(topic, 0)
        self.counts[topic] = before + count
        for number in range(before, before + count):
            self._since[topic, number] = self._clock.time_ms

    def end(self, topic: str, partition: int) -> int:
        """Return the offset behind the last record."""
        return int((self._clock.time_ms - self._since[topic, partition]) * self._rate / _MS)

    def records(self, topic: str, partition: int, start: int, most: int) -> Iterator[int]:
        """Yield the offsets of the records from `start` on, at most so many."""
        end = self.end(topic, partition)
        while start < end and most > 0:
            if self.is_record(start):
                most -= 1
                yield start
            start += 1

    def is_record(self, offset: int) -> bool:
        """Return whether there is a record at an offset below the end."""
        return not self._has_holes or offset % _HOLE_EACH != _HOLE_EACH - 1

    def start(self, group_id: str, topic: str, partition: int, offset: int) -> int:
        """Return where to start; see `marshal.events.FindStart`."""
        found = offset if offset > 0 else self.committed.get((group_id, topic, partition), 0)
        return max(0, min(found, self.end(topic, partition)))
