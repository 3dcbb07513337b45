"""JoinGroup of clients 0.8.2 among Kafka's frames: recognised by its bytes, and decoded with its response."""

from __future__ import annotations

import kcoord_wire as kw
from kcoord_wire.capture.rewrite import is_rewrite_join
from kcoord_wire.messages.rewrite.rewrite_join_group import RewriteJoinGroupRequest, RewriteJoinGroupResponse
from tests.support.packets import Line, frames_of, talk

# kafka-clients 0.8.2.2 wrote the body: JoinGroupRequest("billing", 6000, ["orders", "payments"], "", "range").
BODY = "000762696c6c696e67000017700000000200066f726465727300087061796d656e74730000000572616e6765"
FRAME = bytes.fromhex("000b00000000000700026d65" + BODY)


def test_bytes_of_clients_082_are_the_rewrites() -> None:
    assert is_rewrite_join(FRAME)
    assert not any(is_rewrite_join(FRAME[:size]) for size in range(len(FRAME)))
    assert not is_rewrite_join(FRAME + b"\x00")


def test_no_join_group_of_kafka_is_the_rewrites() -> None:
    protocols = [kw.JoinGroupRequestProtocol(name="range", metadata=bytes(size)) for size in (0, 1, 30)]
    for member_id in ("", "m-1"):
        for protocol_type in ("", "consumer", "connect"):
            for count in range(4):
                request = kw.JoinGroupRequest(group_id="g", session_timeout_ms=6000, member_id=member_id)
                request.protocol_type, request.protocols = protocol_type, protocols[:count]
                for version in kw.registry.by_class(kw.JoinGroupRequest).valid_versions:
                    assert not is_rewrite_join(kw.encode_request(request, version, correlation_id=1, client_id="c"))


def test_a_request_that_is_both_is_kafkas() -> None:
    assert not is_rewrite_join(kw.encode_request(RewriteJoinGroupRequest(group_id="g"), 0, correlation_id=1))


def test_a_capture_decodes_both_with_their_responses() -> None:
    answer = RewriteJoinGroupResponse(generation_id=1, consumer_id="c-1")
    line = talk(Line().open(), [3])
    line.send(0, kw.frame(FRAME)).send(1, kw.frame(kw.encode_response(answer, 0, correlation_id=7)))
    frames, report = frames_of(talk(line, [6]).packets)
    assert frames[2].message == RewriteJoinGroupRequest(
        group_id="billing", session_timeout_ms=6000, topics=["orders", "payments"], strategy="range"
    )
    assert (frames[2].api, frames[2].client_id, frames[3].api, frames[3].message) == (
        "JoinGroup",
        "me",
        "JoinGroup",
        answer,
    )
    assert report.complete
