"""Message sets, magic 0 and 1: what Kafka wrote to its logs before 0.11.

Layout of an entry: offset int64 | size int32 | crc uint32 | magic int8 | attributes int8 | timestamp int64 (magic 1
only) | key | value, the last two an int32 length (-1 null) and bytes. A compressed set is the value of one such
entry, the wrapper.

Laws:

* The CRC-32 (that of IEEE 802.3) covers magic to end, and is checked before anything it covers is read.
* A wrapper has a value and holds whole entries, at least one, of its own magic; wrappers lie in each other no deeper
  than the limit, and all of them together decompress to no more than the limit.
* Magic 0: inner offsets are absolute. Magic 1: they count from the first message and the wrapper's offset is the last
  one's (KIP-31). A wrapper with the append time gives it to its messages (KIP-32).

Source: kafka/clients `LegacyRecord.java`, `AbstractLegacyRecordBatch.java`, `MemoryRecordsBuilder.java`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from kcoord_wire.errors import DecodeError, EncodeError
from kcoord_wire.records import model
from kcoord_wire.records.compression import compress, decompress
from kcoord_wire.records.limits import ReadLimits, below, check_width, encoding_below, moved, pinned, with_offsets
from kcoord_wire.records.model import NO_TIMESTAMP, Compression, MessageSet, Record

_PREFIX: Final = struct.Struct(">qiI")  # the part of an entry before what the CRC covers
_ENTRY: Final = struct.Struct(">qiIbb")
_TIMESTAMP: Final = struct.Struct(">q")
_LENGTH: Final = struct.Struct(">i")
_SIZE_FROM: Final = 12  # the size counts what follows it
_AT_CRC: Final = 12
_AT_MAGIC: Final = 16
_AT_ATTRIBUTES: Final = 17
MIN_ENTRY_SIZE: Final = _ENTRY.size + 2 * _LENGTH.size


class _Message(NamedTuple):
    """One entry as stored, nothing unwrapped."""

    offset: int
    crc: int
    magic: int
    attributes: int
    timestamp: int
    key: bytes | None
    value: bytes | None

    @property
    def codec(self) -> int:
        return self.attributes & model.COMPRESSION_MASK


@dataclass(slots=True)
class _Budget:
    """What is left for one outer message and all that is nested in it.

    :ivar decompressed: bytes
    :ivar records: their number
    """

    decompressed: int
    records: int


def decode_message_set(entry: memoryview, position: int, limits: ReadLimits) -> MessageSet:
    """Return the message that `entry` is, or the messages of the wrapper.

    :param entry: as many bytes as its own size field says
    :param position: of `entry` in the buffer or file; offsets of errors count from the start of that
    :raises DecodeError: path ``MessageSet...``
    """
    try:
        try:
            message = _read_message(bytes(entry), limits)
        except DecodeError as error:
            raise moved(error, position) from None
        if message.codec:
            try:
                budget = _Budget(limits.max_decompressed, limits.objects_in(len(entry)))
                records = _unwrap(message, limits, 1, budget)
            except DecodeError as error:
                raise pinned(error, position) from None
        else:
            records = [Record(message.key, message.value, message.timestamp, message.offset)]
    except DecodeError as error:
        raise below("MessageSet", error) from None
    return MessageSet(
        position=position,
        size=len(entry),
        magic=message.magic,
        offset=message.offset,
        crc=message.crc,
        attributes=message.attributes,
        timestamp=message.timestamp,
        records=tuple(records),
    )


def _read_message(entry: bytes, limits: ReadLimits) -> _Message:
    if len(entry) < MIN_ENTRY_SIZE:
        raise DecodeError("length", 8, "size", f"{len(entry)} bytes are less than a message")
    offset, _, crc, magic, attributes = _ENTRY.unpack_from(entry)
    if limits.check_crc:
        actual = zlib.crc32(memoryview(entry)[_AT_MAGIC:])
        if actual != crc:
            raise DecodeError("checksum", _AT_CRC, "crc", f"stored {crc:#010x}, computed {actual:#010x}")
    if magic not in (0, 1):
        raise DecodeError("version", _AT_MAGIC, "magic", f"a message of magic {magic}")
    if attributes & model.COMPRESSION_MASK > Compression.LZ4:
        raise DecodeError("compression", _AT_ATTRIBUTES, "attributes", f"no codec of magic {magic} has this number")
    pos = _ENTRY.size
    timestamp = NO_TIMESTAMP
    if magic == 1:
        if len(entry) < MIN_ENTRY_SIZE + _TIMESTAMP.size:
            raise DecodeError("truncated", pos, "timestamp", "the message ends before its fields do")
        (timestamp,) = _TIMESTAMP.unpack_from(entry, pos)
        pos += _TIMESTAMP.size
    key, pos = _read_nullable(entry, pos, "key", limits.strict)
    value, pos = _read_nullable(entry, pos, "value", limits.strict)
    if limits.strict and pos != len(entry):
        raise DecodeError("trailing", pos, "size", f"{len(entry) - pos} bytes after the value")
    return _Message(offset, crc, magic, attributes, timestamp, key, value)


def _read_nullable(entry: bytes, pos: int, path: str, strict: bool) -> tuple[bytes | None, int]:
    start = pos + _LENGTH.size
    if start > len(entry):
        raise DecodeError("truncated", pos, path, "the message ends before its fields do")
    (size,) = _LENGTH.unpack_from(entry, pos)
    if size < 0:
        if strict and size != -1:
            raise DecodeError("length", pos, path, f"a length of {size}")
        return None, start
    if size > len(entry) - start:
        raise DecodeError("truncated", pos, path, f"{size} bytes where {len(entry) - start} are left")
    return entry[start : start + size], start + size


def _plain(wrapper: _Message, limits: ReadLimits, depth: int, budget: _Budget) -> bytes:
    if depth > limits.max_depth:
        raise DecodeError("compression", 0, "value", f"wrappers nested more than {limits.max_depth} deep")
    if wrapper.value is None:
        raise DecodeError("null", 0, "value", "a wrapper may not be null")
    try:
        plain = decompress(
            Compression(wrapper.codec),
            wrapper.value,
            limit=budget.decompressed,
            magic=wrapper.magic,
            allowance=limits.allowance,
        )
    except DecodeError as error:
        raise DecodeError(error.kind, 0, "value", error.detail) from None
    budget.decompressed -= len(plain)
    return plain


def _unwrap(wrapper: _Message, limits: ReadLimits, depth: int, budget: _Budget) -> list[Record]:
    """Return the messages in `wrapper`, which are taken from the `budget`."""
    plain = _plain(wrapper, limits, depth, budget)
    records: list[Record] = []
    last_offset = 0
    for index, entry in enumerate(_entries(plain)):
        try:
            message = _read_message(entry, limits)
            if message.magic != wrapper.magic:
                raise DecodeError("version", 0, "magic", f"magic {message.magic} in a wrapper of magic {wrapper.magic}")
            last_offset = message.offset
            if message.codec:
                records += _unwrap(message, limits, depth + 1, budget)
            else:
                budget.records -= 1
                if budget.records < 0:
                    raise DecodeError("length", 0, "offset", "more messages than the limit")
                records.append(Record(message.key, message.value, message.timestamp, message.offset))
        except DecodeError as error:
            raise below(f"records[{index}]", error) from None
    if not records:
        raise DecodeError("length", 0, "records", "a wrapper may not be empty")
    if wrapper.magic == 1:
        records = _as_wrapped(records, wrapper, wrapper.offset - last_offset)
    return records


def _as_wrapped(records: list[Record], wrapper: _Message, shift: int) -> list[Record]:
    """The records of a wrapper of magic 1, with absolute offsets, and the wrapper's timestamp if the broker set it."""
    stamp = wrapper.timestamp if wrapper.attributes & model.LOG_APPEND_TIME_BIT else None
    return [
        Record(record.key, record.value, record.timestamp if stamp is None else stamp, record.offset + shift)
        for record in records
    ]


