"""The values: a record, the batch it came in, and the codes of their attribute bits.

Laws:

* Offsets and timestamps of a `Record` are absolute; deltas exist on the wire only.
* `RecordBatch` (magic 2) and `MessageSet` (magic 0 and 1) have the same attributes: ``magic``,
  ``position``, ``size``, ``base_offset``, ``last_offset``, ``max_timestamp``, ``compression``, ``timestamp_type``,
  ``records``.
* ``attributes`` keeps every bit as it was on the wire, including those without a meaning.

Source: kafka/clients `DefaultRecordBatch.java`, `DefaultRecord.java`, `LegacyRecord.java`; KIP-32, KIP-82, KIP-98,
KIP-534.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

NO_OFFSET: Final = -1
NO_TIMESTAMP: Final = -1
MIN_INT64: Final = -(1 << 63)
MAX_INT64: Final = (1 << 63) - 1

COMPRESSION_MASK: Final = 0x07
LOG_APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40


class Compression(IntEnum):
    """Bits 0-2 of the attributes of a batch or a message."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TimestampType(IntEnum):
    """What set the timestamp: nothing (magic 0), the producer, or the broker."""

    NO_TIMESTAMP = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


@dataclass(frozen=True, slots=True)
class RecordHeader:
    """One header of a record (KIP-82).

    :ivar key: text; bytes that are not UTF-8 (``strict=False`` only) are held as surrogate escapes and written back
        unchanged
    :ivar value: bytes or null
    """

    key: str
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Record:
    """One record, of any magic.

    :ivar key: bytes or null
    :ivar value: bytes or null (a tombstone in a compacted topic)
    :ivar timestamp: milliseconds since the epoch; -1 where there is none
    :ivar offset: absolute; -1 on a record to be written means the one after its predecessor
    :ivar headers: magic 2 only
    :ivar attributes: int8, magic 2 only; no bit of it has a meaning yet
    """

    key: bytes | None = None
    value: bytes | None = None
    timestamp: int = NO_TIMESTAMP
    offset: int = NO_OFFSET
    headers: tuple[RecordHeader, ...] = ()
    attributes: int = 0


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """A record batch, magic 2 (KIP-98). Field names and widths are those of the 61-byte header.

    :ivar position: first byte of the batch in the buffer or file
    :ivar size: bytes, header and length fields included
    :ivar crc: CRC-32C as stored, whether or not it was checked
    :ivar producer_id: -1 where the producer is not idempotent; so are ``producer_epoch`` and ``base_sequence``
    """

    position: int
    size: int
    base_offset: int
    partition_leader_epoch: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: tuple[Record, ...]

    @property
    def magic(self) -> int:
        return 2

    @property
    def compression(self) -> Compression:
        return Compression(self.attributes & COMPRESSION_MASK)

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType((self.attributes & LOG_APPEND_TIME_BIT) >> 3)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """True where the records are markers written by a broker (control.py), not data."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def delete_horizon_ms(self) -> int | None:
        """When tombstones and markers of this batch may be dropped (KIP-534); None where compaction has not set it."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def last_offset(self) -> int:
        """Offset of the last record that was written, even if compaction has removed it since."""
        return self.base_offset + self.last_offset_delta


@dataclass(frozen=True, slots=True)
class MessageSet:
    """One outer entry of a message set, magic 0 or 1: a plain message, or a compressed wrapper with the messages in it.

    :ivar position: first byte of the entry in the buffer or file
    :ivar size: bytes, offset and size fields included
    :ivar offset: as stored; of a wrapper, the offset of its last message
    :ivar crc: CRC-32 as stored, whether or not it was checked
    :ivar timestamp: as stored; of a wrapper, the greatest of its messages or the append time; -1 for magic 0
    :ivar records: never empty; wrappers within wrappers are flattened
    """

    position: int
    size: int
    magic: int
    offset: int
    crc: int
    attributes: int
    timestamp: int
    records: tuple[Record, ...]

    @property
    def compression(self) -> Compression:
        return Compression(self.attributes & COMPRESSION_MASK)

    @property
    def timestamp_type(self) -> TimestampType:
        if self.magic == 0:
            return TimestampType.NO_TIMESTAMP
        return TimestampType((self.attributes & LOG_APPEND_TIME_BIT) >> 3)

    @property
    def base_offset(self) -> int:
        return self.records[0].offset

    @property
    def last_offset(self) -> int:
        return self.records[-1].offset

    @property
    def max_timestamp(self) -> int:
        return self.timestamp


Batch: TypeAlias = RecordBatch | MessageSet
