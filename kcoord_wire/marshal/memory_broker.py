"""Topics in the memory of one process: what `memory_log.MemoryLog` and `memory_topics.MemoryTopics` share.

Laws:

* Every method may be called from any thread; readers of a partition get the same records in the same order.
* Each record has the time of the broker's clock when it was appended, like ``message.timestamp.type=LogAppendTime``.
* Offsets grow by 1; `skip` leaves gaps, as control records and compaction do, `trim` removes the oldest records, as
  retention does.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class StoredRecord(NamedTuple):
    """A record of a topic.

    :ivar time_ms: of the append, ms since the Unix epoch
    """

    offset: int
    time_ms: int
    key: bytes | None
    value: bytes | None


class Stored(NamedTuple):
    """What a read has found.

    :ivar next_offset: where to read from next
    :ivar low: the first offset that is there
    :ivar end: the offset behind the last one
    """

    records: Sequence[StoredRecord]
    next_offset: int
    low: int
    end: int


@dataclass(slots=True)
class _Partition:
    low: int = 0
    end: int = 0
    records: list[StoredRecord] = field(default_factory=list)

    def index(self, offset: int) -> int:
        return bisect_left(self.records, offset, key=lambda record: record.offset)


class MemoryBroker:
    """Topics and committed offsets.

    :param clock: the time in ms since the Unix epoch; None for that of the system
    """

    def __init__(self, clock: Callable[[], int] | None = None) -> None:
        self._clock = clock or (lambda: time.time_ns() // 1_000_000)
        self._changed = threading.Condition()
        self._topics: dict[str, list[_Partition]] = {}
        self._committed: dict[tuple[str, str, int], int] = {}

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic, or give it more partitions."""
        with self._changed:
            there = self._topics.setdefault(topic, [])
            there += [_Partition() for _ in range(partitions - len(there))]
            self._changed.notify_all()

    def delete(self, topic: str) -> None:
        """Delete a topic; KeyError: there is none of this name."""
        with self._changed:
            del self._topics[topic]
            self._changed.notify_all()

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has; 0 if it does not exist."""
        with self._changed:
            return len(self._topics.get(topic, ()))

    def append(self, topic: str, partition: int, value: bytes | None, key: bytes | None = None) -> int:
        """Append a record and return its offset.

        :raises KeyError: there is no such partition
        """
        with self._changed:
            there = self._partition(topic, partition)
            offset = there.end
            there.records.append(StoredRecord(offset, self._clock(), key, value))
            there.end += 1
            self._changed.notify_all()
            return offset

    def skip(self, topic: str, partition: int, offsets: int = 1) -> None:
        """Let the next offsets have no record. KeyError: there is no such partition."""
        with self._changed:
            self._partition(topic, partition).end += offsets
            self._changed.notify_all()

    def trim(self, topic: str, partition: int, before: int) -> None:
        """Remove the records below an offset, which becomes the first one. KeyError: there is no such partition."""
        with self._changed:
            there = self._partition(topic, partition)
            there.low = max(there.low, min(before, there.end))
            del there.records[: there.index(there.low)]
            self._changed.notify_all()

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the first offset that is there, and the one behind the last. KeyError: there is no such partition."""
        with self._changed:
            there = self._partition(topic, partition)
            return there.low, there.end

    def read(self, topic: str, partition: int, offset: int, most: int) -> Stored:
        """Return records from an offset on, so many at most. KeyError: there is no such partition."""
        with self._changed:
            there = self._partition(topic, partition)
            first = there.index(offset)
            records = there.records[first : first + most]
            is_all = first + most >= len(there.records)
            next_offset = max(offset, there.end) if is_all else records[-1].offset + 1
            return Stored(records, next_offset, there.low, there.end)

    def commit(self, group_id: str, topic: str, partition: int, offset: int) -> None:
        """Store a group's offset."""
        with self._changed:
            self._committed[group_id, topic, partition] = offset

    def committed(self, group_id: str, topic: str, partition: int) -> int | None:
        """Return a group's offset; None for none."""
        with self._changed:
            return self._committed.get((group_id, topic, partition))

    def wait_for_records(self, positions: Mapping[tuple[str, int], int], seconds: float) -> None:
        """Wait up to so long until one of these partitions has records from its offset on, or is gone."""
        with self._changed:
            self._changed.wait_for(
                lambda: any(self._is_behind(*at, offset) for at, offset in positions.items()), seconds
            )

    def _is_behind(self, topic: str, partition: int, offset: int) -> bool:
        partitions = self._topics.get(topic, ())
        return partition >= len(partitions) or partitions[partition].end > offset

    def _partition(self, topic: str, partition: int) -> _Partition:
        partitions = self._topics.get(topic, ())
        if not 0 <= partition < len(partitions):
            raise KeyError(f"{topic}-{partition}")
        return partitions[partition]
