"""The coordination partition of a topic, next to the Go library's."""

from __future__ import annotations

import json
from pathlib import Path

from kcoord_wire.marshal.log import coordination_partition

GOLDEN = Path(__file__).parent.parent / "data" / "golden" / "marshal"


def test_coordination_partition_is_that_of_the_go_library() -> None:
    rows = [json.loads(line) for line in (GOLDEN / "partition_hash.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) > 100
    wrong = [row for row in rows if coordination_partition(row["topic"], row["partitions"]) != row["claim_partition"]]
    assert wrong == []
