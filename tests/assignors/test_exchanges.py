"""Racks in the sticky assignors: of the assignments that are as balanced and move as few, the nearest one.

Small groups are compared with all assignments that there are; the comparison with Kafka's classes is in
tests/interop/test_assignors.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from kcoord_wire.assignors import ASSIGNORS, MemberSubscription
from kcoord_wire.assignors import exchanges as module
from kcoord_wire.assignors.histories import Case, Given, play
from kcoord_wire.assignors.rules import holders, members_of

STICKY = ASSIGNORS["sticky"]
MOST_ASSIGNMENTS = 5_000


def assigned(case: Case) -> Given:
    given = STICKY.assign(case.partitions_per_topic, case.members, case.racks)
    return {each: {topic: list(numbers) for topic, numbers in has.items()} for each, has in given.items()}


def quality(case: Case, owners: dict[tuple[str, int], str]) -> tuple[int, int, int]:
    """Sum of the squared loads, moves, and partitions that are not near: the lower, the better."""
    loads = dict.fromkeys(case.members, 0)
    for member_id in owners.values():
        loads[member_id] += 1
    before = holders(case)
    moves = sum(owners[each] != member_id for each, member_id in before.items() if each in owners)
    far = sum(case.members[member_id].rack not in case.racks_of(each) for each, member_id in owners.items())
    return sum(load * load for load in loads.values()), moves, far


def best(case: Case) -> tuple[int, int, int] | None:
    """The best quality of all assignments; None if they are too many."""
    partitions = sorted(case.assignable())
    takers = [[each for each, member in case.members.items() if topic in member.topics] for topic, _ in partitions]
    count = 1
    for each in takers:
        count *= len(each)
    if count > MOST_ASSIGNMENTS:
        return None
    return min(quality(case, dict(zip(partitions, chosen, strict=True))) for chosen in product(*takers))


def small_groups() -> Iterator[Case]:
    for seed in range(120):
        yield from (case for case in play(assigned, seed=seed, rounds=6, scale=1) if case.has_racks())


def test_no_assignment_is_as_balanced_moves_as_few_and_is_nearer() -> None:
    compared = 0
    for case in small_groups():
        expected = best(case)
        if expected is not None:
            compared += 1
            assert quality(case, members_of(assigned(case))) == expected, case
    assert compared > 100


SWAPPED = Case(
    {"a": 8},
    {
        f"m{number}": MemberSubscription(["a"], rack=rack, owned={"a": [2 * number, 2 * number + 1]}, generation=1)
        for number, rack in enumerate(["r1", "r2", "r3"])
    }
    | {"m3": MemberSubscription(["a"], rack="r4")},
    {"a": [["r1"], ["r2"], ["r2"], ["r3"], ["r3"], ["r1"], ["r4"], ["r4"]]},
)


def test_nothing_moves_for_a_rack() -> None:
    """Each holder has a partition that is nearer to another one, and keeps it."""
    given = assigned(SWAPPED)
    assert given == {"m0": {"a": [0, 1]}, "m1": {"a": [2, 3]}, "m2": {"a": [4, 5]}, "m3": {"a": [6, 7]}}


def many() -> Case:
    """200 members in three racks, 2,000 partitions with replicas in two of them: all can be near."""
    racks = ("r1", "r2", "r3")
    members = {f"m{number:03}": MemberSubscription(["a"], rack=racks[number % 3]) for number in range(200)}
    pairs = [["r1", "r2"], ["r1", "r3"], ["r2", "r3"], ["r1", "r2"], ["r1", "r2"]]
    return Case({"a": 2_000}, members, {"a": [pairs[number % 5] for number in range(2_000)]})


def test_equal_exchanges_are_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = 0
    search = module._cycles

    def counting(*arguments: object) -> object:
        nonlocal searches
        searches += 1
        return search(*arguments)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(module, "_cycles", counting)
    case = many()
    _, _, far = quality(case, members_of(assigned(case)))
    assert far == 0
    assert searches < 12


def test_the_search_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the steps do not suffice, what was found until then counts, and all else holds."""
    monkeypatch.setattr(module, "MOST_STEPS", 1)
    case = many()
    squares, moves, _ = quality(case, members_of(assigned(case)))
    assert (squares, moves) == (200 * 10 * 10, 0)
    chain = [module._Edge(node, node + 1, -1) for node in (3, 2, 1, 0)]  # each round goes on by one of them
    assert module._cycles(5, chain, 100) == ([], 5 * 4)
    assert module._cycles(5, chain, 6) == ([], 2 * 4)
