"""What the history of one group holds in memory for each heartbeat and commit, in bytes of Arrow and of Python."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pyarrow as pa

from kcoord_wire.forensics.analysis import group_history
from kcoord_wire.forensics.model import Exchange, OffsetsCommitted, table_of
from kcoord_wire.forensics.wire.traffic import read_sightings
from tests.support.exchange_script import Script, at

FEW, MANY = 80_000, 160_000
MOST = 120
"""Bytes for each exchange, with its row: 90 measured. Names that are copied, or commits as objects, take far more."""


def test_heartbeats_and_commits_take_few_bytes_each() -> None:
    """Sizes of two groups are compared, so that what does not grow with the exchanges does not count."""
    grown = _peak_of(MANY) - _peak_of(FEW)
    assert grown / (MANY - FEW) < MOST


def _peak_of(count: int) -> int:
    """Return the bytes that the history of a group takes at most, beside the batches that it is made from."""
    script = Script()
    script.form("c1", "c2", owners={"c1": {"orders": [0]}, "c2": {"orders": [1]}})
    few, topics = script.tables()
    beat, commit = script.beat("c1", 1_000, 1), script.beat("c2", 1_000, 1)
    commit.api, commit.offsets = "OffsetCommit", [OffsetsCommitted("orders", 1, 7, 0)]
    steady = table_of(Exchange, [beat, commit]).take(pa.array(np.arange(count) % 2))
    times = pa.array(at(1_000) + np.arange(count) * 10_000_000)
    for name in ("asked_ns", "answered_ns"):
        steady = steady.set_column(steady.column_names.index(name), steady.schema.field(name), times)
    batches = [few, *steady.to_batches(max_chunksize=FEW)]
    sightings = read_sightings(topics)
    group_history(batches, sightings)  # what is imported and compiled once
    usual, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.system_memory_pool())
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        history = group_history(batches, sightings)
        peak = tracemalloc.get_traced_memory()[1] + pool.max_memory()
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(usual)
    assert history.group.exchanges == count + few.num_rows
    _POOLS.append(pool)
    return peak


_POOLS: list[pa.MemoryPool] = []
"""A pool lives as long as the arrays in it, some of which caches may keep."""
