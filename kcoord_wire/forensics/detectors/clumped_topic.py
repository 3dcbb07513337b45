"""Clumped topic: one member has all partitions of a topic, though counts are even and others subscribe to it.

Topics differ in traffic, so even counts are no even load: a busy topic on one member is that member's whole work.
Normal is that a topic is spread over its subscribers. A sticky assignor that keeps partitions in the order of their
topics gives a new member whole topics (KAFKA-16277).

Threshold: 2 topics of 4 partitions or more, each wholly on one member, in the assignment that lasted longest; the
counts of their subscribers differ by one at most.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from kcoord_wire.forensics.detectors.found import MAX_EVIDENCE, Found, client_of, listed
from kcoord_wire.forensics.detectors.rounds import Round, assigned_rounds
from kcoord_wire.forensics.model import GroupHistory

if TYPE_CHECKING:
    import pyarrow as pa

THRESHOLD: Final = 2
_LEAST_PARTITIONS: Final = 4


def find(history: GroupHistory, exchanges: pa.Table | None = None) -> Iterator[Found]:
    """Yield one finding about the assignment that lasted longest."""
    rounds = assigned_rounds(history, exchanges)
    if not rounds:
        return
    longest, _ = max(rounds, key=lambda pair: pair[1] - pair[0].listed_ns)
    clumped = _clumped(longest, longest.given or {})
    if len(clumped) < THRESHOLD:
        return
    names = {life.member_id: client_of(life) for life in history.members}
    yield Found(
        severity="info",
        from_ns=longest.listed_ns,
        to_ns=None,
        subject=None,
        text=f"{len(clumped)} topics are each on one member, though others subscribe to them: "
        f"{listed(sorted(clumped))} ({longest.assignor})",
        advice="Counts of partitions are even; the load is not if the topics differ in traffic. Update the leader's "
        "client library, or take roundrobin, and let all members rejoin at once.",
        value=float(len(clumped)),
        threshold=float(THRESHOLD),
        rebalances=longest.rebalances_of(history),
        evidence=[
            longest.evidence(f"all of {topic} to {names.get(who, who)}") for topic, who in sorted(clumped.items())
        ][:MAX_EVIDENCE],
        suspects=(longest.leader_id,),
    )


def _clumped(each: Round, given: Mapping[str, frozenset[tuple[str, int]]]) -> dict[str, str]:
    """Return the topics that one member has alone, with that member."""
    sizes: dict[str, Counter[str]] = defaultdict(Counter)
    for member_id, partitions in given.items():
        for topic, _ in partitions:
            sizes[topic][member_id] += 1
    found = {}
    for topic, held in sizes.items():
        subscribers = [member_id for member_id, claim in each.claims.items() if topic in claim.topics]
        loads = [len(given.get(member_id, ())) for member_id in subscribers]
        if len(held) == 1 and len(loads) > 1 and max(loads) - min(loads) <= 1 and held.total() >= _LEAST_PARTITIONS:
            (found[topic],) = held
    return found
