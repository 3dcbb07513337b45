"""Histories on Spark are those of the plain path, for any batches, order and partitions.

Sixteen mixtures go through the functions that Spark's workers run; three of them through Spark as well, with different
numbers of partitions and sizes of batches.

Coordination logs on Spark have the histories of the plain analysis.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from kcoord_wire.forensics.analysis import TABLES, Analysis, analyze, analyze_records
from kcoord_wire.forensics.detectors import detect
from kcoord_wire.forensics.exchanges.matcher import Matcher
from kcoord_wire.forensics.marshal.reader import ClaimRules
from kcoord_wire.forensics.model import Exchange, Frame, GroupHistory, LogRow, Rebalance, Sighting, arrow_schema
from kcoord_wire.forensics.records.reader import log_histories
from kcoord_wire.forensics.sources.frames import read_frames, read_log
from kcoord_wire.forensics.wire.history import place_evidence, wire_history
from kcoord_wire.spark import coordination_claims, explain_rebalances, group_histories, match_exchanges
from kcoord_wire.spark.histories import GROUP_SETTING, _buckets, day_of
from kcoord_wire.spark.rows import spark_schema
from tests.support.marshal_rows import generated_log, live_log, table
from tests.support.offsets_log import generation
from tests.support.offsets_log import table as offsets_table

DATA = Path(__file__).parents[1] / "data"
CAPTURES = sorted((DATA / "captures").glob("*.pcap"))
CAPTURE = DATA / "captures" / "static_bounce.pcap"
MODERN = DATA / "recordings" / "modern-java.kcrec"
[SEGMENT] = (DATA / "consumer_groups" / "kafka-4.1.0").rglob("*.log")
MIXTURES = range(16)
ON_SPARK = range(3)


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
    """The frames of each connection in order, the connections interleaved in runs of random length."""
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
    """The result of the plain path for the capture."""
    return analyze([CAPTURE])


@pytest.fixture(scope="module")
def frames() -> pa.Table:
    return rows_of(CAPTURE)


@pytest.fixture(scope="module")
def records() -> pa.Table:
    return rows_of(SEGMENT)


@pytest.mark.parametrize("seed", MIXTURES)
def test_any_order_of_frames_has_the_same_history(seed: int, frames: pa.Table, plain: Analysis) -> None:
    chosen = random.Random(seed)
    matcher = Matcher()
    found = [matcher.feed(batch) for batch in cut(of_connections(frames, chosen), chosen)]
    found.append(matcher.finish())
    exchanges = pa.Table.from_batches([batch for batch, _ in found], arrow_schema(Exchange))
    topics = pa.Table.from_batches([batch for _, batch in found], arrow_schema(Sighting))
    exchanges = pa.Table.from_batches(cut(mixed(exchanges, chosen), chosen), exchanges.schema)
    history = wire_history(exchanges, mixed(topics, chosen))
    history.findings = detect(history, exchanges)
    place_evidence(history, exchanges)
    assert [history] == plain.histories


def test_few_exchanges_are_in_few_buckets(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert [_buckets(spark, count) for count in (0, 500_000, 12_000_000, 10**12)] == [16, 16, 128, 1024]
    spark.conf.set("spark.sql.shuffle.partitions", "200")
    assert _buckets(spark, 0) == 1024


@pytest.fixture(scope="module")
def of_log(records: pa.Table) -> list[GroupHistory]:
    """The result of the plain path for the segment."""
    return log_histories(records)


@pytest.mark.parametrize("seed", MIXTURES)
def test_any_order_of_records_has_the_same_histories(seed: int, records: pa.Table, of_log: list[GroupHistory]) -> None:
    chosen = random.Random(seed)
    assert log_histories(pa.Table.from_batches(cut(mixed(records, chosen), chosen), records.schema)) == of_log


@pytest.fixture(autouse=True)
def as_it_was(request: pytest.FixtureRequest) -> Iterator[None]:
    """Restore the session's settings."""
    yield
    if "spark" in request.fixturenames:
        session: SparkSession = request.getfixturevalue("spark")
        session.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
        session.conf.set("spark.sql.shuffle.partitions", "2")


