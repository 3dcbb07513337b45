"""Captured frames, decoded.

Laws:

* Every frame is returned, whatever it holds: of an api that the registry does not have, with a body that does not
  decode (`CapturedFrame.error`), incomplete, or a response without its request. Nothing raises.
* A frame that strict decoding refuses is decoded as leniently as Kafka's own readers do, and marked
  (`CapturedFrame.irregularity`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kcoord_wire.capture.central import CentralPending, CentralReader, is_central
from kcoord_wire.capture.conversation import CaptureReport, RawFrame, Side
from kcoord_wire.capture.plausible import RequestHead, has_header, is_known
from kcoord_wire.capture.rewrite import REWRITE, is_rewrite_join
from kcoord_wire.codec.frames import TypeIdHeader
from kcoord_wire.codec.framing import DEFAULT_MAX_FRAME_SIZE
from kcoord_wire.codec.pending import PendingRequests
from kcoord_wire.codec.registry import decode_request, decode_response, peek_request
from kcoord_wire.errors import DecodeError
from kcoord_wire.messages.request_header import RequestHeader
from kcoord_wire.messages.response_header import ResponseHeader
from kcoord_wire.messages.rewrite.rewrite_join_group import RewriteJoinGroupResponse
from kcoord_wire.protocol.api_keys import ApiKey, api_name


@dataclass(slots=True)
class CapturedFrame:
    """One frame that was seen on the wire.

    :ivar time_ns: when the last of its bytes was captured, in nanoseconds since 1970; `time` is the same in seconds
    :ivar connection: ``client_ip:port-broker_ip:port#n``, n counting the connections of the capture
    :ivar direction: ``request`` or ``response``. On a connection of the 0.8 draft the coordinator, which is the broker
        of the connection, sends the requests Ping, StopFetcher and StartFetcher
    :ivar api_key: of the request; None where it is not known: a response without its request, a SASL token
    :ivar api: the name of the api key, also where the registry does not have it; None where the key is not known
    :ivar api_version: of the request. An ApiVersions response with error 35 has body version 0 whatever this says
    :ivar correlation_id: of the request and its response; None where it could not be read
    :ivar client_id: of the request, also in its response
    :ivar size: bytes of the frame with its header, without the four bytes of its size
    :ivar header: RequestHeader, ResponseHeader, or TypeIdHeader (the draft); None where it could not be read
    :ivar message: the decoded message; None if the registry does not have the api, or if it did not decode
    :ivar error: why it did not decode; None for an api that the registry does not have and for a SASL token
    :ivar irregularity: why strict decoding refuses it, if only lenient decoding accepts it
    :ivar raw: the body with its header: `size` bytes, or fewer where some were not captured
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


