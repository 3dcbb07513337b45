"""Capture files: classic pcap and pcapng, read from front to back.

Laws:

* A file that is neither is refused (`CaptureError`). Of a file that is damaged or cut short, every packet before the
  damage is read, and the damage is reported once.
* Nothing is allocated for a size that the file claims: a packet above `MAX_PACKET` ends the reading, a pcapng block
  above it is skipped piece by piece.
* Timestamps are whole nanoseconds, so that no precision of the file is lost.

dpkt dissects the packets but does not read the containers, because it allocates what the file claims, knows one pcapng
interface and returns timestamps as floats.

Sources: draft-ietf-opsawg-pcap (sections 4 and 5), draft-ietf-opsawg-pcapng (section 4).

Laws of `salvage_packets`, which reads a damaged file and names the place of every damage:

* A sound file yields the packets that `read_packets` yields.
* Every byte of the file is in a header or packet that was read, or in a reported damage; none is in both.
* Damage behind the file's own header raises nothing, and what is read of it is linear in the file. What is cut off
  while it is read is damage, too.

Classic pcap has no marks between packets. A packet's header is recognised by its values: a fraction of a second below
one, no more bytes captured than sent or than the limits, a time within hours of its neighbours, an end within the file.
If the next header is implausible, either it or this one's length is damaged: the next two plausible headers in a row
decide. pcapng blocks have their length at both ends.

`read_head` shows whether two files can be parts of one capture: tcpdump and dumpcap begin a new file at a size or time.
"""

from __future__ import annotations

import re
import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from itertools import islice
from statistics import median_low
from typing import BinaryIO, ClassVar, Final, NamedTuple

from kcoord_wire.kernel.file_bytes import FileBytes, FileCutError

MAX_PACKET: Final = 1024 * 1024
"""Largest packet or block read, in bytes; a capture's usual limit is 256 KiB."""

MAX_BLOCK: Final = MAX_PACKET + 64
"""Largest block of pcapng that is read."""

MAX_TIME_NS: Final = 2**63 - 1
"""Latest time of a packet, in nanoseconds since 1970 (year 2262): every later stage keeps times in 64 signed bits."""

NANOSECONDS: Final = 1_000_000_000
PCAP_MAGIC: Final = {  # the first four bytes: byte order, fractions per second, bytes of a packet's header
    b"\xa1\xb2\xc3\xd4": (">", 1_000_000, 16),
    b"\xd4\xc3\xb2\xa1": ("<", 1_000_000, 16),
    b"\xa1\xb2\x3c\x4d": (">", NANOSECONDS, 16),
    b"\x4d\x3c\xb2\xa1": ("<", NANOSECONDS, 16),
    b"\xa1\xb2\xcd\x34": (">", 1_000_000, 24),
    b"\x34\xcd\xb2\xa1": ("<", 1_000_000, 24),
}
SECTION_MAGIC: Final = b"\x0a\x0d\x0d\x0a"
BYTE_ORDER: Final = {b"\x1a\x2b\x3c\x4d": ">", b"\x4d\x3c\x2b\x1a": "<"}
INTERFACE_BLOCK, _OLD_PACKET, _SIMPLE_PACKET, _ENHANCED_PACKET = 1, 2, 3, 6
_OPTION_END, _OPTION_RESOLUTION, _OPTION_OFFSET = 0, 9, 14


class CaptureError(ValueError):
    """The file is not a capture, or of an unknown version."""


class TimestampError(ValueError):
    """A packet's time stamp is before 1970 or after `MAX_TIME_NS`, as one flipped bit of a pcapng block makes it."""


@dataclass(slots=True)
class Packet:
    """One captured packet.

    :ivar time_ns: when it was captured, in nanoseconds since 1970
    :ivar link_type: the protocol of its first byte (the LINKTYPE_ registry of tcpdump.org)
    :ivar data: the bytes captured
    :ivar length: bytes it had on the wire; more than were captured if the capture cut it
    """

    time_ns: int
    link_type: int
    data: bytes
    length: int


def read_packets(file: BinaryIO, on_damage: Callable[[str], None]) -> Iterator[Packet]:
    """The packets of a capture, in file order.

    :param file: read from its current position; need not be seekable
    :param on_damage: called with the reason, in words, if the reading ends before the file does
    :raises CaptureError: the file is neither pcap nor pcapng
    """
    magic = file.read(4)
    if magic == SECTION_MAGIC:
        return _read_pcapng(file, on_damage)
    if magic in PCAP_MAGIC:
        return _read_pcap(file, magic, on_damage)
    raise CaptureError(f"neither pcap nor pcapng: the file begins with {magic.hex(' ') or 'nothing'}")


