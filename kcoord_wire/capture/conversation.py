"""What a client and a broker send each other on one connection, as undecoded frames.

Laws:

* The frames of a direction come out in order, each once; a request before its response.
* Every byte fed is in a `RawFrame`: in a body, in the four bytes of size before it, or counted in `RawFrame.lost`.
* A frame's time is the latest among the packets that hold its bytes, whenever it was recognised; usually that is the
  packet with its last byte.
* ``closed`` and ``reset`` come only from a connection whose end was seen, not where the capture ended first.
* Where bytes are missing that may have been frames about a group, a row has the interval in which they were sent. Bytes
  missing inside a frame of Fetch or Produce hide nothing: its size says where the next one begins.
* Nothing raises, and nothing is decoded except to get back into step. No I/O: the two directions are fed with bytes, so
  that a capture file and a live connection use the same class.
"""

from __future__ import annotations

import re
import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal

from kcoord_wire.capture.central import assess_central, is_central
from kcoord_wire.capture.packets import At
from kcoord_wire.capture.plausible import (
    RequestHead,
    assess_request,
    assess_response,
    likely_response,
    request_splitter,
)
from kcoord_wire.capture.splitter import FrameSplitter, Plausibility, Skipped, SplitFrame
from kcoord_wire.codec.framing import DEFAULT_MAX_FRAME_SIZE, SIZE_BYTES
from kcoord_wire.codec.pending import PendingRequests
from kcoord_wire.protocol.api_keys import ApiKey

Side = Literal["request", "response"]
Party = Literal["client", "broker"]

_MAX_NOTES: Final = 1000
_MAX_TIMES: Final = 4096
_REQUEST_HEAD: Final = struct.Struct(">hhi")  # api key, version, correlation id
_CORRELATION_ID: Final = struct.Struct(">i")
_BULK: Final = (ApiKey.PRODUCE, ApiKey.FETCH)


def sender_of(side: Side) -> Party:
    """Return who sends requests or responses."""
    return "client" if side == "request" else "broker"


@dataclass(slots=True)
class RawFrame:
    """A frame, undecoded, or something that happened to a connection.

    :ivar time_ns: nanoseconds since 1970, see the laws of this module
    :ivar position: number of the packet in the capture that completed it, from 1 as Wireshark counts; 0 without one
    :ivar connection: as in `CapturedFrame`; empty for damage of the file itself
    :ivar kind: ``request`` (sent by the client) and ``response`` (by the broker) have a body; ``opened``, ``closed``
        (FIN), ``reset`` (RST) and ``refused`` (never made) have none; ``damage`` is bytes that are in no frame
    :ivar body: header and message, or the part of them that was captured
    :ivar error: why the frame is cut, why bytes are in no frame, or why the connection was refused
    :ivar lost: bytes that `error` is about: the captured bytes of a cut frame and of its size, the bytes of the
        damage, or the bytes that a hole lacks
    :ivar size: bytes that the body had on the wire
    :ivar by: ``closed``, ``reset``: who ended the connection, None if that was not seen; ``damage``: whose bytes
    :ivar since_ns: ``damage``: what is missing, and may have been frames about a group, was sent between this time and
        `time_ns`; None where nothing of that kind is missing
    """

    time_ns: int
    position: int
    connection: str
    kind: Literal["request", "response", "opened", "closed", "reset", "refused", "damage"]
    body: bytes = b""
    error: str | None = None
    lost: int = 0
    size: int = 0
    by: Party | None = None
    since_ns: int | None = None


