"""Storm: a group that rebalances again and again, beyond what its members' coming and going explains.

Normal is one rebalance for each client that comes and one for each that goes, with the second round of a cooperative
assignor after it: the start of a hundred members, or a rolling bounce of them, is no storm. What a client causes beyond
its first coming and its first going within the window is excess.

Threshold: 10 excess rebalances within 10 minutes; critical from 30 on (KAFKA-15106 had 200).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from kcoord_wire.forensics.detectors.windows import MINUTE_NS, busiest
from kcoord_wire.forensics.model import Cause, Evidence, Finding, GroupHistory, Rebalance

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["CRITICAL", "THRESHOLD", "WINDOW_NS", "find"]

WINDOW_NS: Final = 10 * MINUTE_NS
THRESHOLD: Final = 10
CRITICAL: Final = 30

_COMING: Final = frozenset({Cause.NEW_MEMBER})
_GOING: Final = frozenset({Cause.MEMBER_LEFT, Cause.SESSION_EXPIRED})


def find(history: GroupHistory, _exchanges: pa.Table | None = None) -> Iterator[Finding]:
    """The worst storm of the group."""
    excess = list(_excess(history.rebalances))
    worst = busiest(excess, lambda rebalance: rebalance.started_ns, WINDOW_NS)
    if len(worst) < THRESHOLD:
        return
    first, last = worst[0], worst[-1]
    minutes = max(1.0, (last.started_ns - first.started_ns) / MINUTE_NS)
    causes = Counter(rebalance.cause for rebalance in worst).most_common()
    blamed, times = Counter(_name(rebalance) for rebalance in worst).most_common(1)[0]
    told = ", ".join(f"{count} x {cause}" for cause, count in causes[:3])
    yield Finding(
        history.group.group_id,
        "storm",
        "critical" if len(worst) >= CRITICAL else "warning",
        first.started_ns,
        last.ended_ns or last.started_ns,
        None,
        f"{len(worst)} rebalances in {minutes:.0f} min beyond its members' first coming and going: {told}; "
        f"{blamed} set off {times} of them",
        "Take the commonest cause first: raise max.poll.interval.ms or do less per poll where it is exceeded, raise "
        "session.timeout.ms where sessions run out, look for a slow assignor where syncs time out.",
        float(len(worst)),
        float(THRESHOLD),
        [rebalance.number for rebalance in worst],
        [_evidence(rebalance) for rebalance in worst[:10]],
    )


def _excess(rebalances: list[Rebalance]) -> Iterator[Rebalance]:
    """The rebalances that nobody's first coming or going within the window explains."""
    came: dict[tuple[str, bool], int] = {}
    explained = False
    for rebalance in rebalances:
        if rebalance.cause == Cause.COOPERATIVE_FOLLOW_UP:
            if not explained:
                yield rebalance
            explained = False  # the second round is normal, a third is not
            continue
        explained = rebalance.cause in _COMING or rebalance.cause in _GOING
        if explained:
            key = (_name(rebalance), rebalance.cause in _COMING)
            before = came.get(key)
            explained = before is None or rebalance.started_ns - before > WINDOW_NS
            if explained:
                came[key] = rebalance.started_ns
        if not explained:
            yield rebalance


def _name(rebalance: Rebalance) -> str:
    return " at ".join(filter(None, [rebalance.client_id, rebalance.client_host])) or rebalance.member_id or "nobody"


def _evidence(rebalance: Rebalance) -> Evidence:
    if rebalance.evidence:
        return rebalance.evidence[0]
    return Evidence(rebalance.started_ns, "", -1, f"rebalance {rebalance.number}: {rebalance.detail}")
