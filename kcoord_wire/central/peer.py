"""One peer of a broker: bytes in, frames in their order, frames out, each bounded in bytes and in time.

The event loop calls a `Connection`; it cuts the bytes into frames for its `Owner`, which knows what they mean.

Laws:

* Every byte held for a peer is bounded (`Limits`): a frame by its size, which is checked before its bytes are awaited;
  frames behind the one in hand by not reading the socket; what the peer does not read by closing its connection.
* A peer that sends much at once does not hold up the others: after `BURST` frames, or `BURST_SECONDS`, they are served.
* Bytes that are not a frame close their own connection, and no other. No exception leaves a callback.
* After `close` nothing more is received; what was sent before is delivered, if the peer reads it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from kcoord_wire.codec.framing import SIZE_BYTES, Framer
from kcoord_wire.errors import DecodeError
from kcoord_wire.kernel.net import guess_protocol

BURST: Final = 64  # frames of one connection that are handled before another connection is
BURST_SECONDS: Final = 0.005  # likewise, where they cost much


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a broker's peers, in bytes and milliseconds.

    :ivar max_connections: more are closed as they come
    :ivar max_connections_per_host: likewise, of one address
    :ivar max_frame_size: of a registered consumer, whose answers carry an offset for each of its partitions
    :ivar max_unregistered_frame_size: of any other peer
    :ivar write_high_water: bytes that the peer has not read, above which nothing more is read from it
    :ivar max_unread: bytes that the peer has not read, above which it is closed
    :ivar frame_ms: from the first byte of a frame to its last
    :ivar unread_ms: how long a peer may stay above `write_high_water`
    :ivar idle_ms: of silence, of a peer that is not a registered consumer; consumers are pinged
    """

    max_connections: int = 50_000
    max_connections_per_host: int = 25_000
    max_frame_size: int = 1 << 20
    max_unregistered_frame_size: int = 64 << 10
    write_high_water: int = 64 << 10
    max_unread: int = 16 << 20
    frame_ms: int = 30_000
    unread_ms: int = 30_000
    idle_ms: int = 60_000


class Owner(Protocol):
    """What a connection needs of the server that has accepted it."""

    limits: Limits

    def opened(self, connection: Connection, /) -> None:
        """Count a connection whose peer has connected; it may be aborted at once."""

    def lost(self, connection: Connection, /) -> None:
        """Forget a connection that has ended."""

    def receive(self, connection: Connection, body: bytes, /) -> None:
        """Handle a frame without its size. It raises nothing."""

    def refuse(self, connection: Connection, error: object, /) -> None:
        """Close a connection whose peer has sent something that is not a frame."""


class Dialect(Protocol):
    """The frames of a protocol. What it has to remember of a connection, it keeps there."""

    def read(self, connection: Connection, body: bytes, /) -> Any:
        """Return the message of a frame without its size.

        :raises DecodeError: it does not decode, or the peer may not send it now
        """

    def frame(self, connection: Connection, message: Any, /) -> bytes:
        """Return the frame, with its size, of a message that is sent now.

        :raises EncodeError: a value does not fit into its field
        """


