"""The in-memory registry on an event loop: for a broker that needs no ZooKeeper beyond itself."""

from __future__ import annotations

import asyncio
import time

from kcoord_wire.zookeeper.memory import MemoryZooKeeper
from kcoord_wire.zookeeper.memory_registry import MemoryLink
from kcoord_wire.zookeeper.model import Ask, Deliver


class LoopMemory:
    """A ZooKeeper of its own and the one client of it, in the loop that runs where this is made."""

    def __init__(self, deliver: Deliver, *, timeout_ms: int) -> None:
        self._link = MemoryLink(MemoryZooKeeper(), deliver, timeout_ms=timeout_ms)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._is_closed = False

    async def start(self, within: float = 0.0) -> None:
        """Connect, which always succeeds; the first event is ``CONNECTED``."""
        self._wake(0)

    def ask(self, ask: Ask) -> None:
        """Execute a request in the next iteration of the loop."""
        self._link.ask(ask)
        self._wake(0)

    async def close(self) -> None:
        """Stop; no event follows."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _wake(self, due: int) -> None:
        if not self._is_closed:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(max(0.0, due / 1000 - time.monotonic()), self._advance)

    def _advance(self) -> None:
        self._link.advance(time.monotonic_ns() // 1_000_000)
        self._wake(self._link.deadline)
