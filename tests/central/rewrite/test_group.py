"""A group of the rewrite: its moves, and its assignment."""

from __future__ import annotations

import pytest

from kcoord_wire.central.rewrite.group import MOVES, Group, GroupState, Member
from kcoord_wire.central.rewrite.layout import GroupMetadata


@pytest.mark.parametrize("before", GroupState)
@pytest.mark.parametrize("after", GroupState)
def test_only_the_moves_of_the_table_are_made(before: GroupState, after: GroupState) -> None:
    group = Group("g", 0, state=before)
    if after in MOVES[before]:
        group.move(after)
        assert group.state is after
    else:
        with pytest.raises(AssertionError, match=f"{before} to {after}"):
            group.move(after)


def test_the_assignment_is_a_function_of_the_record() -> None:
    group = Group("g", 0, strategy="range")
    for name in ("b", "a"):
        group.add(Member(name, ("orders", "missing"), 6_000))
    record = group.record({"orders": 3, "missing": 0})
    assert record.generation == 1
    group.begin(record)
    assert {name: list(topics["orders"]) for name, topics in group.assignment().items()} == {"a": [0, 1], "b": [2]}
    group.begin(GroupMetadata(2, "range", record.consumers, {"orders": 1}))
    assert list(group.assignment()["a"]["orders"]) == [0]


def test_a_group_without_members_has_no_new_generation() -> None:
    group = Group("g", 0, generation=4, strategy="range")
    assert group.record({}).generation == 4
    group.add(Member("a", (), 6_000))
    assert group.record({}).generation == 5


def test_topics_sizes_and_joins_are_counted() -> None:
    group = Group("g", 0, strategy="range")
    members = [Member(f"c-{number}", ("orders", f"own-{number}"), 6_000) for number in range(3)]
    for member in members:
        group.add(member)
    assert group.topics == {"orders": 3, "own-0": 1, "own-1": 1, "own-2": 1}
    assert len(group.record(dict.fromkeys(group.topics, 1)).to_bytes()) <= group.size + 200
    group.set_joined(members[0], True)
    group.set_joined(members[0], True)
    group.set_joined(members[1], True)
    assert (group.joined, group.have_all_joined) == (2, False)
    group.remove(members[2])
    assert group.have_all_joined
    group.remove(members[0])
    group.remove(members[1])
    assert (group.joined, group.size, group.topics) == (0, 0, {})
