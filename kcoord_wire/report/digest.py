"""The summary of a group: headline, causes, clients, durations, lag and findings, as sentences and as numbers.

Laws:

* The headline is the first of these that there is: a critical finding; the warning that explains most partition time,
  or a rebalance by a fault that no warning names and that cost more; partitions that are STOPPED or STALLED (after a
  fault that cost much), a rebalance that a fault began (`FAULTS`; the one that cost most), that waited for a dead
  member or that does not end, a finding of severity info that is about the group, a fault that emptied the group for
  good; else what happened.
* That is called nothing unusual only if the cause of each rebalance is known, none took ten seconds, and there were not
  three within a minute; the sentence says what was looked at.
* A first start and a final shutdown are never what a headline is about, unless nothing else happened.
* Groups are sorted by the severity of their headlines, then by the time lost, then by name.
* An open rebalance lasts until the last moment of its group, an interrupted one until the next begins.
* Sentences about lag and rebalances conclude nothing: every figure is a row of `PartitionState`, `Rebalance` or
  `MemberLife`.
* Where a session ended because the member's process had died or was silent, the sentence begins with that moment, and
  says how much later the coordinator removed the member, which learns of it by the session timeout.
* A member that joined last is named only where the others waited for longer than the news of a rebalance takes.
* What one detector finds of many members is one card. Every finding is in one; a card's first finding is the worst, and
  the earliest of these.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Final, NamedTuple

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.course import course_of
from kcoord_wire.forensics.model import (
    NS_PER_MS,
    SEVERITIES,
    Finding,
    GroupHistory,
    GroupSummary,
    LagStatus,
    MemberLife,
    Outage,
    PartitionState,
    Rebalance,
)
from kcoord_wire.protocol.wording import counted, first_of
from kcoord_wire.report.formatting import ago, duration, file_name, name_if_known, name_of, period, shown, utc

_LATE: Final = 0.3  # share of a rebalance from which the last member to join is named as the reason for its length
_LATE_MS: Final = 3_000  # members learn of a rebalance by a heartbeat; its interval is 3 s by default
_DEAD_MS: Final = 1_000
_REMOVED: Final = frozenset({Cause.SESSION_EXPIRED, Cause.REBALANCE_TIMEOUT, Cause.SYNC_EXPIRED})

_HOW_ENDED: Final = {
    "process died": "died at {at}: its connection was closed without LeaveGroup",
    "process ended": "ended at {at}: its connection was closed, and it sends no LeaveGroup",
    "gone": "was gone at {at}: its connection was closed, and bytes before that are missing",
    "silent": "fell silent at {at} on an open connection, frozen or cut off",
    "cut off": "was cut off at {at}: what it and its broker sent was not acknowledged",
}
_AWAITED: Final = {
    "process died": "whose process had died",
    "process ended": "whose process had ended",
    "gone": "whose connection had ended",
    "silent": "which was silent",
    "cut off": "which was cut off",
}


class Waiting(NamedTuple):
    """The member that the others waited for in a rebalance.

    :ivar name: client id or member id, printable
    :ivar ms: how long; None where it was the only one to join
    :ivar how: `model.Awaited.end`; empty for the last one to join
    """

    name: str
    host: str
    ms: float | None
    how: str

    @property
    def person(self) -> str:
        return self.name + (f" ({self.host})" if self.host else "")


def awaited(row: Rebalance) -> Waiting | None:
    """Return the member that the others waited for longest: dead, silent or late, else the last to join."""
    longest = max(row.waited_for, key=lambda wait: wait.ms, default=None)
    if longest is not None and longest.ms >= (row.late_ms or 0.0):
        name = name_of(longest.client_id, longest.member_id)
        return Waiting(name, shown(longest.client_host, 60), longest.ms, shown(longest.end, 40))
    if not (row.last_client_id or row.last_member_id):
        return None
    return Waiting(name_of(row.last_client_id, row.last_member_id), shown(row.last_client_host, 60), row.late_ms, "")


def waited_for_dead(row: Rebalance) -> bool:
    """Whether the group waited for a member that was dead or silent, a second or longer."""
    return any(wait.died_ns is not None and wait.ms >= _DEAD_MS for wait in row.waited_for)


def sentence_of(history: GroupHistory, row: Rebalance, lengths: Mapping[int, float | None]) -> str:
    """A rebalance in a sentence: why, when, how long, and what it cost."""
    length = lengths[row.number]
    same = sum(other.cause == row.cause for other in history.rebalances)
    text = f"{same} x {shown(str(row.cause), 60)}, the costliest: " if same > 1 else ""
    death = _death(history, row)
    if death:
        text += death
    else:
        text = f"{same} x {shown(str(row.cause), 60)}, the costliest" if same > 1 else shown(str(row.cause), 60)
        if name := name_if_known(row.client_id, row.member_id, row.instance_id):
            text += f" of {_person(name, row.client_host)}"
        text += f" at {ago(row.started_ns, history.group.first_ns)}"
    if length is not None:
        text += f"; rebalance #{row.number} " if death else f": rebalance #{row.number} "
        text += f"has not ended after {duration(length)}" if row.outcome == "open" else f"took {duration(length)}"
        text += _because(row, length)
    if row.paused_ms:
        text += f", {duration(row.paused_ms)} of partition time without an owner"
    return text


def _death(history: GroupHistory, row: Rebalance) -> str:
    """How the member whose session ended had ended, and how much later it was removed; empty if that is not known."""
    if row.cause not in _REMOVED:
        return ""
    life = next((life for life in history.members if life.member_id == row.member_id), None)
    how = _HOW_ENDED.get(life.end or "") if life is not None else None
    if life is None or how is None or life.died_ns is None or life.died_ns > row.started_ns:
        return ""
    text = _person(name_of(row.client_id, row.member_id, row.instance_id), row.client_host)
    text += f" {how.format(at=utc(life.died_ns)[11:])}"
    if more := len([gone for gone in row.removed if gone.member_id != row.member_id]):
        text += f" (and {counted(more, 'other member')} with it)"
    text += f"; the coordinator noticed {duration((row.started_ns - life.died_ns) / NS_PER_MS)} later"
    text += f" ({shown(str(row.cause), 60)}, at {ago(row.started_ns, history.group.first_ns)})"
    return text + _return(history, life)


def _return(history: GroupHistory, life: MemberLife) -> str:
    """When the client was there again after its end; what happens to one that is not is for the reader to see to."""
    if life.died_ns is None or not (life.instance_id or life.client_id):
        return ""
    again = [
        other.joined_ns
        for other in history.members
        if other.member_id != life.member_id
        and (other.instance_id, other.client_id, other.client_host)
        == (life.instance_id, life.client_id, life.client_host)
        and other.joined_ns > life.died_ns
    ]
    if again:
        return f", and it was back {duration((min(again) - life.died_ns) / NS_PER_MS)} after that moment"
    return ", and it did not come back"


def _because(row: Rebalance, length: float) -> str:
    wait = awaited(row)
    if wait is None or wait.ms is None or wait.ms < _LATE * length:
        return ""
    if wait.how in ("", "late"):
        return f" ({wait.person} joined last, {duration(wait.ms)} after the others)" if wait.ms >= _LATE_MS else ""
    return f" because it waited {duration(wait.ms)} for {wait.person}, {_AWAITED.get(wait.how, wait.how)}"


def _person(name: str, host: str | None) -> str:
    return name + (f" ({shown(host, 60)})" if host else "")


_WORST_FIRST: Final = (LagStatus.STOPPED, LagStatus.STALLED, LagStatus.WARN)
_NAMED: Final = 3
_AGE_NS: Final = 10_000_000_000  # at the end of the source, from which on a partition is said to be unread


def lag_sentence(history: GroupHistory) -> str | None:
    """Return ``lag 12,034 on 6 of 8 partitions; orders-3 STALLED since +41.0 s``; None where no lag is known."""
    known = [row for row in history.partitions if row.lag is not None]
    behind = [row for row in known if row.lag]
    if behind:
        total = sum(row.lag or 0 for row in behind)
        parts = [*_states(behind, history.group.first_ns), *_unread(behind, history.group.last_ns)]
        return "; ".join([f"lag {total:,} on {len(behind):,} of {counted(len(known), 'partition')}", *parts])
    if not known:
        return None
    most = max(row.most_lag or 0 for row in known)
    before = f", {most:,} at most on one before" if most else ""
    return f"no lag on {counted(len(known), 'partition')}{before}"


def growth(row: Rebalance) -> str:
    """Return ``lag grew by 300, caught up after 12.0 s``; empty where it did not grow."""
    if not row.lag_grown:
        return ""
    if row.caught_up_ns is None:
        return f"lag grew by {row.lag_grown:,}, not caught up"
    return f"lag grew by {row.lag_grown:,}, caught up after {duration((row.caught_up_ns - row.started_ns) / 1e6)}"


def _states(behind: list[PartitionState], first_ns: int) -> list[str]:
    """Name the partitions with a bad state, the worst first, as one part of the sentence; none where all is well."""
    bad = sorted((row for row in behind if row.status in _WORST_FIRST), key=_rank)
    named = [_state(row, first_ns) for row in bad[:_NAMED]]
    more = [f"{len(bad) - _NAMED:,} more"] if len(bad) > _NAMED else []
    return [", ".join([*named, *more])] if named else []


def _unread(behind: Sequence[PartitionState], last_ns: int) -> list[str]:
    """Say since when partitions are not read, or how old their ends are, as one part of the sentence.

    A partition whose reader is at its end is left out: a Fetch session names it again only when records come (KIP-227).
    """
    found: dict[str, list[str]] = {}
    for row in sorted(behind, key=lambda row: (row.read_ns or 0, row.topic, row.partition)):
        if (age := _age(row, last_ns)) and (row.fetch_offset is None or row.fetch_offset < row.end_offset):
            found.setdefault(age, []).append(f"{shown(row.topic)}-{row.partition}")
    parts = [f"{', '.join(names[:_NAMED])}{_more(names)} {since}" for since, names in list(found.items())[:_NAMED]]
    more = [f"{len(found) - _NAMED:,} more times"] if len(found) > _NAMED else []
    return [", ".join([*parts, *more])] if parts else []


def _age(row: PartitionState, last_ns: int) -> str:
    """Say since when a partition is not read, or its end was not seen; empty where neither is old."""
    if row.read_ns is not None and last_ns - row.read_ns >= _AGE_NS:
        return f"not read since {utc(row.read_ns)[11:]}"
    if row.end_ns is not None and last_ns - row.end_ns >= _AGE_NS:
        return f"its end not seen since {utc(row.end_ns)[11:]}"
    return ""


def _more(names: Sequence[str]) -> str:
    return f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""


def _rank(row: PartitionState) -> tuple[int, int]:
    return _WORST_FIRST.index(LagStatus(row.status)), -(row.lag or 0)


def _state(row: PartitionState, first_ns: int) -> str:
    since = "" if row.since_ns is None else f" since {ago(row.since_ns, first_ns)}"
    return f"{shown(row.topic)}-{row.partition} {row.status}{since}"


FAULTS: Final = frozenset(cause for cause in Cause if cause.facts.is_fault)
"""Causes that are no part of normal work."""

_COSTLY_MS: Final = 30_000  # partition time, or length, from which a rebalance by a fault is a warning
_LONG_MS: Final = 10_000  # from which a rebalance is unusual, whatever its cause; first joins are held back for 3 s
_OFTEN: Final = 3  # rebalances within a minute that are unusual, whatever their causes
_MINUTE_NS: Final = 60_000_000_000
_LEAST_MS: Final = 1_000  # partition time from which on a rebalance without a finding may go before one
_CHANGED_NS: Final = 5_000_000_000  # around a change of the group, in which members may commit for the last time
_OUTAGES: Final = ("outage", "host_cut_off", "coordinator_move")
NAMELESS_GROUP: Final = "(group without a name)"
NO_GROUP: Final = "(clients outside groups)"


@dataclass(frozen=True, slots=True)
class CauseShare:
    """One cause: its number of rebalances, their total duration, and the partition time they cost."""

    cause: str
    count: int
    duration_ms: float
    paused_ms: float


@dataclass(slots=True)
class Culprit:
    """A client, by its effect on the group.

    :ivar set_off: number of rebalances that it set off
    :ivar last: number of rebalances in which it joined last
    :ivar late_ms: the longest time by which it joined after the others
    :ivar removed: number of times it was removed
    """

    name: str
    host: str
    set_off: int = 0
    last: int = 0
    late_ms: float = 0.0
    removed: int = 0


@dataclass(frozen=True, slots=True)
class Headline:
    """What matters most in a group, in a sentence.

    :ivar severity: ``critical``, ``warning``, ``info``, or ``quiet`` where nothing unusual happened
    """

    severity: str
    text: str


@dataclass(frozen=True, slots=True)
class Digest:
    """The summary of a group.

    :ivar history: with unknown instead of non-finite durations
    :ivar headline: what matters most
    :ivar name: of the group, printable
    :ivar sentence: all that happened to it: how many rebalances, why, what they cost
    :ivar lengths: duration of each rebalance in milliseconds, by number; None where unknown
    :ivar rebalancing_ms: time in which any rebalance went on, overlaps counted once
    :ivar paused_ms: partition time without an owner
    :ivar moved: partitions that changed owner
    :ivar needless: of these, moves that balance did not require
    :ivar unfinished: number of open or interrupted rebalances
    :ivar causes: most frequent first
    :ivar culprits: worst first
    :ivar worst: the rebalance that cost most, other than first starts and final shutdowns where there are others
    """

    history: GroupHistory
    headline: Headline
    name: str
    sentence: str
    lengths: dict[int, float | None]
    rebalancing_ms: float
    paused_ms: float | None
    moved: int
    needless: int
    unfinished: int
    causes: list[CauseShare]
    culprits: list[Culprit]
    worst: Rebalance | None

    @property
    def severity(self) -> str:
        return self.headline.severity

    @property
    def opening(self) -> str:
        return f"{self.name}: {self.headline.text}"

    @property
    def period(self) -> str:
        """When the source shows the group."""
        return period(self.history.group.first_ns, self.history.group.last_ns)

    @property
    def origin(self) -> str:
        """What shows the group, and the sources that its evidence names."""
        group = self.history.group
        text = f"from {_ORIGINS.get(group.origin, shown(group.origin, 40))}"
        if names := _sources(self.history):
            text += f": {first_of(names, _NAMED)}"
        return text + (f" · protocol type {shown(group.protocol_type, 40)}" if group.protocol_type else "")


_ORIGINS: Final = {
    "wire": "captured frames",
    "log": "the records of __consumer_offsets",
    "marshal": "the log of a topic of Marshal",
    "admin": "polls of the Admin API",
    "text": "the lines of logs",
    "clients": "captured frames",
}


def _sources(history: GroupHistory) -> list[str]:
    """The names of the sources of a group's evidence, in order of their first facts."""
    rows: Iterable[Rebalance | Outage | Finding] = (*history.rebalances, *history.outages, *history.findings)
    return list(dict.fromkeys(file_name(fact.source) for row in rows for fact in row.evidence if fact.source))


