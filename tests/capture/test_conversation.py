"""One connection from bytes to frames: nothing is lost uncounted, and every frame has the time of its packets.

Whether a frame starts at a place: never stricter than a broker, and not fooled by noise.
"""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kcoord_wire as kw
from kcoord_wire.capture import CaptureReport, FrameDecoder, RawConversation, RawFrame
from kcoord_wire.capture.conversation import (
    LIKELY_REQUEST,
    LIKELY_RESPONSE,
    RequestHead,
    assess_request,
    assess_request_header,
    assess_response,
    has_header,
    likely_response,
)
from kcoord_wire.capture.splitter import SEARCH_WINDOW, Plausibility
from kcoord_wire.codec.framing import frame
from kcoord_wire.codec.pending import PendingRequests
from kcoord_wire.protocol.api_keys import API_NAMES
from tests.support.packets import asked


def test_every_byte_is_in_a_frame_or_lost() -> None:
    conversation = RawConversation("c", CaptureReport())
    request = b"\0\x0c\0\0\0\0\0\x01\xff\xff" + b"\0\x01g\0\0\0\x01\0\x01m"
    sent = frame(request) * 2 + b"\xff\xff\xff\xff" + b"noise" + frame(request) * 2 + frame(request)[:9]
    found = [*conversation.open(1), *conversation.feed("request", sent, 2), *conversation.close(3)]
    assert [item.kind for item in found if not item.error] == ["opened", *["request"] * 4, "closed"]
    cut = found[-2]
    assert (cut.kind, cut.error, cut.lost) == ("request", "15 of its 20 bytes were not captured", 9)
    assert sum(item.lost for item in found) + 4 * len(frame(request)) == len(sent)


def test_a_hole_is_reported_with_its_size() -> None:
    conversation = RawConversation("c", CaptureReport())
    request = frame(b"\0\x0c\0\0\0\0\0\x01\xff\xff" + b"\0\x01g\0\0\0\x01\0\x01m")
    found = conversation.feed("request", request[:10], 1) + conversation.hole("request", 5, 2)
    found += conversation.feed("request", request[15:] + request, 3)
    assert [(item.kind, item.lost) for item in found] == [
        ("damage", 5), ("request", 10), ("damage", len(request) - 15), ("request", 0),
    ]  # fmt: skip
    assert conversation.close(4, how=None) == []


def test_an_endless_search_holds_a_window_at_most() -> None:
    report = CaptureReport()
    conversation = RawConversation("c-b#0", report, in_step=(False, False))
    noise = random.Random(3).randbytes(64 * 1024)
    for _ in range(2 * SEARCH_WINDOW // len(noise)):
        assert [item.kind for item in conversation.feed("request", noise, 0) if item.kind != "damage"] == []
        assert len(conversation._directions["request"].splitter._window) <= SEARCH_WINDOW
    found = conversation.feed("request", kw.frame(asked(3)[0]), 0)
    assert [item.body for item in found if item.kind == "request"] == [asked(3)[0]]
    assert report.skipped_bytes == 2 * SEARCH_WINDOW


PIECES = st.lists(st.tuples(st.booleans(), st.binary(max_size=60) | st.integers(1, 60)), max_size=30)


@given(PIECES, st.booleans())
def test_any_bytes_are_accounted_for(pieces: list[tuple[bool, bytes | int]], in_step: bool) -> None:
    """Bytes are in frames or counted, whatever they are; times are those of pieces that were fed."""
    report = CaptureReport()
    conversation = RawConversation("c-b#0", report, in_step=(in_step, in_step))
    decoder = FrameDecoder(report)
    found = []
    for time_ns, (client, piece) in enumerate(pieces):
        side = "request" if client else "response"
        step = conversation.hole if isinstance(piece, int) else conversation.feed
        found += step(side, piece, time_ns)  # type: ignore[operator]
    found += conversation.close(len(pieces))
    frames = [decoded for item in found if (decoded := decoder.decode(item)) is not None]
    total = sum(len(piece) for _, piece in pieces if isinstance(piece, bytes))
    assert sum(4 + len(frame.raw) for frame in frames) + report.skipped_bytes == total
    fed = {"request" if client else "response": set[int]() for client, _ in pieces}
    for time_ns, (client, piece) in enumerate(pieces):
        if isinstance(piece, bytes):
            fed["request" if client else "response"].add(time_ns)
    assert all(frame.time_ns in fed[frame.direction] for frame in frames)


# ---- times


def times_of(found: list[RawFrame]) -> list[tuple[str, int]]:
    return [(item.kind, item.time_ns) for item in found]


def test_a_frame_has_the_time_of_its_latest_packet() -> None:
    conversation = RawConversation("c", CaptureReport())
    sent = kw.frame(asked(3)[0])
    found = conversation.feed("request", sent[:9], 1) + conversation.feed("request", sent[9:] + sent + sent[:5], 2)
    assert times_of(found) == [("request", 2), ("request", 2)]
    late = conversation.feed("request", sent[5:], 1) + conversation.feed("request", sent, 3)
    assert times_of(late) == [("request", 2), ("request", 3)], "the first bytes were captured after the last ones"


def test_a_frame_found_late_has_its_own_time() -> None:
    """Too short to be recognised until the next frame begins: Heartbeat's first version has ten bytes."""
    conversation = RawConversation("c", CaptureReport(), in_step=(True, False))
    for number in (1, 2):
        request = kw.encode_request(kw.HeartbeatRequest(group_id="g"), 0, correlation_id=number)
        conversation.feed("request", kw.frame(request), number)
    answers = [kw.frame(kw.encode_response(kw.HeartbeatResponse(), 0, correlation_id=number)) for number in (1, 2)]
    found = conversation.feed("response", b"noise" + answers[0], 10)
    found += conversation.feed("response", answers[1], 3_000)
    assert times_of(found) == [("damage", 10), ("response", 10), ("response", 3_000)]


def test_a_cut_frame_has_the_time_of_its_bytes() -> None:
    conversation = RawConversation("c", CaptureReport())
    sent = kw.frame(asked(3)[0])
    found = conversation.feed("request", sent[:9], 1) + conversation.hole("request", 5000, 7)
    found += conversation.feed("request", sent, 8) + conversation.feed("response", bytes(5), 9) + conversation.close(20)
    assert times_of(found) == [
        ("damage", 7),
        ("request", 1),
        ("request", 8),
        ("response", 9),
        ("damage", 9),
        ("closed", 20),
    ]


def test_times_of_single_bytes_are_bounded() -> None:
    conversation = RawConversation("c", CaptureReport())
    sent = kw.frame(bytes(20_000))
    found = [frame for at, byte in enumerate(sent) for frame in conversation.feed("request", bytes([byte]), at)]
    assert times_of(found) == [("request", len(sent) - 1)]
    assert len(conversation._directions["request"]._times) == 0


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
    places = {match.start() for match in likely_response(pending.prefixes(16), False).finditer(buffer)}
    for place in range(len(buffer) - 8):
        if assess_response(buffer, place, 1 << 20, pending) is not Plausibility.NO:
            assert place in places


def test_prefixes_are_those_of_what_is_pending() -> None:
    pending: PendingRequests[RequestHead] = PendingRequests(max_requests=3)
    for number in (1, 1, 300, 301):
        pending.add(number, RequestHead(3, 0, None))
    assert pending.prefixes(2) == {0, 1}
    assert pending.prefixes(1) is None, "a set of all for each segment: 0.9 ms at 60,000 pending"
    pending.answer(300)
    assert pending.prefixes(2) == {1}
    pending.clear()
    assert pending.prefixes(2) == frozenset()
