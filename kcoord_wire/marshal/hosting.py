"""Runs machines of Marshal on a coordination log: a consumer's, an admin's, and readers of its state.

Laws:

* The machine gets `WallClock` first, and again after the wall clock was set; `now` is that of `driver.monotonic_ms`.
* `CaughtUp` comes after the `Entries` below its end. Where no broker says what the end is, it is asked for again.
* Events come one after the other, never within the handling of another.
* Nothing runs but in `step` and `handle`, so one thread owns machine and log.
* No call waits longer than it may, except `END_SECONDS` for an end: fences must not be late.
* Reading writes nothing, to the log or to Kafka.
* `run_admin` returns what the machine has finished with, or raises what makes the log useless; then what the admin
  holds is not given back; it becomes free as after a crash.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kcoord_wire.codec.registry import encode
from kcoord_wire.kernel.driver import log_event, monotonic_ms
from kcoord_wire.kernel.machines import Ended, LogEvent, Machine, Shutdown, Tick
from kcoord_wire.kernel.net import LogLimiter
from kcoord_wire.marshal.admin import (
    Admin,
    CommitFailed,
    CommitPositions,
    Finished,
    PositionsCommitted,
    Progressed,
)
from kcoord_wire.marshal.context import TopicPartition
from kcoord_wire.marshal.inbox import TopicsError
from kcoord_wire.marshal.log import Appended, AppendFailed, Log, LogError
from kcoord_wire.marshal.member_events import Append, CaughtUp, Entries, ReadToEnd, WallClock
from kcoord_wire.marshal.observer import Observer
from kcoord_wire.marshal.values import read_entry
from kcoord_wire.marshal.world_state import Entry

LOG: Final = logging.getLogger("kcoord_wire.marshal")
LOG.addHandler(logging.NullHandler())  # silent unless logging is configured
WALL_STEP_MS: Final = 500
"""The wall clock was set if it has moved by more against the monotonic one."""
END_SECONDS: Final = 0.25
LOOK_SECONDS: Final = 0.02
"""Between two looks at whether the end is reached: a gap at the end of the log brings no entry."""


def wall_ms() -> int:
    """Return the system's wall clock, ms since the Unix epoch."""
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class _Read:
    """A `ReadToEnd` that is not answered.

    :ivar end: None while it is not known
    """

    partition: int
    request: int
    end: int | None = None


class LogHost:
    """The host of one machine.

    :param execute: carries out every effect that is not about the log
    :param clock: monotonic, ms
    :param wall: ms since the Unix epoch
    :ivar has_ended: the machine has ended
    """

    def __init__(
        self,
        machine: Machine,
        log: Log,
        execute: Callable[[Any], None],
        *,
        clock: Callable[[], int] = monotonic_ms,
        wall: Callable[[], int] = wall_ms,
    ) -> None:
        self.has_ended = False
        self._machine = machine
        self._log = log
        self._execute_other = execute
        self._clock = clock
        self._wall = wall
        self._ahead_ms: int | None = None
        self._events: deque[Any] = deque()
        self._is_handling = False
        self._reads: list[_Read] = []
        self._appending = 0
        self._warnings = LogLimiter()

    @property
    def is_awaited(self) -> bool:
        """Whether the machine waits for the log."""
        return bool(self._events or self._reads or self._appending)

    def start(self, partitions: Collection[int]) -> None:
        """Begin to read coordination partitions.

        :raises LogError: the log cannot be read
        """
        self._log.read_from_start(partitions)
        self._check_wall()

    def step(self, seconds: float) -> None:
        """Wait up to so long for something to happen, and let the machine handle it.

        :raises LogError: the log cannot be read any more
        """
        self._check_wall()
        raw = self._log.poll(self._wait_seconds(seconds))
        if raw:
            # Before the results of appends, which `poll` has queued: the position of the log covers these entries.
            self._events.appendleft(Entries([read_entry(each) for each in raw]))
        self._run()
        self._answer_reads()
        if (deadline := self._machine.deadline) is not None and deadline <= self._clock():
            self.handle(Tick())

    def handle(self, event: Any) -> None:
        """Let the machine handle an event of another source; called within a handling, it comes after that."""
        self._events.append(event)
        self._run()

    def _wait_seconds(self, seconds: float) -> float:
        if self._events:
            return 0.0
        if self._reads:
            seconds = min(seconds, LOOK_SECONDS)
        if (deadline := self._machine.deadline) is not None:
            seconds = min(seconds, (deadline - self._clock()) / 1000)
        return max(seconds, 0.0)

    def _run(self) -> None:
        if self._is_handling:
            return
        self._is_handling = True
        try:
            while self._events:
                for effect in self._machine.handle(self._events.popleft(), self._clock()):
                    self._execute(effect)
        finally:
            self._is_handling = False

    def _execute(self, effect: Any) -> None:
        if isinstance(effect, Append):
            self._appending += 1
            self._log.append(effect.request, effect.partition, encode(effect.message, 0), self._appended)
        elif isinstance(effect, ReadToEnd):
            self._reads.append(_Read(effect.partition, effect.request))
        elif isinstance(effect, LogEvent):
            self.note(effect)
        elif isinstance(effect, Ended):
            self.has_ended = True
        else:
            self._execute_other(effect)

    def note(self, note: LogEvent) -> None:
        """Log it; warnings are limited."""
        if note.level < logging.WARNING or self._warnings.allows_line():
            log_event(LOG, note)

    def _appended(self, result: Appended | AppendFailed) -> None:
        self._appending -= 1
        self._events.append(result)

    def _answer_reads(self) -> None:
        """Answer those that have come to their end; those that come up meanwhile are looked at in the next step.

        One question for an end serves all reads of a partition.
        """
        reads, self._reads = self._reads, []
        ends: dict[int, int | None] = {}
        for read in reads:
            if read.end is None:
                if read.partition not in ends:
                    ends[read.partition] = self._end(read.partition)
                read.end = ends[read.partition]
            if read.end is not None and self._log.position(read.partition) >= read.end:
                self.handle(CaughtUp(read.request, read.end))
            else:
                self._reads.append(read)

    def _end(self, partition: int) -> int | None:
        try:
            return self._log.end(partition, END_SECONDS)
        except TimeoutError:
            self.note(LogEvent(logging.WARNING, "end not known", {"partition": partition}))
            return None

    def _check_wall(self) -> None:
        ahead_ms = self._wall() - self._clock()
        if self._ahead_ms is None or abs(ahead_ms - self._ahead_ms) > WALL_STEP_MS:
            self._ahead_ms = ahead_ms
            self.handle(WallClock(ahead_ms))


