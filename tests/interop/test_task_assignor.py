"""Our assignor of streams groups against Kafka's own class, on generated groups: the same result, each time.

A group has a history: members come, leave and are killed, some tasks are with others by now, and a member may have only
states on its disk. Each of its assignments is the result of the one before.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kcoord_wire.assignors.streams import AssignedTasks, Subtopology, Task, TaskMember, assign_tasks
from tests.support.kafka_broker import class_path, compile_java, java
from tests.support.processes import Process

VERSION = "4.4.0"
HISTORIES = 250
ROUNDS = 6
Group = tuple[dict[str, Subtopology], dict[str, TaskMember], int]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    classes = tmp_path_factory.mktemp("classes")
    source = Path(__file__).parents[1] / "support" / "java" / "AssignTasks.java"
    path = compile_java(source, classes, class_path("kafka-group-coordinator", VERSION))
    process = Process(java(path, "-Dorg.slf4j.simpleLogger.defaultLogLevel=off", "AssignTasks"))
    yield process
    process.finish()


def kafkas(kafka: Process, group: Group) -> dict[str, AssignedTasks]:
    subtopologies, members, standbys = group
    question = {
        "subtopologies": {name: [each.tasks, each.is_stateful] for name, each in subtopologies.items()},
        "standbys": standbys,
        "members": {
            name: {
                "process": each.process_id,
                "active": list(each.active),
                "standby": list(each.standby),
                "offsets": [[*task, offset] for task, offset in each.offsets.items()],
            }
            for name, each in members.items()
        },
    }
    answer: dict[str, Any] = json.loads(kafka.ask(json.dumps(question)))
    return {
        name: AssignedTasks(*(frozenset(Task(*task) for task in given[kind]) for kind in ("active", "standby")))
        for name, given in answer.items()
    }


def histories() -> Iterator[Group]:
    for seed in range(HISTORIES):
        random = Random(seed)
        largest = 40 if seed % 10 == 0 else 8
        subtopologies = {
            str(number): Subtopology(random.randint(1, largest), random.random() < 0.6)
            for number in range(random.randint(1, 4))
        }
        standbys = random.randint(0, 2)
        processes = [f"{random.getrandbits(64):x}" for _ in range(random.randint(1, largest // 2))]
        members: dict[str, TaskMember] = {}
        for _ in range(ROUNDS):
            for _ in range(random.randint(0 if members else 1, 3)):
                members[f"{random.getrandbits(64):x}"] = TaskMember(process_id=random.choice(processes))
            while len(members) > 1 and random.random() < 0.4:
                del members[random.choice(sorted(members))]
            yield subtopologies, members, standbys
            given = assign_tasks(subtopologies, members, standbys)
            members = {name: changed(random, members[name], given[name], subtopologies) for name in members}


def changed(
    random: Random, member: TaskMember, given: AssignedTasks, subtopologies: dict[str, Subtopology]
) -> TaskMember:
    """A member that holds what it was given, or not all of it yet, and whose disk has states of some tasks."""
    active, standby = ([task for task in sorted(tasks) if random.random() < 0.9] for tasks in given)
    stateful = [Task(name, n) for name, each in subtopologies.items() if each.is_stateful for n in range(each.tasks)]
    on_disk = {*standby, *random.sample(stateful, random.randint(0, len(stateful) // 4))}
    offsets = {task: random.choice((0, 5, 5, 900)) for task in sorted(on_disk) if random.random() < 0.7}
    return TaskMember(process_id=member.process_id, active=active, standby=standby, offsets=offsets)


def test_tasks_go_where_kafka_puts_them(kafka: Process) -> None:
    different, compared = [], 0
    for group in histories():
        ours, theirs = assign_tasks(*group), kafkas(kafka, group)
        compared += 1
        if ours != theirs:
            different.append(f"{group}\nours: {ours}\nKafka: {theirs}")
    assert compared == HISTORIES * ROUNDS
    assert not different, f"{len(different)} differ, the smallest:\n{min(different, key=len)}"
