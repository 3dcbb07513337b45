"""Record batches: what each bit of the header does, and how each wrong byte is reported."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import crc32c
import pytest

from kcoord_wire.errors import DecodeError, EncodeError
from kcoord_wire.records import (
    Compression,
    Record,
    RecordBatch,
    RecordHeader,
    TimestampType,
    encode_batch,
    read_records,
)

T = 1_700_000_000_000
RECORDS = [Record(b"key", b"value", T + n) for n in range(4)]


def one(data: bytes, **options: Any) -> RecordBatch:
    (batch,) = read_records(data, **options)
    assert isinstance(batch, RecordBatch)
    return batch


def patched(data: bytes, at: int, layout: str, value: int) -> bytes:
    """`data` with one field replaced and the checksum made right again."""
    out = bytearray(data)
    struct.pack_into(">" + layout, out, at, value)
    return signed(bytes(out))


def signed(data: bytes) -> bytes:
    return data[:17] + crc32c.crc32c(data[21:]).to_bytes(4, "big") + data[21:]


def with_block(block: bytes, count: int = 1, last_offset_delta: int = 0) -> bytes:
    """A batch around hand-made record bytes."""
    empty = encode_batch([], last_offset=last_offset_delta)
    data = bytearray(empty + block)
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">i", data, 57, count)
    return signed(bytes(data))


def test_crc32c_check_value() -> None:
    """The library computes the Castagnoli CRC: RFC 3720, appendix B.4."""
    assert crc32c.crc32c(b"\x00" * 32) == 0x8A9136AA
    assert crc32c.crc32c(b"123456789") == 0xE3069283


def test_offsets_follow_the_base() -> None:
    assert [record.offset for record in one(encode_batch(RECORDS, base_offset=40)).records] == [40, 41, 42, 43]
    assert [record.offset for record in one(encode_batch(RECORDS)).records] == [0, 1, 2, 3]


def test_offsets_given_are_kept() -> None:
    records = [Record(offset=9), Record(), Record(offset=50)]
    batch = one(encode_batch(records))
    assert (batch.base_offset, [record.offset for record in batch.records]) == (9, [9, 10, 50])


def test_log_append_time_replaces_every_timestamp() -> None:
    batch = one(encode_batch(RECORDS, log_append_time=T + 999))
    assert batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert batch.max_timestamp == T + 999
    assert {record.timestamp for record in batch.records} == {T + 999}
    assert batch.base_timestamp == T


def test_delete_horizon_is_the_base_timestamp() -> None:
    batch = one(encode_batch(RECORDS, delete_horizon_ms=T + 5000))
    assert batch.delete_horizon_ms == batch.base_timestamp == T + 5000
    assert [record.timestamp for record in batch.records] == [T, T + 1, T + 2, T + 3]
    assert batch.max_timestamp == T + 3


@pytest.mark.parametrize("codec", list(Compression))
def test_empty_after_compaction(codec: Compression) -> None:
    data = encode_batch([], base_offset=100, last_offset=120, compression=codec, producer_id=5, producer_epoch=1)
    batch = one(data)
    assert len(data) == batch.size == 61
    assert (batch.base_offset, batch.last_offset, batch.records) == (100, 120, ())
    assert (batch.producer_id, batch.producer_epoch, batch.compression) == (5, 1, codec)


def test_codec_as_its_number() -> None:
    data = encode_batch(RECORDS, compression=4)  # type: ignore[arg-type]
    assert data == encode_batch(RECORDS, compression=Compression.ZSTD)


def test_last_offset_outlives_its_record() -> None:
    batch = one(encode_batch(RECORDS[:2], base_offset=10, last_offset=30))
    assert (batch.last_offset, batch.records[-1].offset) == (30, 11)


def test_unknown_attribute_bits_are_kept() -> None:
    batch = one(patched(encode_batch(RECORDS), 21, "h", 0x4100))
    assert batch.attributes == 0x4100
    assert [record.value for record in batch.records] == [b"value"] * 4


def test_position_of_each_batch() -> None:
    first, second = encode_batch(RECORDS), encode_batch(RECORDS, base_offset=4, compression=Compression.GZIP)
    batches = list(read_records(first + second))
    assert [(batch.position, batch.size) for batch in batches] == [(0, len(first)), (len(first), len(second))]


def test_whole_batches_come_before_the_error() -> None:
    first = encode_batch(RECORDS)
    batches = read_records(first + first[:50])
    assert next(batches).size == len(first)
    with pytest.raises(DecodeError) as caught:
        next(batches)
    assert (caught.value.kind, caught.value.offset, caught.value.path) == ("truncated", len(first) + 8, "Batch.size")


def test_checksums_are_compared_unless_switched_off() -> None:
    data = bytearray(encode_batch(RECORDS))
    data[-2] ^= 1
    with pytest.raises(DecodeError) as caught:
        one(bytes(data))
    assert (caught.value.kind, caught.value.offset, caught.value.path) == ("checksum", 17, "RecordBatch.crc")
    assert one(bytes(data), check_crc=False).records[-1].value == b"valud"


@pytest.mark.parametrize(
    ("at", "layout", "value", "kind", "path"),
    [
        (16, "b", 3, "version", "Batch.magic"),
        (16, "b", -1, "version", "Batch.magic"),
        (8, "i", -1, "length", "Batch.size"),
        (8, "i", 13, "length", "Batch.size"),
        (8, "i", 1 << 30, "truncated", "Batch.size"),
        (21, "h", 5, "compression", "RecordBatch.attributes"),
        (21, "h", 7, "compression", "RecordBatch.attributes"),
        (57, "i", -1, "length", "RecordBatch.records"),
        (57, "i", 2147483647, "truncated", "RecordBatch.records"),
        (57, "i", 3, "trailing", "RecordBatch.records"),
        (57, "i", 5, "truncated", "RecordBatch.records[4].length"),
        (23, "i", 2, "range", "RecordBatch.records[3].offset"),
        (0, "q", (1 << 63) - 1, "range", "RecordBatch.last_offset_delta"),
        (27, "q", (1 << 63) - 1, "range", "RecordBatch.records[1].timestamp"),
    ],
)
def test_wrong_header(at: int, layout: str, value: int, kind: str, path: str) -> None:
    before = encode_batch(RECORDS)
    with pytest.raises(DecodeError) as caught:
        list(read_records(before + patched(before, at, layout, value)))
    assert (caught.value.kind, caught.value.path) == (kind, path)
    assert len(before) <= caught.value.offset <= 2 * len(before)
    if at < 61 and "[" not in path and kind != "trailing":
        assert caught.value.offset == len(before) + (23 if "last_offset" in path else at)


def test_size_below_a_header() -> None:
    data = encode_batch([])[:60]
    with pytest.raises(DecodeError) as caught:
        one(data[:8] + (48).to_bytes(4, "big") + data[12:])
    assert (caught.value.kind, caught.value.offset, caught.value.path) == ("length", 8, "RecordBatch.size")


# One record of 7 bytes: length, attributes, timestamp delta, offset delta, null key, null value, no headers.
LEAST = bytes((12, 0, 0, 0, 1, 1, 0))


def test_least_record() -> None:
    assert one(with_block(LEAST)).records == (Record(timestamp=-1, offset=0),)


@pytest.mark.parametrize(
    ("block", "kind", "offset", "path"),
    [
        (b"\x01" + LEAST, "length", 61, "records[0].length"),  # -1
        (b"\x0a" + LEAST[1:], "length", 61, "records[0].length"),  # 5
        (b"\x0e" + LEAST[1:], "truncated", 61, "records[0].length"),
        (b"\x0e" + LEAST[1:] + b"\0", "trailing", 68, "records[0].length"),
        (LEAST + b"\0", "trailing", 68, "records"),
        (b"\x8c\0" + LEAST[1:], "varint", 61, "records[0].length"),
        (b"\x0c\0\0\x01\x01\x01\0", "range", 64, "records[0].offset"),  # a delta of -1
        (b"\x0c\0\0\x02\x01\x01\0", "range", 64, "records[0].offset"),  # beyond the last offset delta
        (b"\x0c\0\0\0\x03\x01\0", "length", 65, "records[0].key"),  # -2
        (b"\x0c\0\0\0\x08\x01\0", "truncated", 65, "records[0].key"),
        (b"\x0c\0\0\0\x01\x04\0", "truncated", 66, "records[0].value"),
        (b"\x0c\0\0\0\x04\x01\0", "truncated", 68, "records[0].value"),  # the key took what was left
        (b"\x0c\0\0\0\x01\x01\x01", "length", 67, "records[0].headers"),  # -1
        (b"\x0c\0\0\0\x01\x01\x02", "truncated", 67, "records[0].headers"),
        (b"\x10\0\0\0\x01\x01\x04ab", "truncated", 67, "records[0].headers"),  # 2 headers in 2 bytes
        (b"\x10\0\0\0\x01\x01\x02\x01\x01", "null", 68, "records[0].headers[0].key"),
        (b"\x12\0\0\0\x01\x01\x02\x02\xff\x01", "utf8", 69, "records[0].headers[0].key"),
        (b"\x12\0\0\0\x01\x01\x02\x02a\x04", "truncated", 70, "records[0].headers[0].value"),
    ],
)
def test_wrong_record(block: bytes, kind: str, offset: int, path: str) -> None:
    with pytest.raises(DecodeError) as caught:
        one(with_block(block))
    assert (caught.value.kind, caught.value.offset, caught.value.path) == (kind, offset, f"RecordBatch.{path}")


def test_same_record_twice() -> None:
    with pytest.raises(DecodeError) as caught:
        one(with_block(LEAST * 2, count=2, last_offset_delta=1))
    assert (caught.value.kind, caught.value.path) == ("range", "RecordBatch.records[1].offset")


@pytest.mark.parametrize(
    ("block", "record"),
    [
        (b"\x8c\0" + LEAST[1:], Record(offset=0)),
        (b"\x0c\0\0\x02\x01\x01\0", Record(offset=1)),
        (b"\x0c\0\0\0\x03\x05\0", Record(offset=0)),
        (b"\x12\0\0\0\x01\x01\x02\x02\xff\x01", Record(offset=0, headers=(RecordHeader("\udcff", None),))),
    ],
)
def test_lenient_record(block: bytes, record: Record) -> None:
    assert one(with_block(block), strict=False).records == (record,)


def test_escaped_header_key_is_written_as_it_was() -> None:
    data = with_block(b"\x12\0\0\0\x01\x01\x02\x02\xff\x01")
    assert encode_batch(one(data, strict=False).records) == data


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec])
def test_an_error_in_compressed_records_is_at_their_batch(codec: Compression) -> None:
    plain = encode_batch(RECORDS)
    wrong = patched(encode_batch(RECORDS, compression=codec), 23, "i", 2)
    with pytest.raises(DecodeError) as caught:
        list(read_records(plain + wrong))
    error = caught.value
    assert (error.kind, error.offset, error.path) == ("range", len(plain), "RecordBatch.records[3].offset")


@pytest.mark.parametrize(
    ("make", "kind", "path"),
    [
        (lambda: encode_batch([Record(key="k")]), "type", "records[0].key"),  # type: ignore[arg-type]
        (lambda: encode_batch([Record(), Record(value=7)]), "type", "records[1].value"),  # type: ignore[arg-type]
        (
            lambda: encode_batch([Record(headers=(RecordHeader(b"k", None),))]),  # type: ignore[arg-type]
            "type",
            "records[0].headers[0].key",
        ),
        (lambda: encode_batch([Record(headers=(RecordHeader("\ud800", None),))]), "type", "records[0].headers[0].key"),
        (
            lambda: encode_batch([Record(headers=(RecordHeader("k", "v"),))]),  # type: ignore[arg-type]
            "type",
            "records[0].headers[0].value",
        ),
        (lambda: encode_batch([Record(attributes=128)]), "range", "records[0].attributes"),
        (lambda: encode_batch([Record(timestamp=1 << 63)]), "range", "base_timestamp"),
        (
            lambda: encode_batch([Record(timestamp=-2), Record(timestamp=(1 << 63) - 1)]),
            "range",
            "records[1].timestamp",
        ),
        (lambda: encode_batch([Record(offset=0), Record(offset=1 << 31)]), "range", "records[1].offset"),
        (lambda: encode_batch([Record(offset=5), Record(offset=5)]), "range", "records[1].offset"),
        (lambda: encode_batch([Record(offset=5)], base_offset=6), "range", "records[0].offset"),
        (lambda: encode_batch([Record(offset=5)], last_offset=4), "range", "last_offset"),
        (lambda: encode_batch([], base_offset=0, last_offset=1 << 31), "range", "last_offset_delta"),
        (lambda: encode_batch([Record()], compression=5), "range", "compression"),  # type: ignore[arg-type]
        (lambda: encode_batch([], producer_id=1 << 63), "range", "producer_id"),
        (lambda: encode_batch([], producer_epoch=1 << 15), "range", "producer_epoch"),
        (lambda: encode_batch([], base_sequence=-(1 << 31) - 1), "range", "base_sequence"),
        (lambda: encode_batch([], partition_leader_epoch=1.5), "type", "partition_leader_epoch"),  # type: ignore[arg-type]
    ],
)
def test_values_that_cannot_be_written(make: Callable[[], bytes], kind: str, path: str) -> None:
    with pytest.raises(EncodeError) as caught:
        make()
    assert (caught.value.kind, caught.value.path) == (kind, f"RecordBatch.{path}")
