"""Coordination logs on Spark have the histories of the plain analysis."""

from __future__ import annotations

import random

from pyspark.sql import DataFrame, SparkSession

from kcoord_wire.forensics.analysis import analyze_records
from kcoord_wire.forensics.marshal.parts import Judge
from kcoord_wire.forensics.model import LogRow
from kcoord_wire.spark import coordination_claims, group_histories
from kcoord_wire.spark.rows import spark_schema
from tests.support.marshal_rows import generated_log, live_log, table
from tests.support.offsets_log import generation
from tests.support.offsets_log import table as offsets_table


def frame_of(spark: SparkSession, rows: list[LogRow], partitions: int = 3) -> DataFrame:
    return spark.createDataFrame(table(rows).to_pylist(), spark_schema(LogRow)).repartition(partitions)


def test_histories_and_losses_equal_the_plain_analysis(spark: SparkSession) -> None:
    rows = [*live_log(), *generated_log(5)]
    shuffled = random.Random(5).sample(rows, len(rows))
    offsets = offsets_table([generation(1, {"m-1": [0]})])
    for judge in (Judge(), Judge("library", 30)):
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
