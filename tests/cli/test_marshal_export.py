"""`kcoord marshal export-offsets`, read back by a real consumer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, Producer

from kcoord_wire.marshal.context import TopicPartition
from kcoord_wire.marshal.kafka_topics import KafkaPositions
from tests.support.fixtures import StartCoordinator
from tests.support.marshal_log import append_lines

Kcoord = Callable[..., tuple[int, str, str]]


@pytest.fixture
def brokers(coordinator: StartCoordinator) -> str:
    """A broker on which group billing has ended: at 7 and, above the end, at 99."""
    address = coordinator(topics={"__marshal": 4, "orders": 3, "audit": 1}).address
    producer = Producer({"bootstrap.servers": address})
    for number in range(9):
        for partition in range(3):
            producer.produce("orders", value=f"{partition}:{number}".encode(), partition=partition)
    assert producer.flush(10) == 0
    lines = [
        f"{second} ClaimingPartition i1/c1/billing/{place}" for second, place in enumerate(("orders/0", "orders/1"))
    ]
    lines += ["3 ReleasingPartition i1/c1/billing/orders/0/7", "4 ReleasingPartition i1/c1/billing/orders/1/99"]
    append_lines(address, 4, int(time.time()) - 10, *lines)
    return address


def run(kcoord: Kcoord, brokers: str, *argv: str) -> tuple[int, str, str]:
    return kcoord("marshal", "export-offsets", "billing", "--kafka", brokers, *argv)


def test_a_consumer_group_goes_on_exactly_there(brokers: str, kcoord: Kcoord) -> None:
    code, out, err = run(kcoord, brokers, "--format", "json")
    assert (code, err) == (0, "")
    first, second = json.loads(out)["offsets"]
    assert (first["partition"], first["offset"], first["source"], first["committed"]) == (0, 7, "log", 7)
    assert (second["offset"], second["note"]) == (9, "the log's offset 99 is above the end, 9")
    settings = {"bootstrap.servers": brokers, "group.id": "billing", "auto.offset.reset": "latest"}
    consumer = Consumer(settings)
    consumer.subscribe(["orders"])
    values: list[bytes] = []
    until = time.monotonic() + 30
    while len(values) < 2:
        assert time.monotonic() < until
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            values.append(message.value())
    consumer.close()
    assert values == [b"0:7", b"0:8"]


def test_another_group_and_one_topic(brokers: str, kcoord: Kcoord) -> None:
    kafka = KafkaPositions(brokers)
    kafka.commit("billing", {TopicPartition("orders", 2): 4})
    code, out, _ = run(kcoord, brokers, "--to-group", "new", "--topic", "orders")
    assert code == 0
    assert [line.split()[:5] for line in out.splitlines() if "orders/" in line] == [
        ["orders/0", "7", "log", "-", "7"],
        ["orders/1", "9", "log", "-", "9"],
        ["orders/2", "4", "committed", "-", "4"],
    ]
    assert kafka.committed("new") == {TopicPartition("orders", each): at for each, at in enumerate((7, 9, 4))}


def test_a_dry_run_writes_nothing(brokers: str, kcoord: Kcoord) -> None:
    code, out, _ = run(kcoord, brokers, "--dry-run")
    assert code == 0
    assert "would be written" in out
    assert KafkaPositions(brokers).committed("billing") == {}


def test_a_group_that_runs_is_left_alone(brokers: str, kcoord: Kcoord) -> None:
    append_lines(brokers, 4, int(time.time()), "0 ClaimingPartition i2/c2/billing/orders/2")
    code, out, err = run(kcoord, brokers)
    assert (code, out) == (1, "")
    assert "group billing still runs, stop it first (or --force-live): c2" in err
    assert KafkaPositions(brokers).committed("billing") == {}
    assert run(kcoord, brokers, "--force-live")[0] == 0
    assert len(KafkaPositions(brokers).committed("billing")) == 2


def test_a_consumer_group_with_members_is_left_alone(brokers: str, kcoord: Kcoord) -> None:
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "new", "client.id": "n-1"})
    consumer.subscribe(["orders"])
    kafka, until = KafkaPositions(brokers), time.monotonic() + 30
    while not kafka.live_members("new"):
        consumer.poll(0.1)
        assert time.monotonic() < until
    code, _, err = run(kcoord, brokers, "--to-group", "")
    assert (code, err) == (2, "kcoord: --to-group: the name is empty\n")
    code, _, err = run(kcoord, brokers, "--to-group", "new", "--force-live")
    assert code == 1
    assert "consumer group new has members, and Kafka takes offsets of one without: n-1" in err
    consumer.close()


def test_a_group_that_is_not_known(brokers: str, kcoord: Kcoord) -> None:
    code, _, err = kcoord("marshal", "export-offsets", "none", "--kafka", brokers)
    assert code == 1
    assert "no position of group none is known" in err
