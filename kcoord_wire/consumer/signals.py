"""A signal that something has changed, for tasks that look again at everything when they wake."""

from __future__ import annotations

import asyncio


class Signal:
    """Wakes the tasks that wait at the moment. What happens while none waits is not kept: look first, then wait."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def set(self) -> None:
        """Wake the waiting tasks."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def wait(self, deadline: float | None = None) -> bool:
        """Wait for the next `set`; return False if `deadline` came first.

        :param deadline: of the event loop's clock, in seconds; None for none
        """
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)
        return True
