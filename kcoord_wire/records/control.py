"""The records of transactions: a broker's markers in a log, and the coordinator's in ``__transaction_state``.

A control record's key is an int16 version and an int16 type. In ``__transaction_state`` a key is an int16 0 and the
transactional id, a value an int16 version and a `TransactionLogValue`, or null for a tombstone.

Laws:

* A version of a control record above the known ones is read by the known fields. A type that is not in `ControlType`
  is returned as its number and is not an error, because Kafka ignores it.
* A value of ``__transaction_state`` is written in version 1, as Kafka does from transaction version 1 on. A state
  without a name is an error, as is a key or value of an unknown version.

Source: kafka/clients `ControlRecordType.java`, `EndTransactionMarker.java`; kafka `TransactionLog.java`; KIP-98,
KIP-595, KIP-630, KIP-853, KIP-890.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import kcoord_wire as kw
from kcoord_wire.errors import DecodeError
from kcoord_wire.records.limits import check_width
from kcoord_wire.records.model import NO_OFFSET, NO_TIMESTAMP, Batch, Record, RecordBatch

_KEY: Final = struct.Struct(">hh")
_MARKER: Final = struct.Struct(">hi")


class ControlType(IntEnum):
    """The types of control records. The first two end a transaction, the others belong to KRaft."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


@dataclass(frozen=True, slots=True)
class ControlRecord:
    """A decoded control record.

    :ivar type: a `ControlType`, or the number of one that is not known
    :ivar version: of the key
    :ivar coordinator_epoch: of the transaction coordinator; None unless the type is ABORT or COMMIT
    """

    type: ControlType | int
    version: int
    coordinator_epoch: int | None = None


def decode_control_record(record: Record) -> ControlRecord:
    """Return the decoded `record` of a batch with ``is_control``.

    :raises DecodeError: ``null``, ``truncated``, ``version``; path ``ControlRecord...``, offset in the key or the value
    """
    version, number = _unpack(_KEY, record.key, "key")
    try:
        control = ControlType(number)
    except ValueError:
        return ControlRecord(number, version)
    if control not in (ControlType.ABORT, ControlType.COMMIT):
        return ControlRecord(control, version)
    _, epoch = _unpack(_MARKER, record.value, "value")
    return ControlRecord(control, version, epoch)


def decode_control_batch(batch: RecordBatch) -> ControlRecord:
    """Return the decoded record of a batch with ``is_control``.

    :raises DecodeError: as `decode_control_record`; ``truncated`` at 0 if the batch has no record, as after compaction
    """
    if not batch.records:
        raise DecodeError("truncated", 0, "RecordBatch.records", "a control batch without a record")
    return decode_control_record(batch.records[0])


class HiddenBatches:
    """Which batches of a partition its readers are not given: markers and, of those who read what is committed, the
    batches of aborted transactions.

    :param aborted: the transactions, each with ``producer_id`` and ``first_offset``; None where uncommitted records are
        read
    """

    def __init__(self, aborted: Iterable[Any] | None) -> None:
        self._aborted = None if aborted is None else sorted(aborted, key=lambda each: each.first_offset, reverse=True)
        self._aborting: set[int] = set()

    def has(self, batch: Batch) -> bool:
        """Return whether it has a batch; to be asked of each in its turn.

        :raises DecodeError: a marker cannot be read
        """
        if not isinstance(batch, RecordBatch):
            return False
        if self._aborted is not None:
            while self._aborted and self._aborted[-1].first_offset <= batch.last_offset:
                self._aborting.add(self._aborted.pop().producer_id)
        if batch.is_control:
            if batch.records and decode_control_record(batch.records[0]).type is ControlType.ABORT:
                self._aborting.discard(batch.producer_id)
            return True
        return batch.is_transactional and batch.producer_id in self._aborting


def _unpack(layout: struct.Struct, data: bytes | None, field: str) -> tuple[int, int]:
    path = f"ControlRecord.{field}"
    if data is None:
        raise DecodeError("null", 0, path, "may not be null")
    if len(data) < layout.size:
        raise DecodeError("truncated", 0, path, f"{len(data)} bytes where {layout.size} are needed")
    version, value = layout.unpack_from(data)
    if version < 0:
        raise DecodeError("version", 0, path, f"version {version}")
    return version, value


def end_transaction_record(
    control: ControlType, coordinator_epoch: int, *, timestamp: int = NO_TIMESTAMP, offset: int = NO_OFFSET
) -> Record:
    """The marker that ends a transaction; the only record of its batch (``control=True``, ``transactional=True``).

    :param control: ABORT or COMMIT
    :raises EncodeError: ``range``
    """
    check_width("ControlRecord.value", coordinator_epoch, 32)
    return Record(_KEY.pack(0, control), _MARKER.pack(0, coordinator_epoch), timestamp, offset)


_KEY_VERSION: Final = 0
_VALUE_VERSION: Final = 1
_STATES: Final = range(6)  # numbers of TransactionStatus that are written; Dead never is


def encode_transaction_record(
    key: kw.TransactionLogKey, value: kw.TransactionLogValue | None
) -> tuple[bytes, bytes | None]:
    """Return key and value of a record.

    :param value: None for a tombstone
    :raises EncodeError: as `kcoord_wire.encode`
    """
    raw_key = kw.encode_prefixed(key, _KEY_VERSION)
    return raw_key, None if value is None else kw.encode_prefixed(value, _VALUE_VERSION)


def decode_transaction_record(
    key: bytes | None, value: bytes | None
) -> tuple[kw.TransactionLogKey, kw.TransactionLogValue | None]:
    """Return the messages of a record's key and value; None for a tombstone's value.

    :raises DecodeError: ``null`` for a record without key, ``version``, ``range`` for an unknown state, else as for
        `kcoord_wire.decode`
    """
    if key is None:
        raise DecodeError("null", 0, "key", "a record of __transaction_state has a key")
    version, name = kw.decode_prefixed(kw.TransactionLogKey, key)
    if version != _KEY_VERSION:
        raise DecodeError("version", 0, "TransactionLogKey", f"version {version}")
    if value is None:
        return name, None
    version, state = kw.decode_prefixed(kw.TransactionLogValue, value)
    if version > _VALUE_VERSION:
        raise DecodeError("version", 0, "TransactionLogValue", f"version {version}")
    if state.transaction_status not in _STATES:
        detail = f"no state has number {state.transaction_status}"
        raise DecodeError("range", 0, "TransactionLogValue.transaction_status", detail)
    return name, state
