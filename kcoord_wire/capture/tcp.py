"""TCP reassembly: from segments in the order they were captured to bytes in the order they were sent.

Laws:

* Each byte of a direction is delivered once and in order, whatever was retransmitted, overlapped, reordered or wrapped
  around. Where copies of a byte differ, the first one captured counts.
* Every piece has the time of the packet that brought it, however long it was held back: behind a hole, or for bytes of
  the other direction. So times ascend within a direction only where the capture has its packets in order.
* Causality: a segment is delivered after the bytes that its sender had acknowledged when it sent it. So a request is
  delivered before its response even where the capture has them the other way round.
* Missing bytes become a `Hole` of known size. A hole is given up when the peer has acknowledged it and `PATIENCE`
  further segments did not bring it, when more than `MAX_PENDING` bytes or segments are held behind it, or at the end.
* A new SYN on a pair of endpoints is a new connection. A connection first seen without its SYN starts at its first
  captured byte (`Connection.from_start` is then false).
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
"""Further segments of a connection after which a byte that was acknowledged but not captured counts as lost."""

MAX_PENDING: Final = 4 * 1024 * 1024
"""Bytes held behind a hole, per direction."""

_MAX_PENDING_SEGMENTS: Final = 4096
_WINDOW: Final = 1 << 30  # the largest that TCP can offer (RFC 7323): anything further away is not of this stream

_Pending = tuple[int, bytes, int]  # offset, payload, and the time of the packet that brought it
_Timed = tuple["bytes | Hole", int]  # a piece in order, and its time


@dataclass(frozen=True, slots=True)
class Hole:
    """Bytes of the stream that the capture lacks. Its time is that of the packet behind it, or of the acknowledgement.

    :ivar size: how many
    """

    size: int


@dataclass(frozen=True, slots=True)
class Closed:
    """Both directions have ended: by FIN, by RST, by a new connection between the endpoints, or with the capture."""


class _Direction:
    """One direction of a connection. Offsets are sequence numbers that do not wrap around."""

    __slots__ = ("expected", "fin", "from_start", "initial", "pending", "pending_bytes")

    def __init__(self) -> None:
        self.expected: int | None = None  # offset of the next byte to deliver
        self.initial: int | None = None  # sequence number of the SYN
        self.fin: int | None = None
        self.from_start = False
        self.pending: list[_Pending] = []  # sorted, without overlaps, all behind `expected`
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

    def take(self, ahead: int, payload: bytes, time_ns: int) -> Iterator[_Timed]:
        """Take in bytes that begin `ahead` of the next one; yield what is in order now."""
        assert self.expected is not None
        if ahead < 0:
            payload = payload[-ahead:]
            ahead = 0
        if not ahead and not self.pending:  # nearly always: all of `read_raw_frames` takes a tenth less time
            self.expected += len(payload)
            self.expected += self.expected == self.fin  # a FIN has a sequence number too
            if payload:
                yield payload, time_ns
            return
        if payload:
            self._insert(self.expected + ahead, payload, time_ns)
        yield from self._in_order()
        while self.pending_bytes > MAX_PENDING or len(self.pending) > _MAX_PENDING_SEGMENTS:
            yield from self.give_up(self.pending[0][0], time_ns)

    def give_up(self, offset: int, time_ns: int) -> Iterator[_Timed]:
        """Count the bytes before `offset` that are missing as lost; `time_ns` is of the packet that shows the loss."""
        assert self.expected is not None
        while self.expected < offset:
            until = offset
            if self.pending and self.pending[0][0] <= offset:
                until, _, time_ns = self.pending[0]
            yield Hole(until - self.expected), time_ns
            self.expected = until
            yield from self._in_order()

    def flush(self) -> Iterator[_Timed]:
        """Deliver everything, because no more segments follow."""
        while self.pending:
            yield from self.give_up(self.pending[0][0], self.pending[0][2])

    def _insert(self, offset: int, payload: bytes, time_ns: int) -> None:
        """Put the part of the payload that `pending` lacks into it."""
        at = bisect_left(self.pending, (offset,))
        if at and (covered := self.pending[at - 1][0] + len(self.pending[at - 1][1]) - offset) > 0:
            payload, offset = payload[covered:], offset + covered
        while payload:
            free = self.pending[at][0] - offset if at < len(self.pending) else len(payload)
            if part := payload[:free]:
                self.pending.insert(at, (offset, part, time_ns))
                self.pending_bytes += len(part)
                at += 1
            if at == len(self.pending):
                return
            skipped = free + len(self.pending[at][1])
            payload, offset = payload[skipped:], offset + skipped
            at += 1

    def _in_order(self) -> Iterator[_Timed]:
        assert self.expected is not None
        ready: list[_Timed] = []
        for offset, payload, time_ns in self.pending:
            if offset != self.expected:
                break
            self.expected += len(payload)
            ready.append((payload, time_ns))
            self.pending_bytes -= len(payload)
        del self.pending[: len(ready)]
        if self.expected == self.fin:
            self.expected += 1  # a FIN has a sequence number too; bytes beyond it were never sent
            self.pending.clear()
            self.pending_bytes = 0
        yield from ready


@dataclass(slots=True, eq=False)
class Connection:
    """Two endpoints and the bytes they exchange, from one SYN to the next.

    :ivar number: counts the connections of a capture from 0; distinguishes two between the same endpoints
    :ivar endpoints: in no particular order; a direction is named by its sender, as an index into this
    :ivar initiator: index of the endpoint that sent the first SYN; None if that was not captured
    :ivar closed: nothing more is delivered
    """

    number: int
    endpoints: tuple[Endpoint, Endpoint]
    initiator: int | None = None
    closed: bool = False
    _directions: tuple[_Direction, _Direction] = field(default_factory=lambda: (_Direction(), _Direction()), repr=False)
    _held: list[tuple[int, Segment]] = field(default_factory=list, repr=False)

    def from_start(self, sender: int) -> bool:
        """Whether the SYN of this direction was captured, so that its first byte is the first one sent."""
        return self._directions[sender].from_start

    @property
    def buffered(self) -> int:
        """Bytes held back in both directions."""
        held = sum(len(segment.payload) for _, segment in self._held)
        return held + sum(direction.pending_bytes for direction in self._directions)


@dataclass(slots=True)
class StreamEvent:
    """A piece of a connection that is delivered.

    :ivar connection: where it was sent
    :ivar sender: index into `Connection.endpoints`
    :ivar time_ns: of the packet that brought the piece, not of a later one that let it be delivered; see `Hole`
    :ivar piece: bytes in order, a hole in them, or the end of the connection
    """

    connection: Connection
    sender: int
    time_ns: int
    piece: bytes | Hole | Closed


class Reassembler:
    """All connections of a capture.

    :param max_connections: beyond this many, the connection that was silent for longest is ended
    :ivar stray_bytes: payload of segments that fit nowhere into their stream
    """

    def __init__(self, max_connections: int = 65536) -> None:
        self.stray_bytes = 0
        self._max_connections = max_connections
        self._connections: OrderedDict[tuple[Endpoint, Endpoint], Connection] = OrderedDict()
        self._opened = 0

    def push(self, segment: Segment) -> Iterator[StreamEvent]:
        """Take in the next captured segment; yield what it delivers. Exhaust the iterator before the next call."""
        key = tuple(sorted((segment.source, segment.destination)))
        endpoints = (key[0], key[1])
        sender = endpoints.index(segment.source)
        connection = self._connections.get(endpoints)
        if connection is None or _opens_another(connection, sender, segment):
            if not segment.length and not segment.flags & SYN:
                return  # an acknowledgement alone shows no data
            if connection is not None:
                yield from self._end(connection, segment.time_ns)
            connection = self._connections[endpoints] = Connection(self._opened, endpoints)
            self._opened += 1
        self._connections.move_to_end(endpoints)
        if connection.closed:
            direction = connection._directions[sender]
            if direction.expected is None or direction.distance(segment.sequence) + segment.length > 0:
                self.stray_bytes += segment.length  # not a mere copy of delivered bytes
            return
        if segment.flags & RST:
            yield from self._end(connection, segment.time_ns)
            return
        connection._held.append((sender, segment))
        yield from self._release(connection, PATIENCE)
        if all(direction.ended for direction in connection._directions):
            yield from self._end(connection, segment.time_ns)
        if len(self._connections) > self._max_connections:
            _, silent = self._connections.popitem(last=False)
            yield from self._end(silent, segment.time_ns)

    def finish(self, time_ns: int = 0) -> Iterator[StreamEvent]:
        """Deliver what is still held back, then the end of every connection, at the time the capture ended."""
        for connection in self._connections.values():
            yield from self._end(connection, time_ns)
        self._connections.clear()

    def _release(self, connection: Connection, patience: int) -> Iterator[StreamEvent]:
        """Deliver the segments that lack nothing; if more than `patience` are held, give up what the oldest lacks."""
        held = connection._held
        while held:
            index = 0
            if len(held) > 1:
                index = next((i for i, waiting in enumerate(held) if not _lacking(connection, *waiting)), 0)
            sender, segment = held[index]
            if lacking := _lacking(connection, sender, segment):
                if len(held) <= patience:
                    return
                peer = connection._directions[1 - sender]
                assert peer.expected is not None
                for piece, time_ns in peer.give_up(peer.expected + lacking, segment.time_ns):
                    yield StreamEvent(connection, 1 - sender, time_ns, piece)
                continue
            del held[index]
            for piece, time_ns in self._take(connection, sender, segment):
                yield StreamEvent(connection, sender, time_ns, piece)

    def _take(self, connection: Connection, sender: int, segment: Segment) -> Iterator[_Timed]:
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
                return  # may be a keep-alive, whose number is that of the byte before the next one
            direction.expected = sequence
        ahead = direction.distance(sequence)
        if abs(ahead) > _WINDOW:
            self.stray_bytes += segment.length
            return
        if segment.flags & FIN:
            direction.fin = direction.expected + ahead + segment.length
        yield from direction.take(ahead, segment.payload, segment.time_ns)

    def _end(self, connection: Connection, time_ns: int) -> Iterator[StreamEvent]:
        if connection.closed:
            return
        yield from self._release(connection, patience=0)
        for sender, direction in enumerate(connection._directions):
            for piece, own_ns in direction.flush():
                yield StreamEvent(connection, sender, own_ns, piece)
        connection.closed = True
        yield StreamEvent(connection, 0, time_ns, Closed())


def _opens_another(connection: Connection, sender: int, segment: Segment) -> bool:
    """Whether a SYN belongs to a new connection, rather than being a copy of the one that opened this."""
    if not segment.flags & SYN or segment.flags & RST:
        return False
    direction, peer = connection._directions[sender], connection._directions[1 - sender]
    if direction.initial is not None:
        return direction.initial != segment.sequence
    seen_midway = direction.expected is not None or (peer.expected is not None and peer.initial is None)
    return seen_midway or connection.closed


def _lacking(connection: Connection, sender: int, segment: Segment) -> int:
    """Bytes of the other direction that the sender had when it sent this, but that are not delivered yet."""
    peer = connection._directions[1 - sender]
    if not segment.flags & ACK or peer.expected is None:
        return 0
    lacking = peer.distance(segment.acknowledged)
    return lacking if 0 < lacking <= _WINDOW else 0
