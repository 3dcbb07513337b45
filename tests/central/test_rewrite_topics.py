"""Topics of a broker of the rewrite: what ZooKeeper has of them, and their records."""

from __future__ import annotations

import pytest

from kcoord_wire import messages as m
from kcoord_wire.central.rewrite.events import RewriteError
from kcoord_wire.central.rewrite.layout import parse_topic
from kcoord_wire.central.served_topics import LARGEST_REWRITE_FETCH, RecordClock, RewriteTopics
from kcoord_wire.records import read_records
from kcoord_wire.zookeeper.layout import topic_path
from kcoord_wire.zookeeper.memory import MemoryLink, MemoryZooKeeper
from kcoord_wire.zookeeper.model import Ask, RegistryEvent

CLOCK = RecordClock(1_000, 10.0)


def announced(zookeeper: MemoryZooKeeper, broker_id: int, topics: dict[str, int]) -> RewriteTopics:
    """Return the topics of a broker, after it has announced them."""
    machine = RewriteTopics(broker_id, topics, CLOCK)

    def deliver(event: RegistryEvent) -> None:
        for effect in machine.handle(event, 0):
            if isinstance(effect, Ask):
                link.ask(effect)

    link = MemoryLink(zookeeper, deliver)
    for _ in range(100):
        link.advance(0)
    return machine


def replicas(zookeeper: MemoryZooKeeper) -> list[list[int]]:
    node = zookeeper.node(topic_path("orders"))
    assert node is not None
    return parse_topic(node.data)


def fetch(
    topics: RewriteTopics, offset: int, now_ms: int, most: int = 1 << 20, number: int = 0
) -> tuple[int, list[str]]:
    """Return the error and the records of orders."""
    wanted = m.FetchRequestFetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=most)
    request = m.FetchRequest(topics=[m.FetchRequestFetchTopic(topic="orders", partitions=[wanted])])
    [[answer]] = [topic.partitions for topic in topics.fetch(request, now_ms).responses]
    batches = list(read_records(answer.records)) if answer.records else []
    return answer.error_code, [(record.value or b"").decode() for batch in batches for record in batch.records]


def test_every_broker_adds_itself_to_the_replicas() -> None:
    zookeeper = MemoryZooKeeper()
    assert announced(zookeeper, 1, {"orders": 2}).announced == {"orders": 2}
    assert replicas(zookeeper) == [[1], [1]]
    announced(zookeeper, 2, {"orders": 2})
    announced(zookeeper, 2, {"orders": 2})
    assert replicas(zookeeper) == [[1, 2], [1, 2]]


def test_partitions_are_added_and_never_removed() -> None:
    zookeeper = MemoryZooKeeper()
    announced(zookeeper, 1, {"orders": 1})
    announced(zookeeper, 1, {"orders": 3})
    assert announced(zookeeper, 1, {"orders": 2}).announced == {"orders": 3}
    assert replicas(zookeeper) == [[1]] * 3


def test_records_are_the_same_at_every_broker() -> None:
    zookeeper = MemoryZooKeeper()
    brokers = [announced(zookeeper, number, {"orders": 2}) for number in (1, 2)]
    expected = (0, ["orders-1@3", "orders-1@4"])
    assert [fetch(broker, 3, 1_500, number=1) for broker in brokers] == [expected, expected]
    assert fetch(brokers[0], 5, 1_500) == (0, [])


@pytest.mark.parametrize(
    ("offset", "number", "error"),
    [
        (-1, 0, RewriteError.OFFSET_OUT_OF_RANGE),
        (6, 0, RewriteError.OFFSET_OUT_OF_RANGE),
        (0, 2, RewriteError.UNKNOWN_TOPIC_OR_PARTITION),
        (0, -1, RewriteError.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_what_is_not_there_is_an_error(offset: int, number: int, error: RewriteError) -> None:
    topics = announced(MemoryZooKeeper(), 1, {"orders": 2})
    assert fetch(topics, offset, 1_500, number=number) == (error, [])


def test_an_answer_is_bounded_whatever_is_asked_for() -> None:
    topics = announced(MemoryZooKeeper(), 1, {"orders": 1})
    wanted = m.FetchRequestFetchPartition(partition=0, partition_max_bytes=1 << 30)
    request = m.FetchRequest(topics=[m.FetchRequestFetchTopic(topic="orders", partitions=[wanted] * 3)])
    response = topics.fetch(request, 100_000_000)
    sizes = [len(answer.records or b"") for topic in response.responses for answer in topic.partitions]
    assert LARGEST_REWRITE_FETCH - 200 < sum(sizes) <= LARGEST_REWRITE_FETCH
    assert fetch(topics, 0, 1_500, most=40) == (0, ["orders-0@0"])
