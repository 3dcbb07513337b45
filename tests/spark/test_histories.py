"""Histories on Spark are those of the plain path, however the input is cut, mixed and spread.

Fifty mixtures go through the functions that Spark's workers run; eight of them through Spark as well, with as many
partitions and sizes of batches.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from kcoord_wire.forensics.analysis import TABLES, Analysis, analyze
from kcoord_wire.forensics.detectors import detect
from kcoord_wire.forensics.exchanges.matcher import Matcher
from kcoord_wire.forensics.log.history import log_histories
from kcoord_wire.forensics.model import Exchange, Frame, GroupHistory, LogRow, TopicSighting, arrow_schema
from kcoord_wire.forensics.sources.frames import read_frames, read_log
from kcoord_wire.forensics.wire.history import wire_history
from kcoord_wire.spark import explain_rebalances, group_histories, match_exchanges
from kcoord_wire.spark.analysis import analyze_on_spark

DATA = Path(__file__).parents[1] / "data"
CAPTURES = sorted((DATA / "captures").glob("*.pcap"))
CAPTURE = DATA / "captures" / "static_bounce.pcap"
MODERN = [DATA / "recordings" / f"modern-{client}.kcrec" for client in ("confluent", "java")]
[SEGMENT] = (DATA / "consumer_groups" / "kafka-4.1.0").rglob("*.log")
MIXTURES = range(50)
ON_SPARK = range(8)


def rows_of(path: Path) -> pa.Table:
    is_log = path.suffix == ".log"
    schema = arrow_schema(LogRow if is_log else Frame)
    return pa.Table.from_batches(read_log(path) if is_log else read_frames(path), schema)


def mixed(table: pa.Table, chosen: random.Random) -> pa.Table:
    """The rows in another order."""
    return table.take(pa.array(chosen.sample(range(len(table)), len(table)), pa.int64()))


def cut(table: pa.Table, chosen: random.Random) -> list[pa.RecordBatch]:
    """The rows in batches of many sizes."""
    table, batches = table.combine_chunks(), []
    largest = chosen.choice([1, 3, 20, 200, len(table)])
    while len(table):
        size = chosen.randint(1, largest)
        batches += table.slice(0, size).to_batches()
        table = table.slice(size)
    return batches


def of_connections(frames: pa.Table, chosen: random.Random) -> pa.Table:
    """The frames of each connection in order, the connections one after the other or in runs of many lengths."""
    lines: dict[str, list[int]] = {}
    for row, name in enumerate(frames["connection"].to_pylist()):
        lines.setdefault(name, []).append(row)
    longest, order = chosen.choice([1, 5, 50, len(frames)]), []
    while lines:
        name = chosen.choice(sorted(lines))
        run = chosen.randint(1, longest)
        order += lines[name][:run]
        if not lines[name][run:]:
            del lines[name]
        else:
            lines[name] = lines[name][run:]
    return frames.take(pa.array(order, pa.int64()))


@pytest.fixture(scope="module")
def plain() -> Analysis:
    """What the plain path says of the capture."""
    return analyze([CAPTURE])


@pytest.fixture(scope="module")
def frames() -> pa.Table:
    return rows_of(CAPTURE)


@pytest.fixture(scope="module")
def records() -> pa.Table:
    return rows_of(SEGMENT)


@pytest.mark.parametrize("seed", MIXTURES)
def test_frames_in_any_mixture_give_the_same_history(seed: int, frames: pa.Table, plain: Analysis) -> None:
    chosen = random.Random(seed)
    matcher = Matcher()
    told = [matcher.feed(batch) for batch in cut(of_connections(frames, chosen), chosen)]
    told.append(matcher.finish())
    exchanges = pa.Table.from_batches([batch for batch, _ in told], arrow_schema(Exchange))
    topics = pa.Table.from_batches([batch for _, batch in told], arrow_schema(TopicSighting))
    exchanges = pa.Table.from_batches(cut(mixed(exchanges, chosen), chosen), exchanges.schema)
    history = wire_history(exchanges, mixed(topics, chosen))
    history.findings = detect(history, exchanges)
    assert [history] == plain.histories


@pytest.fixture(scope="module")
def of_log(records: pa.Table) -> list[GroupHistory]:
    """What the plain path says of the segment."""
    return log_histories(records)


@pytest.mark.parametrize("seed", MIXTURES)
def test_records_in_any_mixture_give_the_same_histories(
    seed: int, records: pa.Table, of_log: list[GroupHistory]
) -> None:
    chosen = random.Random(seed)
    assert log_histories(pa.Table.from_batches(cut(mixed(records, chosen), chosen), records.schema)) == of_log


@pytest.fixture(autouse=True)
def as_it_was(request: pytest.FixtureRequest) -> Iterator[None]:
    """The session's settings, for the tests that come after."""
    yield
    if "spark" in request.fixturenames:
        session: SparkSession = request.getfixturevalue("spark")
        session.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
        session.conf.set("spark.sql.shuffle.partitions", "2")


