"""What every assignor owes, on random groups; and what the sticky ones owe besides."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoord_wire.assignors import (
    ASSIGNORS,
    Assign,
    Assignment,
    Assignor,
    MemberSubscription,
    RebalanceProtocol,
    TopicPartition,
    cooperative_sticky,
    sticky,
)

Group = tuple[dict[str, int], dict[str, MemberSubscription]]
STICKY = [sticky, cooperative_sticky]


@st.composite
def groups(draw: st.DrawFn, *, equal: bool = False, claims: bool = True) -> Group:
    """Topics and members; some own things that do not exist, are not subscribed to, or that another owns too."""
    names = st.sampled_from(["a", "b", "c", "d"])
    partitions = draw(st.dictionaries(names, st.integers(0, 7)))
    ids = draw(st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=7, unique=True))
    owned = st.lists(st.builds(TopicPartition, names, st.integers(0, 8)), max_size=9)
    instances = st.none() | st.text("xyz", min_size=1, max_size=2)
    shared = draw(st.lists(names, max_size=4))
    members = {}
    for number, member_id in enumerate(ids):
        instance_id = draw(instances)
        members[member_id] = MemberSubscription(
            shared if equal else draw(st.lists(names, max_size=4)),
            draw(owned) if claims else (),
            draw(st.integers(-1, 3)),
            None if instance_id is None else f"{instance_id}{number}",
        )
    return partitions, members


def taken(assignment: Assignment) -> list[TopicPartition]:
    return [each for given in assignment.values() for each in given]


def settle(partitions: dict[str, int], members: dict[str, MemberSubscription]) -> Assignment:
    """The assignment after as many cooperative rounds as it takes; more than two is a failure."""
    for _ in range(2):
        assignment = cooperative_sticky(partitions, members)
        members = {each: replace(members[each], owned=assignment[each], generation=9) for each in members}
    return cooperative_sticky(partitions, members)


def loads_are_balanced(assignment: Assignment, members: dict[str, MemberSubscription]) -> bool:
    """No chain of moves takes one partition from a member to another with two fewer: breadth first from every
    member."""
    for start, given_to in assignment.items():
        reached, edge = {start}, [start]
        while edge:
            topics = {each.topic for member in edge for each in assignment[member]}
            edge = [other for other in members if other not in reached and topics & set(members[other].topics)]
            reached.update(edge)
        if any(len(assignment[other]) <= len(given_to) - 2 for other in reached):
            return False
    return True


@pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=lambda assignor: assignor.name)
@given(group=groups())
def test_each_partition_goes_to_one_subscriber(assignor: Assignor, group: Group) -> None:
    partitions, members = group
    cooperative = assignor.protocol is RebalanceProtocol.COOPERATIVE
    assignment = settle(*group) if cooperative else assignor.assign(*group)
    assert list(assignment) == list(members)
    wanted = {topic for member in members.values() for topic in member.topics}
    assert sorted(taken(assignment)) == sorted(
        TopicPartition(topic, each) for topic in wanted & partitions.keys() for each in range(partitions[topic])
    )
    for member_id, has in assignment.items():
        assert {each.topic for each in has} <= set(members[member_id].topics)


@pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=lambda assignor: assignor.name)
@given(group=groups(), seed=st.integers())
def test_order_of_the_mappings_does_not_matter(assignor: Assignor, group: Group, seed: int) -> None:
    partitions, members = group
    chance = random.Random(seed)
    shuffled_members = chance.sample(list(members.items()), len(members))
    shuffled_topics = chance.sample(list(partitions.items()), len(partitions))
    assert assignor.assign(dict(shuffled_topics), dict(shuffled_members)) == assignor.assign(*group)


@given(group=groups())
def test_sticky_is_balanced_as_far_as_subscriptions_allow(group: Group) -> None:
    assert loads_are_balanced(sticky(*group), group[1])
    assert loads_are_balanced(settle(*group), group[1])


@given(group=groups(equal=True))
def test_equal_subscriptions_are_balanced_to_one(group: Group) -> None:
    sizes = [len(given) for given in sticky(*group).values()]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("assign", STICKY)
@given(group=groups())
def test_nothing_moves_when_nothing_has_changed(assign: Assign, group: Group) -> None:
    partitions, members = group
    first = settle(partitions, members)
    again = {each: replace(members[each], owned=first[each], generation=10) for each in members}
    assert assign(partitions, again) == first


@given(group=groups(equal=True), leaving=st.integers(0, 6))
def test_who_stays_keeps_all_when_one_leaves_equals(group: Group, leaving: int) -> None:
    partitions, members = group
    first = settle(partitions, members)
    if len(members) > 1:
        del members[list(members)[leaving % len(members)]]
    after = sticky(partitions, {each: replace(members[each], owned=first[each], generation=10) for each in members})
    assert all(set(first[each]) <= set(after[each]) for each in members)


@given(group=groups(equal=True))
def test_a_newcomer_costs_equals_no_more_than_what_it_gets(group: Group) -> None:
    partitions, members = group
    first = settle(partitions, members)
    owning = {each: replace(members[each], owned=first[each], generation=10) for each in members}
    owning["newcomer"] = MemberSubscription(next(iter(members.values())).topics)
    after = sticky(partitions, owning)
    moved = sum(len(set(first[each]) - set(after[each])) for each in members)
    assert moved == len(after["newcomer"])


@given(group=groups())
def test_cooperative_gives_nobody_what_another_still_claims(group: Group) -> None:
    partitions, members = group
    for member_id, has in cooperative_sticky(partitions, members).items():
        claimed = {each for other, member in members.items() if other != member_id for each in member.owned}
        assert not claimed & set(has)


def test_the_higher_generation_holds_what_two_claim() -> None:
    p0, p1 = TopicPartition("a", 0), TopicPartition("a", 1)
    members = {
        "x": MemberSubscription(["a"], [p0], generation=4),
        "y": MemberSubscription(["a"], [p0], generation=5),
    }
    assert sticky({"a": 2}, members) == {"x": [p1], "y": [p0]}
    assert cooperative_sticky({"a": 2}, members) == {"x": [p1], "y": []}


def test_chains_of_moves_balance_what_single_moves_cannot() -> None:
    # z can take only from b, b's holder y only from a: one partition of each has to move.
    members = {
        "x": MemberSubscription(["a"], [TopicPartition("a", each) for each in range(4)], 1),
        "y": MemberSubscription(["a", "b"], [TopicPartition("b", each) for each in range(3)], 1),
        "z": MemberSubscription(["b"], [TopicPartition("b", 3), TopicPartition("b", 4)], 1),
    }
    sizes = {member_id: len(has) for member_id, has in sticky({"a": 4, "b": 5}, members).items()}
    assert sizes == {"x": 3, "y": 3, "z": 3}


def test_names_and_protocols() -> None:
    assert {name: assignor.protocol for name, assignor in ASSIGNORS.items()} == {
        "range": RebalanceProtocol.EAGER,
        "roundrobin": RebalanceProtocol.EAGER,
        "sticky": RebalanceProtocol.EAGER,
        "cooperative-sticky": RebalanceProtocol.COOPERATIVE,
    }
    assert all(name == assignor.name for name, assignor in ASSIGNORS.items())


@pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=lambda assignor: assignor.name)
def test_ten_thousand_members_take_seconds(assignor: Assignor) -> None:
    partitions = {f"t{number}": 1000 for number in range(100)}
    members = {f"m{number:05}": MemberSubscription(list(partitions)) for number in range(10_000)}
    start = time.process_time()
    first = assignor.assign(partitions, members)
    owning = {each: MemberSubscription(list(partitions), first[each], 1) for each in list(members)[1000:]}
    after = assignor.assign(partitions, owning)
    assert time.process_time() - start < 30  # typically 2; a quadratic step takes minutes
    assert len(taken(first)) == len(taken(after)) == 100_000


@pytest.mark.parametrize("seed", range(5))
def test_84_members_with_unequal_subscriptions_come_to_an_end(seed: int) -> None:
    """The group of aiokafka#1176, whose sticky assignor did not."""
    chance = random.Random(seed)
    partitions = {f"t{number}": chance.randint(1, 40) for number in range(60)}
    members = {f"m{number}": MemberSubscription(chance.sample(sorted(partitions), 9)) for number in range(84)}
    first = sticky(partitions, members)
    members = {each: MemberSubscription(chance.sample(sorted(partitions), 9), first[each], 1) for each in members}
    after = sticky(partitions, members)
    assert loads_are_balanced(after, members)
