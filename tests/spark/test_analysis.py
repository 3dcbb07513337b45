"""The whole analysis on Spark equals that of one process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from kcoord_wire.forensics.analysis import analyze
from kcoord_wire.forensics.sources.frames import read_frames
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
    assert spark.sparkContext.getLocalProperty("spark.job.description") is None


def test_what_is_counted_is_in_the_page_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Jobs say what they do, and how many files, frames and groups are known by then; plans show what is counted."""
    torn = tmp_path / "torn.pcap"
    torn.write_bytes(CAPTURES[0].read_bytes()[:-7])
    expected = analyze([tmp_path])
    rows = [row for batch in read_frames(torn) for row in batch.to_pylist()]
    counts = {
        "files": 1,
        "frames": expected.counts["frames"],
        "errors": sum(row["error"] is not None for row in rows),
        "exchanges": expected.counts["exchanges"],
        "losses": len(expected.losses),
    }
    assert counts["frames"] == len(rows)
    assert counts["errors"] > 0
    store = spark._jsparkSession.sharedState().statusStore()
    before = store.executionsList().size()
    analyze_on_spark([tmp_path], master="local[2]")
    shown = [store.executionsList().apply(number) for number in range(before, store.executionsList().size())]
    said = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    assert list(dict.fromkeys(each.description() for each in shown)) == [
        f"matching the frames of 1 file, {torn.stat().st_size / 1e6:,.1f} MB",
        f"histories of groups: {said}",
    ]  # no client was refused: there is no job for those without a group
    counting = re.compile(r"^CollectMetrics kcoord (\w+) \d+, .* AS (\w+)", re.MULTILINE)
    counted = [counting.findall(nodes(store, each)) for each in shown]
    assert counted[0] == [("matched", "losses")]
    assert ("histories", "groups") in {node for found in counted for node in found}


def nodes(store: Any, execution: Any) -> str:
    """What the page shows of a query's plan, a line for each node."""
    every = store.planGraph(execution.executionId()).allNodes()
    return "\n".join(every.apply(number).desc() for number in range(every.size()))
