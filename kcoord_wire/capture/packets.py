"""From a captured packet to its TCP segment. dpkt dissects the headers of all but the most common packets.

Link types: Ethernet (with VLAN tags), raw IP, Linux cooked (SLL, SLL2), null and loopback. IPv4 and IPv6, also
inside tunnels: VXLAN, Geneve, GRE (with ERSPAN I and II), IP in IP.

Laws:

* A packet becomes a `Segment` or one of a closed list of reasons (`Unread`). Only `MissingLibraryError` is raised.
* A segment has its length on the wire, whatever part of it was captured; padding after it is not part of it.
* dpkt dissects as deep as it can, in time that may grow with the square of the input. So it gets one layer at a time,
  at most `MAX_HEADERS` bytes of it, and the payload is cut out of the packet itself.
* Of tunnels, each step takes a header off, and `MAX_NESTED` of them at most are taken off a packet. Nothing is read
  beyond the bytes that are there; a header that is cut, or no tunnel's, yields None.
* Checksums are not checked: on a host whose interface computes them, captured packets have wrong ones.

Sources: tcpdump.org LINKTYPE_ pages, IEEE 802.1Q, RFC 791, RFC 8200 (section 4), RFC 9293 (section 3.1), RFC 7348
(VXLAN; 8472 is the port of Linux and of flannel), RFC 8926 (Geneve), RFC 2784 and 2890 (GRE), RFC 2003 (IP in IP), RFC
4213 (IPv6 in IPv4), draft-foschiano-erspan.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from socket import AF_INET, AF_INET6, inet_ntop
from typing import Any, Final, Literal

from kcoord_wire.capture.pcap import Packet
from kcoord_wire.extras import require

MAX_NESTED: Final = 4
"""Tunnels within each other."""

ETHERNET: Final = 1
IP: Final = 101
"""Kinds of inner packets, as link types of tcpdump.org."""

_IPV4, _UDP, _IPV6, _GRE = 4, 17, 41, 47  # protocol numbers of IP
_UDP_HEADER, _VXLAN_HEADER, _GENEVE_HEADER, _GRE_HEADER, _ERSPAN_HEADER = 8, 8, 8, 4, 8
_VXLAN_PORTS: Final = (4789, 8472)
_GENEVE_PORT: Final = 6081
_ETHERTYPES: Final = {0x6558: ETHERNET, 0x0800: IP, 0x86DD: IP}
_ERSPAN: Final = 0x88BE
_CHECKSUM, _KEY, _SEQUENCE = 0x8000, 0x2000, 0x1000  # flags of GRE, each with four bytes


def inner_packet(protocol: int, data: bytes, at: int) -> tuple[int, int] | None:
    """Return where the inner packet begins in `data`, and its kind; None if there is none.

    :param protocol: of IP
    :param at: where the header behind that of IP begins
    """
    try:
        if protocol in (_IPV4, _IPV6):
            return at, IP
        if protocol == _UDP:
            return _of_udp(data, at)
        return _of_gre(data, at) if protocol == _GRE else None
    except struct.error:
        return None


def _of_udp(data: bytes, at: int) -> tuple[int, int] | None:
    (port,) = struct.unpack_from(">H", data, at + 2)
    at += _UDP_HEADER
    if port in _VXLAN_PORTS:
        (flags,) = struct.unpack_from(">B7x", data, at)
        return (at + _VXLAN_HEADER, ETHERNET) if flags & 0x08 else None
    if port != _GENEVE_PORT:
        return None
    first, ethertype = struct.unpack_from(">BxH4x", data, at)
    kind = _ETHERTYPES.get(ethertype)
    return None if first >> 6 or kind is None else (at + _GENEVE_HEADER + (first & 63) * 4, kind)


def _of_gre(data: bytes, at: int) -> tuple[int, int] | None:
    flags, ethertype = struct.unpack_from(">HH", data, at)
    if flags & 0x4007:  # routing, and versions above 0
        return None
    at += _GRE_HEADER + 4 * sum(bool(flags & flag) for flag in (_CHECKSUM, _KEY, _SEQUENCE))
    if ethertype == _ERSPAN:
        return at + _ERSPAN_HEADER * bool(flags & _SEQUENCE), ETHERNET
    kind = _ETHERTYPES.get(ethertype)
    return None if kind is None else (at, kind)


FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10

MAX_HEADERS: Final = 1024
"""Bytes in which the link header with its tags must end, and an IPv6 header with its extensions and the TCP header."""

Endpoint = tuple[str, int]
"""Address and port."""

At = tuple[int, int]
"""When and where: nanoseconds since 1970, and the number of the packet."""

Unread = Literal[
    "link type",  # not one of those above
    "not IP",
    "not TCP",
    "fragment",  # of an IP datagram; fragments are not reassembled
    "short",  # it ends before its TCP header does: the capture cut it, or its lengths are wrong
]


@dataclass(slots=True)
class Segment:
    """One TCP segment as it was captured.

    :ivar time_ns: nanoseconds since 1970
    :ivar source: the sender
    :ivar destination: the receiver
    :ivar sequence: number of its first byte (of its SYN, where it has one), 0..2**32-1
    :ivar acknowledged: next number its sender expects; undefined without the ACK flag
    :ivar flags: the low eight bits of the TCP flags
    :ivar length: payload bytes it had on the wire
    :ivar payload: payload bytes that were captured, at most `length`
    :ivar number: of the packet in its capture, from 1 as Wireshark counts (frame.number); 0 where nothing counts
    """

    time_ns: int
    source: Endpoint
    destination: Endpoint
    sequence: int
    acknowledged: int
    flags: int
    length: int
    payload: bytes
    number: int = 0

    @property
    def at(self) -> At:
        return self.time_ns, self.number


LINK_NULL, LINK_ETHERNET, LINK_LOOP, LINK_SLL, LINK_SLL2 = 0, 1, 108, 113, 276
LINK_IP: Final = frozenset({12, 14, 101, 228, 229})
_ETHERNET_HEADER, _VLAN_TAG = 14, 4
_MAX_IPV4_HEADERS: Final = 60 + 60  # of IP and of TCP, each with all its options
_MAX_DATAGRAM: Final = 65_535  # IP's length field; each tunnel costs a copy of what is in it
_PLAIN: Final = struct.Struct(">12xHBxH2xHxB2x4s4s")  # Ethernet and IPv4, without options
_TCP: Final = struct.Struct(">HHIIBB6x")  # without options
_SMALLEST_PLAIN: Final = _PLAIN.size + _TCP.size
ETHERTYPES_IP: Final = frozenset({0x0800, 0x86DD})
ETHERTYPES_VLAN: Final = frozenset({0x8100, 0x88A8, 0x9100})


def read_segment(packet: Packet) -> Segment | Unread:
    """Return the TCP segment in a packet, or why there is none.

    :raises MissingLibraryError: the extra ``capture`` is not installed
    """
    _require_dpkt()  # even if no packet needs it, so that the error does not depend on the packets
    return _read_plain(packet) or _dissect(packet)


def _read_plain(packet: Packet) -> Segment | None:
    """Parse Ethernet with IPv4 with TCP, as nearly every packet is; return None for all others and all damage.

    Takes 2 us where dpkt takes 20 (tests/capture/test_packets.py compares the results).
    """
    data = packet.data
    if packet.link_type != LINK_ETHERNET or len(data) < _SMALLEST_PLAIN:
        return None
    ethertype, version, total, fragment, protocol, source, destination = _PLAIN.unpack_from(data)
    start = _ETHERNET_HEADER + (version & 15) * 4
    if ethertype != 0x0800 or not 0x45 <= version <= 0x4F or protocol != 6 or fragment & 0x3FFF or not total:
        return None
    if start + _TCP.size > len(data):
        return None
    from_port, to_port, sequence, acknowledged, offset, flags = _TCP.unpack_from(data, start)
    payload, end = start + (offset >> 4) * 4, _ETHERNET_HEADER + total
    if offset < 0x50 or end < payload or payload > len(data):
        return None
    return Segment(
        packet.time_ns,
        (_address(source), from_port),
        (_address(destination), to_port),
        sequence,
        acknowledged,
        flags,
        end - payload,
        data[payload:end],
    )


@lru_cache(maxsize=65536)
def _address(packed: bytes) -> str:
    return inet_ntop(AF_INET, packed)


def _dissect(packet: Packet, nested: int = MAX_NESTED) -> Segment | Unread:
    """Dissect a packet.

    :param nested: how many tunnels it may be in
    """
    dpkt = _dpkt()
    try:
        start = _ip_start(dpkt, packet.link_type, packet.data[:MAX_HEADERS])
        if not isinstance(start, int):
            return start
        version = packet.data[start] >> 4
        if version == 4:
            return _read_ipv4(dpkt, packet, start, nested)
        if version == 6:
            return _read_ipv6(dpkt, packet, start, nested)
    except (IndexError, dpkt.UnpackError):
        return "short"
    return "not IP"


@cache
def _require_dpkt() -> None:
    """Find dpkt without importing its 80 modules, which few captures need."""
    if find_spec("dpkt") is None:
        _dpkt()


@cache
def _dpkt() -> Any:
    return require("dpkt", "capture", "reading packets")


def _ip_start(dpkt: Any, link_type: int, data: bytes) -> int | Unread:
    """Where the IP header begins."""
    if link_type in LINK_IP:
        return 0
    if link_type in (LINK_NULL, LINK_LOOP):
        # An address family, whose numbers and byte order differ between systems; the version of IP does not.
        start: int = dpkt.loopback.Loopback.__hdr_len__
        return start
    if link_type == LINK_ETHERNET:
        head = data[: _ETHERNET_HEADER + 2 * _VLAN_TAG]
        try:
            frame = dpkt.ethernet.Ethernet(head)
        except Exception:  # dpkt raises errors of any type for IEEE 802.3 frames
            return "short" if len(head) < _ETHERNET_HEADER + 2 * _VLAN_TAG else "not IP"
        ethertype = frame.vlan_tags[-1].type if hasattr(frame, "vlan_tags") else frame.type
        start = len(head) - len(frame.data)
    elif link_type in (LINK_SLL, LINK_SLL2):
        cooked = dpkt.sll.SLL if link_type == LINK_SLL else dpkt.sll2.SLL2
        start = cooked.__hdr_len__
        ethertype = cooked(data[:start]).ethtype
    else:
        return "link type"
    while ethertype in ETHERTYPES_VLAN:
        ethertype = dpkt.ethernet.VLANtag8021Q(data[start : start + _VLAN_TAG]).type
        start += _VLAN_TAG
    return start if ethertype in ETHERTYPES_IP else "not IP"


def _read_tunnel(packet: Packet, protocol: int, start: int, nested: int) -> Segment | Unread:
    """Read what is behind a header of IP that is not followed by TCP's."""
    may_be = nested and len(packet.data) - start <= _MAX_DATAGRAM
    inner = inner_packet(protocol, packet.data[start : start + MAX_HEADERS], 0) if may_be else None
    if inner is None:
        return "not TCP"
    at, kind = start + inner[0], inner[1]
    carried = Packet(packet.time_ns, kind, packet.data[at:], max(0, packet.length - at))
    return _read_plain(carried) or _dissect(carried, nested - 1)


