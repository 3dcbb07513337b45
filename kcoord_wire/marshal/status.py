"""The state of groups, with the reason why each partition is where it is.

Laws:

* Every partition of a topic that a group was heard of about has one row, also one that was never claimed.
* A member that holds nothing and sends no Presence is not in the log, so a row never says that there is no member, only
  that none was heard of.
* Where ranges are claimed, every offset from the group's committed one on is in one row of ranges.
* Rows are what an entry that is appended now would find: by the rules of the library at the reader's clock, by those of
  the document at the reader's clock or the log's time, whichever is later.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from kcoord_wire.marshal.log import coordination_partition
from kcoord_wire.marshal.observer import Garbage, Observer, RangeLeft, Reuse
from kcoord_wire.marshal.ranges import UNKNOWN_END, Range, RangePlace
from kcoord_wire.marshal.world_state import ADMIN_PREFIX, Claim, Freshness, KnownMember, Place, Rules

DAY_MS: Final = 86_400_000
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000


class Situation(enum.StrEnum):
    """Where a partition is."""

    HELD = "held"
    SILENT = "silent"  # held, without a heartbeat for one interval: the holder has fenced itself
    HANDING_OVER = "handing over"
    AHEAD = "ahead"  # the holder's clock is ahead, so the Go library takes the partition for unclaimed
    STALE = "stale"
    PAUSED = "paused"
    COOLDOWN = "cooldown"  # its last holder released it, and is the only candidate
    CLIENT_ID_REUSED = "client id reused"
    FULL = "full"  # all candidates hold as much as they may
    CLAIMABLE = "claimable"
    NO_MEMBER = "no member"


@dataclass(slots=True)
class PartitionStatus:
    """One partition for one group.

    :ivar client_id: of the holder; of the last one if it is not held; empty if there was none
    :ivar token: fencing token of the tenure, -1 if it is not known or not held
    :ivar age_ms: since the last heartbeat; None if it is not claimed
    :ivar since_ms: ms since the Unix epoch of the last change of the holder; None if it is not known
    :ivar position: next offset to consume; None if it is not known
    :ivar position_from: ``log``, ``committed``, or empty
    :ivar end: offset behind the last record; None if it is not known
    :ivar why: a sentence
    """

    place: Place
    situation: Situation
    why: str
    client_id: str = ""
    instance_id: str = ""
    token: int = -1
    freshness: Freshness = Freshness.FREE
    age_ms: int | None = None
    since_ms: int | None = None
    position: int | None = None
    position_from: str = ""
    end: int | None = None

    @property
    def is_held(self) -> bool:
        """Whether its claim is live: another one is refused."""
        return self.situation in (Situation.HELD, Situation.SILENT, Situation.HANDING_OVER)

    @property
    def lag(self) -> int | None:
        """Records behind the end; None if it is not known."""
        return None if self.position is None or self.end is None else max(self.end - self.position, 0)


class RangeSituation(enum.StrEnum):
    """Where offsets of a partition are, of which members claim ranges."""

    HELD = "held"
    SILENT = "silent"  # held, without a heartbeat for one interval: the holder has fenced itself
    RELEASED = "released"  # not processed, and free
    STALE = "stale"  # likewise, of a holder that was silent for too long
    FREE = "free"  # never claimed, as far as the log goes back
    DONE = "done"


@dataclass(slots=True)
class RangeStatus:
    """A range of offsets for one group.

    :ivar topic_id: of the topic of which it is
    :ivar end: the offset behind it; None for a claimed one whose claim was trimmed, and for the end of the partition
        where that is not known
    :ivar client_id: of the holder; of the last one if it is released or stale; else empty
    :ivar token: fencing token of the tenure, -1 if it is not known or not held
    :ivar age_ms: since the last heartbeat; None if it is not held
    :ivar position: next offset to process; None if it is not held
    :ivar why: a sentence
    """

    place: Place
    topic_id: str
    first: int
    end: int | None
    situation: RangeSituation
    why: str
    client_id: str = ""
    instance_id: str = ""
    token: int = -1
    age_ms: int | None = None
    position: int | None = None


@dataclass(slots=True)
class MemberStatus:
    """An instance that was heard of within the last two heartbeat intervals, about one topic.

    :ivar holds: partitions of the topic
    :ivar max_claims: of its Presence, 0 for any number; None if it sends none
    :ivar clock_ms: how far its clock is ahead, at least; None if the log's times are not the broker's
    :ivar reuses_id_of: another instance with its client id; empty if there is none
    """

    group_id: str
    topic: str
    client_id: str
    instance_id: str
    seen_ms: int
    holds: int
    max_claims: int | None
    clock_ms: int | None
    reuses_id_of: str

    @property
    def is_admin(self) -> bool:
        """It sets positions, and consumes nothing."""
        return self.client_id.startswith(ADMIN_PREFIX)


@dataclass(slots=True)
class Status:
    """What the log says at a moment.

    :ivar now_ms: the reader's clock
    :ivar ranges: of the topics that are there now; none by the rules of the library, which skip them
    :ivar paused_until: by group, ms since the Unix epoch; those that are paused now
    :ivar garbage: by coordination partition
    :ivar cold: coordination partitions whose beginning was trimmed so lately that another reader may know more
    """

    rules: Rules
    now_ms: int
    partitions: list[PartitionStatus] = field(default_factory=list)
    members: list[MemberStatus] = field(default_factory=list)
    ranges: list[RangeStatus] = field(default_factory=list)
    paused_until: dict[str, int] = field(default_factory=dict)
    garbage: dict[int, Garbage] = field(default_factory=dict)
    cold: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Positions:
    """What Kafka has beside the log.

    :ivar counts: partitions by topic
    :ivar ends: offset behind the last record, by topic and partition
    :ivar committed: the groups' committed offsets
    :ivar topic_ids: by topic, where the brokers have them
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    ends: Mapping[tuple[str, int], int] = field(default_factory=dict)
    committed: Mapping[Place, int] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)


