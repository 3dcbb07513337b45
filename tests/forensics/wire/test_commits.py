"""Commits by partition and minute."""

from __future__ import annotations

from kcoord_wire.forensics.model import OffsetsCommitted
from tests.support.exchange_script import MS, START, Script


def test_commits_are_counted_by_partition_and_minute() -> None:
    script = Script()
    for ms, offset, error in ((1_000, 5, 0), (2_000, 6, 0), (3_000, 7, 27), (61_000, 9, 0)):
        offsets = [OffsetsCommitted("orders", 0, offset, error)]
        script.add("OffsetCommit", "c1", ms, ms, generation_id=1, offsets=offsets, error_code=error)
    rows = script.history().commits
    minute = START // (60_000 * MS) * 60_000 * MS
    counted = [(row.minute_ns - minute, row.commits, row.errors, row.first_offset, row.last_offset) for row in rows]
    first = {(row[0] // (60_000 * MS)): row[1:] for row in counted}
    assert sum(row[1] for row in counted) == 3
    assert sum(row[2] for row in counted) == 1
    assert next(iter(first.values()))[2] == 5
    assert counted[-1][4] == 9
    assert {row.member_id for row in rows} == {"c1-id"}
