"""CPU time that a lossy capture of busy connections takes, next to tshark's on the same file.

    python -m tests.bench.lossy [--megabytes 91] [--dropped 0.68] [--keep FILE]
    python -m tests.bench.lossy --snap 2048 [--megabytes 20]

With --snap, what ``tcpdump -s`` saves on a host whose interface joins segments (64 KB a packet): the bytes of a whole
capture and of a cut one, and whether the groups' histories are the same.

The file is made here: clients produce to and fetch from a broker, 16 to 60 KB a frame, while members of a group send
heartbeats; of all packets the share `--dropped` is left out, at random, with a fixed seed. CPU time is that of the
child processes (user and system), so other work on the machine counts little. tshark dissects the broker's port as
Kafka's.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import kcoord_wire as kw
from kcoord_wire.capture.packets import ACK
from kcoord_wire.forensics.analysis import analyze
from kcoord_wire.forensics.model import GroupHistory
from kcoord_wire.records import Record, encode_batch
from tests.support.packets import BROKER, Line, asked

from .archive.analyze import spent

_SEGMENT: Final = 1448
_FILE: Final = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262_144, 1)
_PRODUCE, _FETCH = 0, 1


def _frames(rng: random.Random) -> Iterator[tuple[int, bytes]]:
    """Frames of one connection, each with its sender: what a producer, a consumer and a member of a group send."""
    values = [rng.randbytes(200).hex().encode() for _ in range(50)]
    for number in range(1, 1 << 30):
        batch = encode_batch(
            [Record(value=rng.choice(values)) for _ in range(rng.randint(40, 150))], base_offset=number
        )
        head = struct.pack(">hhihs", _PRODUCE, 7, number, 1, b"p")
        topic = struct.pack(">ih6s", 1, 6, b"orders") + struct.pack(">ii", 1, number % 12)
        yield 0, kw.frame(head + struct.pack(">hhi", -1, -1, 30_000) + topic + struct.pack(">i", len(batch)) + batch)
        answer = topic + struct.pack(">hqqqi", 0, number, -1, 0, 0)
        yield 1, kw.frame(struct.pack(">i", number) + answer)
        number += 1 << 30
        head = struct.pack(">hhihs", _FETCH, 4, number, 1, b"c")
        wanted = topic + struct.pack(">qi", number, 1 << 20)
        yield 0, kw.frame(head + struct.pack(">iiiib", -1, 500, 1, 1 << 20, 0) + wanted)
        answer = struct.pack(">ii", number, 0) + topic + struct.pack(">hqqii", 0, number, number, 0, len(batch)) + batch
        yield 1, kw.frame(answer)
        if number % 8 == 0:
            request, response = asked(number % 100_000 * 3)
            yield 0, kw.frame(request)
            yield 1, kw.frame(response)


def write_lossy(
    file: BinaryIO, size: int, dropped: float, seed: int = 1, *, segment: int = _SEGMENT, snap: int = 262_144
) -> int:
    """Write a capture of `size` bytes; return how many packets it has.

    :param size: of the capture, were no packet cut
    :param dropped: share of the packets that is left out, those of the handshakes excepted
    :param segment: payload of a packet
    :param snap: bytes that are kept of a packet
    """
    rng = random.Random(seed)
    file.write(_FILE)
    written, packets, time_us = len(_FILE), 0, 0
    lines = [Line(client=(f"10.0.1.{number}", 40_000 + number), broker=BROKER) for number in range(1, 21)]
    talks = [_frames(random.Random(seed + number)) for number in range(len(lines))]
    opening = [packet for line in lines for packet in line.open().packets]

    def write(packet: bytes) -> None:
        nonlocal written, packets, time_us
        time_us += 20
        kept = packet[:snap]
        file.write(struct.pack("<IIII", 1_000 + time_us // 1_000_000, time_us % 1_000_000, len(kept), len(packet)))
        file.write(kept)
        written, packets = written + 16 + len(packet), packets + 1

    for packet in opening:
        write(packet)
    while written < size:
        at = rng.randrange(len(lines))
        sender, data = next(talks[at])
        for packet in _kept(lines[at], sender, data, dropped, rng, segment):
            write(packet)
    return packets


def _kept(line: Line, sender: int, data: bytes, dropped: float, rng: random.Random, segment: int) -> Iterator[bytes]:
    for start in range(0, len(data), segment):
        part = data[start : start + segment]
        if rng.random() >= dropped:
            yield line._packet(sender, part, ACK)
        line.next[sender] += len(part)
        if rng.random() >= dropped:
            yield line._packet(1 - sender, b"", ACK)


def _compare_cut(folder: Path, size: int, snap: int) -> None:
    analyses = []
    for name, kept in (("whole", 262_144), ("cut", snap)):
        path = folder / f"{name}.pcap"
        with path.open("wb") as file:
            write_lossy(file, size, 0.0, segment=64_000, snap=kept)
        analyses.append((path.stat().st_size, analyze([path])))
    (whole, complete), (cut, partial) = analyses
    same = [_shown(history) for history in complete.histories] == [_shown(history) for history in partial.histories]
    print(f"{whole / 1e6:.1f} MB whole, {cut / 1e6:.1f} MB with -s {snap}: {whole / cut:.1f} times less")
    print(f"the same histories: {'yes' if same else 'no'}")


def _shown(history: GroupHistory) -> str:
    """What is known of a group, without the names of files."""
    return re.sub(r"\w*\.pcap", "", repr(history))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=91)
    parser.add_argument("--dropped", type=float, default=0.68)
    parser.add_argument("--keep", type=Path, help="write the capture here, and keep it")
    parser.add_argument(
        "--snap", type=int, help="compare a whole capture with one that keeps so many bytes of a packet"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.snap:
            _compare_cut(Path(folder), int(args.megabytes * 1e6), args.snap)
            return
        path = args.keep or Path(folder, "lossy.pcap")
        with path.open("wb") as file:
            packets = write_lossy(file, int(args.megabytes * 1e6), args.dropped)
        print(f"{path.stat().st_size / 1e6:.0f} MB, {packets:,} packets, {args.dropped:.0%} dropped")
        ours = spent([sys.executable, "-m", "kcoord_wire", "analyze", str(path), "--quiet"]).seconds
        print(f"kcoord analyze: {ours:.1f} s of CPU")
        tshark = shutil.which("tshark")
        if tshark is None:
            print("tshark is not installed")
            return
        theirs = spent([tshark, "-r", str(path), "-d", f"tcp.port=={BROKER[1]},kafka", "-Y", "kafka"]).seconds
        print(f"tshark -Y kafka: {theirs:.1f} s of CPU; {ours / theirs:.1f} times")


if __name__ == "__main__":
    main()
