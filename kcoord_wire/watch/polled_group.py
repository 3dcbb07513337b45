"""One group, from what polls show of it to the tables of the pipeline, to `Change` for people, and its lag.

Laws:

* Time is an argument. A poll shows states and members, not requests: a rebalance begins with the first poll that shows
  it and ends with the first that does not, so each of its times may be one interval late.
* A rebalance that began and ended between two polls is known by its result: other members, or other owners. Its
  duration is unknown. One that changed nothing, and a second one in the same interval, are not seen.
* Whom a reconciliation of KIP-848 waits for is shown, by target and assignment; how long is known to a poll.
* What a classic group's members hold is not shown while it rebalances. They count as holding it until the next Stable
  shows otherwise; what a member held that is gone has no owner from that poll on.
* `GroupWatch.trim` bounds the tables; `GroupSummary.blind` says when older rows were dropped.
* A row of the lag is kept where something of the partition has changed since its last row, and once a minute otherwise.
* `LagBook.thin` bounds the rows: it drops every other poll of the older three quarters, so that the oldest are the
  thinnest and the last ones stay exact.
* A partition grows behind if its least lag of the last half minute is above its greatest of the half minute before:
  a lag that only goes up and down does not.
"""

from __future__ import annotations

import enum
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, NamedTuple

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.history import GONE, HistoryBuilder, removed_members
from kcoord_wire.forensics.model import (
    NS_PER_MS,
    Awaited,
    Evidence,
    GroupHistory,
    Identity,
    Lag,
    MemberLife,
    Outage,
    Rebalance,
)
from kcoord_wire.protocol.wording import counted
from kcoord_wire.report.formatting import duration, iso, partition_runs, shown
from kcoord_wire.watch.seen import (
    Difference,
    Place,
    Reason,
    SeenGroup,
    SeenMember,
    Unanswered,
    explain,
    identity,
    listed,
    topics_changed,
    who,
)

_SECOND_NS: Final = 1_000_000_000
_HALF_NS: Final = 30 * _SECOND_NS
_IDLE_NS: Final = 60 * _SECOND_NS
_RECENT: Final = 64  # polls of a partition that are kept to see whether it grows


class SetBack(NamedTuple):
    """A committed offset that is smaller than before."""

    place: Place
    before: int
    after: int


