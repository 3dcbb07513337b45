"""The files of a rotated capture are one source on Spark, for any partitioning."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kcoord_wire.forensics.analysis import analyze
from kcoord_wire.forensics.model import Frame
from kcoord_wire.forensics.sources.frames import read_unit
from kcoord_wire.spark import group_histories, match_files
from kcoord_wire.spark.partitions import Packing, plan_partitions, read_partition
from kcoord_wire.spark.places import find_places
from kcoord_wire.spark.rows import instances
from tests.support.pcapng import to_pcapng
from tests.support.rotation import cut, even_cuts, write

CAPTURES = Path(__file__).parents[1] / "data" / "captures"


@pytest.mark.parametrize(("is_pcapng", "files"), [(False, 8), (True, 30)])
@pytest.mark.parametrize("shares", [1, 5])
def test_a_rotated_capture_is_one_source(
    spark: SparkSession, tmp_path: Path, is_pcapng: bool, files: int, shares: int
) -> None:
    data = (CAPTURES / "static_bounce.pcap").read_bytes()
    data = to_pcapng(data) if is_pcapng else data
    limit = str(2 * len(data) // (2 * shares - 1))
    other = CAPTURES / "cooperative.pcap"
    cuts = even_cuts(data, files)
    parts = write(tmp_path / "parts", [f"trace.pcap{number}" for number in range(files)], cut(data, cuts))
    paths = [str(tmp_path / "parts"), str(other)]
    expected = analyze(paths)
    matched = match_files(spark, *paths, maxPartitionBytes=limit, openCostInBytes="1")
    histories = group_histories(matched)
    found = histories.collect()
    assert found == expected.histories
    frames = spark.read.format("kcoord").options(maxPartitionBytes=limit, openCostInBytes="1").load(paths)
    spread = group_histories(frames.repartition(5))
    assert spread.collect() == expected.histories
    rows = [row for row in instances(Frame, frames.toArrow()) if row.capture]
    plain = [row for batch in read_unit(parts, is_rotated=True) for row in instances(Frame, batch)]
    assert sorted(rows, key=lambda row: row.seq) == plain
    for each in (histories, spread, matched):
        each.unpersist()


def test_a_condition_on_its_files_reads_all_of_them(spark: SparkSession, tmp_path: Path) -> None:
    """A connection of the last file was opened, and its broker found, in the first."""
    data = (CAPTURES / "static_bounce.pcap").read_bytes()
    parts = write(tmp_path, [f"trace.pcap{number}" for number in range(8)], cut(data, even_cuts(data, 8)))
    where = f"source = '{parts[-1]}'"
    every = spark.read.format("kcoord").load(str(tmp_path))
    expected = every.where(where).orderBy("seq").toArrow()
    found = spark.read.format("kcoord").option("where", where).load(str(tmp_path)).orderBy("seq").toArrow()
    assert found == expected
    assert 0 < len(found) < every.count()


def test_its_files_are_in_one_partition_or_all_in_each(tmp_path: Path) -> None:
    data = (CAPTURES / "static_bounce.pcap").read_bytes()
    write(tmp_path, [f"a{number}.pcap" for number in range(4)], cut(data, even_cuts(data, 4)))
    write(tmp_path, ["b.pcap"], [data])
    names = ["a0.pcap", "a1.pcap", "a2.pcap", "a3.pcap"]
    places = find_places([str(tmp_path)])
    for size, shares in ((len(data) + 100, 1), (len(data) // 2 + 100, 2)):
        planned = plan_partitions(places, Packing(size, 1))
        assert [[Path(place.name).name for place in partition.places] for partition in planned] == [
            *[names] * shares,
            *[["b.pcap"]] * shares,
        ]
        read = [row for part in planned for place, batch in read_partition(part) for row in instances(Frame, batch)]
        rotated = sorted((row for row in read if row.capture), key=lambda row: row.seq)
        parts = [tmp_path / name for name in names]
        assert rotated == [row for batch in read_unit(parts, is_rotated=True) for row in instances(Frame, batch)]
