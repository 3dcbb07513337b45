"""A coroutine in a thread with an event loop, for blocking code to start and stop.

Laws:

* The caller needs no event loop, and a caller that has one does not block it.
* An error before it is ready is raised by `Background.start`. A later one ends it, with a traceback, and
  `Background.wait` raises `BackgroundError`: a program that only waits must not end as if it had been stopped.
* After `Background.stop` it has ended, and the thread with it; a thread that several share, with the last of them.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, ClassVar, Final, Self, TypeVar

from kcoord_wire.extras import MissingLibraryError, require

STOP_SECONDS: Final = 30.0

T = TypeVar("T")


class BackgroundError(RuntimeError):
    """What ran in the background has ended by an error, which is the cause of this one."""


class Background:
    """Runs ``serve(ready, stopping)`` once: it calls `ready` when it serves, and ends in order when `stopping` is set.

    All methods may be called from any thread.

    :param what: the name of what runs, for error messages
    :param serve: the coroutine function
    :param thread: the name of the thread
    :param is_shared: those that share a name run in one thread and loop, while any of them runs
    """

    def __init__(
        self,
        what: str,
        serve: Callable[[Callable[[], None], asyncio.Event], Coroutine[Any, Any, None]],
        *,
        thread: str,
        is_shared: bool = False,
    ) -> None:
        self._what = what
        self._serve = serve
        self._name = thread
        self._is_shared = is_shared
        self._at: _LoopThread | None = None
        self._stopping = asyncio.Event()
        self._ended = threading.Event()
        self._failure: BaseException | None = None

    def start(self) -> None:
        """Start it, and wait until it is ready.

        :raises RuntimeError: it was started before; any error of `serve` itself
        """
        if self._at is not None:
            raise RuntimeError(f"a {self._what} can be started once")
        started: Future[None] = Future()
        self._at = _LoopThread.enter(self._name, self._is_shared)
        self._at.run(self._live(self._at, started))
        try:
            started.result()
        except BaseException:  # including an interrupt of the caller
            self.stop()
            raise

    def stop(self) -> None:
        """End it, and wait for that; a second call does nothing.

        :raises RuntimeError: it has not ended after `STOP_SECONDS`
        """
        at = self._at
        if at is None:
            return
        with suppress(RuntimeError):  # it has ended
            at.loop.call_soon_threadsafe(self._stopping.set)
        if not self._ended.wait(STOP_SECONDS):
            raise RuntimeError(f"the {self._what} has not stopped within {STOP_SECONDS:.0f} seconds")
        if at.is_left:
            at.thread.join()

    @property
    def started(self) -> bool:
        """Whether `start` was called, whatever happened then."""
        return self._at is not None

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it has ended, or for `seconds`; return whether it has ended.

        :raises BackgroundError: it has ended by an error
        """
        # Not Thread.join: if a signal's exception interrupts that, CPython 3.11 takes the thread for ended.
        has_ended = self._ended.wait(seconds)
        if self._failure is not None:
            raise BackgroundError(f"the {self._what} has failed: {self._failure!r}") from self._failure
        return has_ended

    def call(self, what: Callable[[], T]) -> T:
        """Call a function in its thread, and return the result.

        :raises RuntimeError: it does not run; any error of the function
        """
        if self._at is None:
            raise RuntimeError(f"the {self._what} does not run")
        done: Future[T] = Future()

        def run() -> None:
            try:
                if self._ended.is_set():
                    raise RuntimeError(f"the {self._what} does not run")
                done.set_result(what())
            except BaseException as error:
                done.set_exception(error)

        if threading.current_thread() is self._at.thread:
            run()
        else:
            self._at.loop.call_soon_threadsafe(run)
        return done.result(STOP_SECONDS)

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine in its event loop, and return the result; not from its own thread. Errors as `call`."""
        if self._at is None or self._ended.is_set():
            raise RuntimeError(f"the {self._what} does not run")
        if threading.current_thread() is self._at.thread:
            raise RuntimeError(f"the thread of the {self._what} would wait for itself")
        return asyncio.run_coroutine_threadsafe(work(), self._at.loop).result(STOP_SECONDS)

    async def _live(self, at: _LoopThread, started: Future[None]) -> None:
        try:
            await self._serve(lambda: started.set_result(None), self._stopping)
            if not started.done():
                raise RuntimeError(f"the {self._what} was stopped before it was ready")
        except BaseException as error:
            if started.done():
                self._failure = error
                threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, at.thread)))
            else:
                started.set_exception(error)
        finally:
            at.leave()
            self._ended.set()


class _LoopThread:
    """A thread that runs an event loop while it is used.

    :ivar loop: its loop
    :ivar thread: the thread
    :ivar is_left: whether nothing uses it any more, and it ends
    """

    _lock: ClassVar = threading.Lock()
    _shared: ClassVar[dict[str, _LoopThread]] = {}

    loop: asyncio.AbstractEventLoop

    def __init__(self, name: str) -> None:
        self.is_left = False
        self._name = name
        self._users = 0
        self._lives: set[Future[None]] = set()
        self._end = asyncio.Event()
        begun: Future[None] = Future()
        self.thread = threading.Thread(target=self._run, args=(begun,), name=name, daemon=True)
        self.thread.start()
        begun.result()

    @classmethod
    def enter(cls, name: str, is_shared: bool) -> _LoopThread:
        """Return a thread of this name, a new one unless one is shared, to be left once."""
        with cls._lock:
            found = cls._shared.get(name) if is_shared else None
            if found is None or not found.thread.is_alive():  # threads are lost in a forked process
                found = cls(name)
                if is_shared:
                    cls._shared[name] = found
            found._users += 1
            return found

    def run(self, life: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine, which leaves the thread at its end."""
        running = asyncio.run_coroutine_threadsafe(life, self.loop)
        self._lives.add(running)  # a loop refers to its tasks weakly
        running.add_done_callback(self._lives.discard)

    def leave(self) -> None:
        """Use it no more; it ends with the last that does. Called in the thread."""
        with self._lock:
            self._users -= 1
            self.is_left = not self._users
            if self.is_left:
                if self._shared.get(self._name) is self:
                    del self._shared[self._name]
                self._end.set()

    def _run(self, begun: Future[None]) -> None:
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(self._stay(begun))
        except BaseException as error:
            if begun.done():
                raise
            begun.set_exception(error)

    async def _stay(self, begun: Future[None]) -> None:
        self.loop = asyncio.get_running_loop()
        begun.set_result(None)
        await self._end.wait()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        uvloop = require("uvloop", "serve", "a faster event loop")
    except MissingLibraryError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


class Service(ABC):
    """What runs in the background from `start` to `stop`, or for a ``with`` or ``async with`` block."""

    @abstractmethod
    def start(self) -> Self:
        """Start it, and return it."""

    @abstractmethod
    def stop(self) -> None:
        """End it; a second call does nothing."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)
