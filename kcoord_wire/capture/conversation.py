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
* Where a capture begins midway or has a hole, a request is recognised by its header: a size within bounds, an api key
  that Kafka has assigned, a small version, a client id that fits. While searching, its whole body must decode too. A
  response is recognised by the correlation id of a pending request, and by decoding as the answer to that request.
* No rule is stricter than a Kafka broker's own: a correlation id may be negative, and a client id is null or any bytes,
  as long as the size field of a string allows (32,767). A frame that a broker would serve is never the reason that a
  connection is left out.
"""

from __future__ import annotations

import re
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Final, Literal, NamedTuple

from kcoord_wire.capture.central import assess_central, is_central
from kcoord_wire.capture.packets import At
from kcoord_wire.capture.splitter import (
    ASSESSED_BYTES,
    Assess,
    FrameSplitter,
    Likely,
    Plausibility,
    Skipped,
    SplitFrame,
)
from kcoord_wire.capture.tcp import Resent
from kcoord_wire.codec.framing import DEFAULT_MAX_FRAME_SIZE, SIZE_BYTES, frame
from kcoord_wire.codec.pending import PendingRequests
from kcoord_wire.codec.registry import decode_request, decode_response, registry
from kcoord_wire.errors import DecodeError
from kcoord_wire.protocol.api_keys import API_NAMES, ApiKey
from kcoord_wire.protocol.wording import resent_text

# They consume one byte, so that they match at every place, and begin with a literal one, which `re` finds by memchr. A
# larger frame than SEARCH_WINDOW and a packet (0x11ffff bytes) brings no direction back into step. This, and that a
# response needs a pending correlation id, is what makes a lossy capture take little more time than a whole one
# (tests/bench/lossy.py).
_SIZE: Final = rb"\x00(?=[\x00-\x11].."
_APIS: Final = b"[" + b"".join(re.escape(bytes([key])) for key in API_NAMES) + b"]"
_OF_CENTRAL: Final = rb"\x00[\x01\x05-\x09]"  # its type ids
LIKELY_REQUEST: Final = re.compile(_SIZE + rb"(?:\x00" + _APIS + rb"\x00[\x00-\x1f]|" + _OF_CENTRAL + rb"))", re.DOTALL)
"""A possible size; a known api key and a possible version, or a type id of the 0.8 draft."""
LIKELY_RESPONSE: Final = re.compile(_SIZE + rb")", re.DOTALL)
"""A possible size."""
_MAX_PREFIXES: Final = 16

_SMALLEST_REQUEST: Final = 10  # api key, version, correlation id, length of the client id
_SMALLEST_RESPONSE: Final = 4
_LARGEST_VERSION: Final = 31  # the highest so far is 18


class RequestHead(NamedTuple):
    """The fields of a request that its response needs to be decoded.

    :ivar family: ``rewrite`` of the consumer rewrite's JoinGroup
    """

    api_key: int
    api_version: int
    client_id: str | None
    family: str = "kafka"


def is_known(api_key: int) -> bool:
    """Whether the registry can decode this api."""
    try:
        registry.request(api_key)
    except KeyError:
        return False
    return True


def assess_request_header(buffer: bytes | bytearray, start: int, max_frame_size: int) -> Plausibility:
    """Whether a request's size and header start at `start`; MORE if the buffer ends within them."""
    if len(buffer) - start < ASSESSED_BYTES:
        return Plausibility.MORE
    if buffer[start + 4] or buffer[start + 6]:  # api key and version are below 256
        return Plausibility.NO
    size = _int(buffer, start, 4)
    if not _SMALLEST_REQUEST <= size <= max_frame_size:
        return Plausibility.NO
    if buffer[start + 5] not in API_NAMES or buffer[start + 7] > _LARGEST_VERSION:
        return Plausibility.NO
    fits = -1 <= _int(buffer, start + 12, 2) <= size - _SMALLEST_REQUEST
    return Plausibility.YES if fits else Plausibility.NO


def has_header(body: bytes, max_frame_size: int) -> bool:
    """Whether a frame's body begins with a request header, rather than being a bare SASL token."""
    return assess_request_header(frame(body), 0, max_frame_size) is Plausibility.YES


