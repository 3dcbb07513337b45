"""Decompression returns what was compressed, refuses damage, and stops at its limit."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import cramjam
import pytest

from kcoord_wire.errors import DecodeError, EncodeError
from kcoord_wire.records import Compression, MissingLibraryError, Record, encode_batch, encode_message_set, read_records
from kcoord_wire.records.batch import _checksum
from kcoord_wire.records.compression import compress, decompress, with_kafka_checksum, with_specified_checksum
from kcoord_wire.records.limits import Allowance, ReadLimits
from kcoord_wire.records.segment import decode_any

BOMB = Path(__file__).parents[1] / "support" / "bomb.py"
CODECS = [codec for codec in Compression if codec]
PAIRS = [(codec, magic) for codec in CODECS for magic in (0, 1, 2) if codec is not Compression.ZSTD or magic == 2]
BODIES = [b"", b"x", b"abc" * 30_000, bytes(range(256)) * 700]
XERIAL = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"


@pytest.mark.parametrize("body", BODIES, ids=len)
@pytest.mark.parametrize(("codec", "magic"), PAIRS)
def test_round_trip_within_the_exact_limit(codec: Compression, magic: int, body: bytes) -> None:
    packed = compress(codec, body, magic=magic)
    assert decompress(codec, packed, limit=len(body), magic=magic) == body
    if body:
        with pytest.raises(DecodeError, match=f"more than {len(body) - 1} bytes"):
            decompress(codec, packed, limit=len(body) - 1, magic=magic)


@pytest.mark.parametrize(("codec", "magic"), PAIRS)
def test_every_prefix_fails(codec: Compression, magic: int) -> None:
    packed = compress(codec, b"one two three " * 10, magic=magic)
    whole = {16} if codec is Compression.SNAPPY else set()  # a xerial stream of no blocks
    for end in set(range(len(packed))) - whole:
        with pytest.raises(DecodeError) as caught:
            decompress(codec, packed[:end], limit=1000, magic=magic)
        assert (caught.value.kind, caught.value.offset) == ("compression", 0)


@pytest.mark.parametrize("junk", [b"x", b"\0\0\0", b"junk" * 8])
@pytest.mark.parametrize("codec", CODECS)
def test_trailing_junk_fails(codec: Compression, junk: bytes) -> None:
    with pytest.raises(DecodeError):
        decompress(codec, compress(codec, b"one two three") + junk, limit=1000)


def test_several_gzip_members() -> None:
    packed = b"".join(compress(Compression.GZIP, bytes([n])) for n in range(200))
    assert decompress(Compression.GZIP, packed, limit=200) == bytes(range(200))
    with pytest.raises(DecodeError, match="more than 199"):
        decompress(Compression.GZIP, packed, limit=199)


def test_raw_snappy() -> None:
    raw = bytes(cramjam.snappy.compress_raw(b"abc" * 100))
    assert decompress(Compression.SNAPPY, raw, limit=300) == b"abc" * 100


@pytest.mark.parametrize(
    "packed",
    [
        b"\xff\xff\xff\xff\x0f\x00a",  # claims 4 GiB
        b"\x80\x80\x80\x20\x00a",  # claims 64 MiB, within the limit, but no seven bytes can hold that
        XERIAL + struct.pack(">i", 7) + b"\xff\xff\xff\xff\x0f\x00a",
        XERIAL + struct.pack(">i", -1),
        XERIAL + struct.pack(">i", 1 << 30) + b"\x01\x00a",
        XERIAL + b"\0\0",
        XERIAL[:10],
    ],
)
def test_snappy_lengths_are_checked_first(packed: bytes) -> None:
    with pytest.raises(DecodeError, match="compression"):
        decompress(Compression.SNAPPY, packed, limit=1 << 30)


@pytest.mark.parametrize(
    "packed",
    [
        b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 62) + b"\x01\0\0",  # content size of 4 EiB
        b"\x28\xb5\x2f\xfd\x00" + bytes([(31 - 10) << 3]) + b"\x01\0\0",  # window of 2 GiB
    ],
)
def test_zstd_claims_beyond_reason(packed: bytes) -> None:
    with pytest.raises(DecodeError, match="too much memory"):
        decompress(Compression.ZSTD, packed, limit=1 << 20)


@pytest.mark.parametrize("codec", CODECS)
def test_an_allowance_is_for_all_that_is_decompressed(codec: Compression) -> None:
    body = bytes(1000)
    packed = compress(codec, body)
    allowance = Allowance(2500)
    for left in (1500, 500):
        assert decompress(codec, packed, limit=1 << 20, allowance=allowance) == body
        assert allowance.left == left
    for _ in range(2):
        with pytest.raises(DecodeError, match="more than is left of the 2500 bytes for the whole file"):
            decompress(codec, packed, limit=1 << 20, allowance=allowance)
        assert allowance.left == 0, "what it has cost is not known"


def test_a_limit_below_the_allowance_is_named() -> None:
    packed = compress(Compression.GZIP, bytes(1000))
    allowance = Allowance(2500)
    with pytest.raises(DecodeError, match="decompresses to more than 999 bytes"):
        decompress(Compression.GZIP, packed, limit=999, allowance=allowance)
    assert allowance.left == 2500 - 999


@pytest.mark.parametrize("magic", [1, 2])
def test_batches_take_from_the_allowance_of_their_limits(magic: int) -> None:
    records = [Record(b"k", bytes(900), 1)] * 3
    data = encode_message_set(records, magic=1, compression=Compression.GZIP) if magic == 1 else None
    data = data or encode_batch(records, compression=Compression.ZSTD)
    limits = ReadLimits(allowance=Allowance(4000))
    assert len(decode_any(memoryview(data), 0, limits).records) == 3
    with pytest.raises(DecodeError, match="for the whole file"):
        decode_any(memoryview(data), 0, limits)


def test_lz4_content_size_that_lies() -> None:
    frame = bytes(cramjam.lz4.compress(b"a" * 100))
    lying = frame[:4] + bytes([frame[4] | 8]) + frame[5:6] + struct.pack("<Q", 1 << 62) + b"?" + frame[7:]
    with pytest.raises(DecodeError, match="compression"):
        decompress(Compression.LZ4, with_specified_checksum(lying), limit=1 << 20)


def test_lz4_as_kafka_reads_it() -> None:
    """Version 1, independent blocks, no content size; blocks of at most 64 KiB."""
    frame = compress(Compression.LZ4, b"abc" * 100_000)
    assert frame[:4] == b"\x04\x22\x4d\x18"
    assert frame[4] & 0b1110_1101 == 0b0110_0000
    assert frame[5] == 0x40


# Header checksums as in the LZ4 frame specification, and as kafka-python's old-Kafka encoder makes them with xxhash.
@pytest.mark.parametrize(
    ("header", "specified", "kafka"),
    [("04224d186040", 0x82, None), ("04224d187040", 0xAD, 0xEC), ("04224d184440", 0x5E, None)],
)
def test_lz4_header_checksums(header: str, specified: int, kafka: int | None) -> None:
    frame = bytes.fromhex(header) + b"?rest"
    assert with_specified_checksum(frame) == frame[:6] + bytes([specified]) + b"rest"
    if kafka is not None:
        assert with_kafka_checksum(frame) == frame[:6] + bytes([kafka]) + b"rest"


def test_lz4_of_magic_0_is_read_with_either_checksum() -> None:
    old = compress(Compression.LZ4, b"abc", magic=0)
    right = with_specified_checksum(old)
    assert old != right == compress(Compression.LZ4, b"abc")
    for frame in (old, right):
        assert decompress(Compression.LZ4, frame, limit=3, magic=0) == b"abc"
    with pytest.raises(DecodeError):
        decompress(Compression.LZ4, old, limit=3, magic=1)


def test_zstd_needs_magic_2() -> None:
    with pytest.raises(EncodeError) as caught:
        compress(Compression.ZSTD, b"", magic=1)
    assert caught.value.kind == "version"


@pytest.mark.parametrize("codec", CODECS)
def test_limit_of_a_reader(codec: Compression) -> None:
    data = encode_batch([Record(value=bytes(5000))], compression=codec)
    with pytest.raises(DecodeError) as caught:
        list(read_records(data + data, max_decompressed=4999))
    error = caught.value
    assert (error.kind, error.offset, error.path) == ("compression", 0, "RecordBatch.records")
    assert len(list(read_records(data + data, max_decompressed=6000))) == 2


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_bomb(codec: Compression, tmp_path: Path) -> None:
    """1 GiB of zeros against a limit of 16 MiB, in a separate process, for the peak of its memory."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    file = str(tmp_path / "bomb")
    for arguments in (["build", codec.name, file], ["read", file]):
        command = [sys.executable, str(BOMB), *arguments]
        run = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=120)
    result = json.loads(run.stdout)
    assert result["kind"] == "compression"
    assert "more than 16777216 bytes" in result["detail"]
    assert result["grown_mib"] < 48


