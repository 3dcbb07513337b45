"""Frames of one direction of a captured connection: like `Framer`, but it survives what a capture lacks.

Laws:

* In step: the bytes are cut as `Framer` cuts them. A hole inside a frame breaks that frame alone, for its size says
  where the next one starts.
* Out of step (a bad size, a hole that swallowed a frame's start, a capture that began midway): bytes are passed over
  until a judge finds a frame's start among them.
* Every byte fed is in a frame or in a `Skipped`; none is in both.
* At most one frame is held, or `SEARCH_WINDOW` bytes while out of step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from kcoord_wire.codec.framing import SIZE_BYTES, Framer
from kcoord_wire.errors import DecodeError

__all__ = ["JUDGED_BYTES", "SEARCH_WINDOW", "FrameSplitter", "Judge", "Skipped", "SplitFrame", "Verdict"]

SEARCH_WINDOW: Final = 1024 * 1024
"""Bytes among which a frame's start is looked for; no larger frame can bring a direction back into step."""

JUDGED_BYTES: Final = 14
"""A judge is asked about a place only when this many bytes from there on are at hand."""

_MAX_CANDIDATES: Final = 64


class Verdict(Enum):
    """Whether a frame starts at a place."""

    YES = "yes"
    NO = "no"
    MORE = "more"  # looks like it, but takes more bytes to say


Judge = Callable[[bytearray, int], Verdict]
"""Asked about an offset in a buffer, where the four bytes of a frame's size would be."""


@dataclass(slots=True)
class SplitFrame:
    """A frame: `size` is what its size field says, `body` may hold less where bytes were not captured."""

    body: bytes
    size: int


@dataclass(slots=True)
class Skipped:
    """`size` bytes that no frame was made of."""

    size: int
    reason: str


class FrameSplitter:
    """Cuts one direction into frames.

    :param max_frame_size: as for `Framer`
    :param judge: tells frame starts from other bytes while out of step
    :param likely: matches at every place that the judge has to be asked about, and says quickly where it has not
    :param in_step: whether the first byte fed is the first of a frame
    """

    def __init__(self, max_frame_size: int, judge: Judge, likely: re.Pattern[bytes], *, in_step: bool) -> None:
        self._max_frame_size = max_frame_size
        self._judge = judge
        self._likely = likely
        self._framer: Framer | None = Framer(max_frame_size) if in_step else None
        self._fed = 0  # bytes that the framer was given
        self._broken = 0  # bytes still to come of a frame that was given up
        self._window = bytearray()  # bytes among which a start is looked for
        self._judged = 0  # bytes of the window that were judged
        self._candidates: list[int] = []  # of those, where the verdict was MORE

    def feed(self, data: bytes) -> Iterator[SplitFrame | Skipped]:
        """Take in the next bytes; give what they complete."""
        if self._broken:
            tail = min(self._broken, len(data))
            self._broken -= tail
            data = data[tail:]
            yield Skipped(tail, "the rest of a frame with a hole")
        if self._framer is not None:
            yield from self._split(self._framer, data)
        elif data:
            self._window += data
            yield from self._search()

    def hole(self, size: int) -> Iterator[SplitFrame | Skipped]:
        """The next `size` bytes were not captured."""
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
        """Nothing follows, or nothing that continues this: give up what is held. Out of step afterwards."""
        held = bytes(self._window) if self._framer is None else self._framer.rest
        in_frame = self._framer is not None and self._framer.missing is not None
        self._lose_step()
        if in_frame:
            yield SplitFrame(held[SIZE_BYTES:], int.from_bytes(held[:SIZE_BYTES], "big"))
        elif held:
            yield Skipped(len(held), "no frame's start was found")

    def _split(self, framer: Framer, data: bytes) -> Iterator[SplitFrame | Skipped]:
        # A framer drops what it holds at a bad size, and a size may have begun in the chunk before.
        head = framer.rest if framer.buffered < SIZE_BYTES else b""
        start = self._fed - len(head)
        try:
            for body in framer.feed(data):
                yield SplitFrame(body, len(body))
            self._fed += len(data)
        except DecodeError as error:
            self._lose_step()
            yield Skipped(1, error.detail)
            self._window += (head + data)[error.offset - start + 1 :]
            yield from self._search()

    def _lose_step(self) -> None:
        self._framer = None
        self._fed = self._broken = self._judged = 0
        self._window.clear()
        self._candidates.clear()

    def _search(self) -> Iterator[SplitFrame | Skipped]:
        start = self._find_start()
        if start is not None:
            found = bytes(self._window[start:])
            self._lose_step()
            self._framer = Framer(self._max_frame_size)
            if start:
                yield Skipped(start, "no frame's start was found")
            yield from self._split(self._framer, found)
        elif len(self._window) > SEARCH_WINDOW:
            dropped = len(self._window) - SEARCH_WINDOW // 2
            del self._window[:dropped]
            self._judged = max(0, self._judged - dropped)
            self._candidates = [place - dropped for place in self._candidates if place >= dropped]
            yield Skipped(dropped, "no frame's start was found")

    def _find_start(self) -> int | None:
        candidates = []
        for place in self._candidates:
            verdict = self._judge(self._window, place)
            if verdict is Verdict.YES:
                return place
            if verdict is Verdict.MORE:
                candidates.append(place)
        end = len(self._window) - JUDGED_BYTES + 1
        for match in self._likely.finditer(self._window, self._judged):
            place = match.start()
            if place >= end:
                break
            verdict = self._judge(self._window, place)
            if verdict is Verdict.YES:
                return place
            if verdict is Verdict.MORE:
                candidates.append(place)
        self._judged = max(self._judged, end)
        self._candidates = candidates[-_MAX_CANDIDATES:]
        return None
