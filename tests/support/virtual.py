"""Tests that are coroutines, on the virtual loop: their times are exact, and no test depends on an idle machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, ParamSpec

from kcoord_wire.central.broker import CentralBroker, HostedBroker, RewriteBroker
from kcoord_wire.kernel.driver import monotonic_ms
from kcoord_wire.kernel.virtual.loop import VirtualWorld
from tests.support.waiting import eventually_async

P = ParamSpec("P")


async def leaving_no_task(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine; no task may be left behind."""
    before = asyncio.all_tasks()
    await work
    assert asyncio.all_tasks() <= before


def run_virtually(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on a virtual loop, as ``asyncio.run`` does on sockets."""
    VirtualWorld().run(leaving_no_task(work))


def on_virtual_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Make a test of a coroutine function, which runs on a virtual loop."""

    @wraps(test)
    def run(*args: P.args, **options: P.kwargs) -> None:
        run_virtually(test(*args, **options))

    return run


@asynccontextmanager
async def serving(broker: CentralBroker) -> AsyncIterator[CentralBroker]:
    """A broker on the loop that runs, from when it coordinates."""
    async with _serving(broker, lambda: broker._machine.epochs_at(monotonic_ms())):
        yield broker


@asynccontextmanager
async def serving_rewrite(broker: RewriteBroker) -> AsyncIterator[RewriteBroker]:
    """A broker of the rewrite on the loop that runs, from when it coordinates all groups."""

    def has_all() -> bool:
        own = broker._machine.shards.own.values()
        return bool(own) and all(shard.is_loaded for shard in own)

    async with _serving(broker, has_all):
        yield broker


@asynccontextmanager
async def _serving(broker: HostedBroker[Any], coordinates: Callable[[], object]) -> AsyncIterator[None]:
    ready, stopping = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(broker._serve(ready.set, stopping))
    await ready.wait()
    await eventually_async(coordinates)
    try:
        yield
    finally:
        stopping.set()
        await task
