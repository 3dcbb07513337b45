"""Capture files and packets, some written by dpkt, some byte by byte.

dpkt also dissects the packets here, so of every link type at least one packet is bytes that it had no part in.

Damaged capture files: what is read of them, where the rest lies, and what that costs.
"""

from __future__ import annotations

import io
import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dpkt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoord_wire.capture import CaptureError, CaptureReport, read_capture
from kcoord_wire.capture.pcap import MAX_PACKET, Packet, read_packets, salvage_packets
from kcoord_wire.kernel.file_bytes import FileBytes
from tests.support.pcapng import to_pcapng

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


CAPTURES = Path(__file__).parents[1] / "data" / "captures"
NAMES = ["aiokafka", "cooperative", "eager_range", "static_bounce"]


def salvaged(data: bytes) -> tuple[list[Packet], list[tuple[int, int, str]]]:
    damage: list[tuple[int, int, str]] = []
    return list(salvage_packets(data, lambda *place: damage.append(place))), damage


def sound(data: bytes) -> list[Packet]:
    return list(read_packets(io.BytesIO(data), lambda _: None))


@pytest.mark.parametrize("order", ["", "<", ">"])
@pytest.mark.parametrize("name", NAMES)
def test_a_sound_file_gives_its_packets(name: str, order: str) -> None:
    data = (CAPTURES / f"{name}.pcap").read_bytes()
    given = to_pcapng(data, order) if order else data
    packets, damage = salvaged(given)
    assert damage == []
    assert packets == sound(data) == sound(given)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("order", ["", "<", ">"])
def test_flipped_bits_cost_little_more_than_what_they_hit(seed: int, order: str) -> None:
    rng = random.Random(seed)
    data = (CAPTURES / "cooperative.pcap").read_bytes()
    data = to_pcapng(data, order) if order else data
    spoiled = bytearray(data)
    for _ in range(30):
        spoiled[rng.randrange(60, len(data))] ^= 1 << rng.randrange(8)
    packets, damage = salvaged(bytes(spoiled))
    everything = sound(data)
    assert len([packet for packet in packets if packet in everything]) >= len(everything) - 45
    ends = [position + size for position, size, _ in damage]
    assert all(end <= position for end, (position, _, _) in zip(ends, damage[1:], strict=False))


def test_a_length_that_is_damaged_costs_one_packet() -> None:
    data = bytearray((CAPTURES / "aiokafka.pcap").read_bytes())
    everything = sound(bytes(data))
    position = 24 + sum(16 + len(packet.data) for packet in everything[:10])
    struct.pack_into("<I", data, position + 8, len(everything[10].data) - 3)
    packets, damage = salvaged(bytes(data))
    assert packets == everything[:10] + everything[11:]
    assert [(at, size) for at, size, _ in damage] == [(position, 16 + len(everything[10].data))]


def test_noise_between_packets_costs_no_packet() -> None:
    data = (CAPTURES / "aiokafka.pcap").read_bytes()
    everything = sound(data)
    position = 24 + sum(16 + len(packet.data) for packet in everything[:10])
    noise = random.Random(1).randbytes(777)
    packets, damage = salvaged(data[:position] + noise + data[position:])
    assert packets == everything
    assert [(at, size) for at, size, _ in damage] == [(position, 777)]


@pytest.mark.parametrize("start", [b"", b"\xd4\xc3\xb2\xa1", b"\x0a\x0d\x0d\x0a" + bytes(20), b"\xff\xd8\xff\xe0"])
def test_salvage_refuses_what_is_not_a_capture(start: bytes) -> None:
    with pytest.raises(CaptureError):
        salvaged(start)


@given(st.binary(max_size=300))
def test_anything_behind_the_header_is_taken(noise: bytes) -> None:
    header = struct.pack("<IHHIIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
    packets, damage = salvaged(header + noise)
    assert sum(16 + len(packet.data) for packet in packets) + sum(size for _, size, _ in damage) == len(noise)
    next_generation = to_pcapng(header)
    salvaged(next_generation + noise)
    salvaged(next_generation + struct.pack("<II", 6, len(noise) // 4 * 4 + 12) + noise)


class Counted(FileBytes):
    """Counts what is looked at: bytes that are read or searched, and headers that are parsed."""

    work = 0

    def read(self, position: int, size: int) -> bytes:
        found = super().read(position, size)
        self.work += len(found)
        return found

    def unpack(self, struct: struct.Struct, position: int) -> tuple[Any, ...]:
        self.work += struct.size
        return super().unpack(struct, position)


def work_of(data: bytes) -> int:
    counted = Counted(io.BytesIO(data))
    assert list(salvage_packets(counted, lambda *_: None)) == salvaged(data)[0]
    return counted.work


def damaged_headers(count: int) -> bytes:
    """Of every 20 headers one claims more bytes than were sent."""
    made = [struct.pack("<IHHIIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)]
    for number in range(count):
        made.append(struct.pack("<IIII", 0x60606060, number, 44 if number % 20 else 0x7FFFFFFF, 44) + bytes(44))
    return b"".join(made)


def drifting_times(count: int) -> bytes:
    """Times of the packets in a pair are so far apart that from the first nothing behind the pair is plausible."""
    made = [struct.pack("<IHHIIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)]
    for number in range(count):
        seconds = 1_700_000_000 + number * 70_000
        made += [struct.pack("<IIII", seconds + step, 0, 16, 16) + bytes(16) for step in (0, 40_000)] + [bytes(40)]
    return b"".join(made)


def near_the_last(count: int) -> bytes:
    """Bytes behind the last packet of which every place looks like the upper half of a time near it."""
    header = struct.pack("<IHHIIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
    return header + (struct.pack("<IIII", 0x60606060, 0, 4, 4) + b"data") * 2 + b"\x60" * (count * 40)


def no_block_ends_right(count: int) -> bytes:
    return (
        section("<") + interface("<") + b"".join(enhanced("<", 7, b"packet")[:-4] + b"\1\2\3\4" for _ in range(count))
    )


@pytest.mark.parametrize("make", [damaged_headers, drifting_times, near_the_last, no_block_ends_right])
def test_the_work_of_salvage_is_linear(make: Callable[[int], bytes]) -> None:
    assert work_of(make(3200)) < 9 * work_of(make(400))
