"""What a detector is given, what it yields, and how results become the findings of a group.

Laws:

* A detector never raises for what a peer sent.
* Findings are in order of severity; those of one severity in order of the partition time that each explains
  (`Finding.cost_ms`), and where that is the same, of `Detector.rank`, which has causes before their symptoms. They are
  sorted in one way in tables, JSON, terminal and page.
* The pause of a rebalance is explained once: by the finding with the lowest rank that names the rebalance.
* A critical finding never rests on what a hole may have hidden. A finding that rests on frames, each of which alone
  shows that something is wrong, stays as it is. Any other loses a step of its severity if a hole lies in its interval,
  and one of severity info is dropped; so is one about an absence, unless it is critical: all that it has seen is that
  something was not there.
* A bug is named only where the damage has its shape (`ClientBug.detectors`, `assignors`, `requires`) and a suspected
  member states a version that is known to have it (KIP-511). Either alone names nothing.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from functools import cached_property
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeVar

from kcoord_wire.clients.bugs import CLIENT_BUGS, ClientBug, is_affected
from kcoord_wire.forensics.coded import coded
from kcoord_wire.forensics.detectors.beats import Beats, read_tight
from kcoord_wire.forensics.detectors.expiries import Expiry, may_live, read_expiries
from kcoord_wire.forensics.detectors.rounds import Round, read_rounds
from kcoord_wire.forensics.model import (
    NS_PER_MS,
    SEVERITIES,
    Clock,
    Evidence,
    Finding,
    GroupHistory,
    Hole,
    LogLine,
    MemberLife,
    Rebalance,
    Sighting,
    client_host,
)
from kcoord_wire.protocol.error_codes import describe_error

if TYPE_CHECKING:
    import pyarrow as pa

SECOND_NS: Final = 1_000_000_000
MINUTE_NS: Final = 60 * SECOND_NS

MAX_EVIDENCE: Final = 10
"""Facts that a finding carries at most."""

NEAR_NS: Final = 10 * SECOND_NS
"""A hole this long before the first moment of a finding may have hidden what begins it."""

_LEAST_MS: Final = 1_000  # partition time from which on a cost decides the order

OF_HOSTS: Final = ("host blocked", "connection forgotten")
"""Kinds of outages of single hosts."""

OF_BROKERS: Final = ("broker down", "silence")
"""Kinds of outages in which a broker answers no member."""

_WEAKER: Final = {"critical": "warning", "warning": "info"}

T = TypeVar("T")


class Seen:
    """What the detectors of one group read.

    :ivar exchanges: rows of `Exchange`, coded; None where the source is a log, or has none
    :ivar clocks: of sources that differed, and were corrected
    :ivar errors: rows of ERROR, of its clients at least
    :ivar lines: of logs, in order of time; empty where the source is none
    :param too_tight: see `Seen.too_tight`: of exchanges that are not at hand any more
    """

    def __init__(
        self,
        history: GroupHistory,
        exchanges: pa.Table | None = None,
        clocks: Sequence[Clock] = (),
        errors: Sequence[Sighting] = (),
        lines: Sequence[LogLine] = (),
        too_tight: Collection[tuple[str, str]] = (),
    ) -> None:
        self.history, self.clocks, self.errors, self.lines = history, clocks, errors, lines
        self._too_tight = frozenset(too_tight)
        self.exchanges = coded(exchanges) if exchanges is not None and exchanges.num_rows else None

    @cached_property
    def rounds(self) -> list[Round]:
        """The rounds of the group, in order of time; do not change them."""
        return read_rounds(self.exchanges)

    @cached_property
    def tight(self) -> list[Beats]:
        """The heartbeats that leave their session no room."""
        return read_tight(self.exchanges)

    @cached_property
    def late(self) -> list[list[Expiry]]:
        """The removals of clients that live, or may, as far as a log shows it."""
        is_log = self.history.group.origin == "text"
        return [each for each in read_expiries(self.history) if may_live(each)] if is_log else []

    @cached_property
    def too_tight(self) -> frozenset[tuple[str, str]]:
        """Client id and host of those whose sessions ended because of that: what follows from it has no other cause."""
        known = {(each.client_id, each.client_host) for each in self.tight if each.late}
        return frozenset(known | self._too_tight | {client_at(each[0].life) for each in self.late})

    @property
    def assigned_rounds(self) -> list[tuple[Round, int]]:
        """The rounds with an assignment, each with the time at which the next round began or the source ended."""
        ends = [*(each.asked_ns for each in self.rounds[1:]), self.history.group.last_ns]
        return [(each, end_ns) for each, end_ns in zip(self.rounds, ends, strict=False) if each.given is not None]

    @cached_property
    def names(self) -> dict[str, str]:
        """By member id, the name that people know the member by."""
        return {life.member_id: client_of(life) for life in self.history.members}

    def rebalances_of(self, rounds: Iterable[Round]) -> list[int]:
        """Return the numbers of the rebalances that led to these rounds."""
        generations = {each.generation for each in rounds}
        return sorted({row.number for row in self.history.rebalances if row.generation_id in generations})


class DetectorResult(NamedTuple):
    """A `Finding` without its group and detector, which `finding_of` adds.

    :ivar evidence: the first `MAX_EVIDENCE` are kept
    :ivar suspects: member ids of those whose client may have the bug; see `known_bugs`
    :ivar traits: what else is known of the damage; see `ClientBug.requires`
    :ivar cost_ms: partition time that it explains beyond the pauses of its rebalances, in milliseconds
    :ivar rests_on: member ids without whose frames it would not hold: what is missing of others makes it no less. Empty
        where other frames prove it; None: those of any member
    """

    severity: str
    from_ns: int
    text: str
    advice: str
    value: float
    evidence: Iterable[Evidence]
    threshold: float = 1
    to_ns: int | None = None
    subject: str | None = None
    rebalances: Sequence[int] = ()
    suspects: tuple[str, ...] = ()
    traits: frozenset[str] = frozenset()
    cost_ms: float = 0.0
    rests_on: frozenset[str] | None = None


Find = Callable[[Seen], Iterator[DetectorResult]]
Basis = Literal["history", "frames", "absence"]


class Detector(NamedTuple):
    """A detector, as its module declares it.

    :ivar rank: of its findings among those of one severity, the lowest first
    :ivar basis: what its findings rest on: ``frames`` that were seen, the ``absence`` of something, or the ``history``
    :ivar origin: `GroupSummary.origin` of the groups that it is about; None: any
    """

    name: str
    rank: int
    basis: Basis
    origin: str | None
    find: Find


_DECLARED: Final[dict[str, Detector]] = {}
DETECTORS: Final[Mapping[str, Detector]] = MappingProxyType(_DECLARED)
"""The detectors, by the name that their findings carry."""


def detector(rank: int, basis: Basis = "history", origin: str | None = None) -> Callable[[Find], Find]:
    """Declare a function as the detector of its name.

    :param rank: 1x no member is served; 2x what is refused cannot work; 30 to 33 records are lost or read twice; 34 to
        39 a member is at fault; 4x the group waits; 5x partitions are not read; 6x rebalances come too often; 7x the
        work is spread badly; 8x of course; 9x what follows from other findings
    """

    def declare(find: Find) -> Find:
        _DECLARED[find.__name__] = Detector(find.__name__, rank, basis, origin, find)
        return find

    return declare


# ---- from results to findings


def by_importance(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings, the most important first. Unknown severities and detectors come last."""
    severities = {name: place for place, name in enumerate(SEVERITIES)}

    def key(finding: Finding) -> tuple[int, float, float, int, str, str]:
        return (
            severities.get(finding.severity, len(severities)),
            -finding.cost_ms if finding.cost_ms >= _LEAST_MS else 0.0,
            _rank(finding),
            finding.from_ns,
            finding.subject or "",
            finding.text,
        )

    return sorted(findings, key=key)


