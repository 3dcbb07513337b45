"""A coroutine in a thread with its own event loop, for blocking code to start and stop.

Laws:

* The caller needs no event loop, and a caller that has one does not block it.
* An error before it is ready is raised by `Background.start`. A later one ends the thread, with a traceback, and
  `Background.wait` raises `BackgroundError`: a program that only waits must not end as if it had been stopped.
* After `Background.stop` the thread has ended.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self, TypeVar

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
    """

    def __init__(
        self,
        what: str,
        serve: Callable[[Callable[[], None], asyncio.Event], Coroutine[Any, Any, None]],
        *,
        thread: str,
    ) -> None:
        self._what = what
        self._serve = serve
        self._name = thread
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._ended = threading.Event()
        self._failure: BaseException | None = None

    def start(self) -> None:
        """Start the thread, and wait until it is ready.

        :raises RuntimeError: it was started before; any error of `serve` itself
        """
        if self._thread is not None:
            raise RuntimeError(f"a {self._what} can be started once")
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name=self._name, daemon=True)
        self._thread.start()
        try:
            started.result()
        except BaseException:  # including an interrupt of the caller
            self.stop()
            raise

    def stop(self) -> None:
        """End it, and wait for that; a second call does nothing.

        :raises RuntimeError: it has not ended after `STOP_SECONDS`
        """
        thread, loop = self._thread, self._loop
        if thread is None:
            return
        if loop is not None:
            with suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(self._stopping.set)
        if not self._ended.wait(STOP_SECONDS):
            raise RuntimeError(f"the {self._what} has not stopped within {STOP_SECONDS:.0f} seconds")
        thread.join()

    @property
    def started(self) -> bool:
        """Whether `start` was called, whatever happened then."""
        return self._thread is not None

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
        if self._loop is None:
            raise RuntimeError(f"the {self._what} does not run")
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(what())
            except BaseException as error:
                done.set_exception(error)

        if threading.current_thread() is self._thread:
            run()
        else:
            self._loop.call_soon_threadsafe(run)
        return done.result(STOP_SECONDS)

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine in its event loop, and return the result; not from its own thread. Errors as `call`."""
        if self._loop is None or not self._loop.is_running():
            raise RuntimeError(f"the {self._what} does not run")
        if threading.current_thread() is self._thread:
            raise RuntimeError(f"the thread of the {self._what} would wait for itself")
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(STOP_SECONDS)

    def _run(self, started: Future[None]) -> None:
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(self._live(lambda: started.set_result(None)))
        except BaseException as error:
            if started.done():
                self._failure = error
                raise
            started.set_exception(error)
        finally:
            self._ended.set()

    async def _live(self, ready: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        await self._serve(ready, self._stopping)


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
