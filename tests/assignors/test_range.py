"""range and roundrobin are Kafka's: compared with recorded results of Kafka 3.9, and with kafka-python."""

from __future__ import annotations

import time
import warnings

import pytest

from kcoord_wire.assignors import MemberSubscription, range_assign
from tests.support.assignments import (
    differs_from_kafka,
    differs_from_kafka_python,
    differs_from_kafka_with_racks,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas by importlib.resources.read_text
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor


@pytest.mark.parametrize(
    ("name", "peer"), [("range", RangePartitionAssignor), ("roundrobin", RoundRobinPartitionAssignor)]
)
def test_the_result_is_that_of_kafka_and_kafka_python(name: str, peer: type) -> None:
    assert list(differs_from_kafka(name)) == []
    assert list(differs_from_kafka_python(name, peer)) == []


def test_the_result_with_racks_is_that_of_kafka() -> None:
    assert list(differs_from_kafka_with_racks()) == []


def assign(racks: dict[str, list[str]], *members: MemberSubscription) -> list[dict[str, list[int]]]:
    """Assign topics with one replica for each partition; a letter is a rack."""
    counts = {topic: len(each) for topic, each in racks.items()}
    given = range_assign(counts, {f"m{number}": member for number, member in enumerate(members)}, racks)
    return [{topic: list(numbers) for topic, numbers in has.items()} for has in given.values()]


def member(topics: str, rack: str | None = None) -> MemberSubscription:
    return MemberSubscription(list(topics), rack=rack)


def test_uniform_subscriptions_get_their_racks() -> None:
    assert assign({"t": list("abcabc")}, *(member("t", rack) for rack in "cba")) == [
        {"t": [2, 5]},
        {"t": [1, 4]},
        {"t": [0, 3]},
    ]


def test_co_partitioned_topics_stay_so() -> None:
    """Partition 1 suits the second member in one topic only, so no member gets it for its rack."""
    assert assign({"t": list("bba"), "u": list("baa")}, member("tu", "a"), member("tu", "b")) == [
        {"t": [1, 2], "u": [1, 2]},
        {"t": [0], "u": [0]},
    ]


def test_topics_of_other_counts_are_matched_alone() -> None:
    assert assign({"t": list("ba"), "u": list("bab")}, member("tu", "a"), member("tu", "b")) == [
        {"t": [1], "u": [1]},
        {"t": [0], "u": [0, 2]},
    ]


def test_racks_that_differ_only_between_topics_do_not_matter() -> None:
    """All partitions of each topic are in the same racks; the union over the topics is what Kafka does not look at."""
    assert assign({"t": ["a"], "u": ["b"]}, member("tu"), member("t", "b"), member("u", "b")) == [
        {"t": [0], "u": [0]},
        {},
        {},
    ]
    assert assign({"t": ["a"], "u": ["b"]}, member("tu", "x"), member("tu", "a"), member("tu", "b")) == [
        {"t": [0], "u": [0]},
        {},
        {},
    ]


def test_balance_comes_before_racks() -> None:
    assert assign({"t": list("aaab")}, member("t", "a"), member("t", "b")) == [{"t": [0, 1]}, {"t": [2, 3]}]


def cpu_seconds(count: int) -> float:
    """Assign ten co-partitioned topics with as many partitions as members, of which half match in no topic."""
    layout = [["abcdef"[number % 6]] for number in range(count)]
    racks = {f"t{number}": layout for number in range(10)}
    members = {f"m{n:05}": MemberSubscription(list(racks), rack="abcxyz"[n % 6]) for n in range(count)}
    start = time.process_time()
    range_assign(dict.fromkeys(racks, count), members, racks)
    return time.process_time() - start


def test_four_times_the_members_in_racks_take_no_quadratic_time() -> None:
    """Compared with itself: linear is 4 times, quadratic 16 times."""
    few = min(cpu_seconds(500) for _ in range(3))
    assert min(cpu_seconds(2_000) for _ in range(2)) < 10 * few
