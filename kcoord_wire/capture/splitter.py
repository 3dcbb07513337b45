"""Frames of one direction of a captured connection: like `Framer`, but for streams with bytes missing.

Laws:

* In step: the bytes are cut as `Framer` cuts them. A hole inside a frame breaks that frame alone, because its size says
  where the next one starts.
* Out of step (a bad size, a hole over a frame's start, a capture that began midway): bytes are skipped until
  `Assess` finds a frame's start among them.
* Every byte fed is in a frame or in a `Skipped`, in the order fed; none is in both.
* At most one frame is held, or `SEARCH_WINDOW` bytes while out of step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from kcoord_wire.codec.framing import SIZE_BYTES, Framer
from kcoord_wire.errors import DecodeError
from kcoord_wire.kernel.net import guess_protocol

SEARCH_WINDOW: Final = 1024 * 1024
"""Bytes searched for a frame's start; no larger frame can bring a direction back into step."""

ASSESSED_BYTES: Final = 14
"""Bytes that must follow a place before it is assessed."""

_MAX_CANDIDATES: Final = 64


class Plausibility(Enum):
    """Whether a frame starts at a place."""

    YES = "yes"
    NO = "no"
    MORE = "more"  # perhaps: more bytes are needed to decide


Likely = Callable[[], re.Pattern[bytes]]
"""Returns what matches, now, wherever an assessment may be other than NO: a cheap filter. It consumes one byte."""

Assess = Callable[[bytearray, int], Plausibility]
"""Decides about an offset in a buffer, at which the four bytes of a frame's size would be."""


@dataclass(slots=True)
class SplitFrame:
    """A frame.

    :ivar body: fewer bytes than `size` where some were not captured
    :ivar size: the value of its size field
    """

    body: bytes
    size: int


@dataclass(slots=True)
class Skipped:
    """Bytes that are in no frame.

    :ivar size: how many
    :ivar reason: why
    :ivar in_frame: they are in a frame that was given up
    :ivar is_framed: their sizes divide them into whole frames
    """

    size: int
    reason: str
    in_frame: bool = False
    is_framed: bool = False


