"""Groups with members of both protocols: one epoch, which is read twice.

The coordinator keeps one epoch for all. A member of KIP-848 receives it in a heartbeat; each one of the classic
protocol is asked to join again when its part is due (its heartbeat is answered with REBALANCE_IN_PROGRESS, its
JoinGroup at once), and once more where others give up partitions for it in the same epoch (KIP-848, online migration).
What one protocol shows without a start is therefore no rebalance of its own where the other shows what raised the
epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.model import Rebalance
from kcoord_wire.forensics.wire.rules import Explanation
from kcoord_wire.forensics.wire.signs import Moment
from kcoord_wire.forensics.wire.trace import MemberTrace, RebalanceTrace, StartKind

_RAISES: Final = frozenset({StartKind.JOINED, StartKind.STATIC, StartKind.LEFT})


class Entry(NamedTuple):
    """A rebalance of either protocol, explained.

    :ivar following: when the next one of its protocol starts
    :ivar moves: partitions that changed owner, and how many of them needlessly
    """

    trace: RebalanceTrace
    explanation: Explanation
    following: Moment | None
    moves: tuple[int, int]


def start_with_what_came(traces: Iterable[RebalanceTrace]) -> None:
    """Begin the hidden rebalances of classic members with who came or left in them: that raised the epoch."""
    for trace in traces:
        raised = next((other for other in trace.others if other.kind in _RAISES), None)
        if trace.start.kind == StartKind.HIDDEN and raised is not None:
            trace.others = [other for other in trace.others if other is not raised]
            trace.start, trace.shown_by = raised, None


def one_by_epoch(
    entries: Iterable[Entry], classic: Sequence[MemberTrace], modern: Sequence[MemberTrace]
) -> list[Entry]:
    """Return the rebalances of a group in order of time, those without a start as parts of what raised their epoch.

    :param entries: of both protocols, in order of time
    """
    entries = list(entries)
    known = [entry for entry in entries if entry.explanation.cause != Cause.UNKNOWN]
    kept = []
    for entry in entries:
        at = entry.trace.started
        is_part = entry.explanation.cause == Cause.UNKNOWN and _is_there(classic, at) and _is_there(modern, at)
        raised = _raised(known, entry.trace) if is_part else None
        if raised is None:
            kept.append(entry)
        elif raised.generation == entry.trace.generation and raised.over is not None and entry.trace.over is not None:
            raised.over = max(raised.over, entry.trace.over)
    return kept


def _is_there(lives: Iterable[MemberTrace], at: Moment) -> bool:
    return any(life.since <= at and (life.left is None or life.left >= at) for life in lives)


def _raised(known: Sequence[Entry], part: RebalanceTrace) -> RebalanceTrace | None:
    """Return what raised the epoch of a part: of the same number, else the last one before it."""
    same = [entry.trace for entry in known if entry.trace.generation == part.generation is not None]
    before = [entry.trace for entry in known if entry.trace.started <= part.started]
    return next(iter(same), None) or next(reversed(before), None)


def count_both(rebalances: Sequence[Rebalance], lives: Sequence[MemberTrace]) -> None:
    """Count the members of both protocols: a group is not empty when the last member of one has left.

    :param lives: of both
    """
    for rebalance in rebalances:
        rows = rebalances if rebalance is rebalances[-1] else [rebalance]
        rebalance.members_before = _count(lives, rebalance.started_ns)
        rebalance.members_after = _count(lives, max(row.ended_ns or row.started_ns for row in rows) + 1)
        if rebalance.outcome == "empty" and rebalance.members_after:
            rebalance.outcome = "interrupted"
        elif rebalance is rebalances[-1] and not rebalance.members_after and rebalance.outcome == "interrupted":
            rebalance.outcome = "empty"


def _count(lives: Iterable[MemberTrace], at_ns: int) -> int:
    """Return how many were there just before a time."""
    return sum(life.since.time_ns < at_ns and (life.left is None or life.left.time_ns >= at_ns) for life in lives)