def digests(histories: Iterable[GroupHistory]) -> list[Digest]:
    """The summary of each group, worst first."""
    rank = {name: place for place, name in enumerate(SEVERITIES)}
    return sorted(
        map(digest_of, histories),
        key=lambda d: (
            rank.get(d.severity, len(rank)),
            -(d.rebalancing_ms + (d.paused_ms or 0.0)),
            -len(d.history.rebalances),
            d.history.group.group_id,
        ),
    )


def nameless(group: GroupSummary) -> str:
    """The name for people of a group without one, or of the clients that belong to no group."""
    return NO_GROUP if group.origin == "clients" else NAMELESS_GROUP


def digest_of(history: GroupHistory) -> Digest:
    """The summary of one group."""
    history = replace(history, rebalances=[_with_numbers(row) for row in history.rebalances])
    group, rebalances = history.group, history.rebalances
    lengths = _lengths(history)
    middle = course_of(history).middle
    worst = _costliest(middle or rebalances, lengths)
    causes = _causes(rebalances, lengths)
    return Digest(
        history=history,
        headline=_headline(history, middle, lengths),
        name=shown(group.group_id, 80) or nameless(group),
        sentence=_sentence(history, causes),
        lengths=lengths,
        rebalancing_ms=_covered_ms(rebalances, lengths),
        paused_ms=group.paused_ms if group.paused_ms is not None and math.isfinite(group.paused_ms) else None,
        moved=sum(r.moved for r in rebalances),
        needless=sum(r.moved_needlessly for r in rebalances),
        unfinished=sum(r.outcome in ("interrupted", "open") for r in rebalances),
        causes=causes,
        culprits=_culprits(rebalances),
        worst=worst,
    )


