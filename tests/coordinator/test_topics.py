"""Topics in memory: every api in every version it is served in, and each error that a client can cause.

Every reply that a test sees has gone through the codec in the version of its request.
"""

from __future__ import annotations

import tracemalloc
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kcoord_wire
from kcoord_wire import messages as m
from kcoord_wire.codec.registry import registry
from kcoord_wire.coordinator.core.apis import SERVED
from kcoord_wire.coordinator.core.brokers import Brokers
from kcoord_wire.coordinator.core.config import Endpoint
from kcoord_wire.coordinator.core.events import HANG_UP, Load, Reply, Request, Resign
from kcoord_wire.coordinator.topics.catalog import TopicLimits
from kcoord_wire.coordinator.topics.topics import Topics, VerifiedProduce
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.records import (
    Compression,
    Record,
    RecordBatch,
    encode_batch,
    read_records,
)
from tests.support.broker import BROKERS, EACH, GOOD, NO_ID, OURS, Broker, batch, values, versions
from tests.support.strategies import messages


def test_all_that_is_served_can_be_decoded_and_answered() -> None:
    for key, served in SERVED.items():
        for codec in (registry.request(key), registry.response(key)):
            assert set(served) <= set(codec.valid_versions), key


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_any_request_is_answered_once_and_in_its_own_version(data: st.DataObject) -> None:
    broker = Broker({"orders": 2, "a": 1}, auto_create_partitions=1, limits=TopicLimits(max_partitions=5))
    key = data.draw(st.sampled_from(OURS))
    version = data.draw(st.sampled_from(SERVED[key]))
    replies = broker.send(data.draw(messages(registry.request(key), version)), version)
    while (due := broker.due()) is not None:
        assert due > broker.now
        replies += broker.tick(due)
    assert [reply.token for reply in replies] == [1]


@pytest.mark.parametrize(("key", "version"), EACH)
def test_a_default_request_of_each_version(broker: Broker, key: int, version: int) -> None:
    assert len(broker.send(registry.request(key).cls(), version)) == 1


def test_patterns_are_matched_against_the_internal_topic_too(broker: Broker) -> None:
    assert sorted(broker.topics.names()) == ["__consumer_offsets", "orders"]


def test_group_requests_are_rejected(broker: Broker) -> None:
    assert broker.topics.handle(Load([]), 1) == broker.topics.handle(Resign(), 2) == []
    with pytest.raises(TypeError, match="HeartbeatRequest is not for the topics"):
        broker.topics.handle(Request(1, m.HeartbeatRequest(), 0), 3)


# ---- ApiVersions


@versions(18)
@pytest.mark.parametrize("sasl", [False, True])
def test_api_versions(version: int, sasl: bool) -> None:
    request = m.ApiVersionsRequest(client_software_name="apache-kafka-java", client_software_version="4.1.0")
    response = Broker(sasl=sasl).ask(request, version, m.ApiVersionsResponse)
    ranges = {entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys}
    assert response.error_code == 0
    assert list(ranges) == sorted(ranges)
    assert ranges.pop(0) == (0, 13)  # advertised lower than served: old librdkafka wants it so
    served = {key: (span[0], span[-1]) for key, span in SERVED.items() if key and (sasl or key not in (17, 36))}
    assert ranges == served
    assert {
        11: (0, 9),
        14: (0, 5),
        12: (0, 4),
        13: (0, 5),
        1: (4, 18),
        8: (0, 10),
        9: (0, 10),
    }.items() <= served.items()
    supported = [(item.name, item.min_version, item.max_version) for item in response.supported_features]
    finalized = [(item.name, item.min_version_level, item.max_version_level) for item in response.finalized_features]
    levels = [("group.version", 1), ("share.version", 1), ("streams.version", 1), ("transaction.version", 2)]
    assert supported == ([(name, 0, level) for name, level in levels] if version >= 4 else [])  # v3 has none from 0 on
    assert finalized == ([(name, level, level) for name, level in levels] if version >= 3 else [])


@versions(18, least=3)
@pytest.mark.parametrize(
    ("name", "version_text"),
    [("", "1"), ("a", ""), ("-a", "1"), ("a-", "1"), ("a b", "1"), ("a", "1\n"), ("ä", "1"), ("a", ".1")],
)
def test_an_invalid_client_software_is_rejected(broker: Broker, version: int, name: str, version_text: str) -> None:
    request = m.ApiVersionsRequest(client_software_name=name, client_software_version=version_text)
    response = broker.ask(request, version, m.ApiVersionsResponse)
    assert (response.error_code, response.api_keys) == (ErrorCode.INVALID_REQUEST, [])