@dataclass(slots=True)
class CaptureReport:
    """What was read, and what was lost on the way.

    :ivar packets: read from the file
    :ivar unread_packets: packets without a TCP segment, by reason (`packets.Unread`)
    :ivar cut_packets: packets of which the capture kept only a part of the payload
    :ivar connections: between a client and a broker
    :ivar foreign_connections: connections left out because no Kafka request was found on them; only where no port was
        given. `notes` names each that carried bytes
    :ivar requests: frames sent to a broker, incomplete ones included
    :ivar responses: frames sent by a broker, incomplete ones included
    :ivar unknown_apis: frames of an api that the registry does not have
    :ivar sasl_tokens: frames without a header, as they follow a SaslHandshake of version 0
    :ivar undecodable: frames that did not decode, incomplete ones included
    :ivar irregular: frames that only lenient decoding accepts
    :ivar unmatched_responses: responses whose request was not captured
    :ivar unanswered_requests: requests whose response was not captured, or was pending when the capture ended
    :ivar holes: gaps in a direction, where bytes were not captured
    :ivar hole_bytes: size of these together
    :ivar skipped_bytes: bytes in no frame
    :ivar stray_bytes: payload that fits nowhere into its connection
    :ivar damage: why the file was not read to its end
    :ivar notes: the above in words, in order of appearance, at most a thousand
    """

    packets: int = 0
    unread_packets: dict[str, int] = field(default_factory=dict)
    cut_packets: int = 0
    connections: int = 0
    foreign_connections: int = 0
    requests: int = 0
    responses: int = 0
    unknown_apis: int = 0
    sasl_tokens: int = 0
    undecodable: int = 0
    irregular: int = 0
    unmatched_responses: int = 0
    unanswered_requests: int = 0
    holes: int = 0
    hole_bytes: int = 0
    skipped_bytes: int = 0
    stray_bytes: int = 0
    damage: str | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether every byte is in a frame, every frame decoded and every response has its request."""
        lost = self.undecodable + self.unmatched_responses + self.holes + self.skipped_bytes + self.stray_bytes
        return not lost and not self.cut_packets and self.damage is None

    def note(self, text: str) -> None:
        """Add a line to the notes, unless they are full."""
        if len(self.notes) < _MAX_NOTES:
            self.notes.append(text)


class _Direction:
    """One direction of a connection, and when its bytes that are in no frame yet were captured.

    :ivar is_bulk: a frame that was cut, and whose rest may be missing too, is of Fetch or Produce
    """

    __slots__ = ("_fed", "_taken", "_times", "is_bulk", "splitter")

    def __init__(self, splitter: FrameSplitter) -> None:
        self.splitter = splitter
        self.is_bulk = False
        self._fed = self._taken = 0
        self._times: deque[tuple[int, At]] = deque()  # where each piece ends in the direction, and its packet

    def feed(self, data: bytes, at: At) -> Iterator[SplitFrame | Skipped]:
        if data:
            self._fed += len(data)
            if len(self._times) < _MAX_TIMES:
                self._times.append((self._fed, at))
            else:  # pieces of a byte each: they share a time, so that times take no more memory than bytes do
                self._times[-1] = self._fed, max(at, self._times[-1][1])
        return self.splitter.feed(data)

    def take(self, size: int) -> tuple[int, At]:
        """The first time and the latest packet of the next `size` bytes, which are in no frame or loss before."""
        times = self._times
        self._taken += size
        first, latest = times[0][1][0], times[0][1]
        while times[0][0] < self._taken:
            times.popleft()
            latest = max(latest, times[0][1])
        if times[0][0] == self._taken:
            times.popleft()
        return first, latest


class RawConversation:
    """One connection between a client and a broker, of Kafka's protocol or the 0.8 draft's (`central`).

    :param connection: its name, for `RawFrame.connection`
    :param report: counts go here
    :param max_frame_size: as for `Framer`
    :param in_step: for requests and responses, whether the first byte fed is the first of a frame
    """

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
        self._max_frame_size = max_frame_size
        self._is_central: bool | None = None  # until the first whole frame
        self._pending: PendingRequests[RequestHead] = PendingRequests()
        requests = request_splitter(max_frame_size, in_step=in_step[0], assess=partial(self._assess, "request"))
        responses = FrameSplitter(max_frame_size, partial(self._assess, "response"), self._likely, in_step=in_step[1])
        self._directions: dict[Side, _Direction] = {"request": _Direction(requests), "response": _Direction(responses)}
        report.connections += 1

    def open(self, time_ns: int, number: int = 0) -> list[RawFrame]:
        """Note that the connection was seen for the first time.

        :param number: of the packet, here and below
        """
        return [RawFrame(time_ns, number, self._connection, "opened")]

    def feed(self, side: Side, data: bytes, time_ns: int, number: int = 0) -> list[RawFrame]:
        """Take in the next bytes of one direction, and return the frames that they complete."""
        return list(self._frames(side, self._directions[side].feed(data, (time_ns, number))))

    def hole(
        self, side: Side, size: int, time_ns: int, number: int = 0, *, since_ns: int | None = None
    ) -> list[RawFrame]:
        """Note that the next `size` bytes of one direction were not captured.

        :param since_ns: time of the packet before them; `time_ns` if left out
        """
        self._report.holes += 1
        self._report.hole_bytes += size
        direction = self._directions[side]
        in_frame = direction.splitter.is_within_frame(size)
        frames = list(self._frames(side, direction.splitter.hole(size)))
        lost = RawFrame(time_ns, number, self._connection, "damage", lost=size, by=sender_of(side))
        if in_frame and direction.is_bulk:
            lost.error = f"{side}: bytes of the data of Fetch or Produce were left out"
        else:
            lost.error = f"{side}: bytes were not captured"
            lost.since_ns = time_ns if since_ns is None else since_ns
        return [lost, *frames]

    def close(
        self,
        time_ns: int,
        number: int = 0,
        *,
        how: Literal["closed", "reset"] | None = "closed",
        by: Party | None = None,
    ) -> list[RawFrame]:
        """Return what is held, as cut frames: no bytes follow.

        :param how: the connection ended; None where the capture did
        :param by: who ended it
        """
        frames = [
            frame
            for side, direction in self._directions.items()
            for frame in self._frames(side, direction.splitter.close())
        ]
        return frames if how is None else [*frames, RawFrame(time_ns, number, self._connection, how, by=by)]

    def _frames(self, side: Side, pieces: Iterator[SplitFrame | Skipped]) -> Iterator[RawFrame]:
        direction = self._directions[side]
        for piece in pieces:
            if isinstance(piece, Skipped):
                yield self._skipped(side, piece)
                continue
            body = piece.body
            if self._is_central is None and len(body) == piece.size:
                self._is_central = is_central(side, body)
            direction.is_bulk = (self._note_request if side == "request" else self._note_response)(body) in _BULK
            _, at = direction.take(SIZE_BYTES + len(body))
            found = RawFrame(*at, self._connection, side, body, size=piece.size)
            if lacking := piece.size - len(body):
                what = "of data were left out" if direction.is_bulk else "were not captured"
                found.error = f"{lacking} of its {piece.size} bytes {what}"
                found.lost = SIZE_BYTES + len(body)
                self._report.undecodable += 1
            yield found

    def _skipped(self, side: Side, piece: Skipped) -> RawFrame:
        self._report.skipped_bytes += piece.size
        direction = self._directions[side]
        first_ns, at = direction.take(piece.size)
        found = RawFrame(*at, self._connection, "damage", lost=piece.size, by=sender_of(side))
        found.error = f"{side}: {piece.reason}"
        if not (piece.in_frame and direction.is_bulk):
            found.since_ns = first_ns
        if side == "response" and piece.is_framed:
            found.error = f"{side}: the answer to a request that was not captured"
        return found

    def _assess(self, side: Side, buffer: bytearray, start: int) -> Plausibility:
        """Whether a frame of the protocol spoken starts at a place; of either while that is not known."""
        found = Plausibility.NO
        if self._is_central is not False:
            found = assess_central(side, buffer, start, self._max_frame_size)
        if self._is_central or found is Plausibility.YES:
            return found
        if side == "request":
            of_kafka = assess_request(buffer, start, self._max_frame_size)
        else:
            of_kafka = assess_response(buffer, start, self._max_frame_size, self._pending)
        return found if of_kafka is Plausibility.NO else of_kafka

    def _likely(self) -> re.Pattern[bytes]:
        return likely_response(self._pending.prefixes, self._is_central is not False)

    def _note_request(self, body: bytes) -> int | None:
        """Keep what a response is recognised by where it is out of step; return the api key, if it is Kafka's."""
        self._report.requests += 1
        if len(body) < _REQUEST_HEAD.size or self._is_central:
            return None
        api_key, api_version, correlation_id = _REQUEST_HEAD.unpack_from(body)
        self._pending.add(correlation_id, RequestHead(api_key, api_version, None))
        return int(api_key)

    def _note_response(self, body: bytes) -> int | None:
        """Return the api key of the request that is answered, if that is known."""
        self._report.responses += 1
        if len(body) < _CORRELATION_ID.size:
            return None
        answered = self._pending.answer(_CORRELATION_ID.unpack_from(body)[0])
        return None if answered is None else answered[0].api_key
