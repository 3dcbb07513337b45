"""Record batches, magic 2: what Kafka has written to its logs since 0.11.

Laws:

* The CRC-32C is checked before anything it covers is read. It covers the attributes and all that follows; base
  offset and leader epoch are outside it, so that a broker can set them.
* An uncompressed batch is written byte for byte as Kafka's Java client writes it: the base timestamp is that of the
  first record, the greatest one is in the header, lengths are minimal.
* Encoding and decoding returns the same records, unless the append time replaced their timestamps.

Source: kafka/clients `DefaultRecordBatch.java`, `MemoryRecordsBuilder.java`; KIP-98, KIP-534.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import cache
from typing import Final

from kcoord_wire.errors import DecodeError, EncodeError
from kcoord_wire.extras import require
from kcoord_wire.records import model
from kcoord_wire.records.compression import compress, decompress
from kcoord_wire.records.limits import ReadLimits, below, check_width, encoding_below, moved, pinned, with_offsets
from kcoord_wire.records.model import NO_TIMESTAMP, Compression, Record, RecordBatch
from kcoord_wire.records.record import MIN_RECORD_SIZE, BatchFrame, decode_record_block, encode_record_block

# ---- the header, and the byte positions in it

UNCHECKED: Final = struct.Struct(">qiibI")
"""The part of the header that the CRC does not cover: base offset, length, leader epoch, magic, CRC."""

CHECKED: Final = struct.Struct(">hiqqqhii")
"""The rest, which it covers: attributes, last offset delta, base and greatest timestamp, producer id and epoch, base
sequence, count of records."""

HEADER_SIZE: Final = UNCHECKED.size + CHECKED.size
LENGTH_FROM: Final = 12
"""The length counts the bytes from here on."""

AT_LEADER_EPOCH: Final = 12
AT_MAGIC: Final = 16
AT_CRC: Final = 17
AT_CHECKED: Final = 21
_AT_LAST_OFFSET_DELTA: Final = 23
_AT_COUNT: Final = 57


def crc32c(data: memoryview | bytes) -> int:
    """The Castagnoli CRC of `data`."""
    return _checksum()(data)


@cache
def _checksum() -> Callable[[memoryview | bytes], int]:
    function: Callable[[memoryview | bytes], int] = require(
        "crc32c", "records", "the checksum of record batches"
    ).crc32c
    return function


def decode_batch(entry: memoryview, position: int, limits: ReadLimits) -> RecordBatch:
    """Return the batch that fills `entry`.

    :param entry: as many bytes as its own length field says
    :param position: of `entry` in the buffer or file; offsets of errors count from the start of that
    :raises DecodeError: path ``RecordBatch...``
    """
    try:
        return _decode(entry, position, limits)
    except DecodeError as error:
        raise below("RecordBatch", error) from None


def _decode(entry: memoryview, position: int, limits: ReadLimits) -> RecordBatch:
    size = len(entry)
    if size < HEADER_SIZE:
        raise DecodeError("length", position + 8, "size", f"{size} bytes are less than a header")
    base_offset, _, leader_epoch, _, crc = UNCHECKED.unpack_from(entry)
    attributes, last_offset_delta, base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, count = (
        CHECKED.unpack_from(entry, AT_CHECKED)
    )
    if limits.check_crc:
        actual = crc32c(entry[AT_CHECKED:])
        if actual != crc:
            raise DecodeError("checksum", position + AT_CRC, "crc", f"stored {crc:#010x}, computed {actual:#010x}")
    if base_offset + last_offset_delta > model.MAX_INT64:
        raise DecodeError("range", position + _AT_LAST_OFFSET_DELTA, "last_offset_delta", "the last offset overflows")
    codec = attributes & model.COMPRESSION_MASK
    if codec > Compression.ZSTD:
        raise DecodeError("compression", position + AT_CHECKED, "attributes", f"no codec has number {codec}")
    append_time = max_timestamp if attributes & model.LOG_APPEND_TIME_BIT else None
    frame = BatchFrame(base_offset, last_offset_delta, base_timestamp, append_time)
    block = bytes(entry[HEADER_SIZE:])
    most = limits.objects_in(size)
    compressed = bool(codec and block)  # an empty batch has nothing to decompress, whatever its attributes say
    if compressed:
        _check_limit(count, most, position)  # before anything is decompressed
        try:
            block = decompress(Compression(codec), block, limit=limits.max_decompressed, allowance=limits.allowance)
        except DecodeError as error:
            raise DecodeError(error.kind, position, "records", error.detail) from None
    if not 0 <= count <= len(block) // MIN_RECORD_SIZE:
        kind = "length" if count < 0 else "truncated"
        raise DecodeError(kind, position + _AT_COUNT, "records", f"a count of {count} for {len(block)} bytes")
    _check_limit(count, most, position)
    try:
        records = decode_record_block(block, count, frame, limits.strict, most)
    except DecodeError as error:
        raise (pinned(error, position) if compressed else moved(error, position + HEADER_SIZE)) from None
    return RecordBatch(
        position=position,
        size=size,
        base_offset=base_offset,
        partition_leader_epoch=leader_epoch,
        crc=crc,
        attributes=attributes,
        last_offset_delta=last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        records=records,
    )


def _check_limit(count: int, most: int, position: int) -> None:
    if count > most:
        raise DecodeError("length", position + _AT_COUNT, "records", f"a count of {count}, above the limit of {most}")


def encode_batch(
    records: Iterable[Record],
    *,
    base_offset: int | None = None,
    last_offset: int | None = None,
    compression: Compression = Compression.NONE,
    log_append_time: int | None = None,
    delete_horizon_ms: int | None = None,
    transactional: bool = False,
    control: bool = False,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    partition_leader_epoch: int = -1,
) -> bytes:
    """Return one batch of `records`, which may be none.

    :param records: offsets ascend; an offset of -1 is the one after its predecessor's, of the first the base offset
    :param base_offset: default: the offset of the first record, or 0
    :param last_offset: default: the offset of the last record; greater after compaction
    :param log_append_time: milliseconds; for readers, the timestamp of every record
    :param delete_horizon_ms: milliseconds; becomes the base timestamp (KIP-534)
    :param control: the records are markers (control.py)
    :raises EncodeError: path ``RecordBatch...``
    :raises MissingLibraryError: the extra ``records`` is not installed
    """
    try:
        return _encode(
            records,
            base_offset,
            last_offset,
            compression,
            log_append_time,
            delete_horizon_ms,
            (model.TRANSACTIONAL_BIT if transactional else 0) | (model.CONTROL_BIT if control else 0),
            (producer_id, producer_epoch, base_sequence),
            partition_leader_epoch,
        )
    except EncodeError as error:
        raise encoding_below("RecordBatch", error) from None


def _encode(
    records: Iterable[Record],
    base_offset: int | None,
    last_offset: int | None,
    compression: Compression,
    log_append_time: int | None,
    delete_horizon_ms: int | None,
    attributes: int,
    producer: tuple[int, int, int],
    leader_epoch: int,
) -> bytes:
    placed, base_offset = with_offsets(records, base_offset)
    last_used = placed[-1].offset if placed else base_offset
    if last_offset is None:
        last_offset = last_used
    elif last_offset < last_used:
        raise EncodeError("range", "last_offset", f"{last_offset} where {last_used} is the least")
    base_timestamp = placed[0].timestamp if placed else NO_TIMESTAMP
    max_timestamp = max((record.timestamp for record in placed), default=NO_TIMESTAMP)
    if log_append_time is not None:
        attributes |= model.LOG_APPEND_TIME_BIT
        max_timestamp = log_append_time
    if delete_horizon_ms is not None:
        attributes |= model.DELETE_HORIZON_BIT
        base_timestamp = delete_horizon_ms
    block = encode_record_block(placed, base_offset, base_timestamp)
    if placed:
        block = compress(compression, block)
    size = HEADER_SIZE - LENGTH_FROM + len(block)
    last_offset_delta = last_offset - base_offset
    for path, value, bits in (
        ("base_offset", base_offset, 64),
        ("last_offset", last_offset, 64),
        ("last_offset_delta", last_offset_delta, 32),
        ("size", size, 32),
        ("partition_leader_epoch", leader_epoch, 32),
        ("base_timestamp", base_timestamp, 64),
        ("max_timestamp", max_timestamp, 64),
        ("producer_id", producer[0], 64),
        ("producer_epoch", producer[1], 16),
        ("base_sequence", producer[2], 32),
    ):
        check_width(path, value, bits)
    attributes |= compression
    checked = CHECKED.pack(attributes, last_offset_delta, base_timestamp, max_timestamp, *producer, len(placed))
    checked += block
    return UNCHECKED.pack(base_offset, size, leader_epoch, 2, crc32c(checked)) + checked
