"""What tests of the consumer need: settings that are in a hurry, records to read, a listener that notes."""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Place

from kcoord_wire import messages as m
from kcoord_wire.assignors import TopicPartition
from kcoord_wire.consumer import Consumer, ConsumerGroupMetadata, ConsumerRecord, ConsumerSettings, RebalanceListener
from tests.support.clients import producing

PATIENCE = 60.0
"""Seconds until a test gives up on what should have happened; no test waits for it to pass."""


def partitions(*indexes: int, topic: str = "orders") -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, index) for index in indexes)


def settings(address: str, **changes: Any) -> ConsumerSettings:
    """Settings of a consumer that reads from the beginning and beats often."""
    options: dict[str, Any] = {
        "bootstrap_servers": address,
        "group_id": "billing",
        "auto_offset_reset": "earliest",
        "heartbeat_interval_ms": 100,
        "fetch_max_wait_ms": 100,
    }
    return ConsumerSettings(**{**options, **changes})


async def produce(address: str, values: Mapping[TopicPartition, Sequence[str]]) -> None:
    """Append a batch to each partition."""
    for topic in {partition.topic for partition in values}:
        records = [(p.partition, text.encode()) for p, texts in values.items() if p.topic == topic for text in texts]
        await producing.produce(address, topic, records)


def member_settings(address: str, protocol: str, **changes: Any) -> ConsumerSettings:
    """Settings of a member by ``classic`` or ``consumer``, KIP-848, of which the coordinator decides on heartbeats."""
    if protocol == "consumer":
        changes |= {"group_protocol": protocol, "heartbeat_interval_ms": 3_000}
    return settings(address, **changes)


def heartbeat_answer(
    topic_id: uuid.UUID, epoch: int, given: Sequence[int], error: int = 0, *, silent: bool = False
) -> m.ConsumerGroupHeartbeatResponse:
    """A coordinator's answer to a member of KIP-848 that has these partitions; of which it says nothing if `silent`."""
    topics = [m.ConsumerGroupHeartbeatResponseTopicPartitions(topic_id=topic_id, partitions=list(given))]
    assignment = m.ConsumerGroupHeartbeatResponseAssignment(topic_partitions=topics if given else [])
    return m.ConsumerGroupHeartbeatResponse(
        error_code=error,
        member_epoch=epoch,
        heartbeat_interval_ms=500,
        assignment=None if silent or error else assignment,
    )


class NotingListener(RebalanceListener):
    """Notes its calls: method and partition numbers."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[int, ...]]] = []

    def _note(self, method: str, of: frozenset[TopicPartition]) -> None:
        self.calls.append((method, tuple(sorted(partition.partition for partition in of))))

    def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self._note("revoked", partitions)

    def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self._note("assigned", partitions)

    def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self._note("lost", partitions)


async def drive(holds: Callable[[], bool], *consumers: Consumer) -> list[ConsumerRecord]:
    """Poll the consumers side by side until `holds` returns True; return what they have read."""
    records: list[ConsumerRecord] = []
    async with asyncio.timeout(PATIENCE):
        while not holds():
            polls = (consumer.poll(20) for consumer in consumers)
            for some in await asyncio.gather(*polls, return_exceptions=True):  # all end, whichever fails
                if isinstance(some, BaseException):
                    raise some
                records += some
    return records


async def take(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    """Poll until there are so many records."""
    records: list[ConsumerRecord] = []
    async with asyncio.timeout(PATIENCE):
        while len(records) < count:
            records += await consumer.poll(50)
    return records


# ---- a producer that commits for the group


def _as_librdkafka_has_it(metadata: ConsumerGroupMetadata) -> bytes:
    """What confluent-kafka takes for a consumer's group metadata (`rd_kafka_consumer_group_metadata_write`)."""
    texts = (metadata.group_id, metadata.member_id, metadata.group_instance_id)
    group, name, instance = (b"" if text is None else text.encode() + b"\0" for text in texts)
    is_dynamic = bytes([metadata.group_instance_id is None])
    return b"CGMDv2:" + struct.pack("=i", metadata.generation_id) + group + name + is_dynamic + instance


def send_offset(
    address: str, metadata: ConsumerGroupMetadata, partition: TopicPartition, offset: int, seconds: int = 30
) -> None:
    """Commit an offset in a transaction of librdkafka's producer; a KafkaException says that it was refused."""
    producer = Producer({"bootstrap.servers": address, "transactional.id": f"tx-{metadata.group_id}"})
    producer.init_transactions(seconds)
    producer.begin_transaction()
    places = [Place(partition.topic, partition.partition, offset)]
    producer.send_offsets_to_transaction(places, _as_librdkafka_has_it(metadata), seconds)
    producer.commit_transaction(seconds)
