"""What hostile bytes can make a reader allocate, in multiples of those bytes."""

from __future__ import annotations

import struct
import tracemalloc
import zlib

import crc32c
import pytest

from kcoord_wire.errors import DecodeError
from kcoord_wire.records import (
    Compression,
    Record,
    RecordHeader,
    SegmentReader,
    encode_batch,
    encode_message_set,
    read_records,
)
from kcoord_wire.records.compression import compress
from kcoord_wire.records.limits import DEFAULT_MAX_OBJECTS
from kcoord_wire.records.record import write_varint
from tests.support.record_bomb import repeated_record

SIZE = 1 << 18
BASE = 1 << 40
LEAST_RECORD = bytes((12, 0, 0, 0, 1, 1, 0))


def batch(block: bytes, count: int) -> bytes:
    """A batch around `block`, its offsets and timestamps too large for Python to share their objects."""
    empty = encode_batch([], base_offset=BASE, last_offset=BASE + 0x7FFFFFFF, delete_horizon_ms=BASE)
    data = bytearray(empty + block)
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">i", data, 57, count)
    struct.pack_into(">I", data, 17, crc32c.crc32c(memoryview(data)[21:]))
    return bytes(data)


def peak(data: bytes, strict: bool) -> float:
    """Peak of what reading `data` allocates, in multiples of its length."""
    tracemalloc.start()
    try:
        for one in read_records(data, strict=strict, check_crc=False):
            assert one.records
    except DecodeError:
        pass
    finally:
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return most / len(data)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(batch(bytes(SIZE), 0x7FFFFFFF), id="count"),
        pytest.param(batch(bytes(SIZE), SIZE // 7), id="zeros"),
        pytest.param(batch(b"\xfe\xff\xff\xff\x0f" + bytes(SIZE), 1), id="record-length"),
        pytest.param(batch(b"\x8c\x80\x80\x01\0\0\0\xfe\xff\xff\xff\x0f" + bytes(SIZE), 1), id="key-length"),
        pytest.param(batch(b"\x8c\x80\x80\x01\0\0\0\x01\x01\xfe\xff\xff\xff\x0f" + bytes(SIZE), 1), id="header-count"),
        pytest.param(bytes(8) + (0x7FFFFFFF).to_bytes(4, "big") + bytes(4) + b"\x02" + bytes(SIZE), id="size"),
        pytest.param(bytes(8) + SIZE.to_bytes(4, "big") + bytes(6) + b"\x7f\xff\xff\xff" + bytes(SIZE), id="old-key"),
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_claims_cost_nothing(data: bytes, strict: bool) -> None:
    assert peak(data, strict) < 3


def test_records_of_the_least_size() -> None:
    """The dearest input there is: every seven bytes become a record."""
    data = batch(LEAST_RECORD * (SIZE // 7), SIZE // 7)
    assert 5 < peak(data, strict=False) < 35


def test_headers_of_the_least_size() -> None:
    """Every two bytes become a header of an empty key and a null value."""
    count = SIZE // 2
    body = bytearray(b"\0\0\0\x01\x01")
    write_varint(body, count)
    body += b"\0\x01" * count
    block = bytearray()
    write_varint(block, len(body))
    assert 5 < peak(batch(bytes(block + body), 1), strict=True) < 40


# ---- one record, repeated


def test_a_repeated_record_costs_nothing() -> None:
    """In 6 KB 9.6 million records, all with one offset: 2.9 GB as objects."""
    data = repeated_record(9_586_000)
    assert len(data) < 6500
    assert peak(data, strict=False) < 20
    with pytest.raises(DecodeError) as caught:
        list(read_records(data, strict=False))
    assert (caught.value.kind, caught.value.path, caught.value.offset) == ("length", "RecordBatch.records", 57)
    assert f"above the limit of {min(DEFAULT_MAX_OBJECTS, 16 * len(data))}" in caught.value.detail


def test_repeated_headers_cost_nothing() -> None:
    body = bytearray(b"\0\0\0\x01\x01")
    write_varint(body, 1_000_000)
    body += b"\0\x01" * 1_000_000
    record = bytearray()
    write_varint(record, len(body))
    data = repeated_record(1, bytes(record + body))
    with pytest.raises(DecodeError) as caught:
        list(read_records(data, strict=False))
    assert (caught.value.kind, caught.value.path) == ("length", "RecordBatch.records[0].headers")
    assert peak(data, strict=False) < 3 * len(record + body) / len(data)


def test_messages_of_a_wrapper_are_limited() -> None:
    """The codecs of message sets cannot bring more than 16 messages into a byte, so only the count is the limit."""
    message = encode_message_set([Record(offset=0)], magic=1)
    wrapper = encode_message_set([Record(value=b"")], magic=1, compression=Compression.GZIP)
    packed = compress(Compression.GZIP, message * 10_000)
    checked = wrapper[16:26] + struct.pack(">ii", -1, len(packed)) + packed
    data = wrapper[:8] + struct.pack(">iI", len(checked) + 4, zlib.crc32(checked)) + checked
    assert len(next(read_records(data, max_objects=10_000)).records) == 10_000
    with pytest.raises(DecodeError) as caught:
        list(read_records(data, strict=False, max_objects=9_999))
    assert (caught.value.kind, caught.value.path) == ("length", "MessageSet.records[9999].offset")


def test_objects_are_limited_by_the_caller_too() -> None:
    header = RecordHeader("k", None)
    data = encode_batch([Record(headers=(header, header)) for _ in range(10)])
    assert len(next(read_records(data, max_objects=30)).records) == 10
    assert len(next(iter(SegmentReader(data, max_objects=30))).records) == 10
    for most in (29, 9):
        with pytest.raises(DecodeError, match="limit"):
            next(read_records(data, max_objects=most))
        with pytest.raises(DecodeError, match="limit"):
            next(iter(SegmentReader(data, max_objects=most)))


@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.parametrize("step", [1, 1000])
def test_what_a_broker_accepts_is_within_the_limit(compression: Compression, step: int) -> None:
    """The smallest records with offsets that ascend, as `LogValidator` demands: no codec comes near the limit."""
    records = [Record(offset=index * step, timestamp=0) for index in range(20_000)]
    data = encode_batch(records, compression=compression)
    assert len(records) * 8 < 16 * len(data)
    assert len(next(read_records(data)).records) == 20_000
