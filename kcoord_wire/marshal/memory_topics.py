"""Data topics in memory: those of a `MemoryBroker`, for members of one process and for tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kcoord_wire.kernel.machines import Noted
from kcoord_wire.marshal.events import FetchFailed, FindStart, StartFailed, StartFound, Tenure, TopicPartitions
from kcoord_wire.marshal.memory_broker import MemoryBroker
from kcoord_wire.marshal.topics import DataEvent, DataRecord, DataTopics, choose_start

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
        self._counts: dict[str, int] = {}
        self._tenures: dict[Tenure, _Fetching] = {}
        self._answers: list[DataEvent] = []

    def poll(self, seconds: float) -> Sequence[DataEvent]:
        counts = {topic: self._broker.partitions(topic) for topic in self._topics}
        if counts != self._counts:
            self._counts = counts
            self._answers.append(TopicPartitions(dict(counts)))
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
        start = choose_start(request.offset, committed, low, end)
        if start.note:
            facts = {"topic": tenure.topic, "partition": tenure.partition, "reason": start.note}
            self._answers.append(Noted(logging.WARNING, "start moved", facts))
        self._answers.append(StartFound(request.request, start.offset))

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