def _with_numbers(row: Rebalance) -> Rebalance:
    """Replace non-finite durations by None: a table written by another program may have them."""
    names = ("duration_ms", "joining_ms", "syncing_ms", "late_ms", "paused_ms")
    wrong = {name: None for name in names if (ms := getattr(row, name)) is not None and not math.isfinite(ms)}
    return replace(row, **wrong) if wrong else row  # type: ignore[arg-type]  # mypy takes the names for any field


def _lengths(history: GroupHistory) -> dict[int, float | None]:
    result: dict[int, float | None] = {}
    rows = sorted(history.rebalances, key=lambda row: (row.started_ns, row.number))
    for row, after in zip_longest(rows, rows[1:]):
        end = row.ended_ns
        if end is None and row.outcome in ("open", "interrupted"):
            cut = after is not None and row.outcome == "interrupted"
            end = after.started_ns if cut else history.group.last_ns
        known = row.duration_ms
        result[row.number] = known if known is not None else None if end is None else max(0, end - row.started_ns) / 1e6
    return result


def _causes(rebalances: Sequence[Rebalance], lengths: Mapping[int, float | None]) -> list[CauseShare]:
    found: dict[str, list[Rebalance]] = {}
    for rebalance in rebalances:
        found.setdefault(str(rebalance.cause), []).append(rebalance)
    shares = [
        CauseShare(
            cause,
            len(rows),
            sum(lengths.get(row.number) or 0.0 for row in rows),
            sum(row.paused_ms or 0.0 for row in rows),
        )
        for cause, rows in found.items()
    ]
    return sorted(shares, key=lambda share: (-share.count, -share.duration_ms, share.cause))


