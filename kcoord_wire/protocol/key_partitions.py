"""Which partition of an internal topic a group, a transactional id or a share group's state of a partition belongs to.

Source: kafka `GroupMetadataManager.partitionFor`, `TransactionStateManager.partitionFor`, `SharePartitionKey`,
`Utils.abs`.
"""

from __future__ import annotations

import base64
import uuid
from functools import lru_cache
from typing import Final

_INT32: Final = 1 << 32
_SHORT: Final = 256  # characters of a key whose partition is remembered; longer ones would hold much memory


def partition_of(key: str, partitions: int) -> int:
    """Return the partition of a key: Java's hash of it, made positive, modulo the number of partitions."""
    code = _remembered(key) if len(key) <= _SHORT else _java_hash(key)
    return code % partitions


def _java_hash(key: str) -> int:
    """Return the absolute value of ``String.hashCode``; 0 for the least integer, which has none."""
    code = 0
    units = key.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        code = (31 * code + int.from_bytes(units[at : at + 2], "big")) % _INT32
    signed = code - _INT32 if code >= _INT32 // 2 else code
    return 0 if signed == -_INT32 // 2 else abs(signed)


_remembered = lru_cache(maxsize=1 << 16)(_java_hash)


def share_state_key(group_id: str, topic_id: uuid.UUID, partition: int) -> str:
    """Return the text that says which partition of ``__share_group_state`` has a state, and by which FindCoordinator
    names it."""
    return f"{group_id}:{base64.urlsafe_b64encode(topic_id.bytes).rstrip(b'=').decode()}:{partition}"


def is_share_state_key(text: str) -> bool:
    """Return whether a text is one that `share_state_key` returns, as Kafka checks it."""
    try:
        group_id, topic_id, partition = text.split(":")
    except ValueError:
        return False
    if not group_id.strip() or not partition.isdecimal() or not topic_id.isascii():
        return False
    try:
        return len(base64.b64decode(topic_id + "==", "-_", validate=True)) == len(uuid.UUID(int=0).bytes)
    except ValueError:
        return False
