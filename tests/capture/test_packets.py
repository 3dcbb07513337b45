"""From packets to TCP segments. dpkt writes most packets here; of every link type at least one is written by hand.

Kafka inside tunnels: the same frames, whatever is around the packets, and bounds on what is taken off.
"""

from __future__ import annotations

import random
import socket
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from time import process_time

import dpkt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoord_wire.capture.packets import (
    ACK,
    MAX_HEADERS,
    MAX_NESTED,
    Segment,
    _dissect,
    _read_plain,
    inner_packet,
    read_segment,
)
from kcoord_wire.capture.pcap import MAX_PACKET, Packet, read_packets
from tests.support.packets import Line, expected, frames_of, summary, talk

TCP = dpkt.tcp.TCP(sport=50000, dport=9092, seq=7, ack=9, flags=ACK, data=b"payload")
IPV4 = bytes(dpkt.ip.IP(src=socket.inet_aton("10.0.0.1"), dst=socket.inet_aton("10.0.0.2"), p=6, data=TCP))
IPV6_ENDS = {name: socket.inet_pton(socket.AF_INET6, ip) for name, ip in (("src", "fd00::1"), ("dst", "fd00::2"))}
IPV6 = bytes(dpkt.ip6.IP6(nxt=6, plen=len(bytes(TCP)), data=TCP, **IPV6_ENDS))


def with_extensions(*kinds: int) -> bytes:
    """The IPv6 packet with extension headers of 16 bytes (authentication: 4 words of 4, less 2)."""
    headers = b""
    for at, kind in enumerate(kinds):
        following = kinds[at + 1] if at + 1 < len(kinds) else 6
        size = {51: 2, 44: 0}.get(kind, 1)
        headers += bytes([following, size]) + bytes(6 if kind == 44 else 14)
    size = len(headers) + len(bytes(TCP))
    return IPV6[:4] + struct.pack(">HB", size, kinds[0]) + IPV6[7:40] + headers + bytes(TCP)


def ethernet(payload: bytes, *tags: int, kind: int | None = None) -> bytes:
    kind = kind or (0x0800 if payload[0] >> 4 == 4 else 0x86DD)
    tagged = b"".join(struct.pack(">HH", tag, 5) for tag in tags)
    return bytes(12) + tagged + struct.pack(">H", kind) + payload


