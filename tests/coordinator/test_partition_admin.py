"""DeleteRecords, DescribeProducers and DescribeLogDirs."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord_wire import messages as m
from kcoord_wire.protocol.error_codes import ErrorCode as E
from tests.support.broker import GOOD, Broker, sequenced, values, versions


def delete(broker: Broker, offset: int, version: int = 2, topic: str = "orders", partition: int = 0) -> tuple[int, int]:
    """Delete records, and return the error and the low watermark."""
    wanted = m.DeleteRecordsRequestDeleteRecordsPartition(partition_index=partition, offset=offset)
    part = m.DeleteRecordsRequestDeleteRecordsTopic(name=topic, partitions=[wanted])
    response = broker.ask(m.DeleteRecordsRequest(topics=[part]), version, m.DeleteRecordsResponse)
    (answer,) = response.topics[0].partitions
    return answer.error_code, answer.low_watermark


@versions(21)
def test_records_are_deleted_up_to_an_offset(broker: Broker, version: int) -> None:
    for _ in range(3):
        broker.produce(GOOD)
    assert delete(broker, 3, version) == (0, 3)
    assert broker.fetch(0).error_code == E.OFFSET_OUT_OF_RANGE
    assert broker.list_offset(-2).offset == 3
    assert [offset for offset, _ in values(broker.fetch(3).records) if offset >= 3] == [3, 4, 5]
    assert delete(broker, 1, version) == (0, 3)
    assert delete(broker, -1, version) == (0, 6)
    assert (broker.list_offset(-2).offset, broker.list_offset(-1).offset) == (6, 6)
    assert broker.produce(GOOD).base_offset == 6


@pytest.mark.parametrize(
    ("offset", "topic", "partition", "error"),
    [
        (3, "orders", 0, E.OFFSET_OUT_OF_RANGE),
        (-2, "orders", 0, E.OFFSET_OUT_OF_RANGE),
        (0, "nope", 0, E.UNKNOWN_TOPIC_OR_PARTITION),
        (0, "orders", 9, E.UNKNOWN_TOPIC_OR_PARTITION),
        (0, "compacted", 0, E.POLICY_VIOLATION),
    ],
)
def test_what_is_not_deleted(broker: Broker, offset: int, topic: str, partition: int, error: E) -> None:
    broker.topics.create("compacted", 1, {"cleanup.policy": "compact"})
    broker.produce(GOOD)
    assert delete(broker, offset, topic=topic, partition=partition) == (error, -1)
    assert broker.list_offset(-2).offset == 0


def producers(broker: Broker, topic: str, *partitions: int) -> list[Any]:
    part = m.DescribeProducersRequestTopicRequest(name=topic, partition_indexes=list(partitions))
    response = broker.ask(m.DescribeProducersRequest(topics=[part]), 0, m.DescribeProducersResponse)
    return list(response.topics[0].partitions)


def test_producers_are_described(broker: Broker) -> None:
    broker.produce(sequenced(0))
    broker.produce(sequenced(2))
    broker.produce(sequenced(0, producer_id=6, epoch=1))
    broker.produce(GOOD)
    known, none, unknown = producers(broker, "orders", 0, 1, 9)
    assert [(p.producer_id, p.producer_epoch, p.last_sequence, p.last_timestamp) for p in known.active_producers] == [
        (5, 0, 3, 101),
        (6, 1, 1, 101),
    ]
    assert {p.current_txn_start_offset for p in known.active_producers} == {-1}
    assert (none.error_code, none.active_producers) == (0, [])
    assert unknown.error_code == E.UNKNOWN_TOPIC_OR_PARTITION
    assert [p.error_code for p in producers(broker, "nope", 0)] == [E.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_partition_that_is_named_often_is_described_once(broker: Broker) -> None:
    broker.produce(sequenced(0))
    part = m.DescribeProducersRequestTopicRequest(name="orders", partition_indexes=[0, 1, 0, 0])
    response = broker.ask(m.DescribeProducersRequest(topics=[part, part]), 0, m.DescribeProducersResponse)
    (topic,) = response.topics
    assert [(p.partition_index, len(p.active_producers)) for p in topic.partitions] == [(0, 1), (1, 0)]


@versions(35)
def test_sizes_of_partitions(broker: Broker, version: int) -> None:
    broker.produce(GOOD)

    def sizes(topics: Any) -> dict[str, list[tuple[int, int]]]:
        response = broker.ask(m.DescribeLogDirsRequest(topics=topics), version, m.DescribeLogDirsResponse)
        (folder,) = response.results
        return {
            topic.name: [(p.partition_index, p.partition_size) for p in topic.partitions] for topic in folder.topics
        }

    part = m.DescribeLogDirsRequestDescribableLogDirTopic
    assert sizes(None) == {"orders": [(0, len(GOOD)), (1, 0)]}
    assert sizes([part(topic="orders", partitions=[1, 9]), part(topic="nope", partitions=[0])]) == {"orders": [(1, 0)]}
    assert sizes([]) == {}
