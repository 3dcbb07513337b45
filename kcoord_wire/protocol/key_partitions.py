"""Which partition of an internal topic a group or a transactional id belongs to.

Source: kafka `GroupMetadataManager.partitionFor`, `TransactionStateManager.partitionFor`, `Utils.abs`.
"""

from __future__ import annotations

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
