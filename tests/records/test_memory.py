"""What hostile bytes can make a reader allocate, in multiples of those bytes."""

from __future__ import annotations

import struct
import tracemalloc

import crc32c
import pytest

from kcoord_wire.errors import DecodeError
from kcoord_wire.records import encode_batch, read_records
from kcoord_wire.records.varint import write_varint

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
