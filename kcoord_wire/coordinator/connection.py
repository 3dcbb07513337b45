"""One client of the coordinator: bytes in, requests in their order, answers out, each bounded in bytes and in time.

The event loop calls a `Connection`. It cuts the bytes into requests for a `RequestHandler` (requests.py), says what it
holds to a `ConnectionOwner` (listener.py), and lets a `Scheduler` say when to go on.

Laws:

* One request of a connection is in hand at a time; the next frame is looked at when the one before has been answered,
  or dropped by a fault. So answers come in the order of the requests, and a parked JoinGroup holds up its own
  connection and no other.
* Every byte held for a peer is bounded: frames by `PeerLimits.max_frame_size` (a larger Produce is kept without the
  batches that do not fit, oversized.py), what waits behind a request by
  `PeerLimits.read_ahead` (the socket is not read beyond it), unread answers by `PeerLimits.write_high_water` (the next
  request waits).
* Bytes that are not a request close their connection, as Kafka's broker does. No exception leaves a callback.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, cast

from kcoord_wire.coordinator.api_codec import ApiCodec
from kcoord_wire.coordinator.core.apis import Finish
from kcoord_wire.coordinator.fault_injection import FaultedExchange
from kcoord_wire.coordinator.metrics import Metrics, first_error
from kcoord_wire.coordinator.oversized import OversizedError, OversizedProduce, RequestFramer
from kcoord_wire.coordinator.scheduler import Scheduler
from kcoord_wire.coordinator.security.authentication import Session
from kcoord_wire.errors import DecodeError, EncodeError
from kcoord_wire.kernel.net import guess_protocol
from kcoord_wire.messages.heartbeat import HeartbeatRequest

HELD: Final = -1
"""The token of a request that a fault, or a failed authentication, holds back."""
BURST: Final = 64  # requests of one connection that are handled before another connection is
LARGE: Final = 1 << 14  # bytes of an answer that is written at once, instead of together with the next ones

_SIZE_BYTES: Final = 4  # of a frame's size

_log = logging.getLogger("kcoord_wire.coordinator")


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """What one client may cost the coordinator, in bytes and milliseconds; and all clients together.

    :ivar max_connections: more are closed as they come
    :ivar max_frame_size: bytes of a Produce, JoinGroup or SyncGroup, which carry blobs. Less than the 100 MiB of
        Kafka's ``socket.request.max.bytes``, because other connections wait while a request is read
    :ivar max_batch_bytes: bytes of the batches that are kept of a larger Produce; its other batches are refused
    :ivar max_skipped_frame_size: bytes of a Produce that is answered at all; a larger one closes the connection
        (``socket.request.max.bytes``)
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
    max_batch_bytes: int = 16 << 20
    max_skipped_frame_size: int = 100 << 20
    max_plain_frame_size: int = 1 << 20
    max_unauthenticated_frame_size: int = 512 << 10
    read_ahead: int = 64 << 10
    write_high_water: int = 256 << 10
    max_bytes_held: int = 256 << 20
    idle_ms: int = 600_000
    frame_ms: int = 60_000
    unread_ms: int = 60_000
    unauthenticated_ms: int = 30_000


class ConnectionOwner(Protocol):
    """What a connection needs of the listener that has accepted it."""

    limits: PeerLimits
    metrics: Metrics
    broker: int

    def opened(self, connection: Connection, /) -> None:
        """Count a connection whose client has connected; it may be closed at once."""

    def lost(self, connection: Connection, /) -> None:
        """Forget a connection that has ended."""

    def refuse(self, connection: Connection, error: object, /) -> None:
        """Close a connection whose client has sent something that is not a request."""

    def hold(self, connection: Connection, held: int, /) -> None:
        """Account for the bytes that a connection holds."""


class RequestHandler(Protocol):
    """Answers the requests of connections, by `Connection.answer`."""

    def receive(self, connection: Connection, body: bytes, start: int, /) -> None:
        """Handle a request, whose header begins at `start` in `body`.

        :raises DecodeError: these bytes are not a request
        :raises struct.error: there are fewer of them than a header has
        """

    def forget(self, connection: Connection, /) -> None:
        """The connection has ended: its request goes on, the response is discarded."""


