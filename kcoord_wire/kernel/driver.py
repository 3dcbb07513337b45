"""What runs the state machines of a program: one driver on an event loop, their clock, and their log.

Laws:

* A machine handles one event at a time, in the order in which they came: what its effects cause comes after them.
* `now` never goes back, and the clock goes on while the computer is suspended: a lease ends meanwhile.
* One timer runs at most, at the earliest deadline of any machine; it is set once for all events that the loop brings in
  one iteration.
* An error of a machine, or of carrying out its effects, goes to the owner, with what caused the event.
* A line of the log is the phrase of a `LogEvent`, then its facts as ``name=value``, printable whatever a peer has sent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from kcoord_wire.codec.fields import printable
from kcoord_wire.kernel.machines import LogEvent, Machine, Tick

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # the former is Linux only


def monotonic_ms() -> int:
    """Return the milliseconds of the clock that every machine of a host gets."""
    return time.clock_gettime_ns(_CLOCK) // 1_000_000


def log_event(log: logging.Logger, event: LogEvent) -> None:
    """Write what a machine has to say to the log.

    The record has the phrase and the facts as attributes `what` and `facts`, for other forms.
    """
    facts = "".join(f" {name}={printable(str(value))}" for name, value in event.facts.items())
    log.log(event.level, "%s%s", event.what, facts, extra={"what": event.what, "facts": dict(event.facts)})


class Driver:
    """Runs machines in the event loop that runs where it is made.

    :param execute: called with machine, effect and the cause of the event
    :param failed: called with the error and the cause of the event
    :param clock: ms
    :ivar machines: those that get events; assigned by the owner
    """

    def __init__(
        self,
        *machines: Machine,
        execute: Callable[[Machine, Any, Any], None],
        failed: Callable[[Exception, Any], None],
        clock: Callable[[], int] = monotonic_ms,
    ) -> None:
        self.machines = machines
        self._execute = execute
        self._failed = failed
        self._clock = clock
        self._now = 0
        self._events: deque[tuple[Machine, Any, Any]] = deque()
        self._is_handling = self._will_wind = False
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def deliver(self, event: Any, *, to: Machine | None = None, cause: Any = None) -> None:
        """Give an event to one machine, or to all, and carry out the effects.

        :param cause: what `execute` and `failed` are called with
        """
        self._events.extend((machine, event, cause) for machine in self.machines if to is None or machine is to)
        if self._is_handling:
            return
        self._is_handling = True
        try:
            while self._events:
                self._handle(*self._events.popleft())
        finally:
            self._is_handling = False
        if not self._will_wind:
            self._will_wind = True
            self._loop.call_soon(self.wind)

    def stop(self) -> None:
        """No machine sees a further event."""
        self.machines = ()
        self._events.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def wind(self) -> None:
        """Set the timer; needed only where a deadline comes without an event."""
        self._will_wind = False
        due = min((at for machine in self.machines if (at := machine.deadline) is not None), default=None)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if due is not None:
            self._timer = self._loop.call_later(max(0, due - self._clock()) / 1000, self._tick)

    def _handle(self, machine: Machine, event: Any, cause: Any) -> None:
        self._now = max(self._now, self._clock())
        try:
            for effect in machine.handle(event, self._now):
                self._execute(machine, effect, cause)
        except Exception as error:
            self._failed(error, cause)

    def _tick(self) -> None:
        self._timer = None
        now = self._clock()
        for machine in self.machines:
            if (deadline := machine.deadline) is not None and deadline <= now:
                self.deliver(Tick(), to=machine)
        if not self._will_wind:  # the loop may have called a little early
            self.wind()
