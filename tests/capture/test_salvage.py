"""Damaged capture files: what is read of them, where the rest lies, and what that costs."""

from __future__ import annotations

import io
import random
import struct
from pathlib import Path
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoord_wire.capture import CaptureError
from kcoord_wire.capture.pcap import Packet, read_packets
from kcoord_wire.capture.salvage import salvage_packets
from tests.support.pcapng import to_pcapng

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
def test_a_file_that_is_not_a_capture_is_refused(start: bytes) -> None:
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


def test_the_search_is_linear() -> None:
    """Every place looks like the upper half of a time near the last packet's."""
    header = struct.pack("<IHHIIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
    seconds = 0x60606060
    packet = struct.pack("<IIII", seconds, 0, 4, 4) + b"data"
    times = []
    for size in (50_000, 200_000):
        began = process_time()
        packets, damage = salvaged(header + packet * 2 + b"\x60" * size)
        times.append(process_time() - began)
        assert (len(packets), sum(lost for _, lost, _ in damage)) == (2, size)
    assert times[1] < 30 * max(times[0], 0.02)
