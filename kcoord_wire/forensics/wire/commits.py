"""The commits of a group, counted by partition and interval in columns: no commit becomes an object."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.forensics.model import CommitRow
from kcoord_wire.forensics.wire.moments import NS_PER_S

_KEYS: Final = ["topic", "partition", "from"]
_INTERVALS: Final = ((1, 300), (10, 3_600))  # seconds, and up to which span of all commits; a minute beyond that


def commit_rows(group_id: str, commits: pa.Table) -> list[CommitRow]:
    """Count commits by partition and interval.

    :param commits: OffsetCommit exchanges in order of time
    """
    table = flat_offsets(commits)
    if table is None:
        return []
    bounds = pc.min_max(table["asked"]).as_py()
    span_s = (bounds["max"] - bounds["min"]) / NS_PER_S
    interval_s = next((seconds for seconds, most in _INTERVALS if span_s <= most), 60)
    size_ns = interval_s * NS_PER_S
    table = table.append_column("from", pc.multiply(pc.divide(table["asked"], size_ns), size_ns))
    counted = table.group_by(_KEYS, use_threads=False).aggregate([("bad", "sum"), ("good", "sum"), ("member", "last")])
    taken = table.filter(pc.equal(table["bad"], 0)).group_by(_KEYS, use_threads=False)
    ends = {_key(row): row for row in taken.aggregate([("offset", "first"), ("offset", "last")]).to_pylist()}
    none: dict[str, Any] = {"offset_first": -1, "offset_last": -1}
    rows = [
        CommitRow(
            group_id=group_id,
            topic=row["topic"],
            partition=row["partition"],
            from_ns=row["from"],
            commits=row["good_sum"],
            errors=row["bad_sum"],
            first_offset=ends.get(_key(row), none)["offset_first"],
            last_offset=ends.get(_key(row), none)["offset_last"],
            member_id=row["member_last"] or None,
            interval_s=interval_s,
        )
        for row in counted.to_pylist()
    ]
    return sorted(rows, key=lambda row: (row.from_ns, row.topic, row.partition))


def _key(row: dict[str, Any]) -> tuple[str, int, int]:
    return (row["topic"], row["partition"], row["from"])


def flat_offsets(commits: pa.Table) -> pa.Table | None:
    """Return a row per partition of each exchange, ``row`` is the number of the exchange; None if there is none."""
    offsets = commits["offsets"].combine_chunks() if len(commits) else None
    if offsets is None or not len(offsets):
        return None
    if isinstance(offsets, pa.ChunkedArray):
        offsets = offsets.chunk(0)
    parents = pc.list_parent_indices(offsets)
    flat = pc.list_flatten(offsets)
    if not len(flat):
        return None
    asked = pc.take(commits["asked_ns"].combine_chunks(), parents)
    bad = pc.fill_null(pc.not_equal(flat.field("error_code"), 0), False)
    return pa.table(
        {
            "row": parents,
            "topic": pc.fill_null(flat.field("topic"), ""),
            "partition": pc.fill_null(flat.field("partition"), -1),
            "asked": asked,
            "offset": pc.fill_null(flat.field("offset"), -1),
            "bad": bad.cast(pa.int64()),
            "good": pc.invert(bad).cast(pa.int64()),
            "member": pc.take(commits["member_id"].combine_chunks(), parents),
        }
    )
