"""A stream of a coordination topic goes on from its checkpoint with the rows of one that never stopped."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from kcoord_wire.forensics.marshal.live import LiveReader
from kcoord_wire.forensics.marshal.reader import ClaimRules
from kcoord_wire.forensics.model import LogRow
from kcoord_wire.spark import coordination_stream
from kcoord_wire.spark.rows import spark_schema
from tests.support.marshal_rows import generated_log, table


def run(spark: SparkSession, folder: Path, events: DataFrame) -> None:
    """Read what there is in a new query."""
    written = events.writeStream.format("json").option("checkpointLocation", str(folder / "checkpoint"))
    written.trigger(availableNow=True).start(str(folder / "rows")).awaitTermination()


def rows_of(folder: Path) -> Counter[str]:
    """The rows that the queries have written, without what is null."""
    lines = [line for path in (folder / "rows").glob("part-*") for line in path.read_text().splitlines()]
    return Counter(json.dumps(_plain(json.loads(line)), sort_keys=True) for line in lines)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items() if item is not None}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def expected(rows: list[LogRow]) -> Counter[str]:
    found: Counter[str] = Counter()
    for partition in {row.partition for row in rows}:
        reader = LiveReader(partition, ClaimRules())
        for row in rows:
            if row.partition == partition:
                reader.read(row.offset, row.time_ns, row.is_append_time, row.value, row.source, row.position)
        found.update(json.dumps(_plain(asdict(part)), sort_keys=True) for part in reader.events())
    return found


def test_a_query_goes_on_from_its_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    rows = sorted(generated_log(8), key=lambda row: row.time_ns)
    source = tmp_path / "source"
    source.mkdir()
    parts = [rows[: len(rows) // 3], rows[len(rows) // 3 : len(rows) // 2], rows[len(rows) // 2 :]]
    for number, part in enumerate(parts):
        pq.write_table(table(part), source / f"{number}.parquet")
        records = spark.readStream.schema(spark_schema(LogRow)).parquet(str(source))
        run(spark, tmp_path, coordination_stream(records))
    found = rows_of(tmp_path)
    assert found == expected(rows)
    kinds = {name for line in found for name in json.loads(line)}
    assert kinds >= {"claim", "commit", "sighting", "unowned", "finding", "loss"}
