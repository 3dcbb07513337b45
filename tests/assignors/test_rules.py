"""check_assignment refuses what a leader must not send, whatever a plug-in returns."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from kcoord_wire.assignors import MemberSubscription, RebalanceProtocol
from kcoord_wire.assignors.rules import Rule, check_assignment

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
