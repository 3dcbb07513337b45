"""The whole analysis on Spark equals that of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from kcoord_wire.forensics.analysis import analyze
from kcoord_wire.spark.analysis import analyze_on_spark
from tests.support.text_logs import recorded

DATA = Path(__file__).parents[1] / "data"
CAPTURES = sorted((DATA / "captures").glob("*.pcap"))
[SEGMENT] = (DATA / "consumer_groups" / "kafka-4.1.0").rglob("*.log")


def test_logs_with_a_capture_of_the_incident_equal_too(spark: SparkSession, tmp_path: Path) -> None:
    undated = tmp_path / "undated.log"
    undated.write_text("12:00:03 Stabilized group g generation 5\n")
    incident = [DATA / "incidents" / f"outage-kill.{kind}.gz" for kind in ("pcap", "log")]
    paths = [*map(str, [*recorded("broker-1", "kafkajs-2.2.4-c"), *incident]), str(undated)]
    found = analyze_on_spark(paths, master="local[2]", timezone="+01:00")
    expected = analyze(paths, timezone="+01:00")
    assert found.histories == expected.histories
    assert found.counts == expected.counts
    assert [(loss.source, loss.what) for loss in found.losses if loss.source == str(undated)] == [
        (loss.source, loss.what) for loss in expected.losses if loss.source == str(undated)
    ]


def test_captures_and_segments_equal_the_plain_analysis(spark: SparkSession, tmp_path: Path) -> None:
    torn = tmp_path / "torn.pcap"
    torn.write_bytes(CAPTURES[0].read_bytes()[:-7])
    paths = [*map(str, CAPTURES[1:]), str(torn), str(SEGMENT)]
    progress: list[tuple[Any, ...]] = []
    found = analyze_on_spark(paths, master="local[2]", progress=lambda *each: progress.append(each))
    expected = analyze(paths)
    assert found.histories == expected.histories
    assert found.counts == expected.counts
    assert [loss.source for loss in found.losses] == [loss.source for loss in expected.losses]
    assert str(torn) in {loss.source for loss in found.losses}
    assert all(0 <= done <= total for _, done, total in progress)
    assert spark.range(1).count() == 1  # the running session is left running
