"""Makes the log in this folder anew: real consumers on a real broker, and what happened to them (README.md).

    python -m tests.data.consumer_groups.generate

Needs what tests/support/kafka_broker.py needs. Takes two minutes.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.data.consumer_groups.lives import Consumer, all_owned
from tests.support.kafka_broker import KafkaBroker

HERE = Path(__file__).parent
PROPERTIES = {
    "group.initial.rebalance.delay.ms": "500",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.migration.policy": "bidirectional",
    "unstable.api.versions.enable": "true",
}
PAUSE = 1.5  # seconds between two things that happen, so that their times differ


class Stage:
    """Where one group lives: starts its consumers, and writes down what happened and when."""

    def __init__(self, address: str, group: str, happened: list[dict[str, Any]], stack: ExitStack) -> None:
        self.address = address
        self.group = group
        self.admin = AdminClient({"bootstrap.servers": address})
        self._happened = happened
        self._stack = stack

    def note(self, what: str, client: str | None = None) -> None:
        """Write down what is about to happen."""
        self._happened.append(
            {"time_ms": time.time_ns() // 1_000_000, "group": self.group, "client": client, "what": what}
        )

    def start(self, name: str, topics: list[str], **options: Any) -> Consumer:
        """Start a consumer whose client id is that of its group and its name."""
        options = {
            "bootstrap_servers": self.address,
            "group_id": self.group,
            "client_id": f"{self.group}-{name}",
            "auto_offset_reset": "earliest",
            "auto_commit_interval_ms": 2000,
            "topic_metadata_refresh_interval_ms": 1000,
            **options,
        }
        self.note("starts", options["client_id"])
        return self._stack.enter_context(Consumer(topics, **options))

    def leave(self, consumer: Consumer) -> None:
        """Close a consumer in good order."""
        self.note("leaves", consumer.name)
        consumer.leave()

    def kill(self, consumer: Consumer) -> None:
        """Kill a consumer."""
        self.note("is killed", consumer.name)
        consumer.kill()

    def subscribe(self, consumer: Consumer, topics: list[str]) -> None:
        """Subscribe to other topics."""
        self.note(f"subscribes to {', '.join(topics)}", consumer.name)
        consumer.subscribe(topics)

    def add_partitions(self, topic: str, count: int) -> None:
        """Make a topic larger."""
        self.note(f"{topic} gets {count} partitions")
        for future in self.admin.create_partitions([NewPartitions(topic, count)]).values():
            future.result(30)

    def settle(self, consumers: list[Consumer], partitions: int) -> None:
        """Wait until the consumers share the partitions, and a little more."""
        all_owned(consumers, partitions)
        time.sleep(PAUSE)


CLASSIC = {"session_timeout_ms": 4000, "heartbeat_interval_ms": 500}


def billing(stage: Stage) -> None:
    """Classic, range: joins, a leave, a crash, another subscription, the end."""
    options = {**CLASSIC, "partition_assignment_strategy": "range"}
    one = stage.start("1", ["orders"], **options)
    stage.settle([one], 4)
    two = stage.start("2", ["orders"], **options)
    stage.settle([one, two], 4)
    three = stage.start("3", ["orders"], **options)
    stage.settle([one, two, three], 4)
    stage.leave(two)
    stage.settle([one, three], 4)
    stage.kill(three)
    stage.settle([one], 4)
    stage.subscribe(one, ["orders", "payments"])
    stage.settle([one], 7)
    stage.leave(one)


def shipping(stage: Stage) -> None:
    """Classic, cooperative-sticky: two rounds when a second joins; it leaves; the first stays to the end."""
    options = {**CLASSIC, "partition_assignment_strategy": "cooperative-sticky"}
    one = stage.start("1", ["orders"], **options)
    stage.settle([one], 4)
    two = stage.start("2", ["orders"], **options)
    stage.settle([one, two], 4)
    stage.leave(two)
    stage.settle([one], 4)


def ledger(stage: Stage) -> None:
    """Static members: one is killed and comes back within its session timeout, so no rebalance follows."""
    options = {"session_timeout_ms": 30_000, "heartbeat_interval_ms": 500, "partition_assignment_strategy": "range"}
    one = stage.start("1", ["orders"], group_instance_id="ledger-a", **options)
    stage.settle([one], 4)
    two = stage.start("2", ["orders"], group_instance_id="ledger-b", **options)
    stage.settle([one, two], 4)
    stage.kill(two)
    time.sleep(PAUSE)
    back = stage.start("2-again", ["orders"], group_instance_id="ledger-b", **options)
    stage.settle([one, back], 4)


def returns(stage: Stage) -> None:
    """Classic: the topic gets more partitions; the leader sees it and rejoins."""
    options = {**CLASSIC, "partition_assignment_strategy": "roundrobin"}
    one = stage.start("1", ["returns"], **options)
    two = stage.start("2", ["returns"], **options)
    stage.settle([one, two], 2)
    stage.add_partitions("returns", 5)
    stage.settle([one, two], 5)


def scratch(stage: Stage) -> None:
    """Classic: one member comes and goes; the group is deleted."""
    one = stage.start("1", ["payments"], **CLASSIC, partition_assignment_strategy="range")
    stage.settle([one], 3)
    time.sleep(2.0)
    stage.leave(one)
    stage.note("the group is deleted")
    for future in stage.admin.delete_consumer_groups([stage.group]).values():
        future.result(30)


def audit(stage: Stage) -> None:
    """KIP-848: joins, a leave, a crash, another subscription, more partitions."""
    options = {"group_protocol": "consumer"}
    one = stage.start("1", ["orders"], **options)
    stage.settle([one], 4)
    two = stage.start("2", ["orders"], **options)
    stage.settle([one, two], 4)
    stage.leave(two)
    stage.settle([one], 4)
    three = stage.start("3", ["orders"], **options)
    stage.settle([one, three], 4)
    stage.kill(three)
    stage.settle([one], 4)
    stage.subscribe(one, ["orders", "audited"])
    stage.settle([one], 6)
    stage.add_partitions("audited", 4)
    stage.settle([one], 8)
    stage.leave(one)


def vault(stage: Stage) -> None:
    """KIP-848, static: a member is closed, which is only for a while, and comes back; nothing moves."""
    options = {"group_protocol": "consumer"}
    one = stage.start("1", ["orders"], group_instance_id="vault-a", **options)
    stage.settle([one], 4)
    two = stage.start("2", ["orders"], group_instance_id="vault-b", **options)
    stage.settle([one, two], 4)
    stage.leave(two)
    time.sleep(PAUSE)
    back = stage.start("2-again", ["orders"], group_instance_id="vault-b", **options)
    stage.settle([one, back], 4)


def moving(stage: Stage) -> None:
    """A classic group to which a member of the new protocol comes: the broker converts it."""
    one = stage.start("1", ["orders"], **CLASSIC, partition_assignment_strategy="cooperative-sticky")
    stage.settle([one], 4)
    two = stage.start("2", ["orders"], group_protocol="consumer")
    stage.settle([one, two], 4)
    stage.leave(one)
    stage.settle([two], 4)


def back(stage: Stage) -> None:
    """Members of either protocol; the one of the new protocol leaves, and the broker converts the group back."""
    one = stage.start("1", ["orders"], **CLASSIC, partition_assignment_strategy="cooperative-sticky")
    stage.settle([one], 4)
    two = stage.start("2", ["orders"], group_protocol="consumer")
    stage.settle([one, two], 4)
    stage.leave(two)
    stage.settle([one], 4)


LIVES: dict[str, list[Callable[[Stage], None]]] = {
    "3.9.2": [billing, shipping, ledger, returns, scratch],
    "4.0.0": [audit, vault, moving, back],
    "4.1.0": [audit, vault],
}
"""By the broker's version: librdkafka 2.16 speaks the new protocol from 4.0 on (ConsumerGroupHeartbeat 1)."""
TOPICS = {"orders": 4, "payments": 3, "returns": 2, "audited": 2}


