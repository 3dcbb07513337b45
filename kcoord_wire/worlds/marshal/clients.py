"""The processes of a virtual cluster that use the coordination log: their clocks, their reader, what they append.

Laws:

* The machine's monotonic clock runs a little too fast or too slowly; its wall clock is off, and is set at times.
* What a process has sent lands, also if it is killed meanwhile; it reads nothing more then.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random
from typing import Any, Final

import kcoord_wire as kw
from kcoord_wire.kernel.machines import Ended, LogEvent, Machine, Tick
from kcoord_wire.kernel.virtual.clock import EPOCH_MS, VirtualClock
from kcoord_wire.kernel.virtual.processes import Process
from kcoord_wire.marshal import events
from kcoord_wire.marshal.state import Entry
from kcoord_wire.worlds.marshal.log import Reader, VirtualLog

_MILLION: Final = 1_000_000


class LocalClock:
    """The clocks of a process.

    :param origin: of its monotonic clock
    :param ppm: by so many millionths its monotonic clock is too fast
    :ivar ahead_ms: how far its wall clock is ahead of the true time
    """

    def __init__(self, origin: int, ppm: int, ahead_ms: int) -> None:
        self.ahead_ms = ahead_ms
        self._origin = origin
        self._speed = _MILLION + ppm

    def monotonic(self, time_ms: int) -> int:
        """Return what its monotonic clock shows at a time."""
        return self._origin + (time_ms - EPOCH_MS) * self._speed // _MILLION

    def time_of(self, monotonic: int) -> int:
        """Return the first time at which its monotonic clock shows that, or more."""
        return EPOCH_MS - (self._origin - monotonic) * _MILLION // self._speed

    def wall(self, time_ms: int) -> events.WallClock:
        """Return what its machine has to know of its wall clock."""
        return events.WallClock(time_ms + self.ahead_ms - self.monotonic(time_ms))


class LocalMachine:
    """A machine that sees the monotonic clock of its process."""

    def __init__(self, machine: Machine, clock: LocalClock) -> None:
        self.machine = machine
        self._clock = clock

    @property
    def deadline(self) -> int | None:
        """When it wants the next `Tick`, by the true time."""
        deadline = self.machine.deadline
        return None if deadline is None else self._clock.time_of(deadline)

    def handle(self, event: Any, now: int) -> Sequence[Any]:
        """Take in an event at a true time."""
        return self.machine.handle(event, self._clock.monotonic(now))


class LogProcess(Process):
    """A process whose machine reads the log and appends to it.

    :param reads: coordination partitions
    :ivar local: its clocks
    :ivar reader: of the log
    """

    __slots__ = ("_has_ended", "_log", "local", "reader")

    def __init__(
        self,
        clock: VirtualClock,
        log: VirtualLog,
        name: str,
        machine: Machine,
        local: LocalClock,
        random: Random,
        lag_ms: tuple[int, int],
        reads: Collection[int],
    ) -> None:
        super().__init__(clock, name, f"host-{name}", LocalMachine(machine, local), random)
        self.local = local
        self._log = log
        self._has_ended = False
        self.reader = Reader(clock, log, random, sorted(reads), lag_ms, self._see)
        self.deliver(local.wall(clock.time_ms))
        self.deliver(Tick())

    @property
    def is_working(self) -> bool:
        """Whether it is alive and has not ended."""
        return self.is_alive and not self._has_ended

    def _see(self, entries: Sequence[Entry]) -> None:
        self.deliver(events.Entries(entries))

    def set_clock(self, ahead_ms: int) -> None:
        """Set its wall clock."""
        self.local.ahead_ms = ahead_ms
        self.deliver(self.local.wall(self._clock.time_ms))

    def carry_out(self, effect: Any) -> None:
        """Do what the machine wants."""
        match effect:
            case events.Append():
                value = kw.encode(effect.message, 0)
                wall_ms = self._clock.time_ms + self.local.ahead_ms
                self._log.append(self.name, effect.partition, value, wall_ms, effect.request, self.deliver)
            case events.ReadToEnd():
                self._read_to_end(effect)
            case LogEvent():
                self._clock.record(self.name, effect.what, dict(effect.facts))
            case Ended():
                self.end()

    def _read_to_end(self, effect: events.ReadToEnd) -> None:
        def reached(end: int) -> None:
            self.deliver(events.CaughtUp(effect.request, end))

        self.reader.read_to_end(effect.partition, reached)

    def handled(self) -> None:
        """Nothing is checked here: the laws look at entries, tenures and records."""

    def changed(self) -> None:
        """It was paused, resumed or killed."""
        if not self.is_alive:
            self.end()

    def end(self) -> None:
        """It has ended, or was killed: it reads nothing more."""
        self._has_ended = True
        self._clock.record(self.name, "ends")
        self.reader.close()
