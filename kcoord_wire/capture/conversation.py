"""What a client and a broker say to each other on one connection, as frames.

Laws:

* Every frame comes out, whatever is in it: of an api that the registry does not have, with a body that does not decode
  (`CapturedFrame.error`), incomplete, or a response without its request. Nothing here raises.
* A frame that strict decoding refuses is decoded as leniently as the peers do, and says so
  (`CapturedFrame.irregularity`): on the wire is what it is.
* What did not come out as a frame is counted in a `CaptureReport`.
* No I/O: the two directions are fed with bytes, so that a capture file and a proxy use the same class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from kcoord_wire.api_keys import api_name
from kcoord_wire.capture.answers import Asked, Waiting, is_known
from kcoord_wire.capture.plausible import judge_request_header, request_splitter, response_splitter
from kcoord_wire.capture.splitter import FrameSplitter, Skipped, SplitFrame, Verdict
from kcoord_wire.codec.framing import DEFAULT_MAX_FRAME_SIZE, frame
from kcoord_wire.codec.headers import decode_request, decode_response, peek_request
from kcoord_wire.errors import DecodeError
from kcoord_wire.messages.request_header import RequestHeader
from kcoord_wire.messages.response_header import ResponseHeader

__all__ = ["CaptureReport", "CapturedFrame", "Conversation", "Side"]

Side = Literal["request", "response"]

_PRODUCE: Final = 0
_SASL_HANDSHAKE: Final = 17
_MAX_NOTES: Final = 1000


@dataclass(slots=True)
class CapturedFrame:
    """One frame that was seen on the wire.

    :ivar time: when its last byte was captured, in seconds since 1970; `time_ns` is the same in nanoseconds
    :ivar connection: ``client_ip:port-broker_ip:port#n``, n counting the connections of the capture
    :ivar api_key: of the request; None where it is not known: a response without its request, a SASL token
    :ivar api: the name of the api key, also where the registry does not have it; None where the key is not known
    :ivar api_version: of the request. An ApiVersions response with error 35 has body version 0 whatever this says
    :ivar client_id: of the request, also in its response
    :ivar size: bytes of the frame, its header included, the four bytes of its size not
    :ivar header: RequestHeader or ResponseHeader; None where it could not be read
    :ivar message: the decoded message; None if the registry does not have the api, or if it did not decode
    :ivar error: why it did not decode; None for an api that the registry does not have and for a SASL token
    :ivar irregularity: what strict decoding has against it, if lenient decoding alone accepts it
    :ivar raw: the body, header included: `size` bytes, or less where some were not captured
    """

    time_ns: int
    connection: str
    direction: Side
    api_key: int | None = None
    api: str | None = None
    api_version: int | None = None
    correlation_id: int | None = None
    client_id: str | None = None
    size: int = 0
    header: Any = None
    message: Any = None
    error: str | None = None
    irregularity: str | None = None
    raw: bytes = b""

    @property
    def time(self) -> float:
        """Seconds since 1970."""
        return self.time_ns / 1e9


@dataclass(slots=True)
class CaptureReport:
    """What was read, and what was lost on the way.

    :ivar packets: read from the file
    :ivar unread_packets: that carry no TCP segment, by the reason (`packets.Unread`)
    :ivar cut_packets: of whose payload the capture kept a part only
    :ivar connections: between a client and a broker
    :ivar foreign_connections: on which nobody spoke Kafka; looked for only where no port was given
    :ivar requests: frames that were sent to a broker, incomplete ones included
    :ivar responses: frames that were sent by a broker, incomplete ones included
    :ivar unknown_apis: frames whose api the registry does not have
    :ivar sasl_tokens: frames without a header, as follow a SaslHandshake of version 0
    :ivar undecodable: frames that did not decode, incomplete ones included
    :ivar irregular: frames that lenient decoding alone accepts
    :ivar unmatched_responses: whose request was not captured
    :ivar unanswered_requests: whose response was not captured, or was still to come when the capture ended
    :ivar holes: pieces of a direction that were not captured; `hole_bytes` together
    :ivar skipped_bytes: that no frame was made of
    :ivar stray_bytes: payload that fits nowhere into its connection
    :ivar damage: why the file was not read to its end
    :ivar notes: the above in words, in the order they came up, at most a thousand
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
        if len(self.notes) < _MAX_NOTES:
            self.notes.append(text)


