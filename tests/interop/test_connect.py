"""Two workers of Kafka Connect on our coordinator: cooperative rebalances (KIP-415), one is killed and comes back.

What the tasks say of themselves and what they have written is judged: a task runs on one worker at a time, those that
need not move go on, those of a lost worker wait for `DELAY_MS`, and each goes on where the topic of offsets says.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.support.clients.connect_worker import ConnectWorker
from tests.support.clients.heard import PATIENCE
from tests.support.clients.served import Served
from tests.support.kafka_broker import class_path, compile_java, make_topics
from tests.support.waiting import eventually

SOURCE = Path(__file__).parents[1] / "support" / "java" / "SequenceSource.java"
TOPIC = "numbers"
COMPACTION = "it is not compacted here"  # of the topics in which workers keep their state
TASKS = [0, 1, 2, 3]
DELAY_MS = 30_000

Written = Mapping[int, Sequence[int]]
"""Task -> the numbers that it wrote, in order."""


def settle(*workers: ConnectWorker) -> None:
    """Wait until each task runs on one worker, and all have some."""
    eventually(lambda: is_settled(workers), lambda: [worker.events for worker in workers], seconds=2 * PATIENCE)


def is_settled(workers: Sequence[ConnectWorker]) -> bool:
    running = [worker.running for worker in workers]
    return sorted(task for each in running for task in each) == TASKS and all(running)


def play(bootstrap: str, folder: Path) -> None:
    """The life of two workers; what they say of their tasks is judged on the way."""
    (classes := folder / "classes").mkdir()
    compile_java(SOURCE, classes, class_path("connect-runtime"))
    make_topics(bootstrap, {TOPIC: 1})
    with ExitStack() as stack:

        def start(name: str) -> ConnectWorker:
            worker = ConnectWorker(name, bootstrap, "workers", folder, delay_ms=DELAY_MS, connectors=classes)
            return stack.enter_context(worker)

        first = start("first")
        first.submit("sequences", {"connector.class": "SequenceSource", "tasks.max": "4", "topic": TOPIC})
        settle(first)
        second = start("second")
        settle(first, second)
        stayed, moved = first.running, second.running
        stopped = [event.task for event in first.events if event.does == "stops"]
        assert (len(stayed), sorted(stopped)) == (2, moved), "only the tasks that moved have been stopped"

        second.kill()
        killed, untouched = time.monotonic(), len(first.events)
        second = start("second-again")
        settle(first, second)
        assert second.running == moved, "the worker that is back has the tasks that it had"
        assert len(first.events) == untouched, "the other worker's tasks went on"
        assert min(event.at for event in second.events) >= killed + DELAY_MS / 1_000
        assert all(event.next > 0 for event in second.events), "they go on where the topic of offsets says"

        second.kill()
        killed = time.monotonic()
        settle(first)
        taken = first.events[untouched:]
        assert sorted(event.task for event in taken) == moved, "the tasks that it ran went on"
        assert min(event.at for event in taken) >= killed + DELAY_MS / 1_000
        first.leave()
        written = read(bootstrap)
    assert judge(written, crashed=moved) == []
    print({task: len(numbers) for task, numbers in written.items()})


def read(bootstrap: str) -> Written:
    """All that the tasks have written."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "judge", "enable.partition.eof": True})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    written: dict[int, list[int]] = defaultdict(list)
    while (message := consumer.poll(PATIENCE)) is not None and message.error() is None:
        task, number = message.value().decode().split(":")
        written[int(task)].append(int(number))
    consumer.close()
    assert message is not None, "the end of the topic did not come"
    return written


def judge(written: Written, crashed: Sequence[int]) -> list[str]:
    """What is wrong: a number is missing, or is there twice though its task never ended by a crash."""
    problems = [] if sorted(written) == TASKS else [f"tasks {sorted(written)} have written"]
    for task, numbers in written.items():
        missing = set(range(max(numbers) + 1)) - set(numbers)
        if missing:
            problems.append(f"task {task}: {sorted(missing)[:10]} are missing")
        if task not in crashed and len(set(numbers)) != len(numbers):
            problems.append(f"task {task} has written a number twice")
    return problems


def test_two_workers_share_tasks_under_churn(tmp_path: Path) -> None:
    with Served({"unused": 1}, tmp_path / "log", allowed=COMPACTION) as served:
        play(served.address, tmp_path)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({}, ""),
        ({0: [0, 1, 1, 2]}, ""),
        ({1: [0, 1, 1, 2]}, "task 1 has written a number twice"),
        ({0: [0, 2]}, "task 0: [1] are missing"),
        ({4: [0]}, "tasks [0, 1, 2, 3, 4] have written"),
    ],
)
def test_the_judge(changed: Written, problem: str) -> None:
    written = {task: [0, 1, 2] for task in TASKS} | dict(changed)
    assert judge(written, crashed=[0]) == ([problem] if problem else [])
