"""Ids for producers: none is given away twice, nor after a restart.

Law: ids are reserved in the journal, in blocks, before they are given away. The first of a process is not less than the
time, so that ids are also unique where the journal is lost with the process, or cannot be written.

Source: kafka `ProducerIdManager`, `ProducerIdControlManager.java`.
"""

from __future__ import annotations

import logging
from typing import Final

from kcoord_wire.coordinator.partitions.journal import Journal

_BLOCK: Final = 1_000

_log = logging.getLogger("kcoord_wire.coordinator")


class ProducerIds:
    """Gives ids away.

    :param journal: has the blocks that are reserved
    :param below: ids below this may have been given away
    """

    def __init__(self, journal: Journal, below: int) -> None:
        self._journal = journal
        self._next: int | None = None
        self._reserved = below

    def take(self, now: int) -> int:
        """Return an id that no producer has or had."""
        taken = max(self._reserved, now) if self._next is None else self._next
        if taken >= self._reserved:
            try:
                self._journal.producer_ids_reserved(taken + _BLOCK)
                self._reserved = taken + _BLOCK
            except OSError as error:
                _log.error("ids of producers from %d on cannot be reserved: %s", taken, error)
        self._next = taken + 1
        return taken
