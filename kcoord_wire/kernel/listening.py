"""What every listener does about its peers: how many there may be, which have exceeded a limit in time, how they end.

Laws:

* Connections never take the last open files of the process: its logs go on.
* A limit in time is exceeded by an eighth of the shortest one at most.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sized
from typing import Final, Protocol, TypeVar

BACKLOG: Final = 1024
"""Connections that the system keeps for a listener until it accepts them."""

_SPARE_FILES: Final = 64  # open files left for logs, metrics and further connections of the process itself
_SWEEPS: Final = 8  # in the shortest of the time limits, so that it is exceeded by an eighth at most
_SHORTEST_SWEEP_SECONDS: Final = 0.02
_CLOSING_SECONDS: Final = 0.01  # between two looks at whether connections have closed


def most_connections(wanted: int, share: int = 1) -> int:
    """Return how many connections a listener may have open: each takes an open file.

    :param share: listeners among which the open files of the process are divided
    """
    import resource  # is missing on Windows, where nothing listens

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(wanted, max((files - _SPARE_FILES) // share, _SPARE_FILES))


async def all_closed(open_connections: Sized, grace_ms: float) -> None:
    """Return when no connection is left, or after `grace_ms`."""
    until = time.monotonic() + grace_ms / 1000
    while open_connections and time.monotonic() < until:
        await asyncio.sleep(_CLOSING_SECONDS)


class Bounded(Protocol):
    """A connection with limits in time."""

    def overdue(self, now: float) -> str | None:
        """Return why it has to be closed now, in monotonic seconds; None if it may stay."""


P = TypeVar("P", bound=Bounded)


class Sweeper:
    """Looks at connections again and again, and has those closed that have exceeded a limit in time.

    :param connections: returns those to look at
    :param drop: closes one, for a reason
    :param limits_ms: all limits; the shortest decides how often
    """

    def __init__(
        self, connections: Callable[[], Iterable[P]], drop: Callable[[P, str], None], limits_ms: Iterable[int]
    ) -> None:
        self._interval = max(_SHORTEST_SWEEP_SECONDS, min(limits_ms) / 1000 / _SWEEPS)
        self._look: Callable[[], None] = lambda: _sweep(connections(), drop)
        self._timer: asyncio.TimerHandle | None = None
        self._sweep()

    def _sweep(self) -> None:
        self._look()
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._sweep)

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()


def _sweep(connections: Iterable[P], drop: Callable[[P, str], None]) -> None:
    now = time.monotonic()
    for connection in list(connections):
        why = connection.overdue(now)
        if why is not None:
            drop(connection, why)
