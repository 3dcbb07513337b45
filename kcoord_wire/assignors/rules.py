"""The rules of an assignment, the check of one, and the rules that an assignor may promise.

A leader checks what a plug-in has returned before it sends it. A promise is a function of a group and what its members
end up with; a partition is held by the member that claims it with the highest generation, by none if two claim it in
that generation (KIP-341, KIP-429).

Laws:

* `check_assignment` never raises, whatever a plug-in has returned.
* It takes time linear in partitions and subscriptions: 1,000,000 partitions take a fraction of a second.
"""

from __future__ import annotations

import enum
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from kcoord_wire.assignors.histories import Case, Given, shown
from kcoord_wire.assignors.subscriptions import MemberSubscription, RebalanceProtocol


class Rule(enum.StrEnum):
    """A rule of an assignment, or of the assignor that made it."""

    NO_ERROR = "raises nothing"
    FORM = "an assignment has the form that `subscriptions.Assignment` describes"
    MEMBERS = "every member has an entry, and there is no other entry"
    SUBSCRIBED = "a member gets only topics that it subscribes to"
    EXISTING = "only partitions that exist are assigned"
    ONCE = "no partition is assigned twice"
    COMPLETE = "every partition of a topic with subscribers is assigned"
    INPUTS = "the input is left as it was"
    DETERMINISTIC = "the same input gives the same result"
    ORDER = "the order of mappings and topics in the input does not change the result"
    # of cooperative assignors (KIP-429)
    GIVEN_UP = "a partition goes to a member only after its holder has given it up"
    FOLLOW_UP = "one more rebalance at most"
    # promised by some
    EVEN = "with equal subscriptions, two members differ by at most one partition"
    BALANCED = "no chain of moves takes a partition from a member to one with at least two fewer"
    SPREAD = "with equal subscriptions, each topic is spread over the members to within one partition (KAFKA-16277)"
    STICKY = "no partition moves without need"


PROMISES: Final = frozenset({Rule.EVEN, Rule.BALANCED, Rule.SPREAD, Rule.STICKY})
"""The rules that an assignor may promise and need not. SPREAD is judged in groups without claims and in those where one
member holds everything; SPREAD and STICKY are judged in groups without racks, which may have their price in both."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule.

    :ivar rule: which
    :ivar text: what the assignment does, with names and numbers
    :ivar case: the smallest group found in which it does; None where one assignment was judged
    """

    rule: Rule
    text: str
    case: Case | None = None

    def __str__(self) -> str:
        return f"{self.rule.name}: {self.text}" + ("" if self.case is None else f"\n{self.case}")


def check_assignment(
    assignment: object,
    partitions_per_topic: Mapping[str, int],
    members: Mapping[str, MemberSubscription],
    protocol: RebalanceProtocol = RebalanceProtocol.EAGER,
) -> list[Violation]:
    """Return why an assignment must not be sent; nothing if it may.

    :param assignment: what an assignor has returned for the other two; of any type
    :param protocol: with COOPERATIVE, GIVEN_UP is judged too. COMPLETE is not: a partition without a consumer is bad,
        but sent to two it is worse
    """
    if not isinstance(assignment, Mapping):
        return [Violation(Rule.FORM, f"the result is of type {type(assignment).__name__}, no mapping")]
    try:
        found = [
            *_check_members(assignment, members),
            *_check_numbers(_by_topic(assignment.values()), partitions_per_topic, assignment),
        ]
        if not found and protocol is RebalanceProtocol.COOPERATIVE:
            found = list(_check_given_up(assignment, members))
    except Exception as error:  # a mapping of a plug-in may raise anything
        found = [Violation(Rule.FORM, f"the result cannot be read: {type(error).__name__}: {error}")]
    return found


def _check_members(assignment: Mapping[Any, Any], members: Mapping[str, MemberSubscription]) -> Iterator[Violation]:
    for member_id in members.keys() - assignment.keys():
        yield Violation(Rule.MEMBERS, f"member {member_id} has no entry")
    for member_id, partitions in assignment.items():
        if member_id not in members:
            yield Violation(Rule.MEMBERS, f"{member_id!r} is no member")
        elif not isinstance(partitions, Mapping):
            yield Violation(Rule.FORM, f"member {member_id} gets a {type(partitions).__name__}, no mapping")
        else:
            for topic in partitions.keys() - members[member_id].topics:
                yield Violation(Rule.SUBSCRIBED, f"member {member_id} gets {topic!r} and does not subscribe to it")


