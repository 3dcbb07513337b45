"""Uneven assignment: a member has much more to do than its equals, or nothing at all although there is enough.

Members are compared that subscribe to the same topics, in the assignment that held longest. Normal is a difference of
one partition; the range assignor adds one a topic, for the members that come first in the alphabet.

Threshold: the busiest member has at least 1.5 times its fair share and 2 partitions more than the least busy one; or a
member has nothing while another has 2 or more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from kcoord_wire.forensics.model import Evidence, Finding, Generation, GroupHistory, MemberLife

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["THRESHOLD", "find"]

THRESHOLD: Final = 1.5
_LEAST_DIFFERENCE: Final = 2
_ADVICE_ON_RANGE: Final = (
    "range hands each topic's remainder to the same members: take roundrobin, sticky or cooperative-sticky, or numbers "
    "of partitions that the number of members divides."
)
_ADVICE: Final = "Look at the leader's client library: it computes the assignment, and may be of another version."


def find(history: GroupHistory, _exchanges: pa.Table | None = None) -> Iterator[Finding]:
    """One finding for each set of members with the same subscription."""
    held = [(_lasted(history, g), g) for g in history.generations if g.stable_ns is not None and g.members > 1]
    if not held:
        return
    _, longest = max(held, key=lambda item: (item[0], -item[1].joined_ns))
    assert longest.stable_ns is not None
    moment = longest.stable_ns + _lasted(history, longest) // 2  # members hear of their assignment one after the other
    counts = Counter(
        o.member_id for o in history.ownership if o.from_ns <= moment and (o.to_ns is None or o.to_ns > moment)
    )
    equals: dict[tuple[str, ...], list[MemberLife]] = {}
    for life in history.members:
        if life.joined_ns <= moment and (life.left_ns is None or life.left_ns > moment) and life.topics:
            equals.setdefault(tuple(sorted(life.topics)), []).append(life)
    for topics, lives in equals.items():
        load = {life.member_id: counts[life.member_id] for life in lives}
        total, most, least = sum(load.values()), max(load.values()), min(load.values())
        share = total / len(load)
        if most - least < _LEAST_DIFFERENCE or most < THRESHOLD * share:
            continue
        busiest = next(life for life in lives if load[life.member_id] == most)
        idle = [life.client_id or life.member_id for life in lives if not load[life.member_id]]
        yield Finding(
            history.group.group_id,
            "uneven_assignment",
            "warning",
            longest.joined_ns,
            longest.ended_ns,
            busiest.client_id or busiest.member_id,
            f"of {total} partitions of {', '.join(topics[:3])}{' ...' if len(topics) > 3 else ''}, "
            f"{busiest.client_id or busiest.member_id} has {most}, where {share:.1f} would be even"
            + (f"; {len(idle)} have none: {', '.join(idle[:3])}" if idle else f"; the least has {least}")
            + (f" ({longest.assignor})" if longest.assignor else ""),
            _ADVICE_ON_RANGE if longest.assignor == "range" else _ADVICE,
            most / share,
            THRESHOLD,
            [r.number for r in history.rebalances if r.generation_id == longest.generation_id],
            [
                Evidence(moment, "", -1, f"{life.client_id or life.member_id}: {load[life.member_id]} partitions")
                for life in sorted(lives, key=lambda life: -load[life.member_id])[:10]
            ],
        )


def _lasted(history: GroupHistory, generation: Generation) -> int:
    end = history.group.last_ns if generation.ended_ns is None else generation.ended_ns
    return end - (generation.stable_ns or generation.joined_ns)