def assess_request(buffer: bytes | bytearray, start: int, max_frame_size: int) -> Plausibility:
    """Whether a whole request starts at `start`, followed by nothing or by the start of another."""
    plausibility = assess_request_header(buffer, start, max_frame_size)
    if plausibility is not Plausibility.YES:
        return plausibility
    end = start + SIZE_BYTES + _int(buffer, start, 4)
    if end > len(buffer):
        return Plausibility.MORE
    if assess_request_header(buffer, end, max_frame_size) is Plausibility.NO:
        return Plausibility.NO
    if is_known(buffer[start + 5]) and not _decodes(partial(decode_request, bytes(buffer[start + SIZE_BYTES : end]))):
        return Plausibility.NO
    return Plausibility.YES


def _decodes(decode: Callable[..., object]) -> bool:
    """Whether a frame decodes to its last byte, whatever bytes its strings have."""
    for strict in (True, False):
        try:
            decode(strict=strict)
            return True
        except DecodeError as error:
            if error.kind != "utf8":
                return False
    return False


def assess_response(
    buffer: bytes | bytearray, start: int, max_frame_size: int, pending: PendingRequests[RequestHead]
) -> Plausibility:
    """Whether the whole response to a pending request starts at `start`, followed by nothing or by a likely size."""
    size, correlation_id = _int(buffer, start, 4), _int(buffer, start + 4, 4)
    asked = pending.oldest(correlation_id)
    if asked is None or not _SMALLEST_RESPONSE <= size <= max_frame_size:
        return Plausibility.NO
    end = start + SIZE_BYTES + size
    if end > len(buffer):
        return Plausibility.MORE
    if end + SIZE_BYTES <= len(buffer) and not _SMALLEST_RESPONSE <= _int(buffer, end, 4) <= max_frame_size:
        return Plausibility.NO
    body = bytes(buffer[start + SIZE_BYTES : end])
    if is_known(asked.api_key) and not _decodes(partial(decode_response, body, asked.api_key, asked.api_version)):
        return Plausibility.NO
    return Plausibility.YES


@lru_cache(maxsize=256)
def likely_response(prefixes: frozenset[int] | None, may_be_central: bool) -> re.Pattern[bytes]:
    """What matches wherever a response may start: a possible size, and a pending correlation id.

    :param prefixes: the upper 24 bits of the pending correlation ids; None for any
    :param may_be_central: whether the 0.8 draft's frames count as well
    """
    if prefixes is None:
        return LIKELY_RESPONSE
    heads = [re.escape((prefix & 0xFFFFFF).to_bytes(3, "big")) + b"." for prefix in sorted(prefixes)]
    heads += [_OF_CENTRAL] * may_be_central
    return re.compile(_SIZE + rb"(?:" + b"|".join(heads or [b"(?!)"]) + rb"))", re.DOTALL)


def request_splitter(
    max_frame_size: int, *, in_step: bool, assess: Assess | None = None, likely: Likely = lambda: LIKELY_REQUEST
) -> FrameSplitter:
    """A splitter for what a client sends. The parameters are those of `FrameSplitter`.

    :param assess: None recognises Kafka's requests
    """

    def assess_kafka(buffer: bytearray, start: int) -> Plausibility:
        return assess_request(buffer, start, max_frame_size)

    return FrameSplitter(max_frame_size, assess or assess_kafka, likely, in_step=in_step)


