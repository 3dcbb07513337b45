"""The virtual coordination log: what becomes of appends, and what readers see."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from kcoord_wire.kernel.virtual.clock import EPOCH_MS, VirtualClock
from kcoord_wire.marshal.log import Appended, AppendFailed
from kcoord_wire.marshal.world_state import Entry
from kcoord_wire.worlds.marshal.virtual_log import Fate, Reader, Trouble, VirtualLog, VirtualTopics

TIMEOUT_MS = 500


class Bench:
    """A log of two partitions, whose brokers' clocks differ by 300 ms."""

    def __init__(self, *, is_append_time: bool = True) -> None:
        self.clock = VirtualClock()
        self.landed: list[Entry] = []
        self.results: list[tuple[int, Any]] = []
        self.log = VirtualLog(
            self.clock, Random(1), 2, [0, 300], TIMEOUT_MS, self.landed.append, is_append_time=is_append_time
        )

    def append(self, request: int, writer: str = "w") -> None:
        self.log.append(writer, 0, b"%d" % request, EPOCH_MS, request, self.done)

    def done(self, result: Any) -> None:
        self.results.append((self.clock.now, result))

    def trouble(self, fate: Fate, delay_ms: int = 0) -> None:
        self.log.trouble = Trouble(self.clock.time_ms + 10_000, delay_ms, ((100, fate),))

    def read(self, lag_ms: tuple[int, int] = (1, 50)) -> tuple[list[int], Reader]:
        seen: list[int] = []

        def see(entries: Any) -> None:
            seen.extend(entry.offset for entry in entries)

        return seen, Reader(self.clock, self.log, Random(2), [0], lag_ms, see)


def test_entries_of_a_writer_land_in_order_whatever_their_delays() -> None:
    bench = Bench()
    bench.trouble(Fate.LANDS, delay_ms=400)
    for request in range(20):
        bench.append(request)
    bench.clock.run(1_000)
    assert {result.request: result.offset for _, result in bench.results} == {number: number for number in range(20)}


@pytest.mark.parametrize(
    ("fate", "landed", "answer"),
    [
        (Fate.LANDS, 1, Appended(7, 0)),
        (Fate.TWICE, 2, Appended(7, 0)),
        (Fate.UNANSWERED, 1, AppendFailed(7, "lands, the answer is lost", may_have_landed=True)),
        (Fate.LATE, 1, AppendFailed(7, "times out and lands later", may_have_landed=True)),
        (Fate.LOST, 0, AppendFailed(7, "times out and is lost", may_have_landed=True)),
        (Fate.REFUSED, 0, AppendFailed(7, "is refused", may_have_landed=False)),
    ],
)
def test_fates_of_appends(fate: Fate, landed: int, answer: Any) -> None:
    bench = Bench()
    bench.trouble(fate)
    bench.append(7)
    bench.clock.run(5_000)
    assert len(bench.landed) == landed
    assert [result for _, result in bench.results] == [answer]


def test_an_append_that_timed_out_lands_after_later_ones() -> None:
    bench = Bench()
    bench.trouble(Fate.LATE)
    bench.append(1)
    bench.log.trouble = Trouble()
    bench.append(2)
    bench.clock.run(5_000)
    assert len(bench.landed) == 2
    assert [type(result).__name__ for _, result in bench.results] == ["Appended", "AppendFailed"]
    assert bench.results[0][1].offset == 0


def test_a_leader_stamps_entries_by_its_own_clock() -> None:
    bench = Bench()
    bench.append(1)
    bench.clock.run(100)
    bench.log.lead(0, 1)
    bench.append(2)
    bench.clock.run(100)
    first, second = bench.landed
    assert first.is_append_time
    assert 300 <= second.time_ms - EPOCH_MS - 100 <= 320
    assert 0 <= first.time_ms - EPOCH_MS <= 20


def test_create_time_is_the_writers() -> None:
    bench = Bench(is_append_time=False)
    bench.clock.run(70)
    bench.append(1)
    bench.clock.run(100)
    assert (bench.landed[0].time_ms, bench.landed[0].is_append_time) == (EPOCH_MS, False)


def test_readers_get_each_entry_once_in_order() -> None:
    bench = Bench()
    early, _ = bench.read()
    for request in range(450):
        bench.append(request, writer=f"w{request % 7}")
    bench.clock.run(1_000)
    late, _ = bench.read()
    bench.clock.run(1_000)
    assert early == late == list(range(450))


def test_a_reader_begins_where_retention_has_cut() -> None:
    bench = Bench()
    bench.append(1)
    bench.clock.run(1_000)
    bench.append(2)
    bench.clock.run(100)
    bench.log.trim(bench.clock.time_ms - 500)
    seen, reader = bench.read()
    bench.clock.run(100)
    assert seen == [1]
    reader.close()
    bench.append(3)
    bench.clock.run(100)
    assert seen == [1], "a closed reader sees nothing"


def test_read_to_end_waits_for_what_the_reader_lacks() -> None:
    bench = Bench()
    seen, reader = bench.read(lag_ms=(200, 200))
    bench.append(1)
    bench.clock.run(50)
    ends: list[tuple[int, int, int]] = []
    reader.read_to_end(0, lambda end: ends.append((bench.clock.now, end, len(seen))))
    bench.clock.run(1_000)
    [(at, end, known)] = ends
    assert (end, known) == (1, 1)
    assert at >= 200


def test_no_fate_is_forgotten() -> None:
    bench = Bench()
    bench.log.trouble = Trouble(bench.clock.time_ms + 10_000)
    for request in range(400):
        bench.append(request)
    bench.clock.run(9_000)
    kinds = Counter(getattr(result, "reason", "lands") for _, result in bench.results)
    assert set(kinds) == {fate.value for fate in Fate} - {Fate.TWICE.value}
    assert sum(kinds.values()) == 400


def topics(*, has_holes: bool = False) -> tuple[VirtualClock, VirtualTopics]:
    clock = VirtualClock()
    return clock, VirtualTopics(clock, {"t": 1}, 10.0, has_holes=has_holes)


def test_records_come_with_time() -> None:
    clock, found = topics()
    assert list(found.records("t", 0, 0, 100)) == []
    clock.run(1_500)
    assert list(found.records("t", 0, 12, 100)) == [12, 13, 14]
    assert list(found.records("t", 0, 2, 3)) == [2, 3, 4]


def test_a_partition_that_is_added_begins_empty() -> None:
    clock, found = topics()
    clock.run(1_000)
    found.grow("t", 2)
    clock.run(200)
    assert (found.counts, found.end("t", 0), found.end("t", 2)) == ({"t": 3}, 12, 2)


def test_holes_have_no_record() -> None:
    clock, found = topics(has_holes=True)
    clock.run(2_200)
    assert [offset for offset in range(22) if not found.is_record(offset)] == [9, 19]
    assert list(found.records("t", 0, 8, 3)) == [8, 10, 11]