def _rank(finding: Finding) -> float:
    known = DETECTORS.get(finding.detector)
    return float("inf") if known is None else known.rank


def share_costs(findings: Iterable[Finding], history: GroupHistory) -> list[Finding]:
    """Add to each finding the pauses of those of its rebalances that no finding nearer to the cause explains."""
    paused = {row.number: row.paused_ms or 0.0 for row in history.rebalances}
    shared = sorted(findings, key=lambda finding: (_rank(finding), finding.from_ns))
    for finding in shared:
        finding.cost_ms += sum(paused.pop(number, 0.0) for number in sorted(set(finding.rebalances)))
    return shared


def finding_of(detector: str, result: DetectorResult, history: GroupHistory) -> Finding:
    """Return the finding; its text and advice name the known bugs behind it."""
    finding = Finding(
        history.group.group_id,
        detector,
        result.severity,
        result.from_ns,
        result.to_ns,
        result.subject,
        result.text,
        result.advice,
        float(result.value),
        float(result.threshold),
        list(result.rebalances),
        list(islice(result.evidence, MAX_EVIDENCE)),
        cost_ms=float(result.cost_ms),
    )
    for bug, software in known_bugs(detector, result, history):
        finding.known_bugs.append(bug.name)
        finding.text += f"; {software} has a known bug that does this, {bug.name}, fixed in {' and '.join(bug.fixed)}"
        finding.advice = f"Update {software} ({bug.reference}). {finding.advice}"
    return finding


