"""The records of ``__share_group_state``, in which a share coordinator keeps what became of records (KIP-932).

A key is an int16 record type and a group, a topic's id and a partition; a value an int16 version and a message, or null
for a tombstone.

Laws:

* Snapshots (type 0) are read and written. Kafka also writes changes to them (type 1, ShareUpdate): those are ignored,
  as every unknown type.

Source: kafka/share-coordinator `ShareCoordinatorRecordSerde.java`, `ShareCoordinatorRecordHelpers.java`,
`SharePartitionKey.java`; KIP-932, KIP-1226.
"""

from __future__ import annotations

from typing import Final

import kcoord_wire as kw
from kcoord_wire.errors import DecodeError
from kcoord_wire.protocol.key_partitions import share_state_key

_SNAPSHOT: Final = 0
_VALUE_VERSION: Final = 0
_STATES: Final = (0, 2, 4)  # numbers of the states that are kept: available, acknowledged, archived


def encode_share_record(key: kw.ShareSnapshotKey, value: kw.ShareSnapshotValue | None) -> tuple[bytes, bytes | None]:
    """Return key and value of a record.

    :param value: None for a tombstone
    :raises EncodeError: as `kcoord_wire.encode`
    """
    raw_key = kw.encode_prefixed(key, _SNAPSHOT)
    return raw_key, None if value is None else kw.encode_prefixed(value, _VALUE_VERSION)


def decode_share_record(
    key: bytes | None, value: bytes | None
) -> tuple[kw.ShareSnapshotKey, kw.ShareSnapshotValue | None] | None:
    """Return the messages of a snapshot's key and value, None for a tombstone's value; None for another record.

    :raises DecodeError: ``null`` for a record without key, ``range`` for an unknown state or a range that ends before
        it begins, else as for `kcoord_wire.decode`
    """
    if key is None:
        raise DecodeError("null", 0, "key", "a record of __share_group_state has a key")
    if int.from_bytes(key[:2], "big") != _SNAPSHOT:
        return None
    _, name = kw.decode_prefixed(kw.ShareSnapshotKey, key)
    if value is None:
        return name, None
    _, state = kw.decode_prefixed(kw.ShareSnapshotValue, value)
    for each in state.state_batches:
        if each.delivery_state not in _STATES or each.first_offset > each.last_offset:
            raise DecodeError("range", 0, "ShareSnapshotValue.state_batches", f"{each} is no state of records")
    return name, state


def share_state_key_of(key: bytes) -> str:
    """Return the `share_state_key` of the key of a record.

    :raises DecodeError: as `decode_share_record`, and ``version`` for a key of another type
    """
    found = decode_share_record(key, None)
    if found is None:
        raise DecodeError("version", 0, "key", "not the key of a snapshot")
    return share_state_key(found[0].group_id, found[0].topic_id, found[0].partition)
