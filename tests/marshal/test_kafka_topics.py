"""What becomes of commits and questions that brokers refuse. The contract is in test_topics.py.

Partitions, offsets and members, asked of a broker.
"""

from __future__ import annotations

from collections.abc import Iterator

import confluent_kafka
import pytest
from confluent_kafka import Consumer, Producer

from kcoord_wire.coordinator import Coordinator, Fault
from kcoord_wire.kernel.machines import LogEvent
from kcoord_wire.marshal.context import TopicPartition
from kcoord_wire.marshal.inbox import TopicsError
from kcoord_wire.marshal.kafka_topics import Bounds, KafkaPositions, KafkaTopics, commit_offsets
from kcoord_wire.marshal.member_events import FindStart, StartFailed, StartFound, Tenure
from tests.support.fixtures import StartCoordinator
from tests.support.topics_contract import TOPIC, producing, wait_for
from tests.support.waiting import eventually

HELD = Tenure(TOPIC, 0, 1)


@pytest.fixture
def broker(coordinator: StartCoordinator) -> Coordinator:
    return coordinator(topics={TOPIC: 2})


@pytest.fixture
def topics(broker: Coordinator) -> Iterator[KafkaTopics]:
    topics = KafkaTopics(broker.address, "g", [TOPIC])
    yield topics
    topics.close()


@pytest.fixture
def member(broker: Coordinator) -> Iterator[confluent_kafka.Consumer]:
    """A member of a Kafka group of our group's name."""
    joined = confluent_kafka.Consumer({"bootstrap.servers": broker.address, "group.id": "g"})
    assigned: list[object] = []
    joined.subscribe([TOPIC], on_assign=lambda _, partitions: assigned.append(partitions))
    for _ in range(300):
        joined.poll(0.1)
        if assigned:
            break
    assert assigned, "it has joined"
    yield joined
    joined.close()


def test_commits_refused_by_a_group_with_members_are_noted_once(
    topics: KafkaTopics, member: confluent_kafka.Consumer
) -> None:
    topics.commit(HELD, 1)
    (note,) = wait_for(topics, LogEvent)
    assert note.what == "offsets not committed"
    assert note.facts["reason"]
    topics.commit(HELD, 2)
    assert [event for _ in range(10) for event in topics.poll(0.05) if isinstance(event, LogEvent)] == []


def test_exported_offsets_are_refused_by_a_group_with_members(
    broker: Coordinator, member: confluent_kafka.Consumer
) -> None:
    with pytest.raises(TopicsError, match=r"of group g were not committed: .*stop them first"):
        commit_offsets(broker.address, "g", {(TOPIC, 0): 1})


def test_exported_offsets_are_where_a_tenure_starts(broker: Coordinator, topics: KafkaTopics) -> None:
    append = producing(broker.address)
    for number in range(3):
        append(0, b"%d" % number)
    commit_offsets(broker.address, "g", {(TOPIC, 0): 2, (TOPIC, 1): 0})
    topics.find_start(FindStart(HELD, True, request=5))
    (found,) = wait_for(topics, StartFound)
    assert (found.request, found.low, found.end, found.committed) == (5, 0, 3, 2)


def test_a_start_that_a_broker_refuses_fails(broker: Coordinator, topics: KafkaTopics) -> None:
    broker.add_fault(Fault("error", api="ListOffsets", error="TOPIC_AUTHORIZATION_FAILED"))
    topics.find_start(FindStart(HELD, False, request=5))
    (failed,) = wait_for(topics, StartFailed)
    assert failed.request == 5
    assert "authoriz" in failed.reason.lower()


def test_a_topic_that_is_not_there_is_an_error(broker: Coordinator) -> None:
    with pytest.raises(TopicsError, match=r"shows no topic nowhere"):
        KafkaTopics(broker.address, "g", ["nowhere"])
    with pytest.raises(TopicsError, match=r"shows no topic nowhere"):
        commit_offsets(broker.address, "g", {("nowhere", 0): 1})


ORDERS = [TopicPartition("orders", partition) for partition in range(2)]


def test_offsets_of_partitions_and_of_groups(coordinator: StartCoordinator) -> None:
    broker = coordinator(topics={"orders": 2})
    producer = Producer({"bootstrap.servers": broker.address})
    for number in range(5):
        producer.produce("orders", value=b"v", partition=0, timestamp=1_000_000 + number * 1_000)
    assert producer.flush(10) == 0
    positions = KafkaPositions(broker.address)
    found = positions.topics(["orders", "none"])
    assert [(name, topic.partitions, len(topic.topic_id)) for name, topic in found.items()] == [("orders", 2, 22)]
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
    eventually(lambda: (consumer.poll(0.1), positions.live_members("g"))[1], until=lambda live: live == ["billing-1"])
    with pytest.raises(TopicsError):
        positions.commit("g", {ORDERS[0]: 3})
    consumer.close()
