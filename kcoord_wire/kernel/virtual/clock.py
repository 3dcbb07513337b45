"""Virtual time, and the trace of what happened in it.

Laws:

* Time moves only in `VirtualClock.run` and `VirtualClock.run_until`, from one planned action to the next.
* Actions planned for the same time happen in the order in which they were planned.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVarTuple

EPOCH_MS: Final = 1_700_000_000_000
"""When virtual time begins, in ms since the Unix epoch."""

NEVER: Final = 1 << 62
"""Later than any time."""

BREAKS: Final = "breaks law"
"""What the last line of a trace says if a law was broken: of the event that did so, behind what came of it; of the
``cluster``, with the law itself, if no machine has taken in that event."""

Arguments = TypeVarTuple("Arguments")


class TraceLine(NamedTuple):
    """A line of the trace, which prints as four columns: time, who, what, detail.

    Every world writes ``starts``, ``crashes``, ``pauses``, ``resumes`` and ``is cut off`` of a process, and ``loses``
    and ``heals`` of the ``cluster``. ``sends`` and ``gets`` have a message. What else happens in a protocol has the
    name of an effect in lower case (``assigned``, ``revoking``), or what its machine notes (``elected``).

    :ivar at: ms since the start
    :ivar who: a process's name, or another part of the system: ``coordinator``, ``zookeeper``, ``cluster`` for all
    :ivar what: what it does, a verb or a phrase
    :ivar detail: a message, a duration in ms, or whatever else belongs to it; None for nothing
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
        self.time_ms: int = EPOCH_MS
        self.steps: int = 0
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
