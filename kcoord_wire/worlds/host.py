"""The process of a coordinator on a virtual clock, which can be killed and whose disks fail: `HostIO` of a simulation.

Laws:

* A kill ends a boot: memory and requests are gone, and nothing planned during that boot happens any more. A write that
  it hits leaves a part of it.
* What uses the disk takes time: other events come between a write, a compaction or a load and its end.
* An exception of the coordinator is a `ViolationError`, unless it is an error that the disk was made to raise.
* The trace of a run that breaks a law in a step ends with what the step was: the request, a `Tick`, the end of a write.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, TypeVar

from kcoord_wire.codec.registry import decode_request
from kcoord_wire.coordinator.core.events import Effect, Event, IllegalMoveError
from kcoord_wire.coordinator.host import DurableLog, Host
from kcoord_wire.extras import MissingLibraryError
from kcoord_wire.kernel.machines import Tick
from kcoord_wire.kernel.virtual.clock import BREAKS, NEVER, VirtualClock
from kcoord_wire.kernel.virtual.disk import PowerCutError, VirtualDisk
from kcoord_wire.kernel.virtual.scripts import ViolationError

T = TypeVar("T")


class VirtualHost(ABC):
    """Runs a `Host`, or a `DurableLog` alone.

    :param sync_ms: least and most that a write or a compaction takes
    :param disks: that of the logs first
    :ivar boot: changes with every start and every kill
    :ivar now: see `HostIO`
    """

    def __init__(
        self, clock: VirtualClock, random: Random, *, sync_ms: tuple[int, int], disks: Sequence[VirtualDisk]
    ) -> None:
        self.boot = 1  # 0 stands for a connection that has reached none
        self.now: Callable[[], int] = lambda: clock.time_ms
        self._clock = clock
        self._random = random
        self._sync_ms = sync_ms
        self._disks = disks
        self._outage = (1_000, 100)  # down_ms and load_ms of the next kill
        self._hosted: Host | DurableLog | None = None  # None while the process is down
        self._logs: Sequence[DurableLog] = ()
        self._wakes_at = NEVER

    @property
    def is_up(self) -> bool:
        """Whether it takes connections."""
        return self._hosted is not None

    @property
    def is_dying(self) -> bool:
        """Whether a disk operation was cut off, with which the process ends."""
        return any(disk.power_left is not None and disk.power_left < 0 for disk in self._disks)

    # ---- what differs

    @abstractmethod
    def _start(self, load_ms: int) -> None:
        """Begin a boot: open what is on the disk, and `_serve` it."""

    @abstractmethod
    def _ended(self) -> None:
        """The boot has ended: let the disks lose what they may, and drop the clients."""

    @abstractmethod
    def _load_ms(self) -> int:
        """Return how long it takes to load what has moved."""

    @abstractmethod
    def note(self, what: str, log: str, detail: object = None) -> None:
        """See `HostIO`."""

    # ---- for the host

    def run(
        self, what: str, work: Callable[[], T], done: Callable[[T], None], failed: Callable[[Exception], None]
    ) -> None:
        """See `HostIO`."""
        if what == "load":  # what was read is late
            self._end(work, lambda found: self._plan(self._load_ms(), "ends load", partial(done, found)), failed)
        elif what == "read":  # whoever starts or repairs it has waited
            self._end(work, done, failed)
        else:
            self._plan(self._random.randint(*self._sync_ms), f"ends {what}", partial(self._end, work, done, failed))

    @staticmethod
    def _end(work: Callable[[], T], done: Callable[[T], None], failed: Callable[[Exception], None]) -> None:
        try:
            result = work()
        except PowerCutError:
            raise
        except OSError as error:
            failed(error)
        else:
            done(result)

    def after(self, ms: int, step: Callable[[], None]) -> None:
        """See `HostIO`."""
        self._plan(ms, "goes on", step)

    def _plan(self, ms: int, what: str, step: Callable[[], None]) -> None:
        self._clock.after(ms, self._planned, self.boot, what, step)

    def _planned(self, boot: int, what: str, step: Callable[[], None]) -> None:
        if boot == self.boot and self._hosted is not None:
            self._step(what, step)

    # ---- steps

    def _step(self, what: object, step: Callable[..., None], *arguments: Any) -> None:
        """Run a step of the process, and `settle`. The disk may lose power in it; any other failure is a violation.

        :param what: the step is, for the trace: a verb, an event or a request's frame
        """
        self._clock.steps += 1
        try:
            with suppress(PowerCutError):
                self._run(step, *arguments)
            if self.is_dying:
                self._die()
            else:
                self.settle()
        except ViolationError:
            detail = decode_request(what)[1] if isinstance(what, bytes) else what
            self.note(BREAKS, "", detail)
            raise

    @staticmethod
    def _run(step: Callable[..., None], *arguments: Any) -> None:
        try:
            step(*arguments)
        except (ViolationError, TimeoutError, MissingLibraryError, PowerCutError):
            raise
        except IllegalMoveError as error:
            raise ViolationError("transitions", str(error)) from error
        except Exception as error:
            raise ViolationError("never fails", f"the coordinator raised {error!r}") from error

    def settle(self) -> None:
        """Plan the next write and the next deadline that are wanted."""
        hosted = self._hosted
        if hosted is None:
            return
        hosted.commit()
        deadline = hosted.deadline
        if deadline is not None and deadline < self._wakes_at:
            self._wakes_at = max(deadline, self._clock.time_ms)
            self._clock.at(self._wakes_at, self._wake, self.boot, self._wakes_at)

    def _wake(self, boot: int, planned_for: int) -> None:
        if boot == self.boot and planned_for == self._wakes_at and self._hosted is not None:
            self._wakes_at = NEVER
            self._step(Tick(), self._hosted.tick)

    # ---- starting, and being killed

    def _serve(self, hosted: Host | DurableLog, logs: Sequence[DurableLog], load_ms: int) -> None:
        """Run what a boot has opened; its logs are read after `load_ms`."""
        self._hosted, self._logs = hosted, logs
        for log in logs:
            if load_ms:
                self._plan(load_ms, "loads", log.load_or_retry)
            else:
                self._step("loads", log.load_or_retry)

    def _die(self) -> None:
        down_ms, load_ms = self._outage
        disk = self._disks[0]
        for log in self._logs:
            if log.writing is not None:
                if disk.power_left is None:  # cut off the write that was under way
                    disk.power_left = self._random.randint(0, 2)
                with suppress(OSError):
                    log.writing.run()
        self._hosted, self._logs = None, ()
        self.boot += 1
        self._wakes_at = NEVER
        self._ended()
        self._clock.after(down_ms, self._start_again, self.boot, load_ms)

    def _start_again(self, boot: int, load_ms: int) -> None:
        if boot == self.boot:
            self.boot += 1
            self._start(load_ms)


class CheckedMachine:
    """A coordinator's machine with checks behind it; the runtime takes it for the machine.

    :param handled: called with the machine, an event, what came of it, and the time
    """

    def __init__(self, machine: Any, handled: Callable[[Any, Event, list[Effect], int], None]) -> None:
        self.machine = machine
        self._handle = machine.handle
        self._handled = handled

    def __getattr__(self, name: str) -> Any:
        return getattr(self.machine, name)

    def handle(self, event: Event, now: int) -> list[Effect]:
        """Let the machine handle an event, check what comes of it, and return the effects."""
        effects: list[Effect] = self._handle(event, now)
        self._handled(self.machine, event, effects, now)
        return effects
