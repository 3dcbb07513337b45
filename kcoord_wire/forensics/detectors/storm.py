"""Storm: a group that rebalances again and again, more often than its members come and go.

Normal is one rebalance for each client that joins and one for each that leaves, with the second round of a cooperative
assignor after it: the start of a hundred members, or a rolling bounce of them, is not a storm. The rebalances that a
client causes beyond its first join and its first leave within the window are excess.

Threshold: 10 excess rebalances within 10 minutes; critical from 30 on (KAFKA-15106 had 200).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from kcoord_wire.forensics.detectors.found import MAX_EVIDENCE, Found
from kcoord_wire.forensics.detectors.windows import MINUTE_NS, busiest
from kcoord_wire.forensics.model import Cause, Evidence, GroupHistory, Rebalance

if TYPE_CHECKING:
    import pyarrow as pa

WINDOW_NS: Final = 10 * MINUTE_NS
THRESHOLD: Final = 10
CRITICAL: Final = 30

_JOINS: Final = frozenset({Cause.NEW_MEMBER})
_ANY_ADVICE: Final = "Look at the members that set off most of the rebalances, and at what they have in common."
_ADVICE: Final[dict[str, str]] = {  # by the commonest cause
    Cause.POLL_TIMEOUT: "The application does too much between two polls: fetch less at once (max.poll.records), or "
    "raise max.poll.interval.ms above what a batch takes.",
    Cause.SESSION_EXPIRED: "Members die, stand still, or lose their network: look at those processes first. A longer "
    "session timeout helps only where they come back by themselves.",
    Cause.SYNC_EXPIRED: "The leader's assignor is too slow for so many members and partitions, or the leader is gone.",
    Cause.REBALANCE_TIMEOUT: "Members join too late: look what they do between two polls when a rebalance begins.",
    Cause.NEW_MEMBER: "Processes start again and again: look at their supervisor (crashes, failed liveness probes, an "
    "autoscaler that follows the lag of the rebalances).",
    Cause.MEMBER_LEFT: "Processes are stopped and started again and again: look at their supervisor, or at an "
    "autoscaler that follows the lag of the rebalances.",
    Cause.COOPERATIVE_FOLLOW_UP: "The assignor does not come to rest: update the client libraries, the leader's first.",
    Cause.LEADER_REJOINED: "The leader asks for rebalances: look at its log, and at topics that come and go.",
    Cause.TOPICS_CHANGED: "Topics or partitions change all the time, or members disagree on them: look at what creates "
    "topics, and whether a pattern matches more than it should.",
    Cause.SUBSCRIPTION_CHANGED: "A member changes its subscription all the time: subscribe once to all topics.",
    Cause.COORDINATOR_FAILOVER: "The coordinator's broker is lost again and again: look at brokers, not at members.",
    Cause.REFUSED: "Members are refused: see the finding about the error.",
}
_LEAVES: Final = frozenset({Cause.MEMBER_LEFT, Cause.SESSION_EXPIRED})


def find(history: GroupHistory, _exchanges: pa.Table | None = None) -> Iterator[Found]:
    """Yield the worst storm of the group."""
    worst = busiest(_excess(history.rebalances), lambda rebalance: rebalance.started_ns, WINDOW_NS)
    if len(worst) < THRESHOLD:
        return
    first, last = worst[0], worst[-1]
    minutes = max(1.0, (last.started_ns - first.started_ns) / MINUTE_NS)
    causes = Counter(rebalance.cause for rebalance in worst).most_common(3)
    client, times = Counter(_client(rebalance) for rebalance in worst).most_common(1)[0]
    yield Found(
        severity="critical" if len(worst) >= CRITICAL else "warning",
        from_ns=first.started_ns,
        to_ns=last.ended_ns or last.started_ns,
        subject=None,
        text=f"{len(worst)} rebalances in {minutes:.0f} min beyond its members' first joins and leaves: "
        f"{', '.join(f'{count} x {cause}' for cause, count in causes)}; {client} set off {times} of them",
        advice=_ADVICE.get(causes[0][0], _ANY_ADVICE),
        value=float(len(worst)),
        threshold=float(THRESHOLD),
        rebalances=[rebalance.number for rebalance in worst],
        evidence=[_evidence(rebalance) for rebalance in worst[:MAX_EVIDENCE]],
    )


def _excess(rebalances: list[Rebalance]) -> Iterator[Rebalance]:
    """Yield the rebalances that are not a client's first join or first leave within the window."""
    last: dict[tuple[str, bool], int] = {}
    is_explained = False
    for rebalance in rebalances:
        if rebalance.cause == Cause.COOPERATIVE_FOLLOW_UP:
            if not is_explained:
                yield rebalance
            is_explained = False  # the second round is normal, a third is not
            continue
        is_explained = False
        if rebalance.cause in _JOINS | _LEAVES:
            key = (_client(rebalance), rebalance.cause in _JOINS)
            is_explained = key not in last or rebalance.started_ns - last[key] > WINDOW_NS
        if is_explained:
            last[key] = rebalance.started_ns
        else:
            yield rebalance


def _client(rebalance: Rebalance) -> str:
    name = " at ".join(filter(None, [rebalance.client_id, rebalance.client_host]))
    return name or rebalance.member_id or "an unknown member"


def _evidence(rebalance: Rebalance) -> Evidence:
    if rebalance.evidence:
        return rebalance.evidence[0]
    return Evidence(rebalance.started_ns, "", -1, f"rebalance {rebalance.number}: {rebalance.detail}")
