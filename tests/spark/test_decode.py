"""Decoding on Spark's workers: the rows that `kcoord_wire.decode` gives, what is left out, and what bad rows become."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import kcoord_wire as kw
from kcoord_wire.spark import decode_frames, from_kafka_wire

JOIN = kw.JoinGroupRequest(
    group_id="billing",
    session_timeout_ms=45_000,
    rebalance_timeout_ms=300_000,
    member_id="m-1",
    protocol_type="consumer",
    protocols=[kw.JoinGroupRequestProtocol(name="range", metadata=b"\0\1")],
)
REQUESTS = [
    (JOIN, 5),
    (kw.HeartbeatRequest(group_id="billing", generation_id=7, member_id="m-1"), 4),
    (kw.SyncGroupRequest(group_id="billing", generation_id=7, member_id="m-1"), 3),
    (kw.MetadataRequest(topics=[]), 4),
]
SOUND = [
    kw.encode_request(message, version, correlation_id=n, client_id="c")
    for n, (message, version) in enumerate(REQUESTS)
]
TORN = SOUND[0][:30]


def frames(spark: SparkSession, rows: list[bytes | None], **more: list[Any]) -> DataFrame:
    columns = {"n": list(range(len(rows))), **more, "frame": rows}
    schema = {"n": "long", "frame": "binary", "key": "int", "version": "int", "direction": "string"}
    return spark.createDataFrame(
        list(zip(*columns.values(), strict=True)), ", ".join(f"{name} {schema[name]}" for name in columns)
    )


def by_number(df: DataFrame) -> dict[int, Row]:
    return {row["n"]: row for row in df.collect()}


def test_rows_equal_decode_and_other_apis_are_dropped(spark: SparkSession) -> None:
    rows = by_number(decode_frames(frames(spark, [*SOUND, TORN, b"\0", b""])))
    assert sorted(rows) == [0, 1, 2, 4, 5, 6]
    join = rows[0]["JoinGroupRequest"]
    for name in ("group_id", "session_timeout_ms", "rebalance_timeout_ms", "member_id", "group_instance_id", "reason"):
        assert join[name] == getattr(JOIN, name)
    assert [(p["name"], bytes(p["metadata"])) for p in join["protocols"]] == [("range", b"\0\1")]
    assert rows[0]["HeartbeatRequest"] is None
    assert (rows[1]["api_key"], rows[1]["correlation_id"], rows[1]["client_id"]) == (12, 1, "c")
    assert rows[1]["HeartbeatRequest"]["generation_id"] == 7
    for number in (0, 1, 2):
        assert [rows[number][name] for name in ("_error", "_error_offset", "_corrupt_record")] == [None] * 3
    for number, frame in ((4, TORN), (5, b"\0"), (6, b"")):
        with pytest.raises(kw.DecodeError) as raised:
            kw.decode_request(frame)
        assert (rows[number]["_error"], rows[number]["_error_offset"]) == (raised.value.kind, raised.value.offset)
        assert bytes(rows[number]["_corrupt_record"]) == frame


def test_only_selected_columns_are_decoded(spark: SparkSession) -> None:
    df = decode_frames(
        frames(spark, SOUND),
        apis=["JoinGroup", "HeartbeatRequest", 14],
        columns=["api_key", "group_id", "HeartbeatRequest.generation_id", "JoinGroupRequest.protocols.name"],
        mode="failfast",
    )
    assert df.schema.simpleString() == (
        "struct<n:bigint,api_key:smallint,JoinGroupRequest:struct<group_id:string,"
        "protocols:array<struct<name:string>>>,HeartbeatRequest:struct<group_id:string,generation_id:int>,"
        "SyncGroupRequest:struct<group_id:string>>"
    )
    rows = by_number(df)
    assert rows[0]["JoinGroupRequest"] == Row(group_id="billing", protocols=[Row(name="range")])
    assert rows[1]["HeartbeatRequest"] == Row(group_id="billing", generation_id=7)


def test_flat_columns_merge_the_messages(spark: SparkSession) -> None:
    columns = ["api_key", "group_id", "generation_id", "JoinGroupRequest.reason"]
    df = decode_frames(frames(spark, SOUND), columns=columns, mode="FAILFAST", flat=True)
    assert df.columns == ["n", "api_key", "group_id", "generation_id", "reason"]
    assert [tuple(row) for row in df.orderBy("n").collect()] == [
        (0, 11, "billing", None, None),
        (1, 12, "billing", 7, None),
        (2, 14, "billing", 7, None),
    ]


def test_responses_need_keys_and_versions(spark: SparkSession) -> None:
    response = kw.JoinGroupResponse(error_code=0, generation_id=3, protocol_name="range", leader="m", member_id="m")
    body = kw.encode_response(response, 5, correlation_id=9)
    other = kw.encode_response(kw.HeartbeatResponse(), 0)
    df = frames(
        spark,
        [body, other, body, body],
        key=[11, 12, None, 11],
        version=[5, 0, 5, 5],
        direction=["response", "response", "response", "request"],
    )
    decoded = decode_frames(df, apis=["JoinGroup"], form="response", keys="key", versions="version")
    [row] = decoded.collect()
    assert (row["n"], row["correlation_id"], row["JoinGroupResponse"]["generation_id"], row["_error"]) == (
        0,
        9,
        3,
        None,
    )


def test_failfast_names_the_bad_row(spark: SparkSession) -> None:
    df = decode_frames(frames(spark, [*SOUND, TORN]), mode="FAILFAST")
    with pytest.raises(PythonException) as raised:
        df.collect()
    assert "truncated at byte 28 of 30 (request, one of OffsetCommitRequest" in str(raised.value)
    assert TORN[:24].hex() in str(raised.value)
    assert "mode PERMISSIVE" in str(raised.value)


def test_dropmalformed_leaves_bad_rows_out(spark: SparkSession) -> None:
    df = frames(spark, [*SOUND, TORN, *SOUND])
    kept = decode_frames(df, mode="DROPMALFORMED")
    assert not [name for name in kept.columns if name.startswith("_")]
    sound = decode_frames(df).where("_error is null").select(kept.columns)
    assert sorted(kept.collect()) == sorted(sound.collect())
    assert kept.count() == 2 * decode_frames(frames(spark, SOUND)).count() > 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"apis": ["JoinGrup"]}, "there is no request 'JoinGrup'; do you mean 'JoinGroup'?"),
        ({"apis": [9999]}, "there is no request 9999"),
        ({"mode": "DROP"}, "mode must be DROPMALFORMED, FAILFAST or PERMISSIVE, not 'DROP'"),
        ({"form": "frame"}, "form must be one of request, response, message, prefixed, not 'frame'"),
        ({"column": "value"}, "there is no column 'value', only n, frame"),
        ({"flat": True}, "flat=True needs columns"),
        ({"flat": True, "columns": ["protocols.name"]}, "JoinGroupRequest.protocols.name lies within an array"),
        ({"columns": "group_id"}, "columns must be a list of paths, not the string 'group_id'"),
        ({"columns": ["grop_id"]}, "grop_id"),
    ],
)
def test_wrong_arguments_are_rejected_at_once(spark: SparkSession, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text.replace("(", r"\(").replace("?", r"\?")):
        decode_frames(frames(spark, SOUND), **arguments)


def test_decoded_columns_do_not_replace_others(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match="df has columns with names of decoded ones: api_key"):
        decode_frames(frames(spark, SOUND).withColumn("api_key", F.lit(1)))


def test_expression_decodes_one_column(spark: SparkSession) -> None:
    df = frames(spark, [*SOUND[:1], None, TORN])
    options = {"message": "JoinGroup", "mode": "PERMISSIVE", "columns": "group_id, member_id"}
    rows = by_number(df.select("n", from_kafka_wire("frame", options).alias("k")))
    assert rows[0]["k"]["JoinGroupRequest"] == Row(group_id="billing", member_id="m-1")
    assert rows[0]["k"]["_error"] is None
    assert rows[1]["k"] is None
    assert rows[2]["k"]["JoinGroupRequest"] is None
    assert rows[2]["k"]["_error"] == "truncated"
    assert bytes(rows[2]["k"]["_corrupt_record"]) == TORN
    with pytest.raises(PythonException, match="truncated at byte"):
        df.select(from_kafka_wire(F.col("frame"), {"message": "JoinGroup"})).collect()


def test_expression_takes_keys_and_versions(spark: SparkSession) -> None:
    beat, join = kw.HeartbeatResponse(error_code=27), kw.JoinGroupResponse(generation_id=4, leader="m", member_id="m")
    bodies = [kw.encode_response(beat, 4), kw.encode_response(join, 2), kw.encode(beat, 4)]
    df = frames(spark, bodies, key=[12, 11, 12], version=[4, 2, 4])
    both = {"message": "Heartbeat,JoinGroup", "form": "response", "columns": "error_code,generation_id"}
    answers = by_number(
        df.where("n < 2").select("n", from_kafka_wire("frame", both, keys="key", versions="version").alias("k"))
    )
    assert answers[0]["k"]["HeartbeatResponse"]["error_code"] == 27
    assert answers[1]["k"]["JoinGroupResponse"]["generation_id"] == 4
    alone = {"message": "HeartbeatResponse", "form": "message", "version": "4"}
    [row] = df.where("n = 2").select(from_kafka_wire("frame", alone).alias("k")).collect()
    assert row["k"]["HeartbeatResponse"]["error_code"] == 27


@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE"])
def test_expression_keeps_nulls(spark: SparkSession, mode: str) -> None:
    sound = kw.encode_request(kw.messages.HeartbeatRequest(group_id="g"), 3, correlation_id=1)
    df = spark.createDataFrame([(0, None), (1, sound)], "n int, frame binary")
    decoded = from_kafka_wire("frame", {"message": "Heartbeat", "mode": mode}).alias("k")
    nothing, something = df.select("n", decoded).orderBy("n").collect()
    assert nothing["k"] is None
    assert something["k"]["HeartbeatRequest"]["group_id"] == "g"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"message": "JoinGroup", "messages": "x"}, "no option 'messages'; its options are columns, form, message"),
        ({}, "needs the option message"),
        ({"message": "JoinGroup", "mode": "DROPMALFORMED"}, "an expression cannot drop rows"),
        ({"message": "JoinGroup", "strict": "maybe"}, "strict must be true or false, not 'maybe'"),
        ({"message": "JoinGroupResponse", "form": "response"}, "needs the option version"),
        (
            {"message": "JoinGroupRequest", "form": "message", "version": "new"},
            "the option version must be a number, not 'new'",
        ),
    ],
)
def test_wrong_options_are_named(spark: SparkSession, options: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        from_kafka_wire("frame", options)
