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
a client whose requests are encrypted or damaged; the row of one whose TLS handshake fails (`tls`) has its name.

Laws:

* Every frame is returned, whatever it holds: of an api that the registry does not have, with a body that does not
  decode (`CapturedFrame.error`), incomplete, or a response without its request. Nothing raises.
* A frame that strict decoding refuses is decoded as leniently as Kafka's own readers do, and marked
  (`CapturedFrame.irregularity`).
* A capture may be read in shares, each by a reader of its own (`Share`): connections are spread over lanes
  (`lanes`). Such a reader yields the frames of its lanes, with the values that a reader of all has. For that it
  recognises the brokers of all connections: it follows each connection until its broker is known, and passes over
  what comes later in lanes that are not its own. What is known of a file and of no connection is in the first lane.
* Rows have numbers (`RawFrames.number`) that follow from the packet that completed them and from their connection, so
  that they are the same in any share. They ascend, except that of a connection that was refused before its broker was
  found, which has the place of its first packet.
* All connections without a known broker are bounded together, those of a lane together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from statistics import median_low
from typing import Any, BinaryIO, Final, Protocol

from kcoord_wire.capture.central import (
    LIKELY_CENTRAL,
    REWRITE,
    CentralPending,
    CentralReader,
    assess_central,
    is_central,
    is_rewrite_join,
)
from kcoord_wire.capture.conversation import (
    CaptureReport,
    Party,
    RawConversation,
    RawFrame,
    RequestHead,
    Side,
    assess_request_header,
    has_header,
    is_known,
    request_splitter,
)
from kcoord_wire.capture.lanes import EVERY_LANE, LANES, Pair, lane_of
from kcoord_wire.capture.packets import At, Endpoint, Segment, read_segment
from kcoord_wire.capture.pcap import (
    OF_TIME,
    BlockFile,
    CaptureError,
    ClassicFile,
    Packet,
    follows,
    open_packets,
    read_packets,
)
from kcoord_wire.capture.splitter import SEARCH_WINDOW, FrameSplitter, Plausibility, SplitFrame
from kcoord_wire.capture.tcp import (
    MAX_CONNECTIONS,
    Closed,
    Group,
    Hole,
    Reassembler,
    Refused,
    Resent,
    StreamEvent,
    TcpConnection,
)
from kcoord_wire.capture.tls import TlsHandshake
from kcoord_wire.codec.frames import TypeIdHeader
from kcoord_wire.codec.framing import DEFAULT_MAX_FRAME_SIZE
from kcoord_wire.codec.pending import PendingRequests
from kcoord_wire.codec.registry import decode_request, decode_response, peek_request
from kcoord_wire.errors import DecodeError
from kcoord_wire.kernel.file_bytes import WINDOW, FileBytes
from kcoord_wire.kernel.net import address_text, guess_protocol
from kcoord_wire.messages.request_header import RequestHeader
from kcoord_wire.messages.response_header import ResponseHeader
from kcoord_wire.messages.rewrite.rewrite_join_group import RewriteJoinGroupResponse
from kcoord_wire.protocol.api_keys import ApiKey, api_name
from kcoord_wire.protocol.wording import LIKE_TLS, TLS_FAILED


