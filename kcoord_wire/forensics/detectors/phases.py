"""States that lasted long, with the rebalance they were part of."""

from __future__ import annotations

from typing import NamedTuple

from kcoord_wire.forensics.model import GroupHistory, Rebalance, StateInterval

__all__ = ["LongPhase", "long_phases"]


class LongPhase(NamedTuple):
    """A state that lasted at least as long as was asked for. `to_ns`: None where `is_open`, it had not ended."""

    from_ns: int
    to_ns: int | None
    ms: float
    is_open: bool
    leader_id: str | None
    rebalance: Rebalance | None


def long_phases(history: GroupHistory, state: str, threshold_ms: float) -> list[LongPhase]:
    """The intervals of `state` that lasted `threshold_ms` or longer, in order of time."""
    found = []
    for interval in history.states:
        end = history.group.last_ns if interval.to_ns is None else interval.to_ns
        ms = (end - interval.from_ns) / 1e6
        if interval.state == state and ms >= threshold_ms:
            rebalance = _around(history.rebalances, interval)
            leader = rebalance.leader_id if rebalance is not None else None
            found.append(LongPhase(interval.from_ns, interval.to_ns, ms, interval.to_ns is None, leader, rebalance))
    return found


def _around(rebalances: list[Rebalance], interval: StateInterval) -> Rebalance | None:
    """The last rebalance that had begun when the interval did."""
    begun = [rebalance for rebalance in rebalances if rebalance.started_ns <= interval.from_ns]
    return begun[-1] if begun else None