def _entries(plain: bytes) -> Iterator[bytes]:
    pos = 0
    while pos < len(plain):
        left = len(plain) - pos
        if left < _SIZE_FROM:
            raise DecodeError("truncated", 0, "records", f"{left} bytes after the last message")
        size = _SIZE_FROM + _LENGTH.unpack_from(plain, pos + 8)[0]
        if size < MIN_ENTRY_SIZE:
            raise DecodeError("length", 0, "records", f"a message of {size} bytes")
        if size > left:
            raise DecodeError("truncated", 0, "records", f"a message of {size} bytes where {left} are left")
        yield plain[pos : pos + size]
        pos += size


def encode_message_set(
    records: Iterable[Record],
    *,
    magic: int = 1,
    base_offset: int | None = None,
    compression: Compression = Compression.NONE,
    log_append_time: int | None = None,
) -> bytes:
    """Return the entries of `records`, or with compression the one wrapper around them.

    :param records: offsets ascend; an offset of -1 is the one after its predecessor's, of the first the base offset
    :param magic: 0 or 1
    :param base_offset: default: the offset of the first record, or 0
    :param log_append_time: milliseconds, magic 1 only; for readers, the timestamp of every record
    :raises EncodeError: path ``MessageSet...``; ``version`` for what the magic does not have: headers, a timestamp in
        magic 0
    :raises MissingLibraryError: the extra ``records`` is not installed
    """
    try:
        return _encode(records, magic, base_offset, compression, log_append_time)
    except EncodeError as error:
        raise encoding_below("MessageSet", error) from None


