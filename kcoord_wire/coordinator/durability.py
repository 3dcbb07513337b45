"""The coordinator's log at work: writes, compaction, and reading it again after the disk has failed.

Laws:

* One write runs at a time, in another thread; what is appended in the meantime goes into the next one. A log in memory
  is written at once.
* After a write has failed groups are refused until the log has been read again; attempts become rarer, never fewer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from kcoord_wire.coordinator.core.events import Load, Resign
from kcoord_wire.coordinator.log.segments import CorruptLogError
from kcoord_wire.coordinator.log.store import Sync
from kcoord_wire.coordinator.log_view import LogView
from kcoord_wire.coordinator.metrics import Metrics
from kcoord_wire.coordinator.runtime import Runtime
from kcoord_wire.coordinator.scheduler import Clock

RELOAD_MS: Final = (500, 30_000)  # first and longest pause before the log is read again after a failure
THREADS: Final = 2  # a write, and a compaction beside it

_log = logging.getLogger("kcoord_wire.coordinator")


class Durability:
    """Makes durable what a `Runtime` has appended.

    :param view: shows what is on disk
    :param partition_of: returns the partition of a group or transactional id
    :param loading: called with the partitions that are being read from now on, because their coordinator has changed
    :param in_memory: whether the log is in memory, and so needs no thread
    """

    def __init__(
        self,
        runtime: Runtime[Any],
        view: LogView,
        partition_of: Callable[[str], int],
        metrics: Metrics,
        clock: Clock,
        *,
        in_memory: bool,
        loading: Callable[[frozenset[int]], None] = lambda partitions: None,
    ) -> None:
        self._runtime = runtime
        self._view = view
        self._partition_of = partition_of
        self._on_loading = loading
        self._store = runtime.store
        self._metrics = metrics
        self._clock = clock
        self._in_memory = in_memory
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(THREADS, "kcoord-log")
        self._synced_to = 0  # number of the last append on disk, for the metrics
        self._syncing: asyncio.Future[None] | None = None
        self._compacting: asyncio.Future[None] | None = None
        self._reloading: asyncio.Task[None] | None = None
        self._to_load: frozenset[int] = frozenset()  # partitions that have another coordinator and are to be read
        self._loading: asyncio.Task[None] | None = None
        self._failures = 0  # writes that failed, each of which drops all groups
        self._is_stopping = False

    async def load(self) -> None:
        """Read the log and begin to serve groups. Errors as `Store.recover`."""
        records = await self._loop.run_in_executor(self._threads, self._store.recover)
        if (lost := self._store.recovered.truncated) > 0:
            _log.warning("the log ended in %d bytes of a write that a crash had torn; they are cut away", lost)
        self._synced_to = 0
        self._runtime.load(records, self._clock())
        self._set_loading(frozenset())

    def commit(self, then: Callable[[], None]) -> bool:
        """Begin to write what was appended, unless a write is under way; `then` is called when a write in the
        background, or the reading of the log after its failure, has ended.

        :return: whether something was written at once
        """
        if self._syncing is not None:
            return False
        sync = self._runtime.begin_sync()
        if sync is None:
            return False
        began = time.monotonic()
        if self._in_memory:
            sync.run()
            self._end_sync(sync, began)
        else:
            self._syncing = self._loop.run_in_executor(self._threads, sync.run)
            self._syncing.add_done_callback(partial(self._synced, sync, began, then))
        return self._in_memory

    def _synced(self, sync: Sync, began: float, then: Callable[[], None], done: asyncio.Future[None]) -> None:
        self._syncing = None
        error = done.exception()
        if error is None:
            self._end_sync(sync, began)
        else:
            _log.error("the log cannot be written: %s; groups are refused until it can", error)
            self._fail(then)
        then()

    def _fail(self, then: Callable[[], None]) -> None:
        """Refuse everything until the whole log has been read again. No write is under way."""
        self._failures += 1
        self._runtime.sync_failed(self._clock())
        if self._reloading is None and not self._is_stopping:
            self._reloading = self._loop.create_task(self._reload(then))

    def _end_sync(self, sync: Sync, began: float) -> None:
        self._metrics.count_sync(time.monotonic() - began, sync.last - self._synced_to)
        self._synced_to = sync.last
        self._runtime.end_sync(sync)
        self._view.synced(sync)
        if self._compacting is None and self._store.compaction_due():
            self._compacting = self._loop.run_in_executor(self._threads, self._store.compact)
            self._compacting.add_done_callback(self._compacted)

    def _compacted(self, done: asyncio.Future[None]) -> None:
        self._compacting = None
        if (error := done.exception()) is not None:
            _log.error("the log cannot be compacted: %s", error)
        else:
            self._view.compacted()

    async def _reload(self, then: Callable[[], None]) -> None:
        pause, longest = RELOAD_MS
        while not self._is_stopping:
            await asyncio.sleep(pause / 1000)
            pause = min(2 * pause, longest)
            try:
                await self.load()
            except (OSError, CorruptLogError) as error:
                _log.error("the log cannot be read: %s; groups are still refused", error)
            else:
                _log.warning("the log has been read again; groups are served")
                then()
                break
        self._reloading = None

    # ---- partitions that get another coordinator

    def reload(self, partitions: frozenset[int], then: Callable[[], None]) -> asyncio.Task[None]:
        """Drop what belongs to some partitions of the internal topic, whose coordinator changes, and read it from the
        log again. Parked requests are answered NOT_COORDINATOR.

        :param then: as for `commit`
        :return: ends when the partitions are served again, or the log has failed
        """
        self._runtime.submit(Resign(partitions), self._clock())
        self._set_loading(self._to_load | partitions)
        if self._loading is None:
            self._loading = self._loop.create_task(self._load_partitions(then))
        return self._loading

    def _set_loading(self, partitions: frozenset[int]) -> None:
        self._to_load = partitions
        self._on_loading(partitions)

    async def _load_partitions(self, then: Callable[[], None]) -> None:
        failures = self._failures
        try:
            while (partitions := self._to_load) and self._reloading is None:
                await self._write_all(then)
                belongs = partial(self._belongs, partitions)
                records, pending = await self._loop.run_in_executor(self._threads, self._store.read, belongs)
                if failures != self._failures:
                    return  # everything is being read again
                self._runtime.submit(Load(records, partitions, pending), self._clock())
                self._set_loading(self._to_load - partitions)
                then()
        except (OSError, CorruptLogError) as error:
            if failures == self._failures:
                _log.error("what has another coordinator cannot be read: %s; all is refused until it can", error)
                while self._syncing is not None:
                    await asyncio.wait([self._syncing])
                if failures == self._failures:
                    self._fail(then)
        finally:
            self._loading = None

    async def _write_all(self, then: Callable[[], None]) -> None:
        """Return when what has been appended so far is on disk, or cannot be written."""
        appended, failures = self._runtime.machine.appended, self._failures
        while self._runtime.durable < appended and failures == self._failures:
            self.commit(then)
            await (asyncio.sleep(0) if self._syncing is None else asyncio.wait([self._syncing]))

    def _belongs(self, partitions: frozenset[int], key: str) -> bool:
        return self._partition_of(key) in partitions

    # ---- the end

    async def finish(self, settle: Callable[[], None]) -> None:
        """Write what is answered, and wait for it. Requests that are parked are refused afterwards."""
        self._is_stopping = True
        self._view.close()
        if self._loading is not None:
            self._loading.cancel()
        if self._reloading is not None:
            self._reloading.cancel()
        settle()
        while (work := self._syncing or self._compacting) is not None:
            await asyncio.wait([work])
        self._runtime.sync_failed(self._clock())  # nothing is on its way to the disk: parked requests alone are refused
        settle()

    def close(self) -> None:
        """Close the log; `finish` comes before."""
        self._threads.shutdown()
        self._store.close()
