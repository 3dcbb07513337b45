"""Groups to assign partitions to, random and recorded, and what an assignment owes.

``python -m tests.support.assignments | java ... Record.java`` made `tests/assignors/kafka_3_9.txt`: 200 random groups,
and the results of Kafka 3.9's own RangeAssignor and RoundRobinAssignor.

``python -m tests.support.assignments racks`` prints groups with racks as questions to `tests/support/java/Assign.java`.
`tests/assignors/kafka_3_9_racks.txt` has each with the answer of Kafka 3.9.2's RangeAssignor after a tab.
"""

from __future__ import annotations

import base64
import json
import random
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st

from kcoord_wire.assignors import (
    ASSIGNORS,
    Assignment,
    MemberSubscription,
    TopicPartition,
    cooperative_sticky,
    group_partitions,
    list_partitions,
)
from kcoord_wire.assignors.embedded import ConsumerProtocol

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas by importlib.resources.read_text
    from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

RECORDED = Path(__file__).parents[1] / "assignors" / "kafka_3_9.txt"
RECORDED_WITH_RACKS = RECORDED.with_name("kafka_3_9_racks.txt")
Group = tuple[dict[str, int], dict[str, MemberSubscription]]


@st.composite
def groups(draw: st.DrawFn, *, equal: bool = False, claims: bool = True) -> Group:
    """Topics and members; some own things that do not exist, are not subscribed to, or that another owns too."""
    names = st.sampled_from(["a", "b", "c", "d"])
    partitions = draw(st.dictionaries(names, st.integers(0, 7)))
    ids = draw(st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=7, unique=True))
    owned = st.lists(st.builds(TopicPartition, names, st.integers(0, 8)), max_size=9).map(group_partitions)
    instances = st.none() | st.text("xyz", min_size=1, max_size=2)
    shared = draw(st.lists(names, max_size=4))
    members = {}
    for number, member_id in enumerate(ids):
        instance_id = draw(instances)
        members[member_id] = MemberSubscription(
            shared if equal else draw(st.lists(names, max_size=4)),
            draw(owned) if claims else {},
            draw(st.integers(-1, 3)),
            None if instance_id is None else f"{instance_id}{number}",
        )
    return partitions, members


def partitions_of(assignment: Assignment) -> list[TopicPartition]:
    return [each for given in assignment.values() for each in list_partitions(given)]


def settle(partitions: dict[str, int], members: dict[str, MemberSubscription]) -> Assignment:
    """Return the assignment of cooperative-sticky after two more rounds, when nothing is withheld any more."""
    for _ in range(2):
        assignment = cooperative_sticky(partitions, members)
        members = {each: replace(members[each], owned=assignment[each], generation=9) for each in members}
    return cooperative_sticky(partitions, members)


def loads_are_balanced(assignment: Assignment, members: dict[str, MemberSubscription]) -> bool:
    """Whether no chain of moves takes one partition from a member to another with two fewer; searched breadth first."""
    load = {member_id: len(list_partitions(given)) for member_id, given in assignment.items()}
    for start in assignment:
        reached, edge = {start}, [start]
        while edge:
            topics = {topic for member in edge for topic in assignment[member]}
            edge = [other for other in members if other not in reached and topics & set(members[other].topics)]
            reached.update(edge)
        if any(load[other] <= load[start] - 2 for other in reached):
            return False
    return True


# ---- Kafka's results


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


def _parse_case(counts: str, listed: str) -> tuple[dict[str, int], dict[str, MemberSubscription]]:
    partitions = {topic: int(count) for topic, count in (each.split("=") for each in counts.split())}
    members = {}
    for each in listed.split(" "):
        names, topics = each.split("=")
        member_id, _, instance = names.partition(":")
        members[member_id] = MemberSubscription(list(filter(None, topics.split(","))), instance_id=instance or None)
    return partitions, members


def _shown(assignment: Assignment) -> str:
    return " ".join(
        f"{member_id}={','.join(f'{each.topic}-{each.partition}' for each in list_partitions(assignment[member_id]))}"
        for member_id in sorted(assignment)
    )


def _sort_each(result: str) -> str:
    """Kafka's range lists a member's topics in the order of a hash map."""
    pairs = (each.split("=") for each in result.split())
    return " ".join(f"{member}={sorted(given.split(','))}" for member, given in pairs)


