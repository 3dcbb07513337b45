"""Bytes of the messages of "Kafka 0.9 Consumer Rewrite Design", written by kafka-clients 0.8.2.2.

`tests/interop/test_rewrite_bytes.py` compares many more with it.
"""

from __future__ import annotations

from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire.codec.backend import ProgramClass
from kcoord_wire.codec.registry import registry
from kcoord_wire.messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
)
from kcoord_wire.messages.rewrite import (
    RewriteJoinGroupRequest,
    RewriteJoinGroupResponse,
    RewriteJoinGroupResponseAssignedTopic,
)
from kcoord_wire.protocol.api_keys import ApiKey

JOIN = RewriteJoinGroupRequest(
    group_id="billing", session_timeout_ms=6000, topics=["orders", "payments"], strategy="range"
)
JOINED = RewriteJoinGroupResponse(
    generation_id=1,
    consumer_id="c-1",
    assigned_partitions=[RewriteJoinGroupResponseAssignedTopic(topic="orders", partitions=[0, 2])],
)
RELEASED = JoinGroupRequest(
    group_id="billing",
    session_timeout_ms=6000,
    protocol_type="consumer",
    protocols=[JoinGroupRequestProtocol(name="range", metadata=bytes(6))],
)
GOLDEN = [
    (JOIN, "000762696c6c696e67000017700000000200066f726465727300087061796d656e74730000000572616e6765"),
    (JOINED, "0000000000010003632d310000000100066f7264657273000000020000000000000002"),
    (
        HeartbeatRequest(group_id="billing", generation_id=1, member_id="c-1"),
        "000762696c6c696e67000000010003632d31",
    ),
    (HeartbeatResponse(error_code=22), "0016"),
    (FindCoordinatorRequest(key="billing"), "000762696c6c696e67"),
    (FindCoordinatorResponse(node_id=3, host="h", port=9092), "00000000000300016800002384"),
]


@pytest.mark.parametrize(("message", "hexed"), GOLDEN, ids=[type(message).__name__ for message, _ in GOLDEN])
def test_bytes_of_0_8_2(message: Any, hexed: str, program_class: ProgramClass) -> None:
    codec = registry.by_class(type(message))
    program = program_class(codec.plan(0), codec.classes)
    data = bytes.fromhex(hexed)
    assert program.encode(message) == data
    assert program.decode(data) == message
    for size in range(len(data)):
        with pytest.raises(kw.DecodeError, match="truncated"):
            program.decode(data[:size])


def test_frames_have_kafkas_header() -> None:
    body = kw.encode_request(JOIN, 0, correlation_id=7, client_id="c")
    assert body.hex().startswith("000b000000000007000163" + GOLDEN[0][1][:8])
    header, request = kw.decode_request(body, family="rewrite")
    assert (header.request_api_key, header.correlation_id, header.client_id) == (ApiKey.JOIN_GROUP, 7, "c")
    assert request == JOIN
    answer = kw.encode_response(JOINED, 0, correlation_id=7)
    header, response = kw.decode_response(answer, RewriteJoinGroupResponse, 0)
    assert (header.correlation_id, response) == (7, JOINED)


def test_the_released_join_group_is_another_message() -> None:
    """The api key and version are the same: only the family distinguishes them."""
    with pytest.raises(kw.DecodeError):
        kw.decode_request(kw.encode_request(JOIN, 0), family="kafka")
    with pytest.raises(kw.DecodeError):
        kw.decode_request(kw.encode_request(RELEASED, 0), family="rewrite")
