"""Captures as pcapng, for tests of what only that format has: blocks, interfaces, time stamps of 64 bits."""

from __future__ import annotations

import io
import struct

from kcoord_wire.capture.pcap import read_packets

_ENHANCED_PACKET = 6


def to_pcapng(data: bytes, order: str = "<") -> bytes:
    """The packets of a capture as pcapng, with an option (nanoseconds) and blocks of other kinds among them."""

    def block(kind: int, body: bytes) -> bytes:
        body += bytes(-len(body) % 4)
        size = struct.pack(order + "I", len(body) + 12)
        return struct.pack(order + "I", kind) + size + body + size

    made = [block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))]
    made.append(block(1, struct.pack(order + "HHI", 1, 0, 0) + struct.pack(order + "HHB3xHH", 9, 1, 9, 0, 0)))
    for number, packet in enumerate(read_packets(io.BytesIO(data), lambda _: None)):
        head = struct.pack(order + "IIIII", 0, *divmod(packet.time_ns, 1 << 32), len(packet.data), packet.length)
        made.append(block(_ENHANCED_PACKET, head + packet.data))
        if number % 50 == 0:
            made.append(block(4, b"names"))
    return b"".join(made)


def packet_blocks(data: bytes) -> list[int]:
    """Where the packet blocks of a little-endian pcapng file begin."""
    found, position = [], 0
    while position < len(data):
        kind, size = struct.unpack_from("<II", data, position)
        if kind == _ENHANCED_PACKET:
            found.append(position)
        position += size
    return found


def flip_time(data: bytes, packet: int, bit: int) -> tuple[bytes, int]:
    """Flip a bit of one packet's time stamp, 63 the highest; the file, and where the packet's block begins."""
    position = packet_blocks(data)[packet]
    at = position + 12  # block type, block length, interface; then the upper and the lower half
    high, low = struct.unpack_from("<II", data, at)
    ticks = (high << 32 | low) ^ 1 << bit
    spoiled = bytearray(data)
    struct.pack_into("<II", spoiled, at, *divmod(ticks, 1 << 32))
    return bytes(spoiled), position