class FrameDecoder:
    """Decodes what `RawConversation` returns for one connection.

    :param report: counts and notes go here
    :param max_frame_size: as for `Framer`
    """

    def __init__(self, report: CaptureReport, *, max_frame_size: int = DEFAULT_MAX_FRAME_SIZE) -> None:
        self._report = report
        self._max_frame_size = max_frame_size
        self._pending: PendingRequests[RequestHead] = PendingRequests()
        self._central: CentralReader | None = None  # of a connection of the draft
        self._asked: CentralPending[bool] = CentralPending()
        self._is_known = False  # whether the connection is the draft's
        self._sasl_tokens = False  # frames may be bare tokens, as they follow a SaslHandshake of version 0

    def decode(self, raw: RawFrame) -> CapturedFrame | None:
        """Return a request or response decoded; note damage in the report and return None for it and other events."""
        if raw.kind == "request" or raw.kind == "response":
            found = CapturedFrame(raw.time_ns, raw.connection, raw.kind, size=raw.size, raw=raw.body)
            if not self._is_known and raw.error is None:
                self._is_known = True
                self._central = CentralReader() if is_central(raw.kind, raw.body) else None
            if self._central is not None:
                self._of_central(found, self._central)
            elif raw.kind == "request":
                self._request(found)
            else:
                self._response(found)
            self._note_faults(found, raw)
            return found
        if raw.kind == "damage":
            self._report.note(f"{raw.connection} {raw.error} ({raw.lost} bytes)".lstrip())
        return None

    def finish(self) -> None:
        """Count the requests without a response: no frames follow."""
        self._report.unanswered_requests += len(self._pending.clear()) + len(self._asked.clear())

    def _note_faults(self, found: CapturedFrame, raw: RawFrame) -> None:
        if raw.error is not None:  # it is cut
            found.message = None
            found.irregularity = None
            found.error = raw.error
        elif found.error is not None:
            self._report.undecodable += 1
        elif found.irregularity is not None:
            self._report.irregular += 1
        if complaint := found.error or found.irregularity:
            what = f"{found.api} v{found.api_version}, id {found.correlation_id}"
            self._report.note(f"{found.connection} {found.direction}: {what}: {complaint}")

    def _of_central(self, found: CapturedFrame, reader: CentralReader) -> None:
        try:
            what = reader.identify(found.direction, found.raw)
        except DecodeError as error:
            found.error = error.detail
            self._report.unmatched_responses += found.direction == "response"
            return
        found.direction, found.api_key, found.api, found.api_version = what.direction, what.type_id, what.name, 0
        found.header = TypeIdHeader(what.type_id) if what.start else None
        self._decode_either_way(found, lambda strict: (found.header, what.decode(found.raw, strict=strict)))
        if what.direction == "request":
            self._report.unanswered_requests += len(self._asked.ask(what.type_id, found.message, True))
        elif (answered := self._asked.answer(what.type_id, found.message)) is not None:
            self._report.unanswered_requests += len(answered[1])
        else:
            self._report.unmatched_responses += 1

    def _request(self, found: CapturedFrame) -> None:
        if self._sasl_tokens and not has_header(found.raw, self._max_frame_size):
            self._report.sasl_tokens += 1
            return
        self._sasl_tokens = False
        try:
            header: RequestHeader = peek_request(found.raw)
        except DecodeError as error:
            found.error = str(error)
            return
        found.header = header
        found.correlation_id = header.correlation_id
        head = RequestHead(header.request_api_key, header.request_api_version, header.client_id)
        if is_rewrite_join(found.raw):
            head = head._replace(family=REWRITE)
        self._decode(found, head, lambda strict: decode_request(found.raw, family=head.family, strict=strict))
        # A producer that asks for no acknowledgement gets no response at all.
        if head.api_key != ApiKey.PRODUCE or getattr(found.message, "acks", None) != 0:
            self._report.unanswered_requests += len(self._pending.add(header.correlation_id, head))
        if (head.api_key, head.api_version) == (ApiKey.SASL_HANDSHAKE, 0):
            self._sasl_tokens = True
            text = "SaslHandshake v0: the frames that follow may be bare SASL tokens"
            self._report.note(f"{found.connection} request: {text}")

    def _response(self, found: CapturedFrame) -> None:
        correlation_id = int.from_bytes(found.raw[:4], "big", signed=True)
        answered = self._pending.answer(correlation_id) if len(found.raw) >= 4 else None
        if answered is None and self._sasl_tokens:
            self._report.sasl_tokens += 1
            return
        found.correlation_id = correlation_id
        if answered is None:
            found.error = "its request was not captured"
            self._report.unmatched_responses += 1
            return
        head, unanswered = answered
        self._report.unanswered_requests += len(unanswered)
        found.header = ResponseHeader(correlation_id=correlation_id)
        api = head.api_key if head.family == "kafka" else RewriteJoinGroupResponse
        self._decode(found, head, lambda strict: decode_response(found.raw, api, head.api_version, strict=strict))

    def _decode(self, found: CapturedFrame, head: RequestHead, decode: Callable[[bool], tuple[Any, Any]]) -> None:
        """Decode what the registry has, strictly, else leniently.

        :param decode: takes whether to be strict, returns header and message
        """
        found.api_key, found.api_version, found.client_id, _ = head
        found.api = api_name(head.api_key)
        if not is_known(head.api_key):
            self._report.unknown_apis += 1
            return
        self._decode_either_way(found, decode)

    @staticmethod
    def _decode_either_way(found: CapturedFrame, decode: Callable[[bool], tuple[Any, Any]]) -> None:
        try:
            found.header, found.message = decode(True)
        except DecodeError as complaint:
            try:
                found.header, found.message = decode(False)
                found.irregularity = str(complaint)
            except DecodeError as error:
                found.error = str(error)
