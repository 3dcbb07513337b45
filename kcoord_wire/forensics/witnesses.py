"""A group that was captured and logged: one history, of which both sources are witnesses.

    histories = join_witnesses(histories)      # of the wire and of text, of all groups

A rebalance on the wire and one in the text are the same where they led to the same generation, and their beginnings lie
within `NEAR_NS` once the clocks are compared. The difference of the clocks is the median over all that share a
generation, so that a log in a wrong time zone is joined all the same; it is said, and corrected before anything else.
Where they differ by more than `NEAR_NS`, a member of both has to show that it is one time of the group's life.

Laws:

* There is one history, that of the wire. What only the text has is added to it: rebalances, members, generations. So
  nothing is said twice, or against itself.
* What the broker states beats an inference of the wire, whose confidence is less. A cause of the wire that says why the
  stated thing happened (an outage, behind a session that ended) is no other cause, and stays. What the wire shows
  outright stays, too; what the log states beside it is evidence.
* Findings that follow from the history alone are found anew; those that follow from frames, or from lines, stay. What
  the log says of a coordinator that was away is said with the outage of the capture, which it confirms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from statistics import median
from types import MappingProxyType
from typing import Final, TypeVar

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.detectors import by_importance, detect, findings_of
from kcoord_wire.forensics.detectors.finding import client_at, person
from kcoord_wire.forensics.model import (
    NS_PER_MS,
    Clock,
    Evidence,
    Finding,
    Generation,
    GroupHistory,
    MemberLife,
    Rebalance,
    RemovedMember,
)

_Row = TypeVar("_Row", Rebalance, MemberLife, Generation)

NEAR_NS: Final = 30_000 * NS_PER_MS
"""How far apart the two may see one rebalance begin."""

_NOTABLE_NS: Final = 500 * NS_PER_MS  # clocks that differ by more are mentioned and corrected
_MINUTE_NS: Final = 60_000 * NS_PER_MS
_AROUND_NS: Final = 10_000 * NS_PER_MS  # members find a new coordinator so long after the broker's line about it
_MS_PER_S: Final = 1_000
_OUTAGES: Final = ("outage", "coordinator_move")
_FROM_TEXT: Final = 0.9
_ALONE: Final = "{} of {} rebalances are in the log alone: the capture does not show them."
_JOINED_AGAIN: Final = frozenset(
    {Cause.TOPICS_CHANGED, Cause.SUBSCRIPTION_CHANGED, Cause.ASSIGNORS_CHANGED, Cause.COOPERATIVE_FOLLOW_UP}
    | {Cause.LEADER_REJOINED, Cause.POLL_TIMEOUT, Cause.REBALANCE_TIMEOUT}
)
_LOST: Final = frozenset({Cause.OUTAGE, Cause.COORDINATOR_FAILOVER, Cause.GROUP_TOO_LARGE})
_REASONS: Final[Mapping[str, frozenset[Cause]]] = MappingProxyType(
    {
        Cause.SESSION_EXPIRED: _LOST | {Cause.REFUSED},
        Cause.MEMBER_LEFT: frozenset({Cause.POLL_TIMEOUT}),
        Cause.NEW_MEMBER: _LOST | {Cause.REBALANCE_TIMEOUT, Cause.POLL_TIMEOUT, Cause.STATIC_REPLACED},
        Cause.STATIC_REPLACED: _LOST,
        Cause.LEADER_REJOINED: _LOST | _JOINED_AGAIN,
        Cause.SUBSCRIPTION_CHANGED: _LOST | _JOINED_AGAIN,
    }
)
"""By what a broker states, the causes of the wire that say why that happened."""


def join_witnesses(histories: Iterable[GroupHistory]) -> list[GroupHistory]:
    """Return the histories; where a group is on the wire and in text, one for both."""
    found = list(histories)
    on_wire = {history.group.group_id: history for history in found if history.group.origin == "wire"}
    kept = []
    for history in found:
        seen = on_wire.get(history.group.group_id)
        if history.group.origin == "text" and seen is not None:
            _Join(seen, history).run()
        else:
            kept.append(history)
    return kept


class _Join:
    """Joins the history of the text into that of the wire."""

    def __init__(self, wire: GroupHistory, text: GroupHistory) -> None:
        self._wire, self._text = wire, text
        pairs = list(_of_one_generation(wire.rebalances, text.rebalances))
        ahead = round(median(b.started_ns - a.started_ns for a, b in pairs)) if pairs else 0
        is_same = abs(ahead) <= NEAR_NS or not _members(wire).isdisjoint(_members(text))
        self._pairs, self._ahead = (pairs, ahead) if is_same else ([], 0)
        self._people = {
            life.member_id: person(life.client_id, life.client_host) for life in wire.members if life.client_id
        }

    def run(self) -> None:
        wire, text = self._wire, self._text
        former = {_key(finding): finding for finding in wire.findings}
        logged = list(map(self._of_lines, _of_source(text)))
        gaps = [finding for finding in logged if finding.detector == "logged_coordinator" and self._is_outage(finding)]
        kept = [*_of_source(wire), *(finding for finding in logged if finding not in gaps)]
        too_tight = self._too_tight()
        known = self._state_all()
        self._add_members()
        if rest := [row for row in text.rebalances if row.number not in known]:
            self._add_rebalances(rest, kept)
        anew = detect(wire, clocks=self._clocks(), too_tight=too_tight)
        found = [*kept, *(former.get(_key(finding), finding) for finding in anew)]
        for gap in gaps:
            self._confirm(found, gap)
        wire.findings = by_importance(found)

    def _too_tight(self) -> set[tuple[str, str]]:
        """Return the clients whose heartbeats the capture has shown to be too far apart."""
        found = (finding for finding in self._wire.findings if finding.detector == "tight_heartbeats")
        numbers = {number for finding in found for number in finding.rebalances}
        return {client_at(row) for row in self._wire.rebalances if row.number in numbers}

    # ---- outages

    def _is_outage(self, gap: Finding) -> bool:
        """Whether what the log says of the coordinator is what the capture shows as an outage."""
        return any(_overlap(gap, outage.from_ns, outage.to_ns) for outage in self._wire.outages)

    def _confirm(self, found: Iterable[Finding], gap: Finding) -> None:
        """Add to the outages of the capture what the log says of them: it beats packets that are missing."""
        unweakened = {
            (each.detector, each.from_ns): each for name in _OUTAGES for each in findings_of(name, self._wire)
        }
        for finding in found:
            full = unweakened.get((finding.detector, finding.from_ns))
            if full is not None and _overlap(gap, finding.from_ns, finding.to_ns):
                finding.severity = "warning" if gap.to_ns is not None else full.severity
                finding.text = f"{full.text}; as the log has it, {gap.text}"
                finding.cost_ms = max(finding.cost_ms, gap.value * _MS_PER_S)
                finding.evidence += gap.evidence

    def _clocks(self) -> list[Clock]:
        """The clock of the log, where it differs from that of the capture."""
        if abs(self._ahead) < _NOTABLE_NS:
            return []
        log, capture = _source_of(self._text.rebalances), _source_of(self._wire.rebalances)
        shown_by = f"the rebalances of {len(self._pairs)} generation{'s' if len(self._pairs) > 1 else ''}"
        is_zone = abs(self._ahead) >= _MINUTE_NS
        return [Clock(log, capture, self._ahead, shown_by + (" (a time zone? --timezone)" if is_zone else ""), True)]

    def _of_lines(self, finding: Finding) -> Finding:
        return replace(
            finding,
            from_ns=finding.from_ns - self._ahead,
            to_ns=None if finding.to_ns is None else finding.to_ns - self._ahead,
            rebalances=[],
            evidence=[self._fact(fact) for fact in finding.evidence],
        )

    # ---- one rebalance

    def _state_all(self) -> set[int]:
        """Add what the text states of the rebalances that both have; return their numbers in the text."""
        known: dict[int, int] = {}
        for seen, stated in self._pairs:
            is_near = abs(stated.started_ns - self._ahead - seen.started_ns) <= NEAR_NS
            if is_near and seen.number not in known and stated.number not in known.values():
                known[seen.number] = stated.number
                self._state(seen, stated)
        return set(known.values())

    def _state(self, seen: Rebalance, stated: Rebalance) -> None:
        """Add what the text states of a rebalance."""
        seen.evidence += [
            replace(self._fact(fact), text=f"the log has it too: {fact.text}") for fact in stated.evidence
        ]
        if stated.cause == Cause.UNKNOWN:
            return
        if stated.cause == seen.cause:
            if stated.confidence > seen.confidence:
                seen.confidence, seen.detail = stated.confidence, f"{self._named(stated.detail)}; {seen.detail}"
        elif seen.cause == Cause.UNKNOWN or self._is_better(seen, stated):
            self._take(seen, stated)
        else:
            why = f"the broker's log names another cause: {stated.cause}"
            source = stated.evidence[0].source if stated.evidence else ""
            seen.evidence.append(Evidence(seen.started_ns, source, -1, why))

    @staticmethod
    def _is_better(seen: Rebalance, stated: Rebalance) -> bool:
        is_reason = seen.cause in _REASONS.get(stated.cause, ())
        return not is_reason and stated.confidence > seen.confidence

    def _take(self, seen: Rebalance, stated: Rebalance) -> None:
        """Take the cause that the text states in place of the wire's."""
        was = "" if seen.cause == Cause.UNKNOWN else f"; the capture alone shows: {seen.detail}"
        confidence = min(stated.confidence, _FROM_TEXT) if seen.cause == Cause.UNKNOWN else stated.confidence
        seen.cause, seen.confidence = stated.cause, confidence
        seen.detail = self._named(stated.detail) + was
        if stated.member_id is not None:
            life = next((life for life in self._wire.members if life.member_id == stated.member_id), None)
            seen.member_id = stated.member_id
            seen.client_id = stated.client_id if life is None else life.client_id
            seen.client_host = stated.client_host if life is None else life.client_host
            seen.instance_id = stated.instance_id if life is None else life.instance_id
        self._correct_ends(seen, {gone.member_id: gone for gone in stated.removed})

    def _correct_ends(self, seen: Rebalance, stated: Mapping[str, RemovedMember]) -> None:
        """Take over why members were removed."""
        for gone in seen.removed:
            gone.why = stated[gone.member_id].why if gone.member_id in stated else gone.why
        known = {gone.member_id for gone in seen.removed}
        for life in self._wire.members:
            if life.member_id not in stated:
                continue
            if life.left_ns is not None and life.why_left != stated[life.member_id].why:
                life.why_left, life.end, life.died_ns = stated[life.member_id].why, None, None
            if life.member_id not in known:
                why = stated[life.member_id].why
                seen.removed.append(RemovedMember(life.member_id, life.client_id, life.client_host, why))

    def _named(self, text: str) -> str:
        """Return a sentence of the log with the names of the clients."""
        for member_id, name in self._people.items():
            text = text.replace(member_id, name)
        return text

    def _fact(self, fact: Evidence) -> Evidence:
        return replace(fact, time_ns=fact.time_ns - self._ahead)

    # ---- what only the text has

    def _add_members(self) -> None:
        wire = self._wire
        met = {life.member_id for life in wire.members}
        missing = [self._shifted(life) for life in self._text.members if life.member_id not in met]
        wire.members = sorted([*wire.members, *missing], key=lambda life: life.joined_ns)
        wire.group.members = len({life.member_id for life in wire.members})

    def _add_rebalances(self, rest: Sequence[Rebalance], kept: Iterable[Finding]) -> None:
        """Add the rebalances that only the text has, with their generations; the numbers are given anew."""
        wire, group = self._wire, self._wire.group
        rows = sorted([*wire.rebalances, *map(self._shifted, rest)], key=lambda row: row.started_ns)
        numbers = {id(row): number for number, row in enumerate(rows, 1)}
        self._renumber({row.number: numbers[id(row)] for row in wire.rebalances}, kept)
        for row in rows:
            row.number = numbers[id(row)]
        wire.rebalances = rows
        generations = {row.generation_id for row in rest}
        missing = [self._shifted(row) for row in self._text.generations if row.generation_id in generations]
        wire.generations = sorted([*wire.generations, *missing], key=lambda row: row.joined_ns)
        group.rebalances, group.generations = len(rows), len(wire.generations)
        group.first_ns = min(group.first_ns, rows[0].started_ns)
        group.last_ns = max(group.last_ns, *(row.ended_ns or row.started_ns for row in rows))
        group.blind.append(_ALONE.format(len(rest), len(rows)))

    def _renumber(self, numbers: Mapping[int, int], kept: Iterable[Finding]) -> None:
        for pause in self._wire.pauses:
            pause.rebalance = numbers.get(pause.rebalance or 0)
        for outage in self._wire.outages:
            outage.rebalance = numbers.get(outage.rebalance or 0)
        for finding in kept:
            finding.rebalances = [numbers[number] for number in finding.rebalances if number in numbers]

    def _shifted(self, row: _Row) -> _Row:
        """Return a row of the text by the clock of the capture."""
        times = {
            column.name: getattr(row, column.name) - self._ahead
            for column in fields(row)
            if column.name.endswith("_ns") and getattr(row, column.name) is not None
        }
        if isinstance(row, Rebalance):
            facts = [self._fact(fact) for fact in row.evidence]
            return replace(row, **times, detail=self._named(row.detail), evidence=facts)
        return replace(row, **times)


