"""A coroutine in a thread of its own: how it starts, ends and fails."""

from __future__ import annotations

import asyncio
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