@pytest.mark.parametrize(
    ("cluster_id", "node_id", "error"),
    [
        ("c", 3, 0),
        ("c", 2**31 - 1 - 3, 0),
        ("c", 4, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("d", 3, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("c", -1, ErrorCode.INVALID_REQUEST),
        (None, 3, ErrorCode.INVALID_REQUEST),
    ],
)
def test_the_broker_that_a_client_means(broker: Broker, cluster_id: str | None, node_id: int, error: int) -> None:
    request = m.ApiVersionsRequest(
        client_software_name="a", client_software_version="1", cluster_id=cluster_id, node_id=node_id
    )
    assert broker.ask(request, 5, m.ApiVersionsResponse).error_code == error


def test_the_answer_to_an_unknown_version_of_api_versions() -> None:
    body = kcoord_wire.encode(Broker().topics.cluster.api_versions_fallback(), 0)
    assert body.hex() == "0023" + "00000001" + "0012" + "0000" + "0005"


# ---- Metadata


@versions(3)
def test_metadata(broker: Broker, version: int) -> None:
    response = broker.metadata(version, "orders", "missing", "no/name", "orders")
    (node,) = response.brokers
    assert (node.node_id, node.host, node.port, node.rack) == (3, "127.0.0.1", 9092, None)
    assert response.cluster_id == ("c" if version >= 2 else None)
    assert response.controller_id == (3 if version >= 1 else -1)
    assert [(topic.name, topic.error_code) for topic in response.topics] == [
        ("orders", 0),
        ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("no/name", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ]
    orders = response.topics[0]
    assert orders.topic_id == (broker.topics.id_of("orders") if version >= 10 else NO_ID)
    assert [part.partition_index for part in orders.partitions] == [0, 1]
    part = orders.partitions[1]
    assert (part.leader_id, part.replica_nodes, part.isr_nodes, part.offline_replicas) == (3, [3], [3], [])
    assert part.leader_epoch == (0 if version >= 7 else -1)


@versions(3)
def test_all_topics_or_none(version: int) -> None:
    broker = Broker({"a": 1, "b": 2})
    none = broker.metadata(version)
    assert [topic.name for topic in none.topics] == ([] if version else ["a", "b"])
    if version:
        every = broker.ask(m.MetadataRequest(topics=None), version, m.MetadataResponse)
        assert [(topic.name, len(topic.partitions)) for topic in every.topics] == [("a", 1), ("b", 2)]


@versions(3, least=12)
def test_metadata_by_topic_id(broker: Broker, version: int) -> None:
    known, unknown = broker.topics.id_of("orders"), uuid.UUID(int=7)
    asked = [m.MetadataRequestTopic(topic_id=id_, name=None) for id_ in (known, unknown, known) if id_]
    response = broker.ask(m.MetadataRequest(topics=asked), version, m.MetadataResponse)
    assert [(topic.name, topic.topic_id, topic.error_code) for topic in response.topics] == [
        ("orders", known, 0),
        (None, unknown, ErrorCode.UNKNOWN_TOPIC_ID),
    ]


@pytest.mark.parametrize("version", [10, 11])
def test_topic_ids_and_null_names_come_with_v12(broker: Broker, version: int) -> None:
    for topic in (m.MetadataRequestTopic(name=None), m.MetadataRequestTopic(name="orders", topic_id=uuid.UUID(int=7))):
        response = broker.ask(m.MetadataRequest(topics=[topic]), version, m.MetadataResponse)
        assert [topic.error_code for topic in response.topics] == [ErrorCode.INVALID_REQUEST]


@versions(3, least=8)
def test_authorized_operations(broker: Broker, version: int) -> None:
    options = {"include_topic_authorized_operations": True}
    if version <= 10:
        options["include_cluster_authorized_operations"] = True
    response = broker.metadata(version, "orders", **options)
    assert response.topics[0].topic_authorized_operations == 0b1101_1111_1000
    assert response.cluster_authorized_operations == (0b1_1111_1010_0000 if version <= 10 else -(2**31))
    assert broker.metadata(version, "orders").topics[0].topic_authorized_operations == -(2**31)


def test_topics_are_created_only_where_both_sides_want_it() -> None:
    broker = Broker({}, auto_create_partitions=3, limits=TopicLimits(max_partitions=6))
    refused = broker.metadata(4, "new", allow_auto_topic_creation=False)
    assert refused.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    created = broker.metadata(4, "new", allow_auto_topic_creation=True).topics[0]
    assert (created.error_code, created.partitions) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []), "this once"
    assert len(broker.metadata(4, "new", allow_auto_topic_creation=False).topics[0].partitions) == 3
    broker.metadata(0, "newer")  # before v4 every client wants it
    assert broker.metadata(0, "newer").topics[0].error_code == 0
    assert broker.metadata(4, "too many").topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    for _ in range(2):
        assert broker.metadata(4, "too-many").topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert Broker({}).metadata(4, "new").topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_names_that_collide_are_not_created() -> None:
    broker = Broker({"a.b": 1}, auto_create_partitions=1)
    for _ in range(2):
        errors = [topic.error_code for topic in broker.metadata(4, "a_b", "c.d", "c_d").topics]
    assert errors == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_only_metadata_by_name_brings_a_deleted_topic_back() -> None:
    broker = Broker({"orders": 2}, auto_create_partitions=1)
    old = broker.topics.id_of("orders")
    by_id = m.MetadataRequest(topics=[m.MetadataRequestTopic(name=None, topic_id=old or NO_ID)])
    broker.topics.delete("orders")
    assert broker.ask(by_id, 12, m.MetadataResponse).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert broker.produce(batch(b"v")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert broker.list_offset(-1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert broker.ask(m.MetadataRequest(topics=None), 12, m.MetadataResponse).topics == []
    assert broker.topics.partitions("orders") is None
    broker.metadata(12, "orders")
    assert broker.topics.partitions("orders") == 1
    assert broker.topics.id_of("orders") != old


def test_topics_by_name_and_id(broker: Broker) -> None:
    topics = broker.topics
    known = topics.id_of("orders")
    assert known is not None
    assert known == Broker({"orders": 9}).topics.id_of("orders")
    assert known != Topics(BROKERS, {"orders": 2}, cluster_id="d").id_of("orders")
    assert (topics.partitions("orders"), topics.name_of(known)) == (2, "orders")
    assert (topics.partitions("x"), topics.id_of("x"), topics.name_of(NO_ID)) == (None, None, None)
    assert topics.catalog.add_partitions("orders", 3) == topics.partitions("orders") == 5
    assert len(broker.metadata(1, "orders").topics[0].partitions) == 5
    assert broker.produce(batch(b"v"), partition=4).error_code == 0
    topics.catalog.create("payments", 1)
    assert topics.partitions("payments") == 1


@pytest.mark.parametrize(
    ("name", "partitions"),
    [("", 1), (".", 1), ("..", 1), ("a b", 1), ("a" * 250, 1), ("a\n", 1), ("orders", 1), ("b", 0), ("b", 100_001)],
)
def test_invalid_topics_are_rejected(broker: Broker, name: str, partitions: int) -> None:
    with pytest.raises(ValueError, match=r"topic"):
        broker.topics.catalog.create(name, partitions)
    with pytest.raises(ValueError, match=r"cannot be added"):
        broker.topics.catalog.add_partitions("orders", 0)
    with pytest.raises(ValueError, match=r"may have 100,000 partitions"):
        broker.topics.catalog.add_partitions("orders", 100_000)
    with pytest.raises(KeyError):
        broker.topics.catalog.add_partitions("missing", 1)
    broker.topics.catalog.create("a" * 249, 1)
    broker.topics.catalog.create("...", 1)


# ---- InitProducerId


@pytest.mark.parametrize(
    ("message", "version", "data"),
    [
        (m.InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1), 0, "0001 74 00000001"),
        (m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1), 2, "00 00000001 00"),
        (
            m.InitProducerIdRequest(transactional_id="t", producer_id=2, producer_epoch=3, enable2_pc=True),
            6,
            "02 74 00000000 0000000000000002 0003 01 00 00",
        ),
        (m.InitProducerIdResponse(throttle_time_ms=1, producer_id=2), 1, "00000001 0000 0000000000000002 0000"),
        (m.InitProducerIdResponse(error_code=53), 5, "00000000 0035 ffffffffffffffff 0000 00"),
        (
            m.InitProducerIdResponse(producer_id=2, ongoing_txn_producer_id=3, ongoing_txn_producer_epoch=4),
            6,
            "00000000 0000 0000000000000002 0000 0000000000000003 0004 00",
        ),
    ],
)  # fmt: skip
def test_the_bytes_of_init_producer_id(message: Any, version: int, data: str) -> None:
    """Worked out by hand from Kafka's definition of the message."""
    assert kcoord_wire.encode(message, version) == bytes.fromhex(data)
    assert kcoord_wire.decode(type(message), bytes.fromhex(data), version) == message


# ---- Produce


@versions(0)
def test_produce_and_fetch_back(broker: Broker, version: int) -> None:
    first = broker.produce(batch(b"a", b"b"), version)
    second = broker.produce(batch(b"c"), version)
    assert (first.error_code, first.base_offset, second.base_offset) == (0, 0, 2)
    assert (first.log_append_time_ms, first.log_start_offset) == (-1, 0 if version >= 5 else -1)
    answer = broker.fetch(0)
    assert values(answer.records) == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert [
        read.partition_leader_epoch for read in read_records(answer.records or b"") if isinstance(read, RecordBatch)
    ] == [0, 0]
    assert broker.fetch(0, partition=1).records == b""


@pytest.mark.parametrize("version", [6, 7])
def test_zstd_comes_with_v7(broker: Broker, version: int) -> None:
    outcome = broker.produce(batch(b"a", compression=Compression.ZSTD), version)
    assert outcome.error_code == (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE if version < 7 else 0)


@versions(0)
def test_produce_to_a_missing_partition_fails(broker: Broker, version: int) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert broker.produce(GOOD, version, topic="missing").error_code == unknown
    for partition in (2, -1):
        outcome = broker.produce(GOOD, version, partition=partition)
        assert outcome.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_may_take_larger_batches(broker: Broker) -> None:
    large = batch(bytes(2 << 20))
    assert broker.produce(large).error_code == ErrorCode.MESSAGE_TOO_LARGE
    broker.topics.catalog.configure({"orders": {"max.message.bytes": str(3 << 20)}})
    assert broker.produce(large).error_code == ErrorCode.NONE


def test_acks_and_transactional_ids(broker: Broker) -> None:
    assert broker.produce(GOOD, acks=2).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert broker.produce(GOOD, transactional_id="t").base_offset == 0, "a batch outside any transaction"
    assert broker.produce(GOOD, acks=1).base_offset == 2
    for data, outcome in ((GOOD, None), (b"", HANG_UP)):
        (reply,) = broker.send(broker.produce_request(data, 9, acks=0), 9)
        assert reply.message is outcome
    assert broker.fetch(0).high_watermark == 6


def test_one_bad_partition_does_not_spoil_the_others(broker: Broker) -> None:
    parts = [
        m.ProduceRequestPartitionProduceData(index=0, records=GOOD),
        m.ProduceRequestPartitionProduceData(index=1, records=b"x"),
        m.ProduceRequestPartitionProduceData(index=0, records=GOOD),
    ]
    topic = m.ProduceRequestTopicProduceData(name="orders", partition_data=parts)
    response = broker.ask(m.ProduceRequest(acks=-1, topic_data=[topic]), 9, m.ProduceResponse)
    outcomes = response.responses[0].partition_responses
    assert [(outcome.index, outcome.error_code, outcome.base_offset) for outcome in outcomes] == [
        (0, 0, 0),
        (1, ErrorCode.CORRUPT_MESSAGE, -1),
        (0, 0, 2),
    ]


# ---- Fetch


@versions(1)
def test_fetch(broker: Broker, version: int) -> None:
    for value in (b"a", b"b", b"c"):
        broker.produce(batch(value, value))
    answer = broker.fetch(3, version)  # within the second batch
    assert values(answer.records) == [(2, b"b"), (3, b"b"), (4, b"c"), (5, b"c")]
    assert (answer.error_code, answer.high_watermark, answer.last_stable_offset) == (0, 6, 6)
    assert answer.log_start_offset == (0 if version >= 5 else -1)
    assert answer.preferred_read_replica == -1
    assert answer.aborted_transactions is None
    assert broker.fetch(3, version, isolation_level=1).aborted_transactions == []
    end = broker.fetch(6, version)
    assert (end.error_code, end.records, end.high_watermark) == (0, b"", 6)


@versions(1)
def test_fetch_from_a_missing_partition_fails(broker: Broker, version: int) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for topic, partition, offset, error in (
        ("missing", 0, 0, unknown),
        ("orders", 2, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("orders", 0, 1, ErrorCode.OFFSET_OUT_OF_RANGE),
        ("orders", 0, -1, ErrorCode.OFFSET_OUT_OF_RANGE),
    ):
        request = broker.fetch_request(offset, version, topic, partition=partition, max_wait_ms=9_999)
        answer = broker.ask(request, version, m.FetchResponse).responses[0].partitions[0]  # at once
        assert (answer.error_code, answer.high_watermark, answer.records) == (error, -1, b"")


@versions(1, least=9)
def test_fetch_with_a_leader_epoch(broker: Broker, version: int) -> None:
    assert broker.fetch(0, version, current_leader_epoch=0).error_code == 0
    assert broker.fetch(0, version, current_leader_epoch=1).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert broker.fetch(0, version, current_leader_epoch=-2).error_code == ErrorCode.FENCED_LEADER_EPOCH


@versions(1, least=7)
@pytest.mark.parametrize(
    ("session_id", "epoch", "error"), [(0, 0, 0), (0, -1, 0), (9, -1, 0), (9, 0, 0), (9, 1, 70), (0, 1, 70)]
)
def test_there_are_no_fetch_sessions(broker: Broker, version: int, session_id: int, epoch: int, error: int) -> None:
    request = broker.fetch_request(0, version, session_id=session_id, session_epoch=epoch, max_wait_ms=0)
    response = broker.ask(request, version, m.FetchResponse)
    assert (response.error_code, response.session_id, len(response.responses)) == (error, 0, 0 if error else 1)


def test_as_much_as_is_wanted() -> None:
    broker = Broker(limits=TopicLimits(max_fetch_bytes=1_000))
    data = batch(bytes(100))
    size = len(data)
    for partition in (0, 1):
        for _ in range(5):
            broker.produce(data, partition=partition)

    def sizes(*limits: int, max_bytes: int = 1 << 20) -> list[int]:
        parts = [
            m.FetchRequestFetchPartition(partition=index, partition_max_bytes=limit)
            for index, limit in enumerate(limits)
        ]
        topic = m.FetchRequestFetchTopic(topic="orders", partitions=parts)
        response = broker.ask(m.FetchRequest(max_bytes=max_bytes, topics=[topic]), 11, m.FetchResponse)
        return [len(part.records or b"") // size for part in response.responses[0].partitions]

    assert sizes(3 * size, 2 * size) == [3, 2]
    assert sizes(3 * size - 1, 2 * size - 1) == [2, 1]
    assert sizes(1, 1) == [1, 0]  # the first batch of all is sent whatever the limits say
    assert sizes(1, size) == [1, 1]
    assert sizes(0, 0, max_bytes=0) == [1, 0]
    assert sizes(1 << 20, 1 << 20, max_bytes=4 * size) == [4, 0]
    assert sizes(1 << 20, 1 << 20, max_bytes=6 * size) == [5, 0 if 6 * size > 1_000 else 1]
    assert sum(sizes(1 << 20, 1 << 20)) == 1_000 // size


def test_a_fetch_waits_for_records(broker: Broker) -> None:
    assert broker.send(broker.fetch_request(0, 11, partition=1), 11) == []
    assert broker.due() == 1_500
    assert [reply.token for reply in broker.send(broker.produce_request(GOOD, 9), 9)] == [2]  # another partition
    produced, fetched = broker.send(broker.produce_request(GOOD, 9, partition=1), 9)
    assert (produced.token, fetched.token) == (3, 1)
    assert values(fetched.message.responses[0].partitions[0].records) == [(0, b"a"), (1, b"b")]
    assert broker.due() == 301_000  # the first look for records that have expired
    assert broker.tick(9_999) == []


def test_a_fetch_waits_for_bytes_enough(broker: Broker) -> None:
    size = len(GOOD)
    broker.produce(GOOD)
    assert broker.send(broker.fetch_request(0, 11, min_bytes=3 * size), 11) == []
    waiting = broker.token
    assert len(broker.send(broker.produce_request(GOOD, 9), 9)) == 1
    replies = broker.send(broker.produce_request(GOOD, 9, acks=0), 9)
    assert [reply.token for reply in replies] == [broker.token, waiting]
    assert len(values(replies[1].message.responses[0].partitions[0].records)) == 6


def test_a_fetch_ends_with_its_time(broker: Broker) -> None:
    for wait in (700, 300, 300):
        assert broker.send(broker.fetch_request(0, 11, max_wait_ms=wait), 11) == []
    assert broker.tick(1_299) == []
    assert [reply.token for reply in broker.tick(1_300)] == [2, 3]
    assert broker.due() == 1_700
    (reply,) = broker.tick(5_000)
    assert (reply.token, reply.message.responses[0].partitions[0].records) == (1, b"")
    assert broker.due() is None
    broker.send(broker.fetch_request(0, 11, max_wait_ms=2**31 - 1), 11)
    assert broker.due() == 305_000


def test_one_produce_answers_all_parked_fetches(broker: Broker) -> None:
    for partition in (0, 1, 0):
        assert broker.send(broker.fetch_request(0, 11, partition=partition), 11) == []
    assert [reply.token for reply in broker.send(broker.produce_request(GOOD, 9), 9)] == [4, 1, 3]


def test_a_fetch_of_no_partitions_is_answered_at_once(broker: Broker) -> None:
    request = m.FetchRequest(max_wait_ms=9_999, min_bytes=1, topics=[])
    assert broker.ask(request, 11, m.FetchResponse).responses == []
    assert len(broker.send(broker.fetch_request(0, 11, min_bytes=0), 11)) == 1
    assert broker.due() is None


def test_a_request_whose_connection_is_gone(broker: Broker) -> None:
    assert broker.send(broker.fetch_request(0, 11), 11) == []
    broker.topics.abandon(broker.token)
    broker.topics.abandon(broker.token)
    assert broker.due() is None
    assert len(broker.send(broker.produce_request(GOOD, 9), 9)) == 1


def test_fetches_that_were_answered_early_leave_nothing_behind(broker: Broker) -> None:
    for offset in range(0, 6_000, 2):
        broker.send(broker.fetch_request(offset, 11, max_wait_ms=60_000), 11)
        broker.send(broker.produce_request(GOOD, 9), 9)
    assert len(broker.topics._fetches._due) <= 1_010
    assert not broker.topics._fetches._parked
    assert not broker.topics._fetches._waiting


# ---- ListOffsets, OffsetForLeaderEpoch


def filled(broker: Broker) -> Broker:
    """Offsets 0-6; timestamps 100, 101, 102 | 300, 301 | 200, 201."""
    broker.produce(batch(b"a", b"b", b"c", at=100))
    broker.produce(batch(b"d", b"e", at=300, compression=Compression.GZIP))
    broker.produce(batch(b"f", b"g", at=200))
    return broker


@versions(2, least=1)
@pytest.mark.parametrize(
    ("timestamp", "offset", "found", "since"),
    [
        (-1, 7, -1, 1),
        (-2, 0, -1, 1),
        (-3, 4, 301, 7),
        (-4, 0, -1, 8),
        (-5, -1, -1, 9),
        (-6, -1, -1, 11),
        (-7, -1, -1, 99),
        (0, 0, 100, 1),
        (101, 1, 101, 1),
        (103, 3, 300, 1),
        (301, 4, 301, 1),
        (302, -1, -1, 1),
    ],
)
def test_list_offsets(broker: Broker, version: int, timestamp: int, offset: int, found: int, since: int) -> None:
    answer = filled(broker).list_offset(timestamp, version)
    if version < since:
        assert (answer.error_code, answer.offset) == (ErrorCode.UNSUPPORTED_VERSION, -1)
        return
    assert (answer.error_code, answer.offset, answer.timestamp) == (0, offset, found)
    assert answer.leader_epoch == (0 if version >= 4 and offset >= 0 else -1)


@pytest.mark.parametrize(
    ("timestamp", "most", "offsets"),
    [(-1, 1, [7]), (-1, 9, [7, 0]), (-2, 9, [0]), (299, 9, []), (301, 9, [7, 0]), (-1, 0, []), (-1, -1, [])],
)
def test_list_offsets_of_old(broker: Broker, timestamp: int, most: int, offsets: list[int]) -> None:
    assert filled(broker).list_offset(timestamp, 0, max_num_offsets=most).old_style_offsets == offsets
    assert broker.list_offset(-1, 0, partition_index=1, max_num_offsets=9).old_style_offsets == [0]
    assert broker.list_offset(-3, 0).error_code == ErrorCode.UNSUPPORTED_VERSION


@versions(2, least=1)
def test_list_offsets_of_an_empty_log(broker: Broker, version: int) -> None:
    assert [broker.list_offset(time, version).offset for time in (-1, -2, 0)] == [0, 0, -1]
    if version >= 7:
        assert broker.list_offset(-3, version).offset == -1


@versions(2)
def test_list_offsets_of_a_missing_partition_fails(broker: Broker, version: int) -> None:
    parts = [m.ListOffsetsRequestListOffsetsPartition(partition_index=index, timestamp=-1) for index in (0, 1, 1, 2)]
    topics = [m.ListOffsetsRequestListOffsetsTopic(name=name, partitions=parts) for name in ("orders", "missing")]
    response = broker.ask(m.ListOffsetsRequest(replica_id=-1, topics=topics), version, m.ListOffsetsResponse)
    errors = [[part.error_code for part in topic.partitions] for topic in response.topics]
    assert errors == [[0, 42, 42, 3], [3, 42, 42, 3]]


@versions(2, least=4)
def test_list_offsets_with_a_leader_epoch(broker: Broker, version: int) -> None:
    errors = [broker.list_offset(-1, version, current_leader_epoch=epoch).error_code for epoch in (0, 1, -2)]
    assert errors == [0, ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.FENCED_LEADER_EPOCH]


@versions(23)
def test_the_end_of_an_epoch(broker: Broker, version: int) -> None:
    answer = filled(broker).epoch_end(0, version)
    assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, 0 if version else -1, 7)
    for epoch in (1, -1):
        answer = broker.epoch_end(epoch, version)
        assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, -1, -1)
    assert broker.epoch_end(0, version, partition=2).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if version >= 2:
        errors = [broker.epoch_end(0, version, current_leader_epoch=epoch).error_code for epoch in (0, 1, -2)]
        assert errors == [0, ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.FENCED_LEADER_EPOCH]


# ---- bounds


def test_memory_is_bounded() -> None:
    """Small batches count with the objects around them."""
    limit = 1 << 20
    broker = Broker(limits=TopicLimits(retention_bytes=limit))
    tracemalloc.start()
    try:
        for number in range(6_000):
            broker.produce(batch(b"%d" % number))
        kcoord_wire.trim()  # what the codec keeps of dropped messages is not the topic's
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1.5 * limit


@versions(0, 3)
def test_records_have_the_time_of_the_append(version: int) -> None:
    broker = Broker({})
    broker.topics.create("orders", 1, {"message.timestamp.type": "LogAppendTime"})
    outcome = broker.produce(GOOD, version)
    assert (outcome.error_code, outcome.log_append_time_ms) == (0, broker.now)
    (read,) = read_records(broker.fetch(0).records or b"")
    assert [record.timestamp for record in read.records] == [broker.now] * 2
    found = broker.list_offset(broker.now)
    assert (found.offset, found.timestamp) == (0, broker.now)
    assert broker.list_offset(broker.now + 1).offset == -1


def test_only_one_producer_of_a_request_is_verified() -> None:
    broker = Broker({"orders": 3})
    data = [
        encode_batch([Record(value=b"x")], transactional=True, producer_id=of, producer_epoch=0, base_sequence=0)
        for of in (7, 8, 7)
    ]
    parts = [m.ProduceRequestPartitionProduceData(index=index, records=each) for index, each in enumerate(data)]
    topic = m.ProduceRequestTopicProduceData(name="orders", partition_data=parts)
    request = Request(1, m.ProduceRequest(transactional_id="t", acks=-1, topic_data=[topic]), 12)
    first, partitions = broker.topics.unverified(request)
    assert (first and first.producer_id, partitions) == (7, [("orders", 0), ("orders", 2)])
    verified = VerifiedProduce(request, dict.fromkeys(partitions, ErrorCode.NONE))
    (reply,) = (each for each in broker.topics.handle(verified, 0) if isinstance(each, Reply))
    codes = [each.error_code for each in reply.message.responses[0].partition_responses]
    assert codes == [0, ErrorCode.INVALID_TXN_STATE, 0], "nothing would end the transaction of producer 8"


# ---- The leader's name and address beside NOT_LEADER_OR_FOLLOWER

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
