"""Message sets: how offsets and timestamps come out of wrappers, and how each wrong byte is reported."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import pytest

from kcoord_wire.errors import DecodeError, EncodeError
from kcoord_wire.records import (
    Compression,
    MessageSet,
    Record,
    RecordHeader,
    TimestampType,
    encode_message_set,
    read_records,
)

T = 1_500_000_000_000


def message(offset: int, body: bytes) -> bytes:
    """An entry around `body`, which begins with the magic byte."""
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def gzip(data: bytes) -> bytes:
    deflate = zlib.compressobj(wbits=31)
    return deflate.compress(data) + deflate.flush()


def wrapper(offset: int, magic: int, plain: bytes, attributes: int = 1, timestamp: int = T) -> bytes:
    value = gzip(plain)
    stamp = struct.pack(">q", timestamp) if magic else b""
    return message(offset, bytes((magic, attributes)) + stamp + struct.pack(">ii", -1, len(value)) + value)


def inner(magic: int, *offsets: int) -> bytes:
    return b"".join(
        encode_message_set([Record(b"k", b"v", T if magic else -1, offset)], magic=magic) for offset in offsets
    )


def test_plain_messages_are_a_batch_each() -> None:
    records = [Record(b"k", b"v", T + n, 5 + n) for n in range(3)]
    batches = list(read_records(encode_message_set(records)))
    assert [batch.records for batch in batches] == [(record,) for record in records]
    assert [batch.base_offset for batch in batches] == [batch.last_offset for batch in batches] == [5, 6, 7]
    assert [batch.max_timestamp for batch in batches] == [T, T + 1, T + 2]


def test_inner_offsets_of_magic_0_are_absolute() -> None:
    (batch,) = read_records(wrapper(12, 0, inner(0, 10, 11, 12)))
    assert [record.offset for record in batch.records] == [10, 11, 12]
    assert batch.timestamp_type is TimestampType.NO_TIMESTAMP
    assert {record.timestamp for record in batch.records} == {-1}


def test_inner_offsets_of_magic_1_are_relative_to_the_wrapper() -> None:
    (batch,) = read_records(wrapper(112, 1, inner(1, 0, 1, 5)))
    assert [record.offset for record in batch.records] == [107, 108, 112]
    assert (batch.base_offset, batch.last_offset) == (107, 112)
    assert batch.compression is Compression.GZIP


def test_append_time_of_the_wrapper() -> None:
    (batch,) = read_records(wrapper(1, 1, inner(1, 0, 1), attributes=1 | 8, timestamp=T + 77))
    assert batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert [record.timestamp for record in batch.records] == [T + 77] * 2


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP, Compression.SNAPPY, Compression.LZ4])
def test_append_time_is_written(codec: Compression) -> None:
    data = encode_message_set([Record(b"k", b"v", T)] * 2, compression=codec, log_append_time=T + 9)
    for batch in read_records(data):
        assert batch.timestamp_type is TimestampType.LOG_APPEND_TIME
        assert {record.timestamp for record in batch.records} == {T + 9}


@pytest.mark.parametrize("magic", [0, 1])
def test_wrappers_nest_as_deep_as_allowed(magic: int) -> None:
    nested = wrapper(2, magic, wrapper(2, magic, inner(magic, 0, 1, 2)))
    with pytest.raises(DecodeError) as caught:
        list(read_records(nested))
    assert (caught.value.kind, caught.value.path) == ("compression", "MessageSet.records[0].value")
    (batch,) = read_records(nested, max_depth=2)
    assert [record.offset for record in batch.records] == [0, 1, 2]
    with pytest.raises(DecodeError):
        list(read_records(wrapper(0, magic, inner(magic, 0)), max_depth=0))


def test_nested_wrappers_share_the_limit() -> None:
    level = wrapper(0, 0, encode_message_set([Record(b"", bytes(600), -1, 0)], magic=0))
    both = wrapper(1, 0, level + level)
    (batch,) = read_records(both, max_depth=2)
    assert len(batch.records) == 2
    with pytest.raises(DecodeError, match="more than"):
        list(read_records(both, max_depth=2, max_decompressed=1000))


@pytest.mark.parametrize(
    ("body", "kind", "at", "path"),
    [
        (b"\x00\x00" + b"\xff" * 8 + b"\0", "trailing", 26, "size"),
        (b"\x00\x00" + struct.pack(">ii", -2, -1), "length", 18, "key"),
        (b"\x00\x00" + struct.pack(">ii", 9, -1), "truncated", 18, "key"),
        (b"\x00\x00" + struct.pack(">ii", 1 << 30, -1), "truncated", 18, "key"),
        (b"\x00\x00" + struct.pack(">ii", 4, -1), "truncated", 26, "value"),
        (b"\x00\x00" + struct.pack(">ii", -1, 1), "truncated", 22, "value"),
        (b"\x01\x00" + b"\xff" * 8, "truncated", 18, "timestamp"),
        (b"\x00\x04" + b"\xff" * 8, "compression", 17, "attributes"),
        (b"\x01\x07" + b"\xff" * 16, "compression", 17, "attributes"),
    ],
)
def test_wrong_message(body: bytes, kind: str, at: int, path: str) -> None:
    before = inner(0, 0)
    with pytest.raises(DecodeError) as caught:
        list(read_records(before + message(1, body)))
    error = caught.value
    assert (error.kind, error.offset, error.path) == (kind, len(before) + at, f"MessageSet.{path}")


@pytest.mark.parametrize("field", [b"\xff\xff\xff\xfe", b"\x80\x00\x00\x00"])
def test_lenient_message(field: bytes) -> None:
    (batch,) = read_records(message(3, b"\x00\x00" + field * 2 + b"junk"), strict=False)
    assert batch.records == (Record(offset=3),)


@pytest.mark.parametrize(
    ("data", "kind", "path"),
    [
        (message(0, b"\x00\x01" + b"\xff" * 8), "null", "value"),
        (wrapper(0, 0, b""), "length", "records"),
        (wrapper(0, 1, inner(0, 0)), "version", "records[0].magic"),
        (wrapper(0, 0, inner(0, 0)[:-1]), "truncated", "records"),
        (wrapper(0, 0, inner(0, 0) + b"12345"), "truncated", "records"),
        (wrapper(0, 0, inner(0, 0) + b"\0" * 12), "length", "records"),
        (wrapper(0, 0, inner(0, 0) + inner(0, 1)[:-1] + b"\x01"), "checksum", "records[1].crc"),
        (wrapper(0, 0, message(0, b"\x02\x00" + b"\xff" * 8)), "version", "records[0].magic"),
        (message(0, b"\x00\x01" + struct.pack(">ii", -1, 3) + b"abc"), "compression", "value"),
    ],
)
def test_wrong_wrapper(data: bytes, kind: str, path: str) -> None:
    before = inner(0, 0)
    with pytest.raises(DecodeError) as caught:
        list(read_records(before + data))
    error = caught.value
    assert (error.kind, error.offset, error.path) == (kind, len(before), f"MessageSet.{path}")


def test_inner_checksums_are_skipped_too() -> None:
    damaged = inner(0, 0)[:-1] + b"\x01"
    (batch,) = read_records(wrapper(0, 0, damaged), check_crc=False)
    assert batch.records[0].value == b"\x01"


def test_none_at_all() -> None:
    assert encode_message_set([], compression=Compression.GZIP) == b""


def test_wrapper_as_it_stands() -> None:
    (batch,) = read_records(wrapper(112, 1, inner(1, 0, 1)))
    assert isinstance(batch, MessageSet)
    assert (batch.offset, batch.timestamp, batch.attributes, batch.magic) == (112, T, 1, 1)


@pytest.mark.parametrize(
    ("make", "kind", "path"),
    [
        (lambda: encode_message_set([], magic=2), "version", "magic"),
        (lambda: encode_message_set([Record(timestamp=5)], magic=0), "version", "records[0].timestamp"),
        (lambda: encode_message_set([], magic=0, log_append_time=5), "version", "timestamp"),
        (
            lambda: encode_message_set([Record(), Record(headers=(RecordHeader("a", b""),))]),
            "version",
            "records[1].headers",
        ),
        (lambda: encode_message_set([Record(attributes=1)]), "version", "records[0].attributes"),
        (lambda: encode_message_set([Record()], compression=Compression.ZSTD), "version", "compression"),
        (lambda: encode_message_set([Record(key="k")]), "type", "records[0].key"),  # type: ignore[arg-type]
        (lambda: encode_message_set([Record(timestamp=1 << 63)]), "range", "records[0].timestamp"),
        (lambda: encode_message_set([Record(offset=1 << 63)]), "range", "records[0].offset"),
    ],
)
def test_values_that_cannot_be_written(make: Callable[[], bytes], kind: str, path: str) -> None:
    with pytest.raises(EncodeError) as caught:
        make()
    assert (caught.value.kind, caught.value.path) == (kind, f"MessageSet.{path}")
