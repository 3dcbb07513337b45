"""The frames of a broker of the rewrite."""

from __future__ import annotations

import pytest

import kcoord_wire as kw
from kcoord_wire import messages as m
from kcoord_wire.central.connection import Connection
from kcoord_wire.central.frames import VERSIONS, RewriteDialect, decode_to_rewrite_broker, kafka_frame

JOIN = m.rewrite.RewriteJoinGroupRequest(group_id="g", session_timeout_ms=6_000, topics=["t"], strategy="range")


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
        (kw.encode_request(m.SyncGroupRequest(), 0), "api"),
        (kw.encode_request(m.HeartbeatRequest(), 1), "version"),
        (kw.encode_request(m.JoinGroupRequest(), 5), "version"),
    ],
)
def test_what_is_not_served_is_a_decode_error(body: bytes, kind: str) -> None:
    with pytest.raises(kw.DecodeError) as error:
        decode_to_rewrite_broker(body)
    assert error.value.kind == kind


def test_an_answer_has_the_correlation_id_of_its_request() -> None:
    dialect = RewriteDialect()
    connection = Connection(None, 1)  # type: ignore[arg-type]  # an owner is not needed here
    assert dialect.read(connection, kw.encode_request(JOIN, 0, correlation_id=9)) == JOIN
    assert connection.in_hand.correlation_id == 9
    frame = dialect.frame(connection, m.rewrite.RewriteJoinGroupResponse(generation_id=1))
    assert connection.in_hand is None
    assert frame == kafka_frame(m.rewrite.RewriteJoinGroupResponse(generation_id=1), 9)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header, response = kw.decode_response(frame[4:], m.rewrite.RewriteJoinGroupResponse, 0)
    assert (header.correlation_id, response.generation_id) == (9, 1)
