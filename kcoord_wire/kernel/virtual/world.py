"""A simulated world: processes that scripts name, the servers and the network that they reach, and the end of it all.

A protocol derives its world from `World`. What all of them have is here: time, `leave`, `crash`, `pause`, `partition`,
`lose`, `heal` and `settle`; which process `member` starts is the protocol's.

Laws:

* The seed decides everything: the same calls in the same order give the same trace.
* Time passes only in `run`, `run_until` and `settle`; all else happens at the present moment. Times are virtual ms.
* A call that makes no sense (a crash of a process that does not run) does nothing, so that scripts can be reduced.
* After ``with`` nothing more happens.
* The trace of a run that breaks a law ends with the event that did so, or with what the law says of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, ClassVar, Generic, Self, TypeVar

from kcoord_wire.kernel.machines import Shutdown, Tick
from kcoord_wire.kernel.virtual.clock import BREAKS, TraceLine, VirtualClock
from kcoord_wire.kernel.virtual.network import Loss, Network, ProcessServer
from kcoord_wire.kernel.virtual.processes import Process
from kcoord_wire.kernel.virtual.scripts import Report, ViolationError

P = TypeVar("P", bound=Process)


class World(Generic[P]):
    """A simulated system.

    :cvar settle_ms: a system settles within so long after the last fault
    :cvar hold_ms: it counts as settled if it still is after this
    :cvar look_ms: between two looks at whether it has settled; 0 for one after each event
    :cvar settles: the law that is broken if it does not settle
    :cvar leaves: the event that ends a process in order
    :ivar seed: as given
    :ivar processes: by name; what starts again has a new process
    :ivar servers: by name: those that a script may crash and pause like processes; they start again by themselves
    :ivar network: between processes and servers; None if the protocol has none
    """

    settle_ms: ClassVar[int]
    hold_ms: ClassVar[int] = 0
    look_ms: ClassVar[int] = 0
    settles: ClassVar[str] = "settles"
    leaves: ClassVar[Any] = Shutdown()
    network: Network[Any] | None = None

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.processes: dict[str, P] = {}
        self.servers: dict[str, ProcessServer] = {}
        self._clock = VirtualClock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._clock.clear()

    # ---- time

    @property
    def now(self) -> int:
        """Virtual ms since the start."""
        return self._clock.now

    @property
    def steps(self) -> int:
        """Number of events delivered so far."""
        return self._clock.steps

    @property
    def trace(self) -> Sequence[TraceLine]:
        """What has happened, oldest first."""
        return self._clock.trace

    def run(self, ms: int) -> None:
        """Let time pass.

        :raises ValueError: `ms` is negative
        :raises ViolationError: a law was broken
        """
        with self._traced():
            self._clock.run(ms)

    def run_until(self, holds: Callable[[], bool], within_ms: int = 600_000) -> int:
        """Let time pass until `holds` returns True; return the virtual ms that took.

        :raises TimeoutError: `holds` has not returned True within `within_ms`
        :raises ViolationError: a law was broken
        """
        with self._traced():
            return self._clock.run_until(holds, within_ms)

    @contextmanager
    def _traced(self) -> Iterator[None]:
        """Let the trace end with the law that is broken, unless it ends with the event that a machine has taken in."""
        try:
            yield
        except ViolationError as violation:
            if not self.trace or self.trace[-1].what != BREAKS:
                self._clock.record("cluster", BREAKS, str(violation))
            raise

    def at(self, ms: int, action: Callable[[], object]) -> None:
        """Plan an action for so many ms after the start; one for the past happens as soon as time passes."""
        self._clock.after(max(ms - self.now, 0), _call, action)

    # ---- processes

    def _working(self, name: str) -> P | None:
        process = self.processes.get(name)
        return process if process is not None and process.is_working else None

    def _running(self, name: str) -> Process | None:
        """Return the process of this name, also a server's."""
        return self.servers[name].process if name in self.servers else self._working(name)

    def working(self) -> Iterator[P]:
        """Yield the processes that work."""
        return (process for process in self.processes.values() if process.is_working)

    def _begin(self, process: P, event: object = Tick(), detail: object = None) -> P:
        """Start a process, in place of the one of that name, with its first event."""
        self.processes[process.name] = process
        self._clock.record(process.name, "starts", detail)
        process.deliver(event)
        return process

    def leave(self, name: str) -> None:
        """Let a process end in order."""
        process = self._working(name)
        if process is not None:
            self._clock.record(name, "leaves")
            process.deliver(self.leaves)

    def crash(self, name: str, down_ms: int = 1_000) -> None:
        """Kill a process. The others only see its connections close.

        :param down_ms: after which a server starts again
        """
        process = self._running(name)
        if process is not None and name in self.servers:
            self._crash_server(name, process, down_ms)
        elif process is not None:
            self._kill(process)  # type: ignore[arg-type]  # what is no server is one of the processes

    def _kill(self, process: P) -> None:
        self._clock.record(process.name, "crashes")
        process.kill()
        if self.network is not None:
            self.network.hang_up_all(process)

    def pause(self, name: str, ms: int) -> None:
        """Pause a process, or a server's; what reaches it waits until it resumes."""
        process = self._running(name)
        if process is not None:
            process.pause(ms)

    # ---- servers

    def _start_server(self, name: str) -> None:
        """Start a server's process unless it runs."""
        server = self.servers[name]
        if server.process is None:
            server.boot += 1
            server.process = process = self._make_server(server)
            self._clock.record(process.name, "starts")
            process.deliver(Tick())

    def _make_server(self, server: ProcessServer) -> Process:
        """Return the process of a server's new boot."""
        raise NotImplementedError(type(self).__name__)

    def _crash_server(self, name: str, process: Process, down_ms: int) -> None:
        self._clock.record(process.name, "crashes", down_ms)
        process.kill()
        server = self.servers[name]
        server.process = None
        if self.network is not None:
            self.network.crashed(server)
        self._clock.after(down_ms, self._start_server, name)

    # ---- the network

    def partition(self, name: str, ms: int) -> None:
        """Cut a process off from its servers: the network carries nothing between them."""
        process = self._working(name)
        if process is not None:
            process.cut_off(ms)

    def lose(self, ms: int, drop: float = 0.0, reset: float = 0.0) -> None:
        """Make the network lossy for so long.

        :param drop: probability that a message vanishes
        :param reset: probability that a message vanishes and its connection is reset
        """
        self._clock.record("cluster", "loses", (ms, drop, reset))
        if self.network is not None:
            self.network.loss = Loss(self._clock.time_ms + ms, drop, reset)

    # ---- the end

    def heal(self) -> None:
        """End all faults and pauses. A server that is down comes back in time."""
        self._clock.record("cluster", "heals")
        if self.network is not None:
            self.network.heal()
        servers = [server.process for server in self.servers.values() if server.process is not None]
        processes: list[Process] = [*self.processes.values(), *servers]
        for process in processes:
            process.cut_until = 0
        self._end_faults()
        for process in processes:
            process.resume()

    def _end_faults(self) -> None:
        """End the faults that the protocol has besides those of the network."""

    def is_settled(self) -> bool:
        """Return whether the system is as it is to be when nothing fails."""
        raise NotImplementedError(type(self).__name__)

    def unsettled(self) -> object:
        """Return what is said of a system that does not settle."""
        return [process.name for process in self.working()]

    def course(self) -> object:
        """Return what does not change while a settled system is held."""
        return None

    def counts(self) -> Mapping[str, int]:
        """Return what the report of a run has, by name."""
        return {}

    def needs_rebalance(self) -> bool:
        """Return whether the system rests and may settle only by `force_rebalance`."""
        return False

    def force_rebalance(self) -> None:
        """Make every group rebalance."""

    def settle_within(self) -> int:
        """Return within which time the system settles after the last fault, in ms."""
        return self.settle_ms

    def settle(self) -> Report:
        """End all faults, and wait until the system has settled and stays so.

        :raises ViolationError: it does not settle
        """
        self.heal()
        with self._traced():
            settled_ms = self._await_settled()
            self._finish()
        return Report(self.steps, self.now, settled_ms, self.counts())

    def _hold(self) -> None:
        """Called when the system has settled, before it is held."""

    def _finish(self) -> None:
        """Check what must hold when the system has settled."""

    def _await_settled(self) -> int:
        start, within_ms = self.now, self.settle_within()
        deadline, has_forced = start + within_ms, False
        while True:
            if not self._settles_until(deadline):
                if has_forced or not self.needs_rebalance():
                    text = f"not {self.now - start} ms after the last fault: {self.unsettled()}"
                    raise ViolationError(self.settles, text)
                self.force_rebalance()
                deadline, has_forced = self.now + within_ms, True
                continue
            settled_ms, course = self.now - start, self.course()
            self._hold()
            self.run(self.hold_ms)
            if self.is_settled() and self.course() == course:
                return settled_ms
            if self.now > deadline:
                raise ViolationError(self.settles, f"it has settled and goes on, {self.now - start} ms after the fault")

    def _settles_until(self, deadline: int) -> bool:
        if not self.look_ms:
            try:
                self.run_until(self.is_settled, max(deadline - self.now, 0))
            except TimeoutError:
                return False
            return True
        while not self.is_settled():
            if self.now > deadline:
                return False
            self.run(self.look_ms)
        return True


def _call(action: Callable[[], object]) -> None:
    action()