def known_bugs(detector: str, result: DetectorResult, history: GroupHistory) -> list[tuple[ClientBug, str]]:
    """Return the bugs that explain a result, each with the software of a suspected member that has it."""
    stated = sorted({life.software for life in history.members if life.member_id in result.suspects and life.software})
    chosen = {row.assignor for row in history.rebalances if row.number in result.rebalances}
    named = []
    for bug in CLIENT_BUGS.values():
        if detector not in bug.detectors or not set(bug.requires) <= result.traits:
            continue
        if bug.assignors and not chosen & set(bug.assignors):
            continue
        named += [(bug, software) for software in stated if is_affected(bug, software)][:1]
    return named


def weigh(findings: Iterable[tuple[Finding, DetectorResult]], history: GroupHistory) -> Iterator[Finding]:
    """Yield the findings of a group as far as its holes leave them.

    What a detector concludes from frames is less certain where a hole may have hidden another frame; what it concludes
    from their absence, where holes take up half of that time, for what is sent steadily is seen again behind each.
    """
    for finding, result in findings:
        basis = DETECTORS[finding.detector].basis
        holes = [] if basis == "frames" else _holes_of(finding, result.rests_on, history)
        if not holes or (basis == "absence" and not _take_up_half(holes, finding, history)):
            yield finding
        elif finding.severity == "critical" or (finding.severity in _WEAKER and basis != "absence"):
            finding.severity = _WEAKER[finding.severity]
            finding.text += "; packets are missing there, so it may be less than it seems"
            yield finding


def _holes_of(finding: Finding, rests_on: frozenset[str] | None, history: GroupHistory) -> list[Hole]:
    """Return the holes near a finding, of the members that it rests on or of connections that may be theirs."""
    until_ns = finding.until_ns(history.group.last_ns)
    near = (hole for hole in history.holes if hole.to_ns >= finding.from_ns - NEAR_NS and hole.from_ns <= until_ns)
    if rests_on is None:
        return list(near)
    hosts = {life.client_host for life in history.members if life.member_id in rests_on}

    def may_be_theirs(hole: Hole) -> bool:
        return not hole.connection or client_host(hole.connection) in hosts or not rests_on.isdisjoint(hole.members)

    return [hole for hole in near if rests_on and may_be_theirs(hole)]


def _take_up_half(holes: Sequence[Hole], finding: Finding, history: GroupHistory) -> bool:
    """Whether holes take up half of the time of a finding, or an unknown part of it."""
    until_ns = finding.until_ns(history.group.last_ns)
    spans = [(max(hole.from_ns, finding.from_ns), min(hole.to_ns, until_ns)) for hole in holes]
    is_unknown = any(hole.from_ns == hole.to_ns for hole in holes)
    return is_unknown or 2 * covered_ns(spans) >= until_ns - finding.from_ns


def client_at(row: MemberLife | Rebalance) -> tuple[str, str]:
    """Return client id and host, as `Seen.too_tight` has them."""
    return row.client_id or "", row.client_host or ""


def was_cut_off(history: GroupHistory, member_id: str | None, from_ns: int, to_ns: int) -> bool:
    """Whether an outage of a member's host or of its broker takes up half of a time: that is why it sends nothing."""
    return any(
        2 * (min(to_ns, to_ns if outage.to_ns is None else outage.to_ns) - max(from_ns, outage.from_ns))
        >= to_ns - from_ns
        for outage in history.outages
        if member_id in outage.members and outage.kind in (*OF_HOSTS, *OF_BROKERS)
    )


# ---- items that fall together in time


