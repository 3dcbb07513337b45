"""Flapping member: a client that is lost and comes back, over and over.

A client that comes back has a new member id, so the detector counts member ids one after the other of the same client
id and host (or of the same group.instance.id). Normal are several consumers with one client id on one host at the same
time; they look alike, so the returns are divided by the number of members present at once.

Threshold: 3 returns of each within 10 minutes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from kcoord_wire.forensics.detectors.found import MAX_EVIDENCE, Found
from kcoord_wire.forensics.detectors.windows import MINUTE_NS, busiest
from kcoord_wire.forensics.model import Evidence, GroupHistory, MemberLife

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["THRESHOLD", "WINDOW_NS", "find"]

WINDOW_NS: Final = 10 * MINUTE_NS
THRESHOLD: Final = 3


def find(history: GroupHistory, _exchanges: pa.Table | None = None) -> Iterator[Found]:
    """Yield one finding per client."""
    for name, lives in _clients(history.members).items():
        at_once = _most_at_once(lives)
        returns = busiest(lives[at_once:], lambda life: life.joined_ns, WINDOW_NS)
        if len(returns) < THRESHOLD * at_once:
            continue
        first, last = returns[0].joined_ns, returns[-1].joined_ns
        ended = [life for life in lives if life.left_ns is not None and first - WINDOW_NS <= life.left_ns <= last]
        why = sorted({life.why_left for life in ended if life.why_left})
        ids = {life.member_id for life in lives}
        yield Found(
            severity="warning",
            from_ns=lives[0].joined_ns,
            to_ns=last,
            subject=name,
            text=f"{name} came back {len(returns)} times within {max(1, round((last - first) / MINUTE_NS))} min"
            + (f"; it was lost by {', '.join(why)}" if why else ""),
            advice="Look at this one process: a supervisor that restarts it, polls that take longer than "
            "max.poll.interval.ms, long garbage collections, or a network that drops it.",
            value=len(returns) / at_once,
            threshold=float(THRESHOLD),
            rebalances=[rebalance.number for rebalance in history.rebalances if rebalance.member_id in ids],
            evidence=[
                Evidence(life.joined_ns, "", -1, f"it joins as {life.member_id}") for life in returns[:MAX_EVIDENCE]
            ],
        )


def _clients(members: list[MemberLife]) -> dict[str, list[MemberLife]]:
    """Return the lives of each client, in order of their start."""
    clients: dict[str, list[MemberLife]] = defaultdict(list)
    for life in sorted(members, key=lambda life: life.joined_ns):
        if name := life.instance_id or " at ".join(filter(None, [life.client_id, life.client_host])):
            clients[name].append(life)
    return clients


def _most_at_once(lives: list[MemberLife]) -> int:
    """Return how many of them there were at the same time, at most; 1 at least."""
    moments = [(life.joined_ns, 1) for life in lives]
    moments += [(life.last_seen_ns if life.left_ns is None else life.left_ns, -1) for life in lives]
    most = now = 0
    for _, change in sorted(moments):
        now += change
        most = max(most, now)
    return max(most, 1)
