"""The data source `kcoord`: what the plain readers give, by kind of file; what it refuses; the session it runs in."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import SparkSession

from kcoord_wire.forensics.analysis import analyze
from kcoord_wire.forensics.model import Frame, LogRow
from kcoord_wire.forensics.sources.frames import read_frames, read_log
from kcoord_wire.recorder.recording import RecordingWriter
from kcoord_wire.spark import decode_frames
from kcoord_wire.spark.analysis import analyze_on_spark
from kcoord_wire.spark.rows import instances, spark_schema
from kcoord_wire.spark.sources import KcoordSource
from tests.support.pcapng import flip_time, to_pcapng
from tests.support.recordings import record_capture

DATA = Path(__file__).parents[1] / "data"
CAPTURES = sorted((DATA / "captures").glob("*.pcap"))
SEGMENTS = sorted((DATA / "consumer_groups").rglob("*.log"))


def plainly(*paths: Path) -> list[Frame]:
    return [row for path in paths for batch in read_frames(path) for row in instances(Frame, batch)]


def in_order(rows: list[Frame]) -> list[Frame]:
    return sorted(rows, key=lambda row: (row.source, row.seq))


def test_captures_and_recordings_are_frames(spark: SparkSession, tmp_path: Path) -> None:
    with RecordingWriter(tmp_path) as writer:
        writer.opened(1, "10.0.0.1:5000-10.0.0.2:9092#1", 5)
        writer.frame(1, "request", bytes(8), 6)
        path = writer.path
    path.write_bytes(path.read_bytes() + b"torn")
    packed = tmp_path / f"{CAPTURES[0].name}.gz"
    packed.write_bytes(gzip.compress(CAPTURES[0].read_bytes()))
    df = spark.read.format("kcoord").load(str(tmp_path))
    assert df.schema == spark_schema(Frame)
    assert df.rdd.getNumPartitions() == 2
    rows = instances(Frame, df.toArrow())
    expected = plainly(packed, path)
    assert in_order(rows) == in_order(expected)
    assert [row.error is not None for row in expected[-2:]] == [False, True]
    joins = decode_frames(df, apis=["JoinGroup"], columns=["group_id"], flat=True, mode="FAILFAST")
    assert {row["group_id"] for row in joins.collect()} == {"billing"}


def test_a_packet_with_an_impossible_time_is_a_row_of_damage(spark: SparkSession, tmp_path: Path) -> None:
    """One flipped bit of a pcapng time stamp: 64 signed bits cannot hold its nanoseconds."""
    spoiled, _ = flip_time(to_pcapng(CAPTURES[0].read_bytes()), 40, 63)
    (tmp_path / "spoiled.pcapng").write_bytes(spoiled)
    shutil.copy(CAPTURES[1], tmp_path)
    rows = instances(Frame, spark.read.format("kcoord").load(str(tmp_path)).toArrow())
    assert in_order(rows) == in_order(plainly(tmp_path / CAPTURES[1].name, tmp_path / "spoiled.pcapng"))
    lost = [row for row in rows if row.error is not None and "time stamp" in row.error]
    assert [(row.source, row.position) for row in lost] == [(str(tmp_path / "spoiled.pcapng"), 40)]
    found, plain = analyze_on_spark([tmp_path]), analyze([tmp_path])
    assert found.histories == plain.histories
    assert found.losses == plain.losses


def test_segments_are_records(spark: SparkSession) -> None:
    df = spark.read.format("kcoord").load([str(path) for path in SEGMENTS])
    assert df.schema == spark_schema(LogRow)
    rows = instances(LogRow, df.toArrow())
    expected = [row for path in SEGMENTS for batch in read_log(path) for row in instances(LogRow, batch)]
    assert sorted(rows, key=lambda row: (row.source, row.position, row.offset)) == expected


def test_ports_choose_the_broker(spark: SparkSession) -> None:
    reader = spark.read.format("kcoord").option("ports", "1,2")
    assert {row["direction"] for row in reader.load(str(CAPTURES[0])).collect()} <= {"damage"}


def test_failfast_names_the_damage(spark: SparkSession, tmp_path: Path) -> None:
    torn = tmp_path / "torn.pcap"
    torn.write_bytes(CAPTURES[0].read_bytes()[:-7])
    df = spark.read.format("kcoord").option("mode", "FAILFAST").load(str(torn))
    with pytest.raises(PythonException, match=rf"{re.escape(str(torn))} at \d+: .*mode PERMISSIVE has a row for it"):
        df.collect()


@pytest.mark.parametrize(
    ("options", "paths", "text"),
    [
        ({}, [CAPTURES[0], SEGMENTS[0]], "a table has one kind: load them separately"),
        ({}, [DATA / "none"], "none"),
        ({}, [Path(__file__)], "is text, not a capture"),
        ({}, [], "the source kcoord needs a path"),
        ({"mode": "DROP"}, [CAPTURES[0]], "mode must be DROPMALFORMED, FAILFAST or PERMISSIVE, not 'DROP'"),
        ({"ports": "kafka"}, [CAPTURES[0]], "ports must be numbers separated by commas, not 'kafka'"),
        (
            {"port": "9092"},
            [CAPTURES[0]],
            "no option 'port'; its options are maxExpansion, maxPartitionBytes, mode, openCostInBytes, path, paths",
        ),
        (
            {"maxPartitionBytes": "0"},
            [CAPTURES[0]],
            "maxPartitionBytes must be a number of bytes above 0, such as 128m",
        ),
        (
            {"openCostInBytes": "4 MBit"},
            [CAPTURES[0]],
            "openCostInBytes must be a number of bytes above 0, such as 128m",
        ),
        ({"maxExpansion": "0"}, [CAPTURES[0]], "maxExpansion must be a whole number above 0, not '0'"),
        ({"maxBytesPerTrigger": "1"}, [CAPTURES[0]], "maxBytesPerTrigger is an option of streams"),
    ],
)
def test_wrong_paths_and_options_are_named(options: dict[str, str], paths: list[Path], text: str) -> None:
    if paths:
        options = {**options, "paths": json.dumps([str(path) for path in paths])}
    source = KcoordSource(options)
    with pytest.raises(ValueError, match=text):
        source.reader(source.schema())


def test_a_wrong_path_is_rejected_before_a_job(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match="is text, not a capture"):
        spark.read.format("kcoord").load(__file__)


def test_connections_continue_in_the_next_file(spark: SparkSession, tmp_path: Path) -> None:
    record_capture(tmp_path, DATA / "captures" / "static_bounce.pcap", max_file_bytes=10_000)
    assert len(list(tmp_path.iterdir())) > 3
    found, expected = analyze_on_spark([tmp_path], master="local[2]"), analyze([tmp_path])
    assert (found.histories, found.losses, found.counts) == (expected.histories, [], expected.counts)