@pytest.mark.parametrize("codec", [Compression.SNAPPY, Compression.LZ4, Compression.ZSTD])
def test_missing_library_is_named(codec: Compression, monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode_batch([Record()], compression=codec)
    monkeypatch.setitem(sys.modules, "cramjam", None)
    with pytest.raises(MissingLibraryError, match=r"needs cramjam: pip install 'kcoord_wire\[records\]'") as caught:
        list(read_records(data))
    assert caught.value.name == "cramjam"
    with pytest.raises(MissingLibraryError):
        encode_batch([Record()], compression=codec)


def test_what_works_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = encode_batch([Record()])
    monkeypatch.setitem(sys.modules, "cramjam", None)
    monkeypatch.setitem(sys.modules, "crc32c", None)
    _checksum.cache_clear()
    data = encode_message_set([Record(b"k", b"v")] * 3, compression=Compression.GZIP)
    assert len(next(read_records(data)).records) == 3
    assert len(next(read_records(batch, check_crc=False)).records) == 1
    with pytest.raises(MissingLibraryError, match="needs crc32c"):
        list(read_records(batch))


def test_gzip_is_not_zlib() -> None:
    with pytest.raises(DecodeError):
        decompress(Compression.GZIP, zlib.compress(b"abc"), limit=10)
