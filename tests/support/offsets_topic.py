"""``__consumer_offsets`` of a real broker as a topic of three partitions that grows file by file."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from kcoord_wire import messages as m
from kcoord_wire.forensics.model import LogRow, table_of
from kcoord_wire.forensics.records.reader import group_of
from kcoord_wire.forensics.sources.frames import read_log
from kcoord_wire.records import encode_offsets_record
from tests.support.offsets_log import CONSUMER_GROUPS

_DAY_NS: Final = 86_400_000_000_000


def offsets_topic() -> pa.Table:
    """The log of a broker with its groups in three partitions, each with a record of another group a day later."""
    [log] = (CONSUMER_GROUPS / "kafka-4.0.0").rglob("*.log")
    rows = pa.Table.from_batches(read_log(log))
    names = group_of(rows["key"]).to_pylist()
    places = {name: number % 3 for number, name in enumerate(sorted(filter(None, names)))}
    key, value = encode_offsets_record(m.GroupMetadataKey(group="later"), None)
    topic = [
        LogRow(**{**row, "partition": places[name]})
        for row, name in zip(rows.to_pylist(), names, strict=True)
        if name is not None
    ]
    last = topic[-1]
    end = {"offset": last.offset + 1, "time_ns": last.time_ns + _DAY_NS, "key": key, "value": value}
    topic += [replace(last, partition=partition, **end) for partition in range(3)]
    return table_of(LogRow, sorted(topic, key=lambda row: (row.partition, row.offset)))


def write_in_pieces(rows: pa.Table, folder: Path, count: int) -> None:
    """Files for a stream, each with the next records of every partition."""
    folder.mkdir()
    partitions = rows["partition"].to_pylist()
    sizes, written = Counter(partitions), Counter[int]()
    pieces = []
    for partition in partitions:
        pieces.append(written[partition] * count // sizes[partition])
        written[partition] += 1
    for number in range(count):
        path = folder / f"{number:03}.parquet"
        pq.write_table(rows.filter(pa.array([piece == number for piece in pieces])), path)
        os.utime(path, (number + 1, number + 1))  # Spark takes the oldest file first
