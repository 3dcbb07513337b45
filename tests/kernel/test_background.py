"""A coroutine in a thread with a loop, of its own or shared: how it starts, ends and fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from kcoord_wire.kernel.background import Background, BackgroundError


async def _failing(ready: Callable[[], None], stopping: asyncio.Event) -> None:
    ready()
    raise KeyError("after the start")


async def _serving(ready: Callable[[], None], stopping: asyncio.Event) -> None:
    ready()
    await stopping.wait()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_while_it_runs_is_raised_to_those_who_wait() -> None:
    life = Background("thing", _failing, thread="thing")
    life.start()
    for _ in range(2):
        with pytest.raises(BackgroundError, match="the thing has failed: KeyError") as caught:
            life.wait(60)
        assert isinstance(caught.value.__cause__, KeyError)
    life.stop()


def test_the_end_that_was_asked_for_is_no_error() -> None:
    life = Background("thing", _serving, thread="thing")
    life.start()
    assert not life.wait(0)
    life.stop()
    assert life.wait(60)


def test_one_that_is_stopped_while_it_starts_is_an_error() -> None:
    async def serve(ready: Callable[[], None], stopping: asyncio.Event) -> None:
        return

    with pytest.raises(RuntimeError, match="the thing was stopped before it was ready"):
        Background("thing", serve, thread="thing").start()


def shared() -> Background:
    life = Background("thing", _serving, thread="shared thing", is_shared=True)
    life.start()
    return life


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "shared thing"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_those_that_share_a_thread_end_one_by_one() -> None:
    first, second = shared(), shared()
    (thread,) = threads()
    assert first.call(threading.current_thread) is second.call(threading.current_thread) is thread
    failing = Background("thing", _failing, thread="shared thing", is_shared=True)
    failing.start()
    with pytest.raises(BackgroundError):
        failing.wait(60)
    first.stop()
    for call in (first.call, first.run):
        with pytest.raises(RuntimeError, match="the thing does not run"):
            call(pytest.fail)
    assert second.call(threading.current_thread) is thread
    second.stop()
    assert threads() == []
    again = shared()
    assert threads() not in ([], [thread])
    again.stop()


def test_threads_of_their_own_and_of_other_names_are_not_shared() -> None:
    own = Background("thing", _serving, thread="shared thing")
    own.start()
    life = shared()
    assert len(threads()) == 2
    own.stop()
    assert life.call(lambda: 7) == 7
    life.stop()
    assert threads() == []
