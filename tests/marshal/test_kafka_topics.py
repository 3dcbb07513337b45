"""What becomes of commits and questions that brokers refuse. The contract is in test_topics_contract.py."""

from __future__ import annotations

from collections.abc import Iterator

import confluent_kafka
import pytest

from kcoord_wire.coordinator import Coordinator, Fault
from kcoord_wire.kernel.machines import LogEvent
from kcoord_wire.marshal.events import FindStart, StartFailed, StartFound, Tenure
from kcoord_wire.marshal.inbox import TopicsError
from kcoord_wire.marshal.kafka_topics import KafkaTopics, commit_offsets
from tests.support.fixtures import StartCoordinator
from tests.support.topics_contract import TOPIC, producing, wait_for

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
    topics.find_start(FindStart(HELD, 0, request=5))
    assert wait_for(topics, StartFound) == [StartFound(5, 2)]


def test_a_start_that_a_broker_refuses_fails(broker: Coordinator, topics: KafkaTopics) -> None:
    broker.add_fault(Fault("error", api="ListOffsets", error="TOPIC_AUTHORIZATION_FAILED"))
    topics.find_start(FindStart(HELD, 3, request=5))
    (failed,) = wait_for(topics, StartFailed)
    assert failed.request == 5
    assert "authoriz" in failed.reason.lower()


def test_a_topic_that_is_not_there_is_an_error(broker: Coordinator) -> None:
    with pytest.raises(TopicsError, match=r"shows no topic nowhere"):
        KafkaTopics(broker.address, "g", ["nowhere"])
    with pytest.raises(TopicsError, match=r"shows no topic nowhere"):
        commit_offsets(broker.address, "g", {("nowhere", 0): 1})
