"""Offsets that are committed within transactions which are still open.

Laws:

* An offset counts once its transaction is committed, and never if that is aborted.
* Of two offsets of a partition the one that was written later wins, whenever their transactions end: as in a log in
  which compaction keeps the last record of a key.
* Removing a committed offset removes what is pending for its partition, too.

Source: KIP-98, KIP-447; Kafka's `OffsetMetadataManager.java` (pendingTransactionalOffsets).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from kcoord_wire.coordinator.core.any_group import Committed

LATEST = 1 << 62
"""The place in the log of what is written now, after everything that is pending."""

_Key = tuple[str, int]  # topic and partition


class Pending(NamedTuple):
    """A pending offset.

    :ivar order: its place in the log, compared with others
    :ivar committed: the offset; a later one of the partition, where that is committed already
    """

    order: int
    committed: Committed


class PendingOffsets:
    """The pending offsets of all groups."""

    __slots__ = ("_groups", "_producers")

    def __init__(self) -> None:
        self._groups: dict[str, dict[int, dict[_Key, Pending]]] = {}  # group id, producer id
        self._producers: dict[int, set[str]] = {}  # producer id to group ids

    def add(self, producer_id: int, group_id: str, topic: str, partition: int, pending: Pending) -> None:
        """Note an offset."""
        self._producers.setdefault(producer_id, set()).add(group_id)
        self._groups.setdefault(group_id, {}).setdefault(producer_id, {})[topic, partition] = pending

    def supersede(self, group_id: str, topic: str, partition: int, committed: Committed, order: int = LATEST) -> None:
        """Note that an offset has been committed, which what was written before it must not replace."""
        for offsets in self._groups.get(group_id, {}).values():
            pending = offsets.get((topic, partition))
            if pending is not None and pending.order < order:
                offsets[topic, partition] = Pending(pending.order, committed)

    def forget(self, group_id: str, topic: str, partition: int) -> bool:
        """Forget what is pending for a partition, and return whether anything was."""
        found = [offsets.pop((topic, partition), None) for offsets in self._groups.get(group_id, {}).values()]
        return any(pending is not None for pending in found)

    def of_group(self, group_id: str) -> set[_Key]:
        """Return the partitions of a group for which an offset is pending."""
        return {key for offsets in self._groups.get(group_id, {}).values() for key in offsets}

    def drop(self, is_dropped: Callable[[str], bool]) -> None:
        """Forget what is pending for these groups."""
        for group_id in [group_id for group_id in self._groups if is_dropped(group_id)]:
            for producer_id in self._groups.pop(group_id):
                self._leave(producer_id, group_id)

    def end(self, producer_id: int) -> Iterator[tuple[str, str, int, Pending]]:
        """Forget what a producer's transaction has, and yield it in the order of the log: group, topic, partition."""
        ended = []
        for group_id in self._producers.pop(producer_id, set()):
            producers = self._groups[group_id]
            ended += [(group_id, topic, index, each) for (topic, index), each in producers.pop(producer_id).items()]
            if not producers:
                del self._groups[group_id]
        yield from sorted(ended, key=lambda each: each[3].order)

    def _leave(self, producer_id: int, group_id: str) -> None:
        groups = self._producers[producer_id]
        groups.discard(group_id)
        if not groups:
            del self._producers[producer_id]
