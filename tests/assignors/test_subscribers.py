"""Equal subscriptions and equal subscriber lists are found once."""

from __future__ import annotations

from kcoord_wire.assignors import MemberSubscription
from kcoord_wire.assignors.model import Kind, kinds_of, topics_by_subscribers

COUNTS = {"a": 3, "b": 2, "c": 1, "empty": 0}


def test_members_are_grouped_by_what_they_can_get() -> None:
    subscriptions = {
        "m0": ["a", "b"],
        "m1": ["a"],
        "m2": ["b", "a", "b"],  # in another order, and one topic twice
        "m3": ["a", "empty", "unknown"],
        "m4": ["empty"],
    }
    members = {member_id: MemberSubscription(topics) for member_id, topics in subscriptions.items()}
    assert kinds_of(COUNTS, members, list(members)) == [Kind(("a", "b"), [0, 2]), Kind(("a",), [1, 3])]


def test_topics_with_the_same_subscribers_are_one_group() -> None:
    kinds = [Kind(("a", "b", "c"), [0, 3]), Kind(("a", "c"), [1]), Kind(("b",), [2])]
    assert topics_by_subscribers(kinds) == [(["a", "c"], [0, 1, 3]), (["b"], [0, 2, 3])]
