"""A stream of a log goes on from its checkpoint with the rows of one that never stopped, and those of the whole log."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from kcoord_wire.forensics.marshal.live import LiveReader
from kcoord_wire.forensics.marshal.reader import ClaimRules
from kcoord_wire.forensics.model import Frame, LogRow
from kcoord_wire.spark import coordination_stream, explain_rebalances, rebalance_stream
from kcoord_wire.spark.rows import spark_schema
from tests.support.marshal_rows import generated_log, table
from tests.support.offsets_topic import offsets_topic, write_in_pieces


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


def explained(rows: DataFrame) -> list[Row]:
    return sorted(rows.collect(), key=lambda row: (row["group_id"], row["started_ns"], row["number"]))


def growing(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(spark_schema(LogRow)).option("maxFilesPerTrigger", 1).parquet(str(folder))


def test_a_stream_has_the_rebalances_of_the_whole_log(spark: SparkSession, tmp_path: Path) -> None:
    """The second run finds the last batch of the first without its commit, as after a crash."""
    rows = offsets_topic()
    write_in_pieces(rows, tmp_path / "first", 6)
    source, out, checkpoint = tmp_path / "source", tmp_path / "out", tmp_path / "checkpoint"
    source.mkdir()
    batch = explain_rebalances(spark.createDataFrame(rows))
    stream = explain_rebalances(growing(spark, source))
    assert stream.schema == batch.schema

    def run(files: list[Path]) -> None:
        for path in files:
            path.rename(source / path.name)
        written = explain_rebalances(growing(spark, source)).writeStream.format("parquet")
        written = written.option("checkpointLocation", str(checkpoint))
        written.trigger(availableNow=True).start(str(out)).awaitTermination()

    files = sorted((tmp_path / "first").iterdir())
    run(files[:4])
    commits = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        path.unlink()
    run(files[4:])
    found, expected = explained(spark.read.schema(batch.schema).parquet(str(out))), explained(batch)
    assert found == expected
    assert len(found) > 10
    assert any(row["findings"] for row in found)


def test_a_stream_of_other_rows_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    frames = spark.readStream.schema(spark_schema(Frame)).parquet(str(tmp_path))
    with pytest.raises(ValueError, match=r"these are not rows of LogRow: .*key, value.* missing"):
        explain_rebalances(frames)
    with pytest.raises(ValueError, match="window_s must be above 0, not 0"):
        rebalance_stream(frames, window_s=0)
