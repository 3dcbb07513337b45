"""An asyncio event loop whose clock is virtual: it never waits, it moves its clock to the next timer.

Laws:

* The clock moves by `STEP_S` with each callback and, when none is ready, to the next timer. It never waits. Timers for
  the same time run in the order in which they were set.
* Tasks and futures hash to their number of creation, so that sets of them, `asyncio.all_tasks` among them, have the
  same order in every process.
* A callback belongs to the process in whose context it was planned: it waits while that process is paused,
  and never runs once it was killed. ``time.sleep`` stops its own process, and no other.
* Nothing waits for ever in silence: `DeadlockError` and `LimitError` name the tasks and where each of them waits.
* What the loop does not simulate raises `NotSimulatedError`; no call reaches the operating system's network.

Laws of hosts and the processes on them:

* What a process plans belongs to it, by the context in which it was planned (`CURRENT`): tasks that it starts,
  callbacks, connections.
* A paused process runs nothing; what was due meanwhile runs when it goes on, in the order in which it was due. Its
  connections stay open, and the other side's bytes arrive, as the kernel would have it.
* A killed process never runs again, no ``finally`` of it either until the run has ended; its connections are reset.

The clocks and the randomness of the standard library are replaced while a virtual world runs. Programs read clocks
besides the loop's: aiokafka takes ``time.monotonic`` for its heartbeats and ``time.time`` for its metadata. In the
thread of the loop these are replaced:

    time: time, time_ns, monotonic, monotonic_ns, perf_counter, perf_counter_ns, clock_gettime_ns, sleep
    random: the functions of the module, seeded; os.urandom, and with it uuid.uuid4, secrets and random.SystemRandom

Laws:

* Other threads get the real ones, and after the run, however it ends, all threads do.
* What the loop cannot see stays real: ``from time import monotonic`` executed before the run, ``datetime.now()``, C
  code (the randomness of TLS).
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

if TYPE_CHECKING:
    from kcoord_wire.kernel.virtual.loop.network import MemoryServer, MemoryTransport, VirtualNetwork
    from kcoord_wire.kernel.virtual.loop.virtual_world import VirtualWorld


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
        self.is_alive: bool = True
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
        self.process: Process = Process(self)
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


BOOTED_S: Final = 1_000.0
"""What `VirtualLoop.time` returns at the start, in seconds. Not 0, which programs take for "never"."""

KERNEL: Final = contextvars.Context()
"""The context of what no process does: packets under way, the end of a pause."""

STEP_S: Final = 1e-6
"""What a callback takes. Were it nothing, a program that wakes up exactly at its deadline, and goes on only after it,
would wake up for ever: aiokafka's automatic commit does."""

COLLECT_EVERY: Final = 100_000  # steps between garbage collections, which run finalizers: at the same step each time
STEPS_TO_END: Final = 1_000_000  # for the cancellation of all tasks, after a limit was reached
SECONDS_TO_END: Final = 3_600.0
_SHOWN_TASKS: Final = 40


class DeadlockError(RuntimeError):
    """No callback is ready and no timer is set, but tasks still wait."""


class LimitError(RuntimeError):
    """The run has taken more virtual time, or more steps, than it may."""


class NotSimulatedError(NotImplementedError):
    """The program needs something of the operating system that the virtual loop does not have."""


class _Task(asyncio.Task[Any]):
    def __init__(self, coro: Coroutine[Any, Any, Any], serial: int, **options: Any) -> None:
        self._serial = serial  # asyncio hashes a task before its constructor has returned
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._serial


class _Future(asyncio.Future[Any]):
    def __init__(self, serial: int, loop: asyncio.AbstractEventLoop) -> None:
        self._serial = serial
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._serial


