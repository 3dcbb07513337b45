"""The laws of members and readers, checked against the log and against the records that applications get.

Laws; a broken one raises `ViolationError`. With `Rules.DOCUMENT`, on a topic with LogAppendTime:

* ``one holder``: of two members at most one would give records of a partition to its application at a time. Two
  processes with one client id may do so until they have noticed each other, within one heartbeat interval after they
  have read the other's messages.
* ``holder``: the log has another holder only by a claim more than two heartbeat intervals of its time after the last
  entry that renewed the former one, by a heartbeat of the same client, or after a release of the holder's instance.
* ``tokens``: the fencing token of a tenure is larger than that of every earlier tenure of the partition.
* ``offsets``: the position in the log never goes back, but by other writers than members, such as the admin, and to
  the beginning of a topic that was created again.
* ``nothing lost``, at least once: the log's position never passes a record that was not processed, and a tenure begins
  with the first one that was not, or before it.
* ``repeats``, at least once: a record is given again only if it was processed within one heartbeat interval before the
  former tenure had its last record processed.
* ``at most once``: no record is given twice.

Each topic that was created under a name has records of its own: the laws on them hold for each by its id. Once a topic
was created again, a position is not looked at where the log has no id, because no holder could write it yet, or
retention has taken it.

By both rule sets a member begins no partition that it holds, and ends what it has begun, a second time at most if it
loses the partition before it could release it (``tenures``).

With `Rules.LIBRARY`, and on a topic with CreateTime, two holders are counted; the laws that follow from one holder are
not looked at.

Of readers that compute the log's state and send nothing (`Observer`), with `Rules.DOCUMENT`:

* ``agreement``: each entry has the same outcome and leaves the same claim for every reader, whatever its clock, its lag
  and the time at which it began. A reader that began after a part of the log was trimmed agrees from the moment on at
  which the partition `is_warm`, but for offsets and tokens that were trimmed.
* ``garbage``: what is no message, and what lies on the wrong coordination partition, changes no claim.

With `Rules.LIBRARY` the differences are counted by kind (`Anomaly`).

With `Rules.LIBRARY` the state that a reader computes depends on its clock at the moment of reading. So each kind below
is possible, and random runs count them; a run that looks for one kind ends with the first of it, as with a broken law.

Source: the Go library's measured behaviour.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.kernel.virtual.scripts import ViolationError
from kcoord_wire.marshal.log import coordination_partition
from kcoord_wire.marshal.member_events import Delivery, Tenure
from kcoord_wire.marshal.ranges import RangeOutcome, RangeState, range_place
from kcoord_wire.marshal.world_state import Certainty, Claim, Entry, Outcome, Place, Rules, WorldState
from kcoord_wire.messages.marshal import ClaimingRange
from kcoord_wire.worlds.marshal.virtual_log import Reader, VirtualLog, VirtualTopics

if TYPE_CHECKING:
    from kcoord_wire.worlds.marshal.processes import MemberProcess


_SLACK: Final = 1.05  # clocks that run differently
_MOVES: Final = (Outcome.RENEWED, Outcome.TAKEN_OVER, Outcome.RELEASED)


class Fetching:
    """A member's tenure, from `StartFetching` to the loss.

    :ivar topic_id: of the topic that it reads
    :ivar is_known: the log, as its member had read it, said which topic its position is of
    :ivar position: of the next record to give to the application
    :ivar is_running: whether it gives records to its application
    :ivar started_ms: when it began
    :ivar last_ms: when the last of its records was processed
    :ivar next: the first offset that it has not processed, of those from its start on
    :ivar processed: offsets behind it
    :ivar asked: end of the batch that was fetched last (at most once)
    :ivar drains_until: until when records that were given may still be processed; 0 for not at all
    :ivar end: behind the last offset of a range; None for a partition
    """

    __slots__ = (
        "asked",
        "drains_until",
        "end",
        "is_known",
        "is_running",
        "last_ms",
        "next",
        "position",
        "process",
        "processed",
        "started_ms",
        "tenure",
        "topic_id",
    )

    def __init__(
        self,
        process: MemberProcess,
        tenure: Tenure,
        topic_id: str,
        is_known: bool,
        position: int,
        end: int | None,
        now: int,
    ) -> None:
        self.end = end
        self.process = process
        self.tenure = tenure
        self.topic_id = topic_id
        self.is_known = is_known
        self.position = self.next = self.asked = position
        self.drains_until = 0
        self.is_running = True
        self.started_ms = self.last_ms = now
        self.processed: set[int] = set()

    def __str__(self) -> str:
        topic, partition, token = self.tenure
        return f"{self.process.name} with {topic}-{partition} by {token}"


class _Account:
    """The records of a partition of one topic.

    :ivar given: offsets from `low` on that an application was given
    :ivar done: of those, the processed ones
    :ivar low: each record before it was processed
    :ivar covered: offset to the tenure whose contiguous prefix has passed it, and when
    """

    __slots__ = ("covered", "done", "given", "low")

    def __init__(self) -> None:
        self.given: set[int] = set()
        self.done: set[int] = set()
        self.low = 0
        self.covered: dict[int, tuple[Fetching, int]] = {}


class _Holders:
    """The tenures of a partition, that run, and the largest token."""

    __slots__ = ("running", "token")

    def __init__(self) -> None:
        self.running: list[Fetching] = []
        self.token = -1


class Invariants:
    """The state that the laws speak of.

    :param is_lenient: two holders are counted, and the laws that follow from one holder are not looked at
    :ivar tenures: how many have begun
    """

    def __init__(
        self,
        clock: VirtualClock,
        topics: VirtualTopics,
        delivery: Delivery,
        interval_ms: int,
        anomalies: Anomalies,
        *,
        is_lenient: bool,
    ) -> None:
        self.tenures = 0
        self._clock = clock
        self._topics = topics
        self._is_lenient = is_lenient
        self._delivery = delivery
        self._interval_ms = interval_ms
        self._longest_ms = int(interval_ms * _SLACK)
        self._anomalies = anomalies
        self._accounts: defaultdict[tuple[Place, str], _Account] = defaultdict(_Account)
        self._holders: defaultdict[Place, _Holders] = defaultdict(_Holders)
        self._members: set[str] = set()
        self._written: dict[tuple[str, Place], int] = {}
        self._pairs: set[frozenset[Fetching]] = set()

    def _account(self, fetching: Fetching) -> _Account:
        return self._accounts[self._place(fetching), fetching.topic_id]

    def _place(self, fetching: Fetching) -> Place:
        return Place(fetching.process.settings.group_id, *fetching.tenure[:2])

    # ---- the log

    def is_member(self, instance_id: str) -> None:
        """An instance keeps to the laws; others, such as an admin's, may move a position anywhere."""
        self._members.add(instance_id)

    def appended(self, entry: Entry, before: Claim | None, verdict: Verdict) -> None:
        """An entry has landed."""
        claim = verdict.claim
        if self._is_lenient or claim is None:
            return
        if before is not None and before.last_heartbeat:
            self._check_holder(entry, before, verdict.outcome, claim.heartbeat_ms - before.heartbeat_ms)
        if verdict.outcome not in _MOVES:
            self._check_reset(entry, before, claim, verdict.outcome)
            return
        topic_id = claim.topic_id or self._topics.ids[claim.place.topic]
        account = self._accounts[claim.place, topic_id]
        if claim.instance_id not in self._members:
            self._written[claim.instance_id, claim.place] = claim.current_offset
            self._reset(account, claim.current_offset)
            return
        if not claim.topic_id and self._topics.has_recreated:
            return
        self._check_moved(entry, before, claim, account)

    def _check_moved(self, entry: Entry, before: Claim | None, claim: Claim, account: _Account) -> None:
        if before is not None and claim.current_offset < before.current_offset:
            raise ViolationError("offsets", f"{entry} moves {claim.place} back from {before.current_offset}")
        is_moved = before is None or claim.current_offset > before.current_offset  # else retention may have taken it
        if is_moved and self._delivery is Delivery.AT_LEAST_ONCE and claim.current_offset > self._low(account):
            raise ViolationError("nothing lost", f"{entry}: of {claim.place} only those before {account.low} are done")

    def _check_reset(self, entry: Entry, before: Claim | None, claim: Claim, outcome: Outcome) -> None:
        is_back = before is not None and claim.current_offset < before.current_offset
        if not is_back or before is None:
            return
        # A message that names the topic for the first time moves the position only if it has another one.
        is_named = outcome is Outcome.IDENTIFIED and not before.topic_id and entry.message.current_offset < 0
        if is_named or before.topic_id == claim.topic_id:
            raise ViolationError("offsets", f"{entry} moves {claim.place} back from {before.current_offset}")

    def written_by(self, instance_id: str, group_id: str, topic: str, partition: int) -> int | None:
        """Return the last position that an instance, not a member's, has written; None for none."""
        return self._written.get((instance_id, Place(group_id, topic, partition)))

    def _check_holder(self, entry: Entry, before: Claim, outcome: Outcome, age_ms: int) -> None:
        message = entry.message
        is_wrong = {
            Outcome.CLAIMED: age_ms <= 2 * self._interval_ms,
            Outcome.TAKEN_OVER: message.client_id != before.client_id,
            Outcome.RELEASED: message.instance_id != before.instance_id,
        }
        if is_wrong.get(outcome):
            raise ViolationError("holder", f"{entry}: {outcome}, {age_ms} ms after {before}")

    def _reset(self, account: _Account, offset: int) -> None:
        account.low = offset
        for offsets in (account.given, account.done):
            offsets.clear()
        account.covered.clear()

    def _low(self, account: _Account) -> int:
        low, done = account.low, account.done
        while low in done or not self._topics.is_record(low):
            done.discard(low)
            low += 1
        account.low = low
        return low

    # ---- tenures

    def started(self, fetching: Fetching) -> None:
        """A member begins to fetch."""
        self.tenures += 1
        holders = self._holders[self._place(fetching)]
        if any(other.process is fetching.process for other in holders.running):
            raise ViolationError("tenures", f"{fetching} begins and holds it already")
        holders.running.append(fetching)
        self._check_one(fetching)
        if self._is_lenient:
            return
        token = fetching.tenure.token
        if token <= holders.token:
            raise ViolationError("tokens", f"{fetching} begins after a tenure with {holders.token}")
        holders.token = token
        account = self._account(fetching)
        if self._topics.has_recreated and not fetching.is_known:
            self._reset(account, fetching.position)
            return
        if self._delivery is Delivery.AT_LEAST_ONCE and fetching.position > self._low(account):
            raise ViolationError("nothing lost", f"{fetching} begins at {fetching.position}, behind {account.low}")

    def ended(self, fetching: Fetching) -> None:
        """A member has stopped fetching, or was killed."""
        running = self._holders[self._place(fetching)].running
        if fetching not in running:
            raise ViolationError("tenures", f"{fetching} ends twice")
        running.remove(fetching)

    def _check_one(self, fetching: Fetching) -> None:
        now = self._clock.time_ms
        for other in self._holders[self._place(fetching)].running:
            if other is fetching or other.process.is_paused or not other.is_running:
                continue
            newest = max(fetching.started_ms, other.started_ms)
            is_reused = other.process.settings.client_id == fetching.process.settings.client_id
            read_after_ms = max(each.process.reader.lag_ms[1] for each in (fetching, other))
            if is_reused and now - newest <= self._longest_ms + read_after_ms:
                continue
            self._found_two(fetching, other)

    def _found_two(self, fetching: Fetching, other: Fetching) -> None:
        what = f"{fetching} beside {other}"
        if not self._is_lenient:
            raise ViolationError("one holder", what)
        pair = frozenset((fetching, other))
        if pair not in self._pairs:
            self._pairs.add(pair)
            self._anomalies.add(Anomaly.TWO_HOLDERS, what)

    # ---- records

    def given(self, fetching: Fetching, offset: int) -> None:
        """An application gets a record."""
        self._check_one(fetching)
        if self._is_lenient:
            return
        account = self._account(fetching)
        is_again = offset in account.given
        if is_again and self._delivery is Delivery.AT_MOST_ONCE:
            raise ViolationError("at most once", f"{fetching} gives record {offset} again")
        if is_again and (covered := account.covered.get(offset)) is not None:
            former, at = covered
            if at < former.last_ms - self._longest_ms:
                text = f"{fetching} gives record {offset} again, which {former} had processed"
                raise ViolationError("repeats", f"{text} {former.last_ms - at} ms before its last one")
        account.given.add(offset)

    def processed(self, fetching: Fetching, offset: int) -> None:
        """The member has taken in that a record was processed."""
        account, now = self._account(fetching), self._clock.time_ms
        fetching.last_ms = now
        fetching.processed.add(offset)
        if offset >= account.low:
            account.done.add(offset)
        while fetching.next in fetching.processed or not self._topics.is_record(fetching.next):
            fetching.processed.discard(fetching.next)
            account.covered[fetching.next] = (fetching, now)
            fetching.next += 1


