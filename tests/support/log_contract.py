"""The laws of `marshal.log.Log`, as tests that every implementation inherits; it gives them the fixture `logs`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Self

import pytest

from kcoord_wire.marshal.log import Appended, AppendFailed, Log, LogError, RawEntry

PARTITIONS = 4
SECONDS = 20.0


def cannot(*_: int) -> None:
    raise AssertionError("a test wants of this topic what it cannot do")


@dataclass
class Logs:
    """Logs over one coordination topic, and what happens to it beside them.

    :ivar make: another log
    :ivar trim: remove a partition's entries below an offset
    :ivar skip: let the partition end with offsets that have no entry
    :ivar grow: let the topic have so many partitions
    :ivar stopped: a block in which a log fetches nothing ahead
    :ivar is_append_time: the topic has ``message.timestamp.type=LogAppendTime``
    """

    make: Callable[[], Log]
    trim: Callable[[int, int], None] = cannot
    skip: Callable[..., None] = cannot
    grow: Callable[[int], None] = cannot
    is_append_time: bool = True
    stopped: Callable[[Any], AbstractContextManager[None]] = nullcontext
    made: list[Log] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for made in self.made:
            made.close()

    def open(self, *partitions: int) -> Log:
        log = self.make()
        self.made.append(log)
        if partitions:
            log.read_from_start(partitions)
        return log


def append(log: Log, partition: int, *values: bytes, seconds: float = SECONDS) -> list[Appended | AppendFailed]:
    """Append, and poll until every result has come."""
    results: list[Appended | AppendFailed] = []
    for request, value in enumerate(values):
        log.append(request, partition, value, results.append)
    end = monotonic() + seconds
    while len(results) < len(values) and monotonic() < end:
        log.poll(0.05)
    return results


def read(log: Log, *partitions: int) -> list[RawEntry]:
    """Poll up to the present end of the partitions."""
    ends = {partition: log.end(partition) for partition in partitions}
    entries: list[RawEntry] = []
    until = monotonic() + SECONDS
    while any(log.position(partition) < end for partition, end in ends.items()):
        assert monotonic() < until, f"the end of {ends} was not reached"
        entries += log.poll(0.05)
    return entries


def poll_for(log: Log, seconds: float) -> None:
    until = monotonic() + seconds
    while monotonic() < until:
        log.poll(0.05)


def values(entries: Sequence[RawEntry], partition: int = 0) -> list[bytes | None]:
    return [entry.value for entry in entries if entry.partition == partition]


class LogContract:
    """What holds for a topic of `PARTITIONS` partitions, wherever it is."""

    def test_entries_come_in_the_order_of_their_appends(self, logs: Logs) -> None:
        log = logs.open(0)
        wanted = [b"%d" % number for number in range(200)]
        results = append(logs.open(), 0, *wanted)
        assert [result.request for result in results] == list(range(200))
        entries = read(log, 0)
        assert values(entries) == wanted
        assert [entry.offset for entry in entries] == [
            result.offset for result in results if isinstance(result, Appended)
        ]

    def test_every_reader_gets_the_same_entries(self, logs: Logs) -> None:
        early = logs.open(0, 1)
        one, two = logs.open(0), logs.open(1)
        for number in range(5):
            append(one, 0, b"one %d" % number)
            append(two, 0, b"two %d" % number)
            append(two, 1, b"other %d" % number)
        late = logs.open(0, 1)
        seen, again = read(early, 0, 1), read(late, 0, 1)
        assert [entry for entry in seen if entry.partition == 0] == [entry for entry in again if entry.partition == 0]
        assert values(seen, 1) == values(again, 1) == [b"other %d" % number for number in range(5)]
        assert len(values(seen)) == 10

    def test_only_the_partitions_asked_for_are_read(self, logs: Logs) -> None:
        log = logs.open(2)
        append(log, 1, b"no")
        append(log, 2, b"yes")
        append(log, 2, b"also")
        assert log.end(1) == 1
        other = logs.open(2)
        assert {entry.partition for entry in read(other, 2)} == {2}

    def test_entries_say_whether_their_times_are_append_times(self, logs: Logs) -> None:
        append(logs.open(), 0, b"x")
        (entry,) = read(logs.open(0), 0)
        assert entry.is_append_time == logs.is_append_time
        assert entry.time_ms > 1_600_000_000_000

    def test_reading_from_the_start_again_begins_anew(self, logs: Logs) -> None:
        log = logs.open(0)
        append(log, 0, b"x", b"y")
        log.read_from_start([0, 1])
        assert values(read(log, 0)) == [b"x", b"y"]

    def test_a_partition_that_is_not_there_refuses_appends(self, logs: Logs) -> None:
        (result,) = append(logs.open(), PARTITIONS, b"x")
        assert isinstance(result, AppendFailed)
        assert not result.may_have_landed
        with pytest.raises(LogError):
            logs.open().end(PARTITIONS)

    def test_the_end_of_an_empty_partition_is_reached_at_once(self, logs: Logs) -> None:
        assert read(logs.open(3), 3) == []

    def test_poll_waits_no_longer_than_it_may(self, logs: Logs) -> None:
        log = logs.open(3)
        read(log, 3)
        waited = []
        for _ in range(20):  # an answer of the broker without an entry ends one wait early, not all
            begun = monotonic()
            assert list(log.poll(0.05)) == []
            waited.append(monotonic() - begun)
        assert 0.03 < max(waited) < SECONDS

    def test_close_delivers_the_results_of_appends(self, logs: Logs) -> None:
        results: list[Appended | AppendFailed] = []
        log = logs.open()
        log.append(7, 0, b"x", results.append)
        log.close()
        assert [(type(result), result.request) for result in results] == [(Appended, 7)]

    def test_added_partitions_end_the_log(self, logs: Logs) -> None:
        log = logs.open(0)
        logs.grow(PARTITIONS + 1)
        with pytest.raises(LogError, match=r"had 4 partitions at the start and has 5 now"):
            poll_for(log, SECONDS)


class GapContract:
    """What holds where gaps can be had at will."""

    def test_a_gap_at_the_end_does_not_hide_it(self, logs: Logs) -> None:
        log = logs.open(0)
        append(log, 0, b"x")
        logs.skip(0)
        other, end = logs.open(0), log.end(0)
        entries = read(other, 0)
        assert entries[0].value == b"x"
        assert entries[-1].offset + 1 < end, "there is a gap"
        assert other.position(0) == end
        append(log, 0, b"y")
        assert [(entry.offset, entry.value) for entry in read(other, 0)] == [(end, b"y")]


class TrimContract:
    """What holds where retention can be had at will."""

    def test_a_trimmed_log_is_read_from_what_is_left(self, logs: Logs) -> None:
        log, unread = logs.open(), logs.open(0)
        with logs.stopped(unread):
            append(log, 0, b"a", b"b", b"c")
            logs.trim(0, 2)
        assert [(entry.offset, entry.value) for entry in read(logs.open(0), 0)] == [(2, b"c")]
        assert values(read(unread, 0)) == [b"c"]

    def test_entries_trimmed_before_they_were_read_are_an_error(self, logs: Logs) -> None:
        log, reader = logs.open(), logs.open(0)
        append(log, 0, b"a")
        read(reader, 0)
        with logs.stopped(reader):
            append(log, 0, b"b", b"c")
            logs.trim(0, 2)
        with pytest.raises(LogError, match=r"the entries 1 to 1 of .*-0 were removed before they were read"):
            read(reader, 0)
