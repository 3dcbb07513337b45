"""Partitions, offsets and members, asked of a broker."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Consumer, Producer

from kcoord_wire.marshal.context import TopicPartition
from kcoord_wire.marshal.inbox import TopicsError
from kcoord_wire.marshal.kafka_topics import Bounds, KafkaPositions
from tests.support.fixtures import StartCoordinator

ORDERS = [TopicPartition("orders", partition) for partition in range(2)]


def test_offsets_of_partitions_and_of_groups(coordinator: StartCoordinator) -> None:
    broker = coordinator(topics={"orders": 2})
    producer = Producer({"bootstrap.servers": broker.address})
    for number in range(5):
        producer.produce("orders", value=b"v", partition=0, timestamp=1_000_000 + number * 1_000)
    assert producer.flush(10) == 0
    positions = KafkaPositions(broker.address)
    assert positions.counts(["orders", "none"]) == {"orders": 2}
    assert positions.bounds(ORDERS) == {ORDERS[0]: Bounds(0, 5), ORDERS[1]: Bounds(0, 0)}
    assert positions.resolve(ORDERS, "earliest") == {ORDERS[0]: 0, ORDERS[1]: 0}
    assert positions.resolve(ORDERS, "latest") == {ORDERS[0]: 5, ORDERS[1]: 0}
    assert positions.resolve(ORDERS, 1_001_500) == {ORDERS[0]: 2, ORDERS[1]: 0}
    assert positions.resolve(ORDERS, 9_000_000) == {ORDERS[0]: 5, ORDERS[1]: 0}
    assert positions.committed("g") == {}
    positions.commit("g", {ORDERS[0]: 3})
    assert positions.committed("g") == {ORDERS[0]: 3}
    assert positions.live_members("g") == []
    assert positions.live_members("unheard-of") == []


def test_what_no_broker_knows(coordinator: StartCoordinator) -> None:
    positions = KafkaPositions(coordinator(topics={"orders": 2}).address)
    there, missing = ORDERS[0], TopicPartition("orders", 9)
    assert positions.bounds([there, missing]) == {there: Bounds(0, 0)}
    with pytest.raises(TopicsError, match="orders-9"):
        positions.resolve([there, missing], "latest")


def test_members_of_a_consumer_group(coordinator: StartCoordinator) -> None:
    broker = coordinator(topics={"orders": 2})
    settings = {"bootstrap.servers": broker.address, "group.id": "g", "client.id": "billing-1"}
    consumer = Consumer(settings)
    consumer.subscribe(["orders"])
    positions = KafkaPositions(broker.address)
    until = time.monotonic() + 30
    while positions.live_members("g") != ["billing-1"]:
        consumer.poll(0.1)
        assert time.monotonic() < until
    with pytest.raises(TopicsError):
        positions.commit("g", {ORDERS[0]: 3})
    consumer.close()
