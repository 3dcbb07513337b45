"""The hosts of a virtual world, and the processes on them: started, paused, killed and started again.

Laws:

* What a process plans belongs to it, by the context in which it was planned (`CURRENT`): tasks that it starts,
  callbacks, connections.
* A paused process runs nothing; what was due meanwhile runs when it goes on, in the order in which it was due. Its
  connections stay open, and the other side's bytes arrive, as the kernel would have it.
* A killed process never runs again, no ``finally`` of it either until the run has ended; its connections are reset.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from kcoord_wire.kernel.virtual.loop.servers import MemoryServer
    from kcoord_wire.kernel.virtual.loop.transports import MemoryTransport
    from kcoord_wire.kernel.virtual.loop.world import VirtualWorld

MAIN: Final = "main"
"""The host on which the main coroutine runs."""

T = TypeVar("T")


class Process:
    """One life of the program on a host.

    :ivar host: where it runs
    :ivar is_alive: False once it was killed
    :ivar parked: callbacks that were due while it was paused, or after it was killed
    :ivar transports: its open connections, oldest first; the values are None
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.is_alive = True
        self.parked: list[asyncio.Handle] = []
        self.transports: dict[MemoryTransport, None] = {}
        self._paused_until: float | None = None

    @property
    def is_stopped(self) -> bool:
        """Whether it runs nothing now: it is paused, or was killed."""
        return self._paused_until is not None or not self.is_alive

    def pause(self, until: float) -> None:
        """Stop until a time of the loop; a pause that is already longer stays."""
        self._paused_until = max(until, self._paused_until or until)
        self.host.world.kernel_at(self._paused_until, self._resume)

    def _resume(self) -> None:
        if self._paused_until is not None and self._paused_until <= self.host.world.loop.time():
            self._paused_until = None
            if self.is_alive:
                self.revive()

    def revive(self) -> None:
        """Let run what was due."""
        self._paused_until = None
        self.is_alive = True
        parked, self.parked = self.parked, []
        self.host.world.loop.make_ready(parked)


CURRENT: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)
"""The process that runs; None in what no process does."""


class Host:
    """A machine with a name, an address, and one process.

    :ivar name: which the network's DNS knows
    :ivar address: an IPv4 address
    :ivar process: the present one
    :ivar listeners: by port
    """

    def __init__(self, world: VirtualWorld, name: str, address: str) -> None:
        self.world = world
        self.name = name
        self.address = address
        self.process = Process(self)
        self.listeners: dict[int, MemoryServer] = {}
        self.last_port = 0

    def start(self, work: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        """Run a coroutine as a task of this host's process. If it fails, the run fails (`VirtualWorld.run`)."""
        task = self.world.loop.create_task(work, name=name, context=self.new_context())
        task.add_done_callback(self.world.ended, context=self.world.kernel)
        return task

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function as this host's process: connections and tasks that it begins belong to it."""
        return self.new_context().run(function, *args)

    def new_context(self) -> contextvars.Context:
        """Return a new context of the present process."""
        context = contextvars.copy_context()
        context.run(CURRENT.set, self.process)
        return context

    def pause(self, seconds: float) -> None:
        """Stop the process for so long: a long garbage collection, a suspended machine."""
        self.world.record(self.name, "pauses", f"{seconds:g} s")
        self.process.pause(self.world.loop.time() + seconds)

    def kill(self) -> None:
        """End the process at once; `start` begins the next one. Connections that the other side still believes in are
        reset, unless a cut of the network swallows that.

        :raises ValueError: it is the host of the main coroutine, without which the run has no end
        """
        if self.name == MAIN:
            raise ValueError("the main coroutine cannot be killed")
        self.world.record(self.name, "is killed")
        process, self.process = self.process, Process(self)
        process.is_alive = False
        self.world.killed.append(process)
        self.listeners.clear()
        for transport in list(process.transports):
            transport.die()
