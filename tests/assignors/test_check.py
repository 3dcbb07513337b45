"""check_assignor catches an assignor for each rule that one can break, and finds nothing in those that keep them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kcoord_wire.assignors import (
    ASSIGNORS,
    Assignor,
    MemberSubscription,
    RebalanceProtocol,
    range_assign,
    round_robin,
    sticky,
)
from kcoord_wire.assignors.check import assert_assignor, check_assignor
from kcoord_wire.assignors.rules import PROMISES, Rule

EAGER, COOPERATIVE = RebalanceProtocol
Counts, Members = Mapping[str, int], Mapping[str, MemberSubscription]
Planted = Callable[[Any, Any, Any], Any]


def plant(change: Callable[[Counts, Members, dict[str, dict[str, list[int]]]], object]) -> Planted:
    """Range, and then a change to its result, in place or as the return value."""

    def assign(counts: Any, members: Any, racks: Any) -> object:
        result = {each: {t: list(p) for t, p in has.items()} for each, has in range_assign(counts, members).items()}
        changed = change(counts, members, result)
        return result if changed is None else changed

    return assign


def raises(counts: Counts, members: Members, result: Any) -> None:
    if len(members) > 2:
        raise KeyError("third")


def descends(counts: Counts, members: Members, result: Any) -> None:
    for has in result.values():
        for numbers in has.values():
            numbers.reverse()


def leaves_out_the_empty(counts: Counts, members: Members, result: Any) -> object:
    return {each: has for each, has in result.items() if has}


def gives_everybody_one_topic(counts: Counts, members: Members, result: Any) -> object:
    taken = {topic for has in result.values() for topic in has}
    first = min(result)
    return {each: {t: list(range(counts[t])) for t in taken} if each == first else {} for each in result}


def counts_from_one(counts: Counts, members: Members, result: Any) -> None:
    for has in result.values():
        for topic in has:
            has[topic] = [number + 1 for number in has[topic]]


def gives_the_first_to_all(counts: Counts, members: Members, result: Any) -> None:
    for each, has in result.items():
        for topic in members[each].topics:
            if counts.get(topic, 0):
                has[topic] = sorted({0, *has.get(topic, [])})


def forgets_the_last(counts: Counts, members: Members, result: Any) -> None:
    for has in result.values():
        for topic in [topic for topic in has if counts[topic] > 1 and counts[topic] - 1 in has[topic]]:
            has[topic].remove(counts[topic] - 1)
            if not has[topic]:
                del has[topic]


def sorts_the_topics(counts: Counts, members: Members, result: Any) -> None:
    for member in members.values():
        assert isinstance(member.topics, list)
        member.topics.sort()


CALLS = itertools.count()


def rotates(counts: Counts, members: Members, result: Any) -> object:
    """Give each member what another should get; which one depends on how often it was called."""
    same = len({frozenset(member.topics) for member in members.values()}) == 1
    return rotated(result, next(CALLS)) if same else None


def rotated(result: Mapping[str, Any], by: int) -> dict[str, Any]:
    ids = sorted(result)
    return {each: result[ids[(place + by) % len(ids)]] for place, each in enumerate(ids)}


def by_order_of_the_input(counts: Counts, members: Members, result: Any) -> object:
    same = len({frozenset(member.topics) for member in members.values()}) == 1
    return dict(zip(members, (result[each] for each in sorted(result)), strict=True)) if same else None


def slices(counts: Any, members: Any, racks: Any) -> object:
    """With equal subscriptions, cut the list of all partitions into runs: even, and each topic with few members."""
    if len({frozenset(member.topics) for member in members.values()}) > 1:
        return round_robin(counts, members)
    [topics] = {tuple(sorted(member.topics)) for member in members.values()}
    every = [(topic, number) for topic in topics for number in range(counts.get(topic, 0))]
    each, extra = divmod(len(every), len(members))
    result: dict[str, dict[str, list[int]]] = {}
    for place, member_id in enumerate(sorted(members)):
        start = place * each + min(place, extra)
        result[member_id] = {}
        for topic, number in every[start : start + each + (place < extra)]:
            result[member_id].setdefault(topic, []).append(number)
    return result


def moves_on(counts: Any, members: Any, racks: Any) -> object:
    """Withhold what is to move, as a cooperative one must, but move everything on with each generation."""
    given = {member_id: {t: list(n) for t, n in has.items()} for member_id, has in round_robin(counts, members).items()}
    if len({frozenset(member.topics) for member in members.values()}) == 1:
        given = rotated(given, max(member.generation for member in members.values()))
    claimed = {(m, t, n) for m, member in members.items() for t, has in member.owned.items() for n in has}
    left: dict[str, dict[str, list[int]]] = {}
    for member_id, has in given.items():
        kept = {
            t: [n for n in ns if not any((m, t, n) in claimed for m in members if m != member_id)]
            for t, ns in has.items()
        }
        left[member_id] = {topic: numbers for topic, numbers in kept.items() if numbers}
    return left


PLANTED: list[tuple[Rule, RebalanceProtocol, Planted]] = [
    (Rule.NO_ERROR, EAGER, plant(raises)),
    (Rule.FORM, EAGER, plant(descends)),
    (Rule.FORM, EAGER, lambda counts, members, racks: None),
    (Rule.MEMBERS, EAGER, plant(leaves_out_the_empty)),
    (Rule.SUBSCRIBED, EAGER, plant(gives_everybody_one_topic)),
    (Rule.EXISTING, EAGER, plant(counts_from_one)),
    (Rule.ONCE, EAGER, plant(gives_the_first_to_all)),
    (Rule.COMPLETE, EAGER, plant(forgets_the_last)),
    (Rule.INPUTS, EAGER, plant(sorts_the_topics)),
    (Rule.DETERMINISTIC, EAGER, plant(rotates)),
    (Rule.ORDER, EAGER, plant(by_order_of_the_input)),
    (Rule.GIVEN_UP, COOPERATIVE, round_robin),
    (Rule.FOLLOW_UP, COOPERATIVE, moves_on),
    (Rule.EVEN, EAGER, range_assign),
    (Rule.BALANCED, EAGER, round_robin),
    (Rule.SPREAD, EAGER, slices),
    (Rule.STICKY, EAGER, round_robin),
]


@pytest.mark.parametrize(("rule", "protocol", "assign"), PLANTED)
def test_each_rule_catches_an_assignor_that_breaks_it(rule: Rule, protocol: RebalanceProtocol, assign: Planted) -> None:
    found = check_assignor(Assignor("planted", protocol, assign), {rule} & PROMISES, histories=40)
    shown = {violation.rule: violation for violation in found}
    assert rule in shown, found
    case = shown[rule].case
    assert case is not None
    assert len(case.members) <= 4, f"not shrunk\n{shown[rule]}"
    assert rule.name in str(shown[rule])
    assert all(member_id in str(shown[rule]) for member_id in case.members)


def test_every_rule_has_a_planted_assignor() -> None:
    assert {rule for rule, _, _ in PLANTED} == set(Rule)


KEPT = {
    "range": frozenset[Rule](),
    "roundrobin": {Rule.EVEN, Rule.SPREAD},
    "sticky": PROMISES,
    "cooperative-sticky": PROMISES,
}


@pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=lambda assignor: assignor.name)
def test_our_assignors_keep_what_they_promise(assignor: Assignor) -> None:
    assert_assignor(assignor, KEPT[assignor.name])


def test_an_eager_assignor_sees_claims_in_its_user_data_alone() -> None:
    without = Assignor("sticky without user data", EAGER, sticky, on_join=lambda topics, owned, generation: b"")
    assert [violation.rule for violation in check_assignor(without, {Rule.STICKY}, histories=40)] == [Rule.STICKY]


def test_functions_for_user_data_are_judged_too() -> None:
    def fails(*arguments: object) -> Any:
        raise ValueError("no data")

    for assignor in (
        Assignor("x", EAGER, range_assign, on_join=fails),
        Assignor("x", EAGER, range_assign, assignment_user_data=fails),
    ):
        assert "ValueError: no data" in str(check_assignor(assignor, histories=1)[0])


def test_assert_assignor_names_every_broken_rule() -> None:
    with pytest.raises(AssertionError, match=r"planted breaks 1 rules\nNO_ERROR: it raises KeyError"):
        assert_assignor(Assignor("planted", EAGER, plant(raises)), histories=20)


def test_assert_assignor_plays_the_histories_of_its_seed() -> None:
    planted, counts = Assignor("planted", EAGER, plant(forgets_the_last)), set[str]()
    for seed in (1, 2, 3):
        (first, *_) = check_assignor(planted, histories=3, seed=seed)
        with pytest.raises(AssertionError) as raised:
            assert_assignor(planted, histories=3, seed=seed)
        assert str(first) in str(raised.value)
        counts.add(str(raised.value))
    assert len(counts) > 1, "seeds differ"


def test_only_promises_can_be_promised() -> None:
    with pytest.raises(ValueError, match="no promises: no partition is assigned twice"):
        check_assignor(ASSIGNORS["range"], {Rule.ONCE})


@pytest.mark.parametrize("sizes", [{"histories": 0}, {"rounds": 0}, {"histories": -5}])
def test_a_check_that_would_check_nothing_is_rejected(sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="show nothing"):
        check_assignor(ASSIGNORS["range"], **sizes)


def test_only_an_assignor_can_be_checked() -> None:
    given: Any = "range"
    with pytest.raises(TypeError, match="'range' is no Assignor"):
        check_assignor(given)


def test_the_same_seed_gives_the_same_report() -> None:
    planted = Assignor("planted", EAGER, plant(forgets_the_last))
    assert check_assignor(planted, histories=5, seed=7) == check_assignor(planted, histories=5, seed=7) != []
