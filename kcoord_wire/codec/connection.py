"""One side of a Kafka connection, without IO: bytes in, requests and responses out, each response with its request.

Laws:

* No I/O, no clock, no thread. `Connection.receive_data` takes bytes and returns events, in the order of the frames; how
  the bytes are cut into chunks makes no difference to them. `send` and `respond` return bytes to write, in the order of
  the calls.
* A broker answers the requests of a connection in their order (Kafka's protocol guide, "Network"). So the next response
  belongs to the oldest pending request; another correlation id ends the connection. A server may answer in any order:
  what is early waits for what is due.
* No frame is lost. One that does not decode (an unknown api or version, a damaged message) is an event with its bytes
  and the error, is matched like any other, and the connection goes on. A size that cannot be one ends it.
* Whatever bytes come, the iterator of events raises nothing but `DecodeError` and `ProtocolError`, after the events of
  all frames before. Both end the connection (`Connection.failure`).
* Memory is bounded: a frame by `max_frame_size`, unanswered requests by `max_pending`. A client sends no more; a server
  takes no more (`Connection.paused`) and leaves the rest in the framer.

Sources: the protocol guide (size, headers, order), KIP-35 and KIP-511 (ApiVersions), KIP-43 (bare SASL tokens).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import EllipsisType
from typing import Any, Final, Literal

from kcoord_wire.codec.framing import DEFAULT_MAX_FRAME_SIZE, Framer, frame
from kcoord_wire.codec.pending import PendingRequests
from kcoord_wire.codec.registry import MessageCodec, Registry, peek_request, peek_response, registry
from kcoord_wire.errors import DecodeError, ProtocolError, WireError
from kcoord_wire.messages.request_header import RequestHeader
from kcoord_wire.messages.response_header import ResponseHeader
from kcoord_wire.protocol.api_keys import ApiKey, api_name
from kcoord_wire.protocol.error_codes import ErrorCode

MAX_PENDING: Final = 1024
"""Unanswered requests of a connection, unless it is made with another limit."""

_LARGEST_ID: Final = 0x7FFFFFFF
_HEAD: Final = struct.Struct(">hhi")  # of a request: api key, version, correlation id
_CLIENT_ID: Final = struct.Struct(">h")  # its length, which follows
_ID: Final = struct.Struct(">i")
_REQUEST_HEADER: Final = registry["RequestHeader"]
_NAMELESS: Final = (int(ApiKey.CONTROLLED_SHUTDOWN), 0)  # the only request without a client id
_PRODUCE: Final = int(ApiKey.PRODUCE)
_API_VERSIONS: Final = int(ApiKey.API_VERSIONS)


@dataclass(slots=True, eq=False)
class Request:
    """A request: on a server's side one that has come, on a client's one that was sent (`Response.request`).

    :ivar header: as it came; where it is damaged, what could be read of it
    :ivar message: None where it was not decoded
    :ivar body: the frame without its size; empty on a client's side
    :ivar error: why the message was not decoded; None also where `Connection` was not to decode that api
    :ivar is_answered: whether Kafka answers it: a Produce with acks=0 has no response
    :ivar context: whatever the caller of `Connection.send` wants to find in the response's event
    """

    header: RequestHeader
    message: Any = None
    body: bytes = field(default=b"", repr=False)
    error: DecodeError | None = None
    is_answered: bool = True
    context: Any = None

    @property
    def api_key(self) -> int:
        return self.header.request_api_key

    @property
    def version(self) -> int:
        return self.header.request_api_version

    def __str__(self) -> str:
        return f"{api_name(self.api_key)} v{self.version}"


@dataclass(slots=True, eq=False)
class Response:
    """The response to `request`.

    :ivar header: as it came; its correlation id alone where it was not decoded
    :ivar message: None where it was not decoded
    :ivar body: the frame without its size
    :ivar error: as in `Request`
    """

    header: ResponseHeader
    message: Any
    request: Request
    body: bytes = field(repr=False)
    error: DecodeError | None = None


@dataclass(slots=True, eq=False)
class Opaque:
    """A frame that is neither a request nor a response, and changes nothing.

    :ivar error: why it cannot be read; None for a SASL token without a header (`Connection.expects_tokens`)
    """

    body: bytes
    error: DecodeError | None = None


@dataclass(slots=True)
class Closed:
    """The peer has ended its stream, between two frames. `Connection.pending` has what is unanswered."""


Event = Request | Response | Opaque | Closed


class Connection:
    """One side of a connection.

    :param role: ``client`` sends requests, ``server`` responds
    :param client_id: of the requests that are sent; null if None
    :param max_frame_size: as for `Framer`
    :param max_pending: unanswered requests at a time
    :param decode: the apis whose messages are decoded, by the request's class or api key; None for all. Produce and
        ApiVersions always are: what follows on the connection depends on them
    :param serves: the versions of each api that a server has; a request for another one comes with an error. None for
        what the registry has
    :param strict: see `MessageCodec.decode`
    :param correlation_id: of the first request; the next ones count up, and from 2^31 - 1 go on at 0
    :ivar versions: what the broker has announced in an ApiVersions response, by api key; None before
    :ivar expects_tokens: set it while the peer sends SASL tokens without a header (after SaslHandshake v0, KIP-43):
        each frame is then an `Opaque`. `frame` makes one's own
    :ivar failure: the error that has ended the connection; None while it goes on, and after an orderly end
    """

    def __init__(
        self,
        role: Literal["client", "server"],
        *,
        client_id: str | None = None,
        max_frame_size: int = DEFAULT_MAX_FRAME_SIZE,
        max_pending: int = MAX_PENDING,
        decode: Collection[type | int] | None = None,
        serves: Mapping[int, range] | None = None,
        strict: bool = True,
        correlation_id: int = 1,
        registry: Registry = registry,
    ) -> None:
        if role not in ("client", "server"):
            raise ValueError(f"a connection's role is client or server, not {role!r}")
        if max_pending < 1:
            raise ValueError(f"max_pending must be positive, not {max_pending}")
        self._is_client = role == "client"
        self._client_id = client_id
        self._framer = Framer(max_frame_size)
        self._max_pending = max_pending
        self._registry = registry
        self._decoded = None if decode is None else {_PRODUCE, _API_VERSIONS, *map(self._api_key, decode)}
        self._serves = serves
        self._strict = strict
        self._next_id = correlation_id
        self._frames = registry.frames
        self._sent: PendingRequests[Request] = PendingRequests(max_pending)
        self._received: deque[Request] = deque()  # not answered yet, or an older one is not
        self._early: dict[int, bytes] = {}  # responses that wait for older ones, by the id() of requests in `_received`
        self._is_over = False  # the peer sends nothing more
        self._has_closed = False  # and that event is out
        self.versions: dict[int, range] | None = None
        self.expects_tokens = False
        self.failure: WireError | None = None

    def __repr__(self) -> str:
        state = f"failed: {self.failure}" if self.failure else "closed" if self._is_over else "open"
        return f"<Connection {'client' if self._is_client else 'server'}, {state}, {len(self.pending)} pending>"

    # ---- state

    @property
    def closed(self) -> bool:
        """Whether nothing more can come: the peer has ended its stream, or `failure` says why."""
        return self._is_over or self.failure is not None

    @property
    def pending(self) -> tuple[Request, ...]:
        """The unanswered requests, oldest first: a client's without a response, a server's that it has to answer."""
        if self._is_client:
            return tuple(self._sent)
        return tuple(request for request in self._received if id(request) not in self._early)

    @property
    def paused(self) -> bool:
        """Whether a server has as many unanswered requests as it may have: read no more, and call `events` after
        `respond`."""
        return not self._is_client and len(self._received) >= self._max_pending

    @property
    def rest(self) -> bytes:
        """A copy of the bytes received that are in no event."""
        return self._framer.rest

    def version_of(self, api: type | int, newest: int | None = None) -> int:
        """The highest version of an api that this package and the broker have in common.

        :param api: the request's class, or its api key
        :param newest: no version above this one
        :raises ProtocolError: kind ``version`` if there is none, or `versions` is not known; of ApiVersions itself the
            newest is returned then, which a broker that lacks it answers with what it has (KIP-511)
        """
        codec = self._registry.request(api) if isinstance(api, int) else self._request_codec(api)
        key, ours = codec.api_key or 0, codec.valid_versions
        theirs = ours if self.versions is None and key == _API_VERSIONS else (self.versions or {}).get(key, range(0))
        last = min(ours.stop, theirs.stop, ours.stop if newest is None else newest + 1) - 1
        if last < max(ours.start, theirs.start):
            if self.versions is None:
                detail = "the broker's versions are not known yet: send an ApiVersionsRequest first, or say which"
                raise ProtocolError("version", f"{detail} of {api_name(key)}")
            has = f"versions {theirs.start} to {theirs.stop - 1}" if theirs else "no version"
            detail = f"the broker has announced {has} of {api_name(key)}, we have {ours.start} to {ours.stop - 1}"
            raise ProtocolError("version", detail)
        return last

    # ---- bytes in

    def receive_data(self, data: bytes | bytearray | memoryview) -> Iterator[Event]:
        """Take in the peer's next bytes, none for the end of its stream, and return `events`.

        :raises ProtocolError: kind ``closed`` if it has ended before
        """
        self._refuse_if_closed("come")
        if not data:
            self._is_over = True
        return self._events(self._framer.feed(data))

    def events(self) -> Iterator[Event]:
        """Return an iterator over the events of the bytes received; those that are not taken come first in the next.

        :raises DecodeError: by the iterator: kind ``frame`` at a size that cannot be one, ``truncated`` where the
            stream ends within a frame
        :raises ProtocolError: by the iterator: kind ``correlation`` at a response that is not due
        """
        return self._events(iter(()) if self.failure or self._has_closed else self._framer.feed(b""))

    def _events(self, bodies: Iterator[bytes]) -> Iterator[Event]:
        take = self._take_response if self._is_client else self._take_request
        try:
            while not (self.paused or self.failure) and (body := next(bodies, None)) is not None:
                yield Opaque(body) if self.expects_tokens else take(body)
            if self._is_over and not (self.paused or self._has_closed or self.failure):
                self._has_closed = True
                self._framer.close()
                yield Closed()
        except WireError as error:
            self.failure = error
            raise

    def _take_request(self, body: bytes) -> Request | Opaque:
        try:
            request = self._read_request(body)
        except DecodeError as error:
            if len(body) < _HEAD.size:
                return Opaque(body, error)
            request = Request(self._peeked(body), None, body, error)
            request.is_answered = self._is_raw_answered(request.api_key, body)
        if request.is_answered:
            self._received.append(request)
        return request

    def _read_request(self, body: bytes) -> Request:
        if self._serves is not None or self._decoded is not None:
            header = peek_request(body, strict=self._strict)
            api_key, version = header.request_api_key, header.request_api_version
            if self._serves is not None and version not in self._serves.get(api_key, ()):
                raise DecodeError("version", 2, "RequestHeader", f"{api_name(api_key)} v{version} is not served")
            if self._decoded is not None and api_key not in self._decoded:
                return Request(header, None, body)
        header, message = self._frames.decode_request(body, strict=self._strict)
        return Request(header, message, body, is_answered=_is_answered(header.request_api_key, message))

    def _peeked(self, body: bytes) -> RequestHeader:
        """What can be read of a header."""
        with suppress(DecodeError):
            return peek_request(body, strict=self._strict)
        api_key, version, correlation_id = _HEAD.unpack_from(body)
        return _header(api_key, version, correlation_id, None)

    def _take_response(self, body: bytes) -> Response | Opaque:
        if len(body) < _ID.size:
            error = f"{_ID.size} bytes are needed, {len(body)} are left"
            return Opaque(body, DecodeError("truncated", 0, "ResponseHeader.correlation_id", error))
        due, (found,) = self._sent.first, _ID.unpack_from(body)
        answered = self._sent.answer(found) if found == due else None
        if answered is None:
            oldest = "no request is pending" if due is None else f"{due} is next, of {next(iter(self._sent))}"
            detail = f"a response has correlation id {found}, {oldest}"
            raise ProtocolError("correlation", detail, expected=due, found=found, body=body)
        return self._read_response(answered[0], body)

    def _read_response(self, request: Request, body: bytes) -> Response:
        api_key = request.header.request_api_key
        error = None
        if self._decoded is None or api_key in self._decoded:
            version = request.header.request_api_version
            try:
                header, message = self._frames.decode_response(body, api_key, version, strict=self._strict)
                if api_key == _API_VERSIONS:
                    self._learn(message)
                return Response(header, message, request, body)
            except DecodeError as caught:
                error = caught
        return Response(peek_response(body), None, request, body, error)

    def _learn(self, answer: Any) -> None:
        announced = _announced(answer)
        error_code = getattr(answer, "error_code", None)
        if announced is None:
            return
        if error_code == 0:
            self.versions = announced
        elif error_code == ErrorCode.UNSUPPORTED_VERSION:
            # Brokers before Kafka 2.4 do not say which versions of ApiVersions they have; all have 0.
            self.versions = {_API_VERSIONS: announced.get(_API_VERSIONS, range(1))}

    # ---- a client's bytes out

    def send(
        self,
        message: Any,
        version: int | None = None,
        *,
        client_id: str | EllipsisType | None = ...,
        context: Any = None,
    ) -> bytes:
        """Return the frame of a request, with the next correlation id.

        The first request is usually an ApiVersionsRequest. Where the response has error 35, send it again: `versions`
        then has those of ApiVersions that the broker offers, and the version sent is the highest of them (KIP-511).

        :param version: `version_of` if None
        :param client_id: instead of that of the connection
        :param context: kept for `Request.context`
        :raises ProtocolError: ``version``: see `version_of`; ``pending``: too many requests are; ``closed``
        :raises EncodeError: the message cannot be written in that version
        :raises TypeError: it is not a request of the registry
        """
        self._check_role("client")
        codec = self._request_codec(type(message))
        if version is None:
            version = self.version_of(type(message))
        name = self._client_id if client_id is ... else client_id
        sent = Request(_header(codec.api_key or 0, version, self._next_id, name), message, context=context)
        sent.is_answered = _is_answered(sent.header.request_api_key, message)
        body = self._frames.encode_request(message, version, header=sent.header)
        return self._sending(sent, frame(body))

    def send_raw(self, body: bytes, *, client_id: str | EllipsisType | None = ..., context: Any = None) -> bytes:
        """Return the frame of a request that is there in bytes, of any api, with the next correlation id put into it.

        :param body: header and message, as `Request.body`
        :param client_id: put into the header; its own stays there if left out
        :raises DecodeError: the header is damaged
        :raises EncodeError: kind ``length`` if the client id is too long
        :raises ProtocolError: as `send`
        """
        self._check_role("client")
        sent = Request(peek_request(body, strict=False), context=context)
        sent.is_answered = self._is_raw_answered(sent.api_key, body)
        sent.header.correlation_id = self._next_id
        head, end = body[:4] + _ID.pack(self._next_id), _HEAD.size
        if client_id is not ... and (sent.api_key, sent.version) != _NAMELESS:
            sent.header.client_id = client_id
            head, end = _REQUEST_HEADER.encode(sent.header, 1), _end_of_client_id(body)
        return self._sending(sent, frame(head + body[end:]))

    def _sending(self, sent: Request, data: bytes) -> bytes:
        self._refuse_if_closed("be sent")
        if sent.is_answered:
            if len(self._sent) >= self._max_pending:
                raise ProtocolError("pending", f"{self._max_pending} requests wait for their responses")
            self._sent.add(sent.header.correlation_id, sent)
        self._next_id = 0 if self._next_id >= _LARGEST_ID else self._next_id + 1
        return data

    # ---- a server's bytes out

    def respond(self, request: Request, message: Any) -> bytes:
        """Return the bytes to write for a response: none while an older request is unanswered, otherwise its frame and
        those of the responses that have waited for it.

        An ApiVersions whose version is not served is answered in version 0, which every client reads; with error 35 it
        is what KIP-511 asks for.

        :param request: as it came from `events`
        :param message: None sends no response, and later ones do not wait for it
        :raises EncodeError: the message cannot be written in the request's version
        :raises TypeError: it is not the response to such a request
        :raises ProtocolError: ``order``: the request is not one of `pending`; ``closed``: the connection has failed
        """
        if message is None:
            return self._answer(request, b"")
        codec = self._registry.by_class(type(message))
        if codec.type != "response" or codec.api_key != request.api_key:
            raise TypeError(f"{codec.name} is not the response to {request}")
        version = request.version
        if request.api_key == _API_VERSIONS and request.error is not None and request.error.kind == "version":
            version = 0
        correlation_id = request.header.correlation_id
        body = self._frames.encode_response(message, version, correlation_id=correlation_id)
        return self._answer(request, frame(body))

    def respond_raw(self, request: Request, body: bytes) -> bytes:
        """Return the bytes to write for a response that is there in bytes, as `Response.body`; see `respond`.

        :param body: header and message in the request's version; the correlation id is replaced
        """
        return self._answer(request, frame(_ID.pack(request.header.correlation_id) + body[_ID.size :]))

    def _answer(self, request: Request, data: bytes) -> bytes:
        self._check_role("server")
        if self.failure is not None:
            raise ProtocolError("closed", f"nothing can be answered any more: {self.failure}")
        received, early = self._received, self._early
        if not received or received[0] is not request:
            if id(request) in early or not any(each is request for each in received):
                raise ProtocolError("order", f"{request} is not one of the unanswered requests")
            early[id(request)] = data
            return b""
        received.popleft()
        if not early:
            return data
        due = [data]
        while received and (next_due := early.pop(id(received[0]), None)) is not None:
            due.append(next_due)
            received.popleft()
        return b"".join(due)

    # ----

    def _refuse_if_closed(self, what: str) -> None:
        if self.closed:
            raise ProtocolError(
                "closed", f"nothing can {what} any more: {self.failure or 'the peer has ended its stream'}"
            )

    def _check_role(self, role: Literal["client", "server"]) -> None:
        if self._is_client != (role == "client"):
            raise TypeError(f"only a {role} does this")

    def _is_raw_answered(self, api_key: int, body: bytes) -> bool:
        """Whether a request that is not decoded is answered; a Produce that cannot be read is taken for one that is."""
        if api_key == _PRODUCE:
            with suppress(DecodeError):
                return _is_answered(_PRODUCE, self._frames.decode_request(body, strict=False)[1])
        return True

    def _api_key(self, api: type | int) -> int:
        return api if isinstance(api, int) else self._request_codec(api).api_key or 0

    def _request_codec(self, cls: type) -> MessageCodec:
        codec = self._registry.by_class(cls)
        if codec.type != "request" or codec.family != "kafka":
            raise TypeError(f"{codec.name} is not a request of family kafka")
        return codec


def _announced(answer: Any) -> dict[int, range] | None:
    """The versions that an answer to ApiVersions has by api key; None where it has none.

    A registry of one's own may have another message with that api key, or this one with other fields; Kafka's files
    call the key `Index` up to 2.3.
    """
    rows = getattr(answer, "api_keys", None)
    if not isinstance(rows, list):
        return None
    announced = {}
    for row in rows:
        key = getattr(row, "api_key", getattr(row, "index", None))
        low, high = getattr(row, "min_version", None), getattr(row, "max_version", None)
        if not (isinstance(key, int) and isinstance(low, int) and isinstance(high, int)):
            return None
        announced[key] = range(low, high + 1)
    return announced


def _header(api_key: int, version: int, correlation_id: int, client_id: str | None) -> RequestHeader:
    return RequestHeader(
        request_api_key=api_key, request_api_version=version, correlation_id=correlation_id, client_id=client_id
    )


def _is_answered(api_key: int, message: Any) -> bool:
    # A registry of one's own may have another message with that api key.
    return api_key != _PRODUCE or bool(getattr(message, "acks", None) != 0)


def _end_of_client_id(body: bytes) -> int:
    """Where a client id ends that `peek_request` could read."""
    length: int = _CLIENT_ID.unpack_from(body, _HEAD.size)[0]
    return _HEAD.size + _CLIENT_ID.size + max(0, length)
