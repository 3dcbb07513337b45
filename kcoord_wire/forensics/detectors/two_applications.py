"""Two applications: members of one group that subscribe to topics of which they have none in common.

They work, each on its own topics, but every start, stop and deploy of one stops the other, and the offsets of both lie
under one name. Normal is a group whose members subscribe to the same topics. A member that changes its subscription
counts from ten seconds later on.

Threshold: two sets of members without a common topic that are in the group at the same time, for a second if their
client ids differ in more than the last part (warning), else for a minute (info: one application whose consumers should
not share a group).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Final

from kcoord_wire.forensics.detectors.deploy import stem
from kcoord_wire.forensics.detectors.found import MAX_EVIDENCE, Found, client_of, lasting, listed
from kcoord_wire.forensics.detectors.windows import MINUTE_NS, SECOND_NS
from kcoord_wire.forensics.model import Cause, Evidence, GroupHistory, MemberLife

if TYPE_CHECKING:
    import pyarrow as pa

OTHERS_NS: Final = SECOND_NS
ALIKE_NS: Final = MINUTE_NS
SETTLED_NS: Final = 10 * SECOND_NS
"""After a change of its subscription, from when on a member counts."""


def find(history: GroupHistory, _exchanges: pa.Table | None = None) -> Iterator[Found]:
    """Yield one finding for a group that has such sets."""
    changes = [row for row in history.rebalances if row.cause == Cause.SUBSCRIPTION_CHANGED]
    since = {row.member_id: row.started_ns + SETTLED_NS for row in changes}
    lives = [replace(life, joined_ns=since.get(life.member_id, life.joined_ns)) for life in history.members]
    sets = _sets([life for life in lives if life.topics])
    pairs = [(_together(*each, history.group.last_ns), *each) for each in combinations(sets, 2)]
    if not pairs:
        return
    together_ns, first, second = max(pairs, key=lambda pair: pair[0])
    is_other = _stems(first).isdisjoint(_stems(second))
    if together_ns >= (OTHERS_NS if is_other else ALIKE_NS):
        yield _found(first, second, together_ns, is_other)


def _stems(lives: Sequence[MemberLife]) -> set[str]:
    return {stem(life.client_id) for life in lives}


def _found(first: Sequence[MemberLife], second: Sequence[MemberLife], together_ns: int, is_other: bool) -> Found:
    names = [listed(sorted({client_of(life) for life in each})) for each in (first, second)]
    topics = [listed(sorted({topic for life in each for topic in life.topics})) for each in (first, second)]
    what = "two applications share the group id" if is_other else "consumers of different topics share the group id"
    return Found(
        severity="warning" if is_other else "info",
        from_ns=max(min(life.joined_ns for life in each) for each in (first, second)),
        to_ns=None,
        subject=None,
        text=f"{what}: {names[0]} subscribe to {topics[0]}, {names[1]} to {topics[1]}, no topic in common, side by "
        f"side for {lasting(together_ns)}",
        advice="Give each application a group.id of its own: each start, stop and deploy of one makes the other "
        "rebalance. A new id begins without offsets: copy them (kafka-consumer-groups.sh --reset-offsets --from-file) "
        "before the first start.",
        value=together_ns / SECOND_NS,
        threshold=(OTHERS_NS if is_other else ALIKE_NS) / SECOND_NS,
        rebalances=[],
        evidence=[
            Evidence(life.joined_ns, "", -1, f"{client_of(life)} subscribes to {', '.join(life.topics)}")
            for life in [*first[: MAX_EVIDENCE // 2], *second[: MAX_EVIDENCE // 2]]
        ],
    )


def _sets(lives: Sequence[MemberLife]) -> list[list[MemberLife]]:
    """Return the members by common topics: a chain of common topics leads from each of a set to each other."""
    sets: list[tuple[set[str], list[MemberLife]]] = []
    for life in lives:
        topics, members = set(life.topics), [life]
        apart = []
        for known, others in sets:
            if known & topics:
                topics |= known
                members = others + members
            else:
                apart.append((known, others))
        sets = [*apart, (topics, members)]
    return [members for _, members in sets]


def _together(first: Sequence[MemberLife], second: Sequence[MemberLife], last_ns: int) -> int:
    """Return for how long a member of both was there at the same time, at most."""

    def end(life: MemberLife) -> int:
        return last_ns if life.left_ns is None else life.left_ns

    return max(
        (min(end(one), end(other)) - max(one.joined_ns, other.joined_ns) for one in first for other in second),
        default=0,
    )
