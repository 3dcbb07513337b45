"""What the state machines of groups and of transactions have in common: requests, timers and a log.

Laws (besides those of events.py):

* Until the first `Load`, and after `Resign`, requests are refused; a machine names the exceptions in `_refuses`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Set
from typing import Any, Protocol

from kcoord_wire.coordinator.core import events
from kcoord_wire.coordinator.core.apis import refusal
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.kernel import machines
from kcoord_wire.kernel.timers import Timers
from kcoord_wire.protocol.error_codes import ErrorCode


class Logged(Protocol):
    """What the log keeps.

    :ivar written: number of the last `Append` that concerns it
    """

    written: int


class EffectCollector:
    """Collects the effects of one call of a machine's `handle`, and knows the time of that call.

    :ivar now: ms
    :ivar appended: number of `Append` effects since the machine was made
    :ivar deleted: number of the last one that deleted a group or transactional id
    """

    __slots__ = ("appended", "deleted", "effects", "now")

    def __init__(self) -> None:
        self.now = 0
        self.appended = 0
        self.deleted = 0
        self.effects: list[events.Effect] = []

    def begin(self, now: int) -> list[events.Effect]:
        """Begin the next call; its effects go into the list returned."""
        self.now = now
        self.effects = []
        return self.effects

    def reply(self, request: events.Request, message: object, after: int = 0) -> None:
        """Answer `request` once append number `after` is on disk."""
        self.effects.append(events.Reply(request.token, message, after, request))

    def append(self, owner: Logged, records: list[events.LogRecord], producer: events.Producer | None = None) -> None:
        """Write records of a group or transactional id to the log, as part of the transaction of `producer` if any."""
        self.appended += 1
        owner.written = self.appended
        self.effects.append(events.Append(records, producer))

    def append_marker(self, marker: events.AppendMarker) -> None:
        """Write the end of a transaction to the log."""
        self.appended += 1
        self.effects.append(marker)

    def delete(self, owner: Logged, records: list[events.LogRecord]) -> None:
        """Remove a group or transactional id from the log by these records."""
        self.append(owner, records)
        self.deleted = self.appended

    def written(self, owner: Logged | None) -> int:
        """Return the `Append` that must be on disk before an answer may say something of the group or transactional
        id, or that it does not exist."""
        return self.deleted if owner is None else owner.written

    def report(self, phase: events.Phase, rebalance: events.RebalanceAccount) -> None:
        """Report that a rebalance has reached a phase."""
        self.effects.append(events.RebalanceReport(phase, rebalance))


class LoggedMachine(ABC):
    """A state machine whose state is in a log.

    :param config: Kafka's defaults if None
    """

    def __init__(self, config: GroupConfig | None) -> None:
        self.config = config or GroupConfig()
        self._timers = Timers()
        self._effects = EffectCollector()
        self._unavailable: ErrorCode | None = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self._handlers: dict[type, Callable[[events.Request, Any], None]] = {}

    @property
    def serves(self) -> Set[type]:
        """The classes of requests that `handle` accepts."""
        return self._handlers.keys()

    @property
    def deadline(self) -> int | None:
        """When the next `Tick` is due, in ms; None if nothing is."""
        return self._timers.next

    @property
    def appended(self) -> int:
        """Number of `Append` effects so far."""
        return self._effects.appended

    def handle(self, event: events.Event, now: int) -> list[events.Effect]:
        """Return the effects of `event` at the time `now` (ms).

        :raises TypeError: a request that is not in `serves`
        """
        effects = self._effects.begin(now)
        if isinstance(event, events.Request):
            self._request(event)
        elif isinstance(event, machines.Tick):
            self._timers.run_due(now)
        else:
            self._take_in(event)
        return effects

    def _request(self, request: events.Request) -> None:
        message = request.message
        handler = self._handlers.get(type(message))
        if handler is None:
            raise TypeError(f"{type(self).__name__} does not serve {type(message).__name__}")
        if error := self._refuses(message):
            self._refuse(request, error)
        else:
            handler(request, message)

    def _refuses(self, message: Any) -> ErrorCode | None:
        """Return why a request is not handled now, whatever it asks; None if it is handled."""
        return self._unavailable

    def _refuse(self, request: events.Request, error: ErrorCode, after: int = 0) -> None:
        """Answer with an error once append number `after` is on disk."""
        self._effects.reply(request, refusal(request.message, request.version, error), after)

    @abstractmethod
    def _take_in(self, event: events.Event) -> None:
        """Handle an event that is neither a request nor `Tick`."""
