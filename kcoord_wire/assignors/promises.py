"""The rules that an assignor may promise, each as a function of a group and what its members end up with.

Who holds a partition: the member that claims it with the highest generation; no member if two claim it in that
generation (KIP-341, KIP-429).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from kcoord_wire.assignors.histories import Case, Given, shown
from kcoord_wire.assignors.rules import Rule, Violation, claims_on


def members_of(given: Given) -> dict[tuple[str, int], str]:
    """Return the member of each topic and partition."""
    return {
        (topic, number): member_id
        for member_id, has in given.items()
        for topic, numbers in has.items()
        for number in numbers
    }


def _check_even(case: Case, first: Given, final: Given) -> Iterator[Violation]:
    if case.subscriptions_are_equal():
        loads = {member_id: sum(map(len, has.values())) for member_id, has in final.items()}
        if max(loads.values()) - min(loads.values()) > 1:
            yield Violation(Rule.EVEN, f"loads {loads}")


def _check_balanced(case: Case, first: Given, final: Given) -> Iterator[Violation]:
    """Search, from each member, breadth first the members from which a chain of moves leads to it."""
    loads = {member_id: sum(map(len, has.values())) for member_id, has in final.items()}
    for start in final:
        onward = {start: start}
        for member_id in (queue := [start]):
            if loads[member_id] >= loads[start] + 2:
                steps = [member_id]
                while steps[-1] != start:
                    steps.append(onward[steps[-1]])
                yield Violation(Rule.BALANCED, f"loads {loads}; one partition each could move {' -> '.join(steps)}")
                return
            for other, has in final.items():
                if other not in onward and has.keys() & case.members[member_id].topics:
                    onward[other] = member_id
                    queue.append(other)


def _check_spread(case: Case, first: Given, final: Given) -> Iterator[Violation]:
    if case.has_racks() or not case.subscriptions_are_equal():
        return
    held = holders(case)
    if held and (len(set(held.values())) > 1 or held.keys() != case.assignable()):
        return
    for topic in sorted({topic for topic, _ in case.assignable()}):
        numbers = {member_id: len(has.get(topic, ())) for member_id, has in final.items()}
        if max(numbers.values()) - min(numbers.values()) > 1:
            yield Violation(Rule.SPREAD, f"partitions of {topic}: {numbers}")
            return


def _check_sticky(case: Case, first: Given, final: Given) -> Iterator[Violation]:
    if case.has_racks():
        return
    held, now = holders(case), members_of(final)
    if first is not final:  # cooperative, in two steps: what was taken away in the first and given back is a move too
        kept = members_of(first)
        for each, member_id in sorted(held.items()):
            if now[each] == member_id and kept.get(each) != member_id:
                yield Violation(
                    Rule.STICKY, f"{each[0]}-{each[1]} is taken from {member_id} and given back: {shown(first)}"
                )
                return
    judged = _too_few_kept(held, now, list(final)) if case.subscriptions_are_equal() else _undone(case, held, now)
    if judged:
        yield Violation(Rule.STICKY, f"{judged}: {shown(final)}")


Held = Mapping[tuple[str, int], str]  # topic and partition to member id


def holders(case: Case) -> Held:
    """Return who holds each partition that exists and whose topic its holder subscribes to."""
    counts = {topic: range(count) for topic, count in case.partitions_per_topic.items()}
    held = {}
    for each, claims in claims_on(case.members, counts).items():
        newest = max(generation for generation, _ in claims)
        claimants = [member_id for generation, member_id in claims if generation == newest]
        if len(claimants) == 1 and each[0] in case.members[claimants[0]].topics:
            held[each] = claimants[0]
    return held


def _too_few_kept(held: Held, now: Held, members: Sequence[str]) -> str:
    """With equal subscriptions, each member keeps up to its quota, and of those with more, so many keep one more."""
    quota, larger = divmod(len(now), len(members))
    loads = Counter(held.values())
    possible = sum(min(load, quota) for load in loads.values())
    possible += min(larger, sum(load > quota for load in loads.values()))
    kept = sum(now[each] == member_id for each, member_id in held.items())
    return f"{kept} of {len(held)} partitions stay where they were, {possible} could" if kept < possible else ""


def _undone(case: Case, held: Held, now: Held) -> str:
    """Look for a move that can be undone, alone or in exchange for another partition, with loads as equal as before."""
    loads = Counter(now.values())
    moved = [(each, member_id) for each, member_id in sorted(held.items()) if now[each] != member_id]
    for (topic, number), member_id in moved:
        taker = now[topic, number]
        move = f"{topic}-{number} has moved from {member_id} to {taker}"
        if loads[taker] > loads[member_id]:
            return f"{move}, which has more"
        for other, has in _new_of(member_id, held, now):
            if other in case.members[taker].topics:
                return f"{move}, which could take {other}-{has} instead"
    return ""


def _new_of(member_id: str, held: Held, now: Held) -> Iterable[tuple[str, int]]:
    return (each for each, has in sorted(now.items()) if has == member_id and held.get(each) != member_id)


PROMISED: Final[Mapping[Rule, Callable[[Case, Given, Given], Iterator[Violation]]]] = {
    Rule.EVEN: _check_even,
    Rule.BALANCED: _check_balanced,
    Rule.SPREAD: _check_spread,
    Rule.STICKY: _check_sticky,
}
"""Called with the group, the first assignment, and the one that all members end up with."""
