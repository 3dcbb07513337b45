"""Topics that come to a group while its members stay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.detectors.finding import DetectorResult, Seen, detector, plural
from kcoord_wire.forensics.model import Evidence, GroupHistory, Ownership
from kcoord_wire.protocol.wording import first_of

_BY_TOPICS: Final = (Cause.SUBSCRIPTION_CHANGED, Cause.TOPICS_CHANGED)


@detector(58, basis="frames")
def new_topics(seen: Seen) -> Iterator[DetectorResult]:
    """New topics: all members share topics that no member had before, and none of them came for it.

    That is what a pattern does when a topic is created that it fits. Members of the classic protocol find it each by
    itself when they refresh their metadata, so that one topic costs several rebalances; with KIP-848 the broker does.

    Threshold: one topic that all members subscribe to, and that those who got it first had joined before; info.
    """
    history = seen.history
    came = came_later(history)
    if not came:
        return
    since_ns = min(came.values())
    firsts = {row.generation_id for row in history.ownership if row.topic in came and row.from_ns == came[row.topic]}
    rows = [
        row
        for row in history.rebalances
        if row.generation_id in firsts or (row.cause in _BY_TOPICS and (row.ended_ns or 0) >= since_ns)
    ]
    names = sorted(came)
    yield DetectorResult(
        severity="info",
        from_ns=min([since_ns, *(row.started_ns for row in rows)]),
        to_ns=max(came.values()),
        subject=names[0] if len(names) == 1 else None,
        text=f"all members share the new {plural('topic', names)} {first_of(names)}, as by a pattern, for which they "
        f"rebalanced {len(rows)} {plural('time', rows)}",
        advice="Normal with a pattern. Members of the classic protocol see a new topic each at its own time "
        "(metadata.max.age.ms, topic.metadata.refresh.interval.ms) and rebalance for each; the patterns of KIP-848 are "
        "matched by the broker, once. Create topics together, and ahead of their records.",
        value=len(names),
        threshold=1,
        rebalances=[row.number for row in rows],
        evidence=[
            Evidence(at_ns, "", -1, f"{name} is assigned for the first time")
            for name, at_ns in sorted(came.items(), key=lambda item: item[1])
        ],
    )


def came_later(history: GroupHistory) -> dict[str, int]:
    """Return the topics that came while members stayed, each with when it was assigned first."""
    owned = sorted(history.ownership, key=lambda row: row.from_ns)
    firsts: dict[str, list[Ownership]] = {}
    for row in owned:
        known = firsts.setdefault(row.topic, [row])
        if row.generation_id == known[0].generation_id and row is not known[0]:
            known.append(row)
    starts = {row.generation_id: row.started_ns for row in history.rebalances}
    first_generation = owned[0].generation_id if owned else None
    return {
        topic: rows[0].from_ns
        for topic, rows in firsts.items()
        if rows[0].generation_id not in (None, first_generation)
        and _were_there(history, rows, starts.get(rows[0].generation_id))
        and _is_of_all(history, topic, rows[0].from_ns)
    }


def _were_there(history: GroupHistory, rows: Sequence[Ownership], start_ns: int | None) -> bool:
    """Whether those that got a topic first had joined before the rebalance that gave it to them."""
    holders = {row.member_id for row in rows}
    joined = [life.joined_ns for life in history.members if life.member_id in holders]
    return start_ns is not None and all(at_ns < start_ns for at_ns in joined)


def _is_of_all(history: GroupHistory, topic: str, from_ns: int) -> bool:
    """Whether all members that were there then subscribe to a topic, or (KIP-848) may do so by a pattern."""
    there = [life for life in history.members if life.joined_ns < from_ns and life.is_there(from_ns)]
    return len(there) > 0 and all(life.protocol != "classic" or topic in life.topics for life in there)
