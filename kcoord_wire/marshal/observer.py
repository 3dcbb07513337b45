"""A world state, and what a person wants to know beyond it: since when, whose clock is off, which client id two use.

Laws:

* It changes nothing of what the world state says.
* A clock is measured (`clocks.Clocks`) only where the broker sets the time of records.
* Two instances of one client id are a restart while the first one is silent after the second has begun; one message of
  the first after that makes them a reuse.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from kcoord_wire.marshal.clocks import Clocks
from kcoord_wire.marshal.machine import WorldState
from kcoord_wire.marshal.state import Entry, Outcome, Place

FORMER_INSTANCES: Final = 8
"""Of one client id that are remembered: as many restarts as may lie between two messages of a reused id."""

_CHANGES: Final = frozenset({Outcome.CLAIMED, Outcome.TAKEN_OVER, Outcome.RELEASED})


@dataclass(frozen=True, slots=True)
class Change:
    """The last change of a partition's holder.

    :ivar at_ms: log time
    """

    outcome: Outcome
    client_id: str
    instance_id: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Reuse:
    """A client id that two instances use at once.

    :ivar other: the instance that was heard of before
    :ivar at_ms: log time of the last message that shows it
    """

    instance_id: str
    other: str
    at_ms: int


@dataclass(slots=True)
class Garbage:
    """What had no effect on a coordination partition.

    :ivar unreadable: values that are no message
    :ivar misplaced: messages whose topic belongs to another coordination partition
    :ivar offset: of the last of them
    :ivar reason: of the last of them
    """

    unreadable: int = 0
    misplaced: int = 0
    offset: int = -1
    reason: str = ""


@dataclass(slots=True)
class Observer:
    """Applies entries to a world state.

    :ivar changes: by place
    :ivar clocks: of the instances
    :ivar reuses: by group and client id
    :ivar garbage: by coordination partition
    """

    world: WorldState
    changes: dict[Place, Change] = field(default_factory=dict)
    clocks: Clocks = field(default_factory=lambda: Clocks(limit_ms=0))
    reuses: dict[tuple[str, str], Reuse] = field(default_factory=dict)
    garbage: dict[int, Garbage] = field(default_factory=dict)
    _instances: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def take(self, entry: Entry, now_ms: int) -> Outcome:
        """Apply the next entry of its partition.

        :param now_ms: the reader's clock, ms since the Unix epoch
        """
        outcome = self.world.apply(entry, now_ms // 1000)
        message = entry.message
        if isinstance(message, str):
            self._skipped(entry, message)
            return outcome
        if self.world.is_misplaced(entry):
            self._skipped(entry, f"{message.topic} belongs to another coordination partition")
        at_ms = self.world.log_time_ms(entry.partition)
        if entry.is_append_time:
            self.clocks.measure(message.client_id, message.instance_id, message.time, entry.time_ms)
        self._see_instance(message, at_ms)
        if outcome in _CHANGES:
            place = Place(message.group_id, message.topic, message.partition)
            self.changes[place] = Change(outcome, message.client_id, message.instance_id, at_ms)
        return outcome

    def _skipped(self, entry: Entry, reason: str) -> None:
        garbage = self.garbage.setdefault(entry.partition, Garbage())
        if isinstance(entry.message, str):
            garbage.unreadable += 1
        else:
            garbage.misplaced += 1
        garbage.offset, garbage.reason = entry.offset, reason

    def _see_instance(self, message: Any, at_ms: int) -> None:
        key = message.group_id, message.client_id
        known = self._instances.setdefault(key, [])
        if not known or known[-1] == message.instance_id:
            known[:] = known or [message.instance_id]
            return
        if message.instance_id in known:
            self.reuses[key] = Reuse(message.instance_id, known[-1], at_ms)
            known.remove(message.instance_id)
        known.append(message.instance_id)
        del known[:-FORMER_INSTANCES]
