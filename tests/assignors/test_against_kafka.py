"""range and roundrobin are Kafka's: held to results that Kafka 3.9's own classes gave, and to kafka-python's.

kafka_3_9.txt was made by `python tests/assignors/test_kafka.py | java ... Record.java`.
"""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

from kcoord_wire.assignors import (
    ASSIGNORS,
    Assignment,
    MemberSubscription,
    TopicPartition,
    cooperative_sticky,
    sticky,
    sticky_user_data,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas by importlib.resources.read_text
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

RECORDED = Path(__file__).with_name("kafka_3_9.txt").read_text("utf-8").splitlines()


def random_cases(count: int) -> list[str]:
    cases = []
    for seed in range(count):
        chance = random.Random(seed)
        topics = [f"t{number}" for number in range(chance.randint(1, 5))]
        same = chance.random() < 0.5
        members = []
        for number in chance.sample(range(1000), chance.randint(1, 9)):
            wanted = topics if same else chance.sample(topics, chance.randint(0, len(topics)))
            instance = f":i{chance.randint(0, 10**9)}" if chance.random() < 0.3 else ""
            members.append(f"m{number}{instance}={','.join(wanted)}")
        counts = " ".join(f"{topic}={chance.randint(0, 9)}" for topic in topics)
        cases.append(f"{chance.choice(['range', 'roundrobin'])}|{counts}|{' '.join(members)}")
    return cases


def parse_case(counts: str, listed: str) -> tuple[dict[str, int], dict[str, MemberSubscription]]:
    partitions = {topic: int(count) for topic, count in (each.split("=") for each in counts.split())}
    members = {}
    for each in listed.split(" "):
        names, topics = each.split("=")
        member_id, _, instance = names.partition(":")
        members[member_id] = MemberSubscription(list(filter(None, topics.split(","))), instance_id=instance or None)
    return partitions, members


def shown(assignment: Assignment) -> str:
    return " ".join(
        f"{member_id}={','.join(f'{each.topic}-{each.partition}' for each in assignment[member_id])}"
        for member_id in sorted(assignment)
    )


@pytest.mark.parametrize("line", RECORDED)
def test_equals_kafka(line: str) -> None:
    name, counts, listed, result = line.split("|")
    assert sort_each(shown(ASSIGNORS[name].assign(*parse_case(counts, listed)))) == sort_each(result)


def sort_each(result: str) -> str:
    """Kafka's range lists a member's topics in the order of a hash map."""
    pairs = (each.split("=") for each in result.split())
    return " ".join(f"{member}={sorted(given.split(','))}" for member, given in pairs)


@pytest.mark.parametrize("name", ["range", "roundrobin"])
@pytest.mark.parametrize("seed", range(50))
def test_equals_kafka_python(name: str, seed: int) -> None:
    # Equal subscriptions and only one kind of member: kafka-python 3.0.12 loses members or raises KeyError on others.
    chance = random.Random(seed)
    partitions = {f"t{number}": chance.randint(1, 9) for number in range(chance.randint(1, 5))}
    static = chance.random() < 0.5
    members = {
        f"m{number}": MemberSubscription(list(partitions), instance_id=f"i{1000 - number}" if static else None)
        for number in chance.sample(range(1000), chance.randint(1, 9))
    }
    cluster = SimpleNamespace(partitions_for_topic=lambda topic: set(range(partitions[topic])))
    asked = [
        SimpleNamespace(
            member_id=member_id,
            group_instance_id=member.instance_id,
            metadata=ConsumerProtocolSubscription(0, list(member.topics), b""),
        )
        for member_id, member in members.items()
    ]
    theirs = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}[name].assign(cluster, asked)
    ours = ASSIGNORS[name].assign(partitions, members)
    assert {
        member_id: sorted((topic, number) for topic, numbers in given.assigned_partitions for number in numbers)
        for member_id, given in theirs.items()
    } == {member_id: sorted(given) for member_id, given in ours.items()}


# What Kafka 3.9.2's StickyAssignor and CooperativeStickyAssignor put into subscriptions, with OWNED and generation 7.
OWNED = [TopicPartition("a", 1), TopicPartition("a", 3), TopicPartition("b", 0)]
STICKY_DATA = bytes.fromhex("00000002000161000000020000000100000003000162000000010000000000000007")
COOPERATIVE_DATA = bytes.fromhex("00000007")


def test_reads_and_writes_the_user_data_of_kafkas_sticky_assignors() -> None:
    assert sticky_user_data(OWNED, 7) == STICKY_DATA
    partitions, both = {"a": 4, "b": 2}, ["a", "b"]
    stale = MemberSubscription(both, OWNED, generation=6)
    holder = MemberSubscription(both, user_data=STICKY_DATA)
    assert set(sticky(partitions, {"x": stale, "y": holder})["y"]) == set(OWNED)
    holder = MemberSubscription(both, OWNED, user_data=COOPERATIVE_DATA)
    assert set(balance(partitions, {"x": stale, "y": holder})["y"]) == set(OWNED)


def balance(partitions: dict[str, int], members: dict[str, MemberSubscription]) -> Assignment:
    """What cooperative-sticky comes to once everybody has given up what it had to."""
    first = cooperative_sticky(partitions, members)
    return cooperative_sticky(partitions, {m: MemberSubscription(members[m].topics, first[m], 8) for m in members})


@pytest.mark.parametrize("end", range(len(STICKY_DATA)))
def test_user_data_that_ends_early_or_lies_counts_for_nothing(end: int) -> None:
    topics, partitions = ["a", "b"], {"a": 4, "b": 2}
    without = sticky(partitions, {"x": MemberSubscription(topics), "y": MemberSubscription(topics)})
    lies = STICKY_DATA[:9] + b"\x7f\xff\xff\xff" + STICKY_DATA[13:]
    for data in (STICKY_DATA[:end], lies, b"\x7f\xff\xff\xff" * 20):
        if data != STICKY_DATA[:-4]:  # that is version 0
            members = {"x": MemberSubscription(topics), "y": MemberSubscription(topics, user_data=data)}
            assert sticky(partitions, members) == without


if __name__ == "__main__":
    print("\n".join(random_cases(200)))
