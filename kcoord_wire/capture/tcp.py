"""TCP reassembly: from segments in the order they were captured to bytes in the order they were sent.

Laws:

* Each byte of a direction comes out once and in order, whatever was retransmitted, overlapped, reordered or wrapped
  around. Where copies of a byte differ, the first one captured counts.
* Causality: a segment comes out after the bytes that its sender had acknowledged when it sent it. So a request comes
  out before its response even where the capture has them the other way round.
* Bytes that never come are a `Hole` of known size. A hole is given up when the peer has acknowledged it and `PATIENCE`
  further segments did not bring it, when more than `MAX_PENDING` bytes or segments wait behind it, or at the end.
* A new SYN on a pair of endpoints is a new connection. A connection first seen without its SYN starts at whatever comes
  first, and says so (`Connection.from_start`).
* Memory is bounded per direction (`MAX_PENDING`) and in the number of connections (`max_connections`).

No I/O, no clock. Source: RFC 9293 (sections 3.4, 3.5, 3.10).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from kcoord_wire.capture.packets import ACK, FIN, RST, SYN, Endpoint, Segment

__all__ = ["MAX_PENDING", "PATIENCE", "Closed", "Connection", "Hole", "Reassembler", "StreamEvent"]

PATIENCE: Final = 32
"""Segments of a connection that are waited for before a byte that was acknowledged counts as lost."""

MAX_PENDING: Final = 4 * 1024 * 1024
"""Bytes that may wait behind a hole, per direction."""

_MAX_PENDING_SEGMENTS: Final = 4096
_WINDOW: Final = 1 << 30  # the largest that TCP can offer (RFC 7323): what is further away is not of this stream


@dataclass(frozen=True, slots=True)
class Hole:
    """`size` bytes of the stream that the capture does not have."""

    size: int


@dataclass(frozen=True, slots=True)
class Closed:
    """Both directions have ended: by FIN, by RST, by a new connection in its place, or with the capture."""


class _Direction:
    """One direction of a connection. Offsets are sequence numbers that do not wrap around."""

    __slots__ = ("expected", "fin", "from_start", "initial", "pending", "pending_bytes")

    def __init__(self) -> None:
        self.expected: int | None = None  # offset of the next byte to come out
        self.initial: int | None = None  # sequence number of the SYN
        self.fin: int | None = None
        self.from_start = False
        self.pending: list[tuple[int, bytes]] = []  # sorted, without overlaps, all behind `expected`
        self.pending_bytes = 0

    @property
    def ended(self) -> bool:
        return self.fin is not None and self.expected is not None and self.expected > self.fin

    def open(self, sequence: int) -> None:
        self.initial = sequence
        self.expected = sequence + 1
        self.from_start = True

    def distance(self, sequence: int) -> int:
        """How far a sequence number lies ahead of the next byte; negative if behind."""
        assert self.expected is not None
        return ((sequence - self.expected + 0x80000000) & 0xFFFFFFFF) - 0x80000000

    def take(self, ahead: int, payload: bytes) -> Iterator[bytes | Hole]:
        """Take in bytes that begin `ahead` of the next one; give what is now in order."""
        assert self.expected is not None
        if ahead < 0:
            payload = payload[-ahead:]
            ahead = 0
        if payload:
            self._insert(self.expected + ahead, payload)
        yield from self._in_order()
        while self.pending_bytes > MAX_PENDING or len(self.pending) > _MAX_PENDING_SEGMENTS:
            yield from self.give_up(self.pending[0][0])

    def give_up(self, offset: int) -> Iterator[bytes | Hole]:
        """Bytes before `offset` that are not here will not come."""
        assert self.expected is not None
        while self.expected < offset:
            until = min(offset, self.pending[0][0]) if self.pending else offset
            yield Hole(until - self.expected)
            self.expected = until
            yield from self._in_order()

    def flush(self) -> Iterator[bytes | Hole]:
        """Nothing will come any more."""
        while self.pending:
            yield from self.give_up(self.pending[0][0])

    def _insert(self, offset: int, payload: bytes) -> None:
        """Put into `pending` what of the payload is not there yet."""
        at = bisect_left(self.pending, (offset,))
        if at and (covered := self.pending[at - 1][0] + len(self.pending[at - 1][1]) - offset) > 0:
            payload, offset = payload[covered:], offset + covered
        while payload:
            free = self.pending[at][0] - offset if at < len(self.pending) else len(payload)
            if part := payload[:free]:
                self.pending.insert(at, (offset, part))
                self.pending_bytes += len(part)
                at += 1
            if at == len(self.pending):
                return
            skipped = free + len(self.pending[at][1])
            payload, offset = payload[skipped:], offset + skipped
            at += 1

    def _in_order(self) -> Iterator[bytes]:
        assert self.expected is not None
        ready = []
        for offset, payload in self.pending:
            if offset != self.expected:
                break
            self.expected += len(payload)
            ready.append(payload)
            self.pending_bytes -= len(payload)
        del self.pending[: len(ready)]
        if self.expected == self.fin:
            self.expected += 1  # a FIN takes a number of its own; what lies beyond it was never sent
            self.pending.clear()
            self.pending_bytes = 0
        yield from ready


@dataclass(slots=True, eq=False)
class Connection:
    """Two endpoints and what they send to each other, from one SYN to the next.

    :ivar number: counts the connections of a capture from 0: tells apart two that used the same pair of endpoints
    :ivar endpoints: in no particular order; a direction is named by its sender, the index in here
    :ivar initiator: index of the endpoint that sent the first SYN; None if that was not captured
    """

    number: int
    endpoints: tuple[Endpoint, Endpoint]
    initiator: int | None = None
    closed: bool = False
    _directions: tuple[_Direction, _Direction] = field(default_factory=lambda: (_Direction(), _Direction()), repr=False)
    _held: list[tuple[int, Segment]] = field(default_factory=list, repr=False)

    def from_start(self, sender: int) -> bool:
        """Whether the SYN of this direction was captured: its first byte is then the first one sent."""
        return self._directions[sender].from_start

    @property
    def buffered(self) -> int:
        """Bytes held back in both directions."""
        held = sum(len(segment.payload) for _, segment in self._held)
        return held + sum(direction.pending_bytes for direction in self._directions)


@dataclass(slots=True)
class StreamEvent:
    """What came out of a connection.

    :ivar sender: index into `Connection.endpoints`
    :ivar time_ns: of the packet that brought it out
    :ivar piece: bytes in order, a hole in them, or the end of the connection
    """

    connection: Connection
    sender: int
    time_ns: int
    piece: bytes | Hole | Closed


class Reassembler:
    """All connections of a capture.

    :param max_connections: the connection that was silent for longest is ended when there are more than this many
    :ivar stray_bytes: payload of segments that belong to no place in their stream
    """

    def __init__(self, max_connections: int = 65536) -> None:
        self.stray_bytes = 0
        self._max_connections = max_connections
        self._connections: OrderedDict[tuple[Endpoint, Endpoint], Connection] = OrderedDict()
        self._opened = 0

    def push(self, segment: Segment) -> Iterator[StreamEvent]:
        """Take in the next captured segment; give what it brings out. Use the iterator up before the next call."""
        key = tuple(sorted((segment.source, segment.destination)))
        endpoints = (key[0], key[1])
        sender = endpoints.index(segment.source)
        connection = self._connections.get(endpoints)
        if connection is None or _opens_another(connection, sender, segment):
            if not segment.length and not segment.flags & SYN:
                return  # an acknowledgement alone says nothing
            if connection is not None:
                yield from self._end(connection, segment.time_ns)
            connection = self._connections[endpoints] = Connection(self._opened, endpoints)
            self._opened += 1
        self._connections.move_to_end(endpoints)
        if connection.closed:
            direction = connection._directions[sender]
            if direction.expected is None or direction.distance(segment.sequence) + segment.length > 0:
                self.stray_bytes += segment.length  # not a mere copy of what has come out
            return
        if segment.flags & RST:
            yield from self._end(connection, segment.time_ns)
            return
        connection._held.append((sender, segment))
        yield from self._release(connection, segment.time_ns, PATIENCE)
        if all(direction.ended for direction in connection._directions):
            yield from self._end(connection, segment.time_ns)
        if len(self._connections) > self._max_connections:
            _, silent = self._connections.popitem(last=False)
            yield from self._end(silent, segment.time_ns)

    def finish(self, time_ns: int = 0) -> Iterator[StreamEvent]:
        """The capture has ended: give what is still held back, then the end of every connection."""
        for connection in self._connections.values():
            yield from self._end(connection, time_ns)
        self._connections.clear()

    def _release(self, connection: Connection, time_ns: int, patience: int) -> Iterator[StreamEvent]:
        """Let out the segments that wait for nothing; give up what the oldest waits for while too many wait."""
        held = connection._held
        while held:
            index = next((i for i, waiting in enumerate(held) if not _lacking(connection, *waiting)), 0)
            sender, segment = held[index]
            if lacking := _lacking(connection, sender, segment):
                if len(held) <= patience:
                    return
                peer = connection._directions[1 - sender]
                assert peer.expected is not None
                for piece in peer.give_up(peer.expected + lacking):
                    yield StreamEvent(connection, 1 - sender, time_ns, piece)
                continue
            del held[index]
            for piece in self._take(connection, sender, segment):
                yield StreamEvent(connection, sender, time_ns, piece)

    def _take(self, connection: Connection, sender: int, segment: Segment) -> Iterator[bytes | Hole]:
        direction = connection._directions[sender]
        sequence = segment.sequence
        if segment.flags & SYN:
            if direction.expected is None:
                direction.open(sequence)
                if not segment.flags & ACK:
                    connection.initiator = sender
                elif connection.initiator is None:
                    connection.initiator = 1 - sender
            sequence += 1
        if direction.expected is None:
            if not segment.length and not segment.flags & FIN:
                return  # may be a keep-alive, which carries the number before the next one
            direction.expected = sequence
        ahead = direction.distance(sequence)
        if abs(ahead) > _WINDOW:
            self.stray_bytes += segment.length
            return
        if segment.flags & FIN:
            direction.fin = direction.expected + ahead + segment.length
        yield from direction.take(ahead, segment.payload)

    def _end(self, connection: Connection, time_ns: int) -> Iterator[StreamEvent]:
        if connection.closed:
            return
        yield from self._release(connection, time_ns, patience=0)
        for sender, direction in enumerate(connection._directions):
            for piece in direction.flush():
                yield StreamEvent(connection, sender, time_ns, piece)
        connection.closed = True
        yield StreamEvent(connection, 0, time_ns, Closed())


def _opens_another(connection: Connection, sender: int, segment: Segment) -> bool:
    """Whether a SYN is one of a new connection, not a copy of the one that opened this."""
    if not segment.flags & SYN or segment.flags & RST:
        return False
    direction, peer = connection._directions[sender], connection._directions[1 - sender]
    if direction.initial is not None:
        return direction.initial != segment.sequence
    seen_midway = direction.expected is not None or (peer.expected is not None and peer.initial is None)
    return seen_midway or connection.closed


def _lacking(connection: Connection, sender: int, segment: Segment) -> int:
    """Bytes of the other direction that the sender had when it sent this, but that have not come out yet."""
    peer = connection._directions[1 - sender]
    if not segment.flags & ACK or peer.expected is None:
        return 0
    lacking = peer.distance(segment.acknowledged)
    return lacking if 0 < lacking <= _WINDOW else 0
