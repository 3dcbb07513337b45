"""Pauses, positions and exported offsets of a Marshal group on a real Kafka, seen by its tools and consumers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import Consumer, Producer

from kcoord_wire.cli.main import main
from kcoord_wire.marshal.client import MarshalConsumer
from kcoord_wire.marshal.kafka_log import KafkaLog, create_topic
from kcoord_wire.marshal.kafka_topics import KafkaTopics
from kcoord_wire.marshal.world_state import Rules
from tests.support.kafka_broker import KafkaBroker, class_path, make_topics, run_java
from tests.support.marshal_log import append_lines
from tests.support.waiting import consumed, eventually

PARTITIONS = 4
RECORDS = 50  # of each partition
INTERVAL = 2  # s
Kcoord = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with KafkaBroker(tmp_path_factory.mktemp("marshal") / "kafka") as broker:
        assert create_topic(broker.address, "__marshal", 8, heartbeat_interval_ms=INTERVAL * 1000, replication=1)
        yield broker.address


@pytest.fixture
def kcoord(kafka: str, capsys: pytest.CaptureFixture[str]) -> Kcoord:
    """Run a command of `kcoord marshal` on the broker."""

    def run(*argv: str, interval: int = INTERVAL) -> tuple[int, str, str]:
        status = main(["marshal", *argv, "--kafka", kafka, "--heartbeat-interval", str(interval)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def filled(kafka: str, topic: str) -> str:
    """Create a topic whose records say where they are."""
    make_topics(kafka, {topic: PARTITIONS})
    producer = Producer({"bootstrap.servers": kafka})
    for number in range(RECORDS):
        for partition in range(PARTITIONS):
            producer.produce(topic, value=f"{partition}:{number}".encode(), partition=partition)
    assert producer.flush(30) == 0
    return topic


class Group:
    """Members of a group, each in a thread of its own, and what they have read."""

    def __init__(self, kafka: str, group_id: str, topic: str, members: int, rules: Rules) -> None:
        self.read: list[tuple[int, int]] = []
        self._threads = []
        self._consumers = []
        for number in range(members):
            consumer = MarshalConsumer(
                KafkaLog(kafka),
                KafkaTopics(kafka, group_id, [topic]),
                group_id=group_id,
                client_id=f"{group_id}-{number}",
                topics=[topic],
                rules=rules,
                heartbeat_interval_ms=INTERVAL * 1000,
                pass_ms=200,
                max_claims=PARTITIONS // members,
            )
            self._consumers.append(consumer)
            self._threads.append(threading.Thread(target=self._run, args=(consumer,)))
            self._threads[-1].start()

    def _run(self, consumer: MarshalConsumer) -> None:
        for record in consumer:
            self.read.append((record.partition, record.offset))

    def wait_for(self, count: int, *, behind: int = 0) -> None:
        """Wait until so many records were read, not counting those that were read again.

        :param behind: how many records that were read before do not count
        """
        eventually(lambda: len(set(self.read[behind:])), f"not {count} records", until=lambda found: found >= count)

    def stop(self) -> None:
        """Let the members release everything and end."""
        for consumer, thread in zip(self._consumers, self._threads, strict=True):
            consumer.stop()
            thread.join()
            consumer.close()


@pytest.fixture
def start(kafka: str) -> Iterator[Callable[..., Group]]:
    """Starts groups: group id, topic, members, rules."""
    with ExitStack() as stack:

        def started(group_id: str, topic: str, members: int = 2, rules: Rules = Rules.DOCUMENT) -> Group:
            group = Group(kafka, group_id, topic, members, rules)
            stack.callback(group.stop)
            return group

        yield started


@pytest.mark.parametrize("rules", list(Rules))
def test_a_running_group_goes_on_from_the_new_positions(
    kafka: str, kcoord: Kcoord, start: Callable[..., Group], rules: Rules
) -> None:
    topic = filled(kafka, f"reset-{rules}")
    group = start(f"g-{rules}", topic, rules=rules)
    group.wait_for(PARTITIONS * RECORDS)
    wait_for_positions(kcoord, f"g-{rules}", rules)
    before = len(group.read)
    command = (
        "set-position",
        f"g-{rules}",
        "--topic",
        topic,
        "--to",
        "40",
        "--rules",
        rules,
        "--format",
        "json",
        "--wait",
        "30",
    )
    for _ in range(5):
        status, out, err = kcoord(*command)
        results = {each["result"] for each in json.loads(out)["positions"]}
        if status == 0:
            break
        assert results == {"kept"}, "an admin that stood still for a heartbeat interval has set nothing"
    assert (status, json.loads(out)["failure"], results) == (0, None, {"set"}), err
    group.wait_for(PARTITIONS * 10, behind=before)
    again = set(group.read[before:])
    assert again == {(partition, offset) for partition in range(PARTITIONS) for offset in range(40, 50)}


def wait_for_positions(kcoord: Kcoord, group_id: str, rules: Rules) -> None:
    """Wait until the group's positions in the log are behind the last records: then no record is read again."""

    def positions() -> list[int]:
        _, out, _ = kcoord("status", "--group", group_id, "--rules", rules, "--format", "json")
        return [row["position"] for row in json.loads(out)[rules]["partitions"]]

    eventually(positions, until=lambda found: found == [RECORDS] * PARTITIONS)


