"""Cooperative loop: the second round of a cooperative rebalance is followed by a third, a fourth, and so on.

Normal are two rounds: in the first, partitions that are to move are revoked, in the second they are given out
(KIP-429). When members disagree about who owns what (stale owned partitions, two members that claim the same), each
round revokes something and asks for the next (librdkafka#4783).

Threshold: 3 follow-up rounds in a row without anybody coming, going or changing anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from kcoord_wire.forensics.detectors.windows import runs
from kcoord_wire.forensics.model import Cause, Finding, GroupHistory

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["CRITICAL", "THRESHOLD", "find"]

THRESHOLD: Final = 3
CRITICAL: Final = 10


def find(history: GroupHistory, _exchanges: pa.Table | None = None) -> Iterator[Finding]:
    """One finding a loop."""
    for run in runs(history.rebalances, lambda rebalance: rebalance.cause == Cause.COOPERATIVE_FOLLOW_UP):
        if len(run) < THRESHOLD:
            continue
        clients = sorted({rebalance.client_id for rebalance in run if rebalance.client_id})
        yield Finding(
            history.group.group_id,
            "cooperative_loop",
            "critical" if len(run) >= CRITICAL else "warning",
            run[0].started_ns,
            run[-1].ended_ns,
            clients[0] if len(clients) == 1 else None,
            f"{len(run)} follow-up rounds in a row, where one is normal; {sum(r.moved for r in run)} partitions moved, "
            f"{sum(r.moved_needlessly for r in run)} of them needlessly",
            "Members disagree about who owns what. Update the client library, and have all members on the same one; "
            "stopping the group once ends the loop.",
            float(len(run)),
            float(THRESHOLD),
            [rebalance.number for rebalance in run],
            [evidence for rebalance in run[:5] for evidence in rebalance.evidence[:1]],
        )
