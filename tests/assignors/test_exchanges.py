"""Chains of moves that let a partition go back to its former holder."""

from __future__ import annotations

from kcoord_wire.assignors.leveling import Exchanges

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
