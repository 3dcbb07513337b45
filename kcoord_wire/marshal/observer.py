"""A world state, and what a person wants to know beyond it: since when, whose clock is off, where readers disagree.

The Go library judges a claim by the clock of the reader at the moment at which it reads. A reader that was there when
the claims were made has another clock at each entry than one that reads the same log later, so their states differ, and
nothing in the log corrects that before the next heartbeat. `Rules.DOCUMENT` has one reader: it looks at no clock.

Laws:

* It changes nothing of what the world state says.
* A clock is measured (`context.Clocks`) only where the broker sets the time of records.
* Of ranges of offsets it keeps who has left which offsets behind, until they are done.
* Two instances of one client id are a restart while the first one is silent after the second has begun; one message of
  the first after that makes them a reuse.
* A divergence is reported where it begins: at the entry after which two readers first see a place differently, again
  when what one of them sees changes, and when they agree again. Without divergences every reader saw the same holder
  and position after each entry.

Source: Marshal PROTOCOL.md, "Determining World State" ("everybody coming to the same conclusion about the world state
given the same log"); the Go library's measured behaviour.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

from kcoord_wire.marshal.context import Clocks
from kcoord_wire.marshal.ranges import Range, RangeOutcome, RangePlace, RangeState, range_place
from kcoord_wire.marshal.world_state import (
    HEARTBEAT_INTERVAL_S,
    Claim,
    Entry,
    Freshness,
    Outcome,
    Place,
    Rules,
    WorldState,
)
from kcoord_wire.messages.marshal import ClaimingRange, RangeHeartbeat, ReleasingRange

FORMER_INSTANCES: Final = 8
"""Of one client id that are remembered: as many restarts as may lie between two messages of a reused id."""

_CHANGES: Final = frozenset({Outcome.CLAIMED, Outcome.TAKEN_OVER, Outcome.RELEASED})
_OF_RANGES: Final = (ClaimingRange, RangeHeartbeat, ReleasingRange)


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


class RangeLeft(NamedTuple):
    """Offsets of a range that has ended before they were processed.

    :ivar end: the offset behind them; `ranges.UNKNOWN_END` if the claim was trimmed
    :ivar is_released: by its holder; else it became stale
    :ivar at_ms: log time of the release, or of the last heartbeat
    """

    first: int
    end: int
    client_id: str
    instance_id: str
    is_released: bool
    at_ms: int

    @classmethod
    def of(cls, held: Range, *, is_released: bool, at_ms: int) -> Self:
        """What its holder has not processed of a range."""
        return cls(held.current, held.end, held.client_id, held.instance_id, is_released, at_ms)


@dataclass(slots=True)
class Observer:
    """Applies entries to a world state.

    :ivar ranges: of offsets, judged as the document does
    :ivar left: by place of a range, the latest at the end
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
    ranges: RangeState = field(init=False)
    left: dict[RangePlace, list[RangeLeft]] = field(default_factory=dict)
    _instances: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ranges = RangeState(self.world)

    def observe(self, entry: Entry, now_ms: int) -> Outcome:
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
        if isinstance(message, _OF_RANGES):
            self._see_range(entry, at_ms)
        return outcome

    def _see_range(self, entry: Entry, at_ms: int) -> None:
        """Apply an entry to the ranges, and note those that have ended with something left."""
        at = range_place(entry.message)
        before = list(found.held.values()) if (found := self.ranges.places.get(at)) is not None else []
        outcome = self.ranges.apply(entry)
        for held in before:
            is_over = self.ranges.places[at].held.get(held.first) is not held
            if is_over and held.current < held.end:
                is_released = outcome is RangeOutcome.RELEASED and held.first == entry.message.first_offset
                ended_ms = at_ms if is_released else held.heartbeat_ms
                left = self.left.setdefault(at, [])
                left[:] = [each for each in left if not self.ranges.places[at].is_done(each.first, each.end)]
                left.append(RangeLeft.of(held, is_released=is_released, at_ms=ended_ms))

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


class Read(NamedTuple):
    """An entry, and when the live reader read it.

    :ivar read_at: its clock, whole seconds since the Unix epoch
    """

    entry: Entry
    read_at: int


class Reader(NamedTuple):
    """Somebody who reads the log.

    :ivar at: the clock at which it reads everything, whole seconds since the Unix epoch; None for one that reads each
        entry when the live reader does
    """

    name: str
    rules: Rules
    at: int | None = None


class Belief(NamedTuple):
    """What a reader believes of a place.

    :ivar holder: instance with a live claim; None for none
    :ivar position: next offset to consume
    :ivar outcome: what the entry has done, for this reader
    :ivar why: that, in a sentence
    """

    reader: str
    holder: str | None
    position: int
    outcome: Outcome
    why: str