def spread(spark: SparkSession, rows: pa.Table, chosen: random.Random) -> DataFrame:
    """The rows in any order, in so many partitions, to be handed over in batches of so many."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(chosen.choice([1, 7, 50, 10_000])))
    spark.conf.set("spark.sql.shuffle.partitions", str(chosen.choice([1, 2, 3])))
    return spark.createDataFrame(mixed(rows, chosen)).repartition(chosen.choice([1, 2, 3, 5]))


@pytest.mark.parametrize("seed", ON_SPARK)
def test_frames_however_spread_give_the_same_history(
    spark: SparkSession, seed: int, frames: pa.Table, plain: Analysis
) -> None:
    matched = match_exchanges(spread(spark, frames, random.Random(seed)))
    histories = group_histories(matched)
    assert histories.collect() == plain.histories
    histories.unpersist()
    matched.unpersist()


def test_records_however_spread_give_the_same_histories(
    spark: SparkSession, records: pa.Table, of_log: list[GroupHistory]
) -> None:
    for history in of_log:
        history.findings = detect(history)
    for seed in range(2):
        histories = group_histories(spread(spark, records, random.Random(seed)))
        assert histories.collect() == of_log
        histories.unpersist()
    only = group_histories(spread(spark, records, random.Random(3)), groups=[of_log[1].group.group_id])
    assert only.collect() == of_log[1:2]
    only.unpersist()


@pytest.mark.parametrize("path", MODERN, ids=lambda path: path.stem)
def test_topics_that_go_by_their_ids_have_names_on_spark_too(spark: SparkSession, path: Path) -> None:
    histories = group_histories(spark.read.format("kcoord").load(str(path)))
    collected = histories.collect()
    assert collected == analyze([path]).histories
    topics = {row.topic for history in collected for row in [*history.ownership, *history.commits]}
    assert topics
    assert not any(topic.startswith("id:") for topic in topics)
    histories.unpersist()


def test_the_tables_and_the_causes(spark: SparkSession, plain: Analysis) -> None:
    [history] = plain.histories
    histories = group_histories(spark.read.format("kcoord").load(str(CAPTURE)))
    assert set(histories.tables) == {*TABLES, "losses"}
    assert [row["members"] for row in histories.tables["groups"].collect()] == [len(history.members)]
    assert [row["member_id"] for row in histories.tables["ownership"].collect()] == [
        row.member_id for row in history.ownership
    ]
    explained = explain_rebalances(histories).orderBy("number").collect()
    assert [(row["number"], row["cause"], row["detail"]) for row in explained] == [
        (rebalance.number, rebalance.cause, rebalance.detail) for rebalance in history.rebalances
    ]
    assert [[finding["text"] for finding in row["findings"]] for row in explained] == [
        [finding.text for finding in history.findings if rebalance.number in finding.rebalances]
        for rebalance in history.rebalances
    ]
    histories.unpersist()


def test_captures_and_segments_together_are_analyzed_as_in_one_process(spark: SparkSession, tmp_path: Path) -> None:
    torn = tmp_path / "torn.pcap"
    torn.write_bytes(CAPTURES[0].read_bytes()[:-7])
    paths = [*map(str, CAPTURES[1:]), str(torn), str(SEGMENT)]
    told: list[tuple[Any, ...]] = []
    found = analyze_on_spark(paths, master="local[2]", progress=lambda *each: told.append(each))
    expected = analyze(paths)
    assert found.histories == expected.histories
    assert found.counts == expected.counts
    assert [loss.source for loss in found.losses] == [loss.source for loss in expected.losses]
    assert str(torn) in {loss.source for loss in found.losses}
    assert all(0 <= done <= total for _, done, total in told)
    assert spark.range(1).count() == 1  # a session that was there is left running


def test_other_columns_are_refused(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match="these are not rows of Frame: source, seq, position"):
        group_histories(spark.createDataFrame([(b"",)], "frame binary"))
    with pytest.raises(ValueError, match="these are not rows of LogRow: source, partition"):
        group_histories(spark.createDataFrame([(b"", b"", 1)], "key binary, value binary, offset long"))
