"""Explain: every byte once, whether it decodes or not; embedded messages opened; a table that a person can read."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kcoord_wire as kw
from kcoord_wire.codec.explain import UNREAD, Explanation, Row
from tests.support.golden import DATA, Vector, vectors

VECTORS = [vector for of_message in vectors().values() for vector in of_message]
EXPLAINED = DATA / "explain" / "join_group_v7.txt"

# Version 1 of a consumer's subscription: two topics, two bytes of user data, no owned partitions.
SUBSCRIPTION = bytes.fromhex(
    "0001 00000002 0006 6f7264657273 0008 7061796d656e7473 00000002 0102 00000000".replace(" ", "")
)
JOIN_GROUP = b"".join(
    [
        b"\x08billing",
        (45_000).to_bytes(4, "big"),
        (300_000).to_bytes(4, "big"),
        b"\x10consumer-1-6a2b",
        b"\x06pod-3",
        b"\x09consumer",
        b"\x02" + b"\x06range" + bytes([len(SUBSCRIPTION) + 1]) + SUBSCRIPTION + b"\0",
        b"\0",
    ]
)


def join_group(metadata: bytes) -> bytes:
    """A JoinGroupRequest version 0 with one protocol."""
    before = b"\0\1g" + bytes(4) + b"\0\0" + b"\0\10consumer" + b"\0\0\0\1" + b"\0\5range"
    return before + len(metadata).to_bytes(4, "big") + metadata


def leaves(explanation: Explanation) -> list[Row]:
    return [row for row in explanation.rows if row.leaf]


def check_cover(explanation: Explanation) -> None:
    position = 0
    for row in leaves(explanation):
        assert row.start == position
        assert row.end >= row.start
        position = row.end
    assert position == len(explanation.data)


def test_join_group_with_its_subscription_as_text() -> None:
    explanation = kw.explain(JOIN_GROUP, kw.JoinGroupRequest, 7)
    assert explanation.error is None
    assert str(explanation) + "\n" == EXPLAINED.read_text("utf-8")


def test_rows_of_the_subscription_inside_the_metadata() -> None:
    rows = {(row.path, row.type): row for row in kw.explain(JOIN_GROUP, kw.JoinGroupRequest, 7).rows}
    field = "JoinGroupRequest.protocols[0].metadata"
    start = JOIN_GROUP.index(SUBSCRIPTION)
    blob = rows[field, "bytes"]
    assert (blob.start, blob.end, blob.leaf, blob.note) == (
        start,
        start + 32 + 2,
        False,
        "ConsumerProtocolSubscription",
    )
    assert rows[f"{field}:version", "int16"].value == 1
    topic = rows[f"{field}:ConsumerProtocolSubscription.topics[1]", "string"]
    assert (topic.value, topic.start, JOIN_GROUP[topic.start : topic.end]) == ("payments", start + 16, b"payments")
    assert topic.depth == blob.depth + 2


def test_every_byte_of_every_golden_message_once() -> None:
    for vector in VECTORS:
        explanation = kw.explain(vector.data, kw.registry[vector.message].cls, vector.version)
        assert explanation.error is None, vector
        check_cover(explanation)
        assert all(row.type != UNREAD for row in explanation.rows), vector


@given(st.sampled_from(VECTORS), st.integers(0, 400), st.binary(max_size=4), st.booleans())
def test_every_byte_of_a_damaged_message_once(vector: Vector, at: int, junk: bytes, strict: bool) -> None:
    data = vector.data[:at] + junk + vector.data[at + 2 :]
    codec = kw.registry[vector.message]
    explanation = kw.explain(data, codec.cls, vector.version, strict=strict)
    check_cover(explanation)
    assert json.loads(json.dumps(explanation.to_json()))["size"] == len(data)
    assert len(str(explanation).splitlines()) >= len(explanation.rows) + 3
    assert fault(explanation.error) == fault(refusal(codec, data, vector.version, strict))


def refusal(codec: kw.MessageCodec, data: bytes, version: int, strict: bool) -> kw.DecodeError | None:
    try:
        codec.decode(data, version, strict=strict)
    except kw.DecodeError as error:
        return error
    return None


def fault(error: kw.DecodeError | None) -> object:
    return None if error is None else (error.kind, error.offset, error.path)


def test_groups_hold_the_lines_below_them() -> None:
    open_rows: list[Row] = []
    for row in kw.explain(JOIN_GROUP, kw.JoinGroupRequest, 7).rows:
        del open_rows[row.depth :]
        assert all(above.start <= row.start and row.end <= above.end and not above.leaf for above in open_rows)
        open_rows.append(row)


def test_broken_bytes_are_explained_up_to_the_failure() -> None:
    explanation = kw.explain(JOIN_GROUP[:60], kw.JoinGroupRequest, 7)
    assert explanation.error is not None
    assert (explanation.error.kind, explanation.error.offset) == ("truncated", 54)
    assert leaves(explanation)[-1].type == UNREAD
    assert (leaves(explanation)[-2].type, leaves(explanation)[-2].value) == ("compact length", 34)
    assert str(explanation).splitlines()[-1] == f"error: {explanation.error}"
    assert explanation.to_json()["error"] == {
        "kind": "truncated",
        "offset": 54,
        "path": "JoinGroupRequest.protocols[0].metadata",
        "detail": explanation.error.detail,
    }


def test_bytes_after_the_message() -> None:
    explanation = kw.explain(JOIN_GROUP + b"\1\2", kw.JoinGroupRequest, 7)
    assert explanation.error is not None
    assert explanation.error.kind == "trailing"
    last = explanation.rows[-1]
    assert (last.start, last.end, last.type) == (len(JOIN_GROUP), len(JOIN_GROUP) + 2, UNREAD)


def test_version_that_the_message_lacks() -> None:
    explanation = kw.explain(b"\1\2", kw.JoinGroupRequest, 99)
    assert explanation.error is not None
    assert explanation.error.kind == "version"
    assert [(row.start, row.end, row.type) for row in explanation.rows] == [(0, 2, UNREAD)]


@pytest.mark.parametrize(
    ("metadata", "note"),
    [
        (b"", "no ConsumerProtocolSubscription: 0 bytes hold no version"),
        (b"\0", "no ConsumerProtocolSubscription: 1 bytes hold no version"),
        (b"\xff\xff\0\0", "no ConsumerProtocolSubscription: version -1"),
        (b"\0\0\0\0\0\1", "at byte 36 [truncated]"),
        (SUBSCRIPTION + b"\0", "[trailing]"),
    ],
)
def test_metadata_that_holds_something_else_stays_bytes(metadata: bytes, note: str) -> None:
    explanation = kw.explain(join_group(metadata), kw.JoinGroupRequest, 0)
    assert explanation.error is None
    check_cover(explanation)
    last = explanation.rows[-1]
    assert (last.value, last.leaf) == (metadata, True)
    assert note in last.note


def test_embedded_version_above_ours_is_read_as_our_newest() -> None:
    newest = kw.registry["ConsumerProtocolSubscription"].valid_versions[-1]
    body = kw.encode(kw.ConsumerProtocolSubscription(topics=["t"]), newest)
    explanation = kw.explain(join_group(b"\0\x63" + body + b"new"), kw.JoinGroupRequest, 0)
    assert explanation.error is None
    check_cover(explanation)
    (version,) = (row for row in explanation.rows if row.path.endswith(":version"))
    assert (version.value, version.note) == (0x63, f"read as version {newest}")
    assert (explanation.rows[-1].type, explanation.data[explanation.rows[-1].start :]) == (UNREAD, b"new")


@pytest.mark.parametrize("version", [0, 1, 2])
def test_what_connect_embeds_is_opened(version: int) -> None:
    metadata = kw.encode_prefixed(kw.ConnectProtocolMetadata(url="http://a/", config_offset=3), version)
    joined = kw.JoinGroupResponse(members=[kw.JoinGroupResponseMember(metadata=metadata)])
    assignment = kw.encode_prefixed(kw.ConnectProtocolAssignment(leader="w-1"), version)
    synced = kw.SyncGroupResponse(assignment=assignment)
    for message, path, value in (
        (joined, "JoinGroupResponse.members[0].metadata:ConnectProtocolMetadata.config_offset", 3),
        (synced, "SyncGroupResponse.assignment:ConnectProtocolAssignment.leader", "w-1"),
    ):
        found = kw.explain(kw.encode(message, 3), type(message), 3)
        assert found.error is None
        assert value in [row.value for row in found.rows if row.path == path]


def test_embedded_message_whose_schema_is_missing() -> None:
    codec = kw.registry["JoinGroupRequest"]
    alone = kw.Registry([codec])
    explanation = kw.explain(join_group(SUBSCRIPTION), codec.schema, 0, registry=alone)
    assert explanation.rows[-1].note == "the registry has no schema of ConsumerProtocolSubscription"
    assert explanation.rows[-1].leaf


def test_null_tags_and_markers_are_named() -> None:
    header = bytes.fromhex("000b 0007 00000005 ffff 01 05 01 aa".replace(" ", ""))
    rows = kw.explain(header, kw.RequestHeader, 2).rows
    assert [(row.path.rpartition(".")[2], row.type, row.value, row.note) for row in rows[1:]] == [
        ("request_api_key", "int16", 11, ""),
        ("request_api_version", "int16", 7, ""),
        ("correlation_id", "int32", 5, ""),
        ("client_id", "int16 length", -1, "null"),
        ("unknown_tags", "uvarint count", 1, ""),
        ("unknown_tags", "uvarint tag", 5, "unknown"),
        ("unknown_tags", "uvarint size", 1, ""),
        ("unknown_tags", "tagged field", b"\xaa", "unknown"),
    ]
    assert rows[-1].to_json() == {
        "start": 13,
        "end": 14,
        "path": "RequestHeader.unknown_tags",
        "type": "tagged field",
        "value": "aa",
        "depth": 1,
        "note": "unknown",
        "leaf": True,
    }


@pytest.mark.parametrize("text", ["Heartbeat/1/17/ab/cl/gr/t/3/12", "Heartbeat/1/17/ab/cl/gr/t/3/x", "Heartbeat/1", ""])
def test_text_messages(text: str) -> None:
    explanation = kw.explain(text.encode(), kw.registry["Heartbeat"].cls, 0)
    check_cover(explanation)
    assert (explanation.error is None) is text.endswith("/12")
    if text.count("/") == 8:
        words = [row.value for row in explanation.rows if row.type == "text"]
        assert words == text.split("/")[1:]


def test_a_class_that_is_not_a_message_is_refused() -> None:
    with pytest.raises(TypeError, match="is not a message class"):
        kw.explain(b"", kw.JoinGroupRequestProtocol, 0)


@pytest.mark.parametrize("data", [JOIN_GROUP, bytearray(JOIN_GROUP), memoryview(JOIN_GROUP)])
def test_every_kind_of_buffer_is_explained(data: bytes | bytearray | memoryview) -> None:
    assert kw.explain(data, kw.JoinGroupRequest, 7).rows == kw.explain(JOIN_GROUP, kw.JoinGroupRequest, 7).rows
