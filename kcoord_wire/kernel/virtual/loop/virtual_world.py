"""A virtual world: hosts, their network, one event loop, a script of faults, and the trace of what happened.

Laws:

* The seed, the program and the script determine the trace, on every machine. A program that iterates over sets of text
  determines it together with ``PYTHONHASHSEED``.
* A failure of a task that `Host.start` began ends the run, with its exception.
* When the main coroutine has ended, the trace ends: faults are over, paused and killed processes go on only to be
  cancelled.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import warnings
from collections.abc import Callable, Coroutine
from functools import partial
from random import Random
from typing import Any, Final, TypeVar

from kcoord_wire.kernel.virtual.clock import EPOCH_MS, TraceLine
from kcoord_wire.kernel.virtual.loop.loop import BOOTED_S, KERNEL, MAIN, Host, Process, VirtualLoop, virtual_stdlib
from kcoord_wire.kernel.virtual.loop.network import VirtualNetwork

END_S: Final = 600.0  # virtual; for programs that are cancelled, and close their connections first

T = TypeVar("T")


class VirtualWorld:
    """A world, which runs once.

    ::

        world = VirtualWorld(seed=7)
        world.host("app")
        world.at(60, world.host("app").pause, 30)
        world.run(main(world))
        print(*world.trace, sep="\\n")

    :param seed: decides latencies, losses, and whatever the programs draw
    :param latency_ms: least and most that a packet takes
    :param max_seconds: of virtual time; a week
    :param max_steps: callbacks that may run, each of some 10 us and more of real time
    :ivar random: for draws of what runs in the world; programs draw from the module `random`
    :ivar trace: what has happened, oldest first
    :ivar loop: the event loop
    :ivar network: where faults are set
    :ivar killed: processes that were killed
    """

    kernel = KERNEL

    def __init__(
        self,
        seed: int = 0,
        *,
        latency_ms: tuple[float, float] = (0.5, 1.5),
        max_seconds: float = 7 * 86_400,
        max_steps: int = 5_000_000,
    ) -> None:
        self.seed = seed
        self.random: Random = Random(f"{seed}/world")
        self.trace: list[TraceLine] = []
        self.killed: list[Process] = []
        self.loop: VirtualLoop = VirtualLoop(max_seconds=max_seconds, max_steps=max_steps)
        self.network: VirtualNetwork = VirtualNetwork(
            self.loop, seed, self.record, lambda: int(self.wall() * 1000), latency_ms
        )
        self.loop.network = self.network
        self._failed: asyncio.Future[Any] = self.loop.create_future()
        self._has_begun = self._has_ended = False

    # ---- what the script and the programs use

    @property
    def now(self) -> float:
        """Virtual seconds since the start."""
        return self.loop.time() - BOOTED_S

    def wall(self) -> float:
        """Return seconds since the Unix epoch: what ``time.time`` returns during the run."""
        return EPOCH_MS / 1000 + self.now

    def host(self, name: str) -> Host:
        """Return the host of a name; it is made if there is none. The main coroutine runs on ``main``."""
        return self.network.add_host(name, lambda name, address: Host(self, name, address))

    def at(self, seconds: float, action: Callable[..., object], *args: Any, **options: Any) -> None:
        """Call ``action(*args, **options)`` at a time, in seconds since the start: a line of the script of faults."""
        act = partial(action, *args, **options)
        self.loop.call_at(BOOTED_S + seconds, self._act, act, context=contextvars.Context())

    def record(self, who: str, what: str, detail: Any = None) -> None:
        """Add a line to the trace."""
        if not self._has_ended:
            self.trace.append(TraceLine(round(self.now * 1000), who, what, detail))

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the host ``main`` until it ends, and return its result.

        :raises DeadlockError: nothing is left to do, and it waits
        :raises LimitError: it takes more than the world's limits allow
        :raises RuntimeError: the world has run already, or another event loop runs in this thread
        :raises BaseException: what the coroutine, or a task of `Host.start`, has raised
        """
        if self._has_begun:
            main.close()
            raise RuntimeError("a world runs once")
        self._has_begun = True
        collects = gc.isenabled()
        gc.disable()  # finalizers would run after a number of allocations, which differs from process to process
        try:
            with (
                virtual_stdlib(self.loop, self.wall, self.seed),
                asyncio.Runner(loop_factory=lambda: self.loop) as runner,
            ):
                return runner.run(self._live(main))
        finally:
            if collects:
                gc.enable()

    # ---- the life of the run

    def _act(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:
            self._fail(error)

    async def _live(self, main: Coroutine[Any, Any, T]) -> T:
        task = self.loop.create_task(main, name=MAIN, context=self.host(MAIN).new_context())
        try:
            await asyncio.wait((task, self._failed), return_when=asyncio.FIRST_COMPLETED)
            if self._failed.done():
                self._failed.result()
            result: T = task.result()
            return result
        finally:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)  # killed programs had no time to close anything
                await self._end()

    async def _end(self) -> None:
        """Cancel the programs, also those that were killed, and close what they have left open."""
        self._has_ended = True
        self.loop.set_exception_handler(_ignore)  # programs are cancelled, and say so
        self.network.heal()
        for process in (*self.killed, *(host.process for host in self.network.hosts.values())):
            process.revive()
        if tasks := sorted(asyncio.all_tasks() - {asyncio.current_task()}, key=hash):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=END_S)
        for host in self.network.hosts.values():
            for transport in list(host.process.transports):
                transport.abort()
        await asyncio.sleep(1)
        tasks.clear()
        self.loop.sweep()
        gc.collect()

    def ended(self, task: asyncio.Task[Any]) -> None:
        """Called when a task of `Host.start` has ended."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        self.record(task.get_name(), "fails", repr(error))
        self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self._failed.done() and not self._has_ended:
            self._failed.set_exception(error)

    def kernel_at(self, time: float, action: Callable[..., object]) -> None:
        """Call `action` at a time of the loop, whatever process is paused or killed."""
        self.loop.call_at(time, action, context=KERNEL)


def _ignore(*_: object) -> None:
    """What a program reports while it is cancelled is not a part of the run."""
