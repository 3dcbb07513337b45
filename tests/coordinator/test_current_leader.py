"""The leader's name and address beside NOT_LEADER_OR_FOLLOWER."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.brokers import Brokers
from kcoord_wire.coordinator.core.config import Endpoint
from kcoord_wire.coordinator.core.events import Reply, Request
from kcoord_wire.coordinator.topics.topics import Topics
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.broker import GOOD

ENDPOINTS = [Endpoint(node_id, "localhost", 9092 + node_id) for node_id in range(2)]


def answer(message: Any, version: int, topics: Topics, broker: int) -> Any:
    effects = topics.handle(Request(1, message, version, broker=broker), 1_000)
    (reply,) = (effect for effect in effects if isinstance(effect, Reply))
    return reply.message


@pytest.mark.parametrize(("version", "is_named"), [(9, False), (10, True), (13, True)])
def test_produce_names_the_leader(version: int, is_named: bool) -> None:
    topics = Topics(Brokers(ENDPOINTS), {"orders": 1}, cluster_id="c")
    topic = topics.catalog.named("orders")
    assert topic is not None
    leader = topic.leaders.of[0]
    data = [m.ProduceRequestPartitionProduceData(index=0, records=GOOD)]
    part = m.ProduceRequestTopicProduceData(name="orders", topic_id=topic.id, partition_data=data)
    request = m.ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=[part])
    response = answer(request, version, topics, 1 - leader)
    (outcome,) = response.responses[0].partition_responses
    assert outcome.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert outcome.current_leader.leader_id == (leader if is_named else -1)
    assert [node.node_id for node in response.node_endpoints] == ([leader] if is_named else [])
    assert answer(request, version, topics, leader).node_endpoints == []


@pytest.mark.parametrize(("version", "is_named"), [(15, False), (16, True), (18, True)])
def test_fetch_names_the_leader(version: int, is_named: bool) -> None:
    topics = Topics(Brokers(ENDPOINTS), {"orders": 1}, cluster_id="c")
    topic = topics.catalog.named("orders")
    assert topic is not None
    leader = topic.leaders.of[0]
    wanted = m.FetchRequestFetchPartition(partition_max_bytes=1 << 20)
    part = m.FetchRequestFetchTopic(topic="orders", topic_id=topic.id, partitions=[wanted])
    response = answer(m.FetchRequest(max_wait_ms=0, topics=[part]), version, topics, 1 - leader)
    (found,) = response.responses[0].partitions
    assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (found.current_leader.leader_id, found.current_leader.leader_epoch) == (
        (leader, 0) if is_named else (-1, -1)
    )
    assert [node.port for node in response.node_endpoints] == ([9092 + leader] if is_named else [])