@dataclass(slots=True)
class CapturedFrame:
    """One frame that was seen on the wire.

    :ivar time_ns: when the last of its bytes was captured, in nanoseconds since 1970; `time` is the same in seconds
    :ivar connection: ``client_ip:port-broker_ip:port#n``, n the number of its first packet in the capture
    :ivar direction: ``request`` or ``response``. On a connection of the 0.8 draft the coordinator, which is the broker
        of the connection, sends the requests Ping, StopFetcher and StartFetcher
    :ivar api_key: of the request; None where it is not known: a response without its request, a SASL token
    :ivar api: the name of the api key, also where the registry does not have it; None where the key is not known
    :ivar api_version: of the request. An ApiVersions response with error 35 has body version 0 whatever this says
    :ivar correlation_id: of the request and its response; None where it could not be read
    :ivar client_id: of the request, also in its response
    :ivar size: bytes of the frame with its header, without the four bytes of its size
    :ivar header: RequestHeader, ResponseHeader, or TypeIdHeader (the draft); None where it could not be read
    :ivar message: the decoded message; None if the registry does not have the api, or if it did not decode
    :ivar error: why it did not decode; None for an api that the registry does not have and for a SASL token
    :ivar irregularity: why strict decoding refuses it, if only lenient decoding accepts it
    :ivar raw: the body with its header: `size` bytes, or fewer where some were not captured
    """

    time_ns: int
    connection: str
    direction: Side
    api_key: int | None = None
    api: str | None = None
    api_version: int | None = None
    correlation_id: int | None = None
    client_id: str | None = None
    size: int = 0
    header: Any = None
    message: Any = None
    error: str | None = None
    irregularity: str | None = None
    raw: bytes = b""

    @property
    def time(self) -> float:
        """Seconds since 1970."""
        return self.time_ns / 1e9


class FrameDecoder:
    """Decodes what `RawConversation` returns for one connection.

    :param report: counts and notes go here
    :param max_frame_size: as for `Framer`
    """

    def __init__(self, report: CaptureReport, *, max_frame_size: int = DEFAULT_MAX_FRAME_SIZE) -> None:
        self._report = report
        self._max_frame_size = max_frame_size
        self._pending: PendingRequests[RequestHead] = PendingRequests()
        self._central: CentralReader | None = None  # of a connection of the draft
        self._asked: CentralPending[bool] = CentralPending()
        self._is_known = False  # whether the connection is the draft's
        self._sasl_tokens = False  # frames may be bare tokens, as they follow a SaslHandshake of version 0

    def decode(self, raw: RawFrame) -> CapturedFrame | None:
        """Return a request or response decoded; note damage in the report and return None for it and other events."""
        if raw.kind == "request" or raw.kind == "response":
            found = CapturedFrame(raw.time_ns, raw.connection, raw.kind, size=raw.size, raw=raw.body)
            if not self._is_known and raw.error is None:
                self._is_known = True
                self._central = CentralReader() if is_central(raw.kind, raw.body) else None
            if self._central is not None:
                self._of_central(found, self._central)
            elif raw.kind == "request":
                self._request(found)
            else:
                self._response(found)
            self._note_faults(found, raw)
            return found
        if raw.kind == "damage":
            self._report.note(f"{raw.connection} {raw.error} ({raw.lost} bytes)".lstrip())
        return None

    def finish(self) -> None:
        """Count the requests without a response: no frames follow."""
        self._report.unanswered_requests += len(self._pending.clear()) + len(self._asked.clear())

    def _note_faults(self, found: CapturedFrame, raw: RawFrame) -> None:
        if raw.error is not None:  # it is cut
            found.message = None
            found.irregularity = None
            found.error = raw.error
        elif found.error is not None:
            self._report.undecodable += 1
        elif found.irregularity is not None:
            self._report.irregular += 1
        if complaint := found.error or found.irregularity:
            what = f"{found.api} v{found.api_version}, id {found.correlation_id}"
            self._report.note(f"{found.connection} {found.direction}: {what}: {complaint}")

    def _of_central(self, found: CapturedFrame, reader: CentralReader) -> None:
        try:
            what = reader.identify(found.direction, found.raw)
        except DecodeError as error:
            found.error = error.detail
            self._report.unmatched_responses += found.direction == "response"
            return
        found.direction, found.api_key, found.api, found.api_version = what.direction, what.type_id, what.name, 0
        found.header = TypeIdHeader(what.type_id) if what.start else None
        self._decode_either_way(found, lambda strict: (found.header, what.decode(found.raw, strict=strict)))
        if what.direction == "request":
            self._report.unanswered_requests += len(self._asked.ask(what.type_id, found.message, True))
        elif (answered := self._asked.answer(what.type_id, found.message)) is not None:
            self._report.unanswered_requests += len(answered[1])
        else:
            self._report.unmatched_responses += 1

    def _request(self, found: CapturedFrame) -> None:
        if self._sasl_tokens and not has_header(found.raw, self._max_frame_size):
            self._report.sasl_tokens += 1
            return
        self._sasl_tokens = False
        try:
            header: RequestHeader = peek_request(found.raw)
        except DecodeError as error:
            found.error = str(error)
            return
        found.header = header
        found.correlation_id = header.correlation_id
        head = RequestHead(header.request_api_key, header.request_api_version, header.client_id)
        if is_rewrite_join(found.raw):
            head = head._replace(family=REWRITE)
        self._decode(found, head, lambda strict: decode_request(found.raw, family=head.family, strict=strict))
        # A producer that asks for no acknowledgement gets no response at all.
        if head.api_key != ApiKey.PRODUCE or getattr(found.message, "acks", None) != 0:
            self._report.unanswered_requests += len(self._pending.add(header.correlation_id, head))
        if (head.api_key, head.api_version) == (ApiKey.SASL_HANDSHAKE, 0):
            self._sasl_tokens = True
            text = "SaslHandshake v0: the frames that follow may be bare SASL tokens"
            self._report.note(f"{found.connection} request: {text}")

    def _response(self, found: CapturedFrame) -> None:
        correlation_id = int.from_bytes(found.raw[:4], "big", signed=True)
        answered = self._pending.answer(correlation_id) if len(found.raw) >= 4 else None
        if answered is None and self._sasl_tokens:
            self._report.sasl_tokens += 1
            return
        found.correlation_id = correlation_id
        if answered is None:
            found.error = "its request was not captured"
            self._report.unmatched_responses += 1
            return
        head, unanswered = answered
        self._report.unanswered_requests += len(unanswered)
        found.header = ResponseHeader(correlation_id=correlation_id)
        api = head.api_key if head.family == "kafka" else RewriteJoinGroupResponse
        self._decode(found, head, lambda strict: decode_response(found.raw, api, head.api_version, strict=strict))

    def _decode(self, found: CapturedFrame, head: RequestHead, decode: Callable[[bool], tuple[Any, Any]]) -> None:
        """Decode what the registry has, strictly, else leniently.

        :param decode: takes whether to be strict, returns header and message
        """
        found.api_key, found.api_version, found.client_id, _ = head
        found.api = api_name(head.api_key)
        if not is_known(head.api_key):
            self._report.unknown_apis += 1
            return
        self._decode_either_way(found, decode)

    @staticmethod
    def _decode_either_way(found: CapturedFrame, decode: Callable[[bool], tuple[Any, Any]]) -> None:
        try:
            found.header, found.message = decode(True)
        except DecodeError as complaint:
            try:
                found.header, found.message = decode(False)
                found.irregularity = str(complaint)
            except DecodeError as error:
                found.error = str(error)


