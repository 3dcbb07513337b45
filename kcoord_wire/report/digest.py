"""The summary of a group: headline, causes, clients and durations, as sentences and as numbers.

Laws:

* The headline is the first of these that there is: a critical finding, an outage, a warning, partitions that are
  STOPPED or STALLED (after a fault that cost much), a rebalance that a fault began (`FAULTS`; the one that cost most),
  that waited for a dead member or that does not end, a finding of severity info, a fault that emptied the group for
  good; else what happened, as nothing unusual if the cause of each rebalance is known.
* A first start and a final shutdown are never what a headline is about, unless nothing else happened.
* Groups are sorted by the severity of their headlines, then by the time lost, then by name.
* An open rebalance lasts until the last moment of its group, an interrupted one until the next begins.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from typing import Final

from kcoord_wire.forensics.importance import SEVERITIES, by_importance
from kcoord_wire.forensics.model import Cause, GroupHistory, GroupSummary, LagStatus, Outage, Rebalance
from kcoord_wire.report.faults import sentence_of, waited_for_dead
from kcoord_wire.report.formatting import counted, duration, name_if_known, name_of, shown
from kcoord_wire.report.lagging import lag_sentence

FAULTS: Final = frozenset(
    {Cause.POLL_TIMEOUT, Cause.SESSION_EXPIRED, Cause.SYNC_EXPIRED, Cause.REBALANCE_TIMEOUT}
    | {Cause.COORDINATOR_FAILOVER, Cause.OUTAGE, Cause.GROUP_TOO_LARGE, Cause.REFUSED}
)
"""Causes that are no part of normal work."""

_COSTLY_MS: Final = 30_000  # partition time, or length, from which a rebalance by a fault is a warning
_LONG_MS: Final = 10_000  # from which a rebalance that has not ended is unusual; first joins are held back for 3 s
_TOGETHER_NS: Final = 60_000_000_000  # joins of one start, and leaves of one shutdown, are not further apart
_ENDS: Final = (Cause.MEMBER_LEFT, Cause.SESSION_EXPIRED)  # of processes that are stopped in order, or killed
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
    middle = _middle(rebalances)
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
        or (Headline("warning", _of_outages(history)) if history.outages else None)
        or _of_finding(history, "warning")
        or _of_lag(history, fault)
        or fault
        or _of_finding(history, *SEVERITIES)
        or _of_fault(history, history.rebalances, lengths)
        or _of_course(history, middle, lengths)
    )


def _of_finding(history: GroupHistory, *severities: str) -> Headline | None:
    found = next((finding for finding in by_importance(history.findings) if finding.severity in severities), None)
    return None if found is None else Headline(found.severity, shown(found.text, 400).rstrip("."))


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
    if not any(row.lag and row.status in (LagStatus.STOPPED, LagStatus.STALLED) for row in history.partitions):
        return None
    return Headline("warning", lag_sentence(history) or "")


def _of_course(history: GroupHistory, middle: Sequence[Rebalance], lengths: Mapping[int, float | None]) -> Headline:
    """What happened to a group in which nothing is known to have gone wrong."""
    if not history.rebalances and not history.members:
        named = "lines" if history.group.origin == "text" else "requests"
        return Headline("quiet", f"no member was seen in {_span(history)}, only {named} that name the group")
    unknown = sum(row.cause == Cause.UNKNOWN for row in middle)
    severity, found = "quiet", "nothing unusual"
    if unknown:
        severity, found = "info", f"{counted(unknown, 'rebalance')} of which the source does not show the cause"
    text = f"{found} in {_span(history)}: {_happened(history, middle)}"
    costliest = _costliest(middle, lengths)
    return Headline(severity, text if costliest is None else f"{text}; {sentence_of(history, costliest, lengths)}")


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
    rows = history.rebalances
    if not rows:
        return f"no rebalance, {counted(len(history.members), 'member')} at work"
    parts = []
    if begun := _start(rows):
        size = rows[begun - 1].members_after  # 0: the source does not say, as logs of brokers before 2.8
        parts.append(f"it started with {counted(size, 'member')}" if size else "it started")
    if middle:
        counts = ", ".join(f"{share.count:,} {shown(share.cause, 60)}" for share in _causes(middle, {}))
        parts.append(f"{counted(len(middle), 'rebalance')} in between ({counts})" if begun else counts)
    if _shutdown(rows) and len(rows) > begun:
        parts.append("and it was shut down")
    return ", ".join(parts)


def _start(rows: Sequence[Rebalance]) -> int:
    """How many rebalances the first start took: from an empty group on, while new members came."""
    if not rows or rows[0].members_before or rows[0].cause != Cause.NEW_MEMBER:
        return 0
    count = 1
    for before, row in pairwise(rows):
        comes = row.cause in (Cause.NEW_MEMBER, Cause.COOPERATIVE_FOLLOW_UP)
        if not comes or row.removed or row.started_ns - before.started_ns > _TOGETHER_NS:
            break
        count += 1
    return count


def _shutdown(rows: Sequence[Rebalance]) -> int:
    """How many rebalances the final shutdown took: the last one left the group empty."""
    if not rows or rows[-1].outcome != "empty":
        return 0
    count = 0
    for row, after in zip(reversed(rows), [rows[-1], *reversed(rows)], strict=False):
        if row.cause not in _ENDS or after.started_ns - row.started_ns > _TOGETHER_NS:
            break
        count += 1
    return count


def _middle(rows: Sequence[Rebalance]) -> Sequence[Rebalance]:
    """The rebalances without those of the first start and of the final shutdown."""
    begun = _start(rows)
    return rows[begun : max(begun, len(rows) - _shutdown(rows))]


def _costliest(rows: Iterable[Rebalance], lengths: Mapping[int, float | None]) -> Rebalance | None:
    """The rebalance that cost the most partition time, then the longest."""
    return max(rows, key=lambda row: (row.paused_ms or 0.0, lengths[row.number] or 0.0, -row.number), default=None)