@dataclass(frozen=True, slots=True)
class Divergence:
    """After an entry readers see a place differently, or for the first time alike again.

    :ivar beliefs: of each reader, in their order
    :ivar is_over: they agree again
    """

    entry: Entry
    place: Place
    beliefs: tuple[Belief, ...]
    is_over: bool

    def __str__(self) -> str:
        what = "agreed again" if self.is_over else "divergence"
        where = f"{self.place.group_id}/{self.place.topic}-{self.place.partition}"
        lines = [f"{what} on {where} at {self.entry.partition}:{self.entry.offset}"]
        return "\n".join(lines + [f"  {belief.reader}: {belief.why}" for belief in self.beliefs])


_DONE: Final[dict[Outcome, str]] = {
    Outcome.CLAIMED: "wins the claim",
    Outcome.CLAIM_REFUSED: "is refused the claim",
    Outcome.CLAIM_REPEATED: "repeats its claim",
    Outcome.RENEWED: "renews its claim",
    Outcome.TAKEN_OVER: "takes the claim over by a heartbeat",
    Outcome.HEARTBEAT_REFUSED: "sends a heartbeat that does not count",
    Outcome.RELEASED: "releases it",
    Outcome.RELEASE_REFUSED: "sends a release that does not count",
}


def diverging(
    reads: Iterable[Read],
    readers: Sequence[Reader],
    partitions: int | None = None,
    heartbeat_interval_s: int = HEARTBEAT_INTERVAL_S,
) -> Iterator[Divergence]:
    """Yield where readers of one log disagree, by entry.

    :param reads: the log, the entries of each coordination partition in order
    :param readers: two or more
    :param partitions: of the coordination topic; None if that is not known
    """
    states = [WorldState(reader.rules, heartbeat_interval_s, partitions) for reader in readers]
    seen: dict[Place, tuple[tuple[str | None, int], ...]] = {}
    for entry, read_at in reads:
        nows = [read_at if reader.at is None else reader.at for reader in readers]
        place = _place(entry)
        before = [None if place is None else state.claims.get(place) for state in states]
        ages = [_age(*each, entry) for each in zip(states, before, nows, strict=True)]
        outcomes = [state.apply(entry, now) for state, now in zip(states, nows, strict=True)]
        if place is None:
            continue
        beliefs = tuple(
            _belief(reader, state, place, entry, now, outcome, age)
            for reader, state, now, outcome, age in zip(readers, states, nows, outcomes, ages, strict=True)
        )
        views = tuple((belief.holder, belief.position) for belief in beliefs)
        is_alike = len(set(views)) == 1
        before_views = seen.pop(place, None)
        if not is_alike:
            seen[place] = views
        if before_views != (None if is_alike else views):
            yield Divergence(entry, place, beliefs, is_alike)


def _place(entry: Entry) -> Place | None:
    message = entry.message
    topic = getattr(message, "topic", "")
    return Place(message.group_id, topic, message.partition) if topic else None


def _now(state: WorldState, entry: Entry, now: int) -> int:
    """Return the time by which a state judges: the reader's, s, or the log's, ms."""
    return now if state.rules is Rules.LIBRARY else state.log_time_ms(entry.partition)


def _age(state: WorldState, claim: Claim | None, now: int, entry: Entry) -> str:
    """Describe the claim that an entry meets."""
    if claim is None:
        return "no member has held it"
    log_ms = entry.time_ms if entry.is_append_time else getattr(entry.message, "time", 0) * 1000
    at = now if state.rules is Rules.LIBRARY else max(log_ms, state.log_time_ms(entry.partition))
    freshness = state.freshness(claim, at)
    if freshness is Freshness.FREE:
        return f"{claim.instance_id} has released it"
    age_s = at - claim.last_heartbeat if state.rules is Rules.LIBRARY else (at - claim.heartbeat_ms) // 1000
    clock = "this reader's clock" if state.rules is Rules.LIBRARY else "the log's time"
    when = f"{age_s} s old" if age_s >= 0 else f"{-age_s} s in the future"
    live = "stale" if freshness is Freshness.STALE else "live"
    return f"by {clock} the heartbeat of {claim.instance_id} is {when} and {live}"


def _belief(
    reader: Reader, state: WorldState, place: Place, entry: Entry, now: int, outcome: Outcome, age: str
) -> Belief:
    claim = state.claims.get(place)
    is_held = claim is not None and state.is_claimed(claim, _now(state, entry, now))
    holder = claim.instance_id if claim is not None and is_held else None
    position = 0 if claim is None else claim.current_offset
    done = _DONE.get(outcome, "has no effect on the claim")
    now_held = f"held by {holder}" if holder is not None else "not held"
    why = f"{age}, so {entry.message.instance_id} {done}; it is {now_held}, position {position}"
    return Belief(reader.name, holder, position, outcome, why)
