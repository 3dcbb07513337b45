"""Which files are sources, and of which kind.

Sources packed with gzip: the same rows as unpacked, bounded, and as far as they go.

Progress within a source, and what a stop leaves unread.
"""

from __future__ import annotations

import gzip
import itertools
import shutil
import tempfile
import tracemalloc
from collections import namedtuple
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kcoord_wire.forensics.analysis import analyze
from kcoord_wire.forensics.sources.files import (
    RESERVE,
    ReadProgress,
    Source,
    SourceError,
    find_sources,
    first_bytes,
    kind_of,
    unpacked,
)
from kcoord_wire.forensics.sources.frames import read_frames, read_log
from kcoord_wire.recorder.recording import RecordingWriter
from kcoord_wire.records import (
    encode_batch,
)
from tests.support.segments import CAPTURES, commit, rows, segment

WRONG = {
    "empty": (b"", "is empty"),
    "picture.jpg": (b"\xff\xd8\xff\xe0\0\x10JFIF" + bytes(100), "a JPEG picture"),
    "capture.pcap.zst": (b"\x28\xb5\x2f\xfd" + bytes(30), "unpack it first (unzstd)"),
    "twice.pcap.gz": (gzip.compress(gzip.compress(b"capture")), "unpack it first (gunzip)"),
    "picture.gz": (gzip.compress(b"\xff\xd8\xff\xe0\0\x10JFIF"), "a JPEG picture"),
    "nothing.gz": (gzip.compress(b""), "is empty"),
    "torn.gz": (b"\x1f\x8b\x08\0", "is empty"),
    "notes.txt": (b"dear diary, today my consumer", "is text"),
    "noise.log": (b"\xde\xad\xbe\xef" * 9, "something that begins with de ad be ef"),
    "short": (b"\x81", "something that begins with 81"),
}


@pytest.mark.parametrize("name", WRONG)
def test_foreign_files_are_refused_with_advice(tmp_path: Path, name: str) -> None:
    content, words = WRONG[name]
    path = tmp_path / name
    path.write_bytes(content)
    for look in (kind_of, lambda path: find_sources([path])):
        with pytest.raises(SourceError) as refused:
            look(path)
        assert str(path) in str(refused.value)
        assert words in str(refused.value)
    (row,) = rows(read_frames(path))
    assert (row["direction"], row["lost"], words in row["error"]) == ("damage", len(content), True)


def test_kinds(tmp_path: Path) -> None:
    assert kind_of(CAPTURES / "aiokafka.pcap") == "pcap"
    (tmp_path / "next").write_bytes(b"\x0a\x0d\x0d\x0a")
    assert kind_of(tmp_path / "next") == "pcap"
    path = segment(tmp_path, encode_batch([commit("g", 1)], base_offset=0))
    assert kind_of(path) == "log"
    (tmp_path / "packed").write_bytes(gzip.compress(path.read_bytes()))
    assert kind_of(tmp_path / "packed") == "log"
    path.rename(tmp_path / "any name")
    assert kind_of(tmp_path / "any name") == "log"
    damaged = tmp_path / f"{7:020}.log"
    damaged.write_bytes(b"\xff" * 40)
    assert kind_of(damaged) == "log"
    with pytest.raises(SourceError, match="is a folder"):
        kind_of(tmp_path)
    with pytest.raises(SourceError, match="cannot be read: No such file"):
        kind_of(tmp_path / "nothing")


