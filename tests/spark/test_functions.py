"""The table functions of SQL have the rows of the functions of Python."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from kcoord_wire.forensics.analysis import analyze
from kcoord_wire.spark import decode_frames

CAPTURE = Path(__file__).parents[1] / "data" / "captures" / "static_bounce.pcap"


@pytest.fixture(autouse=True)
def captured(spark: SparkSession) -> Iterator[str]:
    frames = spark.read.format("kcoord").load(str(CAPTURE))
    frames.select("time_ns", "connection", "direction", "frame").createOrReplaceTempView("captured")
    yield "captured"
    spark.catalog.dropTempView("captured")


@pytest.mark.parametrize(
    ("more", "arguments"),
    [
        ("", {}),
        (", 'JoinGroup'", {"apis": ["JoinGroup"]}),
        (
            ", 'JoinGroup, Heartbeat', 'group_id,api_key'",
            {"apis": ["JoinGroup", "Heartbeat"], "columns": ["group_id", "api_key"], "flat": True},
        ),
        (
            ", columns => 'group_id', mode => 'dropmalformed'",
            {"columns": ["group_id"], "flat": True, "mode": "dropmalformed"},
        ),
    ],
)
def test_decoded_rows_are_those_of_decode_frames(spark: SparkSession, more: str, arguments: dict[str, object]) -> None:
    found = spark.sql(f"SELECT * FROM kcoord_decode(TABLE(captured){more})")
    expected = decode_frames(spark.table("captured"), **arguments)  # type: ignore[arg-type]
    assert found.columns == expected.columns
    rows = expected.orderBy("time_ns", "connection").collect()
    assert rows
    assert found.orderBy("time_ns", "connection").collect() == rows


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("kcoord_decode('captured')", "the first argument of kcoord_decode is a table"),
        ("kcoord_decode(TABLE(SELECT 1 AS n))", "the table has no column 'frame', only n"),
        ("kcoord_decode(TABLE(captured), 'JoinGrup')", "do you mean 'JoinGroup'"),
        ("kcoord_decode(TABLE(captured), api => 'JoinGroup')", "no argument 'api'; they are apis, columns, mode"),
        ("kcoord_decode(TABLE(captured), uuid())", "the argument apis of kcoord_decode must be a constant"),
        ("kcoord_decode(TABLE(SELECT frame, 1 AS api_key FROM captured))", "names of decoded ones: api_key"),
    ],
)
def test_wrong_arguments_are_named(spark: SparkSession, call: str, text: str) -> None:
    with pytest.raises(AnalysisException, match=text):
        spark.sql(f"SELECT * FROM {call}").collect()


def test_bad_frames_end_a_strict_query(spark: SparkSession) -> None:
    torn = "TABLE(SELECT substring(frame, 1, 12) AS frame FROM captured WHERE direction = 'request')"
    with pytest.raises(PySparkException, match="truncated at byte"):
        spark.sql(f"SELECT * FROM kcoord_decode({torn}, mode => 'FAILFAST')").collect()


def test_rebalances_are_those_of_the_plain_analysis(spark: SparkSession) -> None:
    found = spark.sql(
        f"SELECT group_id, number, cause, detail, moved, removed FROM kcoord_rebalances('{CAPTURE}')"
    ).collect()
    expected = [
        (each.group_id, each.number, each.cause, each.detail, each.moved, each.removed)
        for history in analyze([CAPTURE]).histories
        for each in history.rebalances
    ]
    assert expected
    assert [tuple(row) for row in found] == expected
