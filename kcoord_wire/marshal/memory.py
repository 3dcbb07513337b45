"""A broker in the memory of one process, with a coordination log and data topics, for members of it and for tests.

Laws, beside those of `log.Log` and `inbox.DataTopics`:

* Every method of `MemoryBroker` may be called from any thread; each log and each `MemoryTopics` belongs to one. Readers
  of a partition get the same records in the same order.
* Each record has the time of the broker's clock when it was appended, like ``message.timestamp.type=LogAppendTime``.
* Offsets grow by 1; `skip` leaves gaps, as control records and compaction do, `trim` removes the oldest records, as
  retention does. An entry that was trimmed before a log has returned it is a `LogError`, not a silent gap.
"""

from __future__ import annotations

import threading
import time
import uuid
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kcoord_wire.marshal.inbox import DataEvent, DataRecord, DataTopics
from kcoord_wire.marshal.log import Appended, AppendFailed, Log, LogError, RawEntry, grown, trimmed
from kcoord_wire.marshal.member_events import FetchFailed, FindStart, StartFailed, StartFound, Tenure, TopicPartitions


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
        self._ids: dict[str, str] = {}
        self._committed: dict[tuple[str, str, int], int] = {}

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic, or give it more partitions."""
        with self._changed:
            there = self._topics.setdefault(topic, [])
            self._ids.setdefault(topic, uuid.uuid4().hex)
            there += [_Partition() for _ in range(partitions - len(there))]
            self._changed.notify_all()

    def delete(self, topic: str) -> None:
        """Delete a topic, with the offsets that groups have committed; KeyError: there is none of this name."""
        with self._changed:
            del self._topics[topic], self._ids[topic]
            self._committed = {at: offset for at, offset in self._committed.items() if at[1] != topic}
            self._changed.notify_all()

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has; 0 if it does not exist."""
        with self._changed:
            return len(self._topics.get(topic, ()))

    def topic_id(self, topic: str) -> str:
        """Return what tells a topic from one of the same name that was there before; empty if it does not exist."""
        with self._changed:
            return self._ids.get(topic, "")

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


_MOST_ENTRIES: Final = 1_000  # of a partition, in one `poll`


class MemoryLog(Log):
    """One member's view of a topic of a `MemoryBroker`.

    :raises LogError: the broker has no such topic
    """

    def __init__(self, broker: MemoryBroker, topic: str = "__marshal") -> None:
        self.partitions: int = broker.partitions(topic)
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


_MOST_RECORDS: Final = 100  # of a partition, in one `poll`


@dataclass(slots=True)
class _Fetching:
    """Of a tenure.

    :ivar position: where to read from next
    :ivar covered: offset behind the last record that was returned
    """

    position: int
    covered: int
    is_paused: bool = False


class MemoryTopics(DataTopics):
    """The topics of a group at a `MemoryBroker`."""

    def __init__(self, broker: MemoryBroker, group_id: str, topics: Sequence[str]) -> None:
        self._broker = broker
        self._group_id = group_id
        self._topics = tuple(topics)
        self._known: TopicPartitions | None = None
        self._tenures: dict[Tenure, _Fetching] = {}
        self._answers: list[DataEvent] = []

    def poll(self, seconds: float) -> Sequence[DataEvent]:
        ids = {topic: topic_id for topic in self._topics if (topic_id := self._broker.topic_id(topic))}
        known = TopicPartitions({topic: self._broker.partitions(topic) for topic in self._topics}, ids)
        if known != self._known:
            self._known = known
            self._answers.append(known)
        open_at = {(t.topic, t.partition): at.position for t, at in self._tenures.items() if not at.is_paused}
        if not self._answers:
            self._broker.wait_for_records(open_at, seconds)
        events, self._answers = self._answers, []
        for tenure, fetching in list(self._tenures.items()):
            if not fetching.is_paused:
                events += self._fetched(tenure, fetching)
        return events

    def find_start(self, request: FindStart) -> None:
        tenure = request.tenure
        try:
            low, end = self._broker.bounds(tenure.topic, tenure.partition)
        except KeyError as error:
            self._answers.append(StartFailed(request.request, f"there is no partition {error.args[0]}"))
            return
        committed = self._broker.committed(self._group_id, tenure.topic, tenure.partition)
        topic_id = self._broker.topic_id(tenure.topic)
        self._answers.append(StartFound(request.request, low, end, committed, topic_id))

    def start(self, tenure: Tenure, offset: int) -> None:
        for former in [t for t in self._tenures if t[:2] == tenure[:2]]:
            self.stop(former)
        self._tenures[tenure] = _Fetching(offset, offset)

    def stop(self, tenure: Tenure) -> None:
        self._tenures.pop(tenure, None)

    def pause(self, tenure: Tenure) -> None:
        if tenure in self._tenures:
            self._tenures[tenure].is_paused = True

    def resume(self, tenure: Tenure) -> None:
        if tenure in self._tenures:
            self._tenures[tenure].is_paused = False

    def commit(self, tenure: Tenure, offset: int) -> None:
        self._broker.commit(self._group_id, tenure.topic, tenure.partition, offset)

    def end(self, tenure: Tenure) -> int:
        try:
            return self._broker.bounds(tenure.topic, tenure.partition)[1]
        except KeyError:
            return -1

    def close(self) -> None:
        self._tenures.clear()

    def _fetched(self, tenure: Tenure, fetching: _Fetching) -> Iterator[DataEvent]:
        try:
            stored = self._broker.read(tenure.topic, tenure.partition, fetching.position, _MOST_RECORDS)
        except KeyError as error:
            self.stop(tenure)
            yield FetchFailed(tenure, f"there is no partition {error.args[0]}")
            return
        if not stored.low <= fetching.position <= stored.end:
            self.stop(tenure)
            there = f"{stored.low} to {stored.end} are there"
            yield FetchFailed(tenure, f"offset {fetching.position} is out of range: {there}")
            return
        fetching.position = stored.next_offset
        for record in stored.records:
            covers_from, fetching.covered = fetching.covered, record.offset + 1
            yield DataRecord(tenure, record.offset, covers_from, record.time_ms, record.key, record.value)
