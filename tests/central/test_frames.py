"""The frames at a broker of each design: what is read, what is an error, what an answer looks like."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire import messages as kafka
from kcoord_wire.central.dialects import (
    TO_BROKER,
    VERSIONS,
    RewriteDialect,
    decode_to_broker,
    decode_to_rewrite_broker,
    draft_frame,
    kafka_frame,
)
from kcoord_wire.central.peer import CentralPeer, Limits
from kcoord_wire.messages import central as m

SAMPLES = [
    m.CentralFetchRequest(topic="orders", partition=3, offset=17, max_size=1024),
    m.ClusterMetadataRequest(),
    m.RegisterConsumerRequest(group_id="g", consumer_id="c", topic_count='{"orders":1}', session_timeout_ms=6_000),
    m.PingResponse(consumer_id="c", offset_info=[m.PingResponseOffset(topic="orders", partition="1-0", offset=5)]),
    m.StopFetcherResponse(consumer_id="c"),
    m.StartFetcherResponse(consumer_id="c"),
    m.CentralStatusRequest(),
]


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_what_a_broker_receives_is_named_by_its_type_id(message: object) -> None:
    body = draft_frame(message)[4:]
    assert TO_BROKER[int.from_bytes(body[:2], "big")] is type(message)
    assert decode_to_broker(body) == message


def test_frames_are_those_of_the_codec() -> None:
    for message in SAMPLES:
        is_request = kw.registry.by_class(type(message)).type == "request"
        body = kw.encode_request(message, 0) if is_request else kw.encode_response(message, 0)
        assert draft_frame(message) == kw.frame(body)


def test_answers_of_a_broker_have_no_type_id() -> None:
    """Sections 7 draws them without one."""
    assert draft_frame(m.RegisterConsumerResponse(error_code=26)) == bytes.fromhex("00000002001a")
    assert draft_frame(m.ClusterMetadataResponse(coordinator_id=2)) == bytes.fromhex("00000008000000000002" + "0000")
    assert draft_frame(m.PingRequest(consumer_id="c"))[4:6] == b"\0\x07"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "truncated"),
        (b"\0", "truncated"),
        (b"\0\x08", "truncated"),
        (b"\0\x02", "api"),
        (b"\xff\xff", "api"),
        (b"\0\x05\0", "truncated"),
        (b"\0\x05\0\0\0", "trailing"),
        (b"\0\x06\x7f\xff", "truncated"),
    ],
)
def test_other_bytes_are_an_error_with_their_kind(body: bytes, kind: str) -> None:
    with pytest.raises(kw.DecodeError) as caught:
        decode_to_broker(body)
    assert caught.value.kind == kind


JOIN = kafka.rewrite.RewriteJoinGroupRequest(group_id="g", session_timeout_ms=6_000, topics=["t"], strategy="range")


@pytest.mark.parametrize("cls", VERSIONS)
def test_every_request_that_is_served_is_read(cls: type) -> None:
    body = kw.encode_request(cls(), VERSIONS[cls], correlation_id=7, client_id="c")
    header, request = decode_to_rewrite_broker(body)
    assert (header.correlation_id, header.client_id, request) == (7, "c", cls())


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "truncated"),
        (kw.encode_request(JOIN, 0)[:-1], "truncated"),
        (kw.encode_request(JOIN, 0) + b"\0", "trailing"),
        (kw.encode_request(kafka.SyncGroupRequest(), 0), "api"),
        (kw.encode_request(kafka.HeartbeatRequest(), 1), "version"),
        (kw.encode_request(kafka.JoinGroupRequest(), 5), "version"),
    ],
)
def test_what_is_not_served_is_a_decode_error(body: bytes, kind: str) -> None:
    with pytest.raises(kw.DecodeError) as error:
        decode_to_rewrite_broker(body)
    assert error.value.kind == kind


def test_an_answer_has_the_correlation_id_of_its_request() -> None:
    dialect = RewriteDialect()
    owner: Any = SimpleNamespace(limits=Limits(), receive=None, counters=None)
    connection = CentralPeer(owner, 1 << 20, 1)
    assert dialect.read(connection, kw.encode_request(JOIN, 0, correlation_id=9)) == JOIN
    assert connection.in_hand.correlation_id == 9
    frame = dialect.frame(connection, kafka.rewrite.RewriteJoinGroupResponse(generation_id=1))
    assert connection.in_hand is None
    assert frame == kafka_frame(kafka.rewrite.RewriteJoinGroupResponse(generation_id=1), 9)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header, response = kw.decode_response(frame[4:], kafka.rewrite.RewriteJoinGroupResponse, 0)
    assert (header.correlation_id, response.generation_id) == (9, 1)