class CachedHeartbeat(NamedTuple):
    """A Heartbeat, to be recognised when it comes again: a member sends the same one until the next rebalance.

    :ivar head: the request's api key and version; the correlation id, which differs, follows
    :ivar rest: the request from the client id on
    :ivar message: what it says
    :ivar before: what the answer without an error has before the correlation id
    :ivar after: what it has after it
    """

    head: bytes
    rest: bytes
    message: HeartbeatRequest
    before: bytes
    after: bytes


class Connection(asyncio.Protocol):
    """One client. Idle, it holds a few hundred bytes: a framer exists only while bytes wait.

    :ivar beat: the last Heartbeat that was read; None before
    :ivar broker: the one that it leads to
    :ivar codec: of the request in hand, or of the last one
    :ivar correlation_id: of the same request
    :ivar client_id: of the same request
    :ivar exchange: the request in hand, where faults may meet it
    :ivar finish: makes the whole answer of what the machine answers, where permissions have taken something away
    :ivar session: None where there is no SASL
    :ivar token: names the request in hand; 0 if there is none
    :ivar host: the peer's address, as Kafka writes it: ``/127.0.0.1``
    :ivar held: bytes that `ConnectionOwner.hold` has counted
    :ivar active_at: monotonic seconds of the last bytes; of the connection itself until it is authenticated
    :ivar stuck_at: monotonic seconds since which half a frame has waited, or answers have; None if neither does
    """

    __slots__ = (
        "_bodies", "_choked", "_framer", "_out", "_oversized", "_owner", "_paused", "_pumping", "_requests",
        "_scheduler", "_transport", "active_at", "beat", "broker", "client_id", "codec", "correlation_id", "exchange",
        "finish", "held", "host", "session", "stuck_at", "token",
    )  # fmt: skip

    def __init__(self, owner: ConnectionOwner, requests: RequestHandler, scheduler: Scheduler) -> None:
        self._owner = owner
        self.broker = owner.broker
        self._requests = requests
        self._scheduler = scheduler
        self._transport: asyncio.Transport | None = None
        self._framer: RequestFramer | None = None
        self._oversized: OversizedProduce | None = None
        self._bodies: Iterator[bytes] | None = None  # of the framer, while more of them may come
        self._out: list[bytes] | None = None
        self._choked = self._paused = self._pumping = False
        self.beat: CachedHeartbeat | None = None
        self.codec: ApiCodec | None = None
        self.correlation_id = 0
        self.client_id = ""
        self.exchange: FaultedExchange | None = None
        self.finish: Finish | None = None
        self.session: Session | None = None
        self.token = 0
        self.host = ""
        self.held = 0
        self.active_at = 0.0
        self.stuck_at: float | None = None

    # ---- what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's does not derive from it
        peer = transport.get_extra_info("peername")
        self.host = sys.intern(f"/{peer[0]}" if isinstance(peer, tuple) else "/")
        self.active_at = time.monotonic()
        transport.set_write_buffer_limits(self._owner.limits.write_high_water)
        self._transport = transport
        self._owner.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._requests.forget(self)
        self._owner.lost(self)
        self._transport = self._framer = self._oversized = self._bodies = self._out = self.beat = None

    def data_received(self, data: bytes) -> None:
        owner, session, transport = self._owner, self.session, self._transport
        if transport is None or transport.is_closing():
            return
        owner.metrics.received_bytes += len(data)
        limit = owner.limits.max_unauthenticated_frame_size
        if session is None or session.principal is not None:
            limit = owner.limits.max_frame_size
            self.active_at = time.monotonic()
        if self._framer is None:
            size = int.from_bytes(data[:_SIZE_BYTES], "big")
            if size == len(data) - _SIZE_BYTES and size <= limit and not self.token and not self._choked:
                self._take(data, _SIZE_BYTES)  # the whole of one request: the common case, which needs no framer
                self._scheduler.settle_soon()
                return
            self._framer = self._new_framer()
            if len(data) >= _SIZE_BYTES and not self._framer.may_read(size):
                owner.refuse(self, f"a frame of {size} bytes{guess_protocol(data)}")
                return
        if self._oversized is None:
            self._bodies = self._framer.feed(data)
            self.pump()
        else:
            self._skim(self._oversized, data)
        self._scheduler.settle_soon()

    def pause_writing(self) -> None:
        self._choked = True
        self.stuck_at = time.monotonic()
        self._hold()

    def resume_writing(self) -> None:
        if isinstance(self._transport, _Paused):
            self._transport.was_choked = False
            return
        self._choked = False
        self._hold()
        self.pump()
        self._scheduler.settle()

    # ---- requests in

    @property
    def is_closing(self) -> bool:
        """Whether nothing more can be answered."""
        return self._transport is None or self._transport.is_closing()

    def pump(self) -> None:
        """Take requests until one is in hand, none is whole, the peer does not read, or others are due."""
        for _ in range(BURST):
            if self._bodies is None or self.token or self._choked or self.is_closing:
                break
            try:
                body = next(self._bodies, None)
            except DecodeError as error:
                self._owner.refuse(self, error)
                return
            except OversizedError as error:
                self._begin_oversized(error.size)
                return
            if body is None:
                self._bodies = None
                if self._framer is not None and not self._framer.buffered:
                    self._framer = None
                break
            self._pumping = True
            self._take(body, 0)
            self._pumping = False
        else:
            self._scheduler.wait_for_others(self)
        self._flush()
        self._hold()

    def _begin_oversized(self, size: int) -> None:
        assert self._framer is not None
        rest, self._framer, self._bodies = self._framer.rest, self._new_framer(), None
        self._oversized = OversizedProduce(size, self._owner.limits.max_batch_bytes)
        self._skim(self._oversized, rest[_SIZE_BYTES:])

    def _skim(self, oversized: OversizedProduce, data: bytes) -> None:
        """Take bytes of a Produce beyond the limit; at its end hand over what is kept of it, and go on."""
        try:
            rest = oversized.feed(data)
        except DecodeError as error:
            self._oversized = None
            self._owner.refuse(self, error)
            return
        if oversized.is_whole and self._framer is not None:
            self._oversized = None
            self._bodies = self._framer.feed(rest)
            self._take(bytes(oversized.body), 0)
            self.pump()
        else:
            self._flush()
            self._hold()

    def _take(self, body: bytes, start: int) -> None:
        try:
            self._requests.receive(self, body, start)
        except (struct.error, DecodeError) as error:
            self._owner.refuse(self, error)
        except Exception as error:  # a fault of the coordinator costs this client its connection, and no other
            _log.exception("a request of %s has failed", self.host)
            self._owner.refuse(self, error)

    def raise_frame_limit(self) -> None:
        """Apply the limits for an authenticated peer to what has been received."""
        if self._framer is not None:
            rest, self._framer = self._framer.rest, self._new_framer()
            self._bodies = self._framer.feed(rest)

    def _new_framer(self) -> RequestFramer:
        limits = self._owner.limits
        if self.session is not None and self.session.principal is None:
            return RequestFramer(limits.max_unauthenticated_frame_size)
        return RequestFramer(limits.max_frame_size, limits.max_skipped_frame_size)

    # ---- answers out

    def answer(self, message: Any, copies: int = 1) -> None:
        """Answer the request in hand; None answers nothing, as Produce with acks=0 asks for."""
        self.token = 0
        transport, codec = self._transport, self.codec
        if transport is None or codec is None:
            return
        if message is not None:
            try:
                data = codec.frame(self.correlation_id, message) * copies
            except EncodeError:
                _log.exception("an answer cannot be written")
                self.abort()
                return
            self.write(data, codec.api_key, first_error(message))
        if self._bodies is not None and not self._pumping:
            self._scheduler.ready.append(self)

    def write(self, data: bytes, api_key: int, error_code: int) -> None:
        """Write the frame of an answer, and count it."""
        metrics = self._owner.metrics
        metrics.sent_bytes += len(data)
        metrics.count_request(api_key, error_code, time.monotonic() - self.active_at)
        if self._bodies is None:
            if self._transport is not None:
                self._transport.write(data)
        else:
            if self._out is None:
                self._out = []
            self._out.append(data)
            if len(data) > LARGE:
                self._flush()

    def send_bare(self, token: bytes) -> None:
        """Write bytes that are not the answer to a request: a SASL token (KIP-43), framed."""
        if self._transport is not None:
            self._transport.write(token)

    def _flush(self) -> None:
        if self._out is not None:
            out, self._out = self._out, None
            if self._transport is not None:
                self._transport.write(b"".join(out))

    def later(self, delay_ms: int, step: Callable[[], None]) -> None:
        """Take `step` after a delay, if the client is still connected; until then its next request waits."""
        self.token = HELD

        def go_on() -> None:
            if not self.is_closing:
                step()
                self.pump()
                self._scheduler.settle()

        asyncio.get_running_loop().call_later(delay_ms / 1000, go_on)

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

    # ---- a paused broker

    def pause(self) -> None:
        """Take no more requests, and let answers wait, until `resume`."""
        transport = self._transport
        if transport is not None and not isinstance(transport, _Paused):
            transport.pause_reading()
            self._transport = _Paused(transport, self._paused, self._choked)
            self._choked = True

    def resume(self) -> None:
        """Send the answers that have waited, and take requests again."""
        paused = self._transport
        if isinstance(paused, _Paused):
            self._transport, self._choked = paused.transport, paused.was_choked
            if not paused.stays_unread:
                paused.transport.resume_reading()
            if paused.written:
                paused.transport.write(bytes(paused.written))
            self.active_at = time.monotonic()
            self.stuck_at = None
            self.pump()
            self._scheduler.settle_soon()

    # ---- bounds

    def overdue(self, now: float) -> str | None:
        """Return why the connection has to be closed now, in monotonic seconds; None if it may stay."""
        limits = self._owner.limits
        idle_ms = (now - self.active_at) * 1000
        if self.session is not None and self.session.principal is None:
            return "unauthenticated" if idle_ms > limits.unauthenticated_ms else None
        stuck_ms = 0.0 if self.stuck_at is None else (now - self.stuck_at) * 1000
        if self._choked or self.is_closing:
            return "unread answers" if stuck_ms > limits.unread_ms else None
        if stuck_ms > limits.frame_ms:
            return "half a frame"
        return "idle" if not self.token and idle_ms > limits.idle_ms else None

    def _hold(self) -> None:
        """Account for the bytes held, and stop reading the socket while there are more than allowed."""
        transport, owner = self._transport, self._owner
        if transport is None or transport.is_closing():
            return
        waiting = 0 if self._framer is None else self._framer.buffered
        if self._oversized is not None:
            waiting += self._oversized.held
        pause = waiting > owner.limits.read_ahead and self._bodies is not None  # else it is one frame, to be read on
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
        owner.hold(self, waiting + (transport.get_write_buffer_size() if self._choked else 0))


class _Paused(asyncio.Transport):
    """Stands in for the transport of a connection whose broker is paused.

    :ivar transport: the connection's own
    :ivar stays_unread: whether reading is to stay paused when the broker goes on
    :ivar was_choked: whether the peer did not read its answers
    :ivar written: answers that wait
    """

    def __init__(self, transport: asyncio.Transport, stays_unread: bool, was_choked: bool) -> None:
        super().__init__()
        self.transport = transport
        self.stays_unread = stays_unread
        self.was_choked = was_choked
        self.written = bytearray()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.stays_unread = True

    def resume_reading(self) -> None:
        self.stays_unread = False

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def is_closing(self) -> bool:
        return self.transport.is_closing()

    def close(self) -> None:
        self.transport.close()

    def abort(self) -> None:
        self.transport.abort()
