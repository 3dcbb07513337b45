"""Whether a frame starts at a place: never stricter than a broker, and not fooled by noise."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kcoord_wire as kw
from kcoord_wire.capture.plausible import (
    LIKELY_REQUEST,
    LIKELY_RESPONSE,
    RequestHead,
    assess_request,
    assess_request_header,
    assess_response,
    has_header,
    likely_response,
)
from kcoord_wire.capture.splitter import Plausibility
from kcoord_wire.codec.pending import PendingRequests
from kcoord_wire.protocol.api_keys import API_NAMES

LIMIT = 1 << 20
YES, NO, MORE = Plausibility.YES, Plausibility.NO, Plausibility.MORE
HEARTBEAT = kw.frame(kw.encode_request(kw.HeartbeatRequest(group_id="g"), 4, client_id="me", correlation_id=7))
ANSWER = kw.frame(kw.encode_response(kw.HeartbeatResponse(), 4, correlation_id=7))


def request(client_id: bytes | None, correlation_id: int = 1, api_key: int = 12, version: int = 0) -> bytes:
    size = -1 if client_id is None else len(client_id)
    header = struct.pack(">hhih", api_key, version, correlation_id, size) + (client_id or b"")
    return kw.frame(header + b"\0\x01g\0\0\0\x01\0\x01m")


@given(st.none() | st.binary(max_size=400), st.integers(-(2**31), 2**31 - 1))
def test_any_client_id_and_correlation_id_is_a_request(client_id: bytes | None, correlation_id: int) -> None:
    buffer = request(client_id, correlation_id)
    assert assess_request_header(buffer, 0, LIMIT) is YES
    assert assess_request(bytearray(buffer), 0, LIMIT) is YES
    assert LIKELY_REQUEST.match(buffer)
    assert has_header(buffer[4:], LIMIT)


def test_a_header_is_judged_when_it_is_whole() -> None:
    assert [assess_request_header(HEARTBEAT[:size], 0, LIMIT) for size in range(14)] == [MORE] * 14
    assert {assess_request_header(HEARTBEAT[:size], 0, LIMIT) for size in range(14, len(HEARTBEAT) + 1)} == {YES}


@pytest.mark.parametrize(
    "buffer",
    [
        request(b"me", api_key=max(API_NAMES) + 1),
        request(b"me", api_key=256),
        request(b"me", version=32),
        request(b"me", version=-1),
        b"\0\0\0\x09" + HEARTBEAT[4:],
        b"\x7f\0\0\0" + HEARTBEAT[4:],
        b"\xff\xff\xff\xff" + HEARTBEAT[4:],
        HEARTBEAT[:12] + b"\xff\xfe" + HEARTBEAT[14:],
        HEARTBEAT[:12] + b"\x7f\xff" + HEARTBEAT[14:],
    ],
)
def test_what_no_broker_would_take_is_not_a_request(buffer: bytes) -> None:
    assert assess_request_header(buffer, 0, LIMIT) is NO
    assert assess_request(buffer, 0, LIMIT) is NO


def test_a_whole_request_decodes_to_its_end() -> None:
    assert assess_request(HEARTBEAT[:-1], 0, LIMIT) is MORE
    assert assess_request(HEARTBEAT + HEARTBEAT, 0, LIMIT) is YES
    assert assess_request(HEARTBEAT + b"\xff" * 14, 0, LIMIT) is NO, "the next frame is not one"
    assert assess_request(kw.frame(HEARTBEAT[4:] + b"\0"), 0, LIMIT) is NO, "a byte is left over"


def test_a_response_answers_a_pending_request() -> None:
    pending: PendingRequests[RequestHead] = PendingRequests()
    assert assess_response(ANSWER, 0, LIMIT, pending) is NO
    pending.add(7, RequestHead(12, 4, None))
    assert LIKELY_RESPONSE.match(ANSWER)
    assert assess_response(ANSWER[:-1], 0, LIMIT, pending) is MORE
    assert assess_response(ANSWER, 0, LIMIT, pending) is YES
    assert assess_response(ANSWER + b"\xff" * 4, 0, LIMIT, pending) is NO
    assert assess_response(kw.frame(ANSWER[4:] + b"\0"), 0, LIMIT, pending) is NO


def test_strings_that_are_not_utf_8_are_accepted() -> None:
    pending: PendingRequests[RequestHead] = PendingRequests()
    pending.add(7, RequestHead(11, 5, None))
    joined = kw.encode_response(kw.JoinGroupResponse(member_id="k-ln-1", members=[]), 5, correlation_id=7)
    answer = bytearray(kw.frame(joined.replace(b"k-ln", b"k\xf6ln")))
    assert assess_response(answer, 0, LIMIT, pending) is YES
    asked = kw.encode_request(kw.HeartbeatRequest(group_id="k-ln"), 4, client_id="k-ln")
    assert assess_request(kw.frame(asked.replace(b"k-ln", b"k\xf6ln")), 0, LIMIT) is YES


def test_noise_is_not_a_request() -> None:
    noise = random.Random(5).randbytes(1 << 20)
    places = [match.start() for match in LIKELY_REQUEST.finditer(noise)]
    assert {assess_request(noise, place, LIMIT) for place in places} <= {NO, MORE}
    assert sum(assess_request(noise, place, LIMIT) is MORE for place in places) < 3


def test_tokens_have_no_header() -> None:
    for token in (b"", b"\0user\0password", b"n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL", b"\x60\x82\x02\x1f" + bytes(30)):
        assert not has_header(token, LIMIT)


IDS = st.integers(-3, 3) | st.integers(250, 262) | st.integers(-(2**31), 2**31 - 1)


@given(st.lists(IDS, max_size=30), st.lists(st.tuples(st.integers(0, 40), IDS), max_size=12), st.binary(max_size=30))
def test_the_filter_passes_over_no_response(
    pending_ids: list[int], answers: list[tuple[int, int]], noise: bytes
) -> None:
    """Wherever the slow rule may find a response, the pattern matches: for any ids that clients may count with."""
    pending: PendingRequests[RequestHead] = PendingRequests()
    for number in pending_ids:
        pending.add(number, RequestHead(9999, 0, None))
    for number in pending_ids[::3]:
        pending.answer(number)
    sent = [struct.pack(">ii", 4 + size, number) + bytes(size) for size, number in answers]
    buffer = noise + b"".join(sent) + noise
    places = {match.start() for match in likely_response(pending.prefixes, False).finditer(buffer)}
    for place in range(len(buffer) - 8):
        if assess_response(buffer, place, 1 << 20, pending) is not Plausibility.NO:
            assert place in places


def test_prefixes_are_those_of_what_is_pending() -> None:
    pending: PendingRequests[RequestHead] = PendingRequests(max_requests=3)
    for number in (1, 1, 300, 301):
        pending.add(number, RequestHead(3, 0, None))
    assert pending.prefixes == {0, 1}
    pending.answer(300)
    assert pending.prefixes == {1}
    pending.clear()
    assert pending.prefixes == frozenset()