def _by_topic(all_partitions: Iterable[Any]) -> dict[Any, list[Sequence[int]]]:
    """Return every sequence of numbers under its topic."""
    given: defaultdict[Any, list[Sequence[int]]] = defaultdict(list)
    for partitions in all_partitions:
        if isinstance(partitions, Mapping):
            for topic, numbers in partitions.items():
                given[topic].append(numbers)
    return given


def _check_numbers(
    given: Mapping[Any, list[Sequence[int]]], counts: Mapping[str, int], assignment: Mapping[Any, Any]
) -> Iterator[Violation]:
    """Judge each topic as one array: a million partitions in a fraction of a second."""
    for topic, sequences in given.items():
        try:
            numbers = array("q", chain.from_iterable(sequences))
        except (TypeError, OverflowError) as error:
            yield Violation(Rule.FORM, f"the partitions of {topic!r} are no sequence of numbers: {error}")
            continue
        count = counts.get(topic, 0)
        if numbers and not 0 <= min(numbers) <= max(numbers) < count:
            wrong = next(each for each in numbers if not 0 <= each < count)
            yield Violation(Rule.EXISTING, f"{topic}-{wrong} is assigned; {topic} has {count} partitions")
        if len(set(numbers)) < len(numbers):
            [(twice, _)] = Counter(numbers).most_common(1)
            to = [member_id for member_id, has in assignment.items() for each in has.get(topic, ()) if each == twice]
            yield Violation(Rule.ONCE, f"{topic}-{twice} goes to {' and to '.join(to)}")


def _check_given_up(assignment: Given, members: Mapping[str, MemberSubscription]) -> Iterator[Violation]:
    """Judge GIVEN_UP. A member may keep what it holds although another, with an older claim, claims it too."""
    gained: dict[str, dict[int, str]] = {}
    for member_id, partitions in assignment.items():
        owned = members[member_id].owned
        for topic, numbers in partitions.items():
            if list(numbers) != list(before := owned.get(topic, ())):  # most stay where they were
                gained.setdefault(topic, {}).update(dict.fromkeys(set(numbers).difference(before), member_id))
    for member_id, member in members.items():
        for topic in member.owned.keys() & gained.keys():
            takers = gained[topic]
            for number in takers.keys() & set(member.owned[topic]):
                text = f"{topic}-{number} goes to {takers[number]} while {member_id} claims it"
                yield Violation(Rule.GIVEN_UP, f"{text} (generation {member.generation})")
    yield from _check_stale(assignment, members)


def _check_stale(assignment: Given, members: Mapping[str, MemberSubscription]) -> Iterator[Violation]:
    """Judge what several members claim: one whose claim is older than another's may not go on with it."""
    for (topic, number), claims in _contested(members).items():
        newest = max(generation for generation, _ in claims)
        for generation, member_id in claims:
            if generation < newest and number in assignment[member_id].get(topic, ()):
                text = f"{topic}-{number} stays with {member_id}, whose claim is of generation {generation}"
                yield Violation(Rule.GIVEN_UP, f"{text}: another claims it with {newest}")


Claims = dict[tuple[str, int], list[tuple[int, str]]]
"""Topic and partition to the claims on it: generation and member id."""


def _contested(members: Mapping[str, MemberSubscription]) -> Claims:
    """Return the claims on partitions that several members claim."""
    twice: dict[str, set[int]] = {}
    for topic, sequences in _by_topic(member.owned for member in members.values()).items():
        numbers = list(chain.from_iterable(sequences))
        if len(numbers) > len(set(numbers)):
            twice[topic] = {number for number, count in Counter(numbers).items() if count > 1}
    return claims_on(members, twice)


def claims_on(members: Mapping[str, MemberSubscription], among: Mapping[str, Collection[int]]) -> Claims:
    """Return the claims on the given partitions."""
    claims: Claims = {}
    for member_id, member in members.items():
        for topic in member.owned.keys() & among.keys():
            for number in set(member.owned[topic]).intersection(among[topic]):
                claims.setdefault((topic, number), []).append((member.generation, member_id))
    return claims


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