class Conversation:
    """One connection, its directions told apart.

    :param connection: its name, for `CapturedFrame.connection`
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
        self._waiting = Waiting()
        self._sasl_tokens = False
        self._splitters: dict[Side, FrameSplitter] = {
            "request": request_splitter(max_frame_size, in_step=in_step[0]),
            "response": response_splitter(max_frame_size, self._waiting, in_step=in_step[1]),
        }
        report.connections += 1

    def feed(self, side: Side, data: bytes, time_ns: int) -> list[CapturedFrame]:
        """The next bytes of one direction, and the frames that they complete."""
        return list(self._frames(side, self._splitters[side].feed(data), time_ns))

    def hole(self, side: Side, size: int, time_ns: int) -> list[CapturedFrame]:
        """The next `size` bytes of one direction were not captured."""
        self._report.holes += 1
        self._report.hole_bytes += size
        self._note(side, f"{size} bytes were not captured")
        return list(self._frames(side, self._splitters[side].hole(size), time_ns))

    def open(self, _time_ns: int) -> list[CapturedFrame]:
        """The connection was seen for the first time, which no frame says."""
        return []

    def close(self, time_ns: int, _seen: bool = True) -> list[CapturedFrame]:
        """Nothing follows; what is held comes out as incomplete frames."""
        frames = [
            frame
            for side, splitter in self._splitters.items()
            for frame in self._frames(side, splitter.close(), time_ns)
        ]
        self._report.unanswered_requests += len(self._waiting)
        return frames

    def _frames(self, side: Side, pieces: Iterator[SplitFrame | Skipped], time_ns: int) -> Iterator[CapturedFrame]:
        for piece in pieces:
            if isinstance(piece, Skipped):
                self._report.skipped_bytes += piece.size
                self._note(side, f"{piece.size} bytes skipped: {piece.reason}")
                continue
            if side == "request":
                self._report.requests += 1
                found = self._request(piece, time_ns)
            else:
                self._report.responses += 1
                found = self._response(piece, time_ns)
            if lacking := piece.size - len(piece.body):
                found.message = None
                found.irregularity = None
                found.error = f"{lacking} of its {piece.size} bytes were not captured"
            self._report.undecodable += found.error is not None
            self._report.irregular += found.irregularity is not None
            if complaint := found.error or found.irregularity:
                self._note(side, f"{found.api} v{found.api_version}, id {found.correlation_id}: {complaint}")
            yield found

    def _request(self, piece: SplitFrame, time_ns: int) -> CapturedFrame:
        found = CapturedFrame(time_ns, self._connection, "request", size=piece.size, raw=piece.body)
        if self._sasl_tokens and not self._has_header(piece.body):
            self._report.sasl_tokens += 1
            return found
        self._sasl_tokens = False
        try:
            header = found.header = peek_request(piece.body)
        except DecodeError as error:
            found.error = str(error)
            return found
        _name(found, header)
        if is_known(header.request_api_key):
            _decode(found, lambda strict: decode_request(piece.body, strict=strict))
        else:
            self._report.unknown_apis += 1
        # A producer that asks for no acknowledgement gets no response at all.
        if header.request_api_key != _PRODUCE or getattr(found.message, "acks", None) != 0:
            asked = Asked(header.request_api_key, header.request_api_version, header.client_id)
            self._report.unanswered_requests += self._waiting.add(header.correlation_id, asked)
        if (header.request_api_key, header.request_api_version) == (_SASL_HANDSHAKE, 0):
            self._sasl_tokens = True
            self._note("request", "SaslHandshake v0: the frames that follow may be bare SASL tokens")
        return found

    def _response(self, piece: SplitFrame, time_ns: int) -> CapturedFrame:
        found = CapturedFrame(time_ns, self._connection, "response", size=piece.size, raw=piece.body)
        correlation_id = int.from_bytes(piece.body[:4], "big", signed=True)
        answered = self._waiting.answer(correlation_id) if len(piece.body) >= 4 else None
        if answered is None and self._sasl_tokens:
            self._report.sasl_tokens += 1
            return found
        found.correlation_id = correlation_id
        if answered is None:
            found.error = "its request was not captured"
            self._report.unmatched_responses += 1
            return found
        asked, passed_over = answered
        self._report.unanswered_requests += passed_over
        found.api_key, found.api, found.api_version = asked.api_key, api_name(asked.api_key), asked.api_version
        found.client_id = asked.client_id
        found.header = ResponseHeader(correlation_id=correlation_id)
        if is_known(asked.api_key):
            _decode(found, lambda strict: decode_response(piece.body, asked.api_key, asked.api_version, strict=strict))
        else:
            self._report.unknown_apis += 1
        return found

    def _has_header(self, body: bytes) -> bool:
        return judge_request_header(frame(body), 0, self._max_frame_size) is Verdict.YES

    def _note(self, side: Side, text: str) -> None:
        self._report.note(f"{self._connection} {side}: {text}")


def _decode(found: CapturedFrame, decode: Callable[[bool], tuple[Any, Any]]) -> None:
    """Decode strictly, else leniently.

    :param decode: takes whether to be strict, gives header and message
    """
    try:
        found.header, found.message = decode(True)
    except DecodeError as complaint:
        try:
            found.header, found.message = decode(False)
            found.irregularity = str(complaint)
        except DecodeError as error:
            found.error = str(error)


def _name(found: CapturedFrame, header: RequestHeader) -> None:
    found.api_key, found.api_version = header.request_api_key, header.request_api_version
    found.api = api_name(header.request_api_key)
    found.correlation_id, found.client_id = header.correlation_id, header.client_id
