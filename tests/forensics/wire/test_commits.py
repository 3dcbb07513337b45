"""Commits by partition and interval."""

from __future__ import annotations

import pytest

from kcoord_wire.forensics.model import OffsetsCommitted
from tests.support.exchange_script import MS, START, Script


def test_commits_are_counted_by_partition_and_interval() -> None:
    script = Script()
    for ms, offset, error in ((1_000, 5, 0), (2_000, 6, 0), (3_000, 7, 27), (61_000, 9, 0)):
        offsets = [OffsetsCommitted("orders", 0, offset, error)]
        script.add("OffsetCommit", "c1", ms, ms, generation_id=1, offsets=offsets, error_code=error)
    rows = script.history().commits
    seconds = [(row.from_ns - START // (1_000 * MS) * 1_000 * MS) // (1_000 * MS) for row in rows]
    assert seconds == [1, 2, 3, 61]
    assert {row.from_ns % (1_000 * MS) for row in rows} == {0}
    found = [(row.commits, row.errors, row.first_offset, row.last_offset) for row in rows]
    assert found == [(1, 0, 5, 5), (1, 0, 6, 6), (0, 1, -1, -1), (1, 0, 9, 9)]
    assert {row.member_id for row in rows} == {"c1-id"}


@pytest.mark.parametrize(("minutes", "interval_s"), [(1, 1), (5, 1), (6, 10), (60, 10), (61, 60)])
def test_the_interval_grows_with_the_source(minutes: int, interval_s: int) -> None:
    script = Script()
    for ms, offset in ((0, 5), (1, 6), (minutes * 60_000, 9)):
        offsets = [OffsetsCommitted("orders", 0, offset, 0)]
        script.add("OffsetCommit", "c1", ms, ms, generation_id=1, offsets=offsets, error_code=0)
    rows = script.history().commits
    assert {row.interval_s for row in rows} == {interval_s}
    assert sum(row.commits for row in rows) == 3
    assert {row.from_ns % (interval_s * 1_000 * MS) for row in rows} == {0}
