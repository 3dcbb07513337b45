"""The generated topics: offsets with time, holes, and where a group starts."""

from __future__ import annotations

import pytest

from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.worlds.marshal.virtual_log import VirtualTopics


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


@pytest.mark.parametrize(("from_log", "committed", "start"), [(0, None, 0), (0, 7, 7), (5, 7, 5), (99, 7, 20)])
def test_a_group_starts_by_the_log_then_by_its_commit(from_log: int, committed: int | None, start: int) -> None:
    clock, found = topics()
    clock.run(2_000)
    if committed is not None:
        found.committed["g", "t", 0] = committed
    assert found.start("g", "t", 0, from_log) == start