def test_sources_of_folders_and_patterns(tmp_path: Path) -> None:
    for name in ("__consumer_offsets-2", "__consumer_offsets-10", "orders-0"):
        folder = tmp_path / "logs" / name
        folder.mkdir(parents=True)
        (folder / f"{0:020}.log").write_bytes(encode_batch([commit("g", 1)], base_offset=0))
        (folder / f"{5:020}.log").write_bytes(b"")
        (folder / f"{0:020}.index").write_bytes(b"x")
    (tmp_path / "b.pcap").write_bytes((CAPTURES / "aiokafka.pcap").read_bytes())
    (tmp_path / "c.pcap12.gz").write_bytes(b"what is wrong")
    packed = tmp_path / "logs" / "__consumer_offsets-10" / f"{7:020}.log.gz"
    packed.write_bytes(gzip.compress(encode_batch([commit("g", 1)], base_offset=7)))
    (tmp_path / "a.pcapng").write_bytes(b"what is wrong with it is told when it is read")
    found = find_sources([tmp_path, tmp_path / "b.pcap"])
    assert [(str(source.path.relative_to(tmp_path)), source.kind) for source in found] == [
        ("a.pcapng", "pcap"),
        ("b.pcap", "pcap"),
        ("c.pcap12.gz", "pcap"),
        (f"logs/__consumer_offsets-2/{0:020}.log", "log"),
        (f"logs/__consumer_offsets-10/{0:020}.log", "log"),
        (f"logs/__consumer_offsets-10/{7:020}.log.gz", "log"),
    ]
    assert find_sources([f"{tmp_path}/**/*.pcap"]) == [Source(tmp_path / "b.pcap", "pcap")]
    assert [source.kind for source in find_sources([tmp_path / "logs" / "__consumer_offsets-2"])] == ["log"]
    copied = tmp_path / "copied"
    copied.mkdir()
    (copied / f"{0:020}.log").write_bytes(b"x")
    assert [source.kind for source in find_sources([copied])] == ["log"]


def test_paths_without_sources_are_refused(tmp_path: Path) -> None:
    for path, words in (
        (tmp_path, "has no source in it"),
        (tmp_path / "nothing", "does not exist"),
        (f"{tmp_path}/*.pcap", "matches no file"),
    ):
        with pytest.raises(SourceError, match=words):
            find_sources([path])


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
    assert max(row["seq"] for row in found) < inner["seq"] < last["seq"]
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


MOVES = CAPTURES / "incidents" / "moves.pcap.gz"


def test_progress_rises_within_a_capture() -> None:
    seen: list[tuple[str, int, int]] = []
    analyze([MOVES], progress=lambda *step: seen.append(step))
    shares = [done / total for _, done, total in seen]
    assert len(shares) > 5
    assert all(earlier <= later for earlier, later in pairwise(shares))
    assert sum(0.1 < share < 0.9 for share in shares) > 3
    assert shares[-1] == 1


def test_a_stop_keeps_what_was_read() -> None:
    whole = analyze([MOVES])
    steps: list[int] = []
    part = analyze([MOVES], progress=lambda _, done, __: steps.append(done), stop=lambda: len(steps) > 4)
    assert whole.stopped is None
    assert part.stopped is not None
    assert 0.3 < part.stopped < 0.9
    assert 0 < part.counts["frames"] < whole.counts["frames"]
    assert part.losses[0].bytes == round((1 - part.stopped) * part.counts["bytes"])
    (history,) = part.histories
    assert history.rebalances
    assert not any(life.end == "closed" and life.left_ns == history.group.last_ns for life in history.members)


def test_sources_after_a_stop_are_losses(tmp_path: Path) -> None:
    sources = [Source(tmp_path / name, "pcap") for name in ("a", "b", "c")]
    for source in sources:
        source.path.write_bytes(bytes(100))
    stopped = False
    shown: list[int] = []
    pace = ReadProgress(sources, lambda _, done, __: shown.append(done), lambda: stopped)
    assert pace.begin(sources[0])
    assert pace.begin(sources[1])
    assert pace.goes_on(10, 40)
    stopped = True
    assert not pace.goes_on(20, 40)
    assert not pace.begin(sources[2])
    assert shown == [0, 100, 125]
    assert [(Path(loss.source).name, loss.bytes) for loss in pace.losses] == [("b", 50), ("c", 100)]
