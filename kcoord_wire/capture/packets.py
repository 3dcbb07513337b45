"""From a captured packet to its TCP segment.

Link types: Ethernet (with VLAN tags), raw IP, Linux cooked (SLL, SLL2), null and loopback. IPv4 and IPv6.

Laws:

* A packet is either a `Segment` or one of a closed list of reasons (`UNREAD`) why it is none. Nothing raises.
* A segment knows how long it was on the wire, not only how much of it was captured; padding after it is not part of it.
* Checksums are not looked at: an interface that computes them itself shows wrong ones to its own host.

Sources: tcpdump.org LINKTYPE_ pages, IEEE 802.1Q, RFC 791, RFC 8200 (section 4), RFC 4302 (section 2.2), RFC 9293
(section 3.1).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from socket import AF_INET, AF_INET6, inet_ntop
from typing import Final, Literal

from kcoord_wire.capture.pcap import Packet

__all__ = ["ACK", "FIN", "RST", "SYN", "Endpoint", "Segment", "Unread", "read_segment"]

FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10

Endpoint = tuple[str, int]
"""Address and port."""

Unread = Literal[
    "link type",  # not one of those above
    "not IP",
    "not TCP",
    "fragment",  # of an IP datagram; they are not put together
    "short",  # the capture cut it before the end of the TCP header
]


@dataclass(slots=True)
class Segment:
    """One TCP segment as it was captured.

    :ivar time_ns: nanoseconds since 1970
    :ivar sequence: number of its first byte (of its SYN, where it has one), 0..2**32-1
    :ivar acknowledged: next number its sender waits for; means nothing without the ACK flag
    :ivar flags: the low eight bits of the TCP flags
    :ivar length: payload bytes it had on the wire
    :ivar payload: payload bytes that were captured, at most `length`
    """

    time_ns: int
    source: Endpoint
    destination: Endpoint
    sequence: int
    acknowledged: int
    flags: int
    length: int
    payload: bytes


_LINK_NULL, _LINK_ETHERNET, _LINK_LOOP, _LINK_SLL, _LINK_SLL2 = 0, 1, 108, 113, 276
_LINK_IP: Final = frozenset({12, 14, 101, 228, 229})
_TYPE_FIELD: Final = {  # link type: offset of the EtherType, size of the header
    _LINK_ETHERNET: (12, 14),
    _LINK_SLL: (14, 16),
    _LINK_SLL2: (0, 20),
}
_ETHERTYPES_IP: Final = frozenset({0x0800, 0x86DD})
_ETHERTYPES_VLAN: Final = frozenset({0x8100, 0x88A8, 0x9100})
_PROTOCOL_TCP, _PROTOCOL_FRAGMENT, _PROTOCOL_AUTHENTICATION = 6, 44, 51
_EXTENSIONS: Final = frozenset({0, 43, 60, 135})  # hop-by-hop, routing, destination options, mobility: one layout
_IPV4 = struct.Struct(">BxHxxHxB2x4s4s")
_IPV6 = struct.Struct(">4xHBx16s16s")
_TCP = struct.Struct(">HHIIBB")
_TCP_HEADER: Final = 20


def read_segment(packet: Packet) -> Segment | Unread:
    """The TCP segment in a packet, or why there is none."""
    try:
        start = _ip_start(packet.link_type, packet.data)
        if not isinstance(start, int):
            return start
        version = packet.data[start] >> 4
        if version == 4:
            return _read_ipv4(packet, start)
        if version == 6:
            return _read_ipv6(packet, start)
    except (IndexError, struct.error):
        return "short"
    return "not IP"


def _ip_start(link_type: int, data: bytes) -> int | Unread:
    """Where the IP header begins."""
    if link_type in _LINK_IP:
        return 0
    if link_type in (_LINK_NULL, _LINK_LOOP):  # an address family, whose numbers and byte order differ between systems
        return 4
    if link_type not in _TYPE_FIELD:
        return "link type"
    type_at, start = _TYPE_FIELD[link_type]
    (ethertype,) = struct.unpack_from(">H", data, type_at)
    while ethertype in _ETHERTYPES_VLAN:
        (ethertype,) = struct.unpack_from(">H", data, start + 2)
        start += 4
    return start if ethertype in _ETHERTYPES_IP else "not IP"


def _read_ipv4(packet: Packet, start: int) -> Segment | Unread:
    version_and_size, total, fragment, protocol, source, destination = _IPV4.unpack_from(packet.data, start)
    if protocol != _PROTOCOL_TCP:
        return "not TCP"
    if fragment & 0x3FFF:  # more fragments, or not the first
        return "fragment"
    # A host that leaves segmentation to its interface shows datagrams above 64 KiB with a length of 0.
    end = start + total if total else packet.length
    header = (version_and_size & 0xF) * 4
    return _read_tcp(packet, start + header, end, inet_ntop(AF_INET, source), inet_ntop(AF_INET, destination))


def _read_ipv6(packet: Packet, start: int) -> Segment | Unread:
    data = packet.data
    size, protocol, source, destination = _IPV6.unpack_from(data, start)
    position = start + 40
    end = position + size if size else packet.length
    while protocol != _PROTOCOL_TCP:
        if protocol in _EXTENSIONS:
            protocol, position = data[position], position + (data[position + 1] + 1) * 8
        elif protocol == _PROTOCOL_AUTHENTICATION:
            protocol, position = data[position], position + (data[position + 1] + 2) * 4
        elif protocol == _PROTOCOL_FRAGMENT:
            if struct.unpack_from(">H", data, position + 2)[0] & 0xFFF9:  # an offset, or more fragments
                return "fragment"
            protocol, position = data[position], position + 8
        else:
            return "not TCP"
    return _read_tcp(packet, position, end, inet_ntop(AF_INET6, source), inet_ntop(AF_INET6, destination))


def _read_tcp(packet: Packet, start: int, end: int, source: str, destination: str) -> Segment | Unread:
    source_port, destination_port, sequence, acknowledged, offset, flags = _TCP.unpack_from(packet.data, start)
    header = (offset >> 4) * 4
    length = end - start - header
    if header < _TCP_HEADER or length < 0:
        return "short"
    return Segment(
        packet.time_ns,
        (source, source_port),
        (destination, destination_port),
        sequence,
        acknowledged,
        flags,
        length,
        packet.data[start + header : end],
    )