def _encode(
    records: Iterable[Record],
    magic: int,
    base_offset: int | None,
    compression: Compression,
    log_append_time: int | None,
) -> bytes:
    if magic not in (0, 1):
        raise EncodeError("version", "magic", f"message sets are of magic 0 or 1, not {magic}")
    if magic == 0 and log_append_time is not None:
        raise EncodeError("version", "timestamp", "magic 0 has no timestamps")
    placed, base_offset = with_offsets(records, base_offset)
    attributes = 0 if log_append_time is None else model.LOG_APPEND_TIME_BIT
    relative = base_offset if compression and magic == 1 else 0
    out = bytearray()
    for index, record in enumerate(placed):
        try:
            _check_carried(record, magic)
            timestamp = record.timestamp if log_append_time is None else log_append_time
            out += _message(record.offset - relative, magic, attributes, timestamp, record.key, record.value)
        except EncodeError as error:
            raise encoding_below(f"records[{index}]", error) from None
    if not compression or not placed:
        return bytes(out)
    timestamp = max(record.timestamp for record in placed) if log_append_time is None else log_append_time
    value = compress(compression, bytes(out), magic=magic)
    return _message(placed[-1].offset, magic, attributes | compression, timestamp, None, value)


def _check_carried(record: Record, magic: int) -> None:
    if record.headers:
        raise EncodeError("version", "headers", f"magic {magic} has no headers")
    if record.attributes:
        raise EncodeError("version", "attributes", f"magic {magic} has no record attributes")
    if magic == 0 and record.timestamp != NO_TIMESTAMP:
        raise EncodeError("version", "timestamp", "magic 0 has no timestamps")


def _message(offset: int, magic: int, attributes: int, timestamp: int, key: bytes | None, value: bytes | None) -> bytes:
    check_width("offset", offset, 64)
    covered = bytearray((magic, attributes))
    if magic == 1:
        check_width("timestamp", timestamp, 64)
        covered += _TIMESTAMP.pack(timestamp)
    for path, field in (("key", key), ("value", value)):
        if field is None:
            covered += _LENGTH.pack(-1)
        elif not isinstance(field, bytes | bytearray | memoryview):
            raise EncodeError("type", path, f"must be bytes or None, not {type(field).__name__}")
        else:
            check_width(path, len(field), 32)
            covered += _LENGTH.pack(len(field))
            covered += field
    check_width("size", len(covered) + 4, 32)
    return _PREFIX.pack(offset, len(covered) + 4, zlib.crc32(covered)) + covered
