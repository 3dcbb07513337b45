"""Kafka inside tunnels: the same frames, whatever is around the packets, and bounds on what is taken off."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

import dpkt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoord_wire.capture.packets import read_segment
from kcoord_wire.capture.pcap import Packet
from kcoord_wire.capture.tunnels import MAX_NESTED, inner_packet
from tests.support.packets import Line, expected, frames_of, summary, talk

Wrap = Callable[[bytes], bytes]


def _in_ip(protocol: int, payload: bytes, six: bool = False) -> bytes:
    if six:
        ends = [socket.inet_pton(socket.AF_INET6, ip) for ip in ("fd00::8", "fd00::9")]
        ip = dpkt.ip6.IP6(src=ends[0], dst=ends[1], nxt=protocol, plen=len(payload), data=payload)
        return bytes(dpkt.ethernet.Ethernet(type=0x86DD, data=bytes(ip.pack_hdr()) + payload))
    header = dpkt.ip.IP(src=b"\x0a\0\0\x08", dst=b"\x0a\0\0\x09", p=protocol, len=20 + len(payload)).pack_hdr()
    return bytes(dpkt.ethernet.Ethernet(type=0x0800)) + header + payload


def _udp(port: int, payload: bytes) -> bytes:
    return struct.pack(">HHHH", 50_001, port, 8 + len(payload), 0) + payload


def _gre(flags: int, ethertype: int, payload: bytes) -> bytes:
    extra = 4 * sum(bool(flags & flag) for flag in (0x8000, 0x2000, 0x1000))
    return struct.pack(">HH", flags, ethertype) + bytes(extra) + payload


VXLAN_HEADER = b"\x08\0\0\0\0\0\x2a\0"
TUNNELS: dict[str, Wrap] = {
    "vxlan": lambda frame: _in_ip(17, _udp(4789, VXLAN_HEADER + frame)),
    "vxlan of flannel": lambda frame: _in_ip(17, _udp(8472, VXLAN_HEADER + frame)),
    "vxlan over ipv6": lambda frame: _in_ip(17, _udp(4789, VXLAN_HEADER + frame), six=True),
    "geneve": lambda frame: _in_ip(17, _udp(6081, b"\x02\0\x65\x58\0\0\x2a\0" + bytes(8) + frame)),
    "ipip": lambda frame: _in_ip(4, frame[14:]),
    "gre": lambda frame: _in_ip(47, _gre(0, 0x0800, frame[14:])),
    "gre with a key": lambda frame: _in_ip(47, _gre(0xB000, 0x6558, frame)),
    "erspan 1": lambda frame: _in_ip(47, _gre(0, 0x88BE, frame)),
    "erspan 2": lambda frame: _in_ip(47, _gre(0x1000, 0x88BE, bytes(8) + frame)),
}


@pytest.mark.parametrize("name", TUNNELS)
def test_frames_inside_a_tunnel_are_those_outside(name: str) -> None:
    line = talk(Line().open(), range(1, 9)).close()
    frames, report = frames_of([TUNNELS[name](packet) for packet in line.packets])
    assert summary(frames) == expected(range(1, 9))
    assert report.complete
    assert {frame.connection for frame in frames} == {"10.0.0.1:50000-10.0.0.2:9092#0"}


def test_tunnels_in_tunnels_are_bounded() -> None:
    packet = talk(Line().open(), [1]).packets[3]
    for depth in range(MAX_NESTED + 2):
        found = read_segment(Packet(0, 1, packet, len(packet)))
        assert (found == "not TCP") == (depth > MAX_NESTED), depth
        packet = TUNNELS["vxlan"](packet)


def test_what_only_looks_like_a_tunnel_is_passed_over() -> None:
    frame = talk(Line().open(), [1]).packets[3]
    others = [
        _in_ip(17, _udp(53, VXLAN_HEADER + frame)),
        _in_ip(17, _udp(4789, bytes(8) + frame)),  # without the flag of a valid identifier
        _in_ip(17, _udp(6081, b"\x42\0\x65\x58" + bytes(4) + frame)),  # of another version
        _in_ip(47, _gre(1, 0x880B, frame)),  # PPTP
        _in_ip(89, frame),
    ]
    for packet in others:
        assert read_segment(Packet(0, 1, packet, len(packet))) == "not TCP"


@given(st.sampled_from([4, 17, 41, 47]), st.binary(max_size=60))
def test_any_bytes_behind_ip_are_handled(protocol: int, data: bytes) -> None:
    inner_packet(protocol, data, 0)
    for head in (b"\xc3\x51\x12\xb5", b"\xc3\x51\x17\xc1", b""):
        packet = _in_ip(protocol, head + data)
        read_segment(Packet(0, 1, packet, len(packet)))