def _refused(name: str) -> Any:
    def refuse(self: VirtualLoop, *_: Any, **__: Any) -> NoReturn:
        raise NotSimulatedError(
            f"{name} is not simulated: the virtual loop has create_connection, create_server and what is made of them"
        )

    return refuse


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop. `VirtualWorld` makes one, and replaces the clocks of the standard library while it runs.

    :param max_seconds: of virtual time
    :param max_steps: callbacks that may run
    :ivar steps: callbacks that have run
    :ivar network: carries what `create_connection` and `create_server` open
    """

    network: VirtualNetwork
    _check_closed: Callable[[], None]  # these two are of the base class, which typeshed does not know whole
    _thread_id: int | None

    def __init__(self, *, max_seconds: float, max_steps: int) -> None:
        super().__init__()
        self.steps: int = 0
        self._now = BOOTED_S
        self._ends_at = BOOTED_S + max_seconds
        self._max_steps = max_steps
        self._created = 0
        self._unfinished: dict[asyncio.Task[Any], Process | None] = {}  # in the order in which they were made
        self._swept_at = 1_000
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []  # a heap
        self._timers_set = 0
        self._stopping = False

    # ---- time

    def time(self) -> float:
        """Return virtual seconds since the machines were booted, which was `BOOTED_S` before the start."""
        return self._now

    def call_at(  # type: ignore[override]  # typeshed ties the arguments to the callback's
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        self._check_closed()
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timers_set += 1
        heapq.heappush(self._timers, (when, self._timers_set, timer))
        return timer

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers
        if not ready:
            self._pass_time()
        while timers and timers[0][0] <= self._now:
            ready.append(heapq.heappop(timers)[2])
        handle = ready.popleft()
        if handle.cancelled():
            return
        process = handle._context.get(CURRENT)  # type: ignore[attr-defined]  # get_context comes with Python 3.12
        if process is not None and process.is_stopped:
            process.parked.append(handle)
            return
        self.steps += 1
        if self.steps > self._max_steps:
            ready.appendleft(handle)
            raise self._stop_at_limit(f"more than {self._max_steps} steps")
        if self.steps % COLLECT_EVERY == 0:
            gc.collect()
        self._now += STEP_S
        handle._run()

    def _pass_time(self) -> None:
        """Move the clock to the next timer."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not timers:
            raise DeadlockError(f"nothing is left to do at {self._where()}")
        now = max(timers[0][0], self._now)
        if now > self._ends_at:
            raise self._stop_at_limit(f"more than {self._ends_at - BOOTED_S:g} virtual seconds")
        self._now = now

    def _stop_at_limit(self, what: str) -> LimitError:
        """Return the error, and allow what it takes to cancel the tasks."""
        self._max_steps = self.steps + STEPS_TO_END
        self._ends_at = self._now + SECONDS_TO_END
        return LimitError(f"{what} at {self._where()}")

    def _where(self) -> str:
        """Return the time, and the tasks that wait."""
        lines = []
        self.sweep()
        for task, process in self._unfinished.items():
            stack = task.get_stack(limit=1)
            place = f"{stack[-1].f_code.co_filename}:{stack[-1].f_lineno}" if stack else "nowhere"
            name = getattr(task.get_coro(), "__qualname__", "a coroutine")
            lines.append(f"  {task.get_name()}{f' on {process.host.name}' if process else ''}: {name} waits at {place}")
        if len(lines) > _SHOWN_TASKS:
            lines[_SHOWN_TASKS:] = [f"  and {len(lines) - _SHOWN_TASKS} more"]
        return "\n".join([f"{self._now - BOOTED_S:.3f} s, {self.steps} steps; tasks:", *lines])

    def make_ready(self, handles: Sequence[asyncio.Handle]) -> None:
        """Let callbacks run that were due while their process was paused."""
        self._ready.extend(handles)

    def block(self, seconds: float) -> None:
        """Do what ``time.sleep`` does: stop the process that calls, while the others go on.

        In a function of `run_in_executor`, whose thread would sleep, the process goes on too. If two processes block at
        once, the one that began first goes on when both are done.

        :raises asyncio.CancelledError: the process was killed meanwhile
        """
        until = self._now + seconds
        in_loop = asyncio._get_running_loop() is self
        process = CURRENT.get(None) if in_loop else None
        task = asyncio.current_task(self)
        if process is not None:
            process.pause(until)
        self.call_at(until, _nothing, context=KERNEL)
        if task is not None:
            asyncio._leave_task(self, task)
        asyncio._set_running_loop(self)
        try:
            while (self._now < until or (process is not None and process.is_stopped)) and not self._stopping:
                if process is not None and not process.is_alive:
                    raise asyncio.CancelledError("the process was killed")
                self._run_once()
        finally:
            asyncio._set_running_loop(self if in_loop else None)
            if task is not None:
                asyncio._enter_task(self, task)

    # ---- callbacks, tasks, functions

    def call_soon_threadsafe(  # type: ignore[override]  # typeshed ties the arguments to the callback's
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if self._thread_id is not None and threading.get_ident() != self._thread_id:
            raise NotSimulatedError("call_soon_threadsafe from another thread: threads have no virtual time")
        return self.call_soon(callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        self._created += 1
        return _Future(self._created, self)

    def create_task(self, coro: Any, *, name: Any = None, **options: Any) -> asyncio.Task[Any]:
        if self.get_task_factory() is not None:
            return super().create_task(coro, name=name, **options)
        self._check_closed()
        self._created += 1
        task = _Task(coro, self._created, loop=self, name=name or f"task-{self._created}", **options)
        self._unfinished[task] = (options.get("context") or contextvars.copy_context()).get(CURRENT)
        if len(self._unfinished) > self._swept_at:
            self.sweep()
        return task

    def sweep(self) -> None:
        """Forget the tasks that have ended. The others are kept, because a garbage collection would end a task that
        nothing refers to."""
        self._unfinished = {task: process for task, process in self._unfinished.items() if not task.done()}
        self._swept_at = 2 * len(self._unfinished) + 1_000

    def run_in_executor(  # type: ignore[override]  # typeshed ties the arguments to the callback's
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Call the function in the loop's thread, as the next callback; no thread is started.

        A function that waits for another thread, or for the loop, waits for ever.
        """
        self._check_closed()
        future = self.create_future()
        self.call_soon(self._call_function, future, func, args)
        return future

    def _call_function(self, future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if future.cancelled():
            return
        asyncio._set_running_loop(None)  # as in another thread
        try:
            result = func(*args)
        except Exception as error:
            asyncio._set_running_loop(self)
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(result)
        finally:
            asyncio._set_running_loop(self)

    # ---- connections

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        return self.network.addresses(host, port)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        return await self.network.connect(protocol_factory, host, port, **options)

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        return self.network.listen(protocol_factory, host, port, **options)

    add_reader: Any = _refused("add_reader")
    remove_reader: Any = _refused("add_reader")
    add_writer: Any = _refused("add_writer")
    remove_writer: Any = _refused("add_writer")
    add_signal_handler: Any = _refused("add_signal_handler")
    remove_signal_handler: Any = _refused("add_signal_handler")
    sock_recv: Any = _refused("sock_recv")
    sock_recv_into: Any = _refused("sock_recv")
    sock_recvfrom: Any = _refused("sock_recv")
    sock_recvfrom_into: Any = _refused("sock_recv")
    sock_sendall: Any = _refused("sock_sendall")
    sock_sendto: Any = _refused("sock_sendall")
    sock_sendfile: Any = _refused("sock_sendall")
    sendfile: Any = _refused("sock_sendall")
    sock_connect: Any = _refused("sock_connect")
    sock_accept: Any = _refused("sock_connect")
    connect_accepted_socket: Any = _refused("sock_connect")
    create_datagram_endpoint: Any = _refused("create_datagram_endpoint")
    create_unix_connection: Any = _refused("create_unix_connection")
    create_unix_server: Any = _refused("create_unix_connection")
    connect_read_pipe: Any = _refused("connect_read_pipe")
    connect_write_pipe: Any = _refused("connect_read_pipe")
    subprocess_exec: Any = _refused("subprocess_exec")
    subprocess_shell: Any = _refused("subprocess_exec")
    getnameinfo: Any = _refused("getnameinfo")


def _nothing() -> None:
    """Only the time of this callback matters."""


NS: Final = 1_000_000_000


@contextmanager
def virtual_stdlib(loop: VirtualLoop, wall: Callable[[], float], seed: int) -> Iterator[None]:
    """Replace the clocks and the randomness of the standard library, for the calling thread.

    :param wall: seconds since the Unix epoch
    """
    source = random.Random(f"{seed}/urandom")
    here = threading.get_ident()
    state = random.getstate()
    replaced: list[tuple[Any, str, Any]] = []

    def replace(module: Any, name: str, virtual: Callable[..., Any]) -> None:
        real = getattr(module, name)
        replaced.append((module, name, real))

        def call(*args: Any) -> Any:
            return (virtual if threading.get_ident() == here else real)(*args)

        setattr(module, name, call)

    try:
        replace(time, "time", wall)
        replace(time, "time_ns", lambda: int(wall() * NS))
        for name in ("monotonic", "perf_counter"):
            replace(time, name, loop.time)
            replace(time, f"{name}_ns", lambda: int(loop.time() * NS))
        replace(time, "clock_gettime_ns", lambda at: int((wall() if at == time.CLOCK_REALTIME else loop.time()) * NS))
        replace(time, "sleep", loop.block)
        replace(os, "urandom", source.randbytes)
        replace(random, "_urandom", source.randbytes)
        random.seed(f"{seed}/random")
        yield
    finally:
        for module, name, real in reversed(replaced):
            setattr(module, name, real)
        random.setstate(state)
