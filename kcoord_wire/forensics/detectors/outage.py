"""Outages: times in which no coordinator answered the members of a group (`model.Outage`).

Normal is that a member is answered within milliseconds. An outage that is shorter than the members' sessions costs no
rebalance, and yet no member could commit, join or leave in the meantime. A move of the coordinator
belongs to every rolling restart of brokers, and takes a second or two.

Threshold: any. Critical if members still try to reach a coordinator at its end, which is that of the source, after
`LASTING_MS` or more; a warning if it was survived.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from kcoord_wire.forensics.detectors.found import MAX_EVIDENCE, Found
from kcoord_wire.forensics.model import NS_PER_MS, GroupHistory, Outage

if TYPE_CHECKING:
    import pyarrow as pa

LASTING_MS: Final = 10_000

_MOVED: Final = "coordinator moved"
_ADVICE: Final = MappingProxyType(
    {
        "broker down": "Look at this broker and its log at that time: it was stopped, killed or restarted, or a "
        "firewall turned its clients away. The clients are not at fault; they need no change of their timeouts.",
        "loading": "The broker had to read the group from __consumer_offsets first: look at why it was restarted or "
        "became the coordinator, and at the size of that partition if it took long.",
        "silence": "Look at the network between the members and this broker, and at the broker itself: a full stop "
        "(paused machine, long garbage collection, full disk) looks the same. Not a member is at fault, for all of "
        "them went unanswered together.",
        _MOVED: "A broker was restarted, or the partition of __consumer_offsets was reassigned or lost its leader: "
        "find out whether that was intended. Members find the new coordinator by themselves.",
    }
)


def find_outages(history: GroupHistory, _exchanges: pa.Table | None = None) -> Iterator[Found]:
    """Yield one finding per outage that is no move."""
    return (_found(outage) for outage in history.outages if outage.kind != _MOVED)


def find_moves(history: GroupHistory, _exchanges: pa.Table | None = None) -> Iterator[Found]:
    """Yield one finding per move of the coordinator."""
    return (_found(outage) for outage in history.outages if outage.kind == _MOVED)


def _found(outage: Outage) -> Found:
    tried_ns = max((fact.time_ns for fact in outage.evidence), default=outage.from_ns)  # members try it no longer
    ms = max(0, (tried_ns if outage.to_ns is None else outage.to_ns) - outage.from_ns) / NS_PER_MS
    lasts = outage.to_ns is None and ms >= LASTING_MS
    rebalances = [] if outage.rebalance is None else [outage.rebalance]
    cost = f"; rebalance #{outage.rebalance} followed" if rebalances else "; it cost no rebalance"
    return Found(
        severity="critical" if lasts else "warning",
        from_ns=outage.from_ns,
        to_ns=outage.to_ns,
        subject=outage.broker,
        text=outage.text + ("" if outage.to_ns is None else cost),
        advice=_ADVICE[outage.kind],
        value=ms,
        threshold=0.0,
        rebalances=rebalances,
        evidence=outage.evidence[:MAX_EVIDENCE],
    )
