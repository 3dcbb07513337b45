"""What a tunnel's packet carries: where the inner packet begins, and of which kind it is.

VXLAN, Geneve, GRE (with ERSPAN I and II), IP in IP.

Laws:

* Each step takes a header off, and `MAX_NESTED` of them at most are taken off a packet.
* Nothing is read beyond the bytes that are there; a header that is cut, or no tunnel's, yields None.

Sources: RFC 7348 (VXLAN; 8472 is the port of Linux and of flannel), RFC 8926 (Geneve), RFC 2784 and 2890 (GRE),
RFC 2003 (IP in IP), RFC 4213 (IPv6 in IPv4), draft-foschiano-erspan.
"""

from __future__ import annotations

import struct
from typing import Final

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
