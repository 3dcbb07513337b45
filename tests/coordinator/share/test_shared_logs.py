"""Share groups on real logs: aborted transactions, deleted records and topics, a restart on the same files."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kcoord_wire import messages as m
from kcoord_wire.coordinator import Coordinator
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.records import read_records
from tests.support.wire import Wire

GROUP = 32  # as a resource with configs


class Reader:
    """A member that fetches from the topic ``orders``, and accepts all of it with the next fetch."""

    def __init__(self, wire: Wire, **configs: str) -> None:
        self.wire = wire
        self.epoch = 0
        (topic,) = wire.call(m.MetadataRequest(topics=[m.MetadataRequestTopic(name="orders")]), 12).topics
        self.topic_id: uuid.UUID = topic.topic_id
        configs = {"share.auto.offset.reset": "earliest"} | configs
        altered = [
            m.IncrementalAlterConfigsRequestAlterableConfig(name=name, value=value) for name, value in configs.items()
        ]
        resource = m.IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=GROUP, resource_name="g", configs=altered
        )
        answer = wire.call(m.IncrementalAlterConfigsRequest(resources=[resource]), 1)
        assert answer.responses[0].error_code == 0

    def fetch(self, *accepted: tuple[int, int]) -> m.ShareFetchResponsePartitionData | None:
        batches = [
            m.ShareFetchRequestAcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=[1])
            for first, last in accepted
        ]
        part = m.ShareFetchRequestFetchPartition(partition_index=0, acknowledgement_batches=batches)
        request = m.ShareFetchRequest(
            group_id="g",
            member_id="m",
            share_session_epoch=self.epoch,
            max_bytes=1 << 20,
            max_records=500,
            batch_size=500,
            topics=[m.ShareFetchRequestFetchTopic(topic_id=self.topic_id, partitions=[part])],
        )
        answer = self.wire.call(request, 2)
        assert answer.error_code == 0
        self.epoch += 1
        return answer.responses[0].partitions[0] if answer.responses else None

    def values(self) -> list[bytes]:
        """Fetch, and return what was acquired."""
        found = self.fetch()
        if found is None:
            return []
        ranges = [range(each.first_offset, each.last_offset + 1) for each in found.acquired_records]
        records = [record for batch in read_records(found.records) if not batch.is_control for record in batch.records]
        return [record.value or b"" for record in records if any(record.offset in each for each in ranges)]


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    with Coordinator(topics={"orders": 1}, data_dir=tmp_path) as running:
        yield running


def write(address: str, *values: bytes, commit: bool | None = None) -> None:
    """Produce records in a transaction that is committed or aborted, or in none."""
    producer = Producer({"bootstrap.servers": address} | ({} if commit is None else {"transactional.id": "t"}))
    if commit is not None:
        producer.init_transactions(60)
        producer.begin_transaction()
    for value in values:
        producer.produce("orders", value, partition=0)
    assert producer.flush(60) == 0
    if commit is not None:
        (producer.commit_transaction if commit else producer.abort_transaction)(60)


@pytest.mark.parametrize(
    ("level", "expected"),
    [("read_committed", [b"plain", b"good", b"last"]), ("read_uncommitted", [b"plain", b"bad", b"good", b"last"])],
)
def test_aborted_records_are_left_out(coordinator: Coordinator, level: str, expected: list[bytes]) -> None:
    write(coordinator.address, b"plain")
    write(coordinator.address, b"bad", commit=False)
    write(coordinator.address, b"good", commit=True)
    write(coordinator.address, b"last")
    with Wire(coordinator.address) as wire:
        assert Reader(wire, **{"share.isolation.level": level}).values() == expected


def test_records_and_topics_that_are_deleted(coordinator: Coordinator) -> None:
    for value in (b"1", b"2", b"3"):
        write(coordinator.address, value)
    with Wire(coordinator.address) as wire:
        part = m.DeleteRecordsRequestDeleteRecordsPartition(partition_index=0, offset=1)
        topic = m.DeleteRecordsRequestDeleteRecordsTopic(name="orders", partitions=[part])
        reader = Reader(wire)
        assert wire.call(m.DeleteRecordsRequest(topics=[topic], timeout_ms=1_000), 1).topics[0].name == "orders"
        assert reader.values() == [b"2", b"3"]
        coordinator.delete_topic("orders")
        found = reader.fetch((1, 1))
        assert found is not None
        assert (found.error_code, found.acknowledge_error_code) == (ErrorCode.UNKNOWN_TOPIC_ID,) * 2


def test_accepted_records_do_not_come_after_a_restart(tmp_path: Path) -> None:
    with Coordinator(topics={"orders": 1}, data_dir=tmp_path) as coordinator, Wire(coordinator.address) as wire:
        write(coordinator.address, *[b"%d" % number for number in range(10)])
        reader = Reader(wire)
        assert len(reader.values()) == 10
        for number in range(0, 10, 2):
            assert reader.fetch((number, number)) is not None
    with Coordinator(topics={"orders": 1}, data_dir=tmp_path) as coordinator, Wire(coordinator.address) as wire:
        assert Reader(wire).values() == [b"%d" % number for number in range(1, 10, 2)]
