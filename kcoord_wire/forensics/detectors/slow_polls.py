"""Slow polls: members that left the group because their application had not polled within max.poll.interval.ms.

Normal is none. How long the poll took shows when the same client joins again: the interval, and the time until then.

Threshold: 1; warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from kcoord_wire.forensics.detectors.found import MAX_EVIDENCE, Found, client_of, lasting, listed, only, person
from kcoord_wire.forensics.model import NS_PER_MS, Cause, Evidence, GroupHistory, MemberLife

if TYPE_CHECKING:
    import pyarrow as pa

THRESHOLD: Final = 1


class _Late(NamedTuple):
    """A member that did not poll in time.

    :ivar took_ns: how long its poll took at least; 0 where its max.poll.interval.ms is not known
    """

    life: MemberLife
    is_back: bool
    took_ns: int

    @property
    def name(self) -> str:
        return person(self.life.client_id, self.life.client_host)


def find(history: GroupHistory, _exchanges: pa.Table | None = None) -> Iterator[Found]:
    """Yield one finding for all of them."""
    late = [_late(life, history.members) for life in history.members if life.why_left == "poll timeout"]
    if not late:
        return
    yield _found(history, late)


def _found(history: GroupHistory, late: list[_Late]) -> Found:
    names = sorted({each.name for each in late})
    longest = max(late, key=lambda each: each.took_ns)
    lefts = [each.life.left_ns or each.life.last_seen_ns for each in late]
    limit_ns = (longest.life.rebalance_timeout_ms or 0) * NS_PER_MS
    within = f" ({lasting(limit_ns)})" if limit_ns else ""
    times = f", {len(late)} times" if len(late) > 1 else ""
    return Found(
        severity="warning",
        from_ns=min(lefts),
        to_ns=max(lefts),
        subject=only(sorted({client_of(each.life) for each in late})),
        text=f"{listed(names)} did not poll within max.poll.interval.ms{within} and left the group{times}"
        f"{_measured(longest)}",
        advice=_advice(longest),
        value=float(len(late)),
        threshold=float(THRESHOLD),
        rebalances=[row.number for row in history.rebalances if row.cause == Cause.POLL_TIMEOUT],
        evidence=[
            Evidence(left_ns, "", -1, f"{each.name} leaves")
            for each, left_ns in zip(late[:MAX_EVIDENCE], lefts, strict=False)
        ],
    )


def _late(life: MemberLife, members: list[MemberLife]) -> _Late:
    left_ns = life.left_ns or life.last_seen_ns
    back = [
        other.joined_ns
        for other in members
        if (other.client_id, other.client_host) == (life.client_id, life.client_host) and other.joined_ns >= left_ns
    ]
    limit_ns = (life.rebalance_timeout_ms or 0) * NS_PER_MS
    return _Late(life, bool(back), limit_ns + min(back) - left_ns if back and limit_ns else limit_ns)


def _measured(late: _Late) -> str:
    if not late.took_ns:
        return ""
    if not late.is_back:
        return f"; the poll took more than {lasting(late.took_ns)}: the client has not come back"
    return f"; the longest took {lasting(late.took_ns)}, by when it joined again"


def _advice(late: _Late) -> str:
    """Return what to change, with the measured time where there is one."""
    bound = (
        f"above {lasting(late.took_ns)}" if late.took_ns and late.is_back else "above the longest time between polls"
    )
    return (
        "Find out what the application of that member does between two polls. Set max.poll.records "
        f"so that a batch fits into the interval, or max.poll.interval.ms {bound}; the session timeout has nothing to "
        "do with it, since heartbeats went on."
    )