class FrameSplitter:
    """Cuts one direction into frames.

    :param max_frame_size: as for `Framer`
    :param assess: recognises a frame's start while out of step
    :param likely: where to assess
    :param in_step: whether the first byte fed is the first of a frame
    """

    def __init__(self, max_frame_size: int, assess: Assess, likely: Likely, *, in_step: bool) -> None:
        self._max_frame_size = max_frame_size
        self._assess = assess
        self._likely = likely
        self._framer: Framer | None = Framer(max_frame_size) if in_step else None
        self._fed = 0  # bytes passed to the framer
        self._broken = 0  # remaining bytes of a frame that was given up
        self._window = bytearray()  # bytes searched for a start
        self._assessed = 0  # leading bytes of the window that were assessed
        self._candidates: list[int] = []  # places among them that need MORE

    def feed(self, data: bytes) -> Iterable[SplitFrame | Skipped]:
        """Take in the next bytes; return what they complete. Exhaust an iterator before the next call."""
        return self._feed(data) if (body := self.whole(data)) is None else (SplitFrame(body, len(body)),)

    def whole(self, data: bytes) -> bytes | None:
        """Return the body of the frame that the next bytes are, if they are one and nothing is held; else take none."""
        size = len(data) - SIZE_BYTES
        if self._framer is None or self._broken or self._framer.buffered or not 0 < size <= self._max_frame_size:
            return None
        return data[SIZE_BYTES:] if int.from_bytes(data[:SIZE_BYTES], "big") == size else None

    def _feed(self, data: bytes) -> Iterator[SplitFrame | Skipped]:
        if self._broken and data:
            tail = min(self._broken, len(data))
            self._broken -= tail
            data = data[tail:]
            yield Skipped(tail, "the rest of a frame with a hole", in_frame=True)
        if self._framer is not None:
            yield from self._split(self._framer, data)
        elif data:
            self._window += data
            yield from self._search()

    def is_within_frame(self, size: int) -> bool:
        """Whether the next `size` bytes belong to the frame that is held, or that was given up."""
        missing = self._framer.missing if self._framer is not None and not self._broken else self._broken
        return missing is not None and size <= missing

    def hole(self, size: int) -> Iterator[SplitFrame | Skipped]:
        """Note that the next `size` bytes were not captured."""
        inside = min(self._broken, size)
        self._broken -= inside
        size -= inside
        if not size:
            return
        missing = self._framer.missing if self._framer is not None else None
        yield from self.close()
        if missing is not None and size <= missing:
            self._framer = Framer(self._max_frame_size)
            self._fed = 0
            self._broken = missing - size

    def close(self) -> Iterator[SplitFrame | Skipped]:
        """Give up what is held, because no bytes continue it. Out of step afterwards."""
        held = bytes(self._window) if self._framer is None else self._framer.rest
        in_frame = self._framer is not None and self._framer.missing is not None
        self._lose_step()
        if in_frame:
            yield SplitFrame(held[SIZE_BYTES:], int.from_bytes(held[:SIZE_BYTES], "big"))
        elif held:
            yield Skipped(len(held), "no frame's start was found")

    def _split(self, framer: Framer, data: bytes) -> Iterator[SplitFrame | Skipped]:
        # The framer drops its buffer at a bad size, whose first bytes may be in the chunk before.
        head = framer.rest if framer.buffered < SIZE_BYTES else b""
        start = self._fed - len(head)
        try:
            for body in framer.feed(data):
                yield SplitFrame(body, len(body))
            self._fed += len(data)
        except DecodeError as error:
            self._lose_step()
            wrong = (head + data)[error.offset - start :]
            yield Skipped(1, error.detail + guess_protocol(wrong[:SIZE_BYTES]))
            self._window += wrong[1:]
            yield from self._search()

    def _lose_step(self) -> None:
        self._framer = None
        self._fed = self._broken = self._assessed = 0
        self._window.clear()
        self._candidates.clear()

    def _search(self) -> Iterator[SplitFrame | Skipped]:
        start = self._find_start()
        if start is not None:
            found = bytes(self._window[start:])
            is_framed = _is_framed(self._window, start)
            self._lose_step()
            self._framer = Framer(self._max_frame_size)
            if start:
                yield Skipped(start, "no frame's start was found", is_framed=is_framed)
            yield from self._split(self._framer, found)
        elif len(self._window) > SEARCH_WINDOW:
            dropped = len(self._window) - SEARCH_WINDOW // 2
            del self._window[:dropped]
            self._assessed = max(0, self._assessed - dropped)
            self._candidates = [place - dropped for place in self._candidates if place >= dropped]
            yield Skipped(dropped, "no frame's start was found")

    def _find_start(self) -> int | None:
        candidates = []
        for place in self._places():
            plausibility = self._assess(self._window, place)
            if plausibility is Plausibility.YES:
                return place
            if plausibility is Plausibility.MORE:
                candidates.append(place)
        self._assessed = max(self._assessed, len(self._window) - ASSESSED_BYTES + 1)
        self._candidates = candidates[-_MAX_CANDIDATES:]
        return None

    def _places(self) -> Iterator[int]:
        """The places to assess: the candidates again, then likely places that were not."""
        yield from self._candidates
        end = len(self._window) - ASSESSED_BYTES + 1
        for match in self._likely().finditer(self._window, self._assessed):
            if match.start() >= end:
                return
            yield match.start()


def _is_framed(window: bytearray, end: int) -> bool:
    """Whether the sizes in the bytes before `end` lead exactly there."""
    place = 0
    while place + SIZE_BYTES <= end:
        size = int.from_bytes(window[place : place + SIZE_BYTES], "big", signed=True)
        if size < 0:
            return False
        place += SIZE_BYTES + size
    return place == end
