"""The shares of a capture, put together, are the whole, whatever the capture has."""

from __future__ import annotations

import os
import random
import struct
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kcoord_wire.capture import frames as capture_frames
from kcoord_wire.capture.lanes import LANES, lane_of
from kcoord_wire.capture.packets import ACK, FIN, RST, SYN, Segment, read_segment
from kcoord_wire.capture.pcap import Packet, open_packets
from kcoord_wire.forensics.sources.flows import Flows
from kcoord_wire.forensics.sources.frames import read_frames, read_unit
from tests.support.packets import BROKER, Line, capture, talk
from tests.support.pcapng import to_pcapng
from tests.support.rotation import cut, even_cuts, write
from tests.support.segments import CAPTURES, rows

Rows = list[dict[str, Any]]
PACKET, FILE_HEADER = 16, 24
SHARES = (1, 2, 3, 8)


def lanes(count: int) -> list[range]:
    return [range(LANES * number // count, LANES * (number + 1) // count) for number in range(count)]


def in_shares(read: Callable[..., Any], count: int) -> Rows:
    """The rows of all shares, put together, each of which is in order."""
    found: Rows = []
    for share in lanes(count):
        found += rows(read(share=share))
    return by_seq(found)


def by_seq(found: Rows) -> Rows:
    return sorted(found, key=lambda row: row["seq"])


def check(path: Path, counts: Sequence[int] = SHARES, **options: Any) -> Rows:
    """Compare the shares of a capture with the whole; return that."""
    whole = rows(read_frames(path, **options))
    assert len({row["seq"] for row in whole}) == len(whole)
    for count in counts:
        assert in_shares(lambda share: read_frames(path, share=share, **options), count) == by_seq(whole)
    return whole


def wire(path: Path) -> list[tuple[bytes, bytes]]:
    """The header of each packet of a little-endian capture, and its bytes."""
    data, position, found = path.read_bytes(), FILE_HEADER, []
    while position < len(data):
        size = struct.unpack_from("<I", data, position + 8)[0]
        end = position + PACKET + size
        found.append((data[position : position + PACKET], data[position + PACKET : end]))
        position = end
    return found


def spoiled(path: Path, rng: random.Random) -> bytes:
    """A capture whose packets are lost, doubled, late, and flipped in single bits, as are their headers."""
    packets = [pair for pair in wire(path) if rng.random() > 0.03]
    for _ in range(len(packets) // 20):
        packets.insert(rng.randrange(len(packets)), rng.choice(packets))
        first = rng.randrange(len(packets) - 9)
        packets[first : first + 8] = rng.sample(packets[first : first + 8], 8)
    data = bytearray(path.read_bytes()[:FILE_HEADER] + b"".join(map(b"".join, packets)))
    for place in rng.sample(range(FILE_HEADER, len(data)), len(data) // 2000):
        data[place] ^= 1 << rng.randrange(8)
    return bytes(data)


@pytest.mark.parametrize(
    "path", [*CAPTURES.glob("*.pcap"), *(CAPTURES / "incidents").glob("*.gz")], ids=lambda p: p.name
)
def test_shares_are_the_whole(path: Path) -> None:
    whole = check(path)
    assert [row["seq"] for row in whole] == sorted(row["seq"] for row in whole)
    name = next(row["connection"] for row in whole if row["connection"])
    port = int(name.partition("#")[0].rpartition(":")[2])
    assert len(check(path, (3,), ports=[port])) > len(whole) // 4
    check(path, (2,), ports=[1])


@pytest.mark.parametrize("seed", range(8))
def test_shares_of_a_spoiled_capture(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    data = spoiled(CAPTURES / ["aiokafka.pcap", "static_bounce.pcap", "eager_range.pcap"][seed % 3], rng)
    path = tmp_path / "spoiled.pcap"
    path.write_bytes(to_pcapng(data, "<>"[seed % 2]) if seed % 4 == 3 else data)
    assert any(row["direction"] == "damage" for row in check(path, (2, 8)))


# ---- many connections of all kinds

SECOND = ("10.0.0.3", 9093)
FAR = ("fd00::2", 9092)


def connection(rng: random.Random, number: int) -> list[bytes]:
    """The packets of a connection: Kafka's, refused, encrypted, or another protocol's; whole, midway, or broken off."""
    broker = rng.choice([BROKER, BROKER, SECOND, FAR])
    client = ("fd00::7", 40_000 + number) if broker == FAR else ("10.0.0.9", 40_000 + number // 2)
    if rng.random() < 0.1:
        client = SECOND if broker == BROKER else client  # brokers among themselves
    initials = (rng.randrange(2**32), rng.randrange(2**32))
    kind = rng.random()
    if kind < 0.1:
        return Line(client, broker, initials).send(0, flags=SYN).send(1, flags=RST | ACK).packets
    if kind < 0.15:
        return Line(client, broker, initials).send(0, flags=SYN).packets * 3
    if kind < 0.4:
        broker = broker if broker == FAR else rng.choice([broker, ("10.0.0.4", 443)])
        line = Line(client, broker, initials).open()
        for _ in range(rng.randrange(6)):
            line.send(rng.randrange(2), rng.choice([b"GET / HTTP/1.1\r\n", rng.randbytes(40)]))
    else:
        line = talk(Line(client, broker, initials).open(), range(rng.randrange(1, 12)), size=rng.choice([60, 1460]))
    if rng.random() < 0.6:
        line.close()
    elif rng.random() < 0.3:
        line.send(rng.randrange(2), flags=rng.choice([FIN | ACK, RST | ACK]))
    return line.packets[rng.choice([0, 0, 0, 3, 5]) :]


def tagged(packet: bytes) -> bytes:
    return packet[:12] + struct.pack(">HH", 0x8100, 7) + packet[12:]


def fragment(packet: bytes) -> bytes:
    return packet[:20] + b"\x20\0" + packet[22:] if packet[12:14] == b"\x08\0" else packet


def mixed(rng: random.Random, count: int) -> bytes:
    """A capture of many connections at the same time; some packets are tagged, fragments, or lost."""
    left = [list(reversed(connection(rng, number))) for number in range(count)]
    open_, packets = left[:3], []
    left = left[3:]
    while open_:
        each = rng.choice(open_)
        if each:
            packets.append(each.pop())
        if not each:
            open_.remove(each)
        if left and rng.random() < 0.3:
            open_.append(left.pop())
    packets = [packet for packet in packets if rng.random() > 0.01]
    wrap = [tagged, fragment, *[bytes] * 48]
    return capture([rng.choice(wrap)(packet) for packet in packets]).read()


@pytest.mark.parametrize("most", [None, 8])
@pytest.mark.parametrize("seed", range(4))
def test_shares_of_many_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, most: int | None
) -> None:
    """Also where connections are ended because there are too many."""
    if most is not None:
        monkeypatch.setattr(capture_frames, "MAX_CONNECTIONS", most)
        monkeypatch.setattr(capture_frames, "LANES", 4)
    path = tmp_path / "mixed.pcap"
    path.write_bytes(mixed(random.Random(seed), 90))
    found = check(path, (2, 8))
    kinds = {row["direction"] for row in found}
    assert kinds == {"opened", "closed", "reset", "refused", "resent", "request", "response", "damage"}
    check(path, (3,), ports=[9092])


def test_shares_of_a_rotated_capture(tmp_path: Path) -> None:
    data = mixed(random.Random(1), 100)
    cuts = even_cuts(data, 5)
    files = cut(data, cuts)
    paths = write(tmp_path, [f"trace.pcap{number}" for number in (0, 1, 3, 4, 5)], [*files[:4], files[4][:-9]])
    whole = rows(read_unit(paths, is_rotated=True))
    assert any("1 file of the capture missing" in (row["error"] or "") for row in whole)
    for count in SHARES:
        assert in_shares(lambda share: read_unit(paths, is_rotated=True, share=share), count) == by_seq(whole)


# ---- windows of the file


@pytest.mark.parametrize("window", [8192, 20_000])
@pytest.mark.parametrize("packed", [bytes, to_pcapng])
def test_shares_that_hold_a_small_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: Callable[[bytes], bytes], window: int
) -> None:
    monkeypatch.setattr(Flows, "window", window)
    path = tmp_path / "trace"
    path.write_bytes(packed(mixed(random.Random(7), 60)))
    assert path.stat().st_size > 4 * window
    check(path, (1, 3))


@pytest.mark.parametrize("packed", [bytes, to_pcapng])
def test_a_share_of_a_file_that_is_cut_ends_with_a_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: Callable[[bytes], bytes]
) -> None:
    """A mapped file would end the process (SIGBUS)."""
    monkeypatch.setattr(Flows, "window", 1 << 16)
    path = tmp_path / "trace"
    path.write_bytes(packed(mixed(random.Random(7), 400)))
    size = path.stat().st_size
    assert size > 4 << 16
    batches = read_frames(path, batch_rows=10, share=range(LANES // 2))
    found = rows([next(batches)])
    os.truncate(path, 8192)
    found += rows(batches)
    [cut_off] = [row for row in found if "was cut from" in (row["error"] or "")]
    assert f"the file was cut from {size} to 8192 bytes while it was read" in cut_off["error"]
    assert size - (4 << 16) < cut_off["lost"] < size - 8192
    assert found[-1]["seq"] >= cut_off["seq"] > 10


# ---- what is passed over


class Known:
    """Knows all endpoints as brokers."""

    brokers: frozenset[Any] = frozenset()
    has_connections = True

    def __init__(self, ports: frozenset[int]) -> None:
        self.ports = ports

    def exceptions(self) -> list[Any]:
        return []


LINKS: dict[int, Callable[[bytes], bytes]] = {
    1: lambda packet: packet,
    101: lambda packet: packet[14:],
    0: lambda packet: b"\x02\0\0\0" + packet[14:],
    113: lambda packet: bytes(14) + packet[12:],
    276: lambda packet: packet[12:14] + bytes(18) + packet[14:],
}


@pytest.mark.parametrize("link", LINKS)
def test_packets_that_are_passed_over_have_a_segment(link: int) -> None:
    """Whatever their headers say, `read_segment` finds a segment, and it is of another lane."""
    rng = random.Random(5)
    made = []
    for packet in (packet for number in range(150) for packet in connection(rng, number)):
        changed = bytearray(LINKS[link](rng.choice([bytes, bytes, tagged])(packet) if link in (1, 113) else packet))
        for _ in range(rng.choice([0, 0, 1, 2])):
            changed[rng.randrange(min(len(changed), 70))] = rng.choice([0, 4, 6, 0x45, 0x50, 0x60, 0x81, 255])
        made.append(bytes(changed)[: rng.choice([2000, 2000, 2000, 70, 50])])
    data = capture(made).read()
    data = data[:20] + struct.pack("<I", link) + data[24:]
    share, passed = Flows(range(32)), 0
    packets = iter(open_packets(data, lambda *_: None).packets())
    known = Known(frozenset(range(65536)))
    for found in share.packets(open_packets(data, lambda *_: None), known, deque(maxlen=3)):
        if isinstance(found, Packet):
            assert next(packets) == found
            continue
        for _ in range(found[0]):
            last = next(packets)
            segment = read_segment(last)
            assert isinstance(segment, Segment)
            assert lane_of((segment.source, segment.destination)) >= 32
            passed += 1
        assert last.time_ns == found[1]
    assert next(packets, None) is None
    assert passed > len(made) // 5