def status_of(observer: Observer, now_ms: int, positions: Positions, group_id: str | None = None) -> Status:
    """Return the state of all groups, or of one.

    :param now_ms: the reader's clock, ms since the Unix epoch
    """
    judge = _StatusRows(observer, now_ms, positions)
    world = observer.world
    status = Status(world.rules, now_ms, garbage=dict(observer.garbage))
    about = {(place.group_id, place.topic) for place in world.claims} | world.members.keys()
    for group, topic in sorted(about):
        if topic and group_id in (None, group):  # ReleaseGroup names no topic
            members = judge.members(group, topic)
            status.members += members
            status.partitions += judge.partitions(group, topic, members)
    if world.rules is Rules.DOCUMENT:
        for at in sorted(observer.ranges.places):
            if group_id in (None, at.place.group_id):
                status.ranges += _RangeRows(observer, now_ms, positions, at).rows()
    for group, partition in sorted(world.pauses):
        until = judge.paused_on(group, partition) if group_id in (None, group) else None
        if until is not None:
            status.paused_until[group] = max(until, status.paused_until.get(group, 0))
    status.cold = [partition for partition in range(world.partitions or 0) if not world.is_warm(partition)]
    return status


class _Candidates:
    """Why those who could claim a partition of a topic have not done so."""

    def __init__(self, members: list[MemberStatus]) -> None:
        self._members = members
        self._judged: dict[str, tuple[Situation, str]] = {}

    def without(self, instance_id: str) -> tuple[Situation, str]:
        """Return that for a partition that one instance does not claim now; empty for none."""
        if instance_id not in self._judged:
            self._judged[instance_id] = self._judge([each for each in self._members if each.instance_id != instance_id])
        return self._judged[instance_id]

    def _judge(self, members: list[MemberStatus]) -> tuple[Situation, str]:
        if not self._members:
            return Situation.NO_MEMBER, "no member was heard of"
        if not members:
            return Situation.COOLDOWN, "which waits out its cooldown"
        usable = [each for each in members if not each.reuses_id_of]
        if not usable:
            who = "the only candidate reuses" if len(members) == 1 else "all candidates reuse"
            first = members[0]
            return Situation.CLIENT_ID_REUSED, f"{who} the client id of {first.reuses_id_of} ({first.client_id})"
        free = [each for each in usable if not each.max_claims or each.holds < each.max_claims]
        if not free:
            return Situation.FULL, "its members are at their max_claims"
        names = sorted({each.client_id for each in free})
        return Situation.CLAIMABLE, f"{', '.join(names[:3])}{' and others' if names[3:] else ''} may claim it"


