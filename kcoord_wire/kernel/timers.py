"""Deadlines of a state machine that has no clock.

Laws:

* Nothing happens by itself: `Timers.run_due` runs what is due at the time it is given, in the order of the deadlines.
* Postponing a deadline, which every heartbeat does, costs an assignment; the heap changes when the old time comes.
* Cancelled timers do not pile up, whatever timeouts clients choose: the heap is swept when it is twice as large as its
  live entries were the last time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

SWEEP_FROM: Final = 256  # entries of the heap


def earliest(*deadlines: int | None) -> int | None:
    """Return the first of some deadlines; None if there is none."""
    return min((deadline for deadline in deadlines if deadline is not None), default=None)


class Timer:
    """One deadline, made by `Timers.start`.

    :ivar when: ms
    :ivar action: None once it has fired, or was moved or cancelled
    """

    __slots__ = ("action", "when")

    def __init__(self, when: int, action: Callable[[], None]) -> None:
        self.when: int = when
        self.action: Callable[[], None] | None = action

    @property
    def live(self) -> bool:
        """Whether it is still going to fire."""
        return self.action is not None

    def cancel(self) -> None:
        """Prevent it from firing."""
        self.action = None


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
        """When to call `run_due` next, in ms: no later than the first deadline; None if there is none."""
        heap = self._heap
        while heap and heap[0][2].action is None:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def start(self, when: int, action: Callable[[], None]) -> Timer:
        """Return a timer that runs `action` at `when`, once."""
        timer = Timer(when, action)
        self._push(when, timer)
        return timer

    def move(self, timer: Timer, when: int) -> Timer:
        """Return the timer with another deadline; it may be a new one, which replaces the old one."""
        if when >= timer.when:
            timer.when = when
            return timer
        action, timer.action = timer.action, None
        assert action is not None, "only a live timer is moved"
        return self.start(when, action)

    def clear(self) -> None:
        """Cancel all timers."""
        for _, _, timer in self._heap:
            timer.cancel()
        self._heap.clear()

    def run_due(self, now: int) -> None:
        """Run the actions that are due, including those that they start for a time not after `now`."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            when, _, timer = heapq.heappop(heap)
            action = timer.action
            if action is None:
                continue
            if timer.when > when:
                self._push(timer.when, timer)
            else:
                timer.action = None
                action()

    def _push(self, when: int, timer: Timer) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (when, self._serial, timer))
        if len(self._heap) > self._sweep_at:
            self._heap[:] = [entry for entry in self._heap if entry[2].action is not None]
            heapq.heapify(self._heap)
            self._sweep_at = max(SWEEP_FROM, 2 * len(self._heap))