def _read_pcap(file: BinaryIO, magic: bytes, on_damage: Callable[[str], None]) -> Iterator[Packet]:
    order, fractions, header_size = PCAP_MAGIC[magic]
    header = file.read(20)
    if len(header) < 20:
        raise CaptureError("the file ends within its header")
    # The upper 16 bits of the last word describe the frame check sequence.
    link_type = struct.unpack_from(order + "I", header, 16)[0] & 0xFFFF
    packet_header = struct.Struct(order + "IIII")
    while header := file.read(header_size):
        if len(header) < header_size:
            return on_damage("the file ends within a packet's header")
        seconds, fraction, captured, length = packet_header.unpack_from(header)
        if captured > MAX_PACKET:
            return on_damage(f"a packet claims {captured} bytes, more than {MAX_PACKET}: nothing after it was read")
        data = file.read(captured)
        if len(data) < captured:
            on_damage(f"the file ends within a packet, {captured - len(data)} bytes early")
        yield Packet(seconds * NANOSECONDS + fraction * (NANOSECONDS // fractions), link_type, data, length)


@dataclass(slots=True)
class Interface:
    """The content of an interface description block.

    :ivar link_type: as in `Packet`
    :ivar snap_length: bytes captured of a packet, 0 for no limit
    :ivar ticks_per_second: the unit of timestamps
    :ivar offset_seconds: added to them
    """

    link_type: int
    snap_length: int
    ticks_per_second: int = 1_000_000
    offset_seconds: int = 0

    def time_ns(self, high: int, low: int) -> int:
        ticks = high << 32 | low
        return self.offset_seconds * NANOSECONDS + ticks * NANOSECONDS // self.ticks_per_second


class _DamageError(Exception):
    """A pcapng file cannot be read any further."""


def _read_pcapng(file: BinaryIO, on_damage: Callable[[str], None]) -> Iterator[Packet]:
    try:
        yield from _Blocks(file).packets()
    except _DamageError as damage:
        on_damage(str(damage))


class _Blocks:
    """The blocks of a pcapng file, whose first four bytes have been read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._order = "<"
        self._interfaces: list[Interface] = []
        self._first = True

    def packets(self) -> Iterator[Packet]:
        head = SECTION_MAGIC + self._file.read(4)
        while head:
            packet = self._parse(*self._next(head))
            if packet is not None:
                yield packet
            head = self._file.read(8)

    def _next(self, head: bytes) -> tuple[int, bytes]:
        """Type and body of the block that begins with the eight bytes of `head`."""
        if len(head) < 8:
            raise _DamageError("the file ends within a block's header")
        already = 8
        if head[:4] == SECTION_MAGIC:
            self._begin_section(self._file.read(4))
            already = 12
        kind, size = struct.unpack(self._order + "II", head)
        if size < already + 4 or size % 4:
            raise _DamageError(f"a block claims {size} bytes: nothing after it was read")
        body = _read_block(self._file, size - already)
        if body is None:
            raise _DamageError("the file ends within a block")
        if self._first and struct.unpack_from(self._order + "H", body)[0] != 1:
            raise CaptureError("a pcapng section of an unknown version")
        self._first = False
        return kind, body

    def _begin_section(self, mark: bytes) -> None:
        if mark not in BYTE_ORDER:
            if self._first:
                raise CaptureError("a pcapng section without a byte-order mark")
            raise _DamageError("a section without a byte-order mark: nothing after it was read")
        self._order = BYTE_ORDER[mark]
        self._interfaces = []

    def _parse(self, kind: int, body: bytes) -> Packet | None:
        try:
            if kind != INTERFACE_BLOCK:
                return read_packet_block(self._order, kind, body, self._interfaces)
            self._interfaces.append(read_interface(self._order, body))
        except TimestampError as error:
            raise _DamageError(f"{error}: nothing after it was read") from None
        except (struct.error, IndexError):
            text = f"a block of type {kind} is too short for its content, or names an unknown interface"
            raise _DamageError(text) from None
        return None


def _read_block(file: BinaryIO, size: int) -> bytes | None:
    """The rest of a block without its closing length; empty if it is too large to hold, None if the file ends."""
    if size <= MAX_BLOCK:
        body = file.read(size)
        return body[:-4] if len(body) == size else None
    while size:
        passed = len(file.read(min(size, MAX_PACKET)))
        if not passed:
            return None
        size -= passed
    return bytes(32)


def read_interface(order: str, body: bytes) -> Interface:
    """Parse the body of an interface description block.

    :raises struct.error: it is too short; IndexError likewise
    """
    link_type, _, snap_length = struct.unpack_from(order + "HHI", body)
    interface = Interface(link_type, snap_length)
    position = 8
    while position + 4 <= len(body):
        code, size = struct.unpack_from(order + "HH", body, position)
        if code == _OPTION_END:
            break
        if code == _OPTION_RESOLUTION:
            power = body[position + 4]
            interface.ticks_per_second = 2 ** (power & 0x7F) if power & 0x80 else 10**power
        elif code == _OPTION_OFFSET:
            interface.offset_seconds = struct.unpack_from(order + "q", body, position + 4)[0]
        position += 4 + (size + 3 & ~3)
    return interface


def read_packet_block(order: str, kind: int, body: bytes, interfaces: list[Interface]) -> Packet | None:
    """The packet of a packet block; None for blocks of other kinds.

    :raises TimestampError: the time stamp is impossible
    :raises struct.error: the block is too short for its content
    :raises IndexError: it names an interface that does not exist
    """
    if kind == _SIMPLE_PACKET:  # has neither a timestamp nor a captured length of its own
        interface = interfaces[0]
        (length,) = struct.unpack_from(order + "I", body)
        captured = min(length, interface.snap_length or length, len(body) - 4)
        return Packet(0, interface.link_type, body[4 : 4 + captured], length)
    if kind == _ENHANCED_PACKET:
        number, high, low, captured, length = struct.unpack_from(order + "IIIII", body)
    elif kind == _OLD_PACKET:
        number, _, high, low, captured, length = struct.unpack_from(order + "HHIIII", body)
    else:
        return None
    interface = interfaces[number]
    time_ns = interface.time_ns(high, low)
    if not 0 <= time_ns <= MAX_TIME_NS:
        raise TimestampError(f"a packet's time stamp of {time_ns / NANOSECONDS:.0f} s since 1970 is impossible")
    return Packet(time_ns, interface.link_type, body[20 : 20 + captured], length)


OnDamage = Callable[[int, int, str], None]
"""Called with the position and size of bytes that are in no packet, and the reason."""

_FILE_HEADER: Final = 24
NEAR: Final = 65536
"""Greatest distance in seconds between neighbouring packets: the unit of the upper half of a timestamp."""
_SMALLEST_BLOCK: Final = 12
_LIKELY_WIDTH: Final = 16  # bytes of a packet's header by which it is recognised
_NO_HEADER: Final = "no plausible packet header"


def salvage_packets(data: bytes | FileBytes, on_damage: OnDamage) -> Iterator[Packet]:
    """The packets of a capture, in file order.

    :raises CaptureError: the file is neither pcap nor pcapng
    :raises FileCutError: the file became shorter before its first packet was asked for
    """
    return open_packets(data, on_damage).packets()


def open_packets(data: bytes | FileBytes, on_damage: OnDamage) -> ClassicFile | BlockFile:
    """The same packets, for a reader that goes from one to the next itself.

    :raises CaptureError: the file is neither pcap nor pcapng
    :raises FileCutError: the file became shorter meanwhile
    """
    if isinstance(data, bytes):
        data = FileBytes(BytesIO(data))
    start = data.read(0, _FILE_HEADER)
    if start[:4] == SECTION_MAGIC:
        if start[8:12] not in BYTE_ORDER:
            raise CaptureError("a pcapng section without a byte-order mark")
        return BlockFile(data, on_damage)
    if start[:4] in PCAP_MAGIC:
        if len(start) < _FILE_HEADER:
            raise CaptureError("the file ends within its header")
        return ClassicFile(data, start, on_damage)
    raise CaptureError(f"neither pcap nor pcapng: the file begins with {start[:4].hex(' ') or 'nothing'}")


HEAD_BYTES: Final = 256 << 10
"""Bytes of a capture in which `read_head` looks for its first packets."""

OF_TIME: Final = 3
"""Packets whose median is the time at which a capture begins or ends, because the time of one may be damaged."""


_OUT_OF_ORDER_NS: Final = 1_000_000_000  # packets of several interfaces or queues


class CaptureHead(NamedTuple):
    """How a capture begins.

    :ivar magic: its first four bytes: format, byte order and unit of time
    :ivar link_type: of its first packet
    :ivar first_ns: when that was captured
    """

    magic: bytes
    link_type: int
    first_ns: int


def read_head(data: bytes) -> CaptureHead | None:
    """Return how a capture begins; None where its first bytes are no capture, or show no packet with a time.

    :param data: its first `HEAD_BYTES` bytes
    """
    try:
        first = list(islice(salvage_packets(data, lambda *_: None), OF_TIME))
    except CaptureError:
        return None
    time_ns = median_low([packet.time_ns for packet in first]) if first else 0
    return CaptureHead(data[:4], first[0].link_type, time_ns) if time_ns else None


def read_end(head: bytes, tail: bytes) -> int | None:
    """Return when a capture ends; None where its last bytes show no packet, or are damaged.

    :param head: its first bytes, a multiple of four
    :param tail: its last bytes, from a multiple of four on
    """
    damaged_to = 0

    def on_damage(at: int, size: int, _: str) -> None:
        nonlocal damaged_to
        damaged_to = at + size

    packets = salvage_packets(head + tail, on_damage)
    times = deque((packet.time_ns for packet in packets), OF_TIME)
    return None if not times or damaged_to == len(head) + len(tail) else median_low(times)


def follows(end_ns: int, begin_ns: int, within_ns: int | None) -> bool:
    """Whether a file that begins at one time can go on with one that ends at another, so much later at most."""
    later_ns = begin_ns - end_ns
    return later_ns > -_OUT_OF_ORDER_NS and (within_ns is None or later_ns <= within_ns)


class _PacketFile(ABC):
    """A capture that is read from place to place.

    :cvar start: where the first packet or block is
    """

    start: ClassVar[int]

    def __init__(self, data: FileBytes, on_damage: OnDamage) -> None:
        self.data = data
        self._on_damage = on_damage

    def packets(self) -> Iterator[Packet]:
        position, end = self.start, self.data.size
        while position < end:
            packet, position = self.step(position)
            if packet is not None:
                yield packet

    def step(self, position: int) -> tuple[Packet | None, int]:
        """Return the packet at a position, and where the next one begins; None for damage and for other blocks.

        What another process cuts off meanwhile is damage.
        """
        try:
            self.data.advance(position)
            return self._step(position)
        except FileCutError as error:
            return self._lose(position, self.data.size, str(error))

    @abstractmethod
    def _step(self, position: int) -> tuple[Packet | None, int]:
        """Do what `step` does, of a file that is whole."""

    def _lose(self, position: int, end: int, why: str) -> tuple[None, int]:
        self._on_damage(position, end - position, why)
        return None, end


class ClassicFile(_PacketFile):
    """A classic pcap file.

    :param start: the header of the file
    :ivar order: of its bytes, as `struct` names it
    :ivar fractions: of a second, in the unit of its times
    :ivar size: of a packet's header
    :ivar near: seconds of the last packet; None before the first
    """

    start = _FILE_HEADER

    def __init__(self, data: FileBytes, start: bytes, on_damage: OnDamage) -> None:
        super().__init__(data, on_damage)
        self.order, self.fractions, self.size = PCAP_MAGIC[start[:4]]
        self.link_type = struct.unpack_from(self.order + "I", start, 20)[0] & 0xFFFF
        self.near: int | None = None
        self._header = struct.Struct(self.order + "IIII")
        self._unit = NANOSECONDS // self.fractions
        self._following: tuple[int, _Head | None] = 0, None  # the header that was looked at last, and its place

    def _step(self, position: int) -> tuple[Packet | None, int]:
        at, head = self._following
        if at != position:
            head = self._head(position, self.near)
        if head is None:
            return self._lose(position, self._search(position + 1, self.data.size), _NO_HEADER)
        seconds, fraction, captured, length, end = head
        following = self._head(end, seconds)
        if following is None and end < self.data.size and (found := self._within(position, end)) is not None:
            return self._lose(position, found, _NO_HEADER)
        kept = self.data.read(position + self.size, captured)
        self.near, self._following = seconds, (end, following)
        return Packet(seconds * NANOSECONDS + fraction * self._unit, self.link_type, kept, length), end

    def _within(self, position: int, end: int) -> int | None:
        """Return where the next packet begins if a header's length is wrong, behind which no plausible one follows."""
        # There is no room for less than a header between two packets: if there is less, this length is wrong. Nothing
        # farther is looked at, so that all searches together are linear in the file.
        stop = min(end + self.size, self.data.size)
        found = self._search(position + 1, stop)
        return None if found in (end, stop) else found

    def _head(self, position: int, near: int | None) -> _Head | None:
        """Return the header at a place; None if it is implausible."""
        start, size = position + self.size, self.data.size
        if start > size:
            return None
        seconds, fraction, captured, length = self.data.unpack(self._header, position)
        if fraction >= self.fractions or captured > length or length > MAX_PACKET or start + captured > size:
            return None
        if near is not None and abs(seconds - near) >= NEAR:
            return None
        return _Head(seconds, fraction, captured, length, start + captured)

    def _search(self, position: int, stop: int) -> int:
        """Return the first place before `stop` with two plausible headers in a row; else `stop`."""
        size = self.data.size
        likely = _likely(self.order, self.fractions, None if self.near is None else self.near // NEAR)
        for place in self.data.places(likely, position, min(stop + _LIKELY_WIDTH - 1, size), _LIKELY_WIDTH):
            head = self._head(place, self.near)
            if head is not None and (head.end == size or self._head(head.end, head.seconds) is not None):
                return place
        return stop


@lru_cache(maxsize=64)
def _likely(order: str, fractions: int, upper: int | None) -> re.Pattern[bytes]:
    """Return what matches at every plausible header, and at few other places.

    :param upper: upper half of the seconds of the packet before; it is the same, or differs by one. None for any
    """
    halves = [] if upper is None else [struct.pack(order + "H", (upper + step) % NEAR) for step in (-1, 0, 1)]
    fields = [[b"(?:" + b"|".join(map(re.escape, halves)) + b")" if halves else b"..", b".."]]
    for most in (fractions - 1, MAX_PACKET, MAX_PACKET):
        first, second = most.to_bytes(4, "big")[:2]
        fields.append([rb"[\x00-\x%02x]" % first, rb"[\x00-\x%02x]" % (255 if first else second), b".."])
    parts = [part for field in fields for part in (field if order == ">" else reversed(field))]
    return re.compile(b"(?=" + b"".join(parts) + b")", re.DOTALL)


class _Head(NamedTuple):
    """A packet's header, and where the packet ends."""

    seconds: int
    fraction: int
    captured: int
    length: int
    end: int


_PACKET_BLOCKS: Final = (_OLD_PACKET, _SIMPLE_PACKET, _ENHANCED_PACKET)
_SECTION: Final = 0x0A0D0D0A


class BlockFile(_PacketFile):
    """A pcapng file.

    :ivar order: of the bytes of the section read last, as `struct` names it
    :ivar interfaces: of that section
    """

    start = 0

    def __init__(self, data: FileBytes, on_damage: OnDamage) -> None:
        super().__init__(data, on_damage)
        self.order = "<"
        self.interfaces: list[Interface] = []

    def _step(self, position: int) -> tuple[Packet | None, int]:
        block = self._block(position)
        if block is None:
            return self._lose(position, self._search(position + 4), "no block whose two lengths agree")
        kind, end, order = block
        if kind == _SECTION:
            self.order, self.interfaces = order, []
        elif kind == INTERFACE_BLOCK or kind in _PACKET_BLOCKS:
            if end - position > MAX_BLOCK:
                return self._lose(position, end, f"a block of type {kind} that is larger than any packet")
            body = self.data.read(position + 8, end - position - 12)
            try:
                if kind != INTERFACE_BLOCK:
                    return read_packet_block(order, kind, body, self.interfaces), end
                self.interfaces.append(read_interface(order, body))
            except TimestampError as error:
                return self._lose(position, end, str(error))
            except (struct.error, IndexError, ZeroDivisionError, OverflowError):
                return self._lose(position, end, f"a block of type {kind} is too short for its content")
        return None, end

    def _search(self, position: int) -> int:
        """Return the first place of a block from `position` on; the end of the file if none."""
        size = self.data.size
        places = range(position, size, 4)
        return next((place for place in places if self._block(place) is not None), size)

    def _block(self, position: int) -> tuple[int, int, str] | None:
        """Kind, end and byte order of the block at `position`; None if its lengths differ."""
        data = self.data
        if position + _SMALLEST_BLOCK > data.size:
            return None
        start = data.read(position, _SMALLEST_BLOCK)
        order = self.order
        if start[:4] == SECTION_MAGIC:
            mark = BYTE_ORDER.get(start[8:12])
            if mark is None:
                return None
            order = mark
        two, one = _LENGTHS[order]
        kind, size = two.unpack_from(start)
        end: int = position + size
        if size < _SMALLEST_BLOCK or size % 4 or end > data.size:
            return None
        return (kind, end, order) if data.unpack(one, end - 4)[0] == size else None


_LENGTHS: Final = {order: (struct.Struct(order + "II"), struct.Struct(order + "I")) for order in "<>"}