def spread(spark: SparkSession, rows: pa.Table, chosen: random.Random) -> DataFrame:
    """The rows in random order, partitions and batches."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(chosen.choice([1, 7, 50, 10_000])))
    spark.conf.set("spark.sql.shuffle.partitions", str(chosen.choice([1, 2, 3])))
    return spark.createDataFrame(mixed(rows, chosen)).repartition(chosen.choice([1, 2, 3, 5]))


@pytest.mark.parametrize("seed", ON_SPARK)
def test_any_partitioning_of_frames_has_the_same_history(
    spark: SparkSession, seed: int, frames: pa.Table, plain: Analysis
) -> None:
    matched = match_exchanges(spread(spark, frames, random.Random(seed)))
    histories = group_histories(matched)
    assert histories.collect() == plain.histories
    histories.unpersist()
    matched.unpersist()


def test_any_partitioning_of_records_has_the_same_histories(
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


def test_topic_ids_are_replaced_by_names(spark: SparkSession) -> None:
    histories = group_histories(spark.read.format("kcoord").load(str(MODERN)))
    collected = histories.collect()
    assert collected == analyze([MODERN]).histories
    topics = {row.topic for history in collected for row in [*history.ownership, *history.commits]}
    assert topics
    assert not any(topic.startswith("id:") for topic in topics)
    histories.unpersist()


def test_tables_and_causes_are_those_of_the_history(spark: SparkSession, plain: Analysis) -> None:
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


def test_a_group_that_is_too_large_is_refused_by_name(spark: SparkSession, frames: pa.Table) -> None:
    matched = match_exchanges(spread(spark, frames, random.Random(1)))
    spark.conf.set(GROUP_SETTING, "5")
    try:
        with pytest.raises(PySparkException, match=f"has more than 5 exchanges.*raise {GROUP_SETTING}"):
            group_histories(matched).histories.count()
        for wrong in ("0", "many", "-1", "1e6"):
            spark.conf.set(GROUP_SETTING, wrong)
            with pytest.raises(ValueError, match=f"{GROUP_SETTING} must be a number of exchanges.*not '{wrong}'"):
                group_histories(matched)
    finally:
        spark.conf.unset(GROUP_SETTING)
        matched.unpersist()


def test_other_columns_are_rejected(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match="these are not rows of Frame: source, seq, position"):
        group_histories(spark.createDataFrame([(b"",)], "frame binary"))
    with pytest.raises(ValueError, match="these are not rows of LogRow: source, partition"):
        group_histories(spark.createDataFrame([(b"", b"", 1)], "key binary, value binary, offset long"))


def frame_of(spark: SparkSession, rows: list[LogRow], partitions: int = 3) -> DataFrame:
    return spark.createDataFrame(table(rows).to_pylist(), spark_schema(LogRow)).repartition(partitions)


def test_histories_and_losses_equal_the_plain_analysis(spark: SparkSession) -> None:
    rows = [*live_log(), *generated_log(5)]
    shuffled = random.Random(5).sample(rows, len(rows))
    offsets = offsets_table([generation(1, {"m-1": [0]})])
    for judge in (ClaimRules(), ClaimRules("library", 30)):
        plain = analyze_records([*table(rows).to_batches(), *offsets.to_batches()], judge=judge)
        both = frame_of(spark, shuffled).union(spark.createDataFrame(offsets.to_pylist(), spark_schema(LogRow)))
        found = group_histories(both, judge=judge)
        assert found.collect() == plain.histories
        losses = [tuple(row) for row in found.losses.collect()]
        assert sorted(losses) == sorted(
            (loss.source, loss.position, loss.what, loss.bytes, loss.count) for loss in plain.losses
        )
        found.unpersist()


def test_claims_come_without_the_rest_of_the_histories(spark: SparkSession) -> None:
    rows = generated_log(6)
    plain = [claim for item in analyze_records(table(rows).to_batches()).histories for claim in item.claims]
    found = coordination_claims(frame_of(spark, rows)).collect()
    assert sorted(tuple(row) for row in found if row["to_ns"]) == sorted(
        tuple(getattr(claim, name) for name in claim.__slots__) for claim in plain if claim.to_ns
    )
    assert len(found) == len(plain)


def test_tables_have_the_day_on_which_their_rows_begin(spark: SparkSession) -> None:
    histories = group_histories(spark.read.format("kcoord").load(str(CAPTURE)))
    by_day = histories.by_day
    assert by_day.keys() == TABLES.keys()
    columns = {"groups": "first_ns", "members": "joined_ns", "pauses": "from_ns", "rebalances": "started_ns"}
    for name, column in columns.items():
        rows = by_day[name].select(column, "day").collect()
        assert rows
        assert [row["day"] for row in rows] == [
            datetime.fromtimestamp(row[column] // 10**9, UTC).date() for row in rows
        ]
    histories.unpersist()


def test_a_day_begins_with_its_first_nanosecond(spark: SparkSession) -> None:
    """Anywhere: a double would round the last nanoseconds to the next day."""
    midnight = 1_714_521_600_000_000_000
    times = spark.createDataFrame([(midnight - 1,), (midnight,), (-1,)], "started_ns long")
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
    try:
        days = [row["day"] for row in times.select(day_of(Rebalance).alias("day")).collect()]
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone or "UTC")
    assert days == [date(2024, 4, 30), date(2024, 5, 1), date(1969, 12, 31)]
