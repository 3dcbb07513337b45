"""What a task reads: files packed by bytes, and rows equal to the plain readers' for any packing."""

from __future__ import annotations

import gzip
import shutil
from itertools import chain
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kcoord_wire.capture.lanes import LANES
from kcoord_wire.forensics.model import Frame, LogRow
from kcoord_wire.forensics.sources.frames import read_frames, read_log
from kcoord_wire.spark.matching import EXCHANGES, FRAMES, KINDS, match_packed
from kcoord_wire.spark.packing import unpacked
from kcoord_wire.spark.partitions import FilePartition, Packing, byte_size, plan_partitions, read_partition
from kcoord_wire.spark.places import Place, find_places
from kcoord_wire.spark.rows import instances
from tests.support.segments import rows
from tests.support.wire_samples import match_all

DATA = Path(__file__).parents[1] / "data"
CAPTURES = sorted((DATA / "captures").glob("*.pcap"))
RECORDING = DATA / "recordings" / "modern-java.kcrec"
[SEGMENT] = (DATA / "consumer_groups" / "kafka-4.1.0").rglob("*.log")


def copies(folder: Path, count: int) -> list[Place]:
    for number in range(count):
        shutil.copy(CAPTURES[number % len(CAPTURES)], folder / f"{'abcdefgh'[number]}.pcap")
    return find_places([str(folder)])


def sizes(partitions: list[FilePartition]) -> list[list[int]]:
    return [[place.size for place in partition.places] for partition in partitions]


@pytest.mark.parametrize(
    ("files", "packing", "wanted"),
    [
        ((), Packing(), []),
        ((5, 5, 5, 5), Packing(100, 1, 1), [[5, 5, 5, 5]]),
        ((5, 5, 5, 5), Packing(100, 1, 2), [[5, 5], [5, 5]]),  # as many as cores
        ((5, 5, 5, 5), Packing(100, 20, 4), [[5], [5], [5], [5]]),
        ((5, 5, 5, 5), Packing(100, 100, 4), [[5], [5], [5], [5]]),
        ((1, 1, 1, 1), Packing(100, 10, 40), [[1], [1], [1], [1]]),
        ((5, 5, 5, 5), Packing(11, 1, 1), [[5, 5], [5, 5]]),  # none above the limit
        ((5, 50, 5, 5), Packing(17, 1, 1), [[5], [50], [5, 5]]),  # but what a file exceeds it by
    ],
)
def test_files_are_packed_by_bytes(files: tuple[int, ...], packing: Packing, wanted: object) -> None:
    assert sizes(plan_partitions([Place(f"{size}.log", "text", size, 0) for size in files], packing)) == wanted


def test_the_packing_is_that_of_the_session(spark: SparkSession) -> None:
    assert Packing.of_session(spark) == Packing(128 << 20, 4 << 20, 2)
    spark.conf.set("spark.sql.files.maxPartitionBytes", "16MB")
    spark.conf.set("spark.sql.files.minPartitionNum", "5")
    try:
        assert Packing.of_session(spark) == Packing(16 << 20, 4 << 20, 5)
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
        spark.conf.unset("spark.sql.files.minPartitionNum")


def test_sizes_are_written_as_spark_writes_them() -> None:
    assert [byte_size("", text) for text in ("134217728b", "128m", "128MB", "1 KiB", "7")] == [
        1 << 27,
        1 << 27,
        1 << 27,
        1024,
        7,
    ]


def test_small_files_share_tasks(spark: SparkSession, tmp_path: Path) -> None:
    sources = copies(tmp_path, 6)
    reader = spark.read.format("kcoord")
    df = reader.load(str(tmp_path))
    assert df.rdd.getNumPartitions() == 2
    largest = str(max(place.size for place in sources))
    apart = reader.options(openCostInBytes="1", maxPartitionBytes=largest).load(str(tmp_path))
    assert apart.rdd.getNumPartitions() == len(sources)
    found = sorted(instances(Frame, df.toArrow()), key=lambda row: (row.source, row.seq))
    plain = [row for source in sources for batch in read_frames(source.name) for row in instances(Frame, batch)]
    assert found == sorted(plain, key=lambda row: (row.source, row.seq))


