"""Stuck in PreparingRebalance: the group waits for a member that does not rejoin.

Nobody of an eager group works meanwhile. Normal is about a heartbeat interval (3 s): members learn of the rebalance by
heartbeat and rejoin at the end of their poll. The coordinator waits for the largest rebalance timeout of all members
(max.poll.interval.ms, 5 minutes by default).

Threshold: 30 s; critical when it was the timeout that ended it, or when it has not ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from kcoord_wire.forensics.detectors.phases import long_phases
from kcoord_wire.forensics.model import Finding, GroupHistory

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["THRESHOLD_MS", "find"]

THRESHOLD_MS: Final = 30_000


def find(history: GroupHistory, _exchanges: pa.Table | None = None) -> Iterator[Finding]:
    """One finding for all long waits of the group."""
    phases = long_phases(history, "PreparingRebalance", THRESHOLD_MS)
    if not phases:
        return
    worst = max(phases, key=lambda phase: phase.ms)
    late = [phase.rebalance for phase in phases if phase.rebalance is not None]
    missed = sorted(
        {gone.client_id or gone.member_id for r in late for gone in r.removed if gone.why == "rebalance timeout"}
    )
    slow = sorted(
        {r.last_client_id or r.last_member_id or "" for r in late if (r.late_ms or 0) >= THRESHOLD_MS / 2} - {""}
    )
    blame = f"; {', '.join(missed)} did not rejoin" if missed else f"; {', '.join(slow)} came last" if slow else ""
    blamed = missed or slow
    yield Finding(
        history.group.group_id,
        "stuck_preparing",
        "critical" if missed or worst.is_open else "warning",
        phases[0].from_ns,
        phases[-1].to_ns,
        blamed[0] if blamed else None,
        f"{len(phases)} x longer than {THRESHOLD_MS // 1000} s waiting for members to rejoin, the longest "
        f"{worst.ms / 1000:.1f} s{', still waiting' if worst.is_open else ''}{blame}",
        "Find out what the late member does between two polls: it learns of a rebalance only there. A shorter "
        "max.poll.interval.ms bounds the wait of all others.",
        worst.ms,
        float(THRESHOLD_MS),
        [rebalance.number for rebalance in late],
        [evidence for rebalance in late[:5] for evidence in rebalance.evidence[:2]],
    )
