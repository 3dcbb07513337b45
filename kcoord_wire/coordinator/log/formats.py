"""How the records of a log are written and read: those of groups, and those of transactional ids.

Source: kafka `GroupCoordinatorRecordSerde.java`, `TransactionLog.java`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from kcoord_wire.coordinator.core.events import LogRecord
from kcoord_wire.records import (
    decode_offsets_record,
    decode_transaction_record,
    encode_offsets_record,
    encode_transaction_record,
)


class RecordFormat(NamedTuple):
    """The records of one log.

    :ivar topic: the topic of Kafka that has these records
    :ivar encode: returns key and value in bytes; raises EncodeError
    :ivar decode: returns the record of key and value; None for a type that is not known; raises DecodeError
    """

    topic: str
    encode: Callable[[Any, Any | None], tuple[bytes, bytes | None]]
    decode: Callable[[bytes | None, bytes | None], LogRecord | None]


def _decode_offsets(key: bytes | None, value: bytes | None) -> LogRecord | None:
    record = decode_offsets_record(key, value)
    return None if record.key is None else LogRecord(record.key, record.value)


def _decode_transaction(key: bytes | None, value: bytes | None) -> LogRecord | None:
    return LogRecord(*decode_transaction_record(key, value))


OFFSETS: Final = RecordFormat("__consumer_offsets", encode_offsets_record, _decode_offsets)
"""Groups and committed offsets."""

TRANSACTIONS: Final = RecordFormat("__transaction_state", encode_transaction_record, _decode_transaction)
"""Transactional ids."""
