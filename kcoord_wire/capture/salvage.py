"""Packets out of a damaged capture file, and the place of every damage.

Laws:

* A sound file yields the packets that `read_packets` yields.
* Every byte of the file is in a header or packet that was read, or in a reported damage; none is in both.
* Damage behind the file's own header raises nothing, and the time taken is linear in the file.

Classic pcap has no marks between packets. A packet's header is recognised by its values: a fraction of a second below
one, no more bytes captured than sent or than the limits, a time within hours of its neighbours, an end within the file.
If the next header is implausible, either it or this one's length is damaged: the next two plausible headers in a row
decide. pcapng blocks have their length at both ends.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from mmap import mmap
from typing import Final

from kcoord_wire.capture import pcap

OnDamage = Callable[[int, int, str], None]
"""Called with the position and size of bytes that are in no packet, and the reason."""

_FILE_HEADER: Final = 24
_NEAR: Final = 65536
"""Greatest distance in seconds between neighbouring packets: the unit of the upper half of a timestamp."""
_SMALLEST_BLOCK: Final = 12


def salvage_packets(data: bytes | mmap, on_damage: OnDamage) -> Iterator[pcap.Packet]:
    """The packets of a capture, in file order.

    :raises CaptureError: the file is neither pcap nor pcapng
    """
    magic = data[:4]
    if magic == pcap.SECTION_MAGIC:
        if data[8:12] not in pcap.BYTE_ORDER:
            raise pcap.CaptureError("a pcapng section without a byte-order mark")
        return _salvage_blocks(data, on_damage)
    if magic in pcap.PCAP_MAGIC:
        if len(data) < _FILE_HEADER:
            raise pcap.CaptureError("the file ends within its header")
        return _Classic(data, on_damage).packets()
    raise pcap.CaptureError(f"neither pcap nor pcapng: the file begins with {magic.hex(' ') or 'nothing'}")


class _Classic:
    """A classic pcap file."""

    def __init__(self, data: bytes | mmap, on_damage: OnDamage) -> None:
        self._data = data
        self._on_damage = on_damage
        self._order, self._fractions, self._size = pcap.PCAP_MAGIC[data[:4]]
        self._link_type = struct.unpack_from(self._order + "I", data, 20)[0] & 0xFFFF
        self._header = struct.Struct(self._order + "IIII")
        self._near: int | None = None  # seconds of the last packet

    def packets(self) -> Iterator[pcap.Packet]:
        data, position = self._data, _FILE_HEADER
        while position < len(data):
            end = self._end(position, self._near)
            if end is None or not self._continues(end, position):
                found = self._search(position + 1)
                # There is no room for less than a header between two packets: if there is less, this length is wrong.
                if end is None or found < end or end < found < min(end + self._size, len(data)):
                    self._on_damage(position, found - position, "no plausible packet header")
                    position = found
                    continue
            yield self._packet(position, end)
            position = end

    def _packet(self, position: int, end: int) -> pcap.Packet:
        seconds, fraction, _, length = self._header.unpack_from(self._data, position)
        self._near = seconds
        time_ns = seconds * pcap.NANOSECONDS + fraction * (pcap.NANOSECONDS // self._fractions)
        return pcap.Packet(time_ns, self._link_type, bytes(self._data[position + self._size : end]), length)

    def _end(self, position: int, near: int | None) -> int | None:
        """Where the packet at `position` ends; None if its header is implausible."""
        if position + self._size > len(self._data):
            return None
        seconds, fraction, captured, length = self._header.unpack_from(self._data, position)
        end: int = position + self._size + captured
        if fraction >= self._fractions or captured > length or length > pcap.MAX_PACKET or end > len(self._data):
            return None
        return end if near is None or abs(seconds - near) < _NEAR else None

    def _continues(self, end: int, position: int) -> bool:
        """Whether the next header is plausible as well, or the file ends."""
        (seconds,) = struct.unpack_from(self._order + "I", self._data, position)
        return end == len(self._data) or self._end(end, seconds) is not None

    def _search(self, position: int) -> int:
        """The first place from `position` on with two plausible headers in a row; the end of the file if none."""
        for place in self._candidates(position):
            end = self._end(place, self._near)
            if end is not None and self._continues(end, place):
                return place
        return len(self._data)

    def _candidates(self, position: int) -> Iterator[int]:
        if self._near is None:
            yield from range(position, len(self._data))
            return
        # The upper half of a timestamp near the last one is the same, or differs by one.
        halves = [(self._near // _NEAR + step) % _NEAR for step in (-1, 0, 1)]
        wanted = [re.escape(struct.pack(self._order + "H", half)) for half in halves]
        lead = 2 if self._order == "<" else 0
        for match in re.finditer(b"(?=" + b"|".join(wanted) + b")", self._data, re.DOTALL):
            if match.start() - lead >= position:
                yield match.start() - lead


def _salvage_blocks(data: bytes | mmap, on_damage: OnDamage) -> Iterator[pcap.Packet]:
    order, position = "<", 0
    interfaces: list[pcap.Interface] = []
    while position < len(data):
        block = _block(data, position, order)
        if block is None:
            found = next(
                (place for place in range(position + 4, len(data), 4) if _block(data, place, order)), len(data)
            )
            on_damage(position, found - position, "no block whose two lengths agree")
            position = found
            continue
        kind, end, order = block
        body = bytes(data[position + (12 if kind == 0x0A0D0D0A else 8) : end - 4])
        try:
            if kind == 0x0A0D0D0A:
                interfaces = []
            elif kind == pcap.INTERFACE_BLOCK:
                interfaces.append(pcap.read_interface(order, body))
            elif packet := pcap.read_packet_block(order, kind, body, interfaces):
                yield packet
        except pcap.TimestampError as error:
            on_damage(position, end - position, str(error))
        except (struct.error, IndexError, ZeroDivisionError, OverflowError):
            on_damage(position, end - position, f"a block of type {kind} is too short for its content")
        position = end


def _block(data: bytes | mmap, position: int, order: str) -> tuple[int, int, str] | None:
    """Kind, end and byte order of the block at `position`; None if its lengths differ."""
    if position + _SMALLEST_BLOCK > len(data):
        return None
    if data[position : position + 4] == pcap.SECTION_MAGIC:
        mark = pcap.BYTE_ORDER.get(data[position + 8 : position + 12])
        if mark is None:
            return None
        order = mark
    kind, size = struct.unpack_from(order + "II", data, position)
    end: int = position + size
    if size < _SMALLEST_BLOCK or size % 4 or end > len(data):
        return None
    if struct.unpack_from(order + "I", data, end - 4)[0] != size:
        return None
    return kind, end, order
