"""The laws of `marshal.inbox.DataTopics`, in memory and in topics of our coordinator; the broker in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from kcoord_wire.marshal.kafka_topics import KafkaTopics
from kcoord_wire.marshal.memory import MemoryBroker, MemoryTopics, StoredRecord
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
            lambda count: (broker.delete(TOPIC), broker.create(TOPIC, count))[1],
            lambda partition: broker.skip(TOPIC, partition),
        ) as cluster:
            yield cluster


class TestKafkaTopicsOnOurCoordinator(DataTopicsContract):
    @pytest.fixture
    def cluster(self, coordinator: StartCoordinator) -> Iterator[TopicCluster]:
        broker = coordinator(topics={TOPIC: 2})

        def grow(count: int) -> None:
            broker.add_partitions(TOPIC, count - 2)

        def recreate(count: int) -> None:
            broker.delete_topic(TOPIC)
            broker.create_topic(TOPIC, count)

        def topics(group_id: str) -> KafkaTopics:
            return KafkaTopics(broker.address, group_id, [TOPIC], refresh_s=0.1)

        with TopicCluster(topics, producing(broker.address), grow, recreate) as cluster:
            yield cluster


def test_records_have_the_time_of_the_brokers_clock() -> None:
    times = iter([1_000, 999])
    broker = MemoryBroker(clock=lambda: next(times))
    broker.create("t", 1)
    broker.append("t", 0, b"a", b"k")
    broker.append("t", 0, None)
    assert broker.read("t", 0, 0, 10).records == [StoredRecord(0, 1_000, b"k", b"a"), StoredRecord(1, 999, None, None)]


def test_a_read_returns_as_many_records_as_it_may() -> None:
    broker = MemoryBroker()
    broker.create("t", 1)
    for number in range(5):
        broker.append("t", 0, b"%d" % number)
    broker.skip("t", 0, 2)
    broker.trim("t", 0, 1)
    part, rest = broker.read("t", 0, 0, 3), broker.read("t", 0, 4, 3)
    assert ([record.offset for record in part.records], part.next_offset) == ([1, 2, 3], 4)
    assert ([record.offset for record in rest.records], rest.next_offset, rest.low, rest.end) == ([4], 7, 1, 7)


def test_a_partition_that_is_not_there_is_a_key_error() -> None:
    broker = MemoryBroker()
    broker.create("t", 1)
    for partition in (-1, 1):
        with pytest.raises(KeyError, match="t-"):
            broker.append("t", partition, b"")
    broker.delete("t")
    assert broker.partitions("t") == 0


def test_a_waiting_reader_is_woken_by_an_append() -> None:
    broker = MemoryBroker()
    broker.create("t", 1)
    woken = threading.Event()

    def wait() -> None:
        broker.wait_for_records({("t", 0): 0}, 60)
        woken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not woken.wait(0.02)
    broker.append("t", 0, b"x")
    assert woken.wait(30)
    thread.join(30)


def test_appends_of_several_threads_have_offsets_of_their_own() -> None:
    broker = MemoryBroker()
    broker.create("t", 1)
    offsets: list[int] = []
    threads = [
        threading.Thread(target=lambda: offsets.extend(broker.append("t", 0, b"x") for _ in range(200)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(offsets) == list(range(800))
