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
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

MAX_PACKET: Final = 1024 * 1024
"""Largest packet or block read, in bytes; a capture's usual limit is 256 KiB."""

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
_SECTION_HEADER: Final = 0x0A0D0D0A
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
    if size <= MAX_PACKET + 64:
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
