"""Connections to peers that are not trusted, each bounded in bytes and in time, and all of a listener together.

    Peer         one connection: what its transport says, and the ways to end it
    FramedPeer   one whose bytes are frames: they are handled in their order, one in hand at a time
    Peers        the open connections of a listener: how many, what they hold, which have exceeded a limit in time

Laws:

* One frame of a peer is in hand at a time; the next one is looked at when the one before has been answered. So answers
  come in the order of the requests, and one that waits holds up its own connection and no other.
* Every byte held for a peer is bounded (`PeerLimits`): a frame by its size, which is checked before its bytes are
  awaited; what waits behind the frame in hand by not reading the socket; what the peer does not read by handling no
  further frame, and by closing its connection.
* Frames that have begun and not ended take `PeerLimits.max_input_held` together, over all listeners that are counted
  together: beyond that the connection is closed whose frame has been waited for longest.
* A peer that sends much at once does not hold up the others: after `BURST` frames, or `BURST_SECONDS`, they are served.
* Bytes that are not a frame close their own connection, and no other. No exception leaves a callback.
* After `close` nothing more is received; what was sent before is delivered, if the peer reads it in time.
* Connections never take the last open files of the process: its logs go on.
* A limit in time is exceeded by an eighth of the shortest one at most.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sized
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from kcoord_wire.codec.framing import SIZE_BYTES, Framer
from kcoord_wire.errors import DecodeError
from kcoord_wire.kernel.net import LogLimiter, guess_protocol

BACKLOG: Final = 1024
"""Connections that the system keeps for a listener until it accepts them."""
BURST: Final = 64  # frames of one peer that are handled before another peer's are
BURST_SECONDS: Final = 0.005  # likewise, where they cost much
LARGE: Final = 1 << 14  # bytes that are written at once, instead of together with what follows

_SPARE_FILES: Final = 64  # open files left for logs, metrics and further connections of the process itself
_SWEEPS: Final = 8  # in the shortest of the time limits, so that it is exceeded by an eighth at most
_SHORTEST_SWEEP_SECONDS: Final = 0.02
_CLOSING_SECONDS: Final = 0.01  # between two looks at whether connections have closed
_ABORTING_MS: Final = 10_000  # for the sockets of connections that are ended at once


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """What one peer may cost, in bytes and milliseconds; and all of a listener together.

    :ivar max_connections: more are closed as they come
    :ivar max_frame_size: a larger frame closes the connection
    :ivar read_ahead: bytes taken from the socket behind a frame that is in hand
    :ivar write_high_water: bytes that the peer has not read, above which its next frame waits
    :ivar max_unread: bytes that the peer has not read, above which it is closed
    :ivar max_bytes_held: all of the above over all connections
    :ivar max_input_held: bytes of frames that have begun, over all connections of all listeners that share counters
    :ivar idle_ms: of silence, after which a connection is closed
    :ivar frame_ms: from the first byte of a frame to its last
    :ivar unread_ms: how long a peer may stay above `write_high_water`, or leave what was sent before the end unread
    """

    max_connections: int = 20_000
    max_frame_size: int = 4 << 20
    read_ahead: int = 64 << 10
    write_high_water: int = 256 << 10
    max_unread: int = 256 << 20
    max_bytes_held: int = 256 << 20
    max_input_held: int = 128 << 20
    idle_ms: int = 600_000
    frame_ms: int = 60_000
    unread_ms: int = 60_000


@dataclass(slots=True)
class PeerCounters:
    """What listeners count.

    :ivar open: connections that are open
    :ivar accepted: connections that were accepted
    :ivar received_bytes: from peers
    :ivar sent_bytes: to peers
    :ivar closed: connections that the listener has closed, by one of a few reasons
    :ivar unfinished: frames that have begun and not ended
    """

    open: int = 0
    accepted: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    closed: Counter[str] = field(default_factory=Counter)
    unfinished: UnfinishedInput = field(default_factory=lambda: UnfinishedInput())


class UnfinishedInput:
    """What has been received and not been handled, of connections of several listeners together.

    :ivar held: bytes
    """

    __slots__ = ("_waiting", "held")

    def __init__(self) -> None:
        self.held = 0
        self._waiting: dict[FramedPeer, tuple[int, Peers[Any]]] = {}

    def note(self, listener: Peers[Any], peer: FramedPeer, size: int) -> None:
        """Note how many bytes of a connection wait."""
        before = self._waiting.pop(peer, None)
        if before is not None:
            self.held -= before[0]
        if size:
            self.held += size
            self._waiting[peer] = size, listener

    def drop_slowest(self) -> None:
        """Close the connection whose frame has been waited for longest."""
        now = time.monotonic()
        slowest = min(self._waiting, key=lambda peer: now if peer.stuck_at is None else peer.stuck_at)
        size, listener = self._waiting.pop(slowest)
        detail = f"{size} of {self.held} bytes that wait for the end of their frames"
        self.held -= size  # which the loop gives back when it has closed the connection
        listener.drop(slowest, "too much unfinished input", detail)


# ---- one connection


class Peer(asyncio.Protocol):
    """One connection, whatever its bytes are.

    :ivar limits: of it
    :ivar transport: None before it is connected and after it has ended
    :ivar host: the peer's address; empty before it is connected
    :ivar is_choked: the peer has not read what it was sent, and more than `PeerLimits.write_high_water` waits
    """

    __slots__ = ("_lingering", "host", "is_choked", "limits", "transport")

    def __init__(self, limits: PeerLimits) -> None:
        self.limits: PeerLimits = limits
        self.transport: asyncio.Transport | None = None
        self.host: str = ""
        self.is_choked: bool = False
        self._lingering: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's does not derive from it
        transport.set_write_buffer_limits(self.limits.write_high_water)
        address = transport.get_extra_info("peername")
        self.host = sys.intern(address[0]) if isinstance(address, tuple) else ""
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self._lingering is not None:
            self._lingering.cancel()

    def eof_received(self) -> bool | None:
        self.close()  # the transport itself would wait for ever for a peer that does not read
        return None

    @property
    def is_closing(self) -> bool:
        """Whether nothing more can be sent."""
        return self.transport is None or self.transport.is_closing()

    def close(self) -> None:
        """Close once what was sent is written, or after `PeerLimits.unread_ms`."""
        transport = self.transport
        if transport is not None and not transport.is_closing():
            transport.close()
            self._abort_later(transport)

    def _abort_later(self, transport: asyncio.Transport) -> None:
        """Let the peer read what was sent, for `PeerLimits.unread_ms`."""
        later = asyncio.get_running_loop().call_later
        self._lingering = later(self.limits.unread_ms / 1000, transport.abort)

    def abort(self) -> None:
        """Close at once."""
        if self.transport is not None:
            self.transport.abort()


F = TypeVar("F", bound="FramedPeer")


class PeerOwner(Protocol):
    """What a `FramedPeer` needs of what it belongs to; see `Peers`."""

    counters: PeerCounters

    @property
    def limits(self) -> PeerLimits: ...

    def opened(self, peer: Any, /) -> None:
        """Count a connection that is there; it may be closed at once."""

    def lost(self, peer: Any, /) -> None:
        """Forget a connection that has ended."""

    def receive(self, peer: Any, data: bytes, start: int, /) -> None:
        """Handle a frame, whose body begins at `start`; while it is in hand, `FramedPeer.in_hand` says so.

        :raises DecodeError: it is not one
        :raises struct.error: it is too short for one
        """

    def refuse(self, peer: Any, error: object, /) -> None:
        """Close a connection whose peer has sent something that is not a frame."""

    def blame(self, peer: Any, error: Exception, /) -> None:
        """Close a connection whose frame has raised an error in what handles it."""

    def hold(self, peer: Any, held: int, waiting: int, /) -> None:
        """Account for the bytes that a connection holds, and of these for those that have been received."""


class FramedPeer(Peer):
    """One connection whose bytes are frames. Idle, it holds a few hundred bytes: a framer exists only while bytes wait.

    :ivar owner: what it belongs to
    :ivar frame_limit: the largest frame that is read as a whole
    :ivar in_hand: names the frame whose answer the next ones wait for; None for none
    :ivar held: bytes that `PeerOwner.hold` has counted
    :ivar opened_at: monotonic seconds of the connection
    :ivar active_at: monotonic seconds of the last bytes
    :ivar stuck_at: monotonic seconds since which half a frame has waited, or the peer has not read; None if neither
    """

    __slots__ = (
        "_bodies", "_counters", "_framer", "_is_pumping", "_is_unread", "_out", "_receive", "active_at", "frame_limit",
        "held", "in_hand", "opened_at", "owner", "stuck_at",
    )  # fmt: skip

    def __init__(self, owner: PeerOwner, frame_limit: int) -> None:
        super().__init__(owner.limits)
        self.owner: PeerOwner = owner
        self.frame_limit: int = frame_limit
        self.in_hand: Any = None
        self.held: int = 0
        self.opened_at: float = 0.0
        self.active_at: float = 0.0
        self.stuck_at: float | None = None
        self._receive = owner.receive
        self._counters = owner.counters
        self._framer: Framer | None = None
        self._bodies: Iterator[bytes] | None = None  # of the framer, while more of them may come
        self._out: list[bytes] = []  # frames that are written when no more is to be handled
        self._is_pumping = self._is_unread = False

    # ---- what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.opened_at = self.active_at = time.monotonic()
        self.owner.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._framer = self._bodies = None
        self._out.clear()
        self.owner.lost(self)

    def data_received(self, data: bytes) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        self._counters.received_bytes += len(data)
        self.active_at = time.monotonic()
        if self._framer is None:
            size = int.from_bytes(data[:SIZE_BYTES], "big")
            if (
                size == len(data) - SIZE_BYTES
                and size <= self.frame_limit
                and self.in_hand is None
                and not self.is_choked
            ):
                self._take(data, SIZE_BYTES)  # the whole of one frame: the common case, which needs no framer
                return
            if len(data) >= SIZE_BYTES and size > self.largest_frame:
                self.owner.refuse(self, f"a frame of {size} bytes{guess_protocol(data)}")
                return
            self._framer = self.new_framer()
        try:
            self._bodies = self._framer.feed(data)
        except DecodeError as error:
            self.owner.refuse(self, error)
        else:
            self.pump()

    def pause_writing(self) -> None:
        self.is_choked: bool = True
        self.stuck_at = time.monotonic()
        self._hold()

    def resume_writing(self) -> None:
        self.is_choked = False
        self.stuck_at = None
        self.pump()

    # ---- frames in

    @property
    def largest_frame(self) -> int:
        """The largest frame that is read at all."""
        return self.frame_limit

    def new_framer(self) -> Framer:
        """Return what cuts the bytes that come now into frames."""
        return Framer(self.frame_limit)

    def set_frame_limit(self, limit: int) -> None:
        """Apply another limit, to what has been received too."""
        self.frame_limit = limit
        if self._framer is not None:
            rest, self._framer = self._framer.rest, self.new_framer()
            self._bodies = self._framer.feed(rest)

    def pump(self) -> None:
        """Take frames until one is in hand, none is whole, the peer does not read, or others are due."""
        left, until = BURST, time.monotonic() + BURST_SECONDS
        while left and time.monotonic() < until:
            if self._bodies is None or self.in_hand is not None or self.is_choked or self.is_closing:
                break
            left -= 1
            try:
                body = next(self._bodies, None)
            except DecodeError as error:
                self.owner.refuse(self, error)
                return
            if body is None:
                self._bodies = None
                if self._framer is not None and not self._framer.buffered:
                    self._framer = None
                break
            self.stuck_at = None  # what follows has its own time
            self._is_pumping = True
            self._take(body, 0)
            self._is_pumping = False
        else:
            self.pump_later()
        self._flush()
        self._hold()

    def pump_later(self) -> None:
        """`pump` when other peers have been served."""
        asyncio.get_running_loop().call_soon(self.pump)

    @property
    def has_more(self) -> bool:
        """Whether frames may wait behind the one in hand, and nothing has them taken."""
        return self._bodies is not None and not self._is_pumping

    def _take(self, data: bytes, start: int) -> None:
        try:
            self._receive(self, data, start)
        except (DecodeError, struct.error) as error:
            self.owner.refuse(self, error)
        except Exception as error:
            self.owner.blame(self, error)

    # ---- bytes out

    def write(self, data: bytes) -> None:
        """Send bytes; of a connection that has ended, or is to end, nothing is sent."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        self._counters.sent_bytes += len(data)
        if self._is_pumping and len(data) <= LARGE:
            self._out.append(data)
        else:
            self._flush()
            transport.write(data)
            if not self.is_choked:
                return
            if (unread := transport.get_write_buffer_size()) > self.limits.max_unread:
                self.owner.refuse(self, f"it has not read {unread} bytes")
            else:
                self._hold()

    def _flush(self) -> None:
        if self._out:
            out, self._out = self._out, []
            if self.transport is not None:
                self.transport.write(b"".join(out))

    def close(self) -> None:
        self._flush()
        super().close()

    # ---- bounds

    def overdue(self, now: float) -> str | None:
        """Return why the connection has to be closed now, in monotonic seconds; None if it may stay."""
        limits = self.limits
        if self.stuck_at is not None and not self.is_closing:
            stuck_ms = (now - self.stuck_at) * 1000
            if self.is_choked:
                return "unread answers" if stuck_ms > limits.unread_ms else None
            return "half a frame" if stuck_ms > limits.frame_ms else None
        is_served = self.in_hand is not None or self._bodies is not None or self.is_closing
        return "idle" if not is_served and (now - self.active_at) * 1000 > limits.idle_ms else None

    def _hold(self) -> None:
        """Account for the bytes held, and stop reading the socket while there are more than allowed."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        waiting = 0 if self._framer is None else self._framer.buffered
        is_unread = self._bodies is not None and waiting > self.limits.read_ahead  # else one frame, to be read on
        if is_unread != self._is_unread:
            self._is_unread = is_unread
            if is_unread:
                transport.pause_reading()
            else:
                transport.resume_reading()
        if not self.is_choked and (not waiting or self._bodies is not None):
            self.stuck_at = None
        elif self.stuck_at is None:
            self.stuck_at = time.monotonic()
        self.owner.hold(self, waiting + (transport.get_write_buffer_size() if self.is_choked else 0), waiting)


# ---- the connections of a listener


def most_connections(wanted: int, share: int = 1) -> int:
    """Return how many connections a listener may have open: each takes an open file.

    :param share: listeners among which the open files of the process are divided
    """
    import resource  # is missing on Windows, where nothing listens

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(wanted, max((files - _SPARE_FILES) // share, _SPARE_FILES))


async def all_closed(open_connections: Sized, grace_ms: float) -> None:
    """Return when no connection is left, or after `grace_ms`."""
    until = time.monotonic() + grace_ms / 1000
    while open_connections and time.monotonic() < until:
        await asyncio.sleep(_CLOSING_SECONDS)


class Peers(Generic[F]):
    """The open connections of a listener, in one event loop; who derives from it handles their frames (`PeerOwner`).

    :param log: for connections that it closes, as far as a `LogLimiter` allows
    :param counters: shared by listeners that are counted together
    :ivar limits: of each connection, and of all together
    :ivar counters: of the traffic
    :ivar peers: those that are open, oldest first; the values are None
    :ivar most: connections that may be open
    :ivar is_closed: no connection is accepted any more
    """

    def __init__(self, limits: PeerLimits, log: logging.Logger, counters: PeerCounters | None = None) -> None:
        self.limits = limits
        self.counters: PeerCounters = counters or PeerCounters()
        self.peers: dict[F, None] = {}  # in order, so that a simulation repeats
        self.most: int = limits.max_connections
        self.is_closed: bool = False
        self._log = log
        self._lines = LogLimiter()
        self._held = 0
        self._sweeping: asyncio.TimerHandle | None = None

    # ---- what a connection calls

    def opened(self, peer: F) -> None:
        """Count a connection that is there."""
        self.peers[peer] = None
        self.counters.open += 1
        self.counters.accepted += 1
        if len(self.peers) > self.most or self.is_closed:
            self.drop(peer, "too many", f"{len(self.peers)} connections are open")

    def lost(self, peer: F) -> None:
        """Forget a connection that has ended."""
        self.peers.pop(peer, None)
        self.counters.open -= 1
        self.hold(peer, 0, 0)

    def refuse(self, peer: F, error: object) -> None:
        """Close a connection whose peer has sent what is not a frame; earlier ones are still answered."""
        self.report(peer.host, "malformed", str(error))
        peer.close()

    def blame(self, peer: F, error: Exception) -> None:
        """Close a connection whose frame has raised an error: a fault of the program costs one peer its connection."""
        self._log.error("a message of %s has failed", peer.host, exc_info=error)
        self.refuse(peer, "its message has failed")

    def hold(self, peer: F, held: int, waiting: int) -> None:
        """Account for the bytes held for a peer; if all together are too many, close the one that holds most, and if
        those of frames that have begun are, the one that has taken longest."""
        self._held += held - peer.held
        peer.held = held
        if self._held > self.limits.max_bytes_held:
            greatest = max(self.peers, key=lambda each: each.held)
            self.drop(greatest, "too many bytes held", f"{greatest.held} of {self._held}")
        unfinished = self.counters.unfinished
        unfinished.note(self, peer, waiting)
        while unfinished.held > self.limits.max_input_held:
            unfinished.drop_slowest()

    # ---- bounds, and the end

    def sweep(self, *limits_ms: int) -> None:
        """Look at the connections from now on, and close those that have exceeded a limit in time.

        :param limits_ms: limits in time besides those of each `FramedPeer`
        """
        limits = self.limits
        shortest = min(limits.frame_ms, limits.unread_ms, limits.idle_ms, *limits_ms)
        interval = max(_SHORTEST_SWEEP_SECONDS, shortest / 1000 / _SWEEPS)
        now = time.monotonic()
        for peer in list(self.peers):
            why = peer.overdue(now)
            if why is not None:
                self.drop(peer, why)
        self._sweeping = asyncio.get_running_loop().call_later(interval, self.sweep, *limits_ms)

    def drop(self, peer: F, reason: str, detail: str = "") -> None:
        """Close a connection at once."""
        if not peer.is_closing:
            self.report(peer.host, reason, detail)
        peer.abort()

    def report(self, host: str, reason: str, detail: str) -> None:
        """Count a connection that the listener closes, and log why."""
        self.counters.closed[reason] += 1
        if self._lines.allows_line():
            self._log.warning("closed the connection from %s: %s%s", host, reason, detail and f": {detail}")

    async def close(self, grace_ms: float) -> None:
        """Close the connections: in order, and after `grace_ms` at once."""
        self.is_closed = True
        for peer in list(self.peers):
            peer.close()
        await all_closed(self.peers, grace_ms)
        for peer in list(self.peers):
            peer.abort()
        await all_closed(self.peers, _ABORTING_MS)  # until their sockets are closed: a restart needs the port
        if self._sweeping is not None:
            self._sweeping.cancel()
