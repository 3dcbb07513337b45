"""Any subscriptions: balanced as far as they allow, nothing moves that need not, and chains of moves."""

from __future__ import annotations

import random

import pytest

from kcoord_wire.assignors import MemberSubscription, Partitions
from kcoord_wire.assignors.leveling import Exchanges, level
from kcoord_wire.assignors.subscriptions import Nearness, kinds_of

Held = list[dict[str, list[int]]]


def run(
    counts: dict[str, int],
    subscriptions: list[str],
    held: Held,
    racks: list[str | None] | None = None,
    **replicas: list[str],
) -> tuple[list[Partitions], dict[str, set[int]]]:
    """Level members that subscribe to topics of one letter; `replicas` has one rack for each partition."""
    members = {f"m{place}": MemberSubscription(list(topics)) for place, topics in enumerate(subscriptions)}
    kinds = kinds_of(counts, members, list(members))
    mine = {(topic, number) for each in held for topic, numbers in each.items() for number in numbers}
    free = {topic: [n for n in range(count) if (topic, n) not in mine] for topic, count in counts.items()}
    near = Nearness.where_racks_matter(
        counts, racks or [], {topic: [[rack] for rack in each] for topic, each in replicas.items()}
    )
    return level(counts, kinds, held, free, near)


def test_topics_with_few_subscribers_are_given_first() -> None:
    given, taken = run({"a": 4, "b": 2}, ["ab", "a", "a"], [{}, {}, {}])
    assert [sum(map(len, mine.values())) for mine in given] == [2, 2, 2]
    assert given[0] == {"b": [0, 1]}
    assert taken == {}


def test_chains_of_moves_balance_what_single_moves_cannot() -> None:
    """The last can take only from b, b's holder only from a: one partition of each has to move."""
    held = [{"a": [0, 1, 2, 3]}, {"b": [0, 1, 2]}, {"b": [3, 4]}]
    given, taken = run({"a": 4, "b": 5}, ["a", "ab", "b"], held)
    assert [sum(map(len, mine.values())) for mine in given] == [3, 3, 3]
    assert {topic: len(numbers) for topic, numbers in taken.items()} == {"a": 1, "b": 1}


def test_free_partitions_level_before_any_that_is_held_moves() -> None:
    """Given out one after the other, the free ones of a would go to the first member, and b would have to move."""
    held = [{"b": [0]}, {"b": [1]}, {}]
    given, taken = run({"a": 2, "b": 2, "c": 1}, ["abc", "bc", "ab"], held)
    assert taken == {}
    assert all(set(mine["b"]) <= set(new["b"]) for mine, new in zip(held[:2], given, strict=False))
    assert sorted(sum(map(len, mine.values())) for mine in given) == [1, 2, 2]


def test_a_newcomer_takes_from_many_topics() -> None:
    """KAFKA-16277, where subscriptions differ."""
    counts = dict.fromkeys("abcdefghij", 20)
    held: Held = [{topic: [member] for topic in counts} for member in range(20)]
    given, _ = run(counts, ["abcdefghij"] * 21 + ["a"], [*held, {}, {}])
    newcomer = {topic: len(numbers) for topic, numbers in given[20].items()}
    assert sum(newcomer.values()) == 9
    assert max(newcomer.values()) == 1


def test_what_was_moved_needlessly_goes_back() -> None:
    chance = random.Random(7)
    for _ in range(50):
        counts = {topic: chance.randint(1, 9) for topic in "abcde"}
        subscriptions = ["".join(chance.sample("abcde", chance.randint(1, 4))) for _ in range(6)]
        held: Held = [{} for _ in subscriptions]
        first, _ = run({t: c for t, c in counts.items() if any(t in s for s in subscriptions)}, subscriptions, held)
        counts = {t: c for t, c in counts.items() if any(t in s for s in subscriptions)}
        again, taken = run(counts, subscriptions, [{t: list(n) for t, n in mine.items()} for mine in first])
        assert (again, taken) == ([{t: list(n) for t, n in mine.items()} for mine in first], {})


@pytest.mark.parametrize(
    ("racks", "expected"),
    [
        (["r1", "r2", None], [{"a": [1, 3]}, {"a": [0, 2]}, {"b": [0, 1]}]),
        (["r2", "r1", None], [{"a": [0, 2]}, {"a": [1, 3]}, {"b": [0, 1]}]),
    ],
)
def test_free_partitions_go_to_members_near_a_replica(racks: list[str | None], expected: list[Partitions]) -> None:
    given, _ = run({"a": 4, "b": 2}, ["a", "ab", "b"], [{}, {}, {}], racks, a=["r2", "r1", "r2", "r1"], b=["r1"] * 2)
    assert given == expected


# Members 0 to 3; topic 0: members 0 and 1, topic 1: members 1 and 2, topic 2: members 2 and 3.
SUBSCRIBERS = [[0, 1], [1, 2], [2, 3]]


def chain(load: list[int], gained: dict[int, int], former: int, present: int) -> object:
    """The chain where some members have gained a partition of one topic each."""
    gained_by = [{gained[member]} if member in gained else set[int]() for member in range(len(load))]
    return Exchanges(load, SUBSCRIBERS, gained_by).chain(former, present)


def test_a_present_holder_with_more_gets_nothing_for_it() -> None:
    assert chain([1, 2, 2, 2], {}, former=0, present=1) == (0, [], 0)


def test_the_former_holder_passes_one_on_to_the_present_one() -> None:
    assert chain([2, 2, 2, 2], {0: 0}, former=0, present=1) == (0, [(0, 0, 1)], 1)


def test_a_chain_leads_over_other_members() -> None:
    assert chain([2, 2, 2, 2], {0: 0, 1: 1, 2: 2}, former=0, present=3) == (0, [(2, 2, 3), (1, 1, 2), (0, 0, 1)], 3)


def test_a_chain_ends_at_a_member_with_fewer() -> None:
    assert chain([2, 2, 1, 2], {0: 0, 1: 1}, former=0, present=3) == (0, [(1, 1, 2), (0, 0, 1)], 2)


def test_a_member_with_more_than_the_former_holder_may_begin() -> None:
    assert chain([2, 3, 2, 2], {1: 1, 2: 2}, former=0, present=3) == (1, [(2, 2, 3), (1, 1, 2)], 3)


def test_without_a_chain_nothing_moves() -> None:
    assert chain([2, 2, 2, 2], {0: 0, 2: 2}, former=0, present=3) is None


def test_a_vain_search_is_not_repeated_until_something_has_moved() -> None:
    load, gained_by = [2, 2, 2, 2], [set[int](), set[int](), {2}, set[int]()]
    exchanges = Exchanges(load, SUBSCRIBERS, gained_by)
    assert exchanges.chain(0, 3) is None
    gained_by[0].add(0)
    assert exchanges.chain(0, 1) == (0, [(0, 0, 1)], 1), "another first member is another search"
    gained_by[0].clear()
    load[1] = 3
    gained_by[1].add(1)
    assert exchanges.chain(0, 3) == (1, [(2, 2, 3), (1, 1, 2)], 3)
