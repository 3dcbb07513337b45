"""Flapping member: a client that is lost and comes back, over and over.

A client that comes back has a new member id, so what is counted are member ids one after the other of the same client
id and host (or the same group.instance.id). Several consumers of one client id on one host at the same time are normal,
and nobody can tell them apart: the returns are divided among as many as were there at once.

Threshold: 3 returns of each within 10 minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from kcoord_wire.forensics.detectors.windows import MINUTE_NS, busiest
from kcoord_wire.forensics.model import Evidence, Finding, GroupHistory, MemberLife

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["THRESHOLD", "WINDOW_NS", "find"]

WINDOW_NS: Final = 10 * MINUTE_NS
THRESHOLD: Final = 3


def find(history: GroupHistory, _exchanges: pa.Table | None = None) -> Iterator[Finding]:
    """One finding a client."""
    clients: dict[str, list[MemberLife]] = {}
    for life in history.members:
        if name := life.instance_id or " at ".join(filter(None, [life.client_id, life.client_host])):
            clients.setdefault(name, []).append(life)
    for name, lives in clients.items():
        lives.sort(key=lambda life: life.joined_ns)
        at_once = _at_once(lives)
        returns = busiest(lives[at_once:], lambda life: life.joined_ns, WINDOW_NS)
        if len(returns) < THRESHOLD * at_once:
            continue
        first, last = returns[0].joined_ns, returns[-1].joined_ns
        ends = [life for life in lives if life.left_ns is not None and first - WINDOW_NS <= life.left_ns <= last]
        why = sorted({life.why_left for life in ends if life.why_left})
        yield Finding(
            history.group.group_id,
            "flapping_member",
            "warning",
            lives[0].joined_ns,
            last,
            name,
            f"{name} came back {len(returns)} times within {max(1, round((last - first) / MINUTE_NS))} min"
            + (f"; it was lost by {', '.join(why)}" if why else ""),
            "Look at this one process: a supervisor that restarts it, polls that take longer than "
            "max.poll.interval.ms, long garbage collections, or a network that drops it.",
            len(returns) / at_once,
            float(THRESHOLD),
            [r.number for r in history.rebalances if r.member_id in {life.member_id for life in lives}],
            [Evidence(life.joined_ns, "", -1, f"it joins as {life.member_id}") for life in returns[:10]],
        )


def _at_once(lives: list[MemberLife]) -> int:
    """How many were there at the same time, at most."""
    moments = [(life.joined_ns, 1) for life in lives]
    moments += [(life.last_seen_ns if life.left_ns is None else life.left_ns, -1) for life in lives]
    most = now = 0
    for _, change in sorted(moments, key=lambda moment: (moment[0], moment[1])):
        now += change
        most = max(most, now)
    return max(most, 1)
