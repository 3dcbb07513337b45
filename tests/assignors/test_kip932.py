"""The assignor of share groups: results of Kafka's class, and what holds for every group."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoord_wire.assignors.kip932 import Partitions, ShareSubscription, order_of_ids, order_of_names, simple

A, B, C = (uuid.UUID(int=(1 << 64) + number) for number in (1, 2, 3))


def test_the_target_of_kafkas_class() -> None:
    """As `SimpleAssignor` of Kafka 4.4.0 gives it, for topics of these ids."""
    member = ShareSubscription((A, C), {})
    target = simple({A: frozenset(range(3)), C: frozenset(range(9))}, {"x1": member, "x2": member}, is_homogeneous=True)
    assert target == {
        "x1": {C: frozenset({0, 2, 3, 4, 5, 7})},
        "x2": {A: frozenset({0, 1, 2}), C: frozenset({1, 6, 8})},
    }


@pytest.mark.parametrize(
    ("names", "order"),
    [("a-id b-id c-id d-id e-id", "c-id d-id a-id b-id e-id"), ("b-id a-id", "b-id a-id"), ("", "")],
)
def test_the_order_of_a_java_hash_map(names: str, order: str) -> None:
    """As `java.util.HashMap` iterates keys that were put in this order."""
    assert order_of_names(names.split()) == order.split()


topics = st.lists(st.sampled_from([A, B, C]), unique=True).map(order_of_ids)


@given(
    counts=st.fixed_dictionaries({A: st.integers(0, 7), B: st.integers(0, 7), C: st.integers(0, 7)}),
    rounds=st.lists(
        st.dictionaries(st.sampled_from([f"m{number}" for number in range(9)]), topics, min_size=1), max_size=4
    ),
)
def test_every_partition_is_given_and_no_other(
    counts: dict[uuid.UUID, int], rounds: list[dict[str, list[uuid.UUID]]]
) -> None:
    assignable = {topic: frozenset(range(count)) for topic, count in counts.items()}
    target: dict[str, Partitions] = {}
    for subscribed in rounds:
        members = {each: ShareSubscription(of, target.get(each, {})) for each, of in subscribed.items()}
        is_homogeneous = len({tuple(of) for of in subscribed.values()}) == 1
        target = simple(assignable, members, is_homogeneous=is_homogeneous)
        again = {each: ShareSubscription(of, target[each]) for each, of in subscribed.items()}
        assert simple(assignable, again, is_homogeneous=is_homogeneous) == target, "nothing moves without need"
        for topic, partitions in assignable.items():
            wanted = [each for each, of in subscribed.items() if topic in of]
            holders = Counter(number for each in wanted for number in target[each].get(topic, ()))
            assert holders.keys() == (partitions if wanted else set())
            assert not partitions or max(holders.values(), default=0) <= -(-len(wanted) // len(partitions))
