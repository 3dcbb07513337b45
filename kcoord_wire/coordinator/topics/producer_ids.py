"""Ids for producers: none is given away twice, nor after a restart.

Law: ids are reserved in the journal, in blocks, before they are given away. On a new disk they begin with the time, so
that a producer that outlives a coordinator in memory does not share its id with a new one.

Source: kafka `ProducerIdManager`, `ProducerIdControlManager.java`.
"""

from __future__ import annotations

from typing import Final

from kcoord_wire.coordinator.topics.journal import Journal

__all__ = ["ProducerIds"]

_BLOCK: Final = 1_000


class ProducerIds:
    """Gives ids away.

    :param journal: has the blocks that are reserved
    :param below: ids below this may have been given away
    """

    def __init__(self, journal: Journal, below: int) -> None:
        self._journal = journal
        self._next = self._reserved = below

    def take(self, now: int) -> int:
        """Return an id that no producer has. OSError: the disk fails, and none is given away."""
        taken = self._next or now
        if taken >= self._reserved:
            self._journal.producer_ids_reserved(taken + _BLOCK)
            self._reserved = taken + _BLOCK
        self._next = taken + 1
        return taken
