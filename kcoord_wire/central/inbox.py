"""The records of one assignment between the fetcher and the application, and how far each partition is.

Laws:

* An inbox belongs to one `StartFetchers`. It is closed when the fetchers stop, and what comes later is dropped: nothing
  of an earlier assignment is handed over, and no position of it moves.
* A position moves only past records that were handed over and are processed: each record is delivered at least once.
* `wants` bounds what is held: one answer of each partition, and none above `LARGEST_INBOX` bytes of values.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kcoord_wire.central.draft.events import CentralError, Partition, StartFetchers

LARGEST_INBOX: Final = 4 << 20


class Record(NamedTuple):
    """A record for the application.

    :ivar thread: the consumer thread (stream) that owns the partition
    """

    partition: Partition
    offset: int
    value: bytes
    thread: str


@dataclass(slots=True)
class PartitionState:
    """One partition of an assignment.

    :ivar position: the next offset to process; negative while it is not known
    :ivar next_fetch: the next offset to fetch; -2 for the first, -1 for the end of the partition
    :ivar end_offset: of the partition at the last answer; -1 before it
    :ivar processed: number of records since the assignment
    :ivar waiting: records that wait for the application
    :ivar error: why its fetcher has stopped; NONE if it has not
    """

    thread: str
    position: int
    next_fetch: int
    end_offset: int = -1
    processed: int = 0
    waiting: int = 0
    error: CentralError = CentralError.NONE

    @property
    def lag(self) -> int | None:
        """Records that are not processed; None while not known."""
        return None if self.position < 0 or self.end_offset < 0 else max(0, self.end_offset - self.position)


class Inbox:
    """See the module.

    :param moved: called when the position of a partition has moved, with the new one
    :param failed: called when the fetcher of a partition has stopped by itself
    :param arrived: called when there are records for the application
    :ivar partitions: those of the assignment
    """

    def __init__(
        self,
        start: StartFetchers,
        moved: Callable[[Partition, int], None],
        failed: Callable[[Partition, CentralError], None],
        arrived: Callable[[], None],
    ) -> None:
        self.partitions = {
            partition: PartitionState(thread, offset, offset)
            for thread, offsets in start.threads.items()
            for partition, offset in offsets.items()
        }
        self.is_closed = False
        self._moved = moved
        self._failed = failed
        self._arrived = arrived
        self._records: deque[Record] = deque()
        self._bytes = 0
        self._room = asyncio.Event()

    # ---- the fetcher's side

    def wants(self, partition: Partition) -> bool:
        """Whether to fetch it now."""
        state = self.partitions[partition]
        return not state.error and not state.waiting and self._bytes < LARGEST_INBOX

    async def wait_for_room(self) -> None:
        """Return once the application has taken a record."""
        self._room.clear()
        await self._room.wait()

    def resolve(self, partition: Partition, offset: int) -> None:
        """A partition without a committed offset begins here."""
        if not self.is_closed:
            state = self.partitions[partition]
            state.position = state.next_fetch = offset
            self._moved(partition, offset)

    def put(self, partition: Partition, records: Sequence[tuple[int, bytes]], end_offset: int) -> None:
        """Add what was fetched: offsets, which increase, with their values."""
        if self.is_closed:
            return
        state = self.partitions[partition]
        state.end_offset = end_offset
        for offset, value in records:
            self._records.append(Record(partition, offset, value, state.thread))
            self._bytes += len(value)
            state.next_fetch = offset + 1
        state.waiting += len(records)
        if records:
            self._arrived()

    def fail(self, partition: Partition, error: CentralError) -> None:
        """The fetcher of a partition has stopped; what it has fetched is still handed over."""
        if not self.is_closed:
            self.partitions[partition].error = error
            self._failed(partition, error)

    # ---- the application's side

    def take(self) -> Record | None:
        """Hand over the next record; None if none waits."""
        if not self._records:
            return None
        record = self._records.popleft()
        self._bytes -= len(record.value)
        self.partitions[record.partition].waiting -= 1
        self._room.set()
        return record

    def processed(self, record: Record) -> None:
        """The application is done with a record that `take` has returned."""
        if self.is_closed:
            return
        state = self.partitions[record.partition]
        state.position = record.offset + 1
        state.processed += 1
        self._moved(record.partition, state.position)

    def close(self) -> dict[Partition, int]:
        """Drop what waits, and return the positions that are known."""
        self.is_closed = True
        self._records.clear()
        return {partition: state.position for partition, state in self.partitions.items() if state.position >= 0}
