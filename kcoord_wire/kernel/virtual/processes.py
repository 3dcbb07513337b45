"""The processes of a simulated system: state machines that are run, paused, cut off from the network and killed.

A process that is named in a script and does not run is left alone, so that scripts can be reduced.

Laws:

* An event reaches a machine only while its process is alive and not paused; a paused process gets it when it resumes.
* A machine gets its `Tick` when its deadline has come, and no `Tick` before.
* The trace of a run that breaks a law while a machine takes in an event ends with that event.
* Each process has a random source of its own, so that what one draws leaves the draws of the others as they were.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Final

from kcoord_wire.kernel.machines import Machine, Tick
from kcoord_wire.kernel.virtual.clock import BREAKS, NEVER, VirtualClock
from kcoord_wire.kernel.virtual.scripts import ViolationError

if TYPE_CHECKING:
    from kcoord_wire.kernel.virtual.network import VirtualConnection

_TICK: Final = Tick()


class Process:
    """A process that runs one state machine. A protocol derives its own from this and carries out the effects.

    :ivar name: as in the script
    :ivar host: its address; a process that is restarted keeps it
    :ivar machine: what it runs
    :ivar random: its random source
    :ivar is_alive: False once it has crashed
    :ivar connection: to the server, if there is one
    :ivar cut_until: until when the network carries nothing from or to it, in ms since the Unix epoch; 0 for not cut off
    :ivar paused_until: until when it takes in no event (a long garbage collection, a stopped virtual machine), in ms
        since the Unix epoch; 0 for not paused
    """

    __slots__ = (
        "_clock",
        "_inbox",
        "_wakes_at",
        "connection",
        "cut_until",
        "host",
        "is_alive",
        "machine",
        "name",
        "paused_until",
        "random",
    )

    def __init__(self, clock: VirtualClock, name: str, host: str, machine: Machine, random: Random) -> None:
        self.name: str = name
        self.host: str = host
        self.machine: Machine = machine
        self.random: Random = random
        self.is_alive: bool = True
        self.connection: VirtualConnection | None = None
        self.cut_until: int = 0
        self.paused_until: int = 0
        self._clock = clock
        self._inbox: list[Any] = []
        self._wakes_at = NEVER

    def carry_out(self, effect: Any) -> None:
        """Do what the machine wants."""
        raise NotImplementedError(type(self).__name__)

    def handled(self) -> None:
        """Called when the machine has handled an event and its effects were carried out."""

    def changed(self) -> None:
        """Called when the process was paused, resumed or killed."""

    @property
    def is_working(self) -> bool:
        """Whether it is alive, and its machine has not ended."""
        return self.is_alive

    @property
    def is_paused(self) -> bool:
        """Whether it takes in no events at the moment."""
        return self.paused_until > 0

    def deliver(self, event: Any) -> None:
        """Give the machine an event, now or when the process resumes; nothing happens once it is killed."""
        if not self.is_alive:
            return
        if self.paused_until:
            self._inbox.append(event)
            return
        self._clock.steps += 1
        machine = self.machine
        try:
            for effect in machine.handle(event, self._clock.time_ms):
                self.carry_out(effect)
            self.handled()
        except ViolationError:
            self._clock.record(self.name, BREAKS, event)
            raise
        deadline = machine.deadline
        if deadline is not None and deadline < self._wakes_at:
            self._wake_at(deadline)

    def _wake_at(self, deadline: int) -> None:
        self._wakes_at = deadline
        self._clock.at(deadline, self._wake, deadline)

    def _wake(self, planned_for: int) -> None:
        if planned_for != self._wakes_at or not self.is_alive:
            return  # an earlier deadline was planned after this one
        self._wakes_at = NEVER
        deadline = self.machine.deadline
        if deadline is None:
            return
        if deadline <= self._clock.time_ms:
            self.deliver(_TICK)
        else:
            self._wake_at(deadline)

    def pause(self, ms: int) -> None:
        """Take in no event for so long; a pause that is already longer stays."""
        if self.is_alive:
            self._clock.record(self.name, "pauses", ms)
            self.paused_until = max(self.paused_until, self._clock.time_ms + ms)
            self.changed()
            self._clock.at(self.paused_until, self._resume)

    def resume(self) -> None:
        """End a pause now."""
        if self.paused_until:
            self.paused_until = self._clock.time_ms
            self._resume()

    def _resume(self) -> None:
        if self.paused_until and self.paused_until <= self._clock.time_ms:
            self.paused_until = 0
            self.changed()
            self._clock.record(self.name, "resumes")
            waiting, self._inbox = self._inbox, []
            for event in waiting:
                self.deliver(event)
            self.deliver(_TICK)

    def cut_off(self, ms: int) -> None:
        """Let the network carry nothing from or to it for so long; a cut that is already longer stays."""
        self._clock.record(self.name, "is cut off", ms)
        self.cut_until = max(self.cut_until, self._clock.time_ms + ms)

    def kill(self) -> None:
        """End the process. Its machine gets no further event."""
        self.is_alive = False
        self.changed()
