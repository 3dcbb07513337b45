"""The header of a record batch that a producer has sent: what is checked before a log takes the batch.

Law: size, checksum and number of records are checked before anything is stored; the records themselves are not read,
because a few compressed bytes may hold millions.

Source: kafka `ProduceRequest.java` (validateRecords), `LogValidator.java`.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from kcoord_wire.coordinator.core.apis import Refused
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.records import Compression
from kcoord_wire.records.batch import AT_CHECKED, AT_CRC, AT_MAGIC, CHECKED, HEADER_SIZE, LENGTH_FROM, UNCHECKED, crc32c
from kcoord_wire.records.model import COMPRESSION_MASK, CONTROL_BIT, LOG_APPEND_TIME_BIT, TRANSACTIONAL_BIT
from kcoord_wire.records.record import MIN_RECORD_SIZE

BATCH_HEADER_SIZE: Final = HEADER_SIZE
"""Bytes of a batch before its records."""

MAX_SEQUENCE: Final = (1 << 31) - 1
"""Sequence numbers of idempotent producers go on at 0 after this one."""

_BEYOND: Final = (1 << 31) - 1  # lengths that no batch has, because no request may have them
_LEFT_OUT: Final = _BEYOND - 1
_MAGIC: Final = 2  # of Kafka 0.11 and later
_AT_LENGTH: Final = 8  # bytes of the base offset
_FIELDS: Final = struct.Struct(">hi8xqqhii")  # `CHECKED` without the base timestamp: the fields of `Header`


class Header(NamedTuple):
    """The header fields of a batch that a log needs."""

    attributes: int
    last_offset_delta: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def compression(self) -> int:
        """A `Compression`."""
        return self.attributes & COMPRESSION_MASK

    @property
    def is_transactional(self) -> bool:
        """Whether it belongs to a transaction."""
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        """Whether it is a marker."""
        return self.attributes & CONTROL_BIT != 0

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record. After the greatest int32 they continue at 0."""
        return (self.base_sequence + self.last_offset_delta) & MAX_SEQUENCE


def read_header(data: bytes) -> Header:
    """Return the header of the batch at the start of `data`, which has at least a header."""
    return Header._make(_FIELDS.unpack_from(data, AT_CHECKED))


def with_append_time(data: bytes, now: int) -> bytes:
    """Return a checked batch whose records have the time of the append, as ``message.timestamp.type=LogAppendTime``
    wants it; each record's own time stays in its bytes, and readers ignore it."""
    stamped = bytearray(data)
    attributes, last_offset_delta, base_timestamp, _, *rest = CHECKED.unpack_from(data, AT_CHECKED)
    fields = (attributes | LOG_APPEND_TIME_BIT, last_offset_delta, base_timestamp, now, *rest)
    CHECKED.pack_into(stamped, AT_CHECKED, *fields)
    stamped[AT_CRC:AT_CHECKED] = crc32c(memoryview(stamped)[AT_CHECKED:]).to_bytes(AT_CHECKED - AT_CRC, "big")
    return bytes(stamped)


def left_out(header: bytes, *, fits_alone: bool) -> bytes:
    """Return what stands for a batch that did not fit into a request, which `check_batch` refuses.

    :param fits_alone: it can be sent again
    """
    return header[:_AT_LENGTH] + (_LEFT_OUT if fits_alone else _BEYOND).to_bytes(4, "big") + header[LENGTH_FROM:]


def check_batch(data: bytes | None, max_size: int) -> Header:
    """Return the header of a producer's records, which must be one batch.

    :param max_size: bytes (``max.message.bytes``)
    :raises Refused: CORRUPT_MESSAGE (2) if the size or the checksum is wrong, MESSAGE_TOO_LARGE (10), else
        INVALID_RECORD (87)
    """
    size = _check_frame(data, max_size)
    header = read_header(data or b"")
    _check_header(header, size)
    return header


def _check_frame(data: bytes | None, max_size: int) -> int:
    """Return the size of a batch whose size and checksum are right."""
    if not data:
        raise Refused(ErrorCode.INVALID_RECORD, "one record batch is needed, none was sent")
    sent = len(data)
    if sent > AT_MAGIC and data[AT_MAGIC] != _MAGIC:
        raise Refused(ErrorCode.INVALID_RECORD, f"magic {data[AT_MAGIC]} where {_MAGIC} is needed")
    if sent > max_size:
        raise Refused(ErrorCode.MESSAGE_TOO_LARGE, f"{sent} bytes, at most {max_size} are taken")
    if sent < HEADER_SIZE:
        raise Refused(ErrorCode.CORRUPT_MESSAGE, f"{sent} bytes are less than a header")
    _, length, _, _, crc = UNCHECKED.unpack_from(data)
    size: int = length + LENGTH_FROM
    if length == _BEYOND:
        raise Refused(ErrorCode.MESSAGE_TOO_LARGE, "the batch is larger than a request may be")
    if length == _LEFT_OUT:
        raise Refused(ErrorCode.REQUEST_TIMED_OUT, "the batches of the request are too large together")
    if not HEADER_SIZE <= size <= sent:
        raise Refused(ErrorCode.CORRUPT_MESSAGE, f"a batch of {size} bytes in {sent}")
    if size < sent:
        raise Refused(ErrorCode.INVALID_RECORD, "more than one record batch for a partition")
    if crc32c(memoryview(data)[AT_CHECKED:]) != crc:
        raise Refused(ErrorCode.CORRUPT_MESSAGE, "the checksum is wrong")
    return size


def _check_header(header: Header, size: int) -> None:
    if header.is_transactional and header.producer_id < 0:
        raise Refused(ErrorCode.INVALID_RECORD, "a batch of a transaction without a producer id")
    if header.is_control:
        raise Refused(ErrorCode.INVALID_RECORD, "control batches are the broker's own")
    if header.compression > Compression.ZSTD:
        raise Refused(ErrorCode.INVALID_RECORD, f"no codec has number {header.compression}")
    if header.record_count < 1 or header.record_count != header.last_offset_delta + 1:
        detail = f"{header.record_count} records with a last offset delta of {header.last_offset_delta}"
        raise Refused(ErrorCode.INVALID_RECORD, detail)
    if not header.compression and header.record_count > (size - HEADER_SIZE) // MIN_RECORD_SIZE:
        raise Refused(ErrorCode.INVALID_RECORD, f"{header.record_count} records in {size} bytes")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise Refused(ErrorCode.INVALID_RECORD, f"an idempotent producer's base sequence is {header.base_sequence}")
