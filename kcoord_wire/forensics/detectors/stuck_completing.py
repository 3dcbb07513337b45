"""Stuck in CompletingRebalance: all have joined, and the leader does not send the assignment.

Normal is the time the leader's assignor needs, milliseconds to a second. An assignor that takes longer than the
timeouts never ends: the members are thrown out, rejoin, and it begins anew (aiokafka#1176, 84 members, 45 minutes). Or
the leader is gone without the group knowing (KAFKA-12890).

Threshold: 10 s; critical when a sync timeout or a new rebalance ended it, twice or more, or when it has not ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from kcoord_wire.forensics.detectors.phases import long_phases
from kcoord_wire.forensics.model import Cause, Finding, GroupHistory

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["THRESHOLD_MS", "find"]

THRESHOLD_MS: Final = 10_000


def find(history: GroupHistory, _exchanges: pa.Table | None = None) -> Iterator[Finding]:
    """One finding for all long waits of the group."""
    phases = long_phases(history, "CompletingRebalance", THRESHOLD_MS)
    if not phases:
        return
    worst = max(phases, key=lambda phase: phase.ms)
    rebalances = [phase.rebalance for phase in phases if phase.rebalance is not None]
    futile = sum(1 for rebalance in rebalances if rebalance.outcome != "stable")
    timeouts = sum(1 for rebalance in history.rebalances if rebalance.cause == Cause.SYNC_EXPIRED)
    leaders = {phase.leader_id for phase in phases} - {None}
    names = {life.member_id: life.client_id or life.member_id for life in history.members}
    led = sorted(names.get(leader or "", leader or "") for leader in leaders)
    assignors = sorted({rebalance.assignor for rebalance in rebalances if rebalance.assignor})
    yield Finding(
        history.group.group_id,
        "stuck_completing",
        "critical" if futile >= 2 or timeouts or worst.is_open else "warning",
        phases[0].from_ns,
        phases[-1].to_ns,
        led[0] if len(led) == 1 else None,
        f"{len(phases)} x longer than {THRESHOLD_MS // 1000} s waiting for the leader's assignment, the longest "
        f"{worst.ms / 1000:.1f} s{', still waiting' if worst.is_open else ''}; {futile} of them led to nothing"
        + (f"; the leader was {', '.join(led[:3])}" if led else "")
        + (f" with {', '.join(assignors)}" if assignors else ""),
        "Look at the leader: an assignor that is too slow for this many members and partitions (take another one, or "
        "equal subscriptions), or a leader that is gone. Until then larger session and rebalance timeouts let it end.",
        worst.ms,
        float(THRESHOLD_MS),
        [rebalance.number for rebalance in rebalances],
        [evidence for rebalance in rebalances[:5] for evidence in rebalance.evidence[:2]],
    )
