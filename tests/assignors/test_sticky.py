"""sticky and cooperative-sticky: balanced, then sticky; and Kafka's formats of user data."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoord_wire.assignors import (
    Assign,
    MemberSubscription,
    Partitions,
    TopicPartition,
    cooperative_sticky,
    list_partitions,
    sticky,
)
from tests.support.assignments import Group, groups, loads_are_balanced, settle

STICKY = [sticky, cooperative_sticky]


def names(partitions: Partitions) -> set[TopicPartition]:
    return set(list_partitions(partitions))


@given(group=groups())
def test_sticky_is_balanced_as_far_as_subscriptions_allow(group: Group) -> None:
    assert loads_are_balanced(sticky(*group), group[1])
    assert loads_are_balanced(settle(*group), group[1])


@given(group=groups(equal=True))
def test_equal_subscriptions_are_balanced_to_one(group: Group) -> None:
    sizes = [len(names(given)) for given in sticky(*group).values()]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("assign", STICKY)
@given(group=groups())
def test_nothing_moves_when_nothing_has_changed(assign: Assign, group: Group) -> None:
    partitions, members = group
    first = settle(partitions, members)
    again = {each: replace(members[each], owned=first[each], generation=10) for each in members}
    assert assign(partitions, again) == first


@given(group=groups(equal=True), leaving=st.integers(0, 6))
def test_a_leaving_member_moves_only_its_own_partitions(group: Group, leaving: int) -> None:
    partitions, members = group
    first = settle(partitions, members)
    if len(members) > 1:
        del members[list(members)[leaving % len(members)]]
    after = sticky(partitions, {each: replace(members[each], owned=first[each], generation=10) for each in members})
    assert all(names(first[each]) <= names(after[each]) for each in members)


@given(group=groups(equal=True))
def test_a_new_member_moves_only_what_it_gets(group: Group) -> None:
    partitions, members = group
    first = settle(partitions, members)
    owning = {each: replace(members[each], owned=first[each], generation=10) for each in members}
    owning["newcomer"] = MemberSubscription(next(iter(members.values())).topics)
    after = sticky(partitions, owning)
    moved = sum(len(names(first[each]) - names(after[each])) for each in members)
    assert moved == len(names(after["newcomer"]))


@given(group=groups())
def test_cooperative_withholds_what_another_still_claims(group: Group) -> None:
    """Only a holder with a higher generation than all other claimants keeps what it has."""
    partitions, members = group
    for member_id, has in cooperative_sticky(partitions, members).items():
        mine = members[member_id]
        claimants = [
            (each, member.generation)
            for other, member in members.items()
            if other != member_id
            for each in names(member.owned)
        ]
        for each, generation in claimants:
            if each in names(has):
                assert each in names(mine.owned)
                assert mine.generation > generation


def test_the_higher_generation_wins_a_disputed_partition() -> None:
    members = {
        "x": MemberSubscription(["a"], {"a": [0]}, generation=4),
        "y": MemberSubscription(["a"], {"a": [0]}, generation=5),
    }
    assert sticky({"a": 2}, members) == {"x": {"a": [1]}, "y": {"a": [0]}}
    assert cooperative_sticky({"a": 2}, members) == {"x": {"a": [1]}, "y": {"a": [0]}}


@pytest.mark.parametrize("seed", range(5))
def test_84_members_with_unequal_subscriptions_terminate(seed: int) -> None:
    """The group of aiokafka#1176, whose sticky assignor did not."""
    chance = random.Random(seed)
    partitions = {f"t{number}": chance.randint(1, 40) for number in range(60)}
    members = {f"m{number}": MemberSubscription(chance.sample(sorted(partitions), 9)) for number in range(84)}
    first = sticky(partitions, members)
    members = {each: MemberSubscription(chance.sample(sorted(partitions), 9), first[each], 1) for each in members}
    after = sticky(partitions, members)
    assert loads_are_balanced(after, members)
