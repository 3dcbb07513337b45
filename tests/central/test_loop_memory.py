"""The in-memory registry on a real event loop."""

from __future__ import annotations

import asyncio
from typing import Any

from kcoord_wire.central.broker import LoopMemory
from kcoord_wire.zookeeper.model import Ask, Create, Node, Outcome, Read, Replied, SessionChanged, SessionState


def test_it_connects_answers_in_order_and_ends() -> None:
    events: list[Any] = []

    async def run() -> None:
        registry = LoopMemory(events.append, timeout_ms=600)
        await registry.start()
        while not events:
            await asyncio.sleep(0.01)
        registry.ask(Ask(1, Create("/a", b"x")))
        registry.ask(Ask(2, Read("/a")))
        assert len(events) == 1, "never within the call"
        while len(events) < 3:
            await asyncio.sleep(0.01)
        await asyncio.sleep(1.0)  # more than the session timeout: it pings by itself
        registry.ask(Ask(3, Read("/b")))
        while len(events) < 4:
            await asyncio.sleep(0.01)
        await registry.close()
        registry.ask(Ask(4, Read("/a")))
        await asyncio.sleep(0.05)

    asyncio.run(run())
    connected, *replies = events
    assert isinstance(connected, SessionChanged)
    assert (connected.state, connected.timeout_ms) == (SessionState.CONNECTED, 600)
    assert replies == [Replied(1), Replied(2, Outcome.OK, Node(b"x", 0)), Replied(3)]
