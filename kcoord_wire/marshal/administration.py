"""Hosts that read a coordination log for its state, and that run an admin on it.

Laws:

* Reading writes nothing, to the log or to Kafka.
* `run_admin` returns what the machine has finished with, or raises what makes the log useless; then what
  the admin holds is not given back; it becomes free as after a crash.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from kcoord_wire.kernel.machines import Shutdown
from kcoord_wire.marshal.admin import (
    Admin,
    CommitFailed,
    CommitPositions,
    Finished,
    PositionsCommitted,
    Progressed,
)
from kcoord_wire.marshal.context import TopicPartition
from kcoord_wire.marshal.hosting import LogHost, wall_ms
from kcoord_wire.marshal.log import Log, LogError
from kcoord_wire.marshal.observer import Observer
from kcoord_wire.marshal.state import Entry
from kcoord_wire.marshal.topics import TopicsError
from kcoord_wire.marshal.values import read_entry

STEP_SECONDS: Final = 0.1
END_SECONDS: Final = 5.0


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
                observer.take(entry, wall_ms())
        return count

    def entries(self, seconds: float = 60.0) -> Iterator[Entry]:
        """Yield what was not read, up to the present end; the observers do not take it.

        :raises LogError: the log cannot be read, or not within so long
        """
        until, log = time.monotonic() + seconds, self._log
        try:
            ends = [log.end(partition, END_SECONDS) for partition in range(log.partitions)]
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
