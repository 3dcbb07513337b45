"""One direction cut into frames: in step, out of step, and back into step."""

from __future__ import annotations

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kcoord_wire.capture.splitter import ASSESSED_BYTES, FrameSplitter, Plausibility, Skipped, SplitFrame

MARK = b"frame"
BODIES = [MARK + bytes([number]) * 20 for number in range(5)]
STREAM = b"".join(len(body).to_bytes(4, "big") + body for body in BODIES)


def assess(buffer: bytearray, start: int) -> Plausibility:
    return Plausibility.YES if buffer[start + 4 : start + 9] == MARK else Plausibility.NO


def splitter(*, in_step: bool, max_frame_size: int = 1000) -> FrameSplitter:
    return FrameSplitter(max_frame_size, assess, lambda: re.compile(b"(?=\0)"), in_step=in_step)


def split(pieces: list[bytes | int], *, in_step: bool = True) -> list[SplitFrame | Skipped]:
    """What bytes and holes become; the stream ends behind them."""
    cut = splitter(in_step=in_step)
    found = [item for piece in pieces for item in (cut.hole(piece) if isinstance(piece, int) else cut.feed(piece))]
    return [*found, *cut.close()]


def bodies(found: list[SplitFrame | Skipped]) -> list[bytes]:
    return [item.body for item in found if isinstance(item, SplitFrame) and item.size == len(item.body)]


@given(st.lists(st.integers(0, len(STREAM)), max_size=10))
def test_in_step_the_frames_are_those_of_the_stream(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    found = split([STREAM[start:end] for start, end in pairwise(edges)])
    assert found == [SplitFrame(body, len(body)) for body in BODIES]


@given(st.integers(0, len(STREAM) - 1), st.integers(1, 40))
def test_a_hole_costs_the_frames_that_it_touches(at: int, size: int) -> None:
    end = min(at + size, len(STREAM))
    found = split([STREAM[:at], end - at, STREAM[end:]])
    whole = [body for number, body in enumerate(BODIES) if end <= number * 29 or at >= number * 29 + 29]
    assert bodies(found) == whole
    counted = sum(item.size if isinstance(item, Skipped) else 4 + len(item.body) for item in found)
    assert counted == len(STREAM) - (end - at)


def test_a_stream_that_begins_midway_is_searched() -> None:
    found = split([STREAM[10:]], in_step=False)
    assert found[0] == Skipped(19, "no frame's start was found")
    assert bodies(found) == BODIES[1:]


def test_a_bad_size_is_skipped_and_searched() -> None:
    found = split([STREAM[:29], b"\xff\xff\xff\xffnoise", STREAM[29:]])
    assert bodies(found) == BODIES
    assert sum(item.size for item in found if isinstance(item, Skipped)) == 9


def test_a_place_that_needs_more_bytes_is_assessed_again() -> None:
    asked: list[int] = []

    def undecided(buffer: bytearray, start: int) -> Plausibility:
        asked.append(start)
        whole = len(buffer) - start >= 29
        return assess(buffer, start) if whole or assess(buffer, start) is Plausibility.NO else Plausibility.MORE

    cut = FrameSplitter(1000, undecided, lambda: re.compile(b"(?=\0\0\0)"), in_step=False)
    assert list(cut.feed(b"no" + STREAM[: ASSESSED_BYTES + 2])) == []
    found = list(cut.feed(STREAM[ASSESSED_BYTES + 2 : 29]))
    assert found == [Skipped(2, "no frame's start was found"), SplitFrame(BODIES[0], 25)]
    assert asked == [2, 2]
