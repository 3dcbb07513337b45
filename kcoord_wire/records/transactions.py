"""The records of ``__transaction_state``, in which the transaction coordinator stores transactional ids.

Layout: a key is an int16 0 and the id; a value is an int16 version and a `TransactionLogValue`, or null for a
tombstone.

Laws:

* A value is written in version 1, as Kafka does from transaction version 1 on.
* A state without a name is an error, as is a key or value of an unknown version.

Source: kafka `TransactionLog.java`; KIP-98, KIP-890.
"""

from __future__ import annotations

from typing import Final

import kcoord_wire as kw
from kcoord_wire.errors import DecodeError

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