def _covered_ms(rebalances: Sequence[Rebalance], lengths: Mapping[int, float | None]) -> float:
    total = reached = 0
    for row in sorted(rebalances, key=lambda row: row.started_ns):
        end = row.started_ns + round((lengths[row.number] or 0.0) * 1e6)
        start = max(row.started_ns, reached)
        if end > start:
            total += end - start
            reached = end
    return total / 1e6


def _culprits(rebalances: Iterable[Rebalance]) -> list[Culprit]:
    found: dict[tuple[str, str], Culprit] = {}

    def at(name: str, host: str | None) -> Culprit:
        key = (name, shown(host, 60))
        return found.setdefault(key, Culprit(*key))

    for row in rebalances:
        if name := name_if_known(row.client_id, row.member_id, row.instance_id):
            at(name, row.client_host).set_off += 1
        if row.late_ms is not None and (row.last_client_id or row.last_member_id):
            culprit = at(name_of(row.last_client_id, row.last_member_id), row.last_client_host)
            culprit.last += 1
            culprit.late_ms = max(culprit.late_ms, row.late_ms)
        for gone in row.removed:
            at(name_of(gone.client_id, gone.member_id), gone.client_host).removed += 1
    return sorted(found.values(), key=lambda c: (-(c.set_off + c.removed), -c.late_ms, c.name, c.host))