class _StatusRows:
    """Rows of a status."""

    def __init__(self, observer: Observer, now_ms: int, positions: Positions) -> None:
        self._observer = observer
        self._world = observer.world
        self._now_ms = now_ms
        self._positions = positions
        self._interval_ms = self._world.heartbeat_interval_s * 1000
        self._claims: dict[tuple[str, str], dict[int, Claim]] = {}
        for place, claim in self._world.claims.items():
            self._claims.setdefault((place.group_id, place.topic), {})[place.partition] = claim

    # ---- rows

    def partitions(self, group: str, topic: str, members: list[MemberStatus]) -> Iterator[PartitionStatus]:
        """Yield the rows of a topic."""
        claims = self._claims.get((group, topic), {})
        known = {*range(self._positions.counts.get(topic, 0)), *claims}
        candidates = _Candidates([each for each in members if not each.is_admin])
        for partition in sorted(known):
            place = Place(group, topic, partition)
            yield self._row(claims.get(partition) or Claim(place), candidates)

    def members(self, group: str, topic: str) -> list[MemberStatus]:
        """Return the instances that were heard of lately."""
        now = self._log_now_ms(topic)
        found = self._world.members.get((group, topic), {}).values()
        live = [each for each in found if now - each.seen_ms <= 2 * self._interval_ms]
        claims = self._claims.get((group, topic), {}).values()
        holds = Counter(claim.instance_id for claim in claims if self._is_claimed(claim))
        return [self._member(group, topic, each, holds[each.instance_id]) for each in live]

    def _member(self, group: str, topic: str, member: KnownMember, holds: int) -> MemberStatus:
        clock = self._observer.clocks.senders.get(member.instance_id)
        return MemberStatus(
            group,
            topic,
            member.client_id,
            member.instance_id,
            member.seen_ms,
            holds,
            member.max_claims,
            None if clock is None else clock.off_ms,
            self._reused(self._observer.reuses.get((group, member.client_id)), member.instance_id, topic),
        )

    def _reused(self, reuse: Reuse | None, instance_id: str, topic: str) -> str:
        if reuse is None or self._log_now_ms(topic) - reuse.at_ms > 2 * self._interval_ms:
            return ""
        return {reuse.instance_id: reuse.other, reuse.other: reuse.instance_id}.get(instance_id, "")

    def _row(self, claim: Claim, candidates: _Candidates) -> PartitionStatus:
        place = claim.place
        is_held = self._is_claimed(claim)
        situation, why = self._held(claim) if is_held else self._not_held(claim, candidates)
        row = PartitionStatus(place, situation, why, claim.client_id, claim.instance_id)
        row.token = claim.token if is_held else -1
        row.freshness = self._world.freshness(claim, self._now(place.topic))
        if claim.last_heartbeat:
            row.age_ms = self._age_ms(claim)
        if (change := self._observer.changes.get(place)) is not None:
            row.since_ms = change.at_ms
        row.position, row.position_from = self._position(claim)
        row.end = self._positions.ends.get((place.topic, place.partition))
        return row

    def _position(self, claim: Claim) -> tuple[int | None, str]:
        """Return where a new holder begins. In the log, 0 stands for unknown."""
        if claim.current_offset > 0:
            return claim.current_offset, "log"
        committed = self._positions.committed.get(claim.place)
        return (None, "") if committed is None else (committed, "committed")

    # ---- why

    def _held(self, claim: Claim) -> tuple[Situation, str]:
        age_ms = self._age_ms(claim)
        change = self._observer.changes.get(claim.place)
        since = "since before the log begins" if change is None else f"for {span_text(self._now_ms - change.at_ms)}"
        why = f"held by {claim.client_id} {since}"
        paused_until = self.paused_until(claim.place)
        if (handoff := claim.handoff) is not None and self._log_now_ms(claim.place.topic) < handoff.until_ms:
            to = self._name(claim.place, handoff.to_instance_id)
            text = f"being handed over by {claim.client_id} to {to} until {self._clock(handoff.until_ms)}"
            return Situation.HANDING_OVER, text
        if age_ms >= self._interval_ms:
            claimable = self._clock(self._now_ms + 2 * self._interval_ms - age_ms)
            text = (
                f"{claim.client_id} is silent for {span_text(age_ms)}: it has fenced itself; claimable at {claimable}"
            )
            return Situation.SILENT, text
        if paused_until is not None and not claim.client_id.startswith(ADMIN_PREFIX):
            why += f", although the group is paused until {self._clock(paused_until)}"
        return Situation.HELD, why

    def _not_held(self, claim: Claim, candidates: _Candidates) -> tuple[Situation, str]:
        before = self._before(claim)
        if claim.last_heartbeat and self._age_ms(claim) < 0:
            text = f"{before}; the Go library takes a heartbeat from the future for none, so the next claim wins"
            return Situation.AHEAD, text
        if (until_ms := self.paused_until(claim.place)) is not None:
            return Situation.PAUSED, f"paused until {self._clock(until_ms)}; {before}"
        situation, reason = candidates.without(claim.instance_id if self._waits_out(claim) else "")
        if claim.last_heartbeat and situation is Situation.CLAIMABLE:
            return Situation.STALE, f"{before}, the next claim wins"
        if situation is Situation.COOLDOWN:
            until = self._clock(self._released_ms(claim) + self._interval_ms)
            return situation, f"{before}, {reason} until {until}"
        return situation, f"{before}{'; ' if ':' in before else ': '}{reason}"

    def _before(self, claim: Claim) -> str:
        """Return what was last."""
        change = self._observer.changes.get(claim.place)
        if claim.last_heartbeat:
            age_ms = self._age_ms(claim)
            heard = self._clock(self._now_ms - age_ms)
            if age_ms < 0:
                return f"{claim.client_id}'s clock is {span_text(-age_ms)} ahead"
            since = self._clock(self._now_ms - age_ms + 2 * self._interval_ms)
            return f"stale since {since}: {claim.client_id} was last heard of {heard}"
        if claim.last_release:
            at_ms = change.at_ms if change is not None else claim.last_release * 1000
            return f"unclaimed since {self._clock(at_ms)}: released by {claim.client_id}"
        return "never claimed"

    def _waits_out(self, claim: Claim) -> bool:
        """Return whether the last holder has released a partition less than one interval ago."""
        is_young = self._log_now_ms(claim.place.topic) - self._released_ms(claim) < self._interval_ms
        return claim.last_release != 0 and is_young

    def _released_ms(self, claim: Claim) -> int:
        change = self._observer.changes.get(claim.place)
        return claim.last_release * 1000 if change is None else change.at_ms

    def _name(self, place: Place, instance_id: str) -> str:
        member = self._world.members.get((place.group_id, place.topic), {}).get(instance_id)
        return instance_id if member is None else member.client_id

    # ---- time

    def paused_until(self, place: Place) -> int | None:
        """Return until when a group is paused for a topic; None if it is not."""
        partitions = self._world.partitions
        return self.paused_on(
            place.group_id, 0 if partitions is None else coordination_partition(place.topic, partitions)
        )

    def paused_on(self, group: str, partition: int) -> int | None:
        """Return until when a group is paused for the topics of a coordination partition; None if it is not."""
        until = self._world.paused_until(group, partition)
        if self._world.rules is Rules.LIBRARY:
            return until * 1000 if self._now_ms < until * 1000 else None
        return until if max(self._world.log_time_ms(partition), self._now_ms) < until else None

    def _log_now_ms(self, topic: str) -> int:
        """Return the time that the log would give an entry about a topic now."""
        if self._world.partitions is None:
            return self._now_ms
        return max(self._world.log_time_ms(coordination_partition(topic, self._world.partitions)), self._now_ms)

    def _now(self, topic: str) -> int:
        """Return the time by which the rules judge."""
        return self._now_ms // 1000 if self._world.rules is Rules.LIBRARY else self._log_now_ms(topic)

    def _is_claimed(self, claim: Claim) -> bool:
        return self._world.is_claimed(claim, self._now(claim.place.topic))

    def _age_ms(self, claim: Claim) -> int:
        if self._world.rules is Rules.LIBRARY:
            return (self._now_ms // 1000 - claim.last_heartbeat) * 1000
        return self._log_now_ms(claim.place.topic) - claim.heartbeat_ms

    def _clock(self, at_ms: int) -> str:
        return clock_text(at_ms, self._now_ms)


class _RangeRows:
    """The rows of a partition of which ranges are claimed."""

    def __init__(self, observer: Observer, now_ms: int, positions: Positions, at: RangePlace) -> None:
        self._at = at
        self._now_ms = now_ms
        self._positions = positions
        world = observer.world
        on = coordination_partition(at.place.topic, world.partitions or 1)
        self._log_now_ms = max(world.log_time_ms(on), now_ms)
        self._interval_ms = world.interval_ms
        self._now = observer.ranges.of(at, on, now_ms)
        stale = (held for held in observer.ranges.places[at].held.values() if held.first not in self._now.held)
        left = (RangeLeft.of(held, is_released=False, at_ms=held.heartbeat_ms) for held in stale)
        self._left = [*observer.left.get(at, ()), *left]

    def rows(self) -> Iterator[RangeStatus]:
        """Yield them, by their offsets; none of a topic that is not there any more."""
        place, topic_id = self._at
        if self._positions.topic_ids.get(place.topic, topic_id) != topic_id:
            return
        known = [self._row(first, end, RangeSituation.DONE, "processed") for first, end in self._now.done]
        known += map(self._held, self._now.held.values())
        known.sort(key=lambda row: row.first)
        at = self._positions.committed.get(place, known[0].first if known else 0)
        for row in known:
            yield from self._free(at, row.first)
            yield row
            at = max(at, UNKNOWN_END if row.end is None else row.end)
        ends = [self._positions.ends.get((place.topic, place.partition), at)]
        ends += [left.end for left in self._left if left.end != UNKNOWN_END]
        yield from self._free(at, max(ends))

    def _held(self, held: Range) -> RangeStatus:
        age_ms = self._log_now_ms - held.heartbeat_ms
        end = None if held.end == UNKNOWN_END else held.end
        row = self._row(held.first, end, RangeSituation.HELD, f"held by {held.client_id}")
        row.client_id, row.instance_id, row.token = held.client_id, held.instance_id, held.token
        row.age_ms, row.position = age_ms, held.current
        if age_ms >= self._interval_ms:
            claimable = self._clock(self._now_ms + 2 * self._interval_ms - age_ms)
            row.situation = RangeSituation.SILENT
            row.why = (
                f"{held.client_id} is silent for {span_text(age_ms)}: it has fenced itself; claimable at {claimable}"
            )
        return row

    def _free(self, first: int, end: int) -> Iterator[RangeStatus]:
        """Yield rows of offsets that may be claimed, one for each member that has left some behind."""
        while first < end:
            found = next((left for left in reversed(self._left) if left.first <= first < left.end), None)
            if found is None:
                until = min((left.first for left in self._left if first < left.first < end), default=end)
                yield self._row(first, until, RangeSituation.FREE, "never claimed")
            else:
                until = min(end, found.end)
                yield self._row_left(first, until, found)
            first = until

    def _row_left(self, first: int, end: int, left: RangeLeft) -> RangeStatus:
        at = self._clock(left.at_ms)
        if left.is_released:
            row = self._row(first, end, RangeSituation.RELEASED, f"released by {left.client_id} at {at}")
        else:
            row = self._row(first, end, RangeSituation.STALE, f"stale: {left.client_id} was last heard of {at}")
        row.client_id, row.instance_id = left.client_id, left.instance_id
        return row

    def _row(self, first: int, end: int | None, situation: RangeSituation, why: str) -> RangeStatus:
        return RangeStatus(self._at.place, self._at.topic_id, first, end, situation, why)

    def _clock(self, at_ms: int) -> str:
        return clock_text(at_ms, self._now_ms)


def clock_text(at_ms: int, now_ms: int) -> str:
    """Return a moment as a UTC time of day, with its date if it is not within a day of now."""
    try:
        moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):  # a sender may write any number
        return f"{at_ms} ms"
    return moment.strftime("%H:%M:%S" if abs(now_ms - at_ms) < DAY_MS else "%Y-%m-%d %H:%M:%S")


def span_text(ms: int) -> str:
    """Return a time span for a person."""
    for size, unit in ((DAY_MS, "d"), (HOUR_MS, "h"), (MINUTE_MS, "min")):
        if ms >= 2 * size:
            return f"{ms // size} {unit}"
    return f"{max(ms, 0) // 1000} s"
