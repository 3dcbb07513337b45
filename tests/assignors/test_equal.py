"""Equal subscriptions: quotas, an even spread of each topic, and no member gives up more than it has to."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kcoord_wire.assignors import Partitions
from kcoord_wire.assignors.equal import deal_in_turn, share_out
from kcoord_wire.assignors.subscriptions import Nearness

COUNTS = st.lists(st.integers(1, 25), min_size=1, max_size=6).map(lambda each: {f"t{n}": c for n, c in enumerate(each)})


def loads(given: list[Partitions]) -> list[int]:
    return [sum(map(len, mine.values())) for mine in given]


def all_of(given: list[Partitions]) -> list[tuple[str, int]]:
    return sorted((topic, number) for mine in given for topic, numbers in mine.items() for number in numbers)


@given(counts=COUNTS, members=st.integers(1, 12))
def test_afresh_all_and_each_topic_are_even(counts: dict[str, int], members: int) -> None:
    given = deal_in_turn(counts, members)
    assert all_of(given) == sorted((topic, number) for topic, count in counts.items() for number in range(count))
    assert max(loads(given)) - min(loads(given)) <= 1
    for topic in counts:
        of_topic = [len(mine.get(topic, ())) for mine in given]
        assert max(of_topic) - min(of_topic) <= 1
        assert all(mine[topic] for mine in given if topic in mine), "no empty entries"


def test_a_million_partitions_share_their_numbers() -> None:
    given = deal_in_turn({f"t{number}": 2_000 for number in range(50)}, 200)
    assert len({id(numbers) for mine in given for numbers in mine.values()}) == 200


@given(counts=COUNTS, before=st.integers(1, 9), members=st.integers(1, 9), stay=st.integers(0, 9))
def test_only_the_surplus_moves(counts: dict[str, int], before: int, members: int, stay: int) -> None:
    """Of the members of a balanced group some stay, and new ones join."""
    held = [*deal_in_turn(counts, before)[:stay], *[{}] * members]
    mine = set(all_of(held))
    free = {topic: [n for n in range(count) if (topic, n) not in mine] for topic, count in counts.items()}
    given, given_up = share_out(counts, held, free, None)
    assert all_of(given) == sorted((topic, number) for topic, count in counts.items() for number in range(count))
    assert max(loads(given)) - min(loads(given)) <= 1
    quota, extra = divmod(sum(counts.values()), len(held))
    above = sorted((load - quota for load in loads(held) if load > quota), reverse=True)
    assert sum(map(len, given_up.values())) == sum(above) - min(extra, len(above))
    gone = Counter(all_of(held)) - Counter(
        each for mine, new in zip(held, given, strict=True) for each in set(all_of([mine])) & set(all_of([new]))
    )
    assert sorted(gone) == sorted((topic, number) for topic, numbers in given_up.items() for number in numbers)


def test_a_newcomer_gets_some_of_each_topic() -> None:
    counts = {f"t{number}": 30 for number in range(10)}
    given, _ = share_out(counts, [*deal_in_turn(counts, 30), {}], {}, None)
    assert {topic: len(numbers) for topic, numbers in given[-1].items()} == dict.fromkeys(list(given[-1]), 1)
    assert loads(given[-1:]) == [9]


def test_the_partitions_of_a_leaver_are_spread() -> None:
    counts = {"a": 12, "b": 12}
    held = deal_in_turn(counts, 4)
    left = held.pop()
    given, given_up = share_out(counts, held, left, None)
    assert given_up == {}
    assert [{topic: len(numbers) for topic, numbers in mine.items()} for mine in given] == [{"a": 4, "b": 4}] * 3


def test_what_one_member_holds_alone_is_spread() -> None:
    counts = {"a": 6, "b": 1}
    given, given_up = share_out(counts, [{}, {"a": range(6), "b": range(1)}], {}, None)
    assert loads(given) == [3, 4]
    assert [len(mine["a"]) for mine in given] == [3, 3], "KAFKA-16277"
    assert {topic: len(numbers) for topic, numbers in given_up.items()} == {"a": 3}


def test_a_large_surplus_leaves_by_whole_levels() -> None:
    """The first member holds 100,000 partitions of one topic and one each of others."""
    mine = {"large": 100_000, **{f"t{number}": 1 for number in range(100)}}
    held = [{topic: range(count) for topic, count in mine.items()}, {"other": range(1)}]
    given, given_up = share_out({**mine, "other": 1}, held, {}, None)
    assert loads(given) == [50_051, 50_050]
    assert len(given_up.pop("large")) == 50_000, "down to its share"
    assert len(given_up) == 49


def test_free_partitions_go_to_members_near_a_replica() -> None:
    counts = {"t": 6}
    racks = {"t": [["r1"], ["r2"], ["r3"], ["r1"], ["r2"], ["r3"]]}
    near = Nearness.where_racks_matter(counts, ["r3", "r2", "r1"], racks)
    given, _ = share_out(counts, [{}, {}, {}], {"t": range(6)}, near)
    assert given == [{"t": [2, 5]}, {"t": [1, 4]}, {"t": [0, 3]}]


def test_partitions_far_away_are_given_up_first() -> None:
    counts = {"t": 4}
    near = Nearness.where_racks_matter(counts, ["r1", "r2"], {"t": [["r2"], ["r1"], ["r2"], ["r1"]]})
    given, given_up = share_out(counts, [{"t": range(4)}, {}], {}, near)
    assert (given, given_up) == ([{"t": [1, 3]}, {"t": [0, 2]}], {"t": {0, 2}})
