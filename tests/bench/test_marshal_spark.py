"""The log of the benchmark is sound, and its members do what it says."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq

from kcoord_wire.forensics.marshal.claims import marshal_histories
from kcoord_wire.forensics.marshal.reader import ClaimRules
from tests.bench.marshal_spark import CHANGES, COORDINATION, PARTITIONS, _processor_seconds, write_log


def test_the_log_has_claims_restarts_and_releases(tmp_path: Path) -> None:
    written = write_log(tmp_path / "log", 2 * PARTITIONS + 100)
    rows = pq.read_table(tmp_path / "log")
    assert rows.num_rows == written
    [history], losses = marshal_histories(rows, ClaimRules(partitions=COORDINATION))
    assert losses == []
    live = [(row.topic, row.partition) for row in history.claims if row.to_ns is None]
    assert len(live) == len(set(live)) == PARTITIONS
    ended = Counter(row.ended for row in history.claims)
    assert ended["released"] >= CHANGES
    assert ended["stale"] == 0


def test_processor_time_grows(tmp_path: Path) -> None:
    before = _processor_seconds(os.getpid())
    sum(number * number for number in range(3_000_000))
    assert _processor_seconds(os.getpid()) > before
