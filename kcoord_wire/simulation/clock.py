"""Virtual time: what is to happen when, and what has happened.

Laws:

* Time moves only in `Timeline.run` and `Timeline.run_until`, from one thing that is due to the next.
* What is due at the same time happens in the order in which it was planned.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, Final, NamedTuple

__all__ = ["EPOCH_MS", "Happening", "Timeline"]

EPOCH_MS: Final = 1_700_000_000_000
"""When virtual time begins, in ms since the epoch."""


class Happening(NamedTuple):
    """A line of the trace.

    :ivar at: ms since the start
    :ivar who: a member's name, ``coordinator`` or ``cluster``
    :ivar what: ``sends``, ``gets``, ``assigned``, ``crashes`` ...
    :ivar detail: the message or whatever there is to say
    """

    at: int
    who: str
    what: str
    detail: Any = None

    def __str__(self) -> str:
        return f"{self.at:>9} {self.who:<12} {self.what:<10} {'' if self.detail is None else self.detail}"


class Timeline:
    """See the head of the module.

    :ivar clock: the time, in ms since the epoch
    :ivar steps: events delivered so far; whoever delivers one counts it
    :ivar trace: what has happened
    """

    __slots__ = ("_heap", "_serial", "clock", "steps", "trace")

    def __init__(self) -> None:
        self.clock = EPOCH_MS
        self.steps = 0
        self.trace: list[Happening] = []
        self._heap: list[tuple[int, int, Callable[[Any], None], Any]] = []
        self._serial = 0

    @property
    def now(self) -> int:
        """Virtual ms since the start."""
        return self.clock - EPOCH_MS

    def later(self, when: int, action: Callable[[Any], None], about: Any) -> None:
        """Call ``action(about)`` at `when`, in ms since the epoch."""
        self._serial += 1
        heapq.heappush(self._heap, (when, self._serial, action, about))

    def note(self, who: str, what: str, detail: Any = None) -> None:
        """A line for the trace."""
        self.trace.append(Happening(self.clock - EPOCH_MS, who, what, detail))

    def run(self, ms: int) -> None:
        """Let so much time pass."""
        end = self.clock + ms
        heap = self._heap
        while heap and heap[0][0] <= end:
            self.clock, _, action, about = heapq.heappop(heap)
            action(about)
        self.clock = end

    def run_until(self, holds: Callable[[], bool], within_ms: int) -> int:
        """Let time pass until `holds`; the ms that took.

        :raises TimeoutError: it does not within `within_ms`
        """
        start = self.clock
        heap = self._heap
        while not holds():
            if not heap or heap[0][0] > start + within_ms:
                raise TimeoutError(f"not within {within_ms} ms: {getattr(holds, '__name__', holds)}")
            self.clock, _, action, about = heapq.heappop(heap)
            action(about)
        return self.clock - start

    def clear(self) -> None:
        """Nothing more is to happen."""
        self._heap.clear()