def differs_from_kafka(name: str) -> Iterator[str]:
    """Yield the recorded cases in which an assignor's result is not Kafka's."""
    for line in RECORDED.read_text("utf-8").splitlines():
        assignor, counts, listed, result = line.split("|")
        if assignor == name:
            ours = _sort_each(_shown(ASSIGNORS[name].assign(*_parse_case(counts, listed))))
            if ours != _sort_each(result):
                yield f"{line}: {ours}"


def differs_from_kafka_python(name: str, theirs: Any, count: int = 50) -> Iterator[str]:
    """Yield the random groups in which an assignor's result is not that of kafka-python's class `theirs`."""
    for seed in range(count):
        # Equal subscriptions and one kind of member: kafka-python 3.0.12 loses members or raises KeyError on others.
        chance = random.Random(seed)
        partitions = {f"t{number}": chance.randint(1, 9) for number in range(chance.randint(1, 5))}
        static = chance.random() < 0.5
        members = {
            f"m{number}": MemberSubscription(list(partitions), instance_id=f"i{1000 - number}" if static else None)
            for number in chance.sample(range(1000), chance.randint(1, 9))
        }
        expected = {
            member_id: sorted((topic, number) for topic, numbers in given.assigned_partitions for number in numbers)
            for member_id, given in theirs.assign(_cluster(partitions), _asked(members)).items()
        }
        ours = {
            member_id: list_partitions(given)
            for member_id, given in ASSIGNORS[name].assign(partitions, members).items()
        }
        if ours != expected:
            yield f"seed {seed}: {ours}, not {expected}"


def _cluster(partitions: dict[str, int]) -> SimpleNamespace:
    return SimpleNamespace(partitions_for_topic=lambda topic: set(range(partitions[topic])))


def _asked(members: dict[str, MemberSubscription]) -> list[SimpleNamespace]:
    return [
        SimpleNamespace(
            member_id=member_id,
            group_instance_id=member.instance_id,
            metadata=ConsumerProtocolSubscription(0, list(member.topics), b""),
        )
        for member_id, member in members.items()
    ]


def rack_questions(count: int) -> list[str]:
    """Groups with racks; half have equal subscriptions, half equal partition counts, some replicas unknown racks."""
    questions = []
    for seed in range(count):
        chance = random.Random(seed)
        racks = [f"r{number}" for number in range(chance.randint(1, 4))]
        names = [f"t{number}" for number in range(chance.randint(1, 4))]
        partitions, same = chance.randint(1, 6), chance.random() < 0.5
        layout = [[chance.sample(racks, chance.randint(1, len(racks))) for _ in range(partitions)] for _ in range(2)]
        topics = {
            name: chance.choice(layout) if same else [chance.sample(racks, 1) for _ in range(chance.randint(0, 6))]
            for name in names
        }
        members = {}
        for number in chance.sample(range(100), chance.randint(1, 5)):
            subscription = MemberSubscription(
                names if chance.random() < 0.7 else chance.sample(names, chance.randint(0, len(names))),
                rack=chance.choice([*racks, *racks, None, "elsewhere"]),
            )
            encoded = base64.b64encode(ConsumerProtocol().encode_subscription(subscription)).decode()
            instance = f"i{100 - number}" if chance.random() < 0.3 else None
            members[f"m{number}"] = {"subscription": encoded, "instance": instance}
        assignor = "org.apache.kafka.clients.consumer.RangeAssignor"
        questions.append(json.dumps({"assignor": assignor, "topics": topics, "members": members}))
    return questions


def differs_from_kafka_with_racks() -> Iterator[str]:
    """Yield the recorded cases with racks in which the result of range is not Kafka's."""
    for line in RECORDED_WITH_RACKS.read_text("utf-8").splitlines():
        asked, answer = map(json.loads, line.split("\t"))
        members = {
            member_id: ConsumerProtocol().decode_subscription(base64.b64decode(each["subscription"]), each["instance"])
            for member_id, each in asked["members"].items()
        }
        counts = {topic: len(racks) for topic, racks in asked["topics"].items()}
        ours = ASSIGNORS["range"].assign(counts, members, asked["topics"])
        expected = {
            member_id: {topic: sorted(numbers) for topic, numbers in has.items()} for member_id, has in answer.items()
        }
        if {
            member_id: {topic: list(numbers) for topic, numbers in has.items()} for member_id, has in ours.items()
        } != expected:
            yield f"{line}: {ours}"


if __name__ == "__main__":
    print("\n".join(rack_questions(120) if sys.argv[1:] == ["racks"] else random_cases(200)))
