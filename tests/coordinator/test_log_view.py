"""``__consumer_offsets`` and ``__transaction_state`` as clients see them, on a socket."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

import kcoord_wire as kw
from kcoord_wire.coordinator import coordinator as module
from kcoord_wire.coordinator.coordinator import Coordinator
from kcoord_wire.coordinator.log.store import Store
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.protocol.key_partitions import partition_of
from kcoord_wire.records import Record, decode_transaction_record, encode_batch, read_offsets, read_records
from tests.support.fixtures import StartCoordinator
from tests.support.group_client import commit
from tests.support.wire import Wire

TOPIC = "__consumer_offsets"
TRANSACTIONS = "__transaction_state"
OF_G = partition_of("g", 50)


def fetch_request(offset: int, *, wait_ms: int = 0) -> kw.FetchRequest:
    part = kw.FetchRequestFetchPartition(partition=OF_G, fetch_offset=offset, partition_max_bytes=1 << 20)
    return kw.FetchRequest(
        max_wait_ms=wait_ms, min_bytes=1, topics=[kw.FetchRequestFetchTopic(topic=TOPIC, partitions=[part])]
    )


def committed(data: bytes | None) -> list[tuple[int, str, int]]:
    """Offset in the log, group and committed offset of each record."""
    entries = read_offsets(read_records(data or b""))
    return [
        (entry.record.offset, entry.content.key.group, entry.content.value.offset)  # type: ignore[union-attr]  # no markers
        for entry in entries
    ]


def fetch(wire: Wire, offset: int = 0) -> list[tuple[int, str, int]]:
    answer = wire.call(fetch_request(offset), 11).responses[0].partitions[0]
    assert answer.error_code == 0
    return committed(answer.records)


def end_of(wire: Wire) -> int:
    part = kw.ListOffsetsRequestListOffsetsPartition(partition_index=OF_G, timestamp=-1)
    asked = kw.ListOffsetsRequestListOffsetsTopic(name=TOPIC, partitions=[part])
    answer = wire.call(kw.ListOffsetsRequest(topics=[asked]), 7).topics[0].partitions[0]
    assert answer.error_code == 0
    end: int = answer.offset
    return end


@pytest.fixture(params=["memory", "disk"])
def serving(request: pytest.FixtureRequest, coordinator: StartCoordinator, tmp_path: Path) -> Coordinator:
    return coordinator(data_dir=tmp_path if request.param == "disk" else None)


def test_it_is_listed_as_internal_and_can_be_read(serving: Coordinator) -> None:
    with Wire(serving.address) as wire:
        every = kw.MetadataRequest(topics=None)
        assert [topic.name for topic in wire.call(every, 9).topics] == ["orders"]
        wire.call(kw.FindCoordinatorRequest(coordinator_keys=["g"]), 4)  # which makes Kafka create it
        topics = wire.call(every, 9).topics
        assert {topic.name: (topic.is_internal, len(topic.partitions)) for topic in topics} == {
            "orders": (False, 12),
            TOPIC: (True, 50),
        }
        assert commit(wire, "g", 3) == 0
        assert commit(wire, "another", 4) == 0
        assert commit(wire, "g", 5) == 0
        assert fetch(wire) == [(0, "g", 3), (2, "g", 5)]
        assert fetch(wire, 1) == [(2, "g", 5)]
        assert end_of(wire) == 3


def test_a_parked_fetch_is_answered_by_the_next_commit(serving: Coordinator) -> None:
    with Wire(serving.address) as reader, Wire(serving.address) as member:
        assert end_of(reader) == 0
        asked = reader.send(fetch_request(0, wait_ms=60_000), 11)
        assert commit(member, "another", 1) == 0
        assert commit(member, "g", 2) == 0
        answer = reader.receive(asked).responses[0].partitions[0]
        assert committed(answer.records) == [(1, "g", 2)]


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_clients_cannot_write_grow_or_delete_it(name: str, coordinator: StartCoordinator) -> None:
    c = coordinator(auto_create_partitions=1)
    data = encode_batch([Record(b"k", b"v")])
    with Wire(c.address) as wire:
        parts = [kw.ProduceRequestPartitionProduceData(index=0, records=data)]
        named = kw.ProduceRequestTopicProduceData(name=name, partition_data=parts)
        produced = wire.call(kw.ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=[named]), 9)
        assert produced.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        deleted = wire.call(kw.DeleteTopicsRequest(topic_names=[name], timeout_ms=1_000), 5)
        assert deleted.responses[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        created = wire.call(
            kw.CreateTopicsRequest(
                topics=[kw.CreateTopicsRequestCreatableTopic(name=name, num_partitions=1, replication_factor=1)]
            ),
            7,
        )
        assert created.topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        grown = wire.call(
            kw.CreatePartitionsRequest(
                topics=[kw.CreatePartitionsRequestCreatePartitionsTopic(name=name, count=51)], timeout_ms=1_000
            ),
            3,
        )
        assert grown.results[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        asked = kw.MetadataRequest(topics=[kw.MetadataRequestTopic(name=name)], allow_auto_topic_creation=True)
        assert len(wire.call(asked, 9).topics[0].partitions) == 50
    with pytest.raises(ValueError, match="exists already"):
        c.create_topic(name, 1)


def test_offsets_of_a_reader_survive_compaction_and_restart(
    coordinator: StartCoordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "Store", partial(Store, min_compaction_bytes=4_096))
    c = coordinator(data_dir=tmp_path)
    with Wire(c.address) as wire:
        for offset in range(200):  # compacted several times on the way, before and after the first look
            assert commit(wire, "g", offset) == 0
            if offset == 100:
                before = fetch(wire)
                assert before[-1] == (100, "g", 100)
        assert fetch(wire)[-1] == (199, "g", 199)
        end = end_of(wire)
        assert end == 200
    c.stop()
    c = coordinator(data_dir=tmp_path)
    with Wire(c.address) as wire:
        assert end_of(wire) >= end
        found = fetch(wire)
        assert found[-1] == (199, "g", 199)
        assert len(found) < 200
        assert commit(wire, "g", 7) == 0
        assert fetch(wire, end) == [(200, "g", 7)]


def test_transactional_ids_are_read_from_their_partition(serving: Coordinator) -> None:
    with Wire(serving.address) as wire:
        every = kw.MetadataRequest(topics=None)
        assert TRANSACTIONS not in [topic.name for topic in wire.call(every, 9).topics]
        wire.call(kw.FindCoordinatorRequest(key_type=1, coordinator_keys=["billing"]), 4)
        (own,) = [topic for topic in wire.call(every, 9).topics if topic.is_internal]
        assert (own.name, len(own.partitions)) == (TRANSACTIONS, 50)

        def states() -> list[tuple[int, str, int]]:
            """Offset in the log, transactional id and epoch of each record."""
            part = kw.FetchRequestFetchPartition(partition=partition_of("billing", 50), partition_max_bytes=1 << 20)
            topics = [kw.FetchRequestFetchTopic(topic=TRANSACTIONS, partitions=[part])]
            answer = wire.call(kw.FetchRequest(topics=topics), 11).responses[0].partitions[0]
            assert answer.error_code == 0
            found = []
            for batch in read_records(answer.records or b""):
                for record in batch.records:
                    key, value = decode_transaction_record(record.key, record.value)
                    assert value is not None
                    found.append((record.offset, key.transactional_id, value.producer_epoch))
            return found

        for name in ("billing", "another", "billing"):
            asked = kw.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1_000)
            assert wire.call(asked, 5).error_code == 0
        assert states() == [(0, "billing", 0), (2, "billing", 1)]
        assert wire.call(asked, 5).error_code == 0
        assert states()[2:] == [(3, "billing", 2)], "followed after it was read"


def test_transactional_ids_are_listed_after_a_restart(coordinator: StartCoordinator, tmp_path: Path) -> None:
    c = coordinator(data_dir=tmp_path)
    with Wire(c.address) as wire:
        asked = kw.InitProducerIdRequest(transactional_id="billing", transaction_timeout_ms=1_000)
        assert wire.call(asked, 5).error_code == 0
    c.stop()
    c = coordinator(data_dir=tmp_path)
    with Wire(c.address) as wire:
        assert TRANSACTIONS in [topic.name for topic in wire.call(kw.MetadataRequest(topics=None), 9).topics]
