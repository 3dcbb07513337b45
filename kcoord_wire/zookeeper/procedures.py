"""Procedures of a state machine that wait: for ZooKeeper, for time, for answers of others.

The documents describe numbered procedures, in which a step waits for another party. A procedure is a generator that
yields what it waits for, so that its code has the order of the document, and the machine stays pure:

    def load(self) -> Procedure:
        topics = yield ReadChildren("/brokers/topics", watch=True)
        yield Sleep(500)
        answered = yield Until(lambda: not self.waiting, within_ms=4_000)   # True, or False after that time

Laws:

* A procedure runs only within `handle` of its machine, until it waits again or ends.
* A request to ZooKeeper that fails raises `RegistryError` at its ``yield``.
* `cancel` ends a procedure where it waits (GeneratorExit); a reply that arrives later is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias

from kcoord_wire.zookeeper.model import Ask, Outcome, Replied, Request

__all__ = ["Procedure", "Procedures", "RegistryError", "Sleep", "Until"]


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


class RegistryError(Exception):
    """ZooKeeper refused a request, or its answer is not known.

    :ivar reply: its answer
    """

    def __init__(self, request: Request, reply: Replied) -> None:
        super().__init__(f"{request}: {reply.detail or reply.outcome.value}")
        self.request = request
        self.reply = reply

    @property
    def outcome(self) -> Outcome:
        """How it ended."""
        return self.reply.outcome


Wait: TypeAlias = Request | Sleep | Until
Procedure: TypeAlias = Generator[Wait, Any, None]


@dataclass(slots=True, eq=False)
class _Waiting:
    procedure: Procedure
    wait: Wait | None = None
    until: int | None = None
    token: int = 0


class Procedures:
    """The procedures of one machine that are under way.

    :param emit: adds an effect (an `Ask`) to those that `handle` returns
    """

    def __init__(self, emit: Callable[[Any], None]) -> None:
        self._emit = emit
        self._now = 0
        self._last_token = 0
        self._waiting: list[_Waiting] = []
        self._asked: dict[int, _Waiting] = {}

    @property
    def deadline(self) -> int | None:
        """When the next wait ends, in ms; None for never."""
        return min((waiting.until for waiting in self._waiting if waiting.until is not None), default=None)

    def start(self, procedure: Procedure, now: int) -> Procedure:
        """Run a procedure until it first waits; return it, for `cancel`."""
        self._now = now
        waiting = _Waiting(procedure)
        self._waiting.append(waiting)
        self._resume(waiting, None)
        return procedure

    def cancel(self, procedure: Procedure) -> None:
        """End a procedure. One that has ended is left alone. A procedure cannot cancel itself: it returns."""
        for waiting in self._waiting:
            if waiting.procedure is procedure:
                self._waiting.remove(waiting)
                self._asked.pop(waiting.token, None)
                procedure.close()
                return

    def cancel_all(self) -> None:
        """End every procedure."""
        for waiting in list(self._waiting):
            self.cancel(waiting.procedure)

    def is_running(self, procedure: Procedure) -> bool:
        """Whether it has not ended."""
        return any(waiting.procedure is procedure for waiting in self._waiting)

    def replied(self, reply: Replied, now: int) -> None:
        """Resume the procedure that asked; a reply for which none waits is dropped."""
        self._now = now
        waiting = self._asked.pop(reply.token, None)
        if waiting is None:
            return
        request = waiting.wait
        assert request is not None
        assert not isinstance(request, Sleep | Until)
        if reply.outcome is Outcome.OK:
            self._resume(waiting, reply.value)
        else:
            self._resume(waiting, None, RegistryError(request, reply))

    def advance(self, now: int) -> None:
        """Resume those whose time has come or whose condition holds; called after every event of the machine."""
        self._now = now
        resumed = True
        while resumed:
            resumed = False
            for waiting in list(self._waiting):
                if waiting in self._waiting and self._is_due(waiting):
                    resumed = True
                    self._resume(waiting, self._outcome_of(waiting))

    def _is_due(self, waiting: _Waiting) -> bool:
        if waiting.until is not None and waiting.until <= self._now:
            return True
        return isinstance(waiting.wait, Until) and waiting.wait.holds()

    def _outcome_of(self, waiting: _Waiting) -> bool | None:
        return waiting.wait.holds() if isinstance(waiting.wait, Until) else None

    def _resume(self, waiting: _Waiting, value: Any, error: RegistryError | None = None) -> None:
        waiting.wait, waiting.until, waiting.token = None, None, 0
        try:
            wait = waiting.procedure.throw(error) if error is not None else waiting.procedure.send(value)
        except StopIteration:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            return
        except BaseException:
            self._waiting.remove(waiting)
            raise
        waiting.wait = wait
        if isinstance(wait, Sleep):
            waiting.until = self._now + wait.ms
        elif isinstance(wait, Until):
            waiting.until = None if wait.within_ms is None else self._now + wait.within_ms
        else:
            self._last_token += 1
            waiting.token = self._last_token
            self._asked[waiting.token] = waiting
            self._emit(Ask(waiting.token, wait))
