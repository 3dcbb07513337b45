"""TCP reassembly: whatever the network and the capture did to the segments, the bytes come out as they were sent."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import astuple
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoord_wire.capture.packets import ACK, FIN, RST, SYN, Segment
from kcoord_wire.capture.tcp import (
    MAX_PENDING,
    PATIENCE,
    Closed,
    Group,
    Hole,
    Reassembler,
    Refused,
    Resent,
    TcpConnection,
)
from kcoord_wire.protocol.wording import resent_in, resent_text, syns_in, unanswered_text

CLIENT, BROKER = ("10.0.0.1", 50000), ("10.0.0.2", 9092)
STREAM = random.Random(1).randbytes(3000)
INITIALS = [0, 1000, 2**31 - 100, 2**32 - 1, 2**32 - 1500]


def segment(
    sequence: int, payload: bytes = b"", flags: int = ACK, *, ack: int = 0, back: bool = False, at: int = 0
) -> Segment:
    ends = (BROKER, CLIENT) if back else (CLIENT, BROKER)
    return Segment(at, *ends, sequence & 0xFFFFFFFF, ack & 0xFFFFFFFF, flags, len(payload), payload)


def pieces(segments: Iterable[Segment], reassembler: Reassembler | None = None) -> list[tuple[int, bool, object]]:
    """What comes out: connection, whether from the client, piece; neighbouring bytes joined."""
    reassembler = reassembler or Reassembler()
    found: list[tuple[int, bool, object]] = []
    numbers: dict[TcpConnection, int] = {}
    events = [event for each in segments for event in reassembler.push(each)]
    for event in [*events, *reassembler.finish()]:
        numbers.setdefault(event.connection, len(numbers))
        key = (numbers[event.connection], event.connection.endpoints[event.sender] == CLIENT)
        if found and found[-1][:2] == key and isinstance(found[-1][2], bytes) and isinstance(event.piece, bytes):
            found[-1] = (*key, found[-1][2] + event.piece)
        else:
            found.append((*key, event.piece))
    return found


def sent(found: list[tuple[int, bool, object]], connection: int = 0, client: bool = True) -> list[object]:
    return [piece for *key, piece in found if key == [connection, client] and not isinstance(piece, Closed)]


@pytest.mark.parametrize("initial", INITIALS)
@given(data=st.data())
def test_slices_in_any_order_give_the_stream(initial: int, data: st.DataObject) -> None:
    """Segmentation, duplication, overlap and reordering at once: slices that cover the stream, in any order."""
    cuts = sorted({0, len(STREAM), *data.draw(st.lists(st.integers(0, len(STREAM)), max_size=20))})
    slices = list(pairwise(cuts))
    extra = st.tuples(st.integers(0, len(STREAM)), st.integers(0, 500)).map(lambda at: (at[0], sum(at)))
    slices = data.draw(st.permutations(slices + data.draw(st.lists(extra, max_size=10))))
    segments = [segment(initial + 1 + start, STREAM[start:end]) for start, end in slices]
    assert sent(pieces([segment(initial, flags=SYN), *segments])) == [STREAM]


@pytest.mark.parametrize("initial", INITIALS)
def test_the_first_copy_of_a_byte_counts(initial: int) -> None:
    first = [segment(initial, flags=SYN), segment(initial + 3, b"cd"), segment(initial + 1, b"ABXXEF")]
    assert sent(pieces(first)) == [b"ABcdEF"]


@pytest.mark.parametrize("behind", [b"", b"later"])
def test_a_hole_is_given_up_when_it_was_acknowledged_long_ago(behind: bytes) -> None:
    reassembler = Reassembler()
    lost = [segment(0, flags=SYN), segment(0, flags=SYN | ACK, ack=1, back=True), segment(1, b"one")]
    lost += [segment(11, behind)] * bool(behind)
    events = [piece for each in lost for piece in reassembler.push(each)]
    for count in range(PATIENCE + 1):
        assert not any(isinstance(event.piece, Hole) for event in events)
        events = list(reassembler.push(segment(1 + count, b"r", ack=11, back=True)))
    found = [event.piece for event in events]
    assert found[0] == Hole(7)
    assert found[1 : len(found) - PATIENCE - 1] == [behind] * bool(behind)
    assert found[-PATIENCE - 1 :] == [b"r"] * (PATIENCE + 1)


def test_a_late_segment_within_patience_leaves_no_hole() -> None:
    opening = [segment(0, flags=SYN), segment(0, flags=SYN | ACK, ack=1, back=True)]
    answers = [segment(1 + i, b"r", ack=8, back=True) for i in range(PATIENCE)]
    found = pieces([*opening, *answers, segment(1, b"request")])
    assert found[:2] == [(0, True, b"request"), (0, False, b"r" * PATIENCE)]


def test_what_was_acknowledged_comes_out_first() -> None:
    """Three segments that wait for each other, captured in the opposite order."""
    opening = [segment(0, flags=SYN), segment(0, flags=SYN | ACK, ack=1, back=True)]
    backwards = [segment(4, b"two", ack=4), segment(1, b"ans", ack=4, back=True), segment(1, b"one", ack=1)]
    assert pieces(opening + backwards)[:3] == [(0, True, b"one"), (0, False, b"ans"), (0, True, b"two")]


def test_a_hole_is_given_up_at_the_end() -> None:
    found = pieces([segment(9, flags=SYN), segment(10, b"start"), segment(20, b"end")])
    assert sent(found) == [b"start", Hole(5), b"end"]


@pytest.mark.parametrize("size", [1, 1000, 100_000])
def test_no_more_than_the_limit_waits_behind_a_hole(size: int) -> None:
    reassembler = Reassembler()
    list(reassembler.push(segment(0, flags=SYN)))
    total = min(MAX_PENDING + 10 * size, 6000 * size)
    came = 0
    for start in range(0, total, size):
        for event in reassembler.push(segment(100 + start, bytes(size))):
            came += isinstance(event.piece, Hole)
        assert next(iter(reassembler._connections.values())).buffered <= MAX_PENDING + size
    assert came == 1


def test_a_segment_that_was_cut_leaves_a_hole() -> None:
    cut = Segment(0, CLIENT, BROKER, 1, 0, ACK, 100, b"head")
    found = pieces([segment(0, flags=SYN), cut, segment(101, b"next")])
    assert sent(found) == [b"head", Hole(96), b"next"]


def test_ports_that_are_used_again_are_a_new_connection() -> None:
    first = [segment(0, flags=SYN), segment(1, b"one")]
    second = [segment(5000, flags=SYN), segment(5001, b"two")]
    found = pieces([*first, *first, *second, *second])
    assert sent(found, 0) == [b"one"]
    assert sent(found, 1) == [b"two"]
    assert [number for number, _, piece in found if isinstance(piece, Closed)] == [0, 1]


def test_a_syn_ends_a_connection_seen_midway() -> None:
    found = pieces([segment(700, b"old"), segment(5000, flags=SYN), segment(5001, b"new")])
    assert (sent(found, 0), sent(found, 1)) == ([b"old"], [b"new"])


@pytest.mark.parametrize("opening", [segment(0, flags=SYN), segment(0, flags=SYN | ACK, back=True)], ids=["1st", "2nd"])
def test_the_initiator_is_known_from_either_syn(opening: Segment) -> None:
    reassembler = Reassembler()
    (event,) = [event for each in (opening, segment(1, b"x")) for event in reassembler.push(each)]
    assert event.connection.initiator is not None
    assert event.connection.endpoints[event.connection.initiator] == CLIENT


def test_a_connection_seen_midway_is_marked() -> None:
    reassembler = Reassembler()
    (event,) = reassembler.push(segment(777, b"middle"))
    assert event.piece == b"middle"
    assert event.connection.initiator is None
    assert not event.connection.from_start(event.sender)


def test_both_fins_close_and_what_follows_is_ignored() -> None:
    closing = [
        segment(0, flags=SYN),
        segment(0, flags=SYN | ACK, ack=1, back=True),
        segment(4, flags=FIN | ACK, ack=1),
        segment(1, b"bye"),
        segment(1, flags=FIN | ACK, ack=5, back=True),
        segment(1, b"bye"),
        segment(5, ack=2),
    ]
    reassembler = Reassembler()
    found = pieces(closing, reassembler)
    assert found[:1] == [(0, True, b"bye")]
    assert [type(piece) for *_, piece in found] == [bytes, Closed]
    assert reassembler.stray_bytes == 0


def test_a_reset_closes_and_later_bytes_are_stray() -> None:
    reassembler = Reassembler()
    found = pieces([segment(0, flags=SYN), segment(1, b"x"), segment(2, flags=RST), segment(2, b"late")], reassembler)
    assert [type(piece) for *_, piece in found] == [bytes, Closed]
    assert reassembler.stray_bytes == 4


def test_a_keep_alive_is_not_data() -> None:
    probes = [segment(1, b"\0"), segment(1)]
    assert sent(pieces([segment(0, flags=SYN), segment(1, b"a"), *probes, segment(2, b"b")])) == [b"ab"]


def test_too_many_connections_end_the_most_silent_one() -> None:
    group = Group(2)
    reassembler = Reassembler(lambda _: group)
    ended = []
    for port in (1, 2, 1, 3):
        one = Segment(0, ("10.0.0.1", port), BROKER, 10, 0, ACK, 1, b"x")
        events = [*reassembler.push(one), *reassembler.shorten(one.at)]
        ended += [event.connection.endpoints for event in events if isinstance(event.piece, Closed)]
    assert ended == [(("10.0.0.1", 2), BROKER)]


NUMBERS = st.integers(0, 20) | st.integers(0, 2**32 - 1)


SEGMENTS = st.builds(segment, NUMBERS, st.binary(max_size=9), st.integers(0, 63), ack=NUMBERS, back=st.booleans())


@given(st.lists(SEGMENTS, max_size=80))
def test_any_segments_are_handled(segments: list[Segment]) -> None:
    for *_, piece in pieces(segments):
        assert not isinstance(piece, Hole) or piece.size > 0


# ---- times


def test_every_piece_has_the_time_of_its_own_packet() -> None:
    """Behind a hole that a retransmission fills, behind one that nothing fills, and where the capture swaps packets."""
    opening = [segment(0, flags=SYN, at=1), segment(0, flags=SYN | ACK, ack=1, back=True, at=2)]
    behind = [segment(4, b"def", at=3), segment(7, b"ghi", at=4), segment(1, b"abc", at=5)]
    swapped = [segment(1, b"answer", ack=13, back=True, at=6), segment(10, b"jkl", at=7)]
    lost = [segment(20, b"tuv", at=8), segment(23, b"wxy", at=9)]
    reassembler = Reassembler()
    events = [event for each in opening + behind + swapped + lost for event in reassembler.push(each)]
    events += reassembler.finish((10, 0))
    assert [(event.piece, event.at[0]) for event in events] == [
        (b"abc", 5), (b"def", 3), (b"ghi", 4), (b"jkl", 7), (b"answer", 6),
        (Hole(7), 8), (b"tuv", 8), (b"wxy", 9), (Closed(), 10),
    ]  # fmt: skip


def test_a_hole_at_the_end_has_the_time_of_its_acknowledgement() -> None:
    reassembler = Reassembler()
    opening = [segment(0, flags=SYN, at=1), segment(0, flags=SYN | ACK, ack=1, back=True, at=2)]
    events = [
        event for each in [*opening, segment(1, b"r", ack=9, back=True, at=3)] for event in reassembler.push(each)
    ]
    events += reassembler.finish((10, 0))
    assert [(event.piece, event.at[0]) for event in events] == [(Hole(8), 3), (b"r", 3), (Closed(), 10)]


def test_a_hole_has_the_interval_in_which_its_bytes_were_sent() -> None:
    """Not since the bytes before it: a later acknowledgement shows that nothing more was sent until then."""
    idle = [segment(0, flags=SYN, at=1), segment(0, flags=SYN | ACK, ack=1, back=True, at=2), segment(1, b"abc", at=3)]
    idle += [segment(1, b"answer", ack=4, back=True, at=4), segment(4, ack=7, at=5)]
    reassembler = Reassembler()
    events = [event for each in [*idle, segment(10, b"later", at=9)] for event in reassembler.push(each)]
    events += reassembler.finish((10, 0))
    (hole,) = [event for event in events if isinstance(event.piece, Hole)]
    assert isinstance(hole.piece, Hole)
    assert (hole.piece.since_ns, hole.at[0]) == (5, 9)


# ---- what is sent again


MS = 1_000_000
TIMEOUTS = (200, 600, 1_400, 3_000)  # in ms after the first time, as those of Linux double


def again(segments: Iterable[Segment], end_ms: int = 60_000) -> list[tuple[bool, Resent, int]]:
    """What was sent again and again: whether by the client, the piece, and its time in ms."""
    reassembler = Reassembler()
    events = [event for each in segments for event in reassembler.push(each)]
    return [
        (event.connection.endpoints[event.sender] == CLIENT, event.piece, event.at[0] // MS)
        for event in [*events, *reassembler.finish((end_ms * MS, 0))]
        if isinstance(event.piece, Resent)
    ]


def at_ms(ms: float, sequence: int, payload: bytes = b"", **fields: int | bool) -> Segment:
    return segment(sequence, payload, ack=int(fields.pop("ack", 1)), at=int(ms * MS), back=bool(fields.pop("back", 0)))


def copies(*times: int, start: int = 1_000, **fields: int | bool) -> list[Segment]:
    """An answer, a request 100 ms behind it, and copies of that so many ms later."""
    opening = [at_ms(start - 100, 1, b"answer", back=True), at_ms(start, 1, b"question", ack=7)]
    return [*opening, *(at_ms(start + ms, 1, b"question", ack=7) for ms in times)]


def test_bytes_that_nothing_acknowledges() -> None:
    over = [at_ms(7_400, 7, ack=9, back=True), at_ms(7_500, 9, b"next", ack=7)]
    assert again([*copies(*TIMEOUTS), *over]) == [(True, Resent(8, 4, 1_000 * MS, 100 * MS), 7_400)]
    assert again(copies(*TIMEOUTS)) == [(True, Resent(8, 4, 1_000 * MS, 100 * MS), 60_000)], "to the end of the capture"
    reset = segment(7, flags=RST, back=True, at=9_000 * MS)
    assert again([*copies(*TIMEOUTS), reset]) == [(True, Resent(8, 4, 1_000 * MS, 100 * MS), 9_000)]


def test_a_lost_segment_or_a_packet_captured_twice_is_none() -> None:
    heard = [at_ms(1_700, 7, ack=9, back=True), at_ms(1_800, 9, b"next", ack=7)]
    assert again([*copies(200, 600), *heard]) == []
    assert again([each for each in copies(600) for _ in range(4)]) == []
    lossy = [at_ms(0, 1, b"answer", back=True)]
    for number in range(9):
        sent_ms, start = 1_000 * (number + 1), 1 + 8 * number
        lossy += [at_ms(sent_ms + ms, start, b"question", ack=7) for ms in (0, 300, 700)]
        lossy.append(at_ms(sent_ms + 710, 7, ack=start + 8, back=True))
    assert again(lossy) == []


def test_copies_of_which_the_capture_has_the_last() -> None:
    assert again(copies(3_000, 9_000)) == [(True, Resent(8, 2, 1_000 * MS, 100 * MS), 60_000)]
    assert again(copies(3_000)) == []


def test_acknowledgements_that_do_not_arrive() -> None:
    """They were captured on the way, and the copies go on: both sides hear nothing."""
    unheard = [at_ms(1_000 + ms + 1, 7, ack=9, back=True) for ms in TIMEOUTS]
    ((_, piece, at),) = again(sorted([*copies(*TIMEOUTS), *unheard], key=lambda each: each.time_ns))
    assert (piece.times, at) == (4, 4_001)


def test_more_is_sent_meanwhile_and_the_last_segment_first() -> None:
    flight = [at_ms(1_000, 1, b"one", ack=7), at_ms(1_001, 4, b"two", ack=7), at_ms(1_050, 7, b"three", ack=7)]
    timeouts = [at_ms(1_200, 7, b"three", ack=7), *(at_ms(1_050 + ms, 1, b"one", ack=7) for ms in TIMEOUTS[1:])]
    more = at_ms(3_000, 12, b"four", ack=7)
    segments = [at_ms(900, 1, b"answer", back=True), *flight, *timeouts, more]
    ((is_client, piece, _),) = again(sorted(segments, key=lambda each: each.time_ns))
    assert (is_client, piece.times, piece.size, piece.since_ns) == (True, 4, 5, 1_050 * MS)


def test_an_idle_connection_that_was_forgotten() -> None:
    later = [at_ms(401_000 + ms, 9, b"again", ack=7) for ms in (0, *TIMEOUTS)]
    ((_, piece, _),) = again([*copies(), at_ms(1_001, 7, ack=9, back=True), *later], end_ms=420_000)
    assert (piece.times, piece.quiet_ns) == (4, 399_999 * MS)


def test_copies_of_bytes_that_were_cut_or_wait_for_others() -> None:
    """A capture with snaplen, or without the other direction: nothing is delivered, and still it is sent again."""
    cut = [Segment(*astuple(each)[:6], 8, each.payload[:2]) for each in copies(*TIMEOUTS)[1:]]
    assert [piece.times for _, piece, _ in again(cut)] == [4]
    unseen = [at_ms(900, 1, b"answer", back=True), *(at_ms(1_000 + ms, 1, b"a", ack=99) for ms in (0, *TIMEOUTS))]
    assert [piece.times for _, piece, _ in again(unseen)] == [4]


# ---- ends


OPENING = [segment(0, flags=SYN), segment(0, flags=SYN | ACK, ack=1, back=True), segment(1, b"hello", ack=1)]


def ending(segments: Iterable[Segment]) -> tuple[str | None, str | None, int]:
    """How a connection ends, by whom, and when."""
    reassembler = Reassembler()
    events = [event for each in [*OPENING, *segments] for event in reassembler.push(each)]
    events += reassembler.finish((99, 0))
    (end,) = [event for event in events if isinstance(event.piece, Closed)]
    assert isinstance(end.piece, Closed)
    assert not any(isinstance(event.piece, Hole) for event in events)
    by = None if end.piece.by is None else ("broker", "client")[end.connection.endpoints[end.piece.by] == CLIENT]
    return end.piece.how, by, end.at[0]


def test_the_side_that_sends_fin_first_closes() -> None:
    fin = segment(6, flags=FIN | ACK, ack=1, at=5)
    theirs = segment(1, flags=FIN | ACK, ack=6, back=True, at=6)
    assert ending([fin, segment(1, flags=FIN | ACK, ack=7, back=True, at=6), segment(7, ack=2, at=7)]) == (
        "closed", "client", 5,
    )  # fmt: skip
    assert ending([theirs, segment(6, flags=FIN | ACK, ack=2, at=8)]) == ("closed", "broker", 6)
    assert ending([fin]) == ("closed", "client", 5), "the capture ends before the broker answers"
    assert ending([]) == (None, None, 99), "it did not end"


def test_a_reset_is_by_its_sender_unless_a_fin_came_first() -> None:
    assert ending([segment(6, flags=RST | ACK, ack=1, at=5)]) == ("reset", "client", 5)
    assert ending([segment(1, flags=RST, back=True, at=5)]) == ("reset", "broker", 5)
    fin = segment(6, flags=FIN | ACK, ack=1, at=5)
    answer = segment(1, b"too late", ack=7, back=True, at=6)
    assert ending([fin, answer, segment(7, flags=RST, at=7)]) == ("closed", "client", 5)
    assert ending([fin, segment(1, flags=RST, back=True, at=7)]) == ("closed", "client", 5)


def test_a_fin_that_was_not_captured_is_no_hole() -> None:
    """The broker's FIN acknowledges that of the client, which therefore came first."""
    theirs = segment(1, flags=FIN | ACK, ack=7, back=True, at=6)
    assert ending([theirs, segment(7, ack=2, at=7)]) == ("closed", "client", 6)
    late = segment(6, flags=FIN | ACK, ack=1, at=7)  # captured in the wrong order
    assert ending([theirs, late, segment(7, ack=2, at=8)]) == ("closed", "client", 6)