GoesOn = Callable[[int, int], bool]
"""Called now and then with the bytes that are read and those there are; reading ends where it returns False."""

_PACKETS_BETWEEN: Final = 512  # calls of it
_PACKET_HEADER: Final = 16


_MAX_REFUSED: Final = 65_536 // LANES
"""Of a lane."""
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
                decoder = FrameDecoder(report, max_frame_size=max_frame_size)
                if raw.kind == "opened":  # else no frame follows
                    decoders[raw.connection] = decoder
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

    Reading continues after damage, as the head of this module says. Parameters and errors are those of `read_capture`.

    :raises OSError: the file cannot be read at any place, for example because it is a pipe
    """
    frames = RawFrames(ports=ports, max_frame_size=max_frame_size, report=report)
    yield from frames.read(path, goes_on)
    yield from frames.finish()


_OF_PACKET: Final = 1 << 26
"""Between the numbers of the first rows of two packets: more than the rows that one can complete, of four bytes or more
each, since the bytes that a connection holds are bounded."""

_ENDED, _LOST, _STRAY, _REFUSED = _OF_PACKET // 4, _OF_PACKET // 2, _OF_PACKET // 8 * 5, _OF_PACKET // 4 * 3
"""Where the numbers begin, behind that of a packet, of connections that are ended because there are too many, of what
is lost before the packet or with it, of payload that fits nowhere, and of connections that were refused."""

Passed = tuple[int, int]
"""How many packets are passed over, and the time of the last one. Each has a TCP segment."""


class Share(Protocol):
    """A part of a capture, and what finds the packets that its reader needs.

    :ivar lanes: of the connections whose frames are read
    :ivar window: bytes of the file that are held
    """

    lanes: range
    window: int

    def packets(
        self, file: ClassicFile | BlockFile, brokers: KnownBrokers, times: deque[int]
    ) -> Iterator[Packet | Passed]:
        """Yield the packets of a file in order, but for those that `brokers` lets pass over.

        :param times: of the last packets, kept up to date whenever a damage is reported, and at the end
        """


class RawFrames:
    """The frames of a capture in one file or more, which are read one after the other; see `read_raw_frames`.

    A connection, a frame and what is known of brokers go on in the next file; packets are counted from 1 in each.

    :param share: None for all frames
    """

    def __init__(
        self,
        *,
        ports: Collection[int] | None = None,
        max_frame_size: int = DEFAULT_MAX_FRAME_SIZE,
        report: CaptureReport | None = None,
        share: Share | None = None,
    ) -> None:
        self._ports = ports
        self._report = CaptureReport() if report is None else report
        self._share = share
        lanes = EVERY_LANE if share is None else share.lanes
        self._is_first = 0 in lanes
        self._reader = _Reader(ports, max_frame_size, self._report, lanes)
        self._lost: list[RawFrame] = []
        self._last: deque[int] = deque(maxlen=OF_TIME)
        self._before: list[int] = []  # packets of the files before each

    def can_follow(self, time_ns: int, within_ns: int | None = None) -> bool:
        """Whether a file that begins at a time can follow what was read, at most `within_ns` later."""
        return not self._last or follows(median_low(self._last), time_ns, within_ns)

    def lose(self, error: str, size: int, *, is_hole: bool = True) -> None:
        """Report bytes that are lost behind the last packet, before the next one."""
        if self._is_first:
            self._lose(error, size, self._last[-1] if self._last else 0, is_hole=is_hole)

    def _lose(self, error: str, size: int, time_ns: int, *, is_hole: bool) -> RawFrame:
        at = self._report.packets - self._before[-1]
        lost = RawFrame(time_ns, at, "", "damage", error=error, lost=size, since_ns=time_ns if is_hole else None)
        lost.file = len(self._before) - 1
        self._lost.append(lost)
        return lost

    def number(self, frame: RawFrame) -> int:
        """Return the number of the row that was yielded last."""
        if frame.number is not None:
            return frame.number
        reader = self._reader
        reader.place += 1
        return reader.place

    def read(self, path: str | PathLike[str], goes_on: GoesOn | None = None) -> Iterator[RawFrame]:
        """Yield the frames that the packets of the next file complete.

        :raises CaptureError: the file is neither pcap nor pcapng
        :raises OSError: the file cannot be read at any place
        """
        self._before.append(self._report.packets)
        if not Path(path).stat().st_size:
            raise CaptureError("neither pcap nor pcapng: the file is empty")
        with Path(path).open("rb", buffering=0) as file:
            data = FileBytes(file, WINDOW if self._share is None else self._share.window)
            packets = open_packets(data, lambda at, size, why: self.lose(f"byte {at} of the file: {why}", size))
            yield from self._of_all(packets, goes_on) if self._share is None else self._of_share(packets, self._share)

    def finish(self) -> Iterator[RawFrame]:
        """Yield what is held: the last file has ended."""
        yield from self._placed(self._reader.finish())
        if self._report.packets and not self._report.connections:
            hint = "encrypted, or not Kafka's" if self._ports is None else f"none to the ports {sorted(self._ports)}"
            self.lose(f"no Kafka connection in {self._report.packets} packets: {hint}", 0, is_hole=False)
        yield from self._taken(2 * self._report.packets + 1)  # behind all that `_Reader.finish` yields

    def _of_all(self, packets: ClassicFile | BlockFile, goes_on: GoesOn | None) -> Iterator[RawFrame]:
        done, size = 0, packets.data.size
        for packet in packets.packets():
            if found := self._push(packet):
                yield from self._placed(found)
            self._last.append(packet.time_ns)
            if self._lost:
                yield from self._taken(self._report.packets)
            done += _PACKET_HEADER + len(packet.data)
            if goes_on and not self._report.packets % _PACKETS_BETWEEN and not goes_on(min(done, size), size):
                break

    def _of_share(self, packets: ClassicFile | BlockFile, share: Share) -> Iterator[RawFrame]:
        for packet in share.packets(packets, self._reader, self._last):
            if isinstance(packet, tuple):
                count, time_ns = packet
                self._report.packets += count
                self._reader.last = time_ns, self._report.packets
                continue
            yield from self._placed(self._push(packet))
            if self._lost:
                yield from self._taken(self._report.packets)

    def _taken(self, number: int) -> Iterator[RawFrame]:
        """Yield what is lost, with numbers behind those of a packet's frames."""
        for place, lost in enumerate(self._lost, number * _OF_PACKET + _LOST):
            if lost.number is None:
                lost.number = place
            yield lost
        self._lost.clear()

    def _push(self, packet: Packet) -> Iterable[RawFrame]:
        """Take in the next packet; return the frames that it completes. Exhaust an iterator before the next call."""
        for damage in self._lost:  # before this packet
            damage.time_ns = max(damage.time_ns, packet.time_ns)
        self._report.packets += 1
        segment = read_segment(packet)
        if isinstance(segment, Segment):
            segment.number = self._report.packets
            found = self._reader.push(segment)
            return found if isinstance(found, list | tuple) else self._push_slowly(segment, found)
        self._report.unread_packets[segment] = self._report.unread_packets.get(segment, 0) + 1
        if self._is_first and segment in _MAY_BE_KAFKA:
            self._lose(f"a packet that could not be read: {segment}", len(packet.data), packet.time_ns, is_hole=True)
        return ()

    def _push_slowly(self, segment: Segment, found: Iterable[RawFrame]) -> Iterator[RawFrame]:
        stray = self._reader.stray_bytes
        yield from found
        if self._reader.stray_bytes > stray and self._reader.has(segment):
            size = self._reader.stray_bytes - stray
            what = "payload that fits nowhere into its connection"
            lost = self._lose(what, size, segment.time_ns, is_hole=False)
            lost.number = segment.number * _OF_PACKET + _STRAY

    def _placed(self, frames: Iterable[RawFrame]) -> Iterable[RawFrame]:
        """Name the file of each packet, and count from its first one."""
        return frames if len(self._before) == 1 else map(self._place, frames)

    def _place(self, frame: RawFrame) -> RawFrame:
        frame.file = max(0, bisect_left(self._before, frame.position) - 1)
        frame.position -= self._before[frame.file]
        return frame


