"""The summary of a group: severity, causes, clients and durations, as a sentence and as numbers.

Laws:

* Groups are sorted by the severity of their findings, then by the time lost, then by name.
* An open rebalance lasts until the last moment of its group, an interrupted one until the next begins.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Final

from kcoord_wire.forensics.model import Finding, GroupHistory, Rebalance
from kcoord_wire.report.formatting import counted, duration, name_if_known, name_of, shown

__all__ = ["NAMELESS_GROUP", "CauseShare", "Culprit", "Digest", "digest_of", "digests", "worst_findings"]

SEVERITIES: Final = ("critical", "warning", "info")
_LATE: Final = 0.3  # share of a rebalance from which the last member to join is named as the reason for its length
NAMELESS_GROUP: Final = "(group without a name)"


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
class Digest:
    """The summary of a group.

    :ivar history: with unknown instead of non-finite durations
    :ivar severity: of its worst finding; ``quiet`` without findings
    :ivar name: of the group, printable
    :ivar sentence: what happened to it
    :ivar lengths: duration of each rebalance in milliseconds, by number; None where unknown
    :ivar rebalancing_ms: time in which any rebalance went on, overlaps counted once
    :ivar paused_ms: partition time without an owner
    :ivar moved: partitions that changed owner
    :ivar needless: of these, moves that balance did not require
    :ivar unfinished: number of open or interrupted rebalances
    :ivar causes: most frequent first
    :ivar culprits: worst first
    :ivar worst: the longest rebalance
    """

    history: GroupHistory
    severity: str
    name: str
    sentence: str
    lengths: dict[int, float | None]
    rebalancing_ms: float
    paused_ms: float
    moved: int
    needless: int
    unfinished: int
    causes: list[CauseShare]
    culprits: list[Culprit]
    worst: Rebalance | None

    @property
    def opening(self) -> str:
        return f"{self.name}: {self.sentence}"


def digests(histories: Iterable[GroupHistory]) -> list[Digest]:
    """The summary of each group, worst first."""
    rank = {name: place for place, name in enumerate(SEVERITIES)}
    return sorted(
        map(digest_of, histories),
        key=lambda d: (
            rank.get(d.severity, len(rank)),
            -(d.rebalancing_ms + d.paused_ms),
            -len(d.history.rebalances),
            d.history.group.group_id,
        ),
    )


def worst_findings(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, worst first, then in order of time."""
    rank = {name: place for place, name in enumerate(SEVERITIES)}
    return sorted(findings, key=lambda f: (rank.get(f.severity, len(rank)), f.from_ns, f.detector, f.text))


def digest_of(history: GroupHistory) -> Digest:
    """The summary of one group."""
    history = replace(history, rebalances=[_with_numbers(row) for row in history.rebalances])
    group, rebalances = history.group, history.rebalances
    lengths = _lengths(history)
    worst = max(rebalances, key=lambda r: (lengths[r.number] or 0.0, r.paused_ms or 0.0, -r.number), default=None)
    causes = _causes(rebalances, lengths)
    return Digest(
        history=history,
        severity=next((f.severity for f in worst_findings(history.findings)), "quiet"),
        name=shown(group.group_id, 80) or NAMELESS_GROUP,
        sentence=_sentence(history, causes, worst, lengths),
        lengths=lengths,
        rebalancing_ms=_covered_ms(rebalances, lengths),
        paused_ms=group.paused_ms if math.isfinite(group.paused_ms) else 0.0,
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
            cause, len(rows), sum(lengths[row.number] or 0.0 for row in rows), sum(row.paused_ms or 0.0 for row in rows)
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


def _sentence(
    history: GroupHistory, causes: Sequence[CauseShare], worst: Rebalance | None, lengths: Mapping[int, float | None]
) -> str:
    span = duration(max(0, history.group.last_ns - history.group.first_ns) / 1e6)
    if worst is None:
        return f"no rebalance in {span}"
    why = ", ".join(f"{share.count:,} {shown(share.cause, 60)}" for share in causes)
    text = f"{counted(len(history.rebalances), 'rebalance')} in {span}: {why}"
    if history.group.paused_ms > 0:
        text += f", paused {duration(history.group.paused_ms)} of partition time"
    length = lengths[worst.number]
    if length is None:
        return text
    took = f"has not ended after {duration(length)}" if worst.outcome == "open" else f"took {duration(length)}"
    return f"{text}; worst: #{worst.number} {took}{_because(worst, length)}"


def _because(worst: Rebalance, length: float) -> str:
    if worst.late_ms is not None and worst.late_ms >= _LATE * length and (worst.last_client_id or worst.last_member_id):
        return f" because {_person(worst.last_client_id, worst.last_member_id, worst.last_client_host)} was late"
    if name := name_if_known(worst.client_id, worst.member_id, worst.instance_id):
        return f", set off by {_person(name, None, worst.client_host)}"
    return ""


def _person(client_id: str | None, member_id: str | None, host: str | None) -> str:
    return name_of(client_id, member_id) + (f" ({shown(host, 60)})" if host else "")
