"""Damaged files: reading ends well, and every byte is in a sound row or in a loss that says where."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kcoord_wire.capture.pcap import salvage_packets
from kcoord_wire.forensics.analysis import analyze
from kcoord_wire.forensics.sources.frames import read_frames, read_lines, read_log
from kcoord_wire.recorder.recording import RecordingWriter, recording_files
from kcoord_wire.records import Record, RecordBatch, SegmentReader, batch, encode_batch
from tests.support.pcapng import flip_time, to_pcapng
from tests.support.recordings import record_capture
from tests.support.segments import commit, rows
from tests.support.wire_samples import match_all

CAPTURE = Path(__file__).parents[2] / "data" / "captures" / "cooperative.pcap"
PACKET, RECORD, FILE_HEADER, RECORDING_HEADER = 16, 36, 24, 36


def flipped(data: bytes, share: float, seed: int, start: int) -> bytes:
    """A bit flipped in that share of the bytes from `start` on."""
    rng = random.Random(seed)
    spoiled = bytearray(data)
    for place in rng.sample(range(start, len(data)), max(1, int(share * (len(data) - start)))):
        spoiled[place] ^= 1 << rng.randrange(8)
    return bytes(spoiled)


def matched(path: Path) -> tuple[list[dict[str, Any]], Any]:
    """The frames of a file, and what a matcher makes of them: it raises nothing, and knows of all that is lost."""
    found = rows(read_frames(path))
    exchanges, _, matcher = match_all(read_frames(path))
    lost = {(row["position"], row["error"]) for row in found if row["error"] and row["direction"] != "resent"}
    assert lost <= {(loss.position, loss.what) for loss in matcher.losses}
    assert sum(row["lost"] for row in found) <= sum(loss.bytes for loss in matcher.losses)
    assert matcher.counts["frames"] == len(found)
    return exchanges, matcher


# ---- captures


def accounted(data: bytes) -> tuple[int, int, list[tuple[int, int]]]:
    """Packets, their bytes, and where damage lies."""
    damage: list[tuple[int, int]] = []
    packets = list(salvage_packets(data, lambda position, size, _: damage.append((position, size))))
    return len(packets), sum(PACKET + len(packet.data) for packet in packets), damage


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("share", [0.0001, 0.001, 0.01])
def test_a_capture_with_flipped_bits(tmp_path: Path, seed: int, share: float) -> None:
    data = flipped(CAPTURE.read_bytes(), share, seed, start=FILE_HEADER)
    packets, size, damage = accounted(data)
    assert FILE_HEADER + size + sum(lost for _, lost in damage) == len(data)
    sound = accounted(CAPTURE.read_bytes())[0]
    assert packets >= sound * {0.0001: 0.99, 0.001: 0.95, 0.01: 0.6}[share]
    path = tmp_path / "damaged.pcap"
    path.write_bytes(data)
    found = rows(read_frames(path))
    told = [(row["error"].split()[1], row["lost"]) for row in found if (row["error"] or "").startswith("byte ")]
    assert told == [(str(position), lost) for position, lost in damage]
    exchanges, _ = matched(path)
    assert len(exchanges) > (40 if share == 0.0001 else 0)


@pytest.mark.parametrize("cut", [24, 25, 39, 40, 41, 200, 1_000, 9_999, 20_001, 55_555, 99_990, 100_070])
def test_a_capture_cut_anywhere(tmp_path: Path, cut: int) -> None:
    data = CAPTURE.read_bytes()[:cut]
    _, size, damage = accounted(data)
    assert FILE_HEADER + size + sum(lost for _, lost in damage) == len(data)
    assert len(damage) <= 1
    path = tmp_path / "cut.pcap"
    path.write_bytes(data)
    exchanges, matcher = matched(path)
    whole = {(row["connection"], row["asked_ns"]) for row in match_all(read_frames(CAPTURE))[0]}
    assert {(row["connection"], row["asked_ns"]) for row in exchanges} <= whole
    assert matcher.counts["stray"] == 0


@pytest.mark.parametrize("bit", [63, 62, 61, 40])
def test_a_flipped_time_stamp_costs_one_packet(tmp_path: Path, bit: int) -> None:
    """Bit 63 makes nanoseconds that 64 signed bits cannot hold; the files beside the damaged one are analyzed."""
    spoiled, position = flip_time(to_pcapng(CAPTURE.read_bytes()), 40, bit)
    (tmp_path / "spoiled.pcapng").write_bytes(spoiled)
    (tmp_path / "sound.pcap").write_bytes((CAPTURE.parent / "eager_range.pcap").read_bytes())
    analysis = analyze([tmp_path])
    of_sound = analyze([tmp_path / "sound.pcap"]).counts["exchanges"]
    assert analysis.counts["exchanges"] > of_sound + 40
    lost = [loss for loss in analysis.losses if "time stamp" in loss.what]
    if bit < 63:
        assert lost == []
        return
    assert [(loss.source, loss.position) for loss in lost] == [(str(tmp_path / "spoiled.pcapng"), 40)]
    assert lost[0].what.startswith(f"byte {position} of the file: a packet's time stamp of ")
    assert lost[0].bytes > 28


def test_time_stamps_before_1970_are_losses(tmp_path: Path) -> None:
    """An interface whose option if_tsoffset (14) moves its times back by 2**40 seconds."""
    data = to_pcapng(CAPTURE.read_bytes())
    interface, end = 28, 60
    assert struct.unpack_from("<II", data, interface) == (1, end - interface)
    size = struct.pack("<I", end - interface + 12)
    options = data[36 : end - 8] + struct.pack("<HHq", 14, 8, -(2**40)) + data[end - 8 : end - 4]
    path = tmp_path / "shifted.pcapng"
    path.write_bytes(data[:32] + size + options + size + data[end:])
    analysis = analyze([path])
    assert analysis.histories == []
    assert {loss.what.partition(": ")[2][:24] for loss in analysis.losses} == {"a packet's time stamp of"}


# ---- recordings


def divided(path: Path, count: int) -> list[dict[str, Any]]:
    """The rows of a recording that is read in shares of its bytes, one after the other."""
    size = path.stat().st_size
    borders = [size * number // count for number in range(count + 1)]
    return [row for border in pairwise(borders) for row in rows(read_frames(path, share=range(*border)))]


@pytest.mark.parametrize("spoil", [None, 0.0001, 0.001, 0.01])
def test_shares_of_a_recording_are_the_whole(tmp_path: Path, spoil: float | None) -> None:
    """Of the second file, too, whose first records open the connections of the first again."""
    record_capture(tmp_path, CAPTURE, max_file_bytes=20_000)
    first, second = recording_files(tmp_path)[:2]
    for path in (first, second):
        if spoil is not None:
            path.write_bytes(flipped(path.read_bytes(), spoil, 3, start=RECORDING_HEADER)[:-7])
        whole = rows(read_frames(path))
        assert [row["seq"] for row in whole] == list(range(len(whole)))
        for count in (1, 2, 3, 7, 17, 64):
            assert divided(path, count) == whole


def test_shares_of_a_recording_that_was_cut_are_losses(tmp_path: Path) -> None:
    record_capture(tmp_path, CAPTURE)
    [path] = recording_files(tmp_path)
    size = path.stat().st_size
    os.truncate(path, size // 4)
    [lost] = rows(read_frames(path, share=range(size // 2, size)))
    assert lost["lost"] == size - size // 2
    assert lost["error"] == f"the file was cut from {size} to {size // 4} bytes while it was read"


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("recording")
    numbers: dict[str, int] = {}
    with RecordingWriter(folder) as writer:
        for row in rows(read_frames(CAPTURE)):
            number = numbers.setdefault(row["connection"], len(numbers))
            if row["direction"] == "opened":
                writer.opened(number, row["connection"], row["time_ns"])
            elif row["direction"] == "closed":
                writer.closed(number, row["time_ns"])
            else:
                writer.frame(number, row["direction"], row["frame"], row["time_ns"])
    return recording_files(folder)[0].read_bytes()


def bytes_of_recording(found: list[dict[str, Any]], header: bool) -> int:
    total = RECORDING_HEADER if header else 0
    for row in found:
        if row["direction"] == "damage":
            total += row["lost"]
        else:
            name = len(row["connection"]) if row["direction"] == "opened" else 0
            total += RECORD + len(row["frame"]) + name
    return total


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("share", [0.0001, 0.001, 0.01])
def test_a_recording_with_flipped_bits(tmp_path: Path, recording: bytes, seed: int, share: float) -> None:
    path = tmp_path / "frames-000001.kcrec"
    path.write_bytes(flipped(recording, share, seed, start=RECORDING_HEADER))
    found = rows(read_frames(path))
    assert bytes_of_recording(found, header=True) == len(recording)
    sound = {row["frame"] for row in rows(read_frames(CAPTURE))}
    assert {row["frame"] for row in found} <= sound
    assert any(row["direction"] == "damage" for row in found)
    places = [row["position"] for row in found]
    assert places == sorted(set(places))
    exchanges, _ = matched(path)
    assert len(exchanges) > (30 if share == 0.0001 else 0)


def test_a_recording_cut_anywhere(tmp_path: Path, recording: bytes) -> None:
    path = tmp_path / "frames-000001.kcrec"
    for cut in [*range(8, 150, 9), *range(200, len(recording), 3_001)]:
        path.write_bytes(recording[:cut])
        found = rows(read_frames(path))
        assert bytes_of_recording(found, header=cut >= RECORDING_HEADER) == cut
        assert sum(row["direction"] == "damage" for row in found) <= 1


# ---- segments


def a_segment(batches: int = 200) -> bytes:
    rng = random.Random(1)
    made, offset = [], 0
    for _ in range(batches):
        records = [commit(f"g{rng.randrange(5)}", rng.randrange(1000)) for _ in range(rng.randint(1, 4))]
        made.append(encode_batch(records, base_offset=offset))
        offset += len(records)
    return b"".join(made)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("share", [0.0001, 0.001, 0.01])
def test_a_segment_with_flipped_bits(tmp_path: Path, seed: int, share: float) -> None:
    data = a_segment()
    sizes = {batch.position: batch.size for batch in SegmentReader(data)}
    sound = {(batch.position, record.key, record.value) for batch in SegmentReader(data) for record in batch.records}
    path = tmp_path / f"{0:020}.log"
    path.write_bytes(flipped(data, share, seed, start=0))
    found = rows(read_log(path))
    read = {row["position"] for row in found if row["error"] is None}
    assert sum(sizes[position] for position in read) + sum(row["lost"] for row in found) == len(data)
    assert {(row["position"], row["key"], row["value"]) for row in found if row["error"] is None} <= sound
    assert all(0 <= row["offset"] < 2**31 for row in found if row["error"] is None)
    assert all(row["offset"] == -1 for row in found if row["error"])
    # What no flip has hit is read. Offset and leader epoch are before what the checksum is of.
    spoiled = path.read_bytes()
    whole = {at for at, size in sizes.items() if spoiled[at : at + size] == data[at : at + size]}
    checked = {at for at, size in sizes.items() if spoiled[at + 17 : at + size] == data[at + 17 : at + size]}
    assert whole <= read <= checked


def test_a_segment_cut_anywhere(tmp_path: Path) -> None:
    data = a_segment(6)
    sizes = {batch.position: batch.size for batch in SegmentReader(data)}
    path = tmp_path / f"{0:020}.log"
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        found = rows(read_log(path))
        read = {row["position"] for row in found if row["error"] is None}
        assert sum(sizes[position] for position in read) + sum(row["lost"] for row in found) == cut
        assert read == {at for at, size in sizes.items() if at + size <= cut}


def test_a_segment_that_was_laid_out_ahead_is_read_to_its_zeros(tmp_path: Path) -> None:
    data = a_segment(3)
    path = tmp_path / f"{0:020}.log"
    path.write_bytes(data + bytes(10_000))
    found = rows(read_log(path))
    assert [(row["position"], row["lost"]) for row in found if row["error"]] == [(len(data), 10_000)]


def test_the_search_for_sound_batches_is_bounded(tmp_path: Path) -> None:
    """Every place looks like a batch that reaches to the end: without a bound that is a checksum of all for each."""
    unit = bytes(8) + (300_000).to_bytes(4, "big") + bytes(4) + b"\x02" + b"\xff" * 3
    path = tmp_path / f"{0:020}.log"
    path.write_bytes(unit * 40_000)
    found = rows(read_log(path))
    assert sum(row["lost"] for row in found) == len(unit) * 40_000


def test_flips_within_compressed_batches_are_losses_too(tmp_path: Path) -> None:
    pieces = [encode_batch([Record(b"k" * 50, b"v" * 50)] * 3, base_offset=3 * n, compression=4) for n in range(20)]
    data = b"".join(pieces)
    path = tmp_path / f"{0:020}.log"
    path.write_bytes(flipped(data, 0.005, 1, start=0))
    found = rows(read_log(path))
    sizes = {batch.position: batch.size for batch in SegmentReader(data) if isinstance(batch, RecordBatch)}
    read = {row["position"] for row in found if row["error"] is None}
    assert sum(sizes[position] for position in read) + sum(row["lost"] for row in found) == len(data)


def test_what_a_segment_decompresses_to_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few hundred bytes of zstd are a MiB each; what comes after the bound is lost, and said to be."""
    decompressed = []
    real = batch.decompress

    def noted(*args: Any, **options: Any) -> bytes:
        plain = real(*args, **options)
        decompressed.append(len(plain))
        return plain

    monkeypatch.setattr(batch, "decompress", noted)
    monkeypatch.setattr("kcoord_wire.forensics.sources.segments._LEAST_DECOMPRESSED", 3 << 20)
    bombs = [encode_batch([Record(b"k", bytes(1 << 20), 1, n)], base_offset=n, compression=4) for n in range(40)]
    sound = encode_batch([commit("g", 7)], base_offset=40)
    path = tmp_path / f"{0:020}.log"
    path.write_bytes(b"".join(bombs) + sound)
    found = rows(read_log(path))
    assert [row["offset"] for row in found if row["error"] is None] == [0, 1, 40]
    assert sum(decompressed) <= 3 << 20
    lost = [row for row in found if row["error"]]
    assert sum(row["lost"] for row in lost) == sum(map(len, bombs[2:]))
    assert all(f"more than is left of the {3 << 20} bytes for the whole file" in row["error"] for row in lost)
    analysis = analyze([path])
    assert {loss.what for loss in analysis.losses} == {row["error"] for row in lost}
    assert len([row for row in rows(read_log(path, max_expansion=10_000)) if row["error"] is None]) == 41


