"""What assignors promise, on groups worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kcoord_wire.assignors import MemberSubscription
from kcoord_wire.assignors.histories import Case, Given
from kcoord_wire.assignors.rules import PROMISED, PROMISES, Rule, holders


def broken(rule: Rule, counts: dict[str, int], members: Mapping[str, MemberSubscription], final: Given) -> str:
    """The text of the violation; with three mappings the assignment is final at once."""
    return "".join(each.text for each in PROMISED[rule](Case(counts, dict(members), {}), final, final))


def member(topics: str, generation: int = -1, **owned: list[int]) -> MemberSubscription:
    return MemberSubscription(list(topics), owned, generation)


def test_every_promise_has_its_function() -> None:
    assert PROMISED.keys() == PROMISES


def test_even_is_asked_of_equal_subscriptions_alone() -> None:
    final: Given = {"x": {"a": [0, 1, 2]}, "y": {"a": [3]}}
    assert broken(Rule.EVEN, {"a": 4}, {"x": member("a"), "y": member("a")}, final) == "loads {'x': 3, 'y': 1}"
    assert (
        broken(Rule.EVEN, {"a": 4, "b": 0}, {"x": member("a"), "y": member("ab")}, final) != ""
    )  # b has no partitions
    assert broken(Rule.EVEN, {"a": 4, "b": 1}, {"x": member("a"), "y": member("ab")}, final) == ""


def test_balanced_finds_a_chain_over_another_member() -> None:
    members = {"x": member("a"), "y": member("ab"), "z": member("b")}
    final: Given = {"x": {"a": [0, 1, 2]}, "y": {"a": [3], "b": [0]}, "z": {"b": [1]}}
    assert "x -> y -> z" in broken(Rule.BALANCED, {"a": 4, "b": 2}, members, final)
    apart = {"x": member("a"), "y": member("a"), "z": member("b")}
    final = {"x": {"a": [0, 1]}, "y": {"a": [2, 3]}, "z": {}}
    assert broken(Rule.BALANCED, {"a": 4, "b": 0}, apart, final) == ""


@pytest.mark.parametrize(
    ("owned", "is_judged"),
    [({}, True), ({"a": [0, 1], "b": [0, 1]}, True), ({"a": [0, 1], "b": [0]}, False)],
    ids=["no claims", "one holder of everything", "some claims"],
)
def test_spread_is_judged_where_it_is_always_possible(owned: dict[str, list[int]], is_judged: bool) -> None:
    members = {"x": member("ab", 1, **owned), "y": member("ab")}
    final: Given = {"x": {"a": [0, 1]}, "y": {"b": [0, 1]}}
    assert bool(broken(Rule.SPREAD, {"a": 2, "b": 2}, members, final)) is is_judged
    assert broken(Rule.SPREAD, {"a": 2, "b": 2}, members, {"x": {"a": [0], "b": [0]}, "y": {"a": [1], "b": [1]}}) == ""


def test_holders_have_the_newest_claim_alone_and_subscribe() -> None:
    members = {
        "stale": member("a", 3, a=[0, 1]),
        "newer": member("ab", 4, a=[1, 2], b=[0]),
        "other": member("ab", 4, a=[2, 9]),
        "gone": member("a", 4, b=[1]),
    }
    assert holders(Case({"a": 3, "b": 2}, members, {})) == {("a", 0): "stale", ("a", 1): "newer", ("b", 0): "newer"}


def test_sticky_counts_what_quotas_let_members_keep() -> None:
    members = {"x": member("a", 1, a=[0, 1, 2]), "y": member("a", 1, a=[3]), "z": member("a")}
    kept: Given = {"x": {"a": [0, 1]}, "y": {"a": [3]}, "z": {"a": [2]}}
    assert broken(Rule.STICKY, {"a": 4}, members, kept) == ""
    moved: Given = {"x": {"a": [0]}, "y": {"a": [1, 3]}, "z": {"a": [2]}}
    assert broken(Rule.STICKY, {"a": 4}, members, moved).startswith("2 of 4 partitions stay where they were, 3 could")


def test_sticky_finds_moves_that_can_be_undone() -> None:
    counts = {"a": 2, "b": 1}
    members = {"x": member("ab", 1, a=[0]), "y": member("a")}
    exchanged: Given = {"x": {"a": [1], "b": [0]}, "y": {"a": [0]}}
    assert "a-0 has moved from x to y, which could take a-1" in broken(Rule.STICKY, counts, members, exchanged)
    more: Given = {"x": {"b": [0]}, "y": {"a": [0, 1]}}
    assert "a-0 has moved from x to y, which has more" in broken(Rule.STICKY, counts, members, more)
    assert broken(Rule.STICKY, counts, members, {"x": {"a": [0], "b": [0]}, "y": {"a": [1]}}) == ""


def test_what_is_taken_and_given_back_has_moved() -> None:
    case = Case({"a": 1}, {"x": member("a", 1, a=[0])}, {})
    [found] = PROMISED[Rule.STICKY](case, {"x": {}}, {"x": {"a": [0]}})
    assert found.text == "a-0 is taken from x and given back: {x -}"
