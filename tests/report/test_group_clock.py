"""Times relative to the first moment of a group."""

from __future__ import annotations

from kcoord_wire.forensics.model import GroupHistory
from kcoord_wire.report.page.group_clock import GroupClock
from tests.support.histories import MS, SECOND, START, summary


def test_times_are_milliseconds_after_the_first_moment() -> None:
    clock = GroupClock(GroupHistory(summary("g", START + 5 * SECOND)))
    assert [clock.ms(START), clock.ms(START + 7 * MS), clock.ms(START - SECOND)] == [0, 7, -1000]
    assert isinstance(clock.ms(START + 7 * MS), int), "whole numbers are short in JSON"
    assert clock.ms(START + 1_234_567) == 1.235


def test_an_open_interval_ends_with_the_group() -> None:
    clock = GroupClock(GroupHistory(summary("g", START + 5 * SECOND)))
    assert (clock.end(START + SECOND), clock.end(None)) == (1000, 5000)