def busiest(items: Iterable[T], time_ns: Callable[[T], int], window_ns: int) -> list[T]:
    """Return the most items that fall into one window; of equally many the first.

    :param items: in order of time
    """
    inside: deque[T] = deque()
    best: list[T] = []
    for item in items:
        inside.append(item)
        while time_ns(item) - time_ns(inside[0]) > window_ns:
            inside.popleft()
        if len(inside) > len(best):
            best = list(inside)
    return best


def runs(items: Iterable[T], belongs: Callable[[T], bool]) -> Iterator[list[T]]:
    """Yield the longest stretches of neighbours that all belong."""
    run: list[T] = []
    for item in items:
        if belongs(item):
            run.append(item)
        elif run:
            yield run
            run = []
    if run:
        yield run


def together_ns(first: Iterable[MemberLife], second: Sequence[MemberLife], last_ns: int) -> int:
    """Return for how long a member of both was there at the same time, at most; 0 where one has none.

    :param last_ns: until when those were there that have not left
    """

    def end(life: MemberLife) -> int:
        return last_ns if life.left_ns is None else life.left_ns

    return max(
        (min(end(one), end(other)) - max(one.joined_ns, other.joined_ns) for one in first for other in second),
        default=0,
    )


def covered_ns(spans: Iterable[tuple[int, int]]) -> int:
    """Return how long these intervals cover; what several of them cover counts once."""
    total = reached = 0
    for from_ns, to_ns in sorted(spans):
        start_ns = max(from_ns, reached)
        if to_ns > start_ns:
            total += to_ns - start_ns
            reached = to_ns
    return total


# ---- what members cost


def concerns(row: Rebalance, ids: Collection[str]) -> bool:
    """Whether one of these members set a rebalance off, was removed in it, or was waited for when it was dead."""
    if row.member_id in ids or any(gone.member_id in ids for gone in row.removed):
        return True
    return any(wait.died_ns is not None and wait.member_id in ids for wait in row.waited_for)


def unclaimed_ms(history: GroupHistory, ids: Collection[str]) -> float:
    """Return the partition time that dead members left without an owner and that belongs to no rebalance."""
    last_ns = history.group.last_ns
    pauses = (row for row in history.pauses if row.rebalance is None and row.former_member_id in ids)
    return sum(((last_ns if row.to_ns is None else row.to_ns) - row.from_ns) / NS_PER_MS for row in pauses)


# ---- wording


_SUFFIX: Final = re.compile(r"[-_.][0-9a-zA-Z]*$|[0-9]+$")


def stem(client_id: str | None) -> str:
    """Return a client id without its last part: ``web-7d4f`` and ``web-2`` are both ``web``."""
    return _SUFFIX.sub("", client_id or "")


def client_of(row: MemberLife) -> str:
    """Return the name that people know a member by: its client id, else its member id."""
    return row.client_id or row.member_id


def error_name(code: int) -> str:
    """Return ``REBALANCE_IN_PROGRESS``, or ``unknown error code``."""
    return describe_error(code).partition(" ")[2].strip("()")


def person(client_id: str | None, host: str | None) -> str:
    """Return ``c1 (10.0.0.1)``, as far as both are known."""
    name = client_id or "a client without a name"
    return f"{name} ({host})" if host else name


def lasting(ns: float) -> str:
    """Return a duration as findings have it: ``340 ms``, ``8.1 s``, ``12 min``."""
    if ns < SECOND_NS:
        return f"{ns / NS_PER_MS:.0f} ms"
    return f"{ns / SECOND_NS:.1f} s" if ns < 2 * MINUTE_NS else f"{ns / MINUTE_NS:.0f} min"


def plural(one: str, items: Sized, several: str | None = None) -> str:
    """Return the word for one item or for several, which by default has an s at its end."""
    return one if len(items) == 1 else several or f"{one}s"


def subscription_traits(members: Sequence[MemberLife]) -> frozenset[str]:
    """Return ``unequal subscriptions`` if the members want different topics."""
    return frozenset({"unequal subscriptions"} if len({frozenset(life.topics) for life in members}) > 1 else ())


def first_evidence(rebalances: Sequence[Rebalance], facts: int) -> list[Evidence]:
    """Return the first `facts` pieces of evidence of each of the first rebalances, five at most."""
    return [evidence for rebalance in rebalances[:5] for evidence in rebalance.evidence[:facts]]
