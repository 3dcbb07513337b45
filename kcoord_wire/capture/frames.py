"""From a capture file to the frames in it, Kafka's and those of the 0.8 draft.

    for frame in read_capture("cooperative.pcap", ports=[43495]):
        print(frame.time, frame.direction, frame.api, frame.message)

Packets (`pcap`) become TCP segments (`packets`), segments the bytes of each direction (`tcp`), bytes frames
(`splitter`, `conversation`), frames messages (`decode`). This module reads the file and decides which side of a
connection is the broker. That is

* the side whose port the caller gave;
* else a side that was found to be a broker before;
* else the side that did not send the SYN, if the other one starts with a request;
* else, of a connection that was there before the capture, the side whose peer's bytes hold a request.

Two protocols are recognised, each connection by itself: Kafka's, and that of the 0.8 draft (`central`), whose
coordinator is the broker here although it sends requests, too.

A connection that is refused counts where the side that does not send the SYN is such a broker, found before or later.

A connection without such a side is left out. That is reported as lost bytes with their place, because it may have been
a client whose requests are encrypted or damaged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import nullcontext
from mmap import ACCESS_READ, mmap
from os import PathLike
from pathlib import Path
from typing import BinaryIO, Final

from kcoord_wire.capture.central import LIKELY_CENTRAL, assess_central
from kcoord_wire.capture.conversation import CaptureReport, Party, RawConversation, RawFrame, Side
from kcoord_wire.capture.decode import CapturedFrame, FrameDecoder
from kcoord_wire.capture.packets import At, Endpoint, Segment, read_segment
from kcoord_wire.capture.pcap import CaptureError, read_packets
from kcoord_wire.capture.plausible import assess_request_header, request_splitter
from kcoord_wire.capture.salvage import salvage_packets
from kcoord_wire.capture.splitter import SEARCH_WINDOW, FrameSplitter, Plausibility, SplitFrame
from kcoord_wire.capture.tcp import Closed, Connection, Hole, Reassembler, Refused, StreamEvent
from kcoord_wire.codec.framing import DEFAULT_MAX_FRAME_SIZE
from kcoord_wire.kernel.net import address_text, looks_like

GoesOn = Callable[[int, int], bool]
"""Called now and then with the bytes that are read and those there are; reading ends where it returns False."""

_PACKETS_BETWEEN: Final = 512  # calls of it
_PACKET_HEADER: Final = 16


_MAX_REFUSED: Final = 65_536
_MAY_BE_KAFKA: Final = ("link type", "fragment", "short")
"""Reasons (`packets.Unread`) for which a packet of a Kafka connection may be unreadable."""


def read_capture(
    source: str | PathLike[str] | BinaryIO,
    *,
    ports: Collection[int] | None = None,
    max_frame_size: int = DEFAULT_MAX_FRAME_SIZE,
    report: CaptureReport | None = None,
) -> Iterator[CapturedFrame]:
    """The decoded Kafka frames of a capture, in the order in which they were complete.

    The file is opened by the first step of the iterator, and read up to its first damage.

    :param source: a path, or a file opened for reading bytes, which stays open
    :param ports: the brokers' ports; connections without them are ignored. None: every connection that speaks Kafka
    :param max_frame_size: largest frame accepted, in bytes; a larger size is treated as damage
    :param report: filled while the frames are read, and complete when the iterator is exhausted
    :raises CaptureError: the file is neither pcap nor pcapng
    :raises MissingLibraryError: the extra ``capture`` is not installed
    """
    report = CaptureReport() if report is None else report
    decoders: dict[str, FrameDecoder] = {}
    with Path(source).open("rb") if isinstance(source, (str, PathLike)) else nullcontext(source) as file:
        for raw in _read_undamaged(file, _Reader(ports, max_frame_size, report), report):
            decoder = decoders.get(raw.connection)
            if decoder is None:
                decoder = decoders[raw.connection] = FrameDecoder(report, max_frame_size=max_frame_size)
            found = decoder.decode(raw)
            if found is not None:
                yield found
            elif raw.kind in ("closed", "reset"):
                decoders.pop(raw.connection).finish()
    for decoder in decoders.values():
        decoder.finish()


def _read_undamaged(file: BinaryIO, reader: _Reader, report: CaptureReport) -> Iterator[RawFrame]:
    def on_damage(text: str) -> None:
        report.damage = text
        report.note(text)

    for packet in read_packets(file, on_damage):
        report.packets += 1
        segment = read_segment(packet)
        if isinstance(segment, Segment):
            segment.number = report.packets
            yield from reader.push(segment)
        else:
            report.unread_packets[segment] = report.unread_packets.get(segment, 0) + 1
    yield from reader.finish()


def read_raw_frames(
    path: str | PathLike[str],
    *,
    ports: Collection[int] | None = None,
    max_frame_size: int = DEFAULT_MAX_FRAME_SIZE,
    report: CaptureReport | None = None,
    goes_on: GoesOn | None = None,
) -> Iterator[RawFrame]:
    """The same frames, undecoded, with the openings and ends of connections, and with all damage in its place.

    Reading continues after damage, see `salvage`. Parameters and errors are those of `read_capture`.

    :raises OSError: the file cannot be mapped into memory, for example because it is a pipe
    """
    if not Path(path).stat().st_size:
        raise CaptureError("neither pcap nor pcapng: the file is empty")
    report = CaptureReport() if report is None else report
    lost: list[RawFrame] = []
    time_ns = done = 0

    def lose(error: str, size: int, is_hole: bool = True) -> None:
        since_ns = time_ns if is_hole else None
        lost.append(RawFrame(time_ns, report.packets, "", "damage", error=error, lost=size, since_ns=since_ns))

    with Path(path).open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        reader = _Reader(ports, max_frame_size, report)
        for packet in salvage_packets(data, lambda at, size, why: lose(f"byte {at} of the file: {why}", size)):
            for damage in lost:  # before this packet
                damage.time_ns = max(damage.time_ns, packet.time_ns)
            report.packets += 1
            segment = read_segment(packet)
            if isinstance(segment, Segment):
                segment.number = report.packets
                stray = reader.stray_bytes
                yield from reader.push(segment)
                time_ns = packet.time_ns
                if reader.stray_bytes > stray:
                    lose("payload that fits nowhere into its connection", reader.stray_bytes - stray, is_hole=False)
            else:
                time_ns = packet.time_ns
                report.unread_packets[segment] = report.unread_packets.get(segment, 0) + 1
                if segment in _MAY_BE_KAFKA:
                    lose(f"a packet that could not be read: {segment}", len(packet.data))
            yield from lost
            lost.clear()
            done += _PACKET_HEADER + len(packet.data)
            if goes_on and not report.packets % _PACKETS_BETWEEN and not goes_on(min(done, len(data)), len(data)):
                break
        yield from reader.finish()
        if report.packets and not report.connections:
            hint = "encrypted, or not Kafka's" if ports is None else f"none to the ports {sorted(ports)}"
            lose(f"no Kafka connection in {report.packets} packets: {hint}", 0, is_hole=False)
        yield from lost


class _Introduction:
    """A connection whose broker is not known yet.

    :ivar events: all so far
    :ivar hopeless: no broker will be found
    :ivar size: bytes in `events`
    """

    def __init__(self, connection: Connection, max_frame_size: int) -> None:
        self.events: list[StreamEvent] = []
        self.hopeless = False
        self.size = 0
        self._max_frame_size = max_frame_size
        self._client = connection.initiator
        self._opening = bytearray()
        self._probes = [request_splitter(max_frame_size, in_step=False) for _ in range(2)]
        self._central_probes = [[_central_probe(side, max_frame_size) for side in _SIDES] for _ in range(2)]

    def find_broker(self, event: StreamEvent) -> int | None:
        """Take in the next event; return the index of the broker once it is known."""
        self.events.append(event)
        if isinstance(event.piece, (Closed, Refused)):
            self.hopeless = True
            return None
        if isinstance(event.piece, Hole):
            self._client = None  # the first bytes alone do not decide any more
            for probe in (self._probes[event.sender], *self._central_probes[event.sender]):
                for _ in probe.hole(event.piece.size):
                    pass
            return None
        self.size += len(event.piece)
        found = self._opens_with_request if self._client is not None else self._finds_client
        client = found(event.sender, event.piece)
        if client is not None:
            return 1 - client
        self.hopeless |= self.size > 2 * SEARCH_WINDOW
        return None

    def _opens_with_request(self, sender: int, data: bytes) -> int | None:
        if sender != self._client:
            return None
        self._opening += data
        either = {
            assess_central("request", self._opening, 0, self._max_frame_size),
            assess_request_header(self._opening, 0, self._max_frame_size),
        }
        self.hopeless = either == {Plausibility.NO}
        return sender if Plausibility.YES in either else None

    def _finds_client(self, sender: int, data: bytes) -> int | None:
        """The side that is the client, if a frame among the bytes of this one shows that."""
        consumer, coordinator = self._central_probes[sender]
        if _holds_frame(coordinator, data):
            return 1 - sender
        if _holds_frame(consumer, data) or _holds_frame(self._probes[sender], data):
            return sender
        return None

    @property
    def first_bytes(self) -> bytes:
        """What the connection began with, as far as it was captured."""
        return next((event.piece for event in self.events if isinstance(event.piece, bytes)), b"")


_SIDES: Final[tuple[Side, Side]] = ("request", "response")


def _central_probe(side: Side, max_frame_size: int) -> FrameSplitter:
    """Finds the first frame of the 0.8 draft that shows who sent it."""

    def assess(buffer: bytearray, start: int) -> Plausibility:
        return assess_central(side, buffer, start, max_frame_size)

    return request_splitter(max_frame_size, in_step=False, assess=assess, likely=lambda: LIKELY_CENTRAL)


def _holds_frame(probe: FrameSplitter, data: bytes) -> bool:
    return any(isinstance(found, SplitFrame) for found in probe.feed(data))


class _Dialogue:
    """A connection whose broker is known.

    :param broker: its index in the connection
    """

    def __init__(self, broker: int, conversation: RawConversation) -> None:
        self._broker = broker
        self._conversation = conversation

    def open(self, event: StreamEvent) -> list[RawFrame]:
        return self._conversation.open(*event.at)

    def handle(self, event: StreamEvent) -> list[RawFrame]:
        """Take in the next event; return the frames that it completes."""
        side: Side = "response" if event.sender == self._broker else "request"
        match event.piece:
            case Closed(how, by):
                party: Party | None = None if by is None else "broker" if by == self._broker else "client"
                return self._conversation.close(*event.at, how=how, by=party)
            case Hole(size, since_ns):
                return self._conversation.hole(side, size, *event.at, since_ns=since_ns or None)
            case Refused():
                return []
            case data:
                return self._conversation.feed(side, data, *event.at)


class _Reader:
    """All connections of a capture, each with what is known of it so far."""

    def __init__(self, ports: Collection[int] | None, max_frame_size: int, report: CaptureReport) -> None:
        self._ports = None if ports is None else frozenset(ports)
        self._max_frame_size = max_frame_size
        self._report = report
        self._reassembler = Reassembler()
        self._brokers: set[Endpoint] = set()
        self._talks: dict[int, _Introduction | _Dialogue | None] = {}  # by connection number; None: left out
        self._refused: deque[StreamEvent] = deque(maxlen=_MAX_REFUSED)  # by what is not known to be a broker
        self._last: At = (0, 0)

    @property
    def stray_bytes(self) -> int:
        """Payload so far that fits nowhere into its connection."""
        return self._reassembler.stray_bytes

    def push(self, segment: Segment) -> Iterator[RawFrame]:
        """Take in the next segment; yield the frames that it completes."""
        self._last = segment.at
        if self._ports is not None and self._ports.isdisjoint((segment.source[1], segment.destination[1])):
            return
        self._report.cut_packets += len(segment.payload) < segment.length
        for event in self._reassembler.push(segment):
            yield from self._handle(event)

    def finish(self) -> Iterator[RawFrame]:
        """Yield what is held: the capture has ended."""
        for event in self._reassembler.finish(self._last):
            yield from self._handle(event)
        self._report.stray_bytes = self._reassembler.stray_bytes

    def _handle(self, event: StreamEvent) -> Iterator[RawFrame]:
        connection = event.connection
        if isinstance(event.piece, Refused):
            yield from self._refuse(event)
            return
        if connection.number not in self._talks:
            broker = self._known_broker(connection)
            if broker is None:
                self._talks[connection.number] = _Introduction(connection, self._max_frame_size)
            else:
                yield from self._begin(connection, broker).open(event)
        talk = self._talks[connection.number]
        if isinstance(talk, _Dialogue):
            yield from talk.handle(event)
        elif isinstance(talk, _Introduction):
            yield from self._introduce(talk, event)
        if isinstance(event.piece, Closed):
            del self._talks[connection.number]

    def _introduce(self, introduction: _Introduction, event: StreamEvent) -> Iterator[RawFrame]:
        connection = event.connection
        broker = introduction.find_broker(event)
        if broker is not None:
            self._brokers.add(connection.endpoints[broker])
            dialogue = self._begin(connection, broker)
            yield from dialogue.open(introduction.events[0])
            for earlier in introduction.events:
                yield from dialogue.handle(earlier)
            yield from self._refused_by_brokers()
        elif introduction.hopeless:
            yield from self._leave_out(connection, introduction)

    def _leave_out(self, connection: Connection, introduction: _Introduction) -> Iterator[RawFrame]:
        """Count a connection without a Kafka request and, unless it carried no bytes, report it as lost."""
        self._talks[connection.number] = None
        self._report.foreign_connections += 1
        if introduction.size:
            ends = "-".join(address_text(*endpoint) for endpoint in connection.endpoints)
            error = f"a connection without a Kafka request, left out: {ends}{looks_like(introduction.first_bytes)}"
            yield RawFrame(*introduction.events[0].at, "", "damage", error=error, lost=introduction.size)

    def _refuse(self, event: StreamEvent) -> Iterator[RawFrame]:
        """Report a connection that was never made, at once or when its other side is found to be a broker."""
        if self._is_broker(event.connection.endpoints[event.sender]):
            name = self._name(event.connection, event.sender)
            assert isinstance(event.piece, Refused)
            yield RawFrame(*event.at, name, "refused", error=event.piece.why)
        else:
            self._refused.append(event)

    def _refused_by_brokers(self) -> Iterator[RawFrame]:
        held = list(self._refused)
        self._refused.clear()
        for event in held:
            yield from self._refuse(event)

    def _is_broker(self, endpoint: Endpoint) -> bool:
        return endpoint in self._brokers if self._ports is None else endpoint[1] in self._ports

    def _known_broker(self, connection: Connection) -> int | None:
        """Index of the broker where the port, or an earlier connection, shows it."""
        known = [self._is_broker(endpoint) for endpoint in connection.endpoints]
        if known == [True, True] and connection.initiator is not None:  # brokers among themselves
            return 1 - connection.initiator
        return known.index(True) if sum(known) == 1 else None

    def _begin(self, connection: Connection, broker: int) -> _Dialogue:
        conversation = RawConversation(
            self._name(connection, broker),
            self._report,
            max_frame_size=self._max_frame_size,
            in_step=(connection.from_start(1 - broker), connection.from_start(broker)),
        )
        dialogue = self._talks[connection.number] = _Dialogue(broker, conversation)
        return dialogue

    @staticmethod
    def _name(connection: Connection, broker: int) -> str:
        names = [address_text(*endpoint) for endpoint in connection.endpoints]
        return f"{names[1 - broker]}-{names[broker]}#{connection.number}"
