"""One connection from bytes to frames: nothing is lost uncounted, and every frame has the time of its packets."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

import kcoord_wire as kw
from kcoord_wire.capture import CaptureReport, FrameDecoder, RawConversation, RawFrame
from kcoord_wire.capture.splitter import SEARCH_WINDOW
from kcoord_wire.codec.framing import frame
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