def _read_ipv4(dpkt: Any, packet: Packet, start: int, nested: int) -> Segment | Unread:
    try:
        ip = dpkt.ip.IP(packet.data[start : start + _MAX_IPV4_HEADERS])
    except dpkt.UnpackError:
        return "short"
    except Exception:  # a TCP header raises only UnpackError
        return "not TCP"
    if ip.p != dpkt.ip.IP_PROTO_TCP:
        return "not TCP" if ip.offset else _read_tunnel(packet, ip.p, start + ip.hl * 4, nested)
    if ip.mf or ip.offset:
        return "fragment"
    # If the interface does the segmentation, captured datagrams above 64 KiB have a length of 0.
    end = start + ip.len if ip.len else packet.length
    return _read_tcp(dpkt, packet, AF_INET, ip, start + ip.hl * 4, end)


def _read_ipv6(dpkt: Any, packet: Packet, start: int, nested: int) -> Segment | Unread:
    try:
        ip = dpkt.ip6.IP6(packet.data[start : start + MAX_HEADERS])
    except dpkt.UnpackError:
        return "short"
    except AttributeError:  # dpkt reads a fragment offset from the last extension header, whatever its type
        return "fragment"
    except Exception:
        return "not TCP"
    extensions = ip.all_extension_headers
    if any(isinstance(e, dpkt.ip6.IP6FragmentHeader) and (e.frag_off or e.m_flag) for e in extensions):
        return "fragment"
    protocol = getattr(ip, "p", None)
    position = start + ip.__hdr_len__
    end = position + ip.plen if ip.plen else packet.length
    position += sum(extension.length for extension in extensions)
    if protocol is None:
        return "not TCP"
    if protocol != dpkt.ip.IP_PROTO_TCP:
        return _read_tunnel(packet, protocol, position, nested)
    return _read_tcp(dpkt, packet, AF_INET6, ip, position, end)


def _read_tcp(dpkt: Any, packet: Packet, family: int, ip: Any, start: int, end: int) -> Segment | Unread:
    tcp = ip.data
    if not isinstance(tcp, dpkt.tcp.TCP):
        return "short"
    payload = start + tcp.off * 4
    if end < payload:
        return "short"
    return Segment(
        packet.time_ns,
        (inet_ntop(family, ip.src), tcp.sport),
        (inet_ntop(family, ip.dst), tcp.dport),
        tcp.seq,
        tcp.ack,
        tcp.flags & 0xFF,
        end - payload,
        packet.data[payload:end],
    )
