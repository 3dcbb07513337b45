"""A coordination log in memory, for members of one process and for tests.

Laws, beside those of `log.Log`:

* Logs over one `MemoryBroker` share their entries, also from several threads; each log belongs to one thread.
* Times of entries are append times.
* An entry that was trimmed before this log has returned it is a `LogError`, not a silent gap.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from kcoord_wire.marshal.log import Appended, AppendFailed, Log, LogError, RawEntry, grown, trimmed
from kcoord_wire.marshal.memory_broker import MemoryBroker

_MOST_ENTRIES: Final = 1_000  # of a partition, in one `poll`


class MemoryLog(Log):
    """One member's view of a topic of a `MemoryBroker`.

    :raises LogError: the broker has no such topic
    """

    def __init__(self, broker: MemoryBroker, topic: str = "__marshal") -> None:
        self.partitions = broker.partitions(topic)
        if not self.partitions:
            raise LogError(f"there is no topic {topic}")
        self._broker = broker
        self._topic = topic
        self._positions: dict[int, int] = {}
        self._unread: set[int] = set()
        self._results: list[tuple[Callable[[Appended | AppendFailed], None], Appended | AppendFailed]] = []

    def read_from_start(self, partitions: Collection[int]) -> None:
        self._positions = {partition: self._bounds(partition)[0] for partition in partitions}
        self._unread = set(partitions)

    def poll(self, seconds: float) -> Sequence[RawEntry]:
        if not self._results:
            at = {(self._topic, partition): offset for partition, offset in self._positions.items()}
            self._broker.wait_for_records(at, seconds)
        self._deliver_results()
        if (count := self._broker.partitions(self._topic)) != self.partitions:
            raise grown(self._topic, self.partitions, count)
        entries: list[RawEntry] = []
        for partition in self._positions:
            entries += self._read(partition)
        return entries

    def append(
        self, request: int, partition: int, value: bytes, done: Callable[[Appended | AppendFailed], None]
    ) -> None:
        result: Appended | AppendFailed
        try:
            result = Appended(request, self._broker.append(self._topic, partition, value))
        except KeyError as error:
            result = AppendFailed(request, f"there is no partition {error.args[0]}", may_have_landed=False)
        self._results.append((done, result))

    def position(self, partition: int) -> int:
        return self._positions[partition]

    def end(self, partition: int, seconds: float = 5.0) -> int:
        return self._bounds(partition)[1]

    def close(self) -> None:
        self._deliver_results()
        self._positions.clear()

    def _deliver_results(self) -> None:
        while self._results:
            done, result = self._results.pop(0)
            done(result)

    def _bounds(self, partition: int) -> tuple[int, int]:
        try:
            return self._broker.bounds(self._topic, partition)
        except KeyError as error:
            raise LogError(f"there is no partition {error.args[0]}") from None

    def _read(self, partition: int) -> list[RawEntry]:
        position = self._positions[partition]
        stored = self._broker.read(self._topic, partition, position, _MOST_ENTRIES)
        if stored.low > position and partition not in self._unread:
            raise trimmed(self._topic, partition, position, stored.low)
        self._positions[partition] = stored.next_offset
        if stored.records:
            self._unread.discard(partition)
        return [RawEntry(partition, record.offset, record.time_ms, True, record.value) for record in stored.records]
