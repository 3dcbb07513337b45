"""The lag of a group in a sentence, and what a rebalance added to it.

Law: nothing is concluded here; every figure is a row of `PartitionState` or `Rebalance`.
"""

from __future__ import annotations

from typing import Final

from kcoord_wire.forensics.model import GroupHistory, LagStatus, PartitionState, Rebalance
from kcoord_wire.report.formatting import ago, counted, duration, shown

_WORST_FIRST: Final = (LagStatus.STOPPED, LagStatus.STALLED, LagStatus.WARN)
_NAMED: Final = 3


def lag_sentence(history: GroupHistory) -> str | None:
    """Return ``lag 12,034 on 6 of 8 partitions; orders-3 STALLED since +41.0 s``; None where no lag is known."""
    known = [row for row in history.partitions if row.lag is not None]
    behind = [row for row in known if row.lag]
    if behind:
        total = sum(row.lag or 0 for row in behind)
        states = _states(behind, history.group.first_ns)
        return "; ".join([f"lag {total:,} on {len(behind):,} of {counted(len(known), 'partition')}", *states])
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


def _rank(row: PartitionState) -> tuple[int, int]:
    return _WORST_FIRST.index(LagStatus(row.status)), -(row.lag or 0)


def _state(row: PartitionState, first_ns: int) -> str:
    since = "" if row.since_ns is None else f" since {ago(row.since_ns, first_ns)}"
    return f"{shown(row.topic)}-{row.partition} {row.status}{since}"