# ---- files that another process cuts off while they are read


def large(kind: str, recording: bytes) -> tuple[str, bytes]:
    """Name and content of a file of several windows."""
    capture = CAPTURE.read_bytes()
    if kind == "pcap":
        return "trace.pcap", capture[:FILE_HEADER] + capture[FILE_HEADER:] * 40
    if kind == "pcapng":
        section = to_pcapng(capture)
        return "trace.pcapng", section[:60] + section[60:] * 40
    if kind == "log":
        return f"{0:020}.log", a_segment() * 200
    if kind == "text":
        return "server.log", (LINE + b"x" * 1000 + b"\n") * 3000
    return "frames-000001.kcrec", recording[:RECORDING_HEADER] + recording[RECORDING_HEADER:] * 60


LINE = b"[2026-11-22 12:00:03,123] INFO Stabilized group g generation 5 (kafka.coordinator.group.GroupCoordinator)\n"
KINDS = ["pcap", "pcapng", "recording", "log", "text"]


def begun(folder: Path, kind: str, recording: bytes) -> tuple[Path, bytes, Iterator[Any]]:
    """A large file, its bytes, and its reader."""
    name, data = large(kind, recording)
    path = folder / name
    path.write_bytes(data)
    read = {"log": read_log, "text": read_lines}.get(kind, read_frames)
    return path, data, read(path, batch_rows=10)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_cut_ends_with_a_sentence(tmp_path: Path, kind: str, recording: bytes) -> None:
    path, data, batches = begun(tmp_path, kind, recording)
    found = rows([next(batches)])
    os.truncate(path, 8192)  # as a program does that begins the file anew
    found += rows(batches)
    [cut] = [row for row in found if "was cut from" in (row["error"] or "")]
    assert f"the file was cut from {len(data)} to 8192 bytes while it was read" in cut["error"]
    assert 0 < cut["lost"] < len(data)
    sound = [row for row in found if row["error"] is None]
    assert len(sound) > 10
    if kind == "log":
        sizes = {batch.position: batch.size for batch in SegmentReader(data)}
        read_bytes = sum(sizes[position] for position in {row["position"] for row in sound})
        assert read_bytes + sum(row["lost"] for row in found) == len(data)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_grows_is_not_cut(tmp_path: Path, kind: str, recording: bytes) -> None:
    path, data, batches = begun(tmp_path, kind, recording)
    found = rows([next(batches)])
    with path.open("ab") as file:
        file.write(data)
    assert not [row for row in found + rows(batches) if "was cut from" in (row["error"] or "")]


def test_a_transaction_open_at_a_cut_is_undecided(tmp_path: Path) -> None:
    begun = encode_batch([commit("g", 7)], base_offset=0, transactional=True, producer_id=1, producer_epoch=0)
    rest = b"".join(encode_batch([commit("h", n)], base_offset=n) for n in range(1, 20_000))
    path = tmp_path / f"{0:020}.log"
    path.write_bytes(begun + rest)
    batches = read_log(path, batch_rows=10)
    found = rows([next(batches)])
    os.truncate(path, 10)
    found += rows(batches)
    assert [row["error"] for row in found if row["offset"] == 0] == [
        "committed in a transaction whose end is not in this segment"
    ]
