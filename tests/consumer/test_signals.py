"""The signal that something has changed."""

from __future__ import annotations

import asyncio

from kcoord_wire.consumer.brokers import Signal


def test_it_wakes_every_task_that_waits() -> None:
    async def run() -> None:
        signal = Signal()
        waiting = [asyncio.create_task(signal.wait()) for _ in range(2)]
        await asyncio.sleep(0)
        signal.set()
        assert await asyncio.gather(*waiting) == [True, True]

    asyncio.run(run())


def test_a_wait_ends_at_its_deadline() -> None:
    async def run() -> None:
        signal = Signal()
        signal.set()  # not kept
        assert await signal.wait(asyncio.get_running_loop().time() + 0.01) is False
        signal.set()  # nothing waits any more

    asyncio.run(run())