class _Introduction:
    """A connection whose broker is not known yet.

    :ivar events: all so far
    :ivar hopeless: no broker will be found
    :ivar size: bytes in `events`
    """

    def __init__(self, connection: TcpConnection, max_frame_size: int) -> None:
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
        if isinstance(event.piece, Resent):
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
        """What the side that began sent first, as far as it was captured."""
        sent = [(event.sender, event.piece) for event in self.events if isinstance(event.piece, bytes)]
        return b"".join(piece for sender, piece in sent if sender == sent[0][0])


class _Secret:
    """A connection that is left out, until its TLS handshake has ended; at once if it has none from its first byte.

    :ivar at: place of its first packet
    :ivar size: bytes until it was left out
    :ivar looks: what its first bytes look like
    :ivar failure: as `TlsHandshake.failure` returns it
    :ivar is_turned_away: whether the other side ended it without an answer, as a port does that expects no TLS
    """

    def __init__(self, connection: TcpConnection, introduction: _Introduction) -> None:
        self.at: At = introduction.events[0].at
        self.size = introduction.size
        self.looks = guess_protocol(introduction.first_bytes)
        self.failure: str | None = None
        self.is_turned_away = False
        self._initiator = connection.initiator
        has_start = self.looks == LIKE_TLS and connection.initiator is not None
        self._handshake = TlsHandshake(connection.initiator or 0) if has_start else None

    def is_open_after(self, event: StreamEvent) -> bool:
        """Take in the next event; return whether the handshake goes on."""
        if self._handshake is None or isinstance(event.piece, (Hole, Refused)):
            return False
        if isinstance(event.piece, bytes):
            self._handshake.feed(event.sender, event.piece)
        has_ended = isinstance(event.piece, Closed) and event.piece.how is not None
        if has_ended or self._handshake.is_over:
            self.failure = self._handshake.failure()
        if isinstance(event.piece, Closed) and event.piece.by is not None:
            self.is_turned_away = self._handshake.is_unanswered and event.piece.by != self._initiator
        return not (isinstance(event.piece, Closed) or self._handshake.is_over)


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
        if isinstance(event.piece, bytes):  # nearly always
            return self._conversation.feed(side, event.piece, *event.at)
        match event.piece:
            case Closed(how, by):
                party: Party | None = None if by is None else "broker" if by == self._broker else "client"
                return self._conversation.close(*event.at, how=how, by=party)
            case Hole(size, since_ns):
                return self._conversation.hole(side, size, *event.at, since_ns=since_ns or None)
            case Resent():
                return self._conversation.resent(side, event.piece, *event.at)
            case Refused():
                return []


