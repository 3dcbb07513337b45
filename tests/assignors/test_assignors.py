"""The laws of every assignor, on random groups."""

from __future__ import annotations

import gc
import os
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoord_wire.assignors import ASSIGNORS, Assignor, MemberSubscription, RebalanceProtocol, TopicPartition
from tests.support.assignments import Group, groups, partitions_of, settle

COUNT = int(os.environ.get("KCOORD_WIRE_MEMBERS", "2000"))  # `make proof` has 10,000


@pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=lambda assignor: assignor.name)
@given(group=groups())
def test_each_partition_goes_to_one_subscriber(assignor: Assignor, group: Group) -> None:
    partitions, members = group
    cooperative = assignor.protocol is RebalanceProtocol.COOPERATIVE
    assignment = settle(*group) if cooperative else assignor.assign(*group)
    assert list(assignment) == list(members)
    wanted = {topic for member in members.values() for topic in member.topics}
    assert sorted(partitions_of(assignment)) == sorted(
        TopicPartition(topic, each) for topic in wanted & partitions.keys() for each in range(partitions[topic])
    )
    for member_id, has in assignment.items():
        assert has.keys() <= set(members[member_id].topics)


@pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=lambda assignor: assignor.name)
@given(group=groups(), seed=st.integers())
def test_order_of_the_mappings_does_not_matter(assignor: Assignor, group: Group, seed: int) -> None:
    partitions, members = group
    chance = random.Random(seed)
    shuffled_members = chance.sample(list(members.items()), len(members))
    shuffled_topics = chance.sample(list(partitions.items()), len(partitions))
    assert assignor.assign(dict(shuffled_topics), dict(shuffled_members)) == assignor.assign(*group)


def test_names_and_protocols() -> None:
    assert {name: assignor.protocol for name, assignor in ASSIGNORS.items()} == {
        "range": RebalanceProtocol.EAGER,
        "roundrobin": RebalanceProtocol.EAGER,
        "sticky": RebalanceProtocol.EAGER,
        "cooperative-sticky": RebalanceProtocol.COOPERATIVE,
    }
    assert all(name == assignor.name for name, assignor in ASSIGNORS.items())


def rebalance(assignor: Assignor, count: int) -> float:
    """Assign ten partitions to each of so many members, again after a tenth has left; return the CPU seconds."""
    partitions = {f"t{number}": count // 10 for number in range(100)}
    members = {f"m{number:05}": MemberSubscription(list(partitions)) for number in range(count)}
    gc.collect()
    gc.disable()  # one full collection of the test process takes 40 ms, as long as the whole of it
    start = time.process_time()
    first = assignor.assign(partitions, members)
    owning = {each: MemberSubscription(list(partitions), first[each], 1) for each in list(members)[count // 10 :]}
    after = assignor.assign(partitions, owning)
    taken = time.process_time() - start
    gc.enable()
    assert len(partitions_of(first)) == len(partitions_of(after)) == count * 10
    return taken


@pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=lambda assignor: assignor.name)
def test_four_times_the_members_take_no_quadratic_time(assignor: Assignor) -> None:
    """Compared with itself: linear is 4 to 5 times, quadratic 16. One of five tries on a busy machine shows it."""
    ratios = (rebalance(assignor, COUNT) / rebalance(assignor, COUNT // 4) for _ in range(5))
    assert any(ratio < 10 for ratio in ratios)
