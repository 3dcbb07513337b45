"""The records of a batch (magic 2): everything after the header's count, once decompressed; and the varints in them.

Layout: length varint | attributes int8 | timestamp delta varlong | offset delta varint | key | value | headers, where
key and value are a varint length (-1 null) and bytes, headers a varint count and, each, a key and a value of that form.
These varints are zigzag, not the unsigned ones of flexible messages.

Laws:

* A record takes `MIN_RECORD_SIZE` bytes or more, a header two. The caller compares the count of records with the
  available bytes and with the limit; counts of headers are compared here, before anything is allocated for them.
* No field reaches past its record's length, no record past the block, and nothing is left over in either.
* A varint holds 32 bits in at most 5 bytes, a varlong (``bits=64``) 64 bits in at most 10; a longer one is an error.
* Strict: offset deltas ascend within 0..last offset delta, null is -1 and nothing else, header keys are UTF-8, varints
  have their shortest form and no bit above the width. Lenient accepts what Kafka's reader does.
* Offsets of errors count from the start of the block; those of varints name the first byte.

Source: kafka/clients `DefaultRecord.java`, `DefaultRecordBatch.java`, `ByteUtils.java`; KIP-98, KIP-82.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from kcoord_wire.errors import DecodeError, EncodeError
from kcoord_wire.records.limits import below, encoding_below
from kcoord_wire.records.model import MAX_INT64, MIN_INT64, Record, RecordHeader


def read_varint(data: bytes, pos: int, end: int, bits: int = 32, strict: bool = True) -> tuple[int, int]:
    """Return the signed integer at `pos`, and the position after it.

    :param end: position that must not be passed
    :param bits: 32 or 64
    :raises DecodeError: ``truncated`` or ``varint``
    """
    if pos < end:
        byte = data[pos]
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), pos + 1
        # Two bytes hold most of the rest: a batch is read a sixth faster (tests/bench/records.py).
        if pos + 1 < end and 0 < (second := data[pos + 1]) < 0x80:
            raw = byte & 0x7F | second << 7
            return (raw >> 1) ^ -(raw & 1), pos + 2
    return _read_many(data, pos, end, bits, strict)


def _read_many(data: bytes, pos: int, end: int, bits: int, strict: bool) -> tuple[int, int]:
    raw = shift = 0
    at = pos
    while True:
        if at >= end:
            raise DecodeError("truncated", pos, "varint", "the bytes end within a varint")
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
        if shift >= bits:
            raise DecodeError("varint", pos, "varint", f"more than {at - pos} bytes for {bits} bits")
    if raw >> bits:
        if strict:
            raise DecodeError("varint", pos, "varint", f"does not fit {bits} bits")
        raw &= (1 << bits) - 1
    if strict and byte == 0:
        raise DecodeError("varint", pos, "varint", f"{at - pos} bytes where fewer hold the value")
    return (raw >> 1) ^ -(raw & 1), at


def write_varint(out: bytearray, value: int, bits: int = 32) -> None:
    """Append `value` in its shortest form.

    :param bits: 32 or 64
    :raises EncodeError: ``range``; nothing was appended
    """
    raw = value << 1 if value >= 0 else ~(value << 1)
    if raw >> bits:
        raise EncodeError("range", "varint", f"{value} does not fit {bits} bits")
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)


MIN_RECORD_SIZE: Final = 7  # one byte each: length, attributes, two deltas, two lengths of null, a header count of 0
_MIN_BODY_SIZE: Final = MIN_RECORD_SIZE - 1
_MIN_HEADER_SIZE: Final = 2  # an empty key, a null value


class BatchFrame(NamedTuple):
    """The fields of a batch that apply to all its records.

    :ivar base_offset: added to every offset delta
    :ivar last_offset_delta: the greatest allowed
    :ivar base_timestamp: added to every timestamp delta, milliseconds
    :ivar append_time: the timestamp of every record, where the broker set it (LogAppendTime)
    """

    base_offset: int
    last_offset_delta: int
    base_timestamp: int
    append_time: int | None


def decode_record_block(
    block: bytes, count: int, frame: BatchFrame, strict: bool, max_objects: int
) -> tuple[Record, ...]:
    """Return the `count` records that fill `block`.

    :param max_objects: records and headers together
    :raises DecodeError: ``truncated``, ``length``, ``varint``, ``range``, ``utf8``, ``trailing``
    """
    records: list[Record] = []
    append = records.append
    pos = 0
    next_delta = 0
    max_headers = max_objects - count
    for index in range(count):
        try:
            record, pos, delta = _read_record(block, pos, frame, strict, next_delta, max_headers)
        except DecodeError as error:
            raise below(f"records[{index}]", error) from None
        append(record)
        if record.headers:
            max_headers -= len(record.headers)
        next_delta = delta + 1
    if pos != len(block):
        raise DecodeError("trailing", pos, "records", f"{len(block) - pos} bytes after the last record")
    return tuple(records)


def skim_records(block: bytes, count: int) -> Iterator[tuple[int, bool]]:
    """Yield of the `count` records that fill `block` the timestamp delta, and whether there is a key; what follows is
    not read. Lenient as Kafka's reader.

    :raises DecodeError: ``truncated``, ``length``, ``varint``, ``trailing``
    """
    pos, size = 0, len(block)
    for _ in range(count):
        length, start = read_varint(block, pos, size, 32, False)
        end = start + length
        if length < _MIN_BODY_SIZE or end > size:
            raise DecodeError("length", pos, "length", f"a record of {length} bytes where {size - start} are left")
        timestamp, at = read_varint(block, start + 1, end, 64, False)
        _, at = read_varint(block, at, end, 32, False)
        key_size, at = read_varint(block, at, end, 32, False)
        if key_size > end - at:
            raise DecodeError("truncated", at, "key", f"{key_size} bytes where {end - at} are left")
        yield timestamp, key_size >= 0
        pos = end
    if pos != size:
        raise DecodeError("trailing", pos, "records", f"{size - pos} bytes after the last record")


def _read_record(
    block: bytes, pos: int, frame: BatchFrame, strict: bool, next_delta: int, max_headers: int
) -> tuple[Record, int, int]:
    base_offset, last_offset_delta, base_timestamp, append_time = frame
    field = "length"
    try:
        length, start = read_varint(block, pos, len(block), 32, strict)
        end = start + length
        if length < _MIN_BODY_SIZE:
            raise DecodeError("length", pos, field, f"a record of {length} bytes")
        if end > len(block):
            raise DecodeError("truncated", pos, field, f"{length} bytes where {len(block) - start} are left")
        attributes = (block[start] ^ 0x80) - 0x80
        field = "timestamp"
        at = start + 1
        timestamp, after = read_varint(block, at, end, 64, strict)
        timestamp = timestamp + base_timestamp if append_time is None else append_time
        if not MIN_INT64 <= timestamp <= MAX_INT64:
            raise DecodeError("range", at, field, f"{timestamp} does not fit 64 bits")
        field = "offset"
        at = after
        delta, after = read_varint(block, at, end, 32, strict)
        if strict and not next_delta <= delta <= last_offset_delta:
            bounds = f"{next_delta}..{last_offset_delta}"
            raise DecodeError("range", at, field, f"a delta of {delta} is not within {bounds}")
        field = "key"
        key, at = _read_nullable(block, after, end, strict)
        field = "value"
        value, at = _read_nullable(block, at, end, strict)
        field = "headers"
        headers_at = at
        header_count, at = read_varint(block, at, end, 32, strict)
        if header_count:
            _check_header_count(header_count, headers_at, end - at, max_headers)
    except DecodeError as error:
        raise DecodeError(error.kind, error.offset, field, error.detail) from None
    headers: tuple[RecordHeader, ...] = ()
    if header_count:
        headers, at = _read_headers(block, at, end, header_count, strict)
    if at != end:
        raise DecodeError("trailing", at, "length", f"{end - at} bytes after the last field")
    return Record(key, value, timestamp, base_offset + delta, headers, attributes), end, delta


def _check_header_count(count: int, pos: int, left: int, most: int) -> None:
    if count < 0:
        raise DecodeError("length", pos, "", f"a count of {count}")
    if count > left // _MIN_HEADER_SIZE:
        raise DecodeError("truncated", pos, "", f"{count} headers cannot be in {left} bytes")
    if count > most:
        raise DecodeError("length", pos, "", f"{count} headers, above the limit of {most}")


def _read_headers(block: bytes, pos: int, end: int, count: int, strict: bool) -> tuple[tuple[RecordHeader, ...], int]:
    headers: list[RecordHeader] = []
    for index in range(count):
        field = "key"
        try:
            at = pos
            key, pos = _read_nullable(block, at, end, strict)
            if key is None:
                raise DecodeError("null", at, field, "a header key may not be null")
            try:
                name = key.decode("utf-8", "strict" if strict else "surrogateescape")
            except UnicodeDecodeError as error:
                start = pos - len(key) + error.start
                raise DecodeError("utf8", start, field, f"not UTF-8: {error.reason}") from None
            field = "value"
            value, pos = _read_nullable(block, pos, end, strict)
        except DecodeError as error:
            raise DecodeError(error.kind, error.offset, f"headers[{index}].{field}", error.detail) from None
        headers.append(RecordHeader(name, value))
    return tuple(headers), pos


def _read_nullable(block: bytes, pos: int, end: int, strict: bool) -> tuple[bytes | None, int]:
    size, start = read_varint(block, pos, end, 32, strict)
    if size < 0:
        if strict and size != -1:
            raise DecodeError("length", pos, "", f"a length of {size}")
        return None, start
    after = start + size
    if after > end:
        raise DecodeError("truncated", pos, "", f"{size} bytes where {end - start} are left")
    return block[start:after], after


def encode_record_block(records: Sequence[Record], base_offset: int, base_timestamp: int) -> bytes:
    """Return the bytes of `records`, whose offsets are assigned.

    :raises EncodeError: ``range``, ``type``, ``null``, ``length``
    """
    out = bytearray()
    for index, record in enumerate(records):
        try:
            body = _record_body(record, record.offset - base_offset, record.timestamp - base_timestamp)
            write_varint(out, len(body))
        except EncodeError as error:
            raise encoding_below(f"records[{index}]", error) from None
        out += body
    return bytes(out)


def _record_body(record: Record, offset_delta: int, timestamp_delta: int) -> bytearray:
    out = bytearray()
    field = "attributes"
    try:
        if not -0x80 <= record.attributes <= 0x7F:
            raise EncodeError("range", field, f"{record.attributes} does not fit 8 bits")
        out.append(record.attributes & 0xFF)
        field = "timestamp"
        write_varint(out, timestamp_delta, 64)
        field = "offset"
        write_varint(out, offset_delta)
        field = "key"
        _write_nullable(out, record.key)
        field = "value"
        _write_nullable(out, record.value)
        field = "headers"
        write_varint(out, len(record.headers))
        for index, header in enumerate(record.headers):
            field = f"headers[{index}].key"
            _write_nullable(out, _header_key(header.key))
            field = f"headers[{index}].value"
            _write_nullable(out, header.value)
    except EncodeError as error:
        raise EncodeError(error.kind, field, error.detail) from None
    return out


def _header_key(key: str) -> bytes:
    if not isinstance(key, str):
        raise EncodeError("type", "", f"a header key must be str, not {type(key).__name__}")
    try:
        return key.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise EncodeError("type", "", f"not Unicode text: {error.reason}") from None


def _write_nullable(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(1)  # -1 in zigzag
        return
    if not isinstance(value, bytes | bytearray | memoryview):
        raise EncodeError("type", "", f"must be bytes or None, not {type(value).__name__}")
    write_varint(out, len(value))
    out += value
