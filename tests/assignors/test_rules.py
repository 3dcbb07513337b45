"""check_assignment refuses what a leader must not send; what assignors promise, on groups worked out by hand."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from kcoord_wire.assignors import MemberSubscription, RebalanceProtocol
from kcoord_wire.assignors.histories import Case, Given
from kcoord_wire.assignors.rules import PROMISED, PROMISES, Rule, check_assignment, holders

COUNTS = {"a": 4, "b": 2, "c": 1}
MEMBERS = {
    "x": MemberSubscription(["a", "b"], {"a": [0, 1]}, 5),
    "y": MemberSubscription(["a"], {"a": [2, 3]}, 5),
}
GOOD: dict[str, Any] = {"x": {"a": [0, 1], "b": range(2)}, "y": {"a": array("i", [2, 3])}}


class Raising(Mapping[str, Any]):
    """A mapping as a plug-in may write it."""

    def __getitem__(self, key: str) -> Any:
        raise RuntimeError("not today")

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("not today")

    def __len__(self) -> int:
        return 1


def test_a_good_assignment_is_accepted() -> None:
    for protocol in RebalanceProtocol:
        assert check_assignment(GOOD, COUNTS, MEMBERS, protocol) == []


@pytest.mark.parametrize(
    ("assignment", "rule", "text"),
    [
        (None, Rule.FORM, "of type NoneType, no mapping"),
        ([("x", {})], Rule.FORM, "of type list, no mapping"),
        (Raising(), Rule.FORM, "cannot be read: RuntimeError: not today"),
        ({**GOOD, "x": Raising()}, Rule.FORM, "cannot be read: RuntimeError: not today"),
        ({**GOOD, "x": [("a", 0)]}, Rule.FORM, "member x gets a list, no mapping"),
        ({**GOOD, "x": {"a": 0}}, Rule.FORM, "the partitions of 'a' are no sequence of numbers"),
        ({**GOOD, "x": {"a": ["0"]}}, Rule.FORM, "the partitions of 'a' are no sequence of numbers"),
        ({**GOOD, "x": {"a": [2**70]}}, Rule.FORM, "the partitions of 'a' are no sequence of numbers"),
        ({"x": {}}, Rule.MEMBERS, "member y has no entry"),
        ({**GOOD, "z": {}}, Rule.MEMBERS, "'z' is no member"),
        ({**GOOD, 7: {}}, Rule.MEMBERS, "7 is no member"),
        ({**GOOD, "y": {"b": [1]}}, Rule.SUBSCRIBED, "member y gets 'b' and does not subscribe to it"),
        ({**GOOD, "x": {None: [1]}}, Rule.SUBSCRIBED, "member x gets None and does not subscribe to it"),
        ({**GOOD, "x": {"a": [0, 4]}}, Rule.EXISTING, "a-4 is assigned; a has 4 partitions"),
        ({**GOOD, "x": {"a": [-1]}}, Rule.EXISTING, "a--1 is assigned; a has 4 partitions"),
        ({**GOOD, "x": {"a": [0, 3]}}, Rule.ONCE, "a-3 goes to x and to y"),
        ({**GOOD, "x": {"b": [1, 1]}}, Rule.ONCE, "b-1 goes to x and to x"),
    ],
)
def test_nonsense_is_refused_and_named(assignment: object, rule: Rule, text: str) -> None:
    found = check_assignment(assignment, COUNTS, MEMBERS)
    assert rule in {violation.rule for violation in found}
    assert text in "\n".join(map(str, found))


def test_a_topic_that_has_vanished_has_no_partitions() -> None:
    [found] = check_assignment(GOOD, {"a": 4}, MEMBERS)
    assert str(found) == "EXISTING: b-0 is assigned; b has 0 partitions"


def given_up(assignment: Mapping[str, Any], **members: MemberSubscription) -> list[str]:
    return [str(each) for each in check_assignment(assignment, COUNTS, members, RebalanceProtocol.COOPERATIVE)]


def test_a_partition_goes_on_only_after_it_was_given_up() -> None:
    moved = {"x": {"a": [0]}, "y": {"a": [1, 2, 3]}}
    assert given_up(moved, **MEMBERS) == ["GIVEN_UP: a-1 goes to y while x claims it (generation 5)"]
    assert check_assignment(moved, COUNTS, MEMBERS, RebalanceProtocol.EAGER) == []
    assert given_up({"x": {"a": [0]}, "y": {"a": [2, 3]}}, **MEMBERS) == []


def test_a_stale_claim_keeps_others_from_getting_a_partition() -> None:
    stale, fresh = MemberSubscription(["a"], {"a": [0]}, 3), MemberSubscription(["a"])
    assert given_up({"x": {}, "y": {"a": [0]}}, x=stale, y=fresh) == [
        "GIVEN_UP: a-0 goes to y while x claims it (generation 3)"
    ]


def test_of_two_that_claim_a_partition_the_newer_may_keep_it() -> None:
    stale, newer = MemberSubscription(["a"], {"a": [0]}, 3), MemberSubscription(["a"], {"a": [0]}, 4)
    assert given_up({"x": {}, "y": {"a": [0]}}, x=stale, y=newer) == []
    assert given_up({"x": {"a": [0]}, "y": {}}, x=stale, y=newer) == [
        "GIVEN_UP: a-0 stays with x, whose claim is of generation 3: another claims it with 4"
    ]
    assert given_up({"x": {"a": [0]}, "y": {}}, x=newer, y=newer) == []


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
