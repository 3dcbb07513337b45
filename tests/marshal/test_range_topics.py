"""The records of ranges: each range gets its own, the lowest first, whatever else is read between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kcoord_wire.marshal import range_topics
from kcoord_wire.marshal.inbox import Covered, DataRecord, Inbox
from kcoord_wire.marshal.member_events import Delivered, Delivery, FetchFailed, Processed, Tenure
from kcoord_wire.marshal.memory import MemoryBroker, MemoryTopics
from kcoord_wire.marshal.range_topics import RangeTopics


class Topics:
    """A partition of a broker in memory, and ranges of it."""

    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self.broker.create("orders", 1)
        self.ranges = RangeTopics(MemoryTopics(self.broker, "g", ["orders"]))
        self.ranges.poll(0)  # what the topics are

    def append(self, records: int) -> None:
        for _ in range(records):
            self.broker.append("orders", 0, b"")

    def start(self, token: int, first: int, end: int) -> Tenure:
        tenure = Tenure("orders", 0, token)
        self.ranges.start(tenure, first, end)
        return tenure

    def read(self) -> Iterator[Any]:
        """Yield what comes until nothing more does."""
        idle = 0
        while idle < 3:
            events = self.ranges.poll(0)
            idle = 0 if events else idle + 1
            yield from events

    def offsets(self) -> dict[int, list[int]]:
        """Return the offsets that each tenure gets, by its token."""
        found: dict[int, list[int]] = {}
        for record in self.read():
            if isinstance(record, DataRecord):
                found.setdefault(record.token, []).append(record.offset)
        return found


@pytest.fixture
def topics() -> Topics:
    return Topics()


def test_each_range_gets_its_records_and_no_other(topics: Topics) -> None:
    topics.append(100)
    topics.start(1, 10, 20)
    topics.start(2, 50, 60)
    assert topics.offsets() == {1: [*range(10, 20)], 2: [*range(50, 60)]}


def test_offsets_that_do_not_exist_yet(topics: Topics) -> None:
    topics.append(5)
    topics.start(1, 10, 20)
    assert topics.offsets() == {}
    topics.append(20)
    assert topics.offsets() == {1: [*range(10, 20)]}


def test_a_range_that_is_won_later_and_lies_lower_goes_first(topics: Topics) -> None:
    topics.append(55)
    topics.start(2, 50, 60)
    assert topics.offsets() == {2: [*range(50, 55)]}
    topics.start(1, 30, 40)
    assert topics.offsets() == {1: [*range(30, 40)]}
    topics.append(30)
    assert topics.offsets() == {2: [*range(55, 60)]}, "none comes twice"


@pytest.mark.parametrize("read_on", [0, 10_000])
def test_what_lies_between_is_read_or_left_out(topics: Topics, read_on: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_topics, "READ_ON", read_on)
    topics.append(350)
    topics.start(1, 0, 10)
    topics.start(2, 300, 310)
    assert topics.offsets() == {1: [*range(10)], 2: [*range(300, 310)]}


def test_a_range_that_is_stopped_gets_nothing_more(topics: Topics) -> None:
    topics.append(60)
    first = topics.start(1, 0, 10)
    topics.start(2, 10, 20)
    topics.ranges.stop(first)
    assert topics.offsets() == {2: [*range(10, 20)]}


def test_what_cannot_be_fetched_fails_its_range_alone(topics: Topics) -> None:
    topics.append(100)
    topics.broker.trim("orders", 0, 40)
    lost = topics.start(1, 10, 20)
    topics.start(2, 50, 60)
    events = list(topics.read())
    assert [event.tenure for event in events if isinstance(event, FetchFailed)] == [lost]
    assert [event.offset for event in events if isinstance(event, DataRecord)] == [*range(50, 60)]


def test_a_range_that_ends_in_a_gap_ends_with_the_next_record(topics: Topics) -> None:
    topics.append(8)
    topics.broker.skip("orders", 0, 2)
    tenure = topics.start(1, 0, 10)
    inbox = Inbox(Delivery.AT_LEAST_ONCE, 1)
    inbox.open(tenure, 0)
    inbox.next_item()  # it was gained
    for event in topics.read():
        inbox.put(event)
    while isinstance(record := inbox.next_item(), DataRecord):
        inbox.processed(record)
    assert [*inbox.news(0)] == [Delivered(tenure, [*range(8)], 8), Processed(tenure, [*range(8)])]
    topics.append(1)
    for event in topics.read():
        assert event == Covered(tenure, 10)
        inbox.cover(event)
    assert inbox.next_item() is None
    assert [*inbox.news(0)] == [Delivered(tenure, [], 10)]
    assert [*inbox.news(0)] == []
