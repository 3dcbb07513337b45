"""Captures for the targets `capture` and `analyze`: a file as it is, or packets written from a short script.

A fuzzer that must get twenty bytes of headers right for each packet rarely reaches what is behind them. In a script a
packet costs four bytes beside its payload, and its headers are always sound.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

BROKER_PORT = 9092
FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10
FLAGS = (ACK, ACK, ACK, ACK, ACK, SYN, FIN | ACK, RST)
TO_CLIENT, LOST, AGAIN = 0x01, 0x02, 0x04
FIRST = 1000  # the sequence number that each direction starts at
PCAP_HEADER = struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 1 << 18, 1)


@dataclass
class Script:
    """The packets of a script.

    :ivar pcap: the capture file
    :ivar captured: bytes of payload in it
    :ivar sent: sequence numbers of all packets, whether captured or not: a byte each, and each SYN and FIN
    :ivar plain: whether no packet opens or ends a connection, or repeats bytes
    """

    pcap: bytearray = field(default_factory=lambda: bytearray(PCAP_HEADER))
    captured: int = 0
    sent: int = 0
    plain: bool = True


def read_script(data: bytes) -> Script:
    """Write the packets that `data` stands for.

    Each packet: a byte of flags (bit 0 direction, 1 not captured, 2 starts `back` bytes before its place, 3 and 4 the
    connection, 5 to 7 an index into `FLAGS`), a byte `back`, two bytes of payload size, the payload.
    """
    script = Script()
    numbers: dict[tuple[int, int], int] = {}
    at = 0
    while at + 4 <= len(data):
        kind, back, size = struct.unpack_from(">BBH", data, at)
        payload = data[at + 4 : at + 4 + size]
        at += 4 + len(payload)
        side, connection, flags = kind & TO_CLIENT, kind >> 3 & 3, FLAGS[kind >> 5]
        last = numbers.get((connection, side), FIRST)
        sequence = max(FIRST, last - back) if kind & AGAIN else last
        length = len(payload) + bool(flags & (SYN | FIN))
        numbers[connection, side] = max(last, sequence + length)
        script.sent += length
        script.plain &= flags == ACK and sequence == last
        if not kind & LOST:
            script.captured += len(payload)
            acknowledged = numbers.get((connection, 1 - side), FIRST)
            packet = _packet(connection, side, sequence, acknowledged, flags, payload)
            script.pcap += struct.pack("<IIII", 1_700_000_000, at * 1000, len(packet), len(packet)) + packet
    return script


def _packet(connection: int, side: int, sequence: int, acknowledged: int, flags: int, payload: bytes) -> bytes:
    ports = (40_000 + connection, BROKER_PORT)
    hosts = (b"\x0a\x00\x00\x01", b"\x0a\x00\x00\x02")
    tcp = struct.pack(">HHIIBBHHH", ports[side], ports[1 - side], sequence, acknowledged, 0x50, flags, 65535, 0, 0)
    ip = struct.pack(">BBHHHBBH", 0x45, 0, 40 + len(payload), 0, 0, 64, 6, 0) + hosts[side] + hosts[1 - side]
    return bytes(12) + b"\x08\x00" + ip + tcp + payload
