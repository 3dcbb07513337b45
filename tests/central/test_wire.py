"""The draft's frames at a broker: which message a type id names, and what has none."""

from __future__ import annotations

import pytest

import kcoord_wire as kw
from kcoord_wire.central.frames import TO_BROKER, decode_to_broker, draft_frame
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
        (b"\0\x05\0", "trailing"),
        (b"\0\x06\x7f\xff", "truncated"),
    ],
)
def test_other_bytes_are_an_error_with_their_kind(body: bytes, kind: str) -> None:
    with pytest.raises(kw.DecodeError) as caught:
        decode_to_broker(body)
    assert caught.value.kind == kind
