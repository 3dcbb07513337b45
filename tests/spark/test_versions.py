"""What an older Spark lacks: the error that names the version needed, and the way through pandas.

`make sparks` runs this folder with older versions of Spark; conftest.py says which of its files each can run.
"""

from __future__ import annotations

import sys
from importlib import import_module

import pytest
from pyspark.sql import DataFrame, SparkSession

import kcoord_wire as kw
from kcoord_wire.extras import MissingLibraryError
from kcoord_wire.spark import from_kafka_wire, versions
from kcoord_wire.spark.versions import SparkVersionError
from tests.support.sparks import SPARK

BATCH = ("pyspark.sql.datasource", "sources", "the data source kcoord needs Spark 4.0 or newer")
STREAM = ("pyspark.sql.streaming.datasource", "streams", "the stream source kcoord needs Spark 4.2 or newer")


@pytest.mark.parametrize(
    ("missing", "module", "text"), [BATCH, *([STREAM] if SPARK >= (4, 0) else [])], ids=lambda each: each.split()[0]
)
def test_a_source_says_which_spark_it_needs(
    monkeypatch: pytest.MonkeyPatch, missing: str, module: str, text: str
) -> None:
    if module == "streams":
        import_module("kcoord_wire.spark.sources")  # whose own import needs the missing module in a newer Spark
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, f"kcoord_wire.spark.{module}", raising=False)
    with pytest.raises(SparkVersionError, match=f"^{text}, and this is Spark ") as caught:
        import_module(f"kcoord_wire.spark.{module}")
    assert isinstance(caught.value, MissingLibraryError), "which commands print as a sentence"


def test_the_analysis_says_which_spark_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(DataFrame, "toArrow", raising=False)
    monkeypatch.delitem(sys.modules, "kcoord_wire.spark.histories", raising=False)
    with pytest.raises(SparkVersionError, match=r"^the analysis of groups on Spark needs Spark 4\.0 or newer"):
        import_module("kcoord_wire.spark.histories")


def test_expressions_through_pandas_have_the_same_values(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Integers that a float does not hold, beside nulls; nested and empty lists; nulls; bytes that do not decode."""
    partitions = [kw.OffsetCommitRequestPartition(committed_offset=2**62 + n) for n in range(3)]
    topic = kw.OffsetCommitRequestTopic(name="orders", partitions=partitions)
    bodies = [
        kw.encode_request(kw.OffsetCommitRequest(group_id="g", topics=[topic]), 8),
        kw.encode_request(kw.OffsetCommitRequest(group_id="h", topics=[]), 8),
        kw.encode_request(kw.OffsetCommitRequest(group_id="i", retention_time_ms=2**62 + 1), 3),
        kw.encode_request(kw.JoinGroupRequest(group_id="j", protocol_type="consumer"), 5),
    ]
    rows = [(n, body) for n, body in enumerate([*bodies, None, bodies[0][:20], b""])]
    frames = spark.createDataFrame(rows, "n int, frame binary")
    options = {"message": "OffsetCommit,JoinGroup", "mode": "PERMISSIVE"}
    responses = spark.createDataFrame(
        [
            (kw.encode_response(kw.HeartbeatResponse(throttle_time_ms=n), n % 4 + 1, correlation_id=7), n % 4 + 1, 12)
            for n in range(6)
        ]
        + [(None, None, None)],
        "frame binary, version short, key int",
    )

    def decoded() -> list[list[object]]:
        request = from_kafka_wire("frame", options).alias("v")
        response = from_kafka_wire(
            "frame", {"message": "Heartbeat,LeaveGroup", "form": "response"}, keys="key", versions="version"
        ).alias("v")
        found = frames.select("n", request), responses.select(response)
        return [[str(each.schema), *each.collect()] for each in found]

    monkeypatch.setattr(versions, "_arrow_udf", None)
    through_pandas = decoded()
    monkeypatch.undo()
    by_default = decoded()
    assert through_pandas == by_default
    assert "4611686018427387905" in str(through_pandas)
