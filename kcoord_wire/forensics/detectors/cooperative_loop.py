"""Cooperative loop: the second round of a cooperative rebalance is followed by a third, a fourth, and so on.

Normal are two rounds: the first revokes the partitions that are to move, the second assigns them (KIP-429). When
members disagree about who owns what (stale owned partitions, or two members that claim the same one), each round
revokes something and requires another (librdkafka#4783).

Threshold: 3 follow-up rounds in a row in which no member joins, leaves or changes anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from kcoord_wire.forensics.detectors.found import Found, first_evidence, only, subscription_traits
from kcoord_wire.forensics.detectors.windows import runs
from kcoord_wire.forensics.model import Cause, GroupHistory

if TYPE_CHECKING:
    import pyarrow as pa

THRESHOLD: Final = 3
CRITICAL: Final = 10


def find(history: GroupHistory, _exchanges: pa.Table | None = None) -> Iterator[Found]:
    """Yield one finding per loop."""
    for run in runs(history.rebalances, lambda rebalance: rebalance.cause == Cause.COOPERATIVE_FOLLOW_UP):
        if len(run) < THRESHOLD:
            continue
        yield Found(
            severity="critical" if len(run) >= CRITICAL else "warning",
            from_ns=run[0].started_ns,
            to_ns=run[-1].ended_ns,
            subject=only(sorted({rebalance.client_id for rebalance in run if rebalance.client_id})),
            text=f"{len(run)} follow-up rounds in a row, where one is normal; {sum(r.moved for r in run)} partitions "
            f"moved, {sum(r.moved_needlessly for r in run)} of them needlessly",
            advice="Members disagree about who owns what. Update the client library, and have all members on the same "
            "one; stopping the group once ends the loop.",
            value=float(len(run)),
            threshold=float(THRESHOLD),
            rebalances=[rebalance.number for rebalance in run],
            evidence=first_evidence(run, 1),
            suspects=tuple(sorted({rebalance.leader_id for rebalance in run if rebalance.leader_id})),
            traits=subscription_traits(history.members),
        )