def test_ports_used_again_close_by_nobody_known() -> None:
    reassembler = Reassembler()
    again = segment(5000, flags=SYN, at=8)
    events = [event for each in [*OPENING, again] for event in reassembler.push(each)]
    assert [event.piece for event in events if isinstance(event.piece, Closed)] == [Closed("closed", None)]


def test_bytes_missing_before_a_fin_are_a_hole() -> None:
    reassembler = Reassembler()
    lost = [*OPENING, segment(20, flags=FIN | ACK, ack=1, at=5)]
    events = [event for each in lost for event in reassembler.push(each)] + list(reassembler.finish((9, 0)))
    assert [event.piece for event in events][-2:] == [Hole(14), Closed("closed", events[-1].piece.by)]


# ---- connections that are never made


def refusals(segments: Iterable[Segment]) -> list[tuple[str, int]]:
    reassembler = Reassembler()
    events = [event for each in segments for event in reassembler.push(each)] + list(reassembler.finish((99, 0)))
    found = [event for event in events if isinstance(event.piece, Refused)]
    assert all(event.connection.endpoints[event.sender] == BROKER for event in found)
    return [(event.piece.why, event.at[0]) for event in found if isinstance(event.piece, Refused)]


def test_a_syn_answered_by_a_reset_is_refused() -> None:
    attempts = [
        [segment(first, flags=SYN, at=at), segment(0, flags=RST | ACK, ack=first + 1, back=True, at=at + 1)]
        for first, at in ((10, 3), (700, 13))
    ]
    assert refusals([*attempts[0], *attempts[1]]) == [("answered with a reset", 3), ("answered with a reset", 13)]


