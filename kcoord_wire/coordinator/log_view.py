"""When an internal topic shows what: its log is read for its first reader, and followed from then on.

Laws:

* Without a reader it costs nothing: the log is read, in another thread, when the topic is first read. That request and
  those after it wait until it has been.
* A record is shown when it is on disk, so a reader sees nothing that a crash takes back.
* After a compaction the log is read again, so that the view holds no more than the log has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.events import Effect, Request
from kcoord_wire.coordinator.log.segments import CorruptLogError
from kcoord_wire.coordinator.log.store import Store, Sync
from kcoord_wire.coordinator.topics.internal import InternalTopic
from kcoord_wire.coordinator.topics.topics import Topics

_READERS: Final = frozenset({m.FetchRequest, m.ListOffsetsRequest, m.OffsetForLeaderEpochRequest})

_log = logging.getLogger("kcoord_wire.coordinator")


class LogView:
    """Fills an internal topic from its log.

    :param store: the log
    :param topics: which have the internal topic
    :param internal: the topic
    :param execute: carries effects of the topics out
    :param submit: gives the topics a request that has waited
    :ivar settle: called when the log has been read, and requests that waited have been submitted
    """

    def __init__(
        self,
        store: Store,
        topics: Topics,
        internal: InternalTopic,
        execute: Callable[[Iterable[Effect]], None],
        submit: Callable[[Request], None],
    ) -> None:
        self._store = store
        self._topics = topics
        self._internal = internal
        self._execute = execute
        self._submit = submit
        self.settle: Callable[[], None] = lambda: None
        self._is_shown = False
        self._waiting: list[Request] = []
        self._reading: asyncio.Task[None] | None = None
        self._missed: list[Sync] = []  # those that have ended while the log is read

    def holds(self, request: Request) -> bool:
        """Return whether a request has to wait for the log; then it is submitted when that has been read."""
        if self._is_shown or type(request.message) not in _READERS or not self._internal.is_read(request.message):
            return False
        self._waiting.append(request)
        self._read()
        return True

    def synced(self, sync: Sync) -> None:
        """Show what has been written."""
        if self._reading is not None:
            self._missed.append(sync)
        if self._is_shown:
            self._execute(self._topics.show(self._internal, sync.batches))

    def compacted(self) -> None:
        """Read the log again, if it is shown: it has become smaller."""
        if self._is_shown:
            self._read()

    def _read(self) -> None:
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read_log())

    async def _read_log(self) -> None:
        try:
            logs, end = await asyncio.to_thread(lambda: self._internal.build(self._store.batches()))
        except (OSError, CorruptLogError) as error:
            _log.error("the log cannot be read for readers of %s: %s", self._internal.topic.name, error)
        else:
            effects = self._topics.replace(self._internal, logs)
            for sync in self._missed:
                later = [
                    batch._replace(records=[each for each in batch.records if each.offset >= end])
                    for batch in sync.batches
                ]
                effects += self._topics.show(self._internal, [batch for batch in later if batch.records])
            self._is_shown = True
            self._execute(effects)
        finally:
            self._reading = None
            self._missed.clear()
        waiting, self._waiting = self._waiting, []
        for request in waiting:  # if the log cannot be read, the topic seems empty
            self._submit(request)
        self.settle()

    def close(self) -> None:
        """Read no more."""
        if self._reading is not None:
            self._reading.cancel()
