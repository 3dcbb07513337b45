"""Decoding captured frames: whatever is in them, each is returned with what is known of it."""

from __future__ import annotations

import kcoord_wire as kw
from tests.support.packets import Line, asked, expected, frames_of, summary, talk


def test_unknown_api_and_unknown_version() -> None:
    header = b"\x00\x00\x00\x07\x00\x02me"
    unknown_api, unknown_version = b"\x00\x06\x00\x00" + header, b"\x00\x0c\x00\x63" + header
    line = talk(Line().open(), [3]).send(0, kw.frame(unknown_api)).send(1, kw.frame(b"\x00\x00\x00\x07body"))
    frames, report = frames_of(line.send(0, kw.frame(unknown_version)).packets)
    _, _, request, response, versioned = frames
    assert (request.api, request.message, request.error) == ("UpdateMetadata", None, None)
    assert (response.api, response.api_version, response.message, response.error) == (request.api, 0, None, None)
    assert request.header.client_id == "me"
    assert response.header.correlation_id == 7
    assert (versioned.api, versioned.api_version, versioned.message) == ("Heartbeat", 99, None)
    assert "[version]" in (versioned.error or "")
    assert (report.unknown_apis, report.undecodable) == (2, 1)


def test_responses_and_requests_without_the_other() -> None:
    line = Line().open()
    for number in (3, 6, 9):
        line.send(0, kw.frame(asked(number)[0]))
    line.send(1, kw.frame(asked(6)[1])).send(1, kw.frame(asked(3)[1]))
    frames, report = frames_of(line.packets)
    assert [frame.error for frame in frames] == [None] * 4 + ["its request was not captured"]
    assert (report.unmatched_responses, report.unanswered_requests) == (1, 2)


def test_a_produce_without_acknowledgement_is_not_pending() -> None:
    produce = kw.ProduceRequest(acks=0, timeout_ms=1, topic_data=[])
    line = Line().open().send(0, kw.frame(kw.encode_request(produce, 3, correlation_id=1, client_id="p")))
    frames, report = frames_of(talk(line, [3]).packets)
    assert (len(frames), report.unanswered_requests) == (3, 0)


def test_an_unsupported_api_versions_is_answered_in_version_0() -> None:
    message = kw.ApiVersionsRequest(client_software_name="c", client_software_version="1")
    request = kw.encode_request(message, 3, correlation_id=5)
    answer = kw.encode_response(kw.ApiVersionsResponse(error_code=35), 0, correlation_id=5)
    frames, report = frames_of(Line().open().send(0, kw.frame(request)).send(1, kw.frame(answer)).packets)
    assert (frames[1].api_version, frames[1].message.error_code, frames[1].error) == (3, 35, None)
    assert report.complete


def test_bare_sasl_tokens_after_a_handshake_of_version_0() -> None:
    handshake = kw.encode_request(kw.SaslHandshakeRequest(mechanism="PLAIN"), 0, correlation_id=1, client_id="c")
    answer = kw.encode_response(kw.SaslHandshakeResponse(mechanisms=["PLAIN"]), 0, correlation_id=1)
    token = b"\0user\0password"
    line = Line().open().send(0, kw.frame(handshake)).send(1, kw.frame(answer))
    frames, report = frames_of(talk(line.send(0, kw.frame(token)).send(1, kw.frame(b"")), [3, 4]).packets)
    tokens = [(frame.api, frame.raw, frame.error) for frame in frames[2:4]]
    assert tokens == [(None, token, None), (None, b"", None)]
    assert summary(frames[4:]) == expected([3, 4])
    assert (report.sasl_tokens, report.complete) == (2, True)


def test_a_body_that_does_not_decode_has_an_error() -> None:
    request = asked(3)[0]
    line = talk(Line().open(), [1]).send(0, kw.frame(request[:-3])).send(0, kw.frame(b"abc"))
    frames, report = frames_of(line.packets)
    assert [frame.raw for frame in frames[2:]] == [request[:-3], b"abc"]
    assert "[truncated]" in (frames[2].error or "")
    assert frames[2].correlation_id == 3
    assert (frames[3].api, frames[3].correlation_id) == (None, None)
    assert report.undecodable == 2


def test_bytes_after_a_message_are_an_irregularity() -> None:
    frames, report = frames_of(Line().open().send(0, kw.frame(asked(3)[0] + b"more")).packets)
    assert isinstance(frames[0].message, kw.HeartbeatRequest)
    assert "[trailing]" in (frames[0].irregularity or "")
    assert (report.irregular, report.undecodable) == (1, 0)
