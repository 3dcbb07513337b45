"""Unmodified client libraries live a group's life on the coordinator, alone and together, and log no complaint.

The life itself is in clients/life_cycle.py; operators' tools have their own tests here.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from kcoord_wire.group import Coordinator, GroupConfig, Trigger
from tests.group.clients.life_cycle import Figures, Place, at_once, life_cycle, mixed, static
from tests.group.clients.members import AIOKAFKA, CONFLUENT, KAFKA_PYTHON, ROOT, Client, Member

Record = Callable[[str, object], None]

RANGE = "range"
COOPERATIVE = "cooperative-sticky"
ALONE = {
    CONFLUENT: (RANGE, "roundrobin", COOPERATIVE),
    KAFKA_PYTHON: (RANGE, "roundrobin", "sticky", COOPERATIVE),
    AIOKAFKA: (RANGE, "roundrobin", "sticky"),
}
"""The assignors that each library has."""

LED_BY_EACH = (
    (CONFLUENT, KAFKA_PYTHON, AIOKAFKA),
    (KAFKA_PYTHON, AIOKAFKA, CONFLUENT),
    (AIOKAFKA, CONFLUENT, KAFKA_PYTHON),
)
TOGETHER = {"-".join(client.name for client in clients): (clients, RANGE) for clients in LED_BY_EACH} | {
    "cooperative": ((KAFKA_PYTHON, CONFLUENT, KAFKA_PYTHON), COOPERATIVE)
}


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    config = GroupConfig(min_session_timeout_ms=1000, initial_rebalance_delay_ms=200)
    with Coordinator(config=config) as running:
        yield running


def place(coordinator: Coordinator, name: str) -> Place:
    """A place with a topic and a group of its own."""
    here = Place(coordinator.address, topic=f"orders-{name}", group=f"billing-{name}")
    coordinator.create_topic(here.topic, here.partitions)
    return here


def triggers(coordinator: Coordinator, group: str) -> list[Trigger]:
    """What set off the rebalances of a group."""
    return [rebalance.trigger for rebalance in coordinator.rebalances if rebalance.group_id == group]


@pytest.mark.parametrize("client", ALONE, ids=lambda client: client.name)
def test_life_cycle(client: Client, coordinator: Coordinator, record_property: Record) -> None:
    places = {assignor: place(coordinator, assignor) for assignor in ALONE[client]}
    figures = at_once({name: partial(life_cycle, here, client, name) for name, here in places.items()})
    record_property(client.name, figures)
    for here in places.values():
        expired = [
            (removed.client_id, rebalance.client_id)
            for rebalance in coordinator.rebalances
            if rebalance.group_id == here.group
            for removed in rebalance.removed
            if removed.why == "session timeout"
        ]
        assert expired == [("first", "first")], "only the member that was killed may have run out of time"


@pytest.mark.parametrize("client", ALONE, ids=lambda client: client.name)
def test_static_members(client: Client, coordinator: Coordinator, record_property: Record) -> None:
    here = place(coordinator, "static")
    record_property(client.name, static(here, client, RANGE))
    assert triggers(coordinator, here.group) == [Trigger.NEW_MEMBER, Trigger.NEW_MEMBER, Trigger.SESSION_EXPIRED]


def test_libraries_together(coordinator: Coordinator, record_property: Record) -> None:
    places = {name: place(coordinator, name) for name in TOGETHER}
    scripts: dict[str, Callable[[], Figures]] = {
        name: partial(mixed, places[name], clients, assignor) for name, (clients, assignor) in TOGETHER.items()
    }
    record_property("together", at_once(scripts))
