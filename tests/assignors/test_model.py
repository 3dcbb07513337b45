"""The input of assignors: the order of members, equal subscriptions found once, and racks that matter."""

from __future__ import annotations

import pytest

from kcoord_wire.assignors import MemberSubscription
from kcoord_wire.assignors.subscriptions import Kind, Nearness, in_order, kinds_of, topics_by_subscribers


def test_static_members_first_and_strings_compared_as_in_java() -> None:
    members = {"b": None, "a": "z", "c": "y", "\U0001f600": None, "\uff5e": None, "B": None}
    subscriptions = {member_id: MemberSubscription([], instance_id=instance) for member_id, instance in members.items()}
    # As UTF-16 the emoji begins with 0xd83d, before 0xff5e; as code points it would come last.
    assert in_order(subscriptions) == ["c", "a", "B", "b", "\U0001f600", "\uff5e"]


TOPICS = {"a": 3, "b": 2, "c": 1, "empty": 0}


def test_members_are_grouped_by_what_they_can_get() -> None:
    subscriptions = {
        "m0": ["a", "b"],
        "m1": ["a"],
        "m2": ["b", "a", "b"],  # in another order, and one topic twice
        "m3": ["a", "empty", "unknown"],
        "m4": ["empty"],
    }
    members = {member_id: MemberSubscription(topics) for member_id, topics in subscriptions.items()}
    assert kinds_of(TOPICS, members, list(members)) == [Kind(("a", "b"), [0, 2]), Kind(("a",), [1, 3])]


def test_topics_with_the_same_subscribers_are_one_group() -> None:
    kinds = [Kind(("a", "b", "c"), [0, 3]), Kind(("a", "c"), [1]), Kind(("b",), [2])]
    assert topics_by_subscribers(kinds) == [(["a", "c"], [0, 1, 3]), (["b"], [0, 2, 3])]


COUNTS = {"t": 3}
SPREAD = {"t": [["r1", "r2"], ["r2", "r3"], ["r3"]]}


@pytest.mark.parametrize(
    ("member_racks", "racks"),
    [
        pytest.param(["r1", "r2"], {}, id="racks of partitions unknown"),
        pytest.param([None, ""], SPREAD, id="racks of members unknown"),
        pytest.param(["elsewhere", None], SPREAD, id="no member near a replica"),
        pytest.param(["r1", "r2"], {"t": [["r1", "r2"]] * 3}, id="replicas of all partitions in the same racks"),
    ],
)
def test_racks_that_make_no_difference(member_racks: list[str | None], racks: dict[str, list[list[str]]]) -> None:
    assert Nearness.where_racks_matter(COUNTS, member_racks, racks) is None


def test_partitions_near_a_member() -> None:
    near = Nearness.where_racks_matter(COUNTS, ["r2", None, "r9"], SPREAD)
    assert near is not None
    assert [near.of(member, "t") for member in range(3)] == [{0, 1}, None, set()]
    assert near.replicas("t", 2) == {"r3"}


def test_a_list_that_is_too_short_or_long() -> None:
    near = Nearness.where_racks_matter(COUNTS, ["r1"], {"t": [["r1"]]})
    assert near is not None
    assert (near.of(0, "t"), near.replicas("t", 2)) == ({0}, set())
    near = Nearness.where_racks_matter(COUNTS, ["r1"], {"t": [["r1"], [], [], ["r1"]]})
    assert near is not None
    assert near.of(0, "t") == {0}


def test_members_are_paired_with_near_partitions() -> None:
    near = Nearness.where_racks_matter(COUNTS, ["r3", "r1", "r2"], SPREAD)
    assert near is not None
    assert near.pair("t", range(3), {0: 1, 1: 1, 2: 1}) == {0: [2], 1: [0], 2: [1]}
    assert near.pair("t", range(3), {1: 3}) == {1: [0, 1, 2]}
