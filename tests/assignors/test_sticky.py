"""sticky and cooperative-sticky: balanced, then sticky; and Kafka's formats of user data."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoord_wire.assignors import (
    Assign,
    Assignment,
    MemberSubscription,
    Partitions,
    TopicPartition,
    cooperative_sticky,
    list_partitions,
    sticky,
)
from kcoord_wire.assignors.sticky import sticky_user_data
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
    partitions, members = group
    for member_id, has in cooperative_sticky(partitions, members).items():
        claimed = {each for other, member in members.items() if other != member_id for each in names(member.owned)}
        assert not claimed & names(has)


def test_the_higher_generation_wins_a_disputed_partition() -> None:
    members = {
        "x": MemberSubscription(["a"], {"a": [0]}, generation=4),
        "y": MemberSubscription(["a"], {"a": [0]}, generation=5),
    }
    assert sticky({"a": 2}, members) == {"x": {"a": [1]}, "y": {"a": [0]}}
    assert cooperative_sticky({"a": 2}, members) == {"x": {"a": [1]}, "y": {}}


def test_chains_of_moves_balance_what_single_moves_cannot() -> None:
    # z can take only from b, b's holder y only from a: one partition of each has to move.
    members = {
        "x": MemberSubscription(["a"], {"a": range(4)}, 1),
        "y": MemberSubscription(["a", "b"], {"b": range(3)}, 1),
        "z": MemberSubscription(["b"], {"b": range(3, 5)}, 1),
    }
    sizes = {member_id: len(names(has)) for member_id, has in sticky({"a": 4, "b": 5}, members).items()}
    assert sizes == {"x": 3, "y": 3, "z": 3}


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


# What Kafka 3.9.2's StickyAssignor and CooperativeStickyAssignor put into subscriptions, with OWNED and generation 7.
OWNED = {"a": [1, 3], "b": [0]}
STICKY_DATA = bytes.fromhex("00000002000161000000020000000100000003000162000000010000000000000007")
COOPERATIVE_DATA = bytes.fromhex("00000007")


def test_user_data_is_that_of_kafkas_sticky_assignors() -> None:
    assert sticky_user_data(["a", "b"], OWNED, 7) == STICKY_DATA
    partitions, both = {"a": 4, "b": 2}, ["a", "b"]
    stale = MemberSubscription(both, OWNED, generation=6)
    holder = MemberSubscription(both, user_data=STICKY_DATA)
    assert sticky(partitions, {"x": stale, "y": holder})["y"] == OWNED
    holder = MemberSubscription(both, OWNED, user_data=COOPERATIVE_DATA)
    assert balance(partitions, {"x": stale, "y": holder})["y"] == OWNED


def balance(partitions: dict[str, int], members: dict[str, MemberSubscription]) -> Assignment:
    """The assignment of cooperative-sticky when members have given up what they had to."""
    first = cooperative_sticky(partitions, members)
    return cooperative_sticky(partitions, {m: MemberSubscription(members[m].topics, first[m], 8) for m in members})


@pytest.mark.parametrize("end", range(len(STICKY_DATA)))
def test_user_data_that_is_cut_off_or_wrong_is_ignored(end: int) -> None:
    topics, partitions = ["a", "b"], {"a": 4, "b": 2}
    without = sticky(partitions, {"x": MemberSubscription(topics), "y": MemberSubscription(topics)})
    lies = STICKY_DATA[:9] + b"\x7f\xff\xff\xff" + STICKY_DATA[13:]
    for data in (STICKY_DATA[:end], lies, b"\x7f\xff\xff\xff" * 20):
        if data != STICKY_DATA[:-4]:  # that is version 0
            members = {"x": MemberSubscription(topics), "y": MemberSubscription(topics, user_data=data)}
            assert sticky(partitions, members) == without
