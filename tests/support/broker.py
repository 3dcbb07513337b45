"""The topics of a broker with scripted time: every answer goes through its bytes."""

from __future__ import annotations

import uuid
from typing import Any, TypeVar

import pytest

import kcoord_wire
from kcoord_wire import messages as m
from kcoord_wire.codec.registry import registry
from kcoord_wire.coordinator.core.apis import SERVED
from kcoord_wire.coordinator.core.brokers import Brokers
from kcoord_wire.coordinator.core.config import Endpoint
from kcoord_wire.coordinator.core.events import HANG_UP, Reassigned, Reply, Request, TopicsDeleted
from kcoord_wire.coordinator.topics.topics import Topics
from kcoord_wire.kernel.disk import Disk
from kcoord_wire.kernel.machines import Tick
from kcoord_wire.records import (
    Record,
    encode_batch,
    read_records,
)
from kcoord_wire.records.batch import crc32c

BROKERS = Brokers([Endpoint(3, "127.0.0.1", 9092)])


NO_ID = uuid.UUID(int=0)


OURS = (0, 1, 2, 3, 18, 19, 20, 21, 23, 27, 32, 33, 35, 37, 43, 44, 45, 46, 60, 61, 74, 75)
"""What the topics answer themselves."""


EACH = [pytest.param(key, version, id=f"{key}-v{version}") for key in OURS for version in SERVED[key]]


T = TypeVar("T")


def versions(key: int, least: int = 0) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("version", [version for version in SERVED[key] if version >= least])


class Broker:
    """Topics with a clock, and tokens that run on."""

    def __init__(self, topics: dict[str, int] | None = None, disk: Disk | None = None, **options: Any) -> None:
        self.topics = Topics(BROKERS, {"orders": 2} if topics is None else topics, cluster_id="c", **options)
        if disk is not None:
            self.topics.open(disk)
        self.now = 1_000
        self.token = 0
        self.asked: dict[int, tuple[type, int]] = {}
        self.deleted: list[str] = []

    def send(self, message: Any, version: int) -> list[Reply]:
        self.token += 1
        codec = registry.request(next(key for key in OURS if registry.request(key).cls is type(message)))
        sent = codec.decode(codec.encode(message, version), version)
        self.asked[self.token] = registry.response(codec.api_key or 0).cls, version
        return self.checked(self.topics.handle(Request(self.token, sent, version), self.now))

    def tick(self, now: int) -> list[Reply]:
        self.now = now
        return self.checked(self.topics.handle(Tick(), now))

    def due(self) -> int | None:
        return self.topics.deadline

    def checked(self, effects: list[Any]) -> list[Reply]:
        self.deleted += [
            name for effect in effects if isinstance(effect, TopicsDeleted) for name in sorted(effect.names)
        ]
        for leaders in [each for effect in effects if isinstance(effect, Reassigned) for each in effect.leaders]:
            leaders.elect()
        effects = [effect for effect in effects if not isinstance(effect, TopicsDeleted | Reassigned)]
        for effect in effects:
            assert isinstance(effect, Reply)
            assert effect.after == 0
            cls, version = self.asked.pop(effect.token)
            if effect.message not in (None, HANG_UP):
                assert type(effect.message) is cls
                kcoord_wire.encode_response(effect.message, version)
                effect.message = registry[cls.__name__].decode(kcoord_wire.encode(effect.message, version), version)
        return effects

    def ask(self, message: Any, version: int, _: type[T] | None = None) -> T:
        (reply,) = self.send(message, version)
        assert reply.token == self.token
        response: T = reply.message
        return response

    # ---- shorter ways to say what tests say most

    def produce(
        self, data: bytes | None, version: int = 9, partition: int = 0, topic: str = "orders", **options: Any
    ) -> m.ProduceResponsePartitionProduceResponse:
        request = self.produce_request(data, version, partition, topic, **options)
        response = self.ask(request, version, m.ProduceResponse)
        return response.responses[0].partition_responses[0]

    def produce_request(
        self, data: bytes | None, version: int, partition: int = 0, topic: str = "orders", **options: Any
    ) -> m.ProduceRequest:
        parts = [m.ProduceRequestPartitionProduceData(index=partition, records=data)]
        named = m.ProduceRequestTopicProduceData(**self.naming("name", topic, version, 13), partition_data=parts)
        return m.ProduceRequest(**{"acks": -1, "timeout_ms": 1_000, **options}, topic_data=[named])

    def fetch_request(self, offset: int, version: int, topic: str = "orders", **options: Any) -> m.FetchRequest:
        part = m.FetchRequestFetchPartition(fetch_offset=offset, partition_max_bytes=1 << 20)
        part.partition = options.pop("partition", 0)
        part.current_leader_epoch = options.pop("current_leader_epoch", -1)
        named = m.FetchRequestFetchTopic(**self.naming("topic", topic, version, 13), partitions=[part])
        merged: dict[str, Any] = {"max_wait_ms": 500, "min_bytes": 1, **options}
        return m.FetchRequest(**merged, topics=[named])

    def fetch(self, offset: int, version: int = 11, **options: Any) -> m.FetchResponsePartitionData:
        request = self.fetch_request(offset, version, **{"max_wait_ms": 0, **options})
        return self.ask(request, version, m.FetchResponse).responses[0].partitions[0]

    def list_offset(
        self, timestamp: int, version: int = 7, **options: Any
    ) -> m.ListOffsetsResponseListOffsetsPartitionResponse:
        part = m.ListOffsetsRequestListOffsetsPartition(**{"timestamp": timestamp, **options})
        named = m.ListOffsetsRequestListOffsetsTopic(name="orders", partitions=[part])
        request = m.ListOffsetsRequest(replica_id=-1, topics=[named])
        return self.ask(request, version, m.ListOffsetsResponse).topics[0].partitions[0]

    def epoch_end(self, epoch: int, version: int = 4, **options: Any) -> m.OffsetForLeaderEpochResponseEpochEndOffset:
        part = m.OffsetForLeaderEpochRequestOffsetForLeaderPartition(leader_epoch=epoch, **options)
        named = m.OffsetForLeaderEpochRequestOffsetForLeaderTopic(topic="orders", partitions=[part])
        request = m.OffsetForLeaderEpochRequest(topics=[named])
        return self.ask(request, version, m.OffsetForLeaderEpochResponse).topics[0].partitions[0]

    def metadata(self, version: int, *names: str | None, **options: Any) -> m.MetadataResponse:
        topics = [m.MetadataRequestTopic(name=name) for name in names]
        return self.ask(m.MetadataRequest(topics=topics, **options), version, m.MetadataResponse)

    def naming(self, name: str, topic: str, version: int, ids_from: int) -> dict[str, Any]:
        if version < ids_from:
            return {name: topic}
        return {"topic_id": self.topics.id_of(topic) or uuid.UUID(int=1)}


def batch(*values: bytes, at: int = 100, key: bytes | None = None, **options: Any) -> bytes:
    return encode_batch([Record(key, value, timestamp=at + n) for n, value in enumerate(values)], **options)


def values(data: bytes | None) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for read in read_records(data or b"") for record in read.records]


def changed(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def resealed(data: bytes, at: int, new: bytes) -> bytes:
    """`data` changed, with the checksum that belongs to it."""
    data = changed(data, at, new)
    return changed(data, 17, crc32c(data[21:]).to_bytes(4, "big"))


def sequenced(sequence: int, epoch: int = 0, count: int = 2, producer_id: int = 5, **options: Any) -> bytes:
    return batch(*[b"v"] * count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **options)


GOOD = batch(b"a", b"b")