class Anomaly(enum.StrEnum):
    """A kind.

    Each but the first two compares a reader with one that has read each entry when it landed, by the true time.
    """

    TWO_HOLDERS = "two holders"  # two members that would deliver records of a partition at one time
    OVERWRITTEN = "overwritten by late heartbeat"  # of a former holder, while another member's claim is live
    PHANTOM = "phantom claim by replay"  # a reader that came later takes a claim for won, which was refused
    LOST_OFFSET = "lost released offset"  # it drops a release that was in force, and with it the offset
    SKEWED = "claim misjudged by a skewed clock"  # a reader that came in time takes a claim for won or refused


class Anomalies:
    """How often each kind was seen.

    :param looks_for: the kind that ends the run; None for none
    """

    def __init__(self, looks_for: Anomaly | None = None) -> None:
        self.found: Counter[Anomaly] = Counter()
        self._looks_for = looks_for

    def add(self, kind: Anomaly, what: str) -> None:
        """Count one.

        :raises ViolationError: it is looked for
        """
        self.found[kind] += 1
        if kind is self._looks_for:
            raise ViolationError(kind.value, what)


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
        self._ranges = RangeState(world)
        self._range_outcomes: dict[tuple[int, int], RangeOutcome] = {}

    def range_outcome(self, entry: Entry) -> RangeOutcome:
        """Return what an entry has done to the ranges."""
        return self._range_outcomes[entry.partition, entry.offset]

    def was_done(self, claim: ClaimingRange) -> bool:
        """Return whether any offset of a range is done: a reader of a trimmed log may not know it."""
        done = self._ranges.of(range_place(claim), coordination_partition(claim.topic, self.world.partitions or 1)).done
        return any(first < claim.end_offset and claim.first_offset < end for first, end in done)

    def apply(self, entry: Entry) -> tuple[Claim | None, Verdict]:
        """Take in an entry that has landed; return the claim of its place before it, and what became of it."""
        world, place = self.world, place_of(entry.message)
        before = None if place is None else copy(world.claims.get(place))
        was_live = before is not None and world.is_claimed(before, self._now(entry))
        outcome = world.apply(entry, self._clock.time_ms // 1000)
        self._range_outcomes[entry.partition, entry.offset] = self._ranges.apply(entry)
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
        self.ranges = RangeState(self.world)
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
            self._check_ranges(entry, self.ranges.apply(entry))
            found = _verdict(self.world, entry, outcome, self._clock.time_ms)
            if self.world.rules is Rules.LIBRARY:
                self._count(entry, found)
            elif self.world.is_warm(entry.partition):
                self._compare(entry, found)

    # ---- by the document

    def _check_ranges(self, entry: Entry, found: RangeOutcome) -> None:
        true = self._truth.range_outcome(entry)
        is_trimmed = self._is_trimmed[entry.partition]
        is_free = is_trimmed and (found is not RangeOutcome.CLAIMED or self._truth.was_done(entry.message))
        if found is not true and not is_free:
            raise ViolationError("same ranges", f"{entry}: {found}; at the landing {true}")

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
