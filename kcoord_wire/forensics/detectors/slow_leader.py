"""Slow leader: the group waits for the leader's assignor.

From the JoinGroup response with the list of members to the leader's SyncGroup only the assignor works, and all others
wait. Normal are milliseconds. Waits of ten seconds or more, and those that end in another rebalance, are
`stuck_completing`.

Threshold: 1 s, with another member that waits; warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from kcoord_wire.forensics.detectors.found import MAX_EVIDENCE, Found, lasting, listed, only, plural
from kcoord_wire.forensics.detectors.rounds import Round, read_rounds
from kcoord_wire.forensics.detectors.stuck import COMPLETING_MS
from kcoord_wire.forensics.model import NS_PER_MS, GroupHistory

if TYPE_CHECKING:
    import pyarrow as pa

THRESHOLD_MS: Final = 1_000


def find(history: GroupHistory, exchanges: pa.Table | None = None) -> Iterator[Found]:
    """Yield one finding for all rounds that were slow."""
    rounds = [each for each in read_rounds(exchanges) if each.given is not None]
    slow = [each for each in rounds if THRESHOLD_MS <= _took_ms(each) < COMPLETING_MS and len(each.claims) > 1]
    if not slow:
        return
    worst = max(slow, key=_took_ms)
    leaders = sorted({each.leader for each in slow})
    yield Found(
        severity="warning",
        from_ns=slow[0].listed_ns,
        to_ns=slow[-1].synced_ns,
        subject=only(leaders),
        text=f"the leader {worst.leader} took {lasting(_took_ms(worst) * NS_PER_MS)} in its assignor "
        f"({worst.assignor}), and {len(worst.claims) - 1} {plural('other', range(len(worst.claims) - 1))} waited for it"
        + (f"; {len(slow)} of {len(rounds)} rounds were as slow ({listed(leaders)})" if len(slow) > 1 else ""),
        advice="Look what the assignor of that member does: a custom one that asks other systems, or sticky assignment "
        "of many partitions to members with different subscriptions; else a process that stood still (garbage "
        "collection, CPU limit). Another assignor avoids the wait, or the consumer protocol (KIP-848), with which the "
        "broker assigns.",
        value=_took_ms(worst),
        threshold=float(THRESHOLD_MS),
        rebalances=sorted({number for each in slow for number in each.rebalances_of(history)}),
        evidence=[
            each.evidence(f"its SyncGroup comes {lasting(_took_ms(each) * NS_PER_MS)} later")
            for each in slow[:MAX_EVIDENCE]
        ],
    )


def _took_ms(each: Round) -> float:
    return (each.synced_ns - each.listed_ns) / NS_PER_MS