def _sentence(history: GroupHistory, causes: Sequence[CauseShare]) -> str:
    if history.group.origin == "clients":
        return f"clients that are members of no group, in {_span(history)}"
    if not causes:
        return f"no rebalance in {_span(history)}"
    why = ", ".join(f"{share.count:,} {shown(share.cause, 60)}" for share in causes)
    text = f"{counted(len(history.rebalances), 'rebalance')} in {_span(history)}: {why}"
    if history.group.paused_ms:
        text += f", paused {duration(history.group.paused_ms)} of partition time"
    return text


def _span(history: GroupHistory) -> str:
    return duration(max(0, history.group.last_ns - history.group.first_ns) / 1e6)


# ---- the headline


def headline(history: GroupHistory) -> Headline:
    """What matters most in a group; the module's docstring has the order."""
    return digest_of(history).headline


def _headline(history: GroupHistory, middle: Sequence[Rebalance], lengths: Mapping[int, float | None]) -> Headline:
    fault = _of_fault(history, middle, lengths)
    return (
        _of_finding(history, "critical")
        or _of_warnings(history, middle, lengths)
        or _of_lag(history, fault)
        or fault
        or _of_finding(history, *SEVERITIES, but=_NOTES)
        or _of_fault(history, _but_the_shutdown(history), lengths)
        or _of_course(history, middle, lengths)
    )