class _Refusals:
    """The connections of a lane that were refused by what is not known to be a broker, by that.

    Beyond `_MAX_REFUSED`, what the first of them refused goes first.
    """

    def __init__(self) -> None:
        self._events: OrderedDict[Endpoint, deque[StreamEvent]] = OrderedDict()
        self._count = 0

    def add(self, event: StreamEvent) -> None:
        self._events.setdefault(event.connection.endpoints[event.sender], deque()).append(event)
        self._count += 1
        if self._count > _MAX_REFUSED:
            endpoint, events = next(iter(self._events.items()))
            events.popleft()
            self._count -= 1
            if not events:
                del self._events[endpoint]

    def pop(self, endpoint: Endpoint) -> Collection[StreamEvent]:
        """Return what an endpoint has refused, in order, and hold it no longer."""
        events = self._events.pop(endpoint, deque())
        self._count -= len(events)
        return events


class KnownBrokers(Protocol):
    """What decides which packets of other lanes are passed over.

    :ivar ports: of the brokers; None where they are recognised by bytes
    :ivar brokers: those found so far, without `ports`
    """

    ports: frozenset[int] | None
    brokers: set[Endpoint]

    @property
    def has_connections(self) -> bool:
        """Whether a connection to a broker was found. Before that, nothing but other ports is passed over."""

    def exceptions(self) -> list[Pair]:
        """The endpoints whose packets are needed, although one of them is a broker."""