def test_a_partition_is_read_in_order_without_a_session(tmp_path: Path) -> None:
    sources = copies(tmp_path, 7)
    found = [
        row
        for partition in plan_partitions(sources, Packing(300_000, 1))
        for place, batch in read_partition(partition)
        for row in instances(Frame, batch)
        if row.source == place.name
    ]
    plain = [row for source in sources for batch in read_frames(source.name) for row in instances(Frame, batch)]
    assert found == plain


def test_a_large_segment_is_read_by_several_tasks(spark: SparkSession) -> None:
    size = SEGMENT.stat().st_size
    reader = spark.read.format("kcoord").options(openCostInBytes="1", metadata="true")
    df = reader.option("maxPartitionBytes", str(size // 10)).load(str(SEGMENT))
    assert df.rdd.getNumPartitions() == 11
    found = sorted(instances(LogRow, df.drop("_metadata").toArrow()), key=lambda row: row.offset)
    assert found == sorted(
        (row for batch in read_log(SEGMENT) for row in instances(LogRow, batch)), key=lambda row: row.offset
    )
    assert [row["size"] for row in df.selectExpr("_metadata.file_size AS size").distinct().collect()] == [size]


@pytest.mark.parametrize("tasks", [1, 7, 64])
def test_shares_are_read_in_order_without_a_session(tmp_path: Path, tasks: int) -> None:
    place = Place(str(SEGMENT), "log", SEGMENT.stat().st_size, 0)
    partitions = plan_partitions([place], Packing(-(-place.size // tasks), 1))
    assert len(partitions) == tasks
    found = [row for partition in partitions for _, batch in read_partition(partition) for row in batch.to_pylist()]
    assert found == rows(read_log(SEGMENT))


@pytest.mark.parametrize("path", [SEGMENT, CAPTURES[0]], ids=["segment", "capture"])
def test_what_is_packed_is_read_by_one_task(tmp_path: Path, path: Path) -> None:
    packed = tmp_path / path.name
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert len(plan_partitions(find_places([str(packed)]), Packing(1000, 1))) == 1


@pytest.mark.parametrize("tasks", [1, 7, 64])
def test_a_recording_is_read_in_shares_of_its_bytes(tasks: int) -> None:
    place = Place(str(RECORDING), "recording", RECORDING.stat().st_size, 0)
    partitions = plan_partitions([place], Packing(-(-place.size // tasks), 1))
    assert len(partitions) == tasks
    found = [row for partition in partitions for _, batch in read_partition(partition) for row in batch.to_pylist()]
    assert found == rows(read_frames(RECORDING))


@pytest.mark.parametrize(("limit", "tasks"), [(1 << 30, 1), (40_000, 3), (1, LANES)])
def test_a_large_capture_is_matched_in_shares(limit: int, tasks: int) -> None:
    [place] = find_places([str(CAPTURES[0])])
    partitions = plan_partitions([place], Packing(limit, 1))
    assert len(partitions) == tasks
    assert all(partition.places[0].bytes_to_read <= max(limit, place.size // LANES + 1) for partition in partitions)
    shares = [[batch for _, batch in read_partition(partition)] for partition in partitions]
    found = sorted((row for share in shares for row in rows(share)), key=lambda row: row["seq"])
    assert found == rows(read_frames(CAPTURES[0]))
    matched = [list(match_packed(iter(share))) for share in shares]
    assert sum(row["rows"] for row in rows(chain(*matched)) if row["kind"] == FRAMES) == len(found)
    exchanges = [
        row for each in matched for batch in unpacked(iter(each), EXCHANGES, KINDS[EXCHANGES]) for row in rows([batch])
    ]
    in_order = sorted(exchanges, key=lambda row: row["seq"])
    assert in_order == sorted(match_all(read_frames(CAPTURES[0]))[0], key=lambda row: row["seq"])