_NOTES: Final = ("source_clocks", "static_deploy")
"""Detectors of what is said of the sources, and of what members do in order: no headline of a group that is well."""


def _of_warnings(
    history: GroupHistory, middle: Sequence[Rebalance], lengths: Mapping[int, float | None]
) -> Headline | None:
    """The warning that explains most, or the rebalance by a fault that none of them names and that cost more."""
    warnings = [finding for finding in _in_order(history.findings) if finding.severity == "warning"]
    if history.outages and _is_outage_first(history, warnings):
        return Headline("warning", _of_outages(history))
    if not warnings:
        return None
    named = {number for finding in warnings for number in finding.rebalances}
    faults = [row for row in middle if row.number not in named and _is_fault(row, lengths)]
    costliest = _costliest(faults, lengths)
    if costliest is not None and (costliest.paused_ms or 0.0) > max(warnings[0].cost_ms, _LEAST_MS):
        return Headline("warning", sentence_of(history, costliest, lengths))
    return Headline("warning", _text_of(warnings[0]))


def _is_outage_first(history: GroupHistory, warnings: Sequence[Finding]) -> bool:
    """Whether an outage explains most, or is no finding at all."""
    return any(finding.detector in _OUTAGES for finding in warnings[:1]) or not any(
        finding.detector in _OUTAGES for finding in history.findings
    )


def _in_order(findings: Sequence[Finding]) -> Sequence[Finding]:
    """Return the findings, the most important first; only where there are some, pyarrow is needed."""
    if not findings:
        return findings
    from kcoord_wire.forensics.detectors import by_importance

    return by_importance(findings)


def _of_finding(history: GroupHistory, *severities: str, but: Container[str] = ()) -> Headline | None:
    ordered = (finding for finding in _in_order(history.findings) if finding.detector not in but)
    found = next((finding for finding in ordered if finding.severity in severities), None)
    return None if found is None else Headline(found.severity, _text_of(found))


def _but_the_shutdown(history: GroupHistory) -> list[Rebalance]:
    """Return the rebalances that may be faults: of those of the shutdown, only those that a fault began."""
    ended = {row.number for row in course_of(history).shutdown}
    return [row for row in history.rebalances if row.number not in ended or row.cause in FAULTS]


def _text_of(finding: Finding) -> str:
    return shown(finding.text, 400).rstrip(".")


def _of_fault(history: GroupHistory, rows: Iterable[Rebalance], lengths: Mapping[int, float | None]) -> Headline | None:
    fault = _costliest([row for row in rows if _is_fault(row, lengths)], lengths)
    if fault is None:
        return None
    is_costly = max(fault.paused_ms or 0.0, lengths[fault.number] or 0.0) >= _COSTLY_MS
    return Headline("warning" if is_costly else "info", sentence_of(history, fault, lengths))


