"""TCP reassembly: whatever the network and the capture did to the segments, the bytes come out as they were sent."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoord_wire.capture.packets import ACK, FIN, RST, SYN, Segment
from kcoord_wire.capture.tcp import MAX_PENDING, PATIENCE, Closed, Hole, Reassembler

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
    events = [event for each in segments for event in reassembler.push(each)]
    for event in [*events, *reassembler.finish()]:
        key = (event.connection.number, event.connection.endpoints[event.sender] == CLIENT)
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
    reassembler = Reassembler(max_connections=2)
    ended = []
    for port in (1, 2, 1, 3):
        one = Segment(0, ("10.0.0.1", port), BROKER, 10, 0, ACK, 1, b"x")
        ended += [event.connection.endpoints for event in reassembler.push(one) if isinstance(event.piece, Closed)]
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
    events += reassembler.finish(10)
    assert [(event.piece, event.time_ns) for event in events] == [
        (b"abc", 5), (b"def", 3), (b"ghi", 4), (b"jkl", 7), (b"answer", 6),
        (Hole(7), 8), (b"tuv", 8), (b"wxy", 9), (Closed(), 10),
    ]  # fmt: skip


def test_a_hole_at_the_end_has_the_time_of_its_acknowledgement() -> None:
    reassembler = Reassembler()
    opening = [segment(0, flags=SYN, at=1), segment(0, flags=SYN | ACK, ack=1, back=True, at=2)]
    events = [
        event for each in [*opening, segment(1, b"r", ack=9, back=True, at=3)] for event in reassembler.push(each)
    ]
    events += reassembler.finish(10)
    assert [(event.piece, event.time_ns) for event in events] == [(Hole(8), 3), (b"r", 3), (Closed(), 10)]
