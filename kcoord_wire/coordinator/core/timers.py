"""Deadlines of a state machine that has no clock: what is due when.

Laws:

* Nothing happens by itself: `Timers.run_due` runs what is due at the time it is told, in the order of the deadlines.
* Moving a deadline back, which every heartbeat does, costs an assignment; the heap is touched when the old time comes.
* What will not fire is not kept for long: the heap is swept when it has twice the entries that were live the last time,
  whatever clients make of their timeouts.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

__all__ = ["Timer", "Timers"]

SWEEP_FROM: Final = 256  # entries of the heap


class Timer:
    """One deadline. It belongs to the `Timers` that made it until it has fired or was cancelled.

    :ivar when: ms
    """

    __slots__ = ("_action", "when")

    def __init__(self, when: int, action: Callable[[], None]) -> None:
        self.when = when
        self._action: Callable[[], None] | None = action

    @property
    def live(self) -> bool:
        """Whether it is still to fire."""
        return self._action is not None

    def cancel(self) -> None:
        """Make it not fire."""
        self._action = None

    def take(self) -> Callable[[], None] | None:
        """The action, once; None where it was taken or cancelled."""
        action, self._action = self._action, None
        return action


class Timers:
    """The deadlines of one machine."""

    __slots__ = ("_heap", "_serial", "_sweep_at")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._serial = 0
        self._sweep_at = SWEEP_FROM

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next(self) -> int | None:
        """When to call `run_due` next, in ms: no later than the first deadline; None where there is none."""
        while self._heap and not self._heap[0][2].live:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def start(self, when: int, action: Callable[[], None]) -> Timer:
        """A timer that runs `action` at `when`, once."""
        timer = Timer(when, action)
        self._push(when, timer)
        return timer

    def move(self, timer: Timer, when: int) -> Timer:
        """The timer with another deadline; use the one returned, the old may be another."""
        if when >= timer.when:
            timer.when = when
            return timer
        action = timer.take()
        assert action is not None, "a timer is moved while it is live"
        return self.start(when, action)

    def clear(self) -> None:
        """Forget all of them."""
        for _, _, timer in self._heap:
            timer.cancel()
        self._heap.clear()

    def run_due(self, now: int) -> None:
        """Run the actions whose time has come, those included that they start for a time not after `now`."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            when, _, timer = heapq.heappop(heap)
            if timer.when > when:
                if timer.live:
                    self._push(timer.when, timer)
            elif action := timer.take():
                action()

    def _push(self, when: int, timer: Timer) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (when, self._serial, timer))
        if len(self._heap) > self._sweep_at:
            self._heap[:] = [entry for entry in self._heap if entry[2].live]
            heapq.heapify(self._heap)
            self._sweep_at = max(SWEEP_FROM, 2 * len(self._heap))