def test_a_pause_stops_and_a_resumption_starts_a_group(kafka: str, kcoord: Kcoord, start: Callable[..., Group]) -> None:
    topic = filled(kafka, "paused")
    assert kcoord("pause", "g-paused", "--for", "10m")[0] == 0
    group = start("g-paused", topic)
    time.sleep(2 * INTERVAL)
    assert group.read == []
    _, out, _ = kcoord("status", "--group", "g-paused", "--format", "json")
    assert "g-paused" in json.loads(out)["document"]["paused_until_ms"]
    assert kcoord("pause", "g-paused", "--resume")[0] == 0
    group.wait_for(PARTITIONS * RECORDS)


def test_members_that_ignore_the_pause_keep_their_positions(kafka: str, kcoord: Kcoord) -> None:
    """What a Go client of 2018 writes: it skips ReleaseGroup as an invalid message, and its heartbeats go on."""
    topic = filled(kafka, "ignored")
    interval = 6  # no machine stands still for twice as long, after which the claim would be stale
    stopping = threading.Event()
    append_lines(kafka, 8, int(time.time()), f"0 ClaimingPartition 3879dfdf/go-1/g-ignored/{topic}/2")

    def beat() -> None:
        while not stopping.wait(0.5):
            append_lines(kafka, 8, int(time.time()), f"0 Heartbeat 3879dfdf/go-1/g-ignored/{topic}/2/17")

    thread = threading.Thread(target=beat)
    thread.start()
    status, out, err = kcoord(
        "set-position", "g-ignored", "--topic", topic, "--to", "latest", "--format", "json", interval=interval
    )
    stopping.set()
    thread.join()
    assert status == 1
    assert "go-1 goes on although the group is paused: it ignores ReleaseGroup" in err
    assert {each["result"] for each in json.loads(out)["positions"]} == {"kept"}
    _, out, _ = kcoord("status", "--group", "g-ignored", "--format", "json", interval=interval)
    row = json.loads(out)["document"]["partitions"][2]
    assert (row["client_id"], row["position"]) == ("go-1", 17)
    assert json.loads(out)["document"]["paused_until_ms"] == {}


def test_exported_offsets_are_where_kafka_goes_on(kafka: str, kcoord: Kcoord, start: Callable[..., Group]) -> None:
    topic = filled(kafka, "exported")
    group = start("leaving", topic)
    group.wait_for(PARTITIONS * RECORDS // 2)
    status, _, err = kcoord("export-offsets", "leaving", "--to-group", "arriving")
    assert status == 1
    assert "group leaving still runs" in err
    group.stop()
    status, out, _ = kcoord("export-offsets", "leaving", "--to-group", "arriving", "--format", "json")
    assert status == 0
    exported = {each["partition"]: each["offset"] for each in json.loads(out)["offsets"]}
    described = run_java(
        class_path("kafka-tools"),
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        *("--bootstrap-server", kafka, "--describe", "--group", "arriving"),
    )
    rows = [line.split() for line in described.splitlines() if line.startswith("arriving")]
    assert {int(row[2]): int(row[3]) for row in rows} == exported
    rest = sorted((partition, offset) for partition, at in exported.items() for offset in range(at, RECORDS))
    assert continued(kafka, topic, "arriving", len(rest)) == rest
    processed = {(partition, offset) for partition, at in exported.items() for offset in range(at)}
    assert processed <= set(group.read)  # at least once: nothing is lost on the way out


def continued(kafka: str, topic: str, group_id: str, count: int) -> list[tuple[int, int]]:
    """What a consumer of Kafka's own group protocol reads, which begins nowhere but at committed offsets."""
    settings = {"bootstrap.servers": kafka, "group.id": group_id, "auto.offset.reset": "error"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    found = [(message.partition(), message.offset()) for message in consumed(consumer, count)]
    consumer.close()
    return sorted(found)