STEP_SECONDS: Final = 0.1
SNAPSHOT_END_SECONDS: Final = 5.0


class LogReader:
    """Reads a whole log into observers.

    :param observers: that take each entry, of any rules
    :raises LogError: the log cannot be read
    """

    def __init__(self, log: Log, observers: Sequence[Observer]) -> None:
        self._log = log
        self._observers = observers
        log.read_from_start(range(log.partitions))

    def read_to_end(self, seconds: float = 60.0) -> int:
        """Read up to the present end; return the number of entries.

        :raises LogError: the log cannot be read, or not within so long
        """
        count = 0
        for entry in self.entries(seconds):
            count += 1
            for observer in self._observers:
                observer.observe(entry, wall_ms())
        return count

    def entries(self, seconds: float = 60.0) -> Iterator[Entry]:
        """Yield what was not read, up to the present end; the observers do not take it.

        :raises LogError: the log cannot be read, or not within so long
        """
        until, log = time.monotonic() + seconds, self._log
        try:
            ends = [log.end(partition, SNAPSHOT_END_SECONDS) for partition in range(log.partitions)]
        except TimeoutError as error:
            raise LogError(str(error)) from None
        while any(log.position(partition) < end for partition, end in enumerate(ends)):
            if time.monotonic() > until:
                raise LogError(f"the end of the log was not reached within {seconds:g} s")
            yield from map(read_entry, log.poll(STEP_SECONDS))


def run_admin(
    machine: Admin,
    log: Log,
    *,
    commit: Callable[[Mapping[TopicPartition, int]], None],
    progress: Callable[[Progressed], None],
    is_interrupted: Callable[[], bool],
) -> Finished:
    """Run an admin to its end.

    :param commit: commits the group's offsets in Kafka; raises TopicsError
    :param is_interrupted: the machine is to give back what it holds, and end
    :raises LogError: the log cannot be read any more
    """
    finished: list[Finished] = []

    def execute(effect: Any) -> None:
        if isinstance(effect, Progressed):
            progress(effect)
        elif isinstance(effect, CommitPositions):
            try:
                commit(effect.offsets)
            except TopicsError as error:
                host.handle(CommitFailed(effect.request, str(error)))
            else:
                host.handle(PositionsCommitted(effect.request))
        else:
            assert isinstance(effect, Finished), effect
            finished.append(effect)

    host = LogHost(machine, log, execute)
    host.start(machine.reads)
    is_told = False
    while not host.has_ended:
        if not is_told and is_interrupted():
            is_told = True
            host.handle(Shutdown())
        host.step(STEP_SECONDS)
    return finished[0]