def _overlap(gap: Finding, from_ns: int, to_ns: int | None) -> bool:
    """Whether a finding lies within `_AROUND_NS` of an interval; None: until the end of the source."""
    ends_before = to_ns is not None and to_ns + _AROUND_NS < gap.from_ns
    return not ends_before and (gap.to_ns is None or gap.to_ns + _AROUND_NS >= from_ns)


def _members(history: GroupHistory) -> set[str]:
    return {life.member_id for life in history.members}


def _key(finding: Finding) -> tuple[str, int, str | None, str]:
    return finding.detector, finding.from_ns, finding.subject, finding.text


def _of_source(history: GroupHistory) -> list[Finding]:
    """Return the findings that do not follow from the history alone."""
    alone = {_key(finding) for finding in detect(history)}
    return [finding for finding in history.findings if _key(finding) not in alone]


def _source_of(rows: Iterable[Rebalance]) -> str:
    return next((fact.source for row in rows for fact in row.evidence if fact.source), "")


def _of_one_generation(wire: Sequence[Rebalance], text: Sequence[Rebalance]) -> Iterator[tuple[Rebalance, Rebalance]]:
    stated: dict[int, Rebalance] = {}
    for rebalance in text:
        if rebalance.generation_id is not None:
            stated.setdefault(rebalance.generation_id, rebalance)
    for rebalance in wire:
        if rebalance.generation_id in stated:
            yield rebalance, stated[rebalance.generation_id]
