"""What a task reads: files packed by bytes, and rows equal to the plain readers' for any packing."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kcoord_wire.forensics.model import Frame, LogRow
from kcoord_wire.forensics.sources.frames import read_frames, read_log
from kcoord_wire.spark.partitions import FilePartition, Packing, byte_size, plan_partitions, read_partition
from kcoord_wire.spark.places import Place, find_places
from kcoord_wire.spark.rows import instances
from tests.support.segments import rows

DATA = Path(__file__).parents[1] / "data"
CAPTURES = sorted((DATA / "captures").glob("*.pcap"))
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
    assert sizes(plan_partitions([Place(f"{size}.pcap", "pcap", size, 0) for size in files], packing)) == wanted


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
    assert reader.option("openCostInBytes", "1").option("maxPartitionBytes", "1").load(
        str(tmp_path)
    ).rdd.getNumPartitions() == len(sources)
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


def test_a_packed_segment_is_read_by_one_task(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020}.log"
    path.write_bytes(gzip.compress(SEGMENT.read_bytes()))
    assert len(plan_partitions(find_places([str(path)]), Packing(1000, 1))) == 1
