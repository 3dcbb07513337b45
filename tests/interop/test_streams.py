"""A Kafka Streams application counts words on our coordinator while its instances are killed, frozen and restarted.

It has a topic for repartitioning, a store with a changelog, and a standby of each store. With
exactly_once_v2 each word is counted once, with at_least_once none is lost.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.clients.served import Served
from tests.support.kafka_broker import class_path, make_topics, run_java
from tests.support.streams_app import Application, Counts, judge_at_least_once, judge_exactly_once

PARTITIONS = 4
STREAMS = "4.4.0"
"""The Kafka Streams, and the tools, with streams groups."""
COMPACTION = "it is not compacted here"  # of changelogs
VOCABULARY = [f"word-{number}" for number in range(40)]
PATIENCE = 180.0  # seconds for the last counts, on a busy machine
GUARANTEES = {"exactly_once_v2": judge_exactly_once, "at_least_once": judge_at_least_once}


class Writer:
    """Writes words as long as the block lasts.

    :ivar produced: how often each word was written; all of them are acknowledged when the block has ended
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self.produced: Counter[str] = Counter()
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        assert self._producer.flush(PATIENCE) == 0

    def _write(self) -> None:
        while not self._ended.wait(0.2):
            for word in VOCABULARY:
                self._producer.produce(self._topic, value=word)
                self.produced[word] += 1
            self._producer.poll(0)


def read_counts(bootstrap: str, topic: str, is_enough: Callable[[Counts], bool]) -> Counts:
    """Read what is committed of the counts until it is enough, or the time is over."""
    options = {"bootstrap.servers": bootstrap, "group.id": "judge", "isolation.level": "read_committed"}
    consumer = Consumer({**options, "enable.auto.commit": False, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    counts: dict[str, list[int]] = defaultdict(list)
    end = time.monotonic() + PATIENCE
    while not is_enough(counts) and time.monotonic() < end:
        for message in consumer.consume(1_000, 1.0):
            assert message.error() is None, message.error()
            counts[message.key().decode()].append(int.from_bytes(message.value(), "big"))
    consumer.close()
    return counts


def live(application: Application, bootstrap: str) -> tuple[Counter[str], Counts]:
    """Instances join, are killed, come back, freeze and close; gives what was produced and how it was counted."""
    with ExitStack() as stack:
        with Writer(bootstrap, application.words) as writer:
            a, b = (stack.enter_context(application.start(name)) for name in "ab")
            application.settle([a, b])
            c = stack.enter_context(application.start("c"))
            application.settle([a, b, c])
            a.kill()
            application.settle([b, c])
            a = stack.enter_context(application.start("a"))
            application.settle([a, b, c])
            b.stop()
            application.settle([a, c])
            b.go_on()
            application.settle([a, b, c])
            c.close()
            application.settle([a, b])
        produced = writer.produced
        return produced, read_counts(bootstrap, application.counts, lambda counts: is_counted(produced, counts))


def is_counted(produced: Counter[str], counts: Counts) -> bool:
    return all(max(counts.get(word, (0,))) >= times for word, times in produced.items())


def play(bootstrap: str, folder: Path) -> dict[str, tuple[Counter[str], Counts]]:
    """Run an application of each guarantee, side by side."""
    applications = {name: Application(folder / name, folder, bootstrap, name, PARTITIONS) for name in GUARANTEES}
    topics = [topic for each in applications.values() for topic in (each.words, each.counts)]
    make_topics(bootstrap, dict.fromkeys(topics, PARTITIONS))
    with ThreadPoolExecutor(len(applications)) as threads:
        runs = {name: threads.submit(live, each, bootstrap) for name, each in applications.items()}
    return {name: run.result() for name, run in runs.items()}


def test_words_are_counted_under_churn(tmp_path: Path) -> None:
    with Served({"unused": 1}, tmp_path / "log", allowed=COMPACTION) as served:
        runs = play(served.address, tmp_path)
    print({guarantee: produced.total() for guarantee, (produced, _) in runs.items()})
    assert [problem for guarantee, run in runs.items() for problem in GUARANTEES[guarantee](*run)] == []


def test_a_streams_group_outlives_kills(tmp_path: Path) -> None:
    """With group.protocol=streams (KIP-1071) on Kafka Streams 4.4: an instance is killed, then the broker;
    its offsets are committed in transactions, with member epochs."""
    settings = [
        "group.streams.initial.rebalance.delay.ms=200",
        "group.streams.heartbeat.interval.ms=500",
        "group.streams.session.timeout.ms=5000",
        "group.streams.num.standby.replicas=1",
    ]
    topics = {"words": PARTITIONS, "counts": PARTITIONS}
    with ExitStack() as stack:
        served = Served(topics, tmp_path / "log", allowed=COMPACTION, settings=settings)
        stack.enter_context(served)
        address, port = served.address, int(served.address.rpartition(":")[2])
        application = Application(
            tmp_path / "classes",
            tmp_path,
            address,
            "exactly_once_v2",
            PARTITIONS,
            name="counting",
            topics=("words", "counts"),
            version=STREAMS,
            streams_protocol=True,
        )
        with Writer(address, "words") as writer:
            a, b = (stack.enter_context(application.start(name)) for name in "ab")
            application.settle([a, b])
            check_tools(address)
            a.kill()
            c = stack.enter_context(application.start("c"))
            application.settle([b, c])
            before = [(each.active, each.standby) for each in (b, c)]
            served.kill()
            stack.enter_context(Served(topics, tmp_path / "log", port, allowed=COMPACTION, settings=settings))
            application.settle([b, c])
        produced = writer.produced
        counts = read_counts(address, "counts", lambda counts: is_counted(produced, counts))
        assert judge_exactly_once(produced, counts) == []
        assert [(each.active, each.standby) for each in (b, c)] == before, "a restart of the broker moves no task"


def check_tools(address: str) -> None:
    """Kafka's tool for streams groups lists the group, and describes its offsets, members and state."""
    path = os.pathsep.join(class_path(artifact, STREAMS) for artifact in ("kafka_2.13", "kafka-tools"))
    tool = [
        path,
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
        "org.apache.kafka.tools.streams.StreamsGroupCommand",
    ]

    def says(*arguments: str) -> list[str]:
        return run_java(*tool, "--bootstrap-server", address, *arguments).split()

    assert "counting" in says("--list")
    assert {"words", "counting-words-repartition"} <= {*says("--describe", "--group", "counting")}
    assert says("--describe", "--group", "counting", "--members").count("ACTIVE:") == 2
    assert "Stable" in says("--describe", "--group", "counting", "--state")


@pytest.mark.parametrize(
    ("counts", "exactly", "at_least"),
    [
        ({"a": [1, 2], "b": [1]}, True, True),
        ({"a": [1, 2, 2], "b": [1]}, False, True),
        ({"a": [1, 2, 3], "b": [1]}, False, True),
        ({"a": [2], "b": [1]}, False, True),
        ({"a": [1], "b": [1]}, False, False),
        ({"a": [1, 2]}, False, False),
        ({"a": [1, 2], "b": [1], "c": [1]}, False, False),
    ],
)
def test_the_judges(counts: Counts, exactly: bool, at_least: bool) -> None:
    produced = Counter({"a": 2, "b": 1})
    assert [not judge(produced, counts) for judge in GUARANTEES.values()] == [exactly, at_least]
