"""Capture files and packets, some written by dpkt, some byte by byte.

dpkt also dissects the packets here, so of every link type at least one packet is bytes that it had no part in.
"""

from __future__ import annotations

import io
import struct
import tracemalloc

import dpkt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoord_wire.capture import CaptureError, CaptureReport, read_capture
from kcoord_wire.capture.pcap import MAX_PACKET, Packet, read_packets

PACKETS = [(1_700_000_000.25, b"first"), (1_700_000_001.5, b""), (1_700_000_002.75, b"x" * 1501)]
EXPECTED = [Packet(int(time * 4) * 250_000_000, 1, data, len(data)) for time, data in PACKETS]


def packets_of(data: bytes) -> tuple[list[Packet], list[str]]:
    damage: list[str] = []
    return list(read_packets(io.BytesIO(data), damage.append)), damage


def written_by(writer: type, **options: object) -> bytes:
    file = io.BytesIO()
    writer(file, snaplen=65535, **options).writepkts(PACKETS)
    return file.getvalue()


def classic(order: str, magic: int, per_second: int, extra: bytes = b"") -> bytes:
    """A classic pcap of `PACKETS`; `extra` follows each packet's header."""
    data = struct.pack(order + "IHHIIII", magic, 2, 4, 0, 0, 65535, 1)
    for time, packet in PACKETS:
        seconds, fraction = divmod(time, 1)
        data += struct.pack(order + "IIII", int(seconds), int(fraction * per_second), len(packet), len(packet))
        data += extra + packet
    return data


def block(order: str, kind: int, body: bytes) -> bytes:
    body += bytes(-len(body) % 4)
    size = struct.pack(order + "I", len(body) + 12)
    return struct.pack(order + "I", kind) + size + body + size


def section(order: str) -> bytes:
    return block(order, 0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))


def interface(order: str, link_type: int = 1, options: bytes = b"") -> bytes:
    return block(order, 1, struct.pack(order + "HHI", link_type, 0, 0) + options)


def enhanced(order: str, ticks: int, packet: bytes, number: int = 0) -> bytes:
    head = struct.pack(order + "IIIII", number, ticks >> 32, ticks & 0xFFFFFFFF, len(packet), len(packet))
    return block(order, 6, head + packet)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(written_by(dpkt.pcap.Writer), id="dpkt pcap"),
        pytest.param(written_by(dpkt.pcap.Writer, nano=True), id="dpkt pcap, nanoseconds"),
        pytest.param(written_by(dpkt.pcapng.Writer), id="dpkt pcapng"),
        pytest.param(classic(">", 0xA1B2C3D4, 10**6), id="big-endian"),
        pytest.param(classic(">", 0xA1B23C4D, 10**9), id="big-endian, nanoseconds"),
        pytest.param(classic("<", 0xA1B2CD34, 10**6, bytes(8)), id="modified"),
    ],
)
def test_every_kind_of_file_gives_the_packets(data: bytes) -> None:
    assert packets_of(data) == (EXPECTED, [])


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize(
    ("options", "ticks", "time_ns"),
    [
        pytest.param("", 1_500_000, 1_500_000_000, id="microseconds"),
        pytest.param("resolution 9", 1_234_567_891, 1_234_567_891, id="nanoseconds"),
        pytest.param("resolution 138", 1536, 1_500_000_000, id="1/1024 s"),
        pytest.param("offset 100", 1_500_000, 101_500_000_000, id="offset"),
    ],
)
def test_pcapng_timestamps(order: str, options: str, ticks: int, time_ns: int) -> None:
    name, _, value = options.partition(" ")
    packed = {
        "": b"",
        "resolution": struct.pack(order + "HHBxxx", 9, 1, int(value or 0)),
        "offset": struct.pack(order + "HHq", 14, 8, int(value or 0)),
    }[name]
    comment = struct.pack(order + "HH", 1, 3) + b"\xff\xfe\xfd\0"
    data = section(order) + interface(order, 1, comment + packed) + enhanced(order, ticks, b"packet")
    assert packets_of(data) == ([Packet(time_ns, 1, b"packet", 6)], [])


def test_pcapng_sections_interfaces_and_other_blocks() -> None:
    old = block("<", 2, struct.pack("<HHIIII", 0, 0, 0, 7, 3, 9) + b"old")
    simple = block("<", 3, struct.pack("<I", 6) + b"simple")
    large = block("<", 0x0BAD, bytes(MAX_PACKET + 100))
    data = section("<") + interface("<", 1) + interface("<", 101) + enhanced("<", 5, b"raw", 1) + old + large + simple
    data += section(">") + interface(">", 113) + enhanced(">", 6, b"sll")
    assert packets_of(data) == (
        [
            Packet(5000, 101, b"raw", 3),
            Packet(7000, 1, b"old", 9),
            Packet(0, 1, b"simple", 6),
            Packet(6000, 113, b"sll", 3),
        ],
        [],
    )


@pytest.mark.parametrize("data", [b"", b"\xd4", b"\xd4\xc3\xb2\xa1", b"PK\x03\x04" * 9, section("<")[:8] + bytes(20)])
def test_a_file_that_is_not_a_capture_is_refused(data: bytes) -> None:
    with pytest.raises(CaptureError):
        packets_of(data)
    with pytest.raises(CaptureError):
        list(read_capture(io.BytesIO(data)))


@pytest.mark.parametrize("writer", [dpkt.pcap.Writer, dpkt.pcapng.Writer])
def test_a_file_cut_anywhere_gives_what_is_before_the_cut(writer: type) -> None:
    whole = written_by(writer)
    start = 24 if writer is dpkt.pcap.Writer else len(section("<")) + len(interface("<"))
    for length in range(start, len(whole)):
        packets, damage = packets_of(whole[:length])
        complete = [packet for packet in packets if len(packet.data) == packet.length]
        assert complete == EXPECTED[: len(complete)]
        assert len(damage) <= 1
        assert damage or len(packets) == len(complete)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(classic("<", 0xA1B2C3D4, 10**6) + struct.pack("<IIII", 0, 0, 0xFFFFFFF0, 1), id="packet size"),
        pytest.param(section("<") + interface("<") + struct.pack("<II", 6, 0xFFFFFFF0), id="block size"),
        pytest.param(section("<") + interface("<") + struct.pack("<II", 6, 4), id="block too small"),
        pytest.param(section("<") + enhanced("<", 1, b"x"), id="no interface"),
        pytest.param(section("<") + interface("<") + block("<", 6, b"abcd"), id="packet block too small"),
        pytest.param(section("<") + interface("<") + section("<")[:8] + bytes(20), id="section without byte order"),
    ],
)
def test_damage_ends_the_reading_in_bounded_memory(data: bytes) -> None:
    tracemalloc.start()
    try:
        _, damage = packets_of(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(damage) == 1
    assert peak < 3 * MAX_PACKET


STARTS = [b"", written_by(dpkt.pcap.Writer)[:24], section("<"), section(">") + interface(">")]


@given(st.sampled_from(STARTS), st.binary(max_size=300))
def test_any_bytes_are_survived(start: bytes, rest: bytes) -> None:
    report = CaptureReport()
    try:
        frames = list(read_capture(io.BytesIO(start + rest), report=report))
    except CaptureError:
        return
    assert frames == []
