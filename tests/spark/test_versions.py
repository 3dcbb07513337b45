"""What an older Spark lacks: the error that names the version needed, and the way through pandas.

`make sparks` runs this folder with older versions of Spark; conftest.py says which of its files each can run.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import kcoord_wire as kw
import kcoord_wire.spark
from kcoord_wire.extras import MissingLibraryError
from kcoord_wire.spark import from_kafka_wire, session, versions
from kcoord_wire.spark.versions import SparkVersionError, check_java
from tests.support.sparks import SPARK

IN_3_5 = {
    *("BadFrameError", "convert_parquet", "decode_frames", "decode_parquet", "from_kafka_wire"),
    *("package_archive", "session", "spark_conf", "submit_conf"),
}
BATCH = ("pyspark.sql.datasource", "sources", "the data source kcoord needs Spark 4.0 or newer")
SQL = ("pyspark.sql.udtf", "functions", "a table function needs Spark 4.0 or newer")
STREAM = ("pyspark.sql.streaming.datasource", "streams", "the stream source kcoord needs Spark 4.2 or newer")


@pytest.mark.parametrize(
    ("missing", "module", "text"),
    [BATCH, SQL, *([STREAM] if SPARK >= (4, 0) else [])],
    ids=lambda each: each.split()[0],
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


@pytest.mark.parametrize("name", kcoord_wire.spark.__all__)
def test_each_name_is_there_or_says_which_spark_it_needs(name: str) -> None:
    is_there = SPARK >= (4, 0) or name in IN_3_5
    with nullcontext() if is_there else pytest.raises(SparkVersionError, match=r" needs Spark 4\.0 or newer"):
        getattr(kcoord_wire.spark, name)


@pytest.mark.skipif(not (4, 0) <= SPARK < (4, 2), reason="Spark 3.5 has no source; 4.2 and newer have that of streams")
def test_a_query_says_which_spark_it_needs(spark: SparkSession, tmp_path: Path) -> None:
    recorded = spark.readStream.format("kcoord").load(str(tmp_path)).writeStream.format("noop")
    with pytest.raises(
        PySparkException, match=r"SparkVersionError: the stream source kcoord needs Spark 4\.2 or newer"
    ) as caught:
        recorded.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    assert "UnboundLocalError" not in str(caught.value), "by which Spark hides the reason"


@pytest.mark.skipif(SPARK >= (4, 0), reason="Spark 4.0 and newer have what Connect needs")
def test_connect_says_which_spark_it_needs() -> None:
    with pytest.raises(SparkVersionError, match=r"^Spark Connect needs Spark 4\.0 or newer, and this is Spark 3\.5"):
        session("sc://127.0.0.1:1")


def test_a_new_java_needs_a_new_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "_arrow_udf", None)
    check_java(23)
    with pytest.raises(SparkVersionError, match=r"^Java 24 needs Spark 4\.1 or newer, and this is Spark "):
        check_java(24)


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
