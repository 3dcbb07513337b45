"""The internal topics of the coordinator, read by Kafka's console consumer and by librdkafka."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

import kcoord_wire as kw
from kcoord_wire.coordinator import Coordinator
from kcoord_wire.coordinator import coordinator as module
from kcoord_wire.coordinator.log.store import Store
from kcoord_wire.forensics.sources.live import read_topic
from kcoord_wire.protocol.key_partitions import partition_of, share_state_key
from kcoord_wire.records import decode_offsets_record
from tests.support.group_client import commit
from tests.support.kafka_broker import KAFKA, class_path, run_java
from tests.support.wire import Wire

TOPIC = "__consumer_offsets"


def printed_records(address: str, topic: str, key: str, count: int, formatter: str, version: str = KAFKA) -> list[Any]:
    """The first records of the partition of a key, as one of Kafka's formatters prints them."""
    text = run_java(
        class_path("kafka-tools", version),
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", address, "--topic", topic, "--partition", str(partition_of(key, 50))),
        *("--offset", "earliest", "--max-messages", str(count), "--timeout-ms", "120000"),
        *("--formatter", f"org.apache.kafka.tools.consumer.{formatter}"),
    )
    decoder, at = json.JSONDecoder(), 0
    records = []
    while at < len(text.rstrip()):
        record, at = decoder.raw_decode(text, at)
        records.append(record)
    return records


def printed(address: str, group: str, count: int) -> list[int]:
    """The committed offsets of a group's partition, as Kafka's formatter prints its first records."""
    records = printed_records(address, TOPIC, group, count, "OffsetsMessageFormatter")
    assert {record["key"]["data"]["group"] for record in records} == {group}
    return [record["value"]["data"]["offset"] for record in records]


def read(address: str, group: str) -> list[int]:
    """The same of our reader of live clusters, which is librdkafka; it reads all partitions to their ends."""
    rows = [row for batch in read_topic(address) for row in batch.to_pylist()]
    records = [decode_offsets_record(row["key"], row["value"]) for row in rows]
    return [record.value.offset for record in records if record.key.group == group and record.value is not None]


@pytest.mark.parametrize("brokers", [1, 3])
def test_kafkas_tool_and_librdkafka_read_commits(brokers: int) -> None:
    with Coordinator(topics={"orders": 1}, brokers=brokers) as c:
        with Wire(c.addresses[c.coordinator_of("g")]) as wire:
            wire.call(kw.FindCoordinatorRequest(coordinator_keys=["g"]), 4)
            assert [commit(wire, "g", offset) for offset in (3, 5)] == [0, 0]
        assert printed(c.address, "g", 2) == read(c.address, "g") == [3, 5]


def test_readers_pass_what_compaction_has_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All records of a group are gone, an empty batch covers their offsets, and another record follows."""
    monkeypatch.setattr(module, "Store", partial(Store, min_compaction_bytes=4_096))
    with Coordinator(topics={"orders": 1}, data_dir=tmp_path) as c, Wire(c.address) as wire:
        assert commit(wire, "gone", 1) == 0
        deleted = wire.call(kw.DeleteGroupsRequest(groups_names=["gone"]), 2)
        assert deleted.results[0].error_code == 0
        assert {commit(wire, "busy", offset) for offset in range(300)} == {0}
    with Coordinator(topics={"orders": 1}, data_dir=tmp_path) as c, Wire(c.address) as wire:
        assert read(c.address, "gone") == []
        assert commit(wire, "gone", 2) == 0
        assert printed(c.address, "gone", 1) == read(c.address, "gone") == [2]


def test_kafkas_tool_reads_transactional_ids() -> None:
    with Coordinator(topics={"orders": 1}) as c:
        producer = Producer({"bootstrap.servers": c.address, "transactional.id": "billing"})
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce("orders", b"1")
        producer.commit_transaction(60)
        records = printed_records(c.address, "__transaction_state", "billing", 3, "TransactionLogMessageFormatter")
    assert {record["key"]["data"]["transactionalId"] for record in records} == {"billing"}
    assert [record["value"]["data"]["transactionStatus"] for record in records] == [0, 1, 2]  # Empty, Ongoing, Prepare
    assert records[1]["value"]["data"]["transactionPartitions"] == [{"topic": "orders", "partitionIds": [0]}]


def test_kafkas_tool_reads_states_of_share_groups() -> None:
    with Coordinator(topics={"orders": 1}) as c, Wire(c.address) as wire:
        (topic,) = wire.call(kw.MetadataRequest(topics=None), 12).topics
        part = kw.InitializeShareGroupStateRequestPartitionData(partition=0, state_epoch=1, start_offset=5)
        named = kw.InitializeShareGroupStateRequestInitializeStateData(topic_id=topic.topic_id, partitions=[part])
        wire.call(kw.InitializeShareGroupStateRequest(group_id="g", topics=[named]), 0)
        batch = kw.WriteShareGroupStateRequestStateBatch(
            first_offset=6, last_offset=9, delivery_state=2, delivery_count=1
        )
        change = kw.WriteShareGroupStateRequestPartitionData(
            partition=0, state_epoch=1, start_offset=-1, state_batches=[batch]
        )
        changed = kw.WriteShareGroupStateRequestWriteStateData(topic_id=topic.topic_id, partitions=[change])
        wire.call(kw.WriteShareGroupStateRequest(group_id="g", topics=[changed]), 0)
        key = share_state_key("g", topic.topic_id, 0)
        formatter = "group.share.ShareGroupStateMessageFormatter"
        records = printed_records(c.address, "__share_group_state", key, 2, formatter, "4.4.0")
    assert {record["key"]["data"]["groupId"] for record in records} == {"g"}
    states = [record["value"]["data"] for record in records]
    assert [(state["startOffset"], state["deliveryCompleteCount"]) for state in states] == [(5, 0), (5, 4)]
    assert states[1]["stateBatches"] == [{"firstOffset": 6, "lastOffset": 9, "deliveryState": 2, "deliveryCount": 1}]
