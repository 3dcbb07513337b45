"""When the coordinator does what: connections that may go on, the next write to the log, the next deadline.

Laws:

* What the event loop receives in one iteration is settled once: its commits share a write.
* One timer runs at most, at the earliest deadline of any machine.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

Clock = Callable[[], int]
"""Milliseconds since the epoch; never decreases."""


def steady_clock() -> Clock:
    """Return a clock that runs on evenly when the machine's clock is set."""
    epoch = time.time() - time.monotonic()
    return lambda: int((epoch + time.monotonic()) * 1000)


class Pumped(Protocol):
    """A connection with requests that wait."""

    def pump(self) -> None:
        """Handle them, as far as possible."""


class Machines(Protocol):
    """The state machines behind the connections."""

    @property
    def deadline(self) -> int | None:
        """When `tick` is due, in ms; None if nothing is."""

    def tick(self) -> None:
        """Let the machines do what is due."""


class Log(Protocol):
    """A log that the machines write."""

    def commit(self, then: Callable[[], None], /) -> bool:
        """Begin to write what was appended, unless a write is under way. `then` is called when one that goes on in the
        background has ended.

        :return: whether something was written at once
        """


class Scheduler:
    """Runs what is to be done after each event from outside.

    :ivar ready: connections answered while another one's request was handled, with more requests waiting
    :ivar watchers: called when events from outside have been settled
    """

    def __init__(self, machines: Machines, logs: Sequence[Log], clock: Clock) -> None:
        self.ready: deque[Pumped] = deque()
        self.watchers: set[Callable[[], None]] = set()
        self._machines = machines
        self._logs = logs
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._settling = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0

    def settle_soon(self) -> None:
        """`settle` once for all that the loop receives in this iteration."""
        if not self._settling:
            self._settling = True
            self._loop.call_soon(self.settle)

    def settle(self) -> None:
        """After events from outside: let answered connections go on, start a write, set the timer."""
        self._settling = False
        ready = self.ready
        while True:
            while ready:
                ready.popleft().pump()
            wrote = False
            for log in self._logs:
                if log.commit(self.settle):
                    wrote = True
            if not ready and not wrote:
                break
        due = self._machines.deadline
        if due is not None and (self._timer is None or due < self._timer_at):
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = due
            self._timer = self._loop.call_later(max(0, due - self._clock()) / 1000, self._tick)
        for look in tuple(self.watchers):
            look()

    def wait_for_others(self, connection: Pumped) -> None:
        """Let other connections be served before this one, which has asked much at once."""
        self._loop.call_soon(self._serve, connection)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _serve(self, connection: Pumped) -> None:
        connection.pump()
        self.settle()

    def _tick(self) -> None:
        self._timer = None
        self._machines.tick()
        self.settle()
