"""The loop of a watch: polls, back-off while no broker answers, and a screen or lines.

Laws:

* The first poll has to be answered, else the watch ends with what to check. Later ones may fail: they are shown, and
  tried again after twice the interval, then twice as long each time, ten seconds at most.
* After `Watch.stop`, which a signal handler may call, the loop ends without waiting for the cluster.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol, TextIO

from kcoord_wire.watch.changes import Change, lines_of
from kcoord_wire.watch.groups import Watched
from kcoord_wire.watch.polling import AdminPolls, Stopped, WatchError
from kcoord_wire.watch.seen import Missed
from kcoord_wire.watch.view import screen

_LONGEST_S: Final = 10.0
_EVENTS: Final = 100  # lines of changes that a screen can show
_HOME, _REST, _LINE = "\x1b[H", "\x1b[J", "\x1b[K\n"  # overwrites without clearing first, so that nothing flickers


class View(Protocol):
    """Where the results of each poll go."""

    def show(self, watched: Watched, changes: list[Change], now: int) -> None:
        """Show what a poll has brought."""


class LineView:
    """One line for each group that has changed."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def show(self, watched: Watched, changes: list[Change], now: int) -> None:
        _write(self._file, (f"{line}\n" for line in lines_of(changes)))


class JsonView:
    """One JSON object for each change.

    :param write: writes an object as a line
    """

    def __init__(self, write: Callable[[dict[str, object]], None], file: TextIO) -> None:
        self._write, self._file = write, file

    def show(self, watched: Watched, changes: list[Change], now: int) -> None:
        for change in changes:
            self._write(change.to_json())
        self._file.flush()


class ScreenView:
    """A terminal, redrawn after each poll.

    :param until_ms: the clients' rebalance timeout, if it is known
    """

    def __init__(self, file: TextIO, until_ms: float | None) -> None:
        self._file, self._until_ms = file, until_ms
        self._recent: deque[str] = deque(maxlen=_EVENTS)

    def show(self, watched: Watched, changes: list[Change], now: int) -> None:
        self._recent += lines_of(changes)
        size = shutil.get_terminal_size()
        lines = screen(
            watched.snapshot,
            list(self._recent),
            source=watched.source,
            now=now,
            height=size.lines - 1,
            width=size.columns,
            until_ms=self._until_ms,
        )
        _write(self._file, [_HOME, *(f"{line}{_LINE}" for line in lines), _REST])


def _write(file: TextIO, parts: Iterable[str]) -> None:
    file.write("".join(parts))
    file.flush()


class Watch:
    """Polls a cluster until it is stopped.

    :param polls: the cluster
    :param watched: takes in what they show
    :param interval_s: seconds from the beginning of a poll to that of the next
    """

    def __init__(self, polls: AdminPolls, watched: Watched, interval_s: float) -> None:
        self._polls, self._watched, self._interval_s = polls, watched, interval_s
        self._stopping = threading.Event()

    def stop(self) -> None:
        """End the loop."""
        self._stopping.set()
        self._polls.stop()

    def run(self, view: View, *, times: int | None = None) -> None:
        """Poll until `stop`.

        :param times: end after so many polls
        :raises WatchError: the first poll is not answered, or the login is refused
        """
        delay = self._interval_s
        count = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                found = self._polls.poll()
            except Stopped:
                return
            if isinstance(found, Missed):
                if self._watched.snapshot.answered_ns is None:
                    raise WatchError(_unreachable(found))
                changes = self._watched.miss(found)
                delay = max(self._interval_s, min(2 * delay, _LONGEST_S))
            else:
                changes = self._watched.take(found, left_out=self._polls.left_out)
                delay = self._interval_s
            view.show(self._watched, changes, time.time_ns())
            count += 1
            if count == times:
                return
            self._stopping.wait(max(began + delay - time.monotonic(), 0))


def _unreachable(missed: Missed) -> str:
    return f"no broker answers at {missed.broker}: {missed.text}; check address, port and security.protocol"
