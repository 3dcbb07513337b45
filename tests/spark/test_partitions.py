"""What a task reads: files packed by bytes, and rows equal to the plain readers' for any packing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kcoord_wire.forensics.model import Frame
from kcoord_wire.forensics.sources.frames import read_frames
from kcoord_wire.spark.partitions import FilePartition, Packing, byte_size, plan_partitions, read_partition
from kcoord_wire.spark.places import Place, find_places
from kcoord_wire.spark.rows import instances

DATA = Path(__file__).parents[1] / "data"
CAPTURES = sorted((DATA / "captures").glob("*.pcap"))


def copies(folder: Path, count: int) -> list[Place]:
    for number in range(count):
        shutil.copy(CAPTURES[number % len(CAPTURES)], folder / f"trace.pcap{number}")
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
