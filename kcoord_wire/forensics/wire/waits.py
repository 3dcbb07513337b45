"""Whom the join phase of a rebalance waited for: members that were dead or silent, or that joined late.

Laws:

* The coordinator waits only for members that were in the group when the rebalance began: the wait begins when the last
  of them that joined at all, except the awaited one, had done so.
* A member that was removed before the rebalance, or by what started it, was not waited for.
* A member that joined late counts only where no other was missing for longer.
* A member of which the source shows no request may have joined unseen: nothing is said of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kcoord_wire.forensics.model import NS_PER_MS, Awaited
from kcoord_wire.forensics.wire.deaths import SILENT, End, clock
from kcoord_wire.forensics.wire.moments import NS_PER_S
from kcoord_wire.forensics.wire.trace import MemberTrace, RebalanceTrace

LATE: Final = "late"

_LEAST_NS: Final = NS_PER_S  # heartbeats, which bring the news of a rebalance, come every one to three seconds
_LISTED: Final = 3
_MS_PER_S: Final = 1_000


def find_awaited(trace: RebalanceTrace, ends: Mapping[MemberTrace, End], horizon_ns: int) -> list[Awaited]:
    """Return the members that others waited for, for a second or more; the longest wait first.

    :param ends: how members ended
    :param horizon_ns: where the source ends
    """
    start_ns, over_ns = trace.started.time_ns, _over_ns(trace, horizon_ns)
    done = {
        member: max(at.time_ns, start_ns)
        for at, member, _ in trace.joins
        if trace.before.get(member.member_id) is member
    }
    joined_ns = sorted([start_ns, *done.values()])
    waits = []
    for member in trace.before.values():
        until_ns = over_ns if member.left is None else min(member.left.time_ns, over_ns)
        if member not in done and member.connections and until_ns > start_ns:
            waits.append((member, joined_ns[-1], until_ns))
    if not any(_is_long(wait) for wait in waits):
        waits = [(member, joined_ns[-2], at_ns) for member, at_ns in done.items() if at_ns == joined_ns[-1]][:1]
    waits = [wait for wait in waits if _is_long(wait)]
    waits.sort(key=lambda wait: wait[1] - wait[2])
    return [_awaited(member, from_ns, until_ns, ends.get(member)) for member, from_ns, until_ns in waits]


def _is_long(wait: tuple[MemberTrace, int, int]) -> bool:
    return wait[2] - wait[1] >= _LEAST_NS


def _over_ns(trace: RebalanceTrace, horizon_ns: int) -> int:
    if trace.join is not None and trace.join.joined is not None:
        return trace.join.joined.time_ns
    return horizon_ns if trace.over is None else trace.over.time_ns


def _awaited(member: MemberTrace, from_ns: int, until_ns: int, end: End | None) -> Awaited:
    kind, died_ns = LATE, None
    if end is not None and end.died_ns is not None and end.died_ns < until_ns:
        kind, died_ns = end
    ms = (until_ns - from_ns) / NS_PER_MS
    return Awaited(member.member_id, member.client_id, member.host or None, from_ns, ms, kind, died_ns)


def awaited_text(waits: Sequence[Awaited]) -> str:
    """Say whom a rebalance waited for that was dead, to be added to its sentence; empty if there was none."""
    dead = [wait for wait in waits if wait.died_ns is not None]
    parts = [_text(wait) for wait in dead[:_LISTED]]
    more = len(dead) - _LISTED
    return f"; it waited {' and '.join(parts)}{f' and for {more} more' if more > 0 else ''}" if parts else ""


def _text(wait: Awaited) -> str:
    assert wait.died_ns is not None, "the caller has checked"
    name = wait.client_id or wait.member_id
    word = "silent" if wait.end == SILENT else "dead"
    return f"{wait.ms / _MS_PER_S:.1f} s for {name}, {word} since {clock(wait.died_ns)} UTC"
