"""The recording as the event loop sees it: it takes frames at once, and a thread writes them a little later.

Laws:

* No call from the event loop waits for the disk. At most `HELD_FOR_DISK` bytes are held; frames beyond are not
  recorded, and counted.
* After a write has failed, nothing is recorded any more; the failure is logged as an error and reported once.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from kcoord_wire.recorder.recording import Batch, Direction, RecordingWriter, Side

if TYPE_CHECKING:
    from kcoord_wire.recorder.context import Counters

FLUSH_SECONDS: Final = 0.005
HELD_FOR_DISK: Final = 64 << 20

_log = logging.getLogger("kcoord_wire.capture")


class RecordingThread:
    """Hands frames from an event loop to a `RecordingWriter` in a thread.

    :param loop: the running event loop; every method is called from it
    :param counters: counts go here
    :param on_failure: called in the event loop when a write has failed
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        writer: RecordingWriter,
        counters: Counters,
        on_failure: Callable[[OSError], None],
    ) -> None:
        self._loop = loop
        self._writer = writer
        self._counters = counters
        self._on_failure = on_failure
        self._batches: queue.SimpleQueue[tuple[list[Batch], int] | None] = queue.SimpleQueue()
        self._taken = 0  # bytes given to the thread
        self._written = 0  # bytes written by it
        self._flushing = self._failed = self._slow = False
        self._thread = threading.Thread(target=self._run, name="kcoord-recording", daemon=True)
        self._thread.start()

    @property
    def unwritten(self) -> int:
        """Bytes given to the thread that it has not written yet."""
        return self._taken - self._written

    def opened(self, connection: int, name: str) -> None:
        """Record that a connection begins."""
        if not self._failed:
            self._writer.opened(connection, name, time.time_ns())
            self._flush_soon()

    def closed(self, connection: int, by: Side | None, *, reset: bool, time_ns: int) -> None:
        """Record that a connection ends.

        :param by: the side that ended it; None where that is not known
        :param reset: it was broken off
        :param time_ns: when its first side ended it
        """
        if not self._failed:
            self._writer.closed(connection, time_ns, by=by, reset=reset)
            self._flush_soon()

    def refused(self, connection: int, name: str, reason: str) -> None:
        """Record that a client's connection to a broker could not be made."""
        if not self._failed:
            self._writer.refused(connection, name, reason, time.time_ns())
            self._flush_soon()

    def frame(self, connection: int, direction: Direction, body: bytes, time_ns: int, size: int) -> None:
        """Record a frame.

        :param size: bytes it had on the wire; more than `body` where only its beginning is recorded
        """
        if self._failed or self.unwritten + self._writer.held > HELD_FOR_DISK:
            self._counters.not_recorded += 1
            if not self._failed and not self._slow:
                self._slow = True
                _log.error("the disk is too slow for the recording: frames are not recorded until it has caught up")
            return
        self._writer.frame(connection, direction, body, time_ns, size=size)
        self._counters.cut += len(body) < size
        if not self._flushing:
            self._flush_soon()

    async def close(self) -> None:
        """Write what is held, and close the file."""
        self._flush()
        self._batches.put(None)
        await asyncio.to_thread(self._thread.join)
        try:
            self._writer.close()
        except OSError as error:
            self._fail(error)
        await asyncio.sleep(0)  # a failure that the thread has posted is handled before this returns

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_later(FLUSH_SECONDS, self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if not self._failed:
            held = self._writer.held
            self._taken += held
            self._batches.put((self._writer.take(), held))
        self._counters.recorded = self._writer.records
        self._counters.recorded_bytes = self._writer.size
        if self._slow and self.unwritten < HELD_FOR_DISK // 2:
            self._slow = False
            missed = self._counters.not_recorded
            _log.warning("the disk has caught up: frames are recorded again; %d were not", missed)

    def _run(self) -> None:
        while (given := self._batches.get()) is not None:
            batches, size = given
            try:
                self._writer.write(batches)
            except OSError as error:
                with suppress(RuntimeError):  # the loop has ended
                    self._loop.call_soon_threadsafe(self._fail, error)
                break
            self._written += size

    def _fail(self, error: OSError) -> None:
        if not self._failed:
            self._failed = True
            _log.error("nothing is recorded any more: %s: %s", self._writer.folder, error.strerror or error)
            self._on_failure(error)