def _of_lag(history: GroupHistory, fault: Headline | None) -> Headline | None:
    """Partitions that are not committed any more, unless a costly fault comes first: it may be why."""
    if fault is not None and fault.severity == "warning":
        return None
    bad = [row for row in history.partitions if row.lag and row.status in (LagStatus.STOPPED, LagStatus.STALLED)]
    if not bad:
        return None
    why = _change_before(history, bad)
    return Headline("warning", (f"{why}; since then " if why else "") + (lag_sentence(history) or ""))


_CHANGES: Final = ("deploy", "new_topics", "protocol_change")


def _change_before(history: GroupHistory, bad: Sequence[PartitionState]) -> str:
    """The change of the group in which the first of these partitions stopped; empty where there is none."""
    since_ns = min(history.group.last_ns if row.since_ns is None else row.since_ns for row in bad)
    for finding in _in_order(history.findings):
        until_ns = finding.until_ns(history.group.last_ns) + _CHANGED_NS
        if finding.detector in _CHANGES and finding.from_ns - _CHANGED_NS <= since_ns <= until_ns:
            return _text_of(finding)
    return ""


def _of_course(history: GroupHistory, middle: Sequence[Rebalance], lengths: Mapping[int, float | None]) -> Headline:
    """What happened to a group in which nothing is known to have gone wrong."""
    if not history.rebalances and not history.members:
        named = "lines" if history.group.origin == "text" else "requests"
        return Headline("quiet", f"no member was seen in {_span(history)}, only {named} that name the group")
    found = _unusual(history, middle, lengths)
    severity, looked = ("info", "") if found else ("quiet", f"; looked at {_looked_at(history)}")
    text = f"{found or 'nothing unusual'} in {_span(history)}: {_happened(history, middle)}"
    costliest = _costliest(middle, lengths)
    if costliest is not None:
        text += f"; {sentence_of(history, costliest, lengths)}"
    return Headline(severity, text + looked + "".join(f"; {note}" for note in _notes(history)))


def _notes(history: GroupHistory) -> Iterator[str]:
    if any(finding.detector == "source_clocks" for finding in history.findings):
        yield "the clocks of its sources differ, and were corrected"
    yield from (_text_of(finding) for finding in history.findings if finding.detector == "static_deploy")


def _unusual(history: GroupHistory, middle: Sequence[Rebalance], lengths: Mapping[int, float | None]) -> str:
    """What keeps a group without any finding from being called usual; empty if nothing does."""
    ended = {row.number for row in course_of(history).shutdown}
    long = [row for row in history.rebalances if row.number not in ended and (lengths[row.number] or 0.0) >= _LONG_MS]
    if long:
        longest = max(long, key=lambda row: lengths[row.number] or 0.0)
        return f"{counted(len(long), 'rebalance')} of ten seconds or more, the longest {_took(longest, lengths)},"
    unknown = sum(row.cause == Cause.UNKNOWN for row in middle)
    if unknown:
        return f"{counted(unknown, 'rebalance')} of which the source does not show the cause"
    often = _most_in_a_minute(middle)
    return f"{counted(often, 'rebalance')} within a minute" if often >= _OFTEN else ""


def _took(row: Rebalance, lengths: Mapping[int, float | None]) -> str:
    wait = awaited(row)
    whom = ""
    if wait is not None and wait.ms is not None and wait.ms >= _LATE_MS:
        whom = f" (it waited {duration(wait.ms)} for {wait.person})"
    return f"#{row.number} by {shown(str(row.cause), 60)}, {duration(lengths[row.number] or 0.0)}{whom}"


def _most_in_a_minute(rows: Sequence[Rebalance]) -> int:
    """Return how many began within one minute, at most; the second round of a cooperative one is part of it."""
    starts = [row.started_ns for row in rows if row.cause != Cause.COOPERATIVE_FOLLOW_UP]
    return max((bisect_right(starts, at + _MINUTE_NS) - index for index, at in enumerate(starts)), default=0)


