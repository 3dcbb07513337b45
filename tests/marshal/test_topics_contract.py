"""The laws of `marshal.inbox.DataTopics`: in memory, and in topics of our coordinator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kcoord_wire.marshal.kafka_topics import KafkaTopics
from kcoord_wire.marshal.memory import MemoryBroker, MemoryTopics
from tests.support.fixtures import StartCoordinator
from tests.support.topics_contract import TOPIC, DataGapContract, DataTopicsContract, TopicCluster, producing


class TestMemoryTopics(DataTopicsContract, DataGapContract):
    @pytest.fixture
    def cluster(self) -> Iterator[TopicCluster]:
        broker = MemoryBroker()
        broker.create(TOPIC, 2)
        with TopicCluster(
            lambda group_id: MemoryTopics(broker, group_id, [TOPIC]),
            lambda partition, value: broker.append(TOPIC, partition, value),
            lambda count: broker.create(TOPIC, count),
            lambda partition: broker.skip(TOPIC, partition),
        ) as cluster:
            yield cluster


class TestKafkaTopicsOnOurCoordinator(DataTopicsContract):
    @pytest.fixture
    def cluster(self, coordinator: StartCoordinator) -> Iterator[TopicCluster]:
        broker = coordinator(topics={TOPIC: 2})

        def grow(count: int) -> None:
            broker.add_partitions(TOPIC, count - 2)

        def topics(group_id: str) -> KafkaTopics:
            return KafkaTopics(broker.address, group_id, [TOPIC], refresh_s=0.1)

        with TopicCluster(topics, producing(broker.address), grow) as cluster:
            yield cluster
