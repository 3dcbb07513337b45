"""Frames that are matched in the tasks that read them have the histories of the plain analysis."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kcoord_wire.forensics.analysis import analyze
from kcoord_wire.forensics.model import Frame, arrow_schema
from kcoord_wire.forensics.sources.frames import read_frames
from kcoord_wire.recorder.recording import RecordingWriter, recording_files
from kcoord_wire.spark import group_histories, match_files
from kcoord_wire.spark.matching import LATER
from kcoord_wire.spark.partitions import Packing, plan_partitions
from kcoord_wire.spark.places import Place

DATA = Path(__file__).parents[1] / "data"
CAPTURE = DATA / "captures" / "static_bounce.pcap"
MODERN = DATA / "recordings" / "modern-java.kcrec"
[SEGMENT] = (DATA / "consumer_groups" / "kafka-4.1.0").rglob("*.log")


def recorded(source: Path, folder: Path, max_file_bytes: int) -> list[Path]:
    """The frames of a capture as a recording of several files."""
    numbers: dict[str, int] = {}
    with RecordingWriter(folder, max_file_bytes=max_file_bytes) as writer:
        for row in pa.Table.from_batches(read_frames(source), arrow_schema(Frame)).to_pylist():
            name, at = row["connection"], row["time_ns"]
            if row["direction"] == "opened":
                numbers[name] = len(numbers) + 1
                writer.opened(numbers[name], name, at)
            elif row["direction"] in ("closed", "reset"):
                writer.closed(numbers[name], at, by=row["by"], reset=row["direction"] == "reset")
            else:
                writer.frame(numbers[name], row["direction"], row["frame"], at)
    return recording_files(folder)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recording")
    assert len(recorded(CAPTURE, folder, 8_000)) > 3
    return folder


@pytest.mark.parametrize(("limit", "is_spread"), [("1g", False), ("9000", True)])
def test_a_recording_is_matched_by_one_task_or_by_connection(
    spark: SparkSession, recording: Path, limit: str, is_spread: bool
) -> None:
    paths = [str(recording), str(MODERN)]
    matched = match_files(spark, *paths, maxPartitionBytes=limit)
    histories = group_histories(matched)
    expected = analyze(paths)
    assert histories.collect() == expected.histories
    files = len(recording_files(recording)) + 1
    plain = {"frames": expected.counts["frames"], "exchanges": expected.counts["exchanges"]}
    assert matched.counts == {"files": files, **plain, "errors": 0, "losses": len(expected.losses)}
    assert matched.metrics is not None
    assert matched.metrics.get == matched.counts
    assert histories.metrics is not None
    assert histories.metrics.get == {"groups": len(expected.histories)}
    spread = spark.read.format("kcoord").options(maxPartitionBytes=limit, matching=LATER).load(paths)
    sources = {row["source"] for row in spread.select("source").distinct().collect()}
    assert sources == ({str(path) for path in (*recording_files(recording), MODERN)} if is_spread else set())
    histories.unpersist()
    matched.unpersist()


def test_files_of_a_recording_stay_together() -> None:
    names = ["a/frames-000001.kcrec", "a/frames-000002.kcrec", "b/frames-000001.kcrec", "c.pcap"]
    places = [Place(name, "recording" if name.endswith("kcrec") else "pcap", 10, 0) for name in names]

    def planned(*, whole: bool) -> list[list[str]]:
        partitions = plan_partitions(places, Packing(10, 1), whole=whole)
        return [[place.name for place in partition.places] for partition in partitions]

    assert planned(whole=False) == [[name] for name in names]
    assert planned(whole=True) == [names[:2], names[2:3], names[3:]]


def test_only_frames_can_be_matched(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match=r"only frames can be matched, and these are records of a log: .*\.log"):
        match_files(spark, str(SEGMENT))


def test_options_are_those_of_the_source(spark: SparkSession, tmp_path: Path) -> None:
    torn = tmp_path / "torn.pcap"
    torn.write_bytes(CAPTURE.read_bytes()[:-7])
    strict = match_files(spark, str(torn), mode="FAILFAST")
    with pytest.raises(PySparkException, match="mode PERMISSIVE has a row for it"):
        strict.rows.collect()
    strict.unpersist()
    matched = match_files(spark, str(CAPTURE), ports="1")
    counts = matched.counts
    assert (counts["files"], counts["exchanges"]) == (1, 0)
    assert counts["frames"] == analyze([CAPTURE], ports=[1]).counts["frames"]
    matched.unpersist()