def _looked_at(history: GroupHistory) -> str:
    """What the absence of findings rests on, and what the source does not show."""
    group, known = history.group, [row for row in history.partitions if row.lag is not None]
    committed = sum(row.committed_offset is not None for row in known)
    parts = [counted(group.exchanges, "request")] if group.exchanges else []
    parts += [f"{group.commits:,} of them commits"] if group.exchanges and group.commits else []
    parts.append(counted(len(history.members), "member"))
    if committed:
        parts.append(f"the lag of {counted(committed, 'partition')}")
    elif known:
        parts.append(f"how far {counted(len(known), 'partition')} were fetched, not at lag: no offset is committed")
    else:
        parts.append("not at lag, of which the source shows none")
    return ", ".join(parts)


def _is_fault(row: Rebalance, lengths: Mapping[int, float | None]) -> bool:
    is_open = row.outcome == "open" and (lengths[row.number] or 0.0) >= _LONG_MS
    return row.cause in FAULTS or is_open or waited_for_dead(row)


def _of_outages(history: GroupHistory) -> str:
    def length(outage: Outage) -> int:
        return (history.group.last_ns if outage.to_ns is None else outage.to_ns) - outage.from_ns

    longest = max(history.outages, key=length)
    more = len(history.outages) - 1
    return shown(longest.text, 400) + (f" (and {counted(more, 'shorter outage')})" if more else "")


def _happened(history: GroupHistory, middle: Sequence[Rebalance]) -> str:
    """What happened to a group in which nothing unusual did."""
    if not history.rebalances:
        return f"no rebalance, {counted(len(history.members), 'member')} at work"
    begun, _, over = course_of(history)
    parts = []
    if begun:
        size = begun[-1].members_after  # 0: the source does not say, as logs of brokers before 2.8
        parts.append(f"it started with {counted(size, 'member')}" if size else "it started")
    if middle:
        counts = ", ".join(f"{share.count:,} {shown(share.cause, 60)}" for share in _causes(middle, {}))
        parts.append(f"{counted(len(middle), 'rebalance')} in between ({counts})" if begun else counts)
    if over:
        parts.append("and it was shut down")
    return ", ".join(parts)


def _costliest(rows: Iterable[Rebalance], lengths: Mapping[int, float | None]) -> Rebalance | None:
    """The rebalance that cost the most partition time, then the longest."""
    return max(rows, key=lambda row: (row.paused_ms or 0.0, lengths[row.number] or 0.0, -row.number), default=None)


_ALIKE: Final = 3  # findings of one detector and severity from which on they share a card
_NAMED_MOST: Final = 12


@dataclass(slots=True)
class Card:
    """A finding, and others of the same detector and severity.

    :ivar first: the finding that is shown in full
    :ivar others: the rest, in order of time
    """

    first: Finding
    others: list[Finding]

    @property
    def more(self) -> str:
        """What the others are about, in a sentence; empty where there are none."""
        if not self.others:
            return ""
        names = list(dict.fromkeys(finding.subject for finding in self.others if finding.subject))
        count = f"{len(self.others):,} more like this"
        if not names:
            return f"{count}."
        rest = f" and {len(names) - _NAMED_MOST:,} more" if len(names) > _NAMED_MOST else ""
        return f"{count}: {', '.join(names[:_NAMED_MOST])}{rest}."

    @property
    def rebalances(self) -> list[int]:
        """The numbers of all rebalances concerned."""
        return sorted({number for finding in (self.first, *self.others) for number in finding.rebalances})

    @property
    def to_ns(self) -> int | None:
        """The last moment of all; None where one lasts to the end of the source."""
        ends = [finding.to_ns for finding in (self.first, *self.others)]
        return None if None in ends else max(end for end in ends if end is not None)


def cards_of(findings: Sequence[Finding]) -> list[Card]:
    """Return the cards, the most important first."""
    alike: dict[tuple[str, str], list[Finding]] = {}
    for finding in _in_order(findings):
        alike.setdefault((finding.severity, finding.detector), []).append(finding)
    cards = []
    for found in alike.values():
        if len(found) >= _ALIKE:
            cards.append(Card(found[0], found[1:]))
        else:
            cards += [Card(finding, []) for finding in found]
    return cards