LAYERS = {
    "ethernet": (1, ethernet(IPV4)),
    "ethernet, padded": (1, ethernet(IPV4) + bytes(30)),
    "ethernet, IPv6": (1, ethernet(IPV6)),
    "VLAN": (1, ethernet(IPV4, 0x8100)),
    "two VLANs": (1, ethernet(IPV6, 0x88A8, 0x8100)),
    "raw": (101, IPV4),
    "raw of BSD": (12, IPV6),
    "IPv4": (228, IPV4),
    "IPv6": (229, IPV6),
    "three VLANs": (1, ethernet(IPV4, 0x88A8, 0x8100, 0x8100)),
    "legacy QinQ": (1, ethernet(IPV4, 0x9100, 0x88A8)),
    "SLL": (113, bytes(dpkt.sll.SLL(ethtype=0x0800)) + IPV4),
    "SLL2": (276, bytes(dpkt.sll2.SLL2(ethtype=0x86DD)) + IPV6),
    "SLL, VLAN": (113, bytes(dpkt.sll.SLL(ethtype=0x8100)) + b"\0\5\x08\0" + IPV4),
    "null": (0, b"\2\0\0\0" + IPV4),
    "loop": (108, b"\0\0\0\x1e" + IPV6),
    "options": (101, b"\x46" + IPV4[1:2] + struct.pack(">H", len(IPV4) + 4) + IPV4[4:20] + bytes(4) + IPV4[20:]),
    "segmented by the interface": (101, IPV4[:2] + bytes(2) + IPV4[4:]),
    "extension headers": (101, with_extensions(0, 43, 51, 60)),
    "a fragment that is whole": (101, with_extensions(44)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    link_type, data = LAYERS[name]
    found = read_segment(Packet(3, link_type, data, len(data)))
    version = 6 if IPV6[8:40] in data else 4
    ends = (("fd00::1", 50000), ("fd00::2", 9092)) if version == 6 else (("10.0.0.1", 50000), ("10.0.0.2", 9092))
    assert found == Segment(3, *ends, 7, 9, ACK, 7, b"payload")


# Written by hand; tshark dissects them to the same fields and finds every checksum right.
HEX_TCP = "c350 2384 00000007 00000009 5010 ffff SUM 0000 7061796c6f6164"  # 50000 > 9092, 7 bytes of payload
HEX_IPV4 = "45 00 002f 0001 4000 40 06 26c6 0a000001 0a000002" + HEX_TCP.replace("SUM", "f7b6")
HEX_IPV6 = (
    "60000000 001b 06 40" + "fd00" + "00" * 13 + "01" + "fd00" + "00" * 13 + "02" + HEX_TCP.replace("SUM", "11b5")
)
BY_HAND = {
    "Ethernet": (1, "020000000002 020000000001 0800" + HEX_IPV4),
    "Ethernet, a VLAN tag of priority 1 and id 5": (1, "020000000002 020000000001 8100 2005 86dd" + HEX_IPV6),
    "raw IPv4": (101, HEX_IPV4),
    "raw IPv6": (101, HEX_IPV6),
    "SLL: to us, Ethernet, an address of 6 bytes": (113, "0000 0001 0006 0200000000010000 0800" + HEX_IPV4),
    "SLL2: interface 3, Ethernet, to us": (276, "86dd 0000 00000003 0001 00 06 0200000000010000" + HEX_IPV6),
    "null: family 2 of a little-endian host": (0, "02000000" + HEX_IPV4),
    "null: family 30 of a big-endian host": (0, "0000001e" + HEX_IPV6),
    "loop: family 24": (108, "00000018" + HEX_IPV6),
}
SPANNING_TREE = (  # IEEE 802.3 with a length for a type, LLC 42 42 03, a configuration BPDU, padding
    "0180c2000000 020000000001 0026 424203 0000 00 00 00 8000020000000001 00000000 8000020000000001"
    "8001 0000 1400 0200 0f00" + "00" * 8
)


@pytest.mark.parametrize("name", BY_HAND)
def test_packets_written_by_hand(name: str) -> None:
    link_type, text = BY_HAND[name]
    data = bytes.fromhex(text)
    ends = ("fd00::1", "fd00::2") if HEX_IPV6 in text else ("10.0.0.1", "10.0.0.2")
    expected = Segment(3, (ends[0], 50000), (ends[1], 9092), 7, 9, ACK, 7, b"payload")
    assert read_segment(Packet(3, link_type, data, len(data))) == expected


@pytest.mark.parametrize("name", LAYERS)
def test_a_packet_cut_anywhere_is_a_shorter_segment_or_none(name: str) -> None:
    link_type, data = LAYERS[name]
    header = data.index(b"payload")
    for length in range(len(data)):
        found = read_segment(Packet(3, link_type, data[:length], len(data)))
        if isinstance(found, Segment):
            assert (found.length, found.payload) == (7, data[header : min(length, header + 7)])
        else:
            assert found == "short"
            assert length < header


@pytest.mark.parametrize(
    ("link_type", "data", "reason"),
    [
        (147, IPV4, "link type"),
        (1, ethernet(bytes(28), kind=0x0806), "not IP"),
        (1, bytes.fromhex(SPANNING_TREE), "not IP"),
        (1, ethernet(bytes(28), kind=0x8847), "not IP"),
        (113, bytes(dpkt.sll.SLL(ethtype=0x0806)) + bytes(28), "not IP"),
        (101, b"\x50" + IPV4[1:], "not IP"),
        (101, IPV4[:9] + b"\x11" + IPV4[10:], "not TCP"),
        (101, IPV6[:6] + b"\x11" + IPV6[7:], "not TCP"),
        (101, with_extensions(135), "not TCP"),  # mobility: nothing follows it
        (101, with_extensions(0, 50), "not TCP"),  # what follows is encrypted
        (101, IPV4[:6] + b"\x20\x00" + IPV4[8:], "fragment"),
        (101, IPV4[:6] + b"\x00\x01" + IPV4[8:], "fragment"),
        (101, with_extensions(44)[:42] + b"\0\1" + with_extensions(44)[44:], "fragment"),
        (101, with_extensions(44, 60)[:42] + b"\0\1" + with_extensions(44, 60)[44:], "fragment"),
        (101, with_extensions(0, 44)[:58] + b"\0\x08" + with_extensions(0, 44)[60:], "fragment"),
        (101, IPV4[:32] + b"\x10" + IPV4[33:], "short"),
    ],
)
def test_what_is_no_segment_says_why(link_type: int, data: bytes, reason: str) -> None:
    assert read_segment(Packet(0, link_type, data, len(data))) == reason


@given(st.sampled_from([0, 1, 12, 101, 108, 113, 228, 229, 276]), st.binary(max_size=120), st.integers(0, 2000))
def test_any_packet_is_handled(link_type: int, data: bytes, length: int) -> None:
    found = read_segment(Packet(0, link_type, data, length))
    assert not isinstance(found, Segment) or len(found.payload) <= found.length


@pytest.mark.parametrize("family", [4, 6])
def test_a_cut_packet_above_64_kib_keeps_its_length(family: int) -> None:
    """Length fields of 0: the interface was to cut the segment. The snap length cut the packet after 20 bytes of it."""
    ip = {4: IPV4[:2] + bytes(2) + IPV4[4:], 6: IPV6[:4] + bytes(2) + IPV6[6:]}[family]
    data = ethernet(ip) + bytes(13)
    found = read_segment(Packet(0, 1, data, len(data) + 90_000))
    assert isinstance(found, Segment)
    assert (found.length, found.payload) == (90_020, b"payload" + bytes(13))


def ipv6_of(protocol: int, rest: bytes) -> bytes:
    return b"\x60\0\0\0\0\0" + bytes([protocol, 64]) + bytes(32) + rest


HOSTILE = {
    "extension headers": (101, ipv6_of(60, b"\x3c\0\1\4\0\0\0\0" * 2**17)),
    "fragment headers": (101, ipv6_of(44, b"\x2c\0\0\0\0\0\0\0" * 2**17)),
    "options in one extension header after the other": (101, ipv6_of(60, (b"\x3c\xff" + b"\5\0" * 1023) * 2**9)),
    "VLAN tags": (1, bytes(12) + b"\x81\0\0\1" * 2**18),
    "VLAN tags after SLL": (113, bytes(14) + b"\x81\0\0\1" * 2**18),
    "Cisco ISL": (1, b"\1\0\x0c\0\0\0".ljust(26, b"\0") * 2**15),
    "IPv4 in IPv4": (101, b"\x45\0\0\0\0\0\0\0\x40\4".ljust(20, b"\0") * 2**15),
    "IPv6 in IPv6": (101, ipv6_of(41, b"") * 2**14),
    "Ethernet in Ethernet in GRE": (101, ipv6_of(47, b"\0\0\x65\x58" + (bytes(12) + b"\x65\x58") * 2**16)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_the_work_on_a_hostile_packet_is_bounded(name: str) -> None:
    link_type, data = HOSTILE[name]
    packet = Packet(0, link_type, data[:MAX_PACKET], len(data))
    read_segment(packet)
    tracemalloc.start()
    start = process_time()
    try:
        found = read_segment(packet)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found in ("short", "not IP", "not TCP")
    assert process_time() - start < 0.5
    assert peak < MAX_PACKET


def test_extension_headers_may_fill_the_limit() -> None:
    room = (MAX_HEADERS - 40 - 20) // 16
    for count, verdict in ((room, "payload"), (room + 1, "short")):
        data = with_extensions(*[60] * count)
        found = read_segment(Packet(0, 101, data, len(data)))
        assert (found.payload.decode() if isinstance(found, Segment) else found) == verdict


def test_without_dpkt_the_error_names_the_extra() -> None:
    program = """
import sys
sys.modules["dpkt"] = None
from kcoord_wire.capture import MissingLibraryError, read_capture
try:
    list(read_capture(sys.argv[1]))
except MissingLibraryError as error:
    print(error.name, error)
from kcoord_wire.cli.main import main
sys.exit(main(["capture", sys.argv[1], "--summary"]))
"""
    file = Path(__file__).parents[1] / "data" / "captures" / "cooperative.pcap"
    done = subprocess.run([sys.executable, "-c", program, str(file)], capture_output=True, text=True, check=False)
    text = "reading packets needs dpkt: pip install 'kcoord_wire[capture]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, f"dpkt {text}", f"kcoord: {text}")


# ---- plain packets are read without dpkt


def test_the_fast_path_reads_what_dpkt_reads() -> None:
    rng = random.Random(3)
    captures = Path(__file__).parents[1] / "data" / "captures"
    with (captures / "cooperative.pcap").open("rb") as file:
        found = list(read_packets(file, lambda _: None))
    plain = 0
    for packet in found:
        assert _read_plain(packet) == _dissect(packet)
        plain += _read_plain(packet) is not None
        for _ in range(12):
            data = bytearray(packet.data)
            for _ in range(rng.randint(1, 3)):
                data[rng.randrange(12, min(60, len(data)))] = rng.choice(
                    (0, 1, 6, 0x45, 0x4F, 0x50, 0xFF, rng.randrange(256))
                )
            cut = Packet(1, 1, bytes(data[: rng.choice((len(data), rng.randint(0, 70)))]), len(data))
            outright = _read_plain(cut)
            assert outright is None or outright == _dissect(cut)
            plain += outright is not None
    assert plain > len(found) * 4


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
    assert {frame.connection for frame in frames} == {"10.0.0.1:50000-10.0.0.2:9092#1"}


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
