"""One client of the coordinator: bytes in, requests in their order, answers out, each bounded in bytes and in time.

A `Connection` is what the event loop calls; the server behind it answers. Its laws are those of server.py.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from kcoord_wire.codec.framing import Framer, frame
from kcoord_wire.codec.registry import Buffer, registry
from kcoord_wire.coordinator.core.error_responses import refusal
from kcoord_wire.coordinator.faulted_exchange import FaultedExchange
from kcoord_wire.coordinator.metrics import first_error
from kcoord_wire.coordinator.permissions import Finish
from kcoord_wire.coordinator.security import FAILURE_DELAY_MS, Admission, Session
from kcoord_wire.error_codes import ErrorCode
from kcoord_wire.errors import DecodeError, EncodeError
from kcoord_wire.net import looks_like

if TYPE_CHECKING:
    from kcoord_wire.coordinator.server import Server

__all__ = ["HELD", "Connection", "Form", "PeerLimits", "form_of"]

API_VERSIONS = 18
BLOB_APIS = frozenset({0, 11, 14})
HELD = -1
"""The token of a request that a fault, or a failed authentication, holds back."""
BURST = 64  # requests of one connection before another has its turn
LARGE = 1 << 14  # bytes of an answer that does not wait for the next ones to be written with

_log = logging.getLogger("kcoord_wire.coordinator")
_REQUEST_HEAD = struct.Struct(">hhih")
_RESPONSE_HEAD = struct.Struct(">ii")


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """What a peer may cost.

    :ivar max_connections: more are closed as they come
    :ivar max_frame_size: bytes of a Produce, JoinGroup or SyncGroup, which carry blobs. Less than the 100 MiB of
        Kafka's ``socket.request.max.bytes``: a request is taken in one go while other connections wait
    :ivar max_plain_frame_size: bytes of any other request, which may be a list of two-byte names: each becomes a
        hundred bytes of memory and a microsecond of work
    :ivar max_unauthenticated_frame_size: the same before SASL has ended (``sasl.server.max.receive.size``)
    :ivar read_ahead: bytes taken from the socket behind a request that is in hand
    :ivar write_high_water: bytes of answers that the peer has not read, above which its next request waits
    :ivar max_bytes_held: all of the above over all connections
    :ivar idle_ms: silence after which a connection is closed (``connections.max.idle.ms``)
    :ivar frame_ms: from the first byte of a frame to its last
    :ivar unread_ms: how long a peer may leave its answers unread once they are above the high water
    :ivar unauthenticated_ms: from the connection to the end of SASL
    """

    max_connections: int = 20_000
    max_frame_size: int = 4 << 20
    max_plain_frame_size: int = 1 << 20
    max_unauthenticated_frame_size: int = 512 << 10
    read_ahead: int = 64 << 10
    write_high_water: int = 256 << 10
    max_bytes_held: int = 256 << 20
    idle_ms: int = 600_000
    frame_ms: int = 60_000
    unread_ms: int = 60_000
    unauthenticated_ms: int = 30_000


class Form(NamedTuple):
    """An api at one version: how its requests are read and its responses written."""

    api_key: int
    version: int
    flexible_head: bool
    decode: Callable[[Buffer, int, bool], tuple[Any, int]]
    encode: Callable[[Any], bytes]
    response_tags: bytes  # the header's tagged fields, of which there are none, where it has that section

    def frame(self, correlation_id: int, message: Any) -> bytes:
        """The response frame, size and header included."""
        body = self.response_tags + self.encode(message)
        return _RESPONSE_HEAD.pack(len(body) + 4, correlation_id) + body


def form_of(api_key: int, version: int) -> Form:
    """The form of an api at one of its versions."""
    request, response = registry.request(api_key), registry.response(api_key)
    flexible = request.header_version(version) == 2
    tags = b"\0" if response.header_version(version) == 1 else b""
    encode = response.program(version, reading=False).encode
    return Form(api_key, version, flexible, request.program(version).decode_prefix, encode, tags)


class Connection(asyncio.Protocol):
    """One client. Idle, it holds a few hundred bytes: a framer is there only while bytes wait."""

    __slots__ = (
        "_bodies", "_choked", "_correlation_id", "_framer", "_out", "_paused", "_server", "_transport",
        "active_at", "client_id", "exchange", "finish", "form", "held", "host", "session", "stuck_at", "token",
    )  # fmt: skip

    def __init__(self, server: Server) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._framer: Framer | None = None
        self._bodies: Iterator[bytes] | None = None  # of the framer, while more of them may come
        self._out: list[bytes] | None = None
        self._correlation_id = 0
        self._choked = self._paused = False
        self.form: Form | None = None  # of the request in hand, or the last one
        self.client_id = ""
        self.finish: Finish | None = None  # what permissions make of the answer to the request in hand
        self.exchange: FaultedExchange | None = None  # the request in hand, where faults may meet it
        self.session: Session | None = None
        self.token = 0  # of the request in hand; 0 if there is none
        self.host = ""
        self.held = 0
        self.active_at = 0.0  # monotonic seconds; of the connection itself until it is authenticated
        self.stuck_at: float | None = None  # since when half a frame has waited, or answers have

    # ---- what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's is none by name
        peer = transport.get_extra_info("peername")
        self.host = sys.intern(f"/{peer[0]}" if isinstance(peer, tuple) else "/")
        self.active_at = time.monotonic()
        self._transport = transport
        self._server.opened(self)
        transport.set_write_buffer_limits(self._server.limits.write_high_water)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.lost(self)
        self._transport = self._framer = self._bodies = self._out = None

    def data_received(self, data: bytes) -> None:
        server, session = self._server, self.session
        if self.is_closing:
            return
        server.metrics.received_bytes += len(data)
        if session is None or session.principal is not None:
            self.active_at = time.monotonic()
        if self._framer is None:
            limit = server.frame_limit(session)
            size = int.from_bytes(data[:4], "big")
            if size == len(data) - 4 and size <= limit and not self.token and not self._choked:
                self._take(data, 4)  # the whole of one request: the common case, which needs no framer
                server.settle_soon()
                return
            if size > limit and len(data) >= 4:
                server.refuse(self, f"a frame of {size} bytes{looks_like(data)}")
                return
            self._framer = Framer(limit)
        self._bodies = self._framer.feed(data)
        self.pump()
        server.settle_soon()

    def pause_writing(self) -> None:
        self._choked = True
        self.stuck_at = time.monotonic()
        self._hold()

    def resume_writing(self) -> None:
        self._choked = False
        self._hold()
        self.pump()
        self._server.settle()

    # ---- requests in

    @property
    def is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def pump(self) -> None:
        """Take requests until one is in hand, none is whole, the peer does not read, or others are due."""
        server = self._server
        for _ in range(BURST):
            if self._bodies is None or self.token or self._choked or self.is_closing:
                break
            try:
                body = next(self._bodies, None)
            except DecodeError as error:
                server.refuse(self, error)
                return
            if body is None:
                self._bodies = None
                if self._framer is not None and not self._framer.buffered:
                    self._framer = None
                break
            server.pumping = self
            self._take(body, 0)
            server.pumping = None
        else:
            server.wait_turn(self)
        self._flush()
        self._hold()

    def _take(self, body: bytes, start: int) -> None:
        server, session = self._server, self.session
        try:
            if session is not None and session.raw:
                self._take_raw_token(session, body[start:])
                return
            api_key, version, correlation_id, length = _REQUEST_HEAD.unpack_from(body, start)
            admission = Admission.SERVE if session is None else session.admission(api_key)
            if admission is Admission.CLOSE:
                raise DecodeError("api", start, "RequestHeader", f"api {api_key} before authentication")
            if len(body) > server.limits.max_plain_frame_size and api_key not in BLOB_APIS:
                raise DecodeError("frame", start, "Frame.size", f"{len(body)} bytes of api {api_key}")
            form = server.forms.get(api_key << 16 | version) or server.form(api_key, version)
            if form is not None:
                client_id, at = _read_client_id(body, start, length, form.flexible_head)
                message, _ = form.decode(body, at, False)
            elif api_key == API_VERSIONS:  # answered whatever stands in it (KIP-511)
                form, message, client_id = server.api_versions_fallback, None, ""
            else:
                raise DecodeError("version", start, "RequestHeader", f"api {api_key} has no version {version} here")
            self._correlation_id, self.form, self.client_id = correlation_id, form, client_id
            if admission is Admission.REFUSE:
                self.answer(refusal(message, version, ErrorCode.ILLEGAL_SASL_STATE))
                self.close()
            else:
                server.ask(self, form, message, client_id)
        except (struct.error, DecodeError) as error:
            server.refuse(self, error)
        except Exception as error:  # a fault of ours: it costs this client its connection, and no other
            _log.exception("a request of %s has failed", self.host)
            server.refuse(self, error)

    def _take_raw_token(self, session: Session, token: bytes) -> None:
        answer = session.raw_token(token)
        if answer is not None and self._transport is not None:
            self._transport.write(frame(answer))
        self.end_authentication(session)

    def end_authentication(self, session: Session) -> None:
        """Go on with the limits of one who is known, or end, a little later for those who try passwords."""
        if session.failed:
            self.token = HELD
            self._server.metrics.closed["authentication failed"] += 1
            self._server.later(FAILURE_DELAY_MS, self, self.close)
        elif session.principal is not None and self._framer is not None:
            rest, self._framer = self._framer.rest, Framer(self._server.limits.max_frame_size)
            self._bodies = self._framer.feed(rest)

    # ---- answers out

    def answer(self, message: Any, copies: int = 1) -> None:
        """The request in hand is answered; None answers nothing, as Produce with acks=0 asks for."""
        self.token = 0
        transport, form = self._transport, self.form
        if transport is None or form is None:
            return
        if message is not None:
            try:
                data = form.frame(self._correlation_id, message) * copies
            except EncodeError:
                _log.exception("an answer cannot be written")
                self.abort()
                return
            metrics = self._server.metrics
            metrics.sent_bytes += len(data)
            metrics.count_request(form.api_key, first_error(message), time.monotonic() - self.active_at)
            if self._bodies is None:
                transport.write(data)
            else:
                if self._out is None:
                    self._out = []
                self._out.append(data)
                if len(data) > LARGE:
                    self._flush()
        if self._bodies is not None and self._server.pumping is not self:
            self._server.ready.append(self)

    def _flush(self) -> None:
        if self._out is not None:
            out, self._out = self._out, None
            if self._transport is not None:
                self._transport.write(b"".join(out))

    def close(self) -> None:
        """Close once what has been answered is written; `abort` where the peer does not read it."""
        if self._transport is not None:
            self._flush()
            self.stuck_at = time.monotonic()
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    # ---- bounds

    def overdue(self, limits: PeerLimits) -> str | None:
        """Why it is to be closed, if it is."""
        now = time.monotonic()
        idle_ms = (now - self.active_at) * 1000
        stuck_ms = 0.0 if self.stuck_at is None else (now - self.stuck_at) * 1000
        if self.session is not None and self.session.principal is None:
            return "unauthenticated" if idle_ms > limits.unauthenticated_ms else None
        if self._choked or self.is_closing:
            return "unread answers" if stuck_ms > limits.unread_ms else None
        if stuck_ms > limits.frame_ms:
            return "half a frame"
        return "idle" if not self.token and idle_ms > limits.idle_ms else None

    def _hold(self) -> None:
        """Account for the bytes held, and let the socket wait while more are there than may be."""
        transport, server = self._transport, self._server
        if transport is None or transport.is_closing():
            return
        waiting = 0 if self._framer is None else self._framer.buffered
        pause = waiting > server.limits.read_ahead and self._bodies is not None  # else it is one frame, to be read on
        if pause != self._paused:
            self._paused = pause
            if pause:
                transport.pause_reading()
            else:
                transport.resume_reading()
        half_frame = waiting and not self.token
        if not (half_frame or self._choked):
            self.stuck_at = None
        elif self.stuck_at is None:
            self.stuck_at = time.monotonic()
        server.hold(self, waiting + (transport.get_write_buffer_size() if self._choked else 0))


def _read_client_id(body: bytes, start: int, length: int, flexible: bool) -> tuple[str, int]:
    """The client id, empty for null, and where the message begins."""
    at = start + 10 + max(length, 0)
    if length >= -1 and (not flexible or body[at : at + 1] == b"\0"):
        try:
            return body[start + 10 : at].decode(), at + flexible
        except UnicodeDecodeError:
            pass  # said with its place below
    header, at = registry["RequestHeader"].decode_prefix(body, 2 if flexible else 1, offset=start, strict=False)
    return header.client_id or "", at
