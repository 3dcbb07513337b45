"""Batches that hold far more records than bytes: one record, repeated, compressed."""

from __future__ import annotations

import struct

import cramjam
import crc32c

from kcoord_wire.records import Compression, encode_batch

SMALLEST_RECORD = bytes((12, 0, 0, 0, 1, 1, 0))


def repeated_record(count: int, record: bytes = SMALLEST_RECORD, *, records_in_header: int | None = None) -> bytes:
    """A zstd batch of `count` copies of one record, all with the first offset.

    :param records_in_header: the count in the header; default: `count`
    """
    claimed = count if records_in_header is None else records_in_header
    data = bytearray(encode_batch([], last_offset=claimed, compression=Compression.ZSTD))
    data += bytes(cramjam.zstd.compress(record * count))
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">i", data, 57, claimed)
    struct.pack_into(">I", data, 17, crc32c.crc32c(memoryview(data)[21:]))
    return bytes(data)
