"""What a client and a broker say to each other on one connection, as frames that nobody decodes.

The same as `Conversation` but for the decoding, which costs most of the time, and that it tells also when a connection
was opened and closed and which bytes are in no frame.

Laws:

* Frames of a direction come out in order, each once; a request before its response.
* Every byte fed is in a `RawFrame`: in a body, after the four bytes of its size, or among the `lost` ones.
* ``closed`` is said only of a connection whose end was seen; not where the capture ended first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from kcoord_wire.capture.answers import Asked, Waiting
from kcoord_wire.capture.conversation import CaptureReport, Side
from kcoord_wire.capture.plausible import request_splitter, response_splitter
from kcoord_wire.capture.splitter import FrameSplitter, Skipped, SplitFrame
from kcoord_wire.codec.framing import DEFAULT_MAX_FRAME_SIZE, SIZE_BYTES

__all__ = ["RawConversation", "RawFrame"]


@dataclass(slots=True)
class RawFrame:
    """A frame, undecoded; or what happened to a connection.

    :ivar kind: ``request`` and ``response`` have a body; ``opened`` and ``closed`` have none; ``damage`` is bytes that
        are in no frame
    :ivar position: number of the packet that completed it
    :ivar connection: as of `CapturedFrame`; empty for damage of the file itself
    :ivar body: header and message, or what was captured of them
    :ivar error: why it is cut, or why bytes are in no frame
    :ivar lost: the bytes that `error` is about: those of a cut frame that are there, with its size; those of damage
    """

    time_ns: int
    position: int
    connection: str
    kind: Literal["request", "response", "opened", "closed", "damage"]
    body: bytes = b""
    error: str | None = None
    lost: int = 0


class RawConversation:
    """One connection, its directions told apart. The parameters are those of `Conversation`."""

    def __init__(
        self,
        connection: str,
        report: CaptureReport,
        *,
        max_frame_size: int = DEFAULT_MAX_FRAME_SIZE,
        in_step: tuple[bool, bool] = (True, True),
    ) -> None:
        self._connection = connection
        self._report = report
        self._waiting = Waiting()
        self._splitters: dict[Side, FrameSplitter] = {
            "request": request_splitter(max_frame_size, in_step=in_step[0]),
            "response": response_splitter(max_frame_size, self._waiting, in_step=in_step[1]),
        }
        report.connections += 1

    def open(self, time_ns: int) -> list[RawFrame]:
        """The connection was seen for the first time."""
        return [RawFrame(time_ns, 0, self._connection, "opened")]

    def feed(self, side: Side, data: bytes, time_ns: int) -> list[RawFrame]:
        """The next bytes of one direction, and the frames that they complete."""
        return list(self._frames(side, self._splitters[side].feed(data), time_ns))

    def hole(self, side: Side, size: int, time_ns: int) -> list[RawFrame]:
        """The next `size` bytes of one direction were not captured."""
        self._report.holes += 1
        self._report.hole_bytes += size
        lost = RawFrame(time_ns, 0, self._connection, "damage", error=f"{side}: bytes were not captured", lost=size)
        return [lost, *self._frames(side, self._splitters[side].hole(size), time_ns)]

    def close(self, time_ns: int, seen: bool = True) -> list[RawFrame]:
        """Nothing follows; what is held comes out cut.

        :param seen: the connection was closed; not merely the capture ended
        """
        frames = [
            frame
            for side, splitter in self._splitters.items()
            for frame in self._frames(side, splitter.close(), time_ns)
        ]
        return [*frames, RawFrame(time_ns, 0, self._connection, "closed")] if seen else frames

    def _frames(self, side: Side, pieces: Iterator[SplitFrame | Skipped], time_ns: int) -> Iterator[RawFrame]:
        for piece in pieces:
            if isinstance(piece, Skipped):
                self._report.skipped_bytes += piece.size
                error = f"{side}: {piece.reason}"
                yield RawFrame(time_ns, 0, self._connection, "damage", error=error, lost=piece.size)
                continue
            body = piece.body
            if side == "request":
                self._report.requests += 1
                if len(body) >= 8:  # what a response that comes out of step is told by
                    head = [int.from_bytes(body[at : at + 2], "big", signed=True) for at in (0, 2)]
                    self._waiting.add(int.from_bytes(body[4:8], "big", signed=True), Asked(head[0], head[1], None))
            else:
                self._report.responses += 1
                if len(body) >= 4:
                    self._waiting.answer(int.from_bytes(body[:4], "big", signed=True))
            found = RawFrame(time_ns, 0, self._connection, side, body)
            if lacking := piece.size - len(body):
                found.error = f"{lacking} of its {piece.size} bytes were not captured"
                found.lost = SIZE_BYTES + len(body)
                self._report.undecodable += 1
            yield found