def _int(buffer: bytes | bytearray, start: int, size: int) -> int:
    return int.from_bytes(buffer[start : start + size], "big", signed=True)


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
    :ivar position: number of the packet in its file that completed it, from 1 as Wireshark counts; 0 without one
    :ivar connection: as in `CapturedFrame`; empty for damage of the file itself
    :ivar kind: ``request`` (sent by the client) and ``response`` (by the broker) have a body; ``opened``, ``closed``
        (FIN), ``reset`` (RST) and ``refused`` (never made) have none; ``damage`` is bytes that are in no frame,
        ``resent`` bytes that were sent again and again without an acknowledgement (`tcp.Resent`)
    :ivar body: header and message, or the part of them that was captured
    :ivar error: why the frame is cut, why bytes are in no frame, why the connection was refused, or how
        often bytes were sent again
    :ivar lost: bytes that `error` is about: the captured bytes of a cut frame and of its size, the bytes of the
        damage, or the bytes that a hole lacks
    :ivar size: bytes that the body had on the wire
    :ivar by: ``closed``, ``reset``: who ended the connection, None if that was not seen; ``damage``, ``resent``: whose
        bytes
    :ivar since_ns: ``damage``: what is missing, and may have been frames about a group, was sent between this time and
        `time_ns`; None where nothing of that kind is missing. ``resent``: when the bytes were sent first
    :ivar file: index of the file among those of a rotated capture
    :ivar number: as `RawFrames.number` returns it; None where that counts
    """

    time_ns: int
    position: int
    connection: str
    kind: Literal["request", "response", "opened", "closed", "reset", "refused", "resent", "damage"]
    body: bytes = b""
    error: str | None = None
    lost: int = 0
    size: int = 0
    by: Party | None = None
    since_ns: int | None = None
    file: int = 0
    number: int | None = None


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

    def feed(self, data: bytes, at: At) -> Iterable[SplitFrame | Skipped]:
        if data:
            self._fed += len(data)
            if len(self._times) < _MAX_TIMES:
                self._times.append((self._fed, at))
            else:  # pieces of a byte each: they share a time, so that times take no more memory than bytes do
                self._times[-1] = self._fed, max(at, self._times[-1][1])
        return self.splitter.feed(data)

    def whole(self, data: bytes) -> bytes | None:
        """Return the body of the frame that the next bytes are, if they are one and nothing is held; else take none."""
        return None if self._times else self.splitter.whole(data)

    def times_of(self, size: int) -> tuple[int, At]:
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
        direction = self._directions[side]
        body = direction.whole(data)
        if body is None:
            return list(self._frames(side, direction.feed(data, (time_ns, number))))
        # Nearly always: a segment is a frame. `read_raw_frames` takes 6 to 8 % less of processor time than without.
        return [self._frame(side, direction, body, len(body), (time_ns, number))]

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

    def resent(self, side: Side, piece: Resent, time_ns: int, number: int = 0) -> list[RawFrame]:
        """Note that one side has sent bytes again and again."""
        since_ns, by, text = piece.since_ns, sender_of(side), resent_text(piece.size, piece.times, piece.quiet_ns)
        return [RawFrame(time_ns, number, self._connection, "resent", error=text, by=by, since_ns=since_ns)]

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

    def _frames(self, side: Side, pieces: Iterable[SplitFrame | Skipped]) -> Iterator[RawFrame]:
        direction = self._directions[side]
        for piece in pieces:
            if isinstance(piece, Skipped):
                yield self._skipped(side, piece)
                continue
            _, at = direction.times_of(SIZE_BYTES + len(piece.body))
            yield self._frame(side, direction, piece.body, piece.size, at)

    def _frame(self, side: Side, direction: _Direction, body: bytes, size: int, at: At) -> RawFrame:
        """Note a frame.

        :param size: bytes that it had on the wire
        """
        if self._is_central is None and len(body) == size:
            self._is_central = is_central(side, body)
        direction.is_bulk = (self._note_request if side == "request" else self._note_response)(body) in _BULK
        found = RawFrame(at[0], at[1], self._connection, side, body, None, 0, size)
        if lacking := size - len(body):
            what = "of data were left out" if direction.is_bulk else "were not captured"
            found.error = f"{lacking} of its {size} bytes {what}"
            found.lost = SIZE_BYTES + len(body)
            self._report.undecodable += 1
        return found

    def _skipped(self, side: Side, piece: Skipped) -> RawFrame:
        self._report.skipped_bytes += piece.size
        direction = self._directions[side]
        first_ns, at = direction.times_of(piece.size)
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
        return likely_response(self._pending.prefixes(_MAX_PREFIXES), self._is_central is not False)

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
