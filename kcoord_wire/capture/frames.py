"""From a capture file to the Kafka frames in it.

    for frame in read_capture("cooperative.pcap", ports=[43495]):
        print(frame.time, frame.direction, frame.api, frame.message)

Packets (`pcap`) become TCP segments (`packets`), segments the bytes of each direction (`tcp`), bytes frames
(`splitter`, `conversation`). This module reads the file and tells the client from the broker.

Who is the broker: the side whose port the caller gave; else one that was found to be a broker before; else the side
that did not send the SYN, provided that the other one starts with a request; else, of a connection that was there
before the capture, the side whose peer's bytes hold a request.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import nullcontext
from mmap import ACCESS_READ, mmap
from os import PathLike
from pathlib import Path
from typing import BinaryIO, Generic, Protocol, TypeVar

from kcoord_wire.capture.conversation import CapturedFrame, CaptureReport, Conversation, Side
from kcoord_wire.capture.packets import Endpoint, Segment, read_segment
from kcoord_wire.capture.pcap import CaptureError, read_packets
from kcoord_wire.capture.plausible import judge_request_header, request_splitter
from kcoord_wire.capture.raw import RawConversation, RawFrame
from kcoord_wire.capture.salvage import salvage_packets
from kcoord_wire.capture.splitter import SEARCH_WINDOW, SplitFrame, Verdict
from kcoord_wire.capture.tcp import Closed, Connection, Hole, Reassembler, StreamEvent
from kcoord_wire.codec.framing import DEFAULT_MAX_FRAME_SIZE

__all__ = ["read_capture", "read_raw_frames"]


def read_capture(
    source: str | PathLike[str] | BinaryIO,
    *,
    ports: Collection[int] | None = None,
    max_frame_size: int = DEFAULT_MAX_FRAME_SIZE,
    report: CaptureReport | None = None,
) -> Iterator[CapturedFrame]:
    """The Kafka frames of a capture, in the order in which they were complete. The file is opened by the first step.

    :param source: a path, or a file opened for reading bytes, which stays open
    :param ports: the brokers' ports; connections without them are ignored. None: every connection that speaks Kafka
    :param max_frame_size: largest frame accepted, in bytes; a larger size is not taken for one
    :param report: is filled while the frames are read, and complete when they are used up
    :raises CaptureError: the file is neither pcap nor pcapng
    :raises MissingLibraryError: the extra ``capture`` is not installed
    """
    report = CaptureReport() if report is None else report
    with Path(source).open("rb") if isinstance(source, (str, PathLike)) else nullcontext(source) as file:
        reader = _Reader(Conversation, ports, max_frame_size, report)
        for segment in _read_segments(file, report):
            yield from reader.push(segment)
        yield from reader.finish()


def read_raw_frames(
    path: str | PathLike[str],
    *,
    ports: Collection[int] | None = None,
    max_frame_size: int = DEFAULT_MAX_FRAME_SIZE,
    report: CaptureReport | None = None,
) -> Iterator[RawFrame]:
    """The same frames, undecoded, with the openings and ends of connections, and with all damage in its place.

    Damage does not end the reading, see `salvage`. The parameters and errors are those of `read_capture`.

    :raises OSError: the file cannot be mapped into memory, as no pipe can
    """
    if not Path(path).stat().st_size:
        raise CaptureError("neither pcap nor pcapng: the file is empty")
    report = CaptureReport() if report is None else report
    lost: list[RawFrame] = []
    time_ns = 0

    def lose(error: str, size: int) -> None:
        lost.append(RawFrame(time_ns, report.packets, "", "damage", error=error, lost=size))

    with Path(path).open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        reader = _Reader(RawConversation, ports, max_frame_size, report)
        for packet in salvage_packets(data, lambda at, size, why: lose(f"byte {at} of the file: {why}", size)):
            time_ns = packet.time_ns
            segment = read_segment(packet)
            if isinstance(segment, Segment):
                stray = reader.stray_bytes
                for found in reader.push(segment):
                    found.position = report.packets
                    yield found
                if reader.stray_bytes > stray:
                    lose("payload that fits nowhere into its connection", reader.stray_bytes - stray)
            else:
                report.unread_packets[segment] = report.unread_packets.get(segment, 0) + 1
                if segment in _LOST:
                    lose(f"a packet that could not be read: {segment}", len(packet.data))
            yield from lost
            lost.clear()
            report.packets += 1
        for found in reader.finish():
            found.position = report.packets
            yield found
        if report.packets and not report.connections:
            hint = "encrypted, or not Kafka's" if ports is None else f"none to the ports {sorted(ports)}"
            lose(f"no Kafka connection in {report.packets} packets: {hint}", 0)
        yield from lost


_LOST = ("link type", "fragment", "short")  # of `Unread`: what may have been of a Kafka connection


def _read_segments(file: BinaryIO, report: CaptureReport) -> Iterator[Segment]:
    def on_damage(text: str) -> None:
        report.damage = text
        report.note(text)

    for packet in read_packets(file, on_damage):
        report.packets += 1
        segment = read_segment(packet)
        if isinstance(segment, Segment):
            yield segment
        else:
            report.unread_packets[segment] = report.unread_packets.get(segment, 0) + 1


class _Introduction:
    """A connection of which it is not known yet who is the broker."""

    def __init__(self, connection: Connection, max_frame_size: int) -> None:
        self.events: list[StreamEvent] = []
        self.hopeless = False
        self._max_frame_size = max_frame_size
        self._size = 0
        self._client = connection.initiator
        self._opening = bytearray()
        self._probes = [request_splitter(max_frame_size, in_step=False) for _ in range(2)]

    def hear(self, event: StreamEvent) -> int | None:
        """Take in the next event; give the index of the broker once it is known."""
        self.events.append(event)
        sender, piece = event.sender, event.piece
        if isinstance(piece, Closed):
            self.hopeless = True
        elif isinstance(piece, Hole):
            self._client = None  # the first bytes alone do not tell any more
            for _ in self._probes[sender].hole(piece.size):
                pass
        elif self._client is not None:
            if sender == self._client:
                self._opening += piece
                verdict = judge_request_header(self._opening, 0, self._max_frame_size)
                self.hopeless = verdict is Verdict.NO
                return 1 - sender if verdict is Verdict.YES else None
        elif any(isinstance(found, SplitFrame) for found in self._probes[sender].feed(piece)):
            return 1 - sender
        self._size += len(piece) if isinstance(piece, bytes) else 0
        self.hopeless |= self._size > 2 * SEARCH_WINDOW
        return None


Found = TypeVar("Found")


class _Converses(Protocol[Found]):
    """`Conversation` or `RawConversation`."""

    def __call__(
        self, connection: str, report: CaptureReport, /, *, max_frame_size: int, in_step: tuple[bool, bool]
    ) -> _Talk[Found]: ...


class _Talk(Protocol[Found]):
    def open(self, time_ns: int, /) -> list[Found]: ...
    def feed(self, side: Side, data: bytes, time_ns: int) -> list[Found]: ...
    def hole(self, side: Side, size: int, time_ns: int) -> list[Found]: ...
    def close(self, time_ns: int, seen: bool, /) -> list[Found]: ...


class _Dialogue(Generic[Found]):
    """A connection between a client and a broker."""

    def __init__(self, broker: int, conversation: _Talk[Found]) -> None:
        self._broker = broker
        self._conversation = conversation

    def open(self, time_ns: int) -> list[Found]:
        return self._conversation.open(time_ns)

    def hear(self, event: StreamEvent, ended: bool) -> list[Found]:
        """Take in the next event; give the frames that it completes."""
        side: Side = "response" if event.sender == self._broker else "request"
        if isinstance(event.piece, Closed):
            return self._conversation.close(event.time_ns, not ended)
        if isinstance(event.piece, Hole):
            return self._conversation.hole(side, event.piece.size, event.time_ns)
        return self._conversation.feed(side, event.piece, event.time_ns)


class _Reader(Generic[Found]):
    """All connections of a capture, each with what is known of it so far."""

    def __init__(
        self, converse: _Converses[Found], ports: Collection[int] | None, max_frame_size: int, report: CaptureReport
    ) -> None:
        self._converse = converse
        self._ended = False
        self._ports = None if ports is None else frozenset(ports)
        self._max_frame_size = max_frame_size
        self._report = report
        self._reassembler = Reassembler()
        self._brokers: set[Endpoint] = set()
        self._heard: dict[int, _Introduction | _Dialogue[Found] | None] = {}  # None: nobody speaks Kafka there
        self._time_ns = 0

    @property
    def stray_bytes(self) -> int:
        """Payload so far that fits nowhere into its connection."""
        return self._reassembler.stray_bytes

    def push(self, segment: Segment) -> Iterator[Found]:
        self._time_ns = segment.time_ns
        if self._ports is not None and self._ports.isdisjoint((segment.source[1], segment.destination[1])):
            return
        self._report.cut_packets += len(segment.payload) < segment.length
        for event in self._reassembler.push(segment):
            yield from self._handle(event)

    def finish(self) -> Iterator[Found]:
        self._ended = True
        for event in self._reassembler.finish(self._time_ns):
            yield from self._handle(event)
        self._report.stray_bytes = self._reassembler.stray_bytes

    def _handle(self, event: StreamEvent) -> Iterator[Found]:
        connection = event.connection
        if connection.number not in self._heard:
            broker = self._known_broker(connection)
            if broker is None:
                self._heard[connection.number] = _Introduction(connection, self._max_frame_size)
            else:
                dialogue = self._heard[connection.number] = self._begin(connection, broker)
                yield from dialogue.open(event.time_ns)
        heard = self._heard[connection.number]
        if isinstance(heard, _Dialogue):
            yield from heard.hear(event, self._ended)
        elif isinstance(heard, _Introduction):
            broker = heard.hear(event)
            if broker is not None:
                self._brokers.add(connection.endpoints[broker])
                dialogue = self._heard[connection.number] = self._begin(connection, broker)
                yield from dialogue.open(heard.events[0].time_ns)
                for earlier in heard.events:
                    yield from dialogue.hear(earlier, self._ended)
            elif heard.hopeless:
                self._heard[connection.number] = None
                self._report.foreign_connections += 1
        if isinstance(event.piece, Closed):
            del self._heard[connection.number]

    def _known_broker(self, connection: Connection) -> int | None:
        """Index of the broker where the port, or an earlier connection, tells it."""
        known = [
            endpoint in self._brokers if self._ports is None else endpoint[1] in self._ports
            for endpoint in connection.endpoints
        ]
        if known == [True, True] and connection.initiator is not None:  # brokers among themselves
            return 1 - connection.initiator
        return known.index(True) if sum(known) == 1 else None

    def _begin(self, connection: Connection, broker: int) -> _Dialogue[Found]:
        client = 1 - broker
        names = [f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}" for ip, port in connection.endpoints]
        conversation = self._converse(
            f"{names[client]}-{names[broker]}#{connection.number}",
            self._report,
            max_frame_size=self._max_frame_size,
            in_step=(connection.from_start(client), connection.from_start(broker)),
        )
        return _Dialogue(broker, conversation)