def produce(address: str, until: threading.Event) -> None:
    """Some records for every topic, so that there is something to commit."""
    producer = Producer({"bootstrap.servers": address})
    number = 0
    while not until.wait(0.1):
        for topic, count in TOPICS.items():
            producer.produce(topic, value=b"%d" % number, partition=number % count)
        number += 1
        producer.poll(0)
    producer.flush(10)


def play(version: str) -> None:
    """Play the lives of one broker side by side and keep its log."""
    happened: list[dict[str, Any]] = []
    lives = LIVES[version]
    kept = HERE / f"kafka-{version}"
    with tempfile.TemporaryDirectory() as scratch_folder:
        broker = KafkaBroker(Path(scratch_folder) / f"consumer-groups-{version}", PROPERTIES, version)
        with broker, ExitStack() as stack, ThreadPoolExecutor(len(lives) + 1) as threads:
            admin = AdminClient({"bootstrap.servers": broker.address})
            for future in admin.create_topics([NewTopic(name, count, 1) for name, count in TOPICS.items()]).values():
                future.result(30)
            time.sleep(PAUSE)  # else the coordinator may not know them when the first consumer asks
            ended = threading.Event()
            producing = threads.submit(produce, broker.address, ended)
            try:
                stages = [Stage(broker.address, life.__name__, happened, stack) for life in lives]
                playing = [threads.submit(life, stage) for life, stage in zip(lives, stages, strict=True)]
                for run in playing:
                    run.result()
            finally:
                ended.set()
            producing.result()
            (segment,) = broker.offsets_log
            folder = kept / segment.parent.name
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(segment, folder)
    happened.sort(key=lambda item: item["time_ms"])
    (kept / "happened.jsonl").write_text("".join(json.dumps(item) + "\n" for item in happened))


def main() -> None:
    """Make all, or the versions named."""
    for version in sys.argv[1:] or LIVES:
        play(version)


if __name__ == "__main__":
    main()