class LagBook:
    """The lag of one group.

    :ivar now: the last row of each partition
    """

    def __init__(self, group_id: str) -> None:
        self.now: dict[Place, Lag] = {}
        self._group_id = group_id
        self._polls: list[list[Lag]] = []
        self._count = 0
        self._kept: dict[Place, Lag] = {}
        self._recent: dict[Place, deque[tuple[int, int]]] = {}

    def record(
        self, now: int, committed: Mapping[Place, int], ends: Mapping[Place, int], owners: Mapping[Place, str]
    ) -> list[SetBack]:
        """Take in the offsets of a poll; return what was set back.

        :param owners: member ids
        """
        back = []
        rows = []
        places = sorted(place for place in committed.keys() | owners.keys() if place in ends)
        for place in places:
            offset, end = committed.get(place), ends[place]
            lag = None if offset is None else max(end - offset, 0)
            row = Lag(self._group_id, *place, now, offset, None, end, lag, owners.get(place))
            last = self.now.get(place)
            if last is not None and offset is not None and offset < (last.committed_offset or 0):
                back.append(SetBack(place, last.committed_offset or 0, offset))
            self.now[place] = row
            if lag is not None:
                self._recent.setdefault(place, deque(maxlen=_RECENT)).append((now, lag))
            if self._is_new(place, row):
                rows.append(row)
                self._kept[place] = row
        for place in self.now.keys() - set(places):  # of a deleted topic, or its offset has expired
            del self.now[place]
            self._recent.pop(place, None)
            self._kept.pop(place, None)
        if rows:
            self._polls.append(rows)
            self._count += len(rows)
        return back

    def thin(self, most: int) -> bool:
        """Drop rows if there are more than `most`; return whether any was dropped."""
        if self._count <= most or len(self._polls) < 2:
            return False
        older = max(3 * len(self._polls) // 4, 1)
        self._polls[:older] = self._polls[1:older:2]
        self._count = sum(map(len, self._polls))
        return True

    def rows(self) -> list[Lag]:
        """Return the rows that are kept, in order of time."""
        return [row for rows in self._polls for row in rows]

    def growth(self) -> Iterator[tuple[Place, float]]:
        """Yield the partitions that grow behind, with records a second, the fastest first."""
        found = []
        for place, recent in self._recent.items():
            middle = recent[-1][0] - _HALF_NS
            older = [lag for at, lag in recent if middle - _HALF_NS <= at <= middle]
            younger = [lag for at, lag in recent if at > middle]
            if older and min(younger) > max(older):
                first = next((at, lag) for at, lag in recent if at >= middle - _HALF_NS)
                seconds = (recent[-1][0] - first[0]) / _SECOND_NS
                found.append((place, (recent[-1][1] - first[1]) / seconds))
        yield from sorted(found, key=lambda each: (-each[1], each[0]))

    def _is_new(self, place: Place, row: Lag) -> bool:
        kept = self._kept.get(place)
        if kept is None or row.time_ns - kept.time_ns >= _IDLE_NS:
            return True
        return (row.committed_offset, row.end_offset, row.member_id) != (
            kept.committed_offset,
            kept.end_offset,
            kept.member_id,
        )


class ChangeKind(enum.StrEnum):
    """What a `Change` is about."""

    GROUP_SEEN = "group seen"
    GROUP_GONE = "group gone"
    MEMBER_JOINED = "member joined"
    MEMBER_GONE = "member gone"
    MEMBER_REPLACED = "member replaced"  # a static one, by a process with its instance id
    REBALANCE_BEGAN = "rebalance began"
    REBALANCE_ENDED = "rebalance ended"
    COORDINATOR_MOVED = "coordinator moved"
    OFFSET_SET_BACK = "offset set back"
    UNANSWERED = "unanswered"
    ANSWERED = "answered"


@dataclass(frozen=True, slots=True)
class Change:
    """Something that a poll shows and the one before did not.

    :ivar time_ns: of the poll; it has happened since the poll before
    :ivar group_id: None for what concerns the cluster
    :ivar text: what, without the group's name
    :ivar member: that it is about
    :ivar rebalance: number of the rebalance
    :ivar cause: of the rebalance, a value of `kcoord_wire.forensics.Cause`
    :ivar confidence: in the cause
    """

    time_ns: int
    group_id: str | None
    kind: ChangeKind
    text: str
    member: Identity | None = None
    rebalance: int | None = None
    cause: str | None = None
    confidence: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the change as plain data; what is not known is null."""
        return {
            "time": iso(self.time_ns),
            "time_ns": self.time_ns,
            "group_id": self.group_id,
            "kind": str(self.kind),
            "text": self.text,
            **(self.member or Identity())._asdict(),
            "rebalance": self.rebalance,
            "cause": self.cause,
            "confidence": self.confidence,
        }


def lines_of(changes: Iterable[Change]) -> Iterator[str]:
    """Yield one line for each group that has changed in a poll: ``12:00:03 billing: member c-2 (10.0.0.2) gone``."""
    for (time_ns, group_id), some in groupby(changes, key=lambda change: (change.time_ns, change.group_id)):
        name = "" if group_id is None else f"{shown(group_id, 80)}: "
        yield f"{clock(time_ns)} {name}{'; '.join(change.text for change in some)}"


def clock(time_ns: int) -> str:
    """The time of day in UTC: ``12:00:03``."""
    text = iso(time_ns)
    return "?" if text is None else text[11:19]


BLIND: Final = (
    "The Admin API shows states and members, no requests: who joined last, who was late and what a member gave as its "
    "reason are not known. Each time may be one poll late; one between two polls took at most what is shown.",
    "While a classic group rebalances, its assignments are not shown: pauses of members that rejoin are not counted.",
    "Generations are counted from the beginning of the watch; the Admin API does not show the group's own number.",
)
_THINNED: Final = "Older rows were dropped, to keep the memory of the watch bounded."
_AFTER_OUTAGE_NS: Final = 60_000_000_000  # in which a rebalance without another sign is its consequence
_REPLACED: Final = "replaced"
_ENDS: Final = {"stable": "ended", "empty": "ended without members"}  # of a rebalance, by its outcome


class GroupWatch:
    """Follows one group.

    :param source: named by the evidence; ``host:port`` of the cluster
    :ivar seen: its last description; None before the first
    :ivar since_ns: first poll that showed the present state, or the last rebalance between two polls
    :ivar unanswered: why the last poll did not describe it; None if it did
    :ivar rebalance: under way
    :ivar waits_for: members that the rebalance under way may wait for, see `_waiting`
    :ivar causes: of its rebalances, with their number
    :ivar rebalancing_ns: time that it was seen rebalancing
    """

    def __init__(self, group_id: str, source: str, now: int) -> None:
        self._tables = HistoryBuilder(group_id)
        self.group_id = group_id
        self.lag = LagBook(group_id)
        self.seen: SeenGroup | None = None
        self.since_ns = now
        self.unanswered: Unanswered | None = None
        self.rebalance: Rebalance | None = None
        self.waits_for: list[SeenMember] = []
        self._waited: dict[str, Awaited] = {}  # in the rebalance under way, by member id
        self._late: set[str] = set()  # of those, who had not taken over its target in the last poll
        self.causes: Counter[str] = Counter()
        self.rebalancing_ns = 0
        self.outages: list[Outage] = []
        self._source = source
        self._assignor: str | None = None  # of the last assignment
        self._first_ns = self._last_ns = self._described_ns = now
        self._generation = 0
        self._is_dropped = False

    @property
    def is_older(self) -> bool:
        """Whether its first description showed the present state already."""
        return self.since_ns == self._first_ns

    # ---- what polls show

    def update(self, now: int, seen: SeenGroup, *, is_new: bool = False) -> list[Change]:
        """Take in a description.

        :param is_new: the group was not there in an earlier poll, so that its first members are a rebalance
        """
        before = self.seen or (SeenGroup(seen.group_id, "Empty", seen.protocol, None, None, {}) if is_new else None)
        difference = Difference.between(before, seen)
        changes = [*self._answered(now), *self._moved_coordinator(now, before, seen)]
        if self.seen is None:
            changes.append(self._change(now, ChangeKind.GROUP_SEEN, _summary(seen)))
        changes += self._member_changes(now, difference, is_first=before is None)
        self._time(now, before)
        if before is None:
            self._settle(now, seen, difference)
            if seen.is_rebalancing:
                self._begin(now, seen, Reason(Cause.UNKNOWN, 0.0, "it was under way when the watch began"))
        else:
            changes += self._follow(now, before, seen, difference)
        if self.seen is None or self.seen.state != seen.state:
            self.since_ns = now
        self.seen = seen
        self._assignor = seen.assignor or self._assignor
        return changes

    def update_offsets(self, now: int, committed: Mapping[Place, int], ends: Mapping[Place, int]) -> list[Change]:
        """Take in the committed offsets of the group, and the ends of their partitions."""
        owners = {place: item.member_id for place, item in self._tables.held.items()}
        back = self.lag.record(now, committed, ends, owners)
        self._last_ns = now
        return [
            self._change(
                now,
                ChangeKind.OFFSET_SET_BACK,
                f"the committed offset of {shown(each.place[0], 60)}/{each.place[1]} went back from {each.before:,} "
                f"to {each.after:,}",
            )
            for each in back
        ]

    def miss(self, now: int, why: Unanswered, broker: str | None) -> list[Change]:
        """Take in that the group was not described."""
        was, self.unanswered = self.unanswered, why
        self._last_ns = now
        if was is not None and was.kind == why.kind:
            return []
        self._end_outage(now)
        if why.kind != "refused":
            text = f"the watch was not answered about the group: {why.text}"
            self._outage(why.kind, now, None, broker, text)
        return [self._change(now, ChangeKind.UNANSWERED, f"not described: {shown(why.text, 200)}")]

    def gone(self, now: int) -> list[Change]:
        """Take in that the group does not exist any more."""
        if self.rebalance is not None:
            self._end(now, "empty")
        self._tables.deleted(now)
        self.seen, self.waits_for, self.unanswered, self._last_ns = None, [], None, now
        return [self._change(now, ChangeKind.GROUP_GONE, "deleted, or empty without offsets")]

    # ---- what has become of it

    @property
    def paused(self) -> int:
        """Partitions that had an owner and have none."""
        return len(self._tables.paused)

    def held_by(self, member_id: str) -> list[Place]:
        """Return the partitions that a member holds, as far as polls have shown it."""
        return sorted(place for place, item in self._tables.held.items() if item.member_id == member_id)

    def history(self) -> GroupHistory:
        """Return the tables so far; later polls change their rows."""
        blind = [*BLIND, _THINNED] if self._is_dropped else list(BLIND)
        history = self._tables.history(self._first_ns, self._last_ns, [], blind, origin="admin")
        history.lag = self.lag.rows()
        history.outages = self.outages
        return history

    # ---- rebalances

    def _follow(self, now: int, before: SeenGroup, seen: SeenGroup, difference: Difference) -> Iterator[Change]:
        """Begin and end rebalances, and bring the members and what they hold up to date in between."""
        if self.rebalance is not None and _is_another(before, seen, difference):
            yield self._end(now, "interrupted")
        if self.rebalance is None and seen.is_rebalancing:
            yield self._begin(now, seen, self._reason(now, before, seen, difference), before)
        elif self.rebalance is None and _has_changed(before, seen, difference):
            self._begin(self._described_ns, seen, self._reason(now, before, seen, difference), before)
        topics = self._topics_with_new_places(seen)
        self._settle(now, seen, difference)
        self._described_ns = now
        if self.rebalance is not None:
            self._go_on(now, seen, self.rebalance, topics)
            if not seen.is_rebalancing:
                yield self._end(now, "stable" if seen.members else "empty", was_seen=before.is_rebalancing)

    def _reason(self, now: int, before: SeenGroup, seen: SeenGroup, difference: Difference) -> Reason:
        has_unowned = any(pause.rebalance == self._tables.number is not None for pause in self._tables.paused.values())
        return explain(
            before,
            seen,
            difference,
            assignor=self._assignor,
            after_outage=self._is_after_outage(now),
            has_unowned=has_unowned,
        )

    def _topics_with_new_places(self, seen: SeenGroup) -> list[str]:
        """Return the topics that the group had before, of which partitions are assigned for the first time."""
        known = self._tables.held.keys() | self._tables.paused.keys()
        topics = {topic for topic, _ in known}
        return sorted({topic for topic, _ in seen.owners().keys() - known if topic in topics})

    def _go_on(self, now: int, seen: SeenGroup, rebalance: Rebalance, new_topics: list[str]) -> None:
        """Note what a description shows of the rebalance under way."""
        self.waits_for = _waiting(None, seen, self.waits_for)
        self._note_waits(now, seen, rebalance)
        if rebalance.joined_ns is None and seen.state == "CompletingRebalance":
            rebalance.joined_ns = now
        if rebalance.cause == Cause.UNKNOWN and new_topics:
            reason = topics_changed(new_topics)
            rebalance.cause, rebalance.confidence, rebalance.detail = reason.cause, reason.confidence, reason.detail
        rebalance.assignor = seen.assignor or rebalance.assignor
        rebalance.members_after = len(seen.members)

    def _note_waits(self, now: int, seen: SeenGroup, rebalance: Rebalance) -> None:
        """Note how long a reconciliation has waited for each member that had not taken over its target.

        While one has to give partitions up, those that are to get them wait for it.
        """
        if seen.protocol != "consumer":
            return  # who has rejoined is not shown
        for wait in self._waited.values():
            if wait.member_id in self._late:
                wait.ms = (now - wait.from_ns) / NS_PER_MS
        revoking = [each for each in self.waits_for if each.assigned - (each.target or frozenset())]
        for member in revoking or self.waits_for:
            if member.member_id not in self._waited:
                end = "revoking" if revoking else "late"
                place = (member.member_id, member.client_id, member.client_host)
                self._waited[member.member_id] = Awaited(*place, now, 0.0, end, None)
        self._late = {member.member_id for member in revoking or self.waits_for}
        rebalance.waited_for = sorted(
            (wait for wait in self._waited.values() if wait.ms), key=lambda wait: (-wait.ms, wait.member_id)
        )

    def _begin(self, now: int, seen: SeenGroup, reason: Reason, before: SeenGroup | None = None) -> Change:
        self.waits_for = _waiting(before or seen, seen)
        self.rebalance = self._tables.open(
            now,
            generation_id=None,
            cause=reason.cause,
            confidence=reason.confidence,
            detail=reason.detail,
            evidence=[Evidence(now, self._source, -1, f"the coordinator describes it as {_summary(seen)}")],
            trigger=reason.trigger,
            protocol_type="consumer",
            assignor=seen.assignor,
            members_before=0 if before is None else len(before.members),
            members_after=len(seen.members),
        )
        self._waited, self._late = {}, set()
        self._note_waits(now, seen, self.rebalance)
        self._link_outages(now)
        text = f"rebalance #{self.rebalance.number} began{_because(self.rebalance)}"
        return self._change(now, ChangeKind.REBALANCE_BEGAN, text, self.rebalance)

    def _end(self, now: int, outcome: str, *, was_seen: bool = True) -> Change:
        rebalance, self.rebalance, self.waits_for = self.rebalance, None, []
        assert rebalance is not None
        self._tables.close(now, outcome)
        self.causes[str(rebalance.cause)] += 1
        how = f"{_ENDS.get(outcome, outcome)} after {duration(rebalance.duration_ms or 0)}"
        if not was_seen:
            self.since_ns = now
            rebalance.duration_ms = rebalance.syncing_ms = None
            how = f"between two polls{_because(rebalance)}"
        if outcome == "stable":
            self._generation += 1
            rebalance.generation_id = self._generation
            self._tables.begin_generation(
                self._generation,
                rebalance.started_ns,
                stable_ns=now,
                assignor=rebalance.assignor,
                members=rebalance.members_after,
                partitions=len(self._tables.held),
            )
        else:
            self._tables.end_generation(now)
        moved = f"; {counted(rebalance.moved, 'partition')} moved" if rebalance.moved else ""
        text = f"rebalance #{rebalance.number} {how}{moved}"
        return self._change(now, ChangeKind.REBALANCE_ENDED, text, rebalance)

    # ---- members and what they hold

    def _settle(self, now: int, seen: SeenGroup, difference: Difference) -> None:
        """Bring the tables to what was seen: members, owners, state."""
        tables, number = self._tables, None if self.rebalance is None else self.rebalance.number
        kept = {member.key: member.member_id for member in difference.replaced}
        for member_id in tables.members.keys() - seen.members.keys():
            life = tables.members[member_id]
            is_replaced = life.instance_id is not None and f"instance {life.instance_id}" in kept
            tables.lose(now, member_id, _REPLACED if is_replaced else GONE, number)
            if self.rebalance is not None and not is_replaced:
                self.rebalance.removed += removed_members([life])
        for member in seen.members.values():
            tables.see(now, self._life(now, seen, member))
        if seen.shows_assignments:
            self._assign(now, seen, number)
        tables.protocol_type = "consumer"
        tables.enter(now, seen.state, None)

    def _assign(self, now: int, seen: SeenGroup, number: int | None) -> None:
        assigned = {place: each.member_id for each in seen.members.values() for place in each.assigned}
        for place in sorted(self._tables.held.keys() - assigned.keys()):
            self._tables.release(now, place, number)
        for place, member_id in sorted(assigned.items()):
            self._tables.give(now, place, member_id, self._generation + (self.rebalance is not None))

    def _life(self, now: int, seen: SeenGroup, member: SeenMember) -> MemberLife:
        return MemberLife(
            group_id=self.group_id,
            member_id=member.member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            joined_ns=now,
            last_seen_ns=now,
            assignors=[seen.assignor] if seen.assignor else [],
            protocol=seen.protocol,
        )

    def _member_changes(self, now: int, difference: Difference, *, is_first: bool) -> Iterator[Change]:
        if is_first:  # the line about the group says who is in it
            return
        for member in difference.gone:
            held = partition_runs(self.held_by(member.member_id))
            text = f"member {who(member)} gone" + (f", held {held}" if held else "")
            yield self._change(now, ChangeKind.MEMBER_GONE, text, member=member)
        for member in difference.appeared:
            yield self._change(now, ChangeKind.MEMBER_JOINED, f"member {who(member)} joined", member=member)
        for member in difference.replaced:
            text = f"static member {who(member)} was replaced by a process with its instance id"
            yield self._change(now, ChangeKind.MEMBER_REPLACED, text, member=member)

    # ---- outages

    def _answered(self, now: int) -> Iterator[Change]:
        if self.unanswered is not None:
            self.unanswered = None
            self._end_outage(now)
            yield self._change(now, ChangeKind.ANSWERED, "described again")

    def _moved_coordinator(self, now: int, before: SeenGroup | None, seen: SeenGroup) -> Iterator[Change]:
        old = None if before is None else before.coordinator
        if old is not None and seen.coordinator is not None and old != seen.coordinator:
            text = f"its coordinator moved from {old} to {seen.coordinator}"
            self._outage("coordinator moved", self._described_ns, now, old, text)
            yield self._change(now, ChangeKind.COORDINATOR_MOVED, text)

    def _outage(self, kind: str, from_ns: int, to_ns: int | None, broker: str | None, text: str) -> None:
        evidence = [Evidence(from_ns, self._source, -1, text)]
        self.outages.append(Outage(self.group_id, kind, from_ns, to_ns, broker, [], text, None, evidence))

    def _end_outage(self, now: int) -> None:
        if self.outages and self.outages[-1].to_ns is None:
            self.outages[-1].to_ns = now

    def _is_after_outage(self, now: int) -> bool:
        return bool(self.outages) and _is_after(self.outages[-1], now)

    def _link_outages(self, now: int) -> None:
        """Note the first rebalance that followed from each outage: one may be several, of a broker and of its move."""
        for outage in reversed(self.outages):
            if outage.rebalance is not None or not _is_after(outage, now):
                break
            outage.rebalance = self._tables.number

    def _time(self, now: int, before: SeenGroup | None) -> None:
        if before is not None and before.is_rebalancing:
            self.rebalancing_ns += now - self._described_ns
        self._last_ns = now

    def trim(self, rows: int, lag_rows: int) -> None:
        """Drop older rows, so that about `rows` are left of each table and `lag_rows` of the lag."""
        self._is_dropped |= self._tables.trim(rows) | self.lag.thin(lag_rows)
        if len(self.outages) > rows:
            del self.outages[: len(self.outages) // 2]
            self._is_dropped = True

    def _change(
        self,
        now: int,
        kind: ChangeKind,
        text: str,
        rebalance: Rebalance | None = None,
        member: SeenMember | None = None,
    ) -> Change:
        about = None if member is None else identity(member)
        if rebalance is None:
            return Change(now, self.group_id, kind, text, about)
        number, cause, confidence = rebalance.number, str(rebalance.cause), rebalance.confidence
        return Change(now, self.group_id, kind, text, about, number, cause, confidence)


def _is_after(outage: Outage, now: int) -> bool:
    return outage.to_ns is None or now - outage.to_ns < _AFTER_OUTAGE_NS


def _has_changed(before: SeenGroup, seen: SeenGroup, difference: Difference) -> bool:
    """Return whether a rebalance has taken place between two polls that both show none."""
    return bool(difference.appeared or difference.gone) or before.owners() != seen.owners()


def _is_another(before: SeenGroup, seen: SeenGroup, difference: Difference) -> bool:
    """Return whether a rebalance has begun since the one that the poll before showed.

    A classic group collects members while it prepares; once the joins were answered, a change begins another one. In
    KIP-848 each change of the members is another epoch.
    """
    if seen.protocol == "consumer":
        return not difference.is_empty
    return before.state == "CompletingRebalance" and (seen.state == "PreparingRebalance" or not difference.is_empty)


def _waiting(before: SeenGroup | None, seen: SeenGroup, waited_for: Sequence[SeenMember] = ()) -> list[SeenMember]:
    """Return the members that the rebalance may wait for.

    KIP-848: those that have not taken over their target. Classic: those that were there before it began; who of them
    has rejoined is not shown. A member that has appeared has joined by that.
    """
    if seen.protocol == "consumer":
        return [each for each in seen.members.values() if each.target is not None and each.target != each.assigned]
    if seen.state != "PreparingRebalance":
        return []
    if before is None:
        return [each for each in waited_for if each.member_id in seen.members]
    return [each for member_id, each in before.members.items() if member_id in seen.members]


def _summary(seen: SeenGroup) -> str:
    members = f"{counted(len(seen.members), 'member')}"
    return f"{seen.state}, {members}" + (f": {listed(list(seen.members.values()))}" if seen.members else "")


def _because(rebalance: Rebalance) -> str:
    unknown = rebalance.cause == Cause.UNKNOWN
    return ", cause unknown" if unknown else f": {rebalance.cause} ({rebalance.confidence:.0%})"
