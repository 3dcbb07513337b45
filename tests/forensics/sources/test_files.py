"""Which files are sources, and of which kind."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from kcoord_wire.forensics.sources.files import Source, SourceError, find_sources, kind_of
from kcoord_wire.forensics.sources.frames import read_frames
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
