"""TCP reassembly: from segments in the order they were captured to bytes in the order they were sent.

Laws:

* Each byte of a direction is delivered once and in order, whatever was retransmitted, overlapped, reordered or wrapped
  around. Where copies of a byte differ, the first one captured counts.
* Every piece has the time and number of the packet that brought it, however long it was held back: behind a hole, or
  for bytes of the other direction. So times ascend within a direction only where the capture has its packets in order.
* Causality: a segment is delivered after the bytes that its sender had acknowledged when it sent it. So a request is
  delivered before its response even where the capture has them the other way round.
* Missing bytes become a `Hole` of known size. A hole is given up when the peer has acknowledged it and `PATIENCE`
  further segments did not bring it, when more than `MAX_PENDING` bytes or segments are held behind it, or at the end.
* A new SYN on a pair of endpoints is a new connection. A connection first seen without its SYN starts at its first
  captured byte (`TcpConnection.from_start` is then false).
* A connection is closed by the side that sends FIN first, else broken off by RST: `Closed.by`. RST after FIN changes
  nothing about that, because a closed socket answers what still comes with RST. A FIN that the capture lacks is
  recognised by the other side's FIN, which acknowledges it; so a last piece of one byte that is captured behind that
  FIN is lost.
* Bytes that are sent again `ENOUGH` times because nothing acknowledged them are a `Resent`, which is delivered when the
  sender goes on behind an acknowledgement, or when the connection ends. A packet that was captured twice is no copy.
* A SYN that is answered by RST, or repeated without any answer, is a `Refused`. A connection whose end is not in the
  capture is not closed.
* Memory is bounded per direction (`MAX_PENDING`) and in the number of connections of each group (`Group`). A connection
  is in the group that its user chooses; which one is ended because a group has too many depends on that group alone.

No I/O, no clock. Source: RFC 9293 (sections 3.4, 3.5, 3.6, 3.10).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from kcoord_wire.capture.lanes import Pair
from kcoord_wire.capture.packets import ACK, FIN, RST, SYN, At, Segment
from kcoord_wire.protocol.wording import unanswered_text

PATIENCE: Final = 32
"""Further segments of a connection after which a byte that was acknowledged but not captured counts as lost."""

MAX_PENDING: Final = 4 * 1024 * 1024
"""Bytes held behind a hole, per direction."""

MAX_CONNECTIONS: Final = 65_536
"""Of a group."""

ENOUGH: Final = 3
"""Copies of the same bytes that tell a way which carries nothing from one that loses a packet."""

_APART_NS: Final = 50_000_000  # between copies: the least timeout is 200 ms (Linux); what is captured twice is near
_LONG_NS: Final = 5_000_000_000  # between bytes and their second copy: that is the sixth timeout of Linux, or so
_MAX_PENDING_SEGMENTS: Final = 4096
_WINDOW: Final = 1 << 30  # the largest that TCP can offer (RFC 7323): anything further away is not of this stream

_Pending = tuple[int, bytes, At]  # offset, payload, and the packet that brought it
_Timed = tuple["bytes | Hole", At]  # a piece in order, and its packet


@dataclass(frozen=True, slots=True)
class Hole:
    """Bytes of the stream that the capture lacks. Its time is that of the packet behind it, or of the acknowledgement.

    :ivar size: how many
    :ivar since_ns: they were not sent before: the time of the packet before them, in this direction
    """

    size: int
    since_ns: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Closed:
    """Nothing of the connection follows. Its time is that of the packet that ended it: the first FIN, else the RST.

    :ivar how: ``closed`` by FIN, or because its ports are used again; ``reset`` by RST; None where the capture ends
        first
    :ivar by: index of the side that ended it; None where that is not seen
    """

    how: Literal["closed", "reset"] | None = None
    by: int | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """A connection that was never made. The sender is the side that refused; the time is that of the first SYN.

    :ivar why: in words
    """

    why: str


@dataclass(frozen=True, slots=True)
class Resent:
    """Bytes that were sent again and again, since their sender heard of no acknowledgement.

    Its time is that of the acknowledgement behind the last copy; of the packet that ended the connection or the capture
    where there is none.

    :ivar size: how many
    :ivar times: how often they were sent again
    :ivar since_ns: when they were sent first
    :ivar quiet_ns: how long ago the other side had sent its last packet then
    """

    size: int
    times: int
    since_ns: int
    quiet_ns: int


def _is_ahead(sequence: int, other: int) -> bool:
    """Whether a sequence number lies behind another one in the stream."""
    return 0 < (sequence - other) & 0xFFFFFFFF <= _WINDOW


class _Copies:
    """Bytes that were sent again, and are not known to have arrived.

    :ivar start: sequence number of the first of them
    :ivar acknowledged: the first packet behind the last copy that acknowledges it
    """

    __slots__ = ("acknowledged", "last_ns", "quiet_ns", "since_ns", "size", "start", "times")

    def __init__(self, segment: Segment, since_ns: int, heard_ns: int) -> None:
        self.start, self.size = segment.sequence, segment.length
        self.since_ns, self.quiet_ns = since_ns, since_ns - heard_ns if heard_ns else 0
        self.times, self.last_ns = 0, since_ns
        self.acknowledged: At | None = None

    @property
    def are_many(self) -> bool:
        """Whether they show that nothing arrives; of a capture that begins among them, fewer do after a long time."""
        lasted_ns = self.last_ns - self.since_ns
        return self.times >= ENOUGH or (self.times >= ENOUGH - 1 and lasted_ns >= _LONG_NS)

    def add(self, segment: Segment) -> None:
        """Count a copy, of these bytes or others that were under way with them."""
        if _is_ahead(segment.sequence, self.start):
            self.size = max(self.size, ((segment.sequence - self.start) & 0xFFFFFFFF) + segment.length)
        else:
            self.start, self.size = segment.sequence, max(self.size, segment.length)
        self.acknowledged = None
        if segment.time_ns - self.last_ns >= _APART_NS:
            self.times += 1
            self.last_ns = segment.time_ns


class _Direction:
    """One direction of a connection. Offsets are sequence numbers that do not wrap around."""

    __slots__ = (
        "copies",
        "expected",
        "fin",
        "from_start",
        "initial",
        "pending",
        "pending_bytes",
        "sent",
        "sent_ns",
        "since_ns",
    )

    def __init__(self) -> None:
        self.expected: int | None = None  # offset of the next byte to deliver
        self.initial: int | None = None  # sequence number of the SYN
        self.fin: int | None = None
        self.from_start = False
        self.pending: list[_Pending] = []  # sorted, without overlaps, all behind `expected`
        self.pending_bytes = 0
        self.since_ns = 0  # the last time at which nothing beyond `expected` was sent
        self.sent: int | None = None  # where all that was sent ends, whether or not it was captured; see `note_sent`
        self.sent_ns = 0
        self.copies: _Copies | None = None

    @property
    def ended(self) -> bool:
        return self.fin is not None and self.expected is not None and self.expected > self.fin

    def open(self, sequence: int) -> None:
        self.initial = sequence
        self.expected = sequence + 1
        self.from_start = True

    def note_sent(self, segment: Segment) -> bool:
        """Return whether a segment has bytes that were not sent before."""
        if self.expected is not None and (self.sent is None or _is_ahead(self.expected & 0xFFFFFFFF, self.sent)):
            self.sent, self.sent_ns = self.expected & 0xFFFFFFFF, self.since_ns
        end = (segment.sequence + segment.length) & 0xFFFFFFFF
        if self.sent is not None and not _is_ahead(end, self.sent):
            return False
        self.sent, self.sent_ns = end, segment.time_ns
        return True

    def advance(self, size: int) -> None:
        """Note that the next bytes are delivered."""
        assert self.expected is not None
        self.expected += size

    def distance(self, sequence: int) -> int:
        """How far a sequence number lies ahead of the next byte; negative if behind."""
        assert self.expected is not None
        return ((sequence - self.expected + 0x80000000) & 0xFFFFFFFF) - 0x80000000

    def insert(self, ahead: int, payload: bytes, at: At) -> Iterator[_Timed]:
        """Take in bytes that begin `ahead` of the next one; yield what is in order now."""
        assert self.expected is not None
        if ahead < 0:
            payload = payload[-ahead:]
            ahead = 0
        if not ahead and not self.pending:  # nearly always: all of `read_raw_frames` takes a tenth less time
            self.expected += len(payload)
            self.expected += self.expected == self.fin  # a FIN has a sequence number too
            self.since_ns = at[0]
            if payload:
                yield payload, at
            return
        if payload:
            self._insert(self.expected + ahead, payload, at)
        yield from self._in_order()
        while self.pending_bytes > MAX_PENDING or len(self.pending) > _MAX_PENDING_SEGMENTS:
            yield from self.give_up(self.pending[0][0], at)

    def give_up(self, offset: int, at: At) -> Iterator[_Timed]:
        """Count the bytes before `offset` that are missing as lost; `at` is the packet that shows the loss."""
        assert self.expected is not None
        while self.expected < offset:
            until = offset
            if self.pending and self.pending[0][0] <= offset:
                until, _, at = self.pending[0]
            yield Hole(until - self.expected, min(self.since_ns, at[0])), at
            self.since_ns = at[0]
            self.expected = until
            yield from self._in_order()

    def flush(self, at: At) -> Iterator[_Timed]:
        """Deliver everything, because no more segments follow; `at` is the packet that ends the connection."""
        while self.pending:
            yield from self.give_up(self.pending[0][0], self.pending[0][2])
        if self.fin is not None and self.expected is not None and self.expected < self.fin:
            yield from self.give_up(self.fin, at)

    def infer_fin(self) -> None:
        """Note that a FIN follows the bytes so far, though the capture lacks it."""
        assert self.expected is not None
        self.fin = self.expected
        self.expected += 1

    def _insert(self, offset: int, payload: bytes, at: At) -> None:
        """Put the part of the payload that `pending` lacks into it."""
        index = bisect_left(self.pending, (offset,))
        if index and (covered := self.pending[index - 1][0] + len(self.pending[index - 1][1]) - offset) > 0:
            payload, offset = payload[covered:], offset + covered
        while payload:
            free = self.pending[index][0] - offset if index < len(self.pending) else len(payload)
            if part := payload[:free]:
                self.pending.insert(index, (offset, part, at))
                self.pending_bytes += len(part)
                index += 1
            if index == len(self.pending):
                return
            skipped = free + len(self.pending[index][1])
            payload, offset = payload[skipped:], offset + skipped
            index += 1

    def _in_order(self) -> Iterator[_Timed]:
        assert self.expected is not None
        ready: list[_Timed] = []
        for offset, payload, at in self.pending:
            if offset != self.expected:
                break
            self.expected += len(payload)
            self.since_ns = max(self.since_ns, at[0])
            ready.append((payload, at))
            self.pending_bytes -= len(payload)
        del self.pending[: len(ready)]
        if self.expected == self.fin:
            self.expected += 1  # a FIN has a sequence number too; bytes beyond it were never sent
            self.pending.clear()
            self.pending_bytes = 0
        yield from ready


class Group:
    """Connections that are bounded together.

    :param limit: beyond this many, the connection that was silent for longest is ended
    """

    __slots__ = ("limit", "order")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.order: OrderedDict[Pair, None] = OrderedDict()  # the connection that was silent for longest first


@dataclass(slots=True, eq=False)
class TcpConnection:
    """Two endpoints and the bytes they exchange, from one SYN to the next.

    :ivar number: of its first packet; distinguishes two between the same endpoints
    :ivar endpoints: a direction is named by its sender, as an index into this
    :ivar group: what it is bounded with
    :ivar last: number of its last packet
    :ivar initiator: index of the endpoint that sent the first SYN; None if that was not captured
    :ivar closed: nothing more is delivered
    :ivar ending: who has ended it, and by which packet, once that is known
    :ivar ignored: nothing more is delivered until another SYN
    :ivar talk: what its user keeps of it
    """

    number: int
    endpoints: Pair
    group: Group
    last: int
    initiator: int | None = None
    closed: bool = False
    ending: tuple[Closed, At] | None = None
    ignored: bool = False
    talk: Any = None
    _resends: bool = field(default=False, repr=False)  # a direction has `copies`
    _syns: list[At] = field(default_factory=list, repr=False)  # the first and the last that nothing has answered
    _syn_count: int = field(default=0, repr=False)
    _directions: tuple[_Direction, _Direction] = field(default_factory=lambda: (_Direction(), _Direction()), repr=False)
    _held: list[tuple[int, Segment]] = field(default_factory=list, repr=False)

    def from_start(self, sender: int) -> bool:
        """Whether the SYN of this direction was captured, so that its first byte is the first one sent."""
        return self._directions[sender].from_start

    @property
    def is_unanswered(self) -> bool:
        """Whether there is a SYN, and nothing that shows an answer."""
        return bool(self._syns) and self.initiator is not None

    @property
    def buffered(self) -> int:
        """Bytes held back in both directions."""
        held = sum(len(segment.payload) for _, segment in self._held)
        return held + sum(direction.pending_bytes for direction in self._directions)


@dataclass(slots=True)
class StreamEvent:
    """A piece of a connection that is delivered.

    :ivar connection: where it was sent
    :ivar sender: index into `TcpConnection.endpoints`
    :ivar at: the packet that brought the piece, not a later one that let it be delivered; see `Hole`
    :ivar piece: bytes in order, a hole in them, those that are sent again and again, or the end of the connection
    """

    connection: TcpConnection
    sender: int
    at: At
    piece: bytes | Hole | Resent | Closed | Refused


class Reassembler:
    """All connections of a capture.

    :param group_of: chooses the group of a new connection; None leaves out its segments until another SYN. By default
        all are in one group
    :ivar stray_bytes: payload of segments that fit nowhere into their stream
    :ivar crowded: the groups that have more connections than they may, for `shorten`
    """

    def __init__(self, group_of: Callable[[Pair], Group | None] | None = None) -> None:
        self.stray_bytes = 0
        self.crowded: list[Group] = []
        every = Group(MAX_CONNECTIONS)
        self._group_of = group_of or (lambda _: every)
        self._connections: dict[Pair, TcpConnection] = {}

    def push(self, segment: Segment) -> Iterable[StreamEvent]:
        """Take in the next captured segment; return what it delivers. Exhaust an iterator before the next call.

        A tuple has the bytes of a segment that goes on in its connection, if it has any.
        """
        source, destination = segment.source, segment.destination
        pair, sender = ((source, destination), 0) if source <= destination else ((destination, source), 1)
        connection = self._connections.get(pair)
        if connection is None or not _is_next(connection, sender, segment):
            return self._push(connection, pair, sender, segment)
        # Nearly always: what `_push` does, without a generator for each step.
        connection.group.order.move_to_end(pair)
        connection.last = segment.number
        if connection._syns:
            connection._syns.clear()
        direction = connection._directions[sender]
        direction.since_ns = segment.time_ns
        if not segment.payload:
            return ()
        direction.advance(len(segment.payload))
        return (StreamEvent(connection, sender, segment.at, segment.payload),)

    def _push(
        self, connection: TcpConnection | None, pair: Pair, sender: int, segment: Segment
    ) -> Iterator[StreamEvent]:
        if connection is None or _opens_another(connection, sender, segment):
            if not segment.length and not segment.flags & SYN:
                return  # an acknowledgement alone shows no data
            if connection is not None:
                yield from self._end(connection, Closed("closed"), segment.at)
            connection = self._open(pair, segment.number)
            if connection is None:
                return
        connection.group.order.move_to_end(pair)
        connection.last = segment.number
        if connection.closed:
            direction = connection._directions[sender]
            if direction.expected is None or direction.distance(segment.sequence) + segment.length > 0:
                self.stray_bytes += segment.length  # not a mere copy of delivered bytes
            return
        if connection.ignored:
            return
        if segment.flags & RST:
            yield from self._reset(connection, sender, segment)
            return
        _note_start_and_end(connection, sender, segment)
        yield from _note_copies(connection, sender, segment)
        connection._held.append((sender, segment))
        yield from self._release(connection, PATIENCE)
        if all(direction.ended for direction in connection._directions):
            yield from self._end(connection, Closed("closed"), segment.at)

    def shorten(self, at: At) -> Iterator[StreamEvent]:
        """End the connections that are too many; `at` is the packet that shows it."""
        while self.crowded:
            group = self.crowded[-1]
            if len(group.order) <= group.limit:
                self.crowded.pop()
                continue
            silent = self._connections[next(iter(group.order))]
            self.forget(silent)
            yield from self._end(silent, Closed("closed"), at)

    def finish(self, at: At = (0, 0)) -> Iterator[StreamEvent]:
        """Deliver what is still held back, then the end of every connection: `at` is the capture's last packet.

        The connection that was silent for longest ends first.
        """
        for connection in sorted(self._connections.values(), key=lambda each: each.last):
            yield from self._end(connection, Closed(), at)
        self._connections.clear()

    def move(self, connection: TcpConnection, group: Group) -> None:
        """Put a connection into another group, as the one that was active last."""
        if connection.group is not group and connection.endpoints in connection.group.order:
            del connection.group.order[connection.endpoints]
            self._join(connection, group)

    def forget(self, connection: TcpConnection) -> None:
        """Leave out the segments that follow, until another connection is opened."""
        if self._connections.get(connection.endpoints) is connection:
            del self._connections[connection.endpoints], connection.group.order[connection.endpoints]
        connection.ignored = True

    def ignore(self, connection: TcpConnection) -> None:
        """Deliver nothing more of a connection, where that makes no difference to which SYN opens another."""
        first, second = connection._directions
        connection.ignored = (first.initial is None) == (second.initial is None)

    def _open(self, pair: Pair, number: int) -> TcpConnection | None:
        earlier = self._connections.get(pair)
        if earlier is not None:
            self.forget(earlier)
        group = self._group_of(pair)
        if group is None:
            return None
        connection = self._connections[pair] = TcpConnection(number, pair, group, number)
        self._join(connection, group)
        return connection

    def _join(self, connection: TcpConnection, group: Group) -> None:
        connection.group = group
        group.order[connection.endpoints] = None
        if len(group.order) > group.limit:
            self.crowded.append(group)

    def _release(self, connection: TcpConnection, patience: int) -> Iterator[StreamEvent]:
        """Deliver the segments that lack nothing; if more than `patience` are held, give up what the oldest lacks."""
        held = connection._held
        first, blocked = len(held) - 1, {0, 1}  # those before the last were examined by the call before
        while held:
            index = _complete_at(connection, first, blocked)
            sender, segment = held[index]
            if lacking := _lacking(connection, sender, segment):
                if len(held) <= patience:
                    return
                peer = connection._directions[1 - sender]
                assert peer.expected is not None
                for piece, at in peer.give_up(peer.expected + lacking, segment.at):
                    yield StreamEvent(connection, 1 - sender, at, piece)
                first = 0
                continue
            del held[index]
            first, blocked = index, {sender}  # what it delivers releases nothing of its own sender
            for piece, at in self._take(connection, sender, segment):
                yield StreamEvent(connection, sender, at, piece)

    def _take(self, connection: TcpConnection, sender: int, segment: Segment) -> Iterator[_Timed]:
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
        yield from direction.insert(ahead, segment.payload, segment.at)

    def _reset(self, connection: TcpConnection, sender: int, segment: Segment) -> Iterator[StreamEvent]:
        if connection.is_unanswered and connection.initiator == 1 - sender:
            connection.closed = True
            yield StreamEvent(connection, sender, connection._syns[0], Refused("answered with a reset"))
        else:
            yield from self._end(connection, Closed("reset", sender), segment.at)

    def _end(self, connection: TcpConnection, closed: Closed, at: At) -> Iterator[StreamEvent]:
        """End a connection.

        :param closed: how, unless a FIN has ended it before
        :param at: the packet that shows it
        """
        if connection.closed:
            return
        if connection.is_unanswered and connection._syn_count > 1:
            assert connection.initiator is not None
            first, last = connection._syns
            connection.closed = True
            why = unanswered_text(connection._syn_count, last[0] - first[0])
            yield StreamEvent(connection, 1 - connection.initiator, first, Refused(why))
            return
        yield from self._release(connection, patience=0)
        for sender in range(len(connection._directions)):
            yield from _settle(connection, sender, at)
        for sender, direction in enumerate(connection._directions):
            for piece, own in direction.flush(at):
                yield StreamEvent(connection, sender, own, piece)
        connection.closed = True
        yield StreamEvent(connection, 0, *(connection.ending or (closed, at))[::-1])


def _note_start_and_end(connection: TcpConnection, sender: int, segment: Segment) -> None:
    """Note what a segment says about the beginning and the end of its connection."""
    if segment.flags & (SYN | ACK) == SYN:
        connection._syns = [*(connection._syns[:1] or [segment.at]), segment.at]
        connection._syn_count += 1
        return
    connection._syns.clear()
    if segment.flags & FIN and connection.ending is None:
        peer = connection._directions[1 - sender]
        by = sender
        if _lacking(connection, sender, segment) == 1 and not peer.pending and peer.fin is None:
            peer.infer_fin()
            by = 1 - sender
        connection.ending = Closed("closed", by), segment.at


def _note_copies(connection: TcpConnection, sender: int, segment: Segment) -> Iterator[StreamEvent]:
    """Note bytes that are sent again, and acknowledgements of such; deliver those of which the sender has heard."""
    own, peer = connection._directions[sender], connection._directions[1 - sender]
    waiting = peer.copies
    if waiting is not None and segment.flags & ACK and waiting.acknowledged is None:
        waiting.acknowledged = segment.at if _is_ahead(segment.acknowledged, waiting.start) else None
    if not segment.length:
        return
    is_new, heard = own.note_sent(segment), own.copies is not None and own.copies.acknowledged is not None
    if own.copies is not None and heard and (is_new or _is_ahead(segment.sequence, own.copies.start)):
        yield from _settle(connection, sender, segment.at)
    if is_new or (own.copies is None and segment.time_ns - own.sent_ns < _APART_NS):
        return
    if own.copies is None:
        own.copies = _Copies(segment, own.sent_ns, peer.since_ns)
        connection._resends = True
    own.copies.add(segment)


def _settle(connection: TcpConnection, sender: int, at: At) -> Iterator[StreamEvent]:
    """Deliver what one side has sent again and again; `at` is the packet that shows that no copy follows."""
    direction = connection._directions[sender]
    copies, direction.copies = direction.copies, None
    connection._resends = connection._directions[1 - sender].copies is not None
    if copies is not None and copies.are_many:
        piece = Resent(copies.size, copies.times, copies.since_ns, copies.quiet_ns)
        yield StreamEvent(connection, sender, copies.acknowledged or at, piece)


def _is_next(connection: TcpConnection, sender: int, segment: Segment) -> bool:
    """Whether a segment goes on where both directions are, in a connection in which nothing is held."""
    if segment.flags & (SYN | FIN | RST) or connection.closed or connection.ignored or connection._held:
        return False
    if connection._resends:
        return False
    direction = connection._directions[sender]
    if direction.expected is None or direction.fin is not None or direction.pending:
        return False
    return not direction.distance(segment.sequence) and not _lacking(connection, sender, segment)


def _opens_another(connection: TcpConnection, sender: int, segment: Segment) -> bool:
    """Whether a SYN belongs to a new connection, rather than being a copy of the one that opened this."""
    if not segment.flags & SYN or segment.flags & RST:
        return False
    direction, peer = connection._directions[sender], connection._directions[1 - sender]
    if direction.initial is not None:
        return direction.initial != segment.sequence
    seen_midway = direction.expected is not None or (peer.expected is not None and peer.initial is None)
    return seen_midway or connection.closed


def _complete_at(connection: TcpConnection, first: int, blocked: set[int]) -> int:
    """Return the first held segment that lacks nothing; 0 if there is none.

    :param first: no earlier one of the `blocked` senders counts
    """
    held = connection._held
    expected = [direction.expected for direction in connection._directions]
    for at in range(first if len(blocked) > 1 else 0, len(held)):
        sender, segment = held[at]
        if at < first and sender in blocked:
            continue
        peer = expected[1 - sender]  # as `_lacking`, which is called 20 times for each packet of a lossy capture
        if peer is None or not segment.flags & ACK:
            return at
        if not 0 < (segment.acknowledged - peer) & 0xFFFFFFFF <= _WINDOW:
            return at
    return 0


def _lacking(connection: TcpConnection, sender: int, segment: Segment) -> int:
    """Bytes of the other direction that the sender had when it sent this, but that are not delivered yet."""
    peer = connection._directions[1 - sender]
    if not segment.flags & ACK or peer.expected is None:
        return 0
    lacking = peer.distance(segment.acknowledged)
    return lacking if 0 < lacking <= _WINDOW else 0
