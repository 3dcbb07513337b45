"""Uneven assignment: a member has much more to do than its equals, or nothing at all although there is enough.

Members are compared with those that subscribe to the same topics, in the assignment that lasted longest: by what its
leader assigned, for a member that died before it received its part holds nothing of an even assignment. Normal is a
difference of one partition; the range assignor adds one per topic, to the members that come first in the alphabet.

Threshold: the busiest member has at least 1.5 times its fair share and 2 partitions more than the least busy one; or a
member has nothing while another has 2 or more.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from kcoord_wire.forensics.detectors.found import MAX_EVIDENCE, Found, client_of, listed
from kcoord_wire.forensics.detectors.rounds import read_rounds
from kcoord_wire.forensics.model import Evidence, Generation, GroupHistory

if TYPE_CHECKING:
    import pyarrow as pa

THRESHOLD: Final = 1.5
_LEAST_DIFFERENCE: Final = 2
_ADVICE_ON_RANGE: Final = (
    "range hands each topic's remainder to the same members: take roundrobin, sticky or cooperative-sticky, or numbers "
    "of partitions that the number of members divides."
)
_ADVICE_ON_CLAIMS: Final = (
    "Members of the Go library claim what is free and never give up what they can keep up with: limit MaximumClaims, "
    "or let all members balance their claims."
)
_ADVICE: Final = "Look at the leader's client library: it computes the assignment, and may be of another version."


def find(history: GroupHistory, exchanges: pa.Table | None = None) -> Iterator[Found]:
    """Yield one finding for each set of members with the same subscription."""
    stable = [row for row in history.generations if row.stable_ns is not None and row.members > 1]
    if not stable:
        return
    longest = max(stable, key=lambda row: (_lasted_ns(history, row), -row.joined_ns))
    # In the middle: members receive their assignments one after the other.
    moment = (longest.stable_ns or 0) + _lasted_ns(history, longest) // 2
    is_led = exchanges is not None and longest.leader_id is not None
    equals = _assigned(longest, exchanges) if is_led else _held(history, moment)
    for topics, load in equals.items():
        most, share = max(load.values()), sum(load.values()) / len(load)
        if most - min(load.values()) >= _LEAST_DIFFERENCE and most >= THRESHOLD * share:
            yield _found(history, longest, moment, topics, load)


def _found(
    history: GroupHistory, generation: Generation, moment: int, topics: tuple[str, ...], load: Mapping[str, int]
) -> Found:
    """Return the finding; `load` are the partitions of each member id."""
    names = {life.member_id: client_of(life) for life in history.members}
    busy = sorted(load, key=lambda member_id: -load[member_id])
    total, busiest = sum(load.values()), names.get(busy[0], busy[0])
    most, least, share = load[busy[0]], load[busy[-1]], total / len(load)
    idle = [names.get(member_id, member_id) for member_id in busy if not load[member_id]]
    return Found(
        severity="warning",
        from_ns=generation.joined_ns,
        to_ns=generation.ended_ns,
        subject=busiest,
        text=f"of {total} partitions of {listed(topics)}, {busiest} has {most}, where {share:.1f} would be even"
        + (f"; {len(idle)} have none: {', '.join(idle[:3])}" if idle else f"; the least has {least}")
        + (f" ({generation.assignor})" if generation.assignor else ""),
        advice=_advice(history, generation),
        value=most / share,
        threshold=THRESHOLD,
        rebalances=[r.number for r in history.rebalances if r.generation_id == generation.generation_id],
        evidence=[
            Evidence(moment, "", -1, f"{names.get(member_id, member_id)}: {load[member_id]} partitions")
            for member_id in busy[:MAX_EVIDENCE]
        ],
    )


def _advice(history: GroupHistory, generation: Generation) -> str:
    if history.group.origin == "marshal":
        return _ADVICE_ON_CLAIMS
    return _ADVICE_ON_RANGE if generation.assignor == "range" else _ADVICE


def _assigned(generation: Generation, exchanges: pa.Table | None) -> dict[tuple[str, ...], Counter[str]]:
    """Return what the leader assigned to each member, by what they subscribe to; empty where that was not captured."""
    rounds = [each for each in read_rounds(exchanges) if each.generation == generation.generation_id]
    led = min(rounds, key=lambda each: abs(each.listed_ns - generation.joined_ns), default=None)
    equals: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    if led is not None and led.given is not None:
        for member_id, claim in led.claims.items():
            if claim.topics:
                equals[tuple(sorted(claim.topics))][member_id] = len(led.given.get(member_id, ()))
    return equals


def _held(history: GroupHistory, moment: int) -> dict[tuple[str, ...], Counter[str]]:
    """Return what each member present at that moment held, by what they subscribe to: a server, or a log, gave it."""
    held = Counter(row.member_id for row in history.ownership if _covers(row.from_ns, row.to_ns, moment))
    equals: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for life in history.members:
        is_dead = life.died_ns is not None and life.died_ns <= moment
        if _covers(life.joined_ns, life.left_ns, moment) and life.topics and not is_dead:
            equals[tuple(sorted(life.topics))][life.member_id] = held[life.member_id]
    return equals


def _covers(from_ns: int, to_ns: int | None, moment: int) -> bool:
    return from_ns <= moment and (to_ns is None or to_ns > moment)


def _lasted_ns(history: GroupHistory, generation: Generation) -> int:
    end = history.group.last_ns if generation.ended_ns is None else generation.ended_ns
    return end - (generation.stable_ns or generation.joined_ns)
