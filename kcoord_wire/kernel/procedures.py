"""Procedures of a state machine that wait: for requests to another party, for time, for events.

The documents describe numbered procedures, in which a step waits for another party. A procedure is a generator that
yields what it waits for, so that its code has the order of the document, and the machine stays pure:

    def load(self) -> Procedure:
        topics = yield ReadChildren("/brokers/topics", watch=True)
        nodes = yield [Read(topic_path(topic)) for topic in topics]   # sent at once; a list of their values
        yield Sleep(500)
        answered = yield Latched(self.all_answered, within_ms=4_000)   # True, or False after that time

Everything else that a procedure yields is a request of its machine: to ZooKeeper (`zookeeper.requests`), to the
coordination log of Marshal.

Laws:

* A procedure runs only within `handle` of its machine, until it waits again or ends.
* A request that fails (`Procedures.failed`) raises its error at its ``yield``; the answers to others of the same list
  are dropped.
* `cancel` ends a procedure where it waits (GeneratorExit); a reply that arrives later is dropped.
* A procedure that waits costs nothing until its reply, its time or its gate comes; only an `Until` is looked at after
  every event.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, TypeAlias

from kcoord_wire.kernel.timers import Timer, Timers


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait for so long."""

    ms: int


@dataclass(frozen=True, slots=True)
class Until:
    """Wait until `holds` returns True; the ``yield`` returns whether it did `within_ms`. It is called after every event
    of the machine, so it must be cheap."""

    holds: Callable[[], bool]
    within_ms: int | None = None


class Latch:
    """Something that happens once, for which one procedure may wait."""

    __slots__ = ("is_open", "opened")

    def __init__(self) -> None:
        self.is_open = False
        self.opened: Callable[[], None] | None = None

    def open(self) -> None:
        """It has happened: the procedure that waits resumes when the machine advances."""
        self.is_open = True
        if self.opened is not None:
            self.opened()


@dataclass(frozen=True, slots=True)
class Latched:
    """Wait until the gate is open; the ``yield`` returns whether it was opened `within_ms`."""

    gate: Latch
    within_ms: int | None = None


Request: TypeAlias = Any
"""Of the machine; not a sequence."""

Wait: TypeAlias = Request | Sequence[Request] | Sleep | Until | Latched
Procedure: TypeAlias = Generator[Wait, Any, None]


@dataclass(slots=True, eq=False)
class _Running:
    """A procedure, and what it waits for.

    :ivar tokens: of the requests that are under way, with the place of each
    """

    procedure: Procedure
    requests: Sequence[Request] = ()
    tokens: dict[int, int] | None = None
    values: list[Any] | None = None
    timer: Timer | None = None
    gate: Latch | None = None