def test_a_syn_repeated_without_an_answer_is_refused() -> None:
    dialling = [segment(10, flags=SYN, at=at * 10**9) for at in (1, 2, 4, 8)]
    assert refusals(dialling) == [("no answer to 4 SYNs in 7.0 s", 10**9)]
    again = segment(900, flags=SYN, at=20 * 10**9)
    assert refusals([*dialling, again]) == [("no answer to 4 SYNs in 7.0 s", 10**9)], "once is not given up yet"


@pytest.mark.parametrize(
    "behind",
    [
        [segment(0, flags=SYN | ACK, ack=11, back=True), segment(1, flags=RST, back=True)],
        [segment(11, ack=1), segment(1, flags=RST, back=True)],  # the answer to the SYN was not captured
    ],
    ids=["reset later", "answer lost"],
)
def test_a_connection_that_was_made_is_not_refused(behind: list[Segment]) -> None:
    reassembler = Reassembler()
    opening = [segment(10, flags=SYN), segment(10, flags=SYN)]
    events = [event for each in [*opening, *behind] for event in reassembler.push(each)] + list(reassembler.finish())
    assert not any(isinstance(event.piece, Refused) for event in events)


@pytest.mark.parametrize(("quiet_s", "read_s"), [(29, 0), (30, 30), (7_200, 7_200)])
def test_what_is_said_is_read(quiet_s: int, read_s: int) -> None:
    assert resent_in(resent_text(123_456, 1_024, quiet_s * 10**9)) == (1_024, read_s)
    assert syns_in(unanswered_text(12, 63 * 10**9)) == 12
    assert (resent_in("closed"), syns_in("answered with a reset")) == (None, None)
