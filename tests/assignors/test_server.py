"""The group coordinator's own assignors."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kcoord_wire.assignors import Assignment, MemberSubscription, TopicPartition
from kcoord_wire.assignors.kip848 import SERVER_ASSIGNORS, server_range, uniform
from tests.support.assignments import Group, groups, loads_are_balanced, partitions_of


def with_target(members: dict[str, MemberSubscription], target: Assignment) -> dict[str, MemberSubscription]:
    return {member_id: replace(each, owned=target.get(member_id, {})) for member_id, each in members.items()}


@given(group=groups(claims=False))
def test_each_partition_goes_to_one_subscriber(group: Group) -> None:
    partitions, members = group
    wanted = {topic for member in members.values() for topic in member.topics}
    for assign in SERVER_ASSIGNORS.values():
        target = assign(partitions, members)
        assert sorted(partitions_of(target)) == sorted(
            TopicPartition(topic, each) for topic in wanted & partitions.keys() for each in range(partitions[topic])
        )
        assert all(has.keys() <= set(members[member_id].topics) for member_id, has in target.items())


@given(group=groups(claims=False), leaving=st.integers(0, 6))
def test_uniform_is_balanced_and_keeps_the_target(group: Group, leaving: int) -> None:
    partitions, members = group
    target = uniform(partitions, members)
    assert loads_are_balanced(target, members)
    assert uniform(partitions, with_target(members, target)) == target
    if len(members) > 1:
        del members[list(members)[leaving % len(members)]]
    assert loads_are_balanced(uniform(partitions, with_target(members, target)), members)


def test_uniform_takes_the_target_whatever_the_generation() -> None:
    members = {
        "x": MemberSubscription(["t"], {"t": [0, 1]}, generation=3),
        "y": MemberSubscription(["t"], {"t": [2]}, generation=9),
        "z": MemberSubscription(["t"]),
    }
    assert uniform({"t": 3}, members) == {"x": {"t": [0]}, "y": {"t": [2]}, "z": {"t": [1]}}


def test_one_more_stays_with_those_that_have_it() -> None:
    """Kafka gives it to the first member, which has no partition yet, and moves two."""
    members = {
        "a": MemberSubscription(["t"]),
        "b": MemberSubscription(["t"], {"t": [0, 1, 2]}),
        "c": MemberSubscription(["t"], {"t": [3, 4]}),
    }
    assert uniform({"t": 5}, members) == {"a": {"t": [2]}, "b": {"t": [0, 1]}, "c": {"t": [3, 4]}}


def test_range_of_the_coordinator_ignores_racks() -> None:
    members = {
        "dynamic": MemberSubscription(["t", "u"], rack="r1"),
        "static": MemberSubscription(["t", "u"], instance_id="i", rack="r2"),
    }
    runs = {"static": {"t": range(2), "u": range(2)}, "dynamic": {"t": range(2, 3), "u": range(2, 3)}}
    assert server_range({"t": 3, "u": 3}, members, {"t": [["r1"], ["r2"], ["r2"]]}) == runs