class Procedures:
    """The procedures of one machine that are under way.

    :param ask: sends a request, with the token that its answer will have
    :param tokens: gives each request its token; shared by the `Procedures` of one machine
    :param timers: of the machine, where it has its own; `advance` runs what is due of them
    """

    def __init__(
        self,
        ask: Callable[[int, Request], None],
        tokens: Iterator[int] | None = None,
        timers: Timers | None = None,
    ) -> None:
        self._send = ask
        self._tokens = count(1) if tokens is None else tokens
        self._timers = Timers() if timers is None else timers
        self._now = 0
        self._running: dict[Procedure, _Running] = {}
        self._asked: dict[int, _Running] = {}
        self._conditions: dict[_Running, Until] = {}
        self._opened: list[_Running] = []

    @property
    def deadline(self) -> int | None:
        """When the next wait ends, in ms; None for never."""
        return self._timers.next

    def start(self, procedure: Procedure, now: int) -> Procedure:
        """Run a procedure until it first waits; return it, for `cancel`."""
        self._now = now
        running = self._running[procedure] = _Running(procedure)
        self._resume(running, None)
        return procedure

    def cancel(self, procedure: Procedure) -> None:
        """End a procedure. One that has ended is left alone. A procedure cannot cancel itself: it returns."""
        if (running := self._running.pop(procedure, None)) is not None:
            self._clear(running)
            procedure.close()

    def cancel_all(self) -> None:
        """End every procedure."""
        for procedure in list(self._running):
            self.cancel(procedure)

    def is_running(self, procedure: Procedure) -> bool:
        """Whether it has not ended."""
        return procedure in self._running

    def answered(self, token: int, value: Any, now: int) -> None:
        """Resume the procedure that asked, after the last of its answers; one for which none waits is dropped."""
        self._now = now
        running = self._asked.pop(token, None)
        if running is None:
            return
        assert running.tokens is not None
        place = running.tokens.pop(token)
        if running.values is None:
            self._resume(running, value)
        else:
            running.values[place] = value
            if not running.tokens:
                self._resume(running, running.values)

    def failed(self, token: int, error: Callable[[Request], Exception], now: int) -> None:
        """Raise an error in the procedure that asked.

        :param error: makes it from the request
        """
        self._now = now
        running = self._asked.pop(token, None)
        if running is not None:
            assert running.tokens is not None
            self._resume(running, None, error(running.requests[running.tokens.pop(token)]))

    def advance(self, now: int) -> None:
        """Resume those whose time has come, whose gate is open or whose condition holds; called after every event of
        the machine."""
        self._now = now
        while True:
            self._timers.run_due(now)
            due = [running for running, until in self._conditions.items() if until.holds()]
            if not due and not self._opened:
                return
            opened, self._opened = self._opened, []
            for running in opened:
                if running.gate is not None and running.gate.is_open:
                    self._resume(running, True)
            for running in due:
                if (until := self._conditions.get(running)) is not None:
                    self._resume(running, until.holds())

    def _clear(self, running: _Running) -> None:
        """It no longer waits for anything."""
        for token in running.tokens or ():
            del self._asked[token]
        if running.timer is not None:
            running.timer.cancel()
        if running.gate is not None:
            running.gate.opened = None
        self._conditions.pop(running, None)
        running.tokens = running.values = running.timer = running.gate = None

    def _resume(self, running: _Running, value: Any, error: Exception | None = None) -> None:
        self._clear(running)
        try:
            wait = running.procedure.throw(error) if error is not None else running.procedure.send(value)
        except StopIteration:
            self._running.pop(running.procedure, None)
            return
        except BaseException:
            self._running.pop(running.procedure, None)
            raise
        self._wait(running, wait)

    def _wait(self, running: _Running, wait: Wait) -> None:
        if isinstance(wait, Sleep):
            running.timer = self._timers.start(self._now + wait.ms, partial(self._resume, running, None))
        elif isinstance(wait, Until):
            self._conditions[running] = wait
            self._limit(running, wait.within_ms)
        elif isinstance(wait, Latched):
            running.gate = wait.gate
            wait.gate.opened = partial(self._gate_opened, running)
            self._limit(running, wait.within_ms)
            if wait.gate.is_open:
                self._opened.append(running)
        elif isinstance(wait, Sequence):
            running.values = [None] * len(wait)
            self._ask(running, wait)
        else:
            self._ask(running, (wait,))

    def _gate_opened(self, running: _Running) -> None:
        self._opened.append(running)

    def _limit(self, running: _Running, within_ms: int | None) -> None:
        if within_ms is not None:
            running.timer = self._timers.start(self._now + within_ms, partial(self._late, running))

    def _late(self, running: _Running) -> None:
        until = self._conditions.get(running)
        self._resume(running, until.holds() if until is not None else running.gate is not None and running.gate.is_open)

    def _ask(self, running: _Running, requests: Sequence[Request]) -> None:
        running.requests = requests
        running.tokens = {next(self._tokens): place for place in range(len(requests))}
        for token, place in running.tokens.items():
            self._asked[token] = running
            self._send(token, requests[place])
        if not requests:
            self._resume(running, [])