class _Reader:
    """All connections of a capture, each with what is known of it so far.

    :param lanes: those whose frames are yielded
    :ivar last: the last packet with a segment
    :ivar place: the number of the last row of the packet, behind which its further rows are numbered
    """

    def __init__(
        self, ports: Collection[int] | None, max_frame_size: int, report: CaptureReport, lanes: range = EVERY_LANE
    ) -> None:
        self.ports = None if ports is None else frozenset(ports)
        self.brokers: set[Endpoint] = set()
        self.last: At = (0, 0)
        self.place = 0
        self._max_frame_size = max_frame_size
        self._report = report
        self._lanes = lanes
        self._reassembler = Reassembler(self._group_of)
        self._undecided = Group(MAX_CONNECTIONS)
        self._groups = {lane: Group(MAX_CONNECTIONS // LANES) for lane in lanes}
        self._refused = {lane: _Refusals() for lane in lanes}

    @property
    def stray_bytes(self) -> int:
        """Payload so far that fits nowhere into its connection."""
        return self._reassembler.stray_bytes

    @property
    def has_connections(self) -> bool:
        return self._report.connections > 0

    def exceptions(self) -> list[Pair]:
        return [pair for pair in self._undecided.order if self._is_broker(pair[0]) or self._is_broker(pair[1])]

    def has(self, segment: Segment) -> bool:
        """Whether a segment is of a connection whose frames are yielded."""
        return self._lanes == EVERY_LANE or lane_of((segment.source, segment.destination)) in self._lanes

    def push(self, segment: Segment) -> Iterable[RawFrame]:
        """Take in the next segment; return the frames that it completes: an iterator, to be exhausted, list or tuple.

        The latter two show that the segment goes on in a connection whose broker is known, as nearly all do: without
        generators for each of them all of `read_raw_frames` takes a tenth less time.
        """
        self.last = segment.at
        if self.ports is not None and self.ports.isdisjoint((segment.source[1], segment.destination[1])):
            return ()
        self.place = segment.number * _OF_PACKET
        self._report.cut_packets += len(segment.payload) < segment.length
        events = self._reassembler.push(segment)
        if isinstance(events, tuple):
            if not events:
                return ()
            talk = events[0].connection.talk
            if isinstance(talk, _Dialogue):
                return talk.handle(events[0])
        return self._push_slowly(segment, events)

    def _push_slowly(self, segment: Segment, events: Iterable[StreamEvent]) -> Iterator[RawFrame]:
        for event in events:
            talk = event.connection.talk
            if isinstance(talk, _Dialogue) and isinstance(event.piece, bytes):
                yield from talk.handle(event)
            else:
                yield from self._handle(event)
        if self._reassembler.crowded:
            self.place = segment.number * _OF_PACKET + _ENDED
            for event in self._reassembler.shorten(segment.at):
                yield from self._handle(event)

    def finish(self) -> Iterator[RawFrame]:
        """Yield what is held: the capture has ended."""
        ended = None
        for event in self._reassembler.finish(self.last):
            if event.connection is not ended:
                ended = event.connection
                self.place = (self._report.packets + ended.last) * _OF_PACKET
            yield from self._handle(event)
        self._report.stray_bytes = self._reassembler.stray_bytes

    def _group_of(self, pair: Pair) -> Group | None:
        """The group of a new connection; None if it is of another lane and makes no difference to this one."""
        if not (self._is_broker(pair[0]) or self._is_broker(pair[1])):
            return self._undecided
        other = None if self.has_connections else self._undecided
        return self._groups.get(lane_of(pair), other)

    def _handle(self, event: StreamEvent) -> Iterator[RawFrame]:
        if isinstance(event.piece, Refused):
            yield from self._refuse(event)
            return
        connection = event.connection
        talk = connection.talk
        if talk is None:
            broker = self._known_broker(connection)
            if broker is None:
                talk = connection.talk = _Introduction(connection, self._max_frame_size)
            else:
                talk = self._begin(connection, broker)
                if isinstance(talk, _Dialogue):
                    yield from talk.open(event)
        if isinstance(talk, _Dialogue):
            yield from talk.handle(event)
        elif isinstance(talk, _Introduction):
            yield from self._introduce(talk, event)
        elif isinstance(talk, _Secret):
            yield from self._watch(connection, talk, event)
        if isinstance(event.piece, Closed):
            connection.talk = _LEFT_OUT

    def _introduce(self, introduction: _Introduction, event: StreamEvent) -> Iterator[RawFrame]:
        connection = event.connection
        broker = introduction.find_broker(event)
        if broker is not None:
            self.brokers.add(connection.endpoints[broker])
            dialogue = self._begin(connection, broker)
            if isinstance(dialogue, _Dialogue):
                yield from dialogue.open(introduction.events[0])
                for earlier in introduction.events:
                    yield from dialogue.handle(earlier)
            yield from self._refused_by(connection.endpoints[broker])
        elif introduction.hopeless:
            yield from self._leave_out(connection, introduction)

    def _leave_out(self, connection: TcpConnection, introduction: _Introduction) -> Iterator[RawFrame]:
        """Count a connection without a Kafka request and, unless it carried no bytes, report it as lost."""
        connection.talk = _LEFT_OUT
        self._report.foreign_connections += 1
        if lane_of(connection.endpoints) not in self._lanes:
            self._reassembler.ignore(connection)
        elif introduction.size:
            talk = connection.talk = _Secret(connection, introduction)
            for event in introduction.events:
                yield from self._watch(connection, talk, event)

    def _watch(self, connection: TcpConnection, secret: _Secret, event: StreamEvent) -> Iterator[RawFrame]:
        """Report a connection that is left out once nothing more will be known of it."""
        if connection.talk is not secret or secret.is_open_after(event):
            return
        connection.talk = _LEFT_OUT
        ends = "-".join(address_text(*endpoint) for endpoint in connection.endpoints)
        error, name = f"a connection without a Kafka request, left out: {ends}{secret.looks}", ""
        is_turned_away = secret.is_turned_away and not self.brokers  # else a broker's port is known
        if connection.initiator is not None and (secret.failure is not None or is_turned_away):
            name = self._name(connection, 1 - connection.initiator)
        if secret.failure is not None:
            error += TLS_FAILED + (f": {secret.failure}" if secret.failure else "")
        time_ns, number = secret.at
        lost = RawFrame(time_ns, number, name, "damage", error=error, lost=secret.size)
        lost.by = "client" if is_turned_away else None
        yield lost

    def _refuse(self, event: StreamEvent) -> Iterator[RawFrame]:
        """Report a connection that was never made, at once or when its other side is found to be a broker."""
        if self._is_broker(event.connection.endpoints[event.sender]):
            if lane_of(event.connection.endpoints) in self._lanes:
                yield self._refusal(event)
        elif (held := self._refused.get(lane_of(event.connection.endpoints))) is not None:
            held.add(event)

    def _refused_by(self, broker: Endpoint) -> Iterator[RawFrame]:
        """Report the connections that a broker has refused before it was known."""
        found = [event for held in self._refused.values() for event in held.pop(broker)]
        for event in sorted(found, key=lambda event: event.at[1]):
            refusal = self._refusal(event)
            refusal.number = refusal.position * _OF_PACKET + _REFUSED
            yield refusal

    def _refusal(self, event: StreamEvent) -> RawFrame:
        assert isinstance(event.piece, Refused)
        return RawFrame(*event.at, self._name(event.connection, event.sender), "refused", error=event.piece.why)

    def _is_broker(self, endpoint: Endpoint) -> bool:
        return endpoint in self.brokers if self.ports is None else endpoint[1] in self.ports

    def _known_broker(self, connection: TcpConnection) -> int | None:
        """Index of the broker where the port, or an earlier connection, shows it."""
        known = [self._is_broker(endpoint) for endpoint in connection.endpoints]
        if known == [True, True] and connection.initiator is not None:  # brokers among themselves
            return 1 - connection.initiator
        return known.index(True) if sum(known) == 1 else None

    def _begin(self, connection: TcpConnection, broker: int) -> _Dialogue | object:
        group = self._groups.get(lane_of(connection.endpoints))
        if group is None:
            self._report.connections += 1
            self._reassembler.forget(connection)
            connection.talk = _LEFT_OUT
            return _LEFT_OUT
        self._reassembler.move(connection, group)
        conversation = RawConversation(
            self._name(connection, broker),
            self._report,
            max_frame_size=self._max_frame_size,
            in_step=(connection.from_start(1 - broker), connection.from_start(broker)),
        )
        connection.talk = dialogue = _Dialogue(broker, conversation)
        return dialogue

    @staticmethod
    def _name(connection: TcpConnection, broker: int) -> str:
        names = [address_text(*endpoint) for endpoint in connection.endpoints]
        return f"{names[1 - broker]}-{names[broker]}#{connection.number}"


_LEFT_OUT: Final = object()
"""In the place of what is known of a connection: nothing more is yielded of it."""
