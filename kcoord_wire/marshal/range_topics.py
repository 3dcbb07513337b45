"""The records of ranges of a partition, one range after the other, from topics that know tenures of whole partitions.

Laws, beside those of `inbox.DataTopics` for what is here:

* A tenure gets the records of its range and no other. If its last offsets have no record, `Covered` follows, with the
  first record behind the range: nothing else shows that there will be none.
* Of the ranges of a partition the lowest that is not read is read first, also if it was won while another is read.
* What lies between two ranges is read and dropped if it is little (`READ_ON`), else the stream begins anew behind it.
* A range that begins behind the end of the partition is read from that end on: its offsets do not exist yet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from kcoord_wire.marshal.context import TopicPartition
from kcoord_wire.marshal.inbox import Covered, DataEvent, DataRecord, DataTopics
from kcoord_wire.marshal.member_events import FetchFailed, FindStart, StartFailed, StartFound, Tenure

READ_ON: Final = 10_000
"""Offsets. A stream that begins anew drops what was fetched ahead, and asks a broker for the end first."""


@dataclass(slots=True)
class _Span:
    """What is not read of a range.

    :ivar position: its next offset
    """

    tenure: Tenure
    position: int
    end: int


@dataclass(slots=True)
class _Stream:
    """A tenure of the whole partition, as the topics below know it; `position` is its next offset."""

    tenure: Tenure
    position: int


class RangeTopics:
    """Topics whose tenures are ranges.

    :param topics: whose tenures are partitions; closed with this
    """

    def __init__(self, topics: DataTopics) -> None:
        self._topics = topics
        self._spans: defaultdict[TopicPartition, list[_Span]] = defaultdict(list)  # ascending
        self._streams: dict[TopicPartition, _Stream] = {}
        self._asked: dict[int, TopicPartition] = {}
        self._requests = count(-1, -1)  # those of the machine are positive

    def poll(self, seconds: float) -> Sequence[DataEvent]:
        """Return what has come; see `DataTopics.poll`."""
        events: list[DataEvent] = []
        for event in self._topics.poll(seconds):
            events += self._take(event)
        return events

    def find_start(self, request: FindStart) -> None:
        """See `DataTopics.find_start`."""
        self._topics.find_start(request)

    def start(self, tenure: Tenure, offset: int, end: int) -> None:
        """Fetch the records of a range from an offset on."""
        place = TopicPartition(tenure.topic, tenure.partition)
        self._spans[place] = sorted([*self._spans[place], _Span(tenure, offset, end)], key=lambda span: span.position)
        self._follow(place)

    def stop(self, tenure: Tenure) -> None:
        """Fetch nothing more of a tenure; nothing happens if it has ended."""
        place = TopicPartition(tenure.topic, tenure.partition)
        self._spans[place] = [span for span in self._spans[place] if span.tenure != tenure]
        self._follow(place)

    def commit(self, tenure: Tenure, offset: int) -> None:
        """See `DataTopics.commit`."""
        self._topics.commit(tenure, offset)

    def close(self) -> None:
        """See `DataTopics.close`."""
        self._topics.close()

    # ---- the streams

    def _follow(self, place: TopicPartition) -> None:
        """Let the stream of a partition be where its lowest range needs it."""
        spans, stream = self._spans[place], self._streams.get(place)
        if not spans:
            self._end_stream(place)
        elif stream is None or not 0 <= spans[0].position - stream.position <= READ_ON:
            self._end_stream(place)
            if place not in self._asked.values():
                request = next(self._requests)
                self._asked[request] = place
                self._topics.find_start(FindStart(spans[0].tenure, is_unknown=False, request=request))

    def _end_stream(self, place: TopicPartition) -> None:
        stream = self._streams.pop(place, None)
        if stream is not None:
            self._topics.stop(stream.tenure)

    def _take(self, event: Any) -> Iterator[DataEvent]:
        if isinstance(event, DataRecord):
            yield from self._record(event)
        elif isinstance(event, StartFound | StartFailed) and event.request in self._asked:
            yield from self._found(self._asked.pop(event.request), event)
        elif isinstance(event, FetchFailed):
            place = TopicPartition(event.tenure.topic, event.tenure.partition)
            stream = self._streams.get(place)
            if stream is not None and stream.tenure == event.tenure:
                del self._streams[place]
                yield from self._fail(place, event.reason)
        else:
            yield event

    def _found(self, place: TopicPartition, found: StartFound | StartFailed) -> Iterator[DataEvent]:
        spans = self._spans[place]
        if isinstance(found, StartFailed):
            yield from self._fail(place, found.reason)
        elif spans and place not in self._streams:
            stream = self._streams[place] = _Stream(spans[0].tenure, min(spans[0].position, found.end))
            self._topics.start(stream.tenure, stream.position)

    def _fail(self, place: TopicPartition, reason: str) -> Iterator[FetchFailed]:
        """Fetching the lowest range has failed; the others are tried."""
        if self._spans[place]:
            yield FetchFailed(self._spans[place].pop(0).tenure, reason)
            self._follow(place)

    def _record(self, record: DataRecord) -> Iterator[DataRecord | Covered]:
        place = TopicPartition(record.topic, record.partition)
        stream, spans = self._streams.get(place), self._spans[place]
        if stream is None or stream.tenure != record.tenure:
            return
        stream.position = record.next_offset
        while spans and spans[0].end <= record.offset:
            span = spans.pop(0)
            yield Covered(span.tenure, span.end)
        if spans and spans[0].position <= record.offset:
            span = spans[0]
            covers_from, span.position = max(record.covers_from, span.position), record.next_offset
            yield record._replace(tenure=span.tenure, covers_from=covers_from)
            if span.position == span.end:
                spans.pop(0)
        self._follow(place)
