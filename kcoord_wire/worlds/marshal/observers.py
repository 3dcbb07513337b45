"""Readers of a virtual log that compute its state and send nothing, beside one that sees each entry when it lands.

Laws; a broken one raises `ViolationError`. With `Rules.DOCUMENT`:

* ``agreement``: each entry has the same outcome and leaves the same claim for every reader, whatever its clock, its lag
  and the time at which it began. A reader that began after a part of the log was trimmed agrees from the moment on at
  which the partition `is_warm`, but for offsets and tokens that were trimmed.
* ``garbage``: what is no message, and what lies on the wrong coordination partition, changes no claim.

With `Rules.LIBRARY` the differences are counted by kind (`anomalies`).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.kernel.virtual.violation import ViolationError
from kcoord_wire.marshal.machine import WorldState
from kcoord_wire.marshal.state import Certainty, Claim, Entry, Outcome, Place, Rules
from kcoord_wire.worlds.marshal.anomalies import Anomalies, Anomaly
from kcoord_wire.worlds.marshal.log import Reader, VirtualLog


class Verdict(NamedTuple):
    """What an entry has done, for a reader that saw it when it landed.

    :ivar at_ms: when that was
    :ivar claim: of the entry's place, afterwards; None if the entry names none, or lies on the wrong partition
    """

    at_ms: int
    outcome: Outcome
    claim: Claim | None


def place_of(message: Any) -> Place | None:
    """Return the partition that a message speaks of; None if it speaks of none."""
    topic, partition = getattr(message, "topic", ""), getattr(message, "partition", None)
    return None if not topic or partition is None else Place(message.group_id, topic, partition)


class Truth:
    """The reader that sees each entry when it lands, by the true time.

    :ivar world: its state
    :ivar anomalies: of readers
    """

    def __init__(self, clock: VirtualClock, world: WorldState, anomalies: Anomalies) -> None:
        self.world = world
        self._clock = clock
        self.anomalies = anomalies
        self._verdicts: dict[tuple[int, int], Verdict] = {}

    def apply(self, entry: Entry) -> tuple[Claim | None, Verdict]:
        """Take in an entry that has landed; return the claim of its place before it, and what became of it."""
        world, place = self.world, place_of(entry.message)
        before = None if place is None else copy(world.claims.get(place))
        was_live = before is not None and world.is_claimed(before, self._now(entry))
        outcome = world.apply(entry, self._clock.time_ms // 1000)
        verdict = _verdict(world, entry, outcome, self._clock.time_ms)
        self._verdicts[entry.partition, entry.offset] = verdict
        is_garbage = isinstance(entry.message, str) or (world.rules is Rules.DOCUMENT and world.is_misplaced(entry))
        after = None if before is None else world.claims.get(before.place)
        if is_garbage and (outcome is not Outcome.SKIPPED or after != before):
            raise ViolationError("garbage", f"{entry} is {outcome}: {before} becomes {after}")
        if outcome is Outcome.TAKEN_OVER and was_live and world.rules is Rules.LIBRARY:
            self._overwritten(entry, before)
        return before, verdict

    def _overwritten(self, entry: Entry, before: Claim | None) -> None:
        if before is not None and before.client_id != entry.message.client_id:
            self.anomalies.add(Anomaly.OVERWRITTEN, f"{entry} overwrites {before}")

    def _now(self, entry: Entry) -> int:
        if self.world.rules is Rules.LIBRARY:
            return self._clock.time_ms // 1000
        return self.world.log_time_ms(entry.partition)

    def verdict(self, entry: Entry) -> Verdict:
        """Return what an entry has done."""
        return self._verdicts[entry.partition, entry.offset]


def _verdict(world: WorldState, entry: Entry, outcome: Outcome, at_ms: int) -> Verdict:
    place = place_of(entry.message)
    claim = None if place is None or world.is_misplaced(entry) else world.claims.get(place)
    return Verdict(at_ms, outcome, None if claim is None else replace(claim, handoff=copy(claim.handoff)))


def _agree(found: Verdict, true: Verdict) -> bool:
    """Whether a reader of a trimmed log agrees on what it can know: who holds the claim, since when and by which token.

    A claim that it infers may be another one, if former holders have sent heartbeats.
    """
    mine, other = found.claim, true.claim
    if mine is None or mine.certainty is not Certainty.CERTAIN:
        return True
    if other is None or mine.last_heartbeat == 0:
        return found.outcome is true.outcome
    return _holder(mine) == _holder(other)


def _holder(claim: Claim) -> tuple[Any, ...]:
    return claim.instance_id, claim.client_id, claim.last_heartbeat, claim.heartbeat_ms, claim.token


class Observer:
    """A reader with a clock of its own.

    :param ahead_ms: how far its clock is ahead
    :param late_ms: from this lag on a reader has come later, and not in time
    :ivar read: how many entries it has read
    """

    def __init__(
        self,
        clock: VirtualClock,
        log: VirtualLog,
        truth: Truth,
        random: Random,
        lag_ms: tuple[int, int],
        ahead_ms: int,
        late_ms: int,
    ) -> None:
        world = truth.world
        self.world = WorldState(world.rules, world.heartbeat_interval_s, world.partitions)
        self.ahead_ms = ahead_ms
        self.read = 0
        self._clock = clock
        self._log = log
        self._truth = truth
        self._late_ms = late_ms
        self._is_trimmed = {number: log.first(number) > 0 for number in range(log.partitions)}
        self._reader = Reader(clock, log, random, range(log.partitions), lag_ms, self._see)

    def close(self) -> None:
        """Read nothing more."""
        self._reader.close()

    def _see(self, entries: Sequence[Entry]) -> None:
        self._clock.steps += 1
        now = (self._clock.time_ms + self.ahead_ms) // 1000
        for entry in entries:
            self.read += 1
            outcome = self.world.apply(entry, now)
            found = _verdict(self.world, entry, outcome, self._clock.time_ms)
            if self.world.rules is Rules.LIBRARY:
                self._count(entry, found)
            elif self.world.is_warm(entry.partition):
                self._compare(entry, found)

    # ---- by the document

    def _compare(self, entry: Entry, found: Verdict) -> None:
        true = self._truth.verdict(entry)
        is_same = _agree(found, true) if self._is_trimmed[entry.partition] else found[1:] == true[1:]
        if not is_same:
            what = f"{entry}: {found.outcome}, {found.claim}; at the landing {true.outcome}, {true.claim}"
            raise ViolationError("agreement", what)

    # ---- by the library

    def _count(self, entry: Entry, found: Verdict) -> None:
        true = self._truth.verdict(entry)
        if found.outcome is true.outcome:
            return
        what = f"{entry}: {found.outcome}, {found.claim}; at the landing {true.outcome}, {true.claim}"
        is_late = self._clock.time_ms - true.at_ms >= self._late_ms
        anomalies = self._truth.anomalies
        if true.outcome is Outcome.RELEASED:
            anomalies.add(Anomaly.LOST_OFFSET, what)
        elif true.outcome is Outcome.CLAIM_REFUSED and found.outcome is Outcome.CLAIMED and is_late:
            anomalies.add(Anomaly.PHANTOM, what)
        elif {found.outcome, true.outcome} == {Outcome.CLAIMED, Outcome.CLAIM_REFUSED} and not is_late:
            anomalies.add(Anomaly.SKEWED, what)
