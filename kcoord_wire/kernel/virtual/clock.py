"""Virtual time, and the trace of what happened in it.

Laws:

* Time moves only in `VirtualClock.run` and `VirtualClock.run_until`, from one planned action to the next.
* Actions planned for the same time happen in the order in which they were planned.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVarTuple

EPOCH_MS: Final = 1_700_000_000_000
"""When virtual time begins, in ms since the Unix epoch."""

NEVER: Final = 1 << 62
"""Later than any time."""

Arguments = TypeVarTuple("Arguments")


class TraceLine(NamedTuple):
    """A line of the trace.

    :ivar at: ms since the start
    :ivar who: a process's name, or another part of the system: ``coordinator``, ``cluster``
    :ivar what: ``sends``, ``gets``, ``assigned``, ``crashes`` ...
    :ivar detail: a message or whatever else belongs to it; None for nothing
    """

    at: int
    who: str
    what: str
    detail: Any = None

    def __str__(self) -> str:
        return f"{self.at:>9} {self.who:<12} {self.what:<10} {'' if self.detail is None else self.detail}"


class VirtualClock:
    """A clock that moves from one planned action to the next.

    :ivar time_ms: the time, in ms since the Unix epoch
    :ivar steps: number of events delivered so far; the part that delivers an event counts it
    :ivar trace: what has happened, oldest first
    """

    __slots__ = ("_plans", "_serial", "steps", "time_ms", "trace")

    def __init__(self) -> None:
        self.time_ms = EPOCH_MS
        self.steps = 0
        self.trace: list[TraceLine] = []
        self._plans: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []  # a heap
        self._serial = 0

    @property
    def now(self) -> int:
        """Virtual ms since the start."""
        return self.time_ms - EPOCH_MS

    def at(self, time_ms: int, action: Callable[[*Arguments], None], *arguments: *Arguments) -> None:
        """Plan ``action(*arguments)`` for a time, in ms since the Unix epoch."""
        self._serial += 1
        heapq.heappush(self._plans, (time_ms, self._serial, action, arguments))

    def after(self, ms: int, action: Callable[[*Arguments], None], *arguments: *Arguments) -> None:
        """Plan ``action(*arguments)`` for so many ms from now."""
        self.at(self.time_ms + ms, action, *arguments)

    def record(self, who: str, what: str, detail: Any = None) -> None:
        """Add a line to the trace."""
        self.trace.append(TraceLine(self.time_ms - EPOCH_MS, who, what, detail))

    def run(self, ms: int) -> None:
        """Let time pass.

        :raises ValueError: `ms` is negative
        """
        if ms < 0:
            raise ValueError(f"time cannot pass by {ms} ms")
        end = self.time_ms + ms
        plans = self._plans
        while plans and plans[0][0] <= end:
            self.time_ms, _, action, arguments = heapq.heappop(plans)
            action(*arguments)
        self.time_ms = end

    def run_until(self, holds: Callable[[], bool], within_ms: int) -> int:
        """Let time pass until `holds` returns True; return the virtual ms that took.

        :raises TimeoutError: `holds` has not returned True within `within_ms`, or nothing more is planned
        """
        start = self.time_ms
        plans = self._plans
        while not holds():
            if not plans or plans[0][0] > start + within_ms:
                raise TimeoutError(f"not within {within_ms} ms: {getattr(holds, '__name__', holds)}")
            self.time_ms, _, action, arguments = heapq.heappop(plans)
            action(*arguments)
        return self.time_ms - start

    def clear(self) -> None:
        """Forget everything that is planned."""
        self._plans.clear()


class VirtualSystem:
    """A simulated system with a clock of its own. After ``with`` nothing more happens in it."""

    def __init__(self) -> None:
        self._clock = VirtualClock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._clock.clear()

    @property
    def now(self) -> int:
        """Virtual ms since the start."""
        return self._clock.now

    @property
    def steps(self) -> int:
        """Number of events delivered so far."""
        return self._clock.steps

    @property
    def trace(self) -> Sequence[TraceLine]:
        """What has happened, oldest first."""
        return self._clock.trace

    def run(self, ms: int) -> None:
        """Let time pass.

        :raises ValueError: `ms` is negative
        :raises ViolationError: a law was broken
        """
        self._clock.run(ms)

    def run_until(self, holds: Callable[[], bool], within_ms: int = 300_000) -> int:
        """Let time pass until `holds` returns True; return the virtual ms that took.

        :raises TimeoutError: `holds` has not returned True within `within_ms`
        :raises ViolationError: a law was broken
        """
        return self._clock.run_until(holds, within_ms)
