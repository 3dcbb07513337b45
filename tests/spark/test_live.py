"""A stream of a log goes on from its checkpoint with the rows of one that never stopped, and those of the whole log."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from kcoord_wire.forensics.marshal.live import LiveReader
from kcoord_wire.forensics.marshal.reader import ClaimRules
from kcoord_wire.forensics.model import Frame, LogLine, LogRow, table_of
from kcoord_wire.forensics.sources.frames import read_frames
from kcoord_wire.recorder.recording import recording_files
from kcoord_wire.spark import coordination_stream, explain_rebalances, rebalance_stream
from kcoord_wire.spark.rows import spark_schema
from tests.support.live_readers import plain_rows
from tests.support.marshal_rows import generated_log, table
from tests.support.offsets_topic import offsets_topic, write_in_pieces
from tests.support.recordings import grow, growing_recorders
from tests.support.sparks import SPARK, read_available

DATA = Path(__file__).parents[1] / "data"
DAY_NS = 86_400_000_000_000


def run(spark: SparkSession, folder: Path, events: DataFrame) -> None:
    """Read what there is in a new query."""
    written = events.writeStream.format("json").option("checkpointLocation", str(folder / "checkpoint"))
    read_available(written, folder / "rows")


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
        read_available(written, out)

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


@pytest.mark.skipif(SPARK < (4, 2), reason="the stream source")
def test_a_stream_has_the_rebalances_of_whole_recordings(spark: SparkSession, tmp_path: Path) -> None:
    """Files follow each other and are deleted when they are read; the last folder comes when the others are whole."""
    folder, prepared, out = tmp_path / "recorders", tmp_path / "prepared", tmp_path / "out"
    expected = plain_rows(growing_recorders(folder))
    folder.rename(prepared)
    *recorders, late = sorted(path.name for path in prepared.iterdir())
    for share in (0.3, 0.45, 0.9, 1.0):
        for name in [*recorders, late] if share > 0.9 else recorders:
            grow(prepared / name / "frames", folder / name / "frames", share)
        stream = explain_rebalances(spark.readStream.format("kcoord").load(f"{folder}/*/frames"))
        written = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        read_available(written, out)
        for finished in (path for each in folder.iterdir() for path in recording_files(each / "frames")[:-1]):
            finished.unlink()
    rows = spark.read.schema(stream.schema).parquet(str(out)).orderBy("group_id", "number").collect()
    found = [row.asDict(recursive=True) for row in rows]
    assert found == expected
    assert len({row["group_id"] for row in found}) == len(recorders) + 1
    assert any(row["findings"] for row in found)


def test_a_hole_in_a_stream_of_frames(spark: SparkSession, tmp_path: Path) -> None:
    """When its bytes were sent is a column with nulls, of numbers that floats do not have."""
    frames = pa.Table.from_batches(read_frames(DATA / "captures" / "eager_range.pcap")).to_pylist()
    at = len(frames) // 2
    hole = {"direction": "damage", "frame": b"", "lost": 10, "error": "10 bytes are missing"}
    frames[at] |= hole | {"since_ns": frames[at]["time_ns"] - 1}
    last = frames[-1]
    frames.append(last | {"seq": last["seq"] + 1, "time_ns": last["time_ns"] + DAY_NS, "direction": "opened"})
    (tmp_path / "source").mkdir()
    pq.write_table(table_of(Frame, [Frame(**row) for row in frames]), tmp_path / "source" / "frames.parquet")
    batch = explain_rebalances(spark.read.parquet(str(tmp_path / "source")))
    stream = spark.readStream.schema(spark_schema(Frame)).parquet(str(tmp_path / "source"))
    run(spark, tmp_path, explain_rebalances(stream))
    assert rows_of(tmp_path) == Counter(json.dumps(_plain(row.asDict(True)), sort_keys=True) for row in batch.collect())


def test_a_stream_of_other_rows_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    lines = spark.readStream.schema(spark_schema(LogLine)).parquet(str(tmp_path))
    with pytest.raises(ValueError, match=r"these are not rows of Frame: .*connection, direction.* missing"):
        explain_rebalances(lines)
    with pytest.raises(ValueError, match="window_s must be above 0, not 0"):
        rebalance_stream(lines, window_s=0)
