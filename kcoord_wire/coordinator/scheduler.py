"""When the coordinator does what: connections that may go on, the next write to a log, the next deadline.

Laws:

* What the event loop receives in one iteration is settled once: its commits share a write.
* One timer runs at most, at the earliest deadline of any machine.
* What uses the disk runs in threads of its own; a log in memory is written at once, and read in threads of the loop.
  An error that is not the disk's is logged with its traceback, and handled as one of the disk.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from kcoord_wire.coordinator.host import HostIO
from kcoord_wire.log.tail import CorruptLogError

THREADS: Final = 6  # of both logs: a write, a compaction beside it, and a reader

_NOTES: Final = {
    "is cut": (logging.WARNING, "the log ended in %(why)s bytes of a write that a crash had torn; they are cut away"),
    "cannot write": (logging.ERROR, "the log cannot be written: %(why)s; groups are refused until it can"),
    "cannot read": (logging.ERROR, "the log cannot be read: %(why)s; groups are still refused"),
    "cannot load": (logging.ERROR, "what has another coordinator cannot be read: %(why)s; all is refused until it can"),
    "cannot compact": (logging.ERROR, "the log cannot be compacted: %(why)s"),
    "cannot show": (logging.ERROR, "the log cannot be read for readers of %(log)s: %(why)s"),
    "serves again": (logging.WARNING, "the log has been read again; groups are served"),
}

_OF_THE_DISK: Final = (OSError, CorruptLogError)

T = TypeVar("T")

_log = logging.getLogger("kcoord_wire.coordinator")
_log.addHandler(logging.NullHandler())  # silent unless logging is configured


def steady_clock() -> Callable[[], int]:
    """Return a clock in ms since the epoch that runs on evenly when the machine's clock is set."""
    epoch = time.time() - time.monotonic()
    return lambda: int((epoch + time.monotonic()) * 1000)


class Pumped(Protocol):
    """A connection with requests that wait."""

    def pump(self) -> None:
        """Handle them, as far as possible."""


class Hosted(Protocol):
    """What is behind the connections: see `Host`."""

    @property
    def deadline(self) -> int | None: ...

    def tick(self) -> None: ...

    def commit(self) -> bool: ...


class Scheduler(HostIO):
    """Runs what is to be done after each event from outside, and what the host gives to the disk.

    :param in_memory: whether the logs are in memory, and so are written at once
    :ivar now: see `HostIO`
    :ivar host: what is run; set once
    :ivar ready: connections answered while another one's request was handled, with more requests waiting
    :ivar watchers: called when events from outside have been settled
    """

    host: Hosted

    def __init__(self, *, in_memory: bool) -> None:
        self.now = steady_clock()
        self.ready: deque[Pumped] = deque()
        self.watchers: set[Callable[[], None]] = set()
        self._in_memory = in_memory
        self._loop = asyncio.get_running_loop()
        self._threads = None if in_memory else ThreadPoolExecutor(THREADS, "kcoord-log")  # None: those of the loop
        self._writing: set[asyncio.Future[Any]] = set()  # writes and compactions
        self._settling = self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0

    # ---- after events

    def settle_soon(self) -> None:
        """`settle` once for all that the loop receives in this iteration."""
        if not self._settling:
            self._settling = True
            self._loop.call_soon(self.settle)

    def settle(self) -> None:
        """After events from outside: let answered connections go on, start a write, set the timer."""
        self._settling = False
        ready, host = self.ready, self.host
        while True:
            while ready:
                ready.popleft().pump()
            if not host.commit() and not ready:
                break
        due = host.deadline
        if due is not None and (self._timer is None or due < self._timer_at):
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = due
            self._timer = self._loop.call_later(max(0, due - self.now()) / 1000, self._do, self._tick)
        for look in tuple(self.watchers):
            look()

    def wait_for_others(self, connection: Pumped) -> None:
        """Let other connections be served before this one, which has asked much at once."""
        self._loop.call_soon(self._do, connection.pump)

    def _do(self, step: Callable[[], None]) -> None:
        if not self._is_closed:
            step()
            self.settle()

    def _tick(self) -> None:
        self._timer = None
        self.host.tick()

    # ---- for the host

    def run(
        self, what: str, work: Callable[[], T], done: Callable[[T], None], failed: Callable[[Exception], None]
    ) -> None:
        if what == "write" and self._in_memory:
            done(work())
            return
        if what == "read":
            done = partial(_done_or_failed, done, failed)
        running = self._loop.run_in_executor(self._threads, work)
        if what in ("write", "compact"):
            self._writing.add(running)
        running.add_done_callback(partial(self._ended, done, failed))

    def _ended(self, done: Callable[[T], None], failed: Callable[[Exception], None], ended: asyncio.Future[T]) -> None:
        self._writing.discard(ended)
        if not ended.cancelled():
            error = ended.exception()
            self._do(partial(done, ended.result()) if error is None else partial(failed, error))  # type: ignore[arg-type]

    def after(self, ms: int, step: Callable[[], None]) -> None:
        self._loop.call_later(ms / 1000, self._do, step)

    def note(self, what: str, log: str, detail: object = None) -> None:
        if what in _NOTES:
            level, text = _NOTES[what]
            fault = detail if isinstance(detail, Exception) and not isinstance(detail, _OF_THE_DISK) else None
            _log.log(level, text, {"log": log, "why": repr(fault) if fault else detail}, exc_info=fault)

    async def written(self) -> None:
        """Return when nothing is being written any more."""
        while self._writing:
            await asyncio.wait(self._writing)

    def close(self) -> None:
        """Stop the timer, and run nothing more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._threads is not None:
            self._threads.shutdown()


def _done_or_failed(done: Callable[[T], None], failed: Callable[[Exception], None], result: T) -> None:
    """Pass a fault of the program in the records of a log to the function that handles one in reading them.

    Not in the host, since a virtual world ends with it: tried again there, a broken law would be retried for ever.
    """
    try:
        done(result)
    except Exception as error:
        failed(error)
