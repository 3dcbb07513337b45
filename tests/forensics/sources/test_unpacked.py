"""Sources packed with gzip: the same rows as unpacked, bounded, and as far as they go."""

from __future__ import annotations

import gzip
import itertools
import shutil
import tempfile
import tracemalloc
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from kcoord_wire.forensics.sources.frames import read_frames, read_log
from kcoord_wire.forensics.sources.unpacked import RESERVE, first_bytes, unpacked
from kcoord_wire.recorder.recording import RecordingWriter
from kcoord_wire.records import encode_batch
from tests.support.segments import CAPTURES, commit, rows, segment

CAPTURE = CAPTURES / "aiokafka.pcap"


def _without_source(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "source"} for row in found]


def _packed(path: Path, name: str, parts: int = 1) -> Path:
    data = path.read_bytes()
    cuts = [len(data) * part // parts for part in range(parts + 1)]
    packed = path.with_name(name)
    packed.write_bytes(b"".join(gzip.compress(data[a:b]) for a, b in itertools.pairwise(cuts)))
    return packed


def _recording(folder: Path) -> Path:
    with RecordingWriter(folder) as writer:
        writer.opened(1, "10.0.0.1:4000-10.0.0.2:9092#1", 1_000)
        for number in range(50):
            writer.frame(1, "request", bytes(range(number)), 2_000 + number)
        return writer.path


@pytest.mark.parametrize("parts", [1, 3])
def test_packed_frames_are_those_of_the_plain_file(tmp_path: Path, parts: int) -> None:
    capture = tmp_path / "trace"
    shutil.copy(CAPTURE, capture)
    for path in (capture, _recording(tmp_path / "recording")):
        packed = _packed(path, "any name", parts)
        plain = _without_source(rows(read_frames(path)))
        assert len(plain) > 50
        found = rows(read_frames(packed))
        assert _without_source(found) == plain
        assert {row["source"] for row in found} == {str(packed)}


def test_a_packed_segment_keeps_partition_and_offsets(tmp_path: Path) -> None:
    path = segment(tmp_path, encode_batch([commit("g", 1), commit("g", 2)], base_offset=0))
    plain = _without_source(rows(read_log(path)))
    assert [row["partition"] for row in plain] == [plain[0]["partition"]] * 2 != [-1, -1]
    assert _without_source(rows(read_log(_packed(path, f"{path.name}.gz")))) == plain
    path.write_bytes(b"")
    assert rows(read_log(_packed(path, f"{path.name}.gz"))) == []


def test_a_file_cut_short_is_read_to_its_end(tmp_path: Path) -> None:
    packed = gzip.compress(CAPTURE.read_bytes())
    path = tmp_path / "trace.pcap.gz"
    path.write_bytes(packed[: len(packed) // 2])
    whole = rows(read_frames(CAPTURE))
    *found, inner, last = rows(read_frames(path))
    sound = [row for row in found if row["direction"] != "damage" and not row["error"]]
    assert len(sound) > len(whole) // 4
    assert [row["frame"] for row in sound] == [row["frame"] for row in whole[: len(sound)]]
    assert [row["seq"] for row in (inner, last)] == [len(found), len(found) + 1]
    assert last["error"] == f"the gzip file is cut short at byte {len(packed) // 2}"
    assert last["direction"] == "damage"


def test_damage_costs_little_before_it(tmp_path: Path) -> None:
    path = tmp_path / "packed"
    data = b"".join(number.to_bytes(8, "big") for number in range(40_000))
    packed = bytearray(gzip.compress(data))
    packed[len(packed) * 3 // 4] ^= 0xFF
    path.write_bytes(packed)
    with unpacked(path) as content:
        assert content.fault is not None
        assert "damaged before byte" in content.fault
        assert 0 < content.lost <= len(packed) // 4 + 4096
        kept = content.path.read_bytes()
    assert len(data) // 2 < len(kept) < len(data)
    assert kept[: len(data) // 2] == data[: len(data) // 2]
    assert not content.path.exists()


def test_bytes_behind_a_packed_file_are_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "packed"
    path.write_bytes(gzip.compress(b"content") + bytes(512))  # padding, as tapes have it
    with unpacked(path) as content:
        assert (content.path.read_bytes(), content.fault) == (b"content", None)
    path.write_bytes(gzip.compress(b"content") + b"more")
    with unpacked(path) as content:
        assert content.path.read_bytes() == b"content"
        assert content.fault is not None
        assert "Not a gzipped file" in content.fault


def test_memory_holds_a_piece_of_what_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "zeros.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(64):
            file.write(bytes(1 << 20))
    tracemalloc.start()
    try:
        assert first_bytes(path, 100) == bytes(100)
        with unpacked(path) as content:
            assert content.path.stat().st_size == 64 << 20
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_disk_is_not_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    room = iter([RESERVE + (9 << 20), RESERVE + (9 << 20), RESERVE + 5])
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(0, 0, next(room)))
    path = tmp_path / "packed"
    path.write_bytes(gzip.compress(bytes(3 << 20)))
    with unpacked(path) as content:
        size = content.path.stat().st_size
        assert 0 < size < 3 << 20
        assert content.fault is not None
        assert f"no room for more than {size} bytes" in content.fault
        assert tempfile.gettempdir() in content.fault


def test_a_plain_file_is_its_own_content(tmp_path: Path) -> None:
    path = tmp_path / "plain.gz"
    path.write_bytes(b"plain")
    with unpacked(path) as content:
        assert (content.path, content.fault, content.lost) == (path, None, 0)
    assert path.exists()
    assert first_bytes(path, 3) == b"pla"