class Connection(asyncio.Protocol):
    """One peer. Idle, it holds a few hundred bytes: a framer exists only while bytes wait.

    :ivar number: names it; never used twice by one owner
    :ivar host: the peer's address
    :ivar is_registered: its peer is a registered consumer
    :ivar unanswered: requests of the coordinator that the peer has not answered
    :ivar in_hand: of a request of the peer, while the next ones wait for its answer; None for none
    """

    __slots__ = (
        "_active_at", "_bodies", "_choked", "_closed", "_framer", "_owner", "_paused", "_stuck_at", "_transport",
        "host", "in_hand", "is_registered", "number", "unanswered",
    )  # fmt: skip

    def __init__(self, owner: Owner, number: int) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._framer: Framer | None = None
        self._bodies: Iterator[bytes] | None = None  # of the framer, while more of them may come
        self._choked = self._closed = self._paused = False
        self._active_at = 0.0  # monotonic seconds of the last bytes
        self._stuck_at: float | None = None  # since when half a frame waits, or the peer does not read
        self.number = number
        self.host = ""
        self.is_registered = False
        self.unanswered = 0
        self.in_hand: Any = None

    # ---- what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's does not derive from it
        peer = transport.get_extra_info("peername")
        self.host = sys.intern(peer[0]) if isinstance(peer, tuple) else ""
        self._active_at = time.monotonic()
        self._transport = transport
        transport.set_write_buffer_limits(self._owner.limits.write_high_water)
        self._owner.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = self._framer = self._bodies = None
        self._owner.lost(self)

    def data_received(self, data: bytes) -> None:
        if self._closed:
            return
        self._active_at = time.monotonic()
        if self._framer is None:
            limit = self._frame_limit
            size = int.from_bytes(data[:SIZE_BYTES], "big")
            if size == len(data) - SIZE_BYTES and size <= limit and not self._is_held:
                self._owner.receive(self, data[SIZE_BYTES:])  # the whole of one frame: the common case
                return
            if size > limit and len(data) >= SIZE_BYTES:
                self._owner.refuse(self, f"a frame of {size} bytes{guess_protocol(data)}")
                return
            self._framer = Framer(limit)
        self._bodies = self._framer.feed(data)
        self._pump()

    def pause_writing(self) -> None:
        self._choked = True
        self._mark()

    def resume_writing(self) -> None:
        self._choked = False
        self._pump()

    # ---- frames in

    def _pump(self) -> None:
        """Take frames until none is whole, the peer does not read, or others are due."""
        left, until = BURST, time.monotonic() + BURST_SECONDS
        while left and time.monotonic() < until:
            left -= 1
            if self._bodies is None or self._is_held or self._closed:
                break
            try:
                body = next(self._bodies, None)
            except DecodeError as error:
                self._owner.refuse(self, error)
                return
            if body is None:
                self._bodies = None
                if self._framer is not None and not self._framer.buffered:
                    self._framer = None
                break
            self._owner.receive(self, body)
        else:
            asyncio.get_running_loop().call_soon(self._pump)
        self._mark()

    @property
    def _frame_limit(self) -> int:
        limits = self._owner.limits
        return limits.max_frame_size if self.is_registered else limits.max_unregistered_frame_size

    @property
    def _is_held(self) -> bool:
        return self._choked or self.in_hand is not None

    def answered(self) -> None:
        """Go on with the frame behind the request in hand."""
        self.in_hand = None
        if self._bodies is not None:
            asyncio.get_running_loop().call_soon(self._pump)

    # ---- frames out

    def send(self, frame: bytes) -> None:
        """Send a frame, its size included; of a connection that has ended nothing is sent."""
        transport = self._transport
        if transport is None or self._closed:
            return
        transport.write(frame)
        unread = transport.get_write_buffer_size()
        if unread > self._owner.limits.max_unread:
            self._owner.refuse(self, f"it has not read {unread} bytes")

    def close(self) -> None:
        """Close once what was sent is written; `abort` follows where the peer does not read it."""
        self._closed = True
        if self._transport is not None:
            self._stuck_at = time.monotonic()
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._closed = True
        if self._transport is not None:
            self._transport.abort()

    # ---- bounds

    def overdue(self, now: float) -> str | None:
        """Return why the connection has to be closed now; None if it may stay.

        :param now: monotonic seconds
        """
        limits = self._owner.limits
        if self._stuck_at is not None:
            stuck_ms = (now - self._stuck_at) * 1000
            if self._choked or self._closed:
                return "it does not read what it is sent" if stuck_ms > limits.unread_ms else None
            return "half a frame" if stuck_ms > limits.frame_ms else None
        is_served = self.is_registered or self.in_hand is not None or self._bodies is not None
        return "idle" if not is_served and (now - self._active_at) * 1000 > limits.idle_ms else None

    def _mark(self) -> None:
        """Note since when the peer makes no progress, and stop reading while frames wait."""
        transport = self._transport
        if transport is None or self._closed:
            return
        waits = self._bodies is not None
        if waits != self._paused:
            self._paused = waits
            if waits:
                transport.pause_reading()
            else:
                transport.resume_reading()
        is_stuck = self._choked or (self._framer is not None and not waits)
        if not is_stuck:
            self._stuck_at = None
        elif self._stuck_at is None:
            self._stuck_at = time.monotonic()
