"""Marshal's log and data topics on a real Kafka: the contracts, the bytes on disk, settings, TLS and SASL."""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest
import trustme
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

import kcoord_wire as kw
from kcoord_wire.cli.main import main
from kcoord_wire.marshal.inbox import TopicsError
from kcoord_wire.marshal.kafka_log import KafkaLog, check_topic, create_topic
from kcoord_wire.marshal.kafka_topics import KafkaTopics, commit_offsets
from kcoord_wire.marshal.log import LogError, coordination_partition
from kcoord_wire.marshal.member_events import FindStart, StartFound, Tenure, TopicPartitions
from kcoord_wire.marshal.values import read_value
from kcoord_wire.records import MessageSet, RecordBatch, SegmentReader, read_records
from tests.support.kafka_broker import KAFKA, KafkaBroker, pem
from tests.support.log_contract import PARTITIONS, GapContract, LogContract, Logs, TrimContract, append, read, values
from tests.support.topics_contract import (
    DataGapContract,
    DataTopicsContract,
    TopicCluster,
    producing,
    topics_until,
    wait_for,
)
from tests.support.waiting import eventually
from tests.support.wire import Wire

GOLDEN: Final = Path(__file__).parents[1] / "data" / "golden" / "marshal" / "live_log.jsonl"
PASSWORD: Final = "open sesame"
SETTINGS: Final = {
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "auto.create.topics.enable": "true",  # a look at a topic must not create it
}
VERSIONS: Final = (KAFKA, "4.1.0")
NAMES = itertools.count(1)


class Kafka:
    """A broker of the tests, each with topics of its own."""

    def __init__(self, broker: KafkaBroker) -> None:
        self.broker = broker
        self.address = broker.address
        self.admin = AdminClient({"bootstrap.servers": broker.address})
        self._transactions: Any = None

    def create(self, partitions: int, **config: str) -> str:
        topic = f"topic-{next(NAMES)}"
        settings = {name.replace("_", "."): value for name, value in config.items()}
        new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=settings)
        self.admin.create_topics([new])[topic].result(30)
        eventually(lambda: topic in self.admin.list_topics(timeout=30).topics)  # the controller has it before
        return topic

    def trim(self, topic: str, partition: int, before: int) -> None:
        at = confluent_kafka.TopicPartition(topic, partition, before)
        for future in self.admin.delete_records([at]).values():
            future.result(30)

    def skip(self, topic: str, partition: int) -> None:
        """Use up two offsets by a transaction that is aborted: its record, which log readers see, and a marker."""
        if self._transactions is None:
            self._transactions = confluent_kafka.Producer(
                {"bootstrap.servers": self.address, "transactional.id": "marshal-gaps"}
            )
            self._transactions.init_transactions(30)
        before = self._end(topic, partition)
        self._transactions.begin_transaction()
        self._transactions.produce(topic, value=b"in a transaction", partition=partition)
        self._transactions.flush(30)
        self._transactions.abort_transaction(30)
        eventually(lambda: self._end(topic, partition) >= before + 2)  # the marker comes some time after the answer

    def _end(self, topic: str, partition: int) -> int:
        place = confluent_kafka.TopicPartition(topic, partition)
        future = self.admin.list_offsets({place: OffsetSpec.latest()})[place]
        return int(future.result(30).offset)

    def recreate(self, topic: str, count: int) -> None:
        self.admin.delete_topics([topic])[topic].result(30)
        eventually(lambda: topic not in self.admin.list_topics(timeout=30).topics)
        self.admin.create_topics([NewTopic(topic, count, 1)])[topic].result(30)

    def grow(self, topic: str, count: int) -> None:
        self.admin.create_partitions([NewPartitions(topic, count)])[topic].result(30)


@pytest.fixture(scope="module", params=VERSIONS)
def kafka(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    folder = tmp_path_factory.mktemp("marshal")
    authority = trustme.CA()
    (folder / "ca.pem").write_bytes(authority.cert_pem.bytes())
    (folder / "server.pem").write_bytes(pem(authority.issue_cert("127.0.0.1")))
    login = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_me="{PASSWORD}";'
    secured = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "server.pem"),
        "sasl.enabled.mechanisms": "PLAIN",
        "plain.sasl.jaas.config": login,
    }
    with KafkaBroker(folder / f"marshal-kafka-{request.param}", SETTINGS, request.param, secured=secured) as broker:
        yield Kafka(broker)


def login(kafka: Kafka, password: str = PASSWORD) -> dict[str, str]:
    """The settings of a user of the secured listener."""
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": password,
        "ssl.ca.location": str(kafka.broker.folder.parent / "ca.pem"),
    }


@contextmanager
def stopped(log: KafkaLog) -> Iterator[None]:
    """Let the consumer of a log fetch nothing ahead."""
    places = log._consumer.assignment()
    log._consumer.pause(places)
    yield
    log._consumer.resume(places)


class TestKafkaLog(LogContract, GapContract, TrimContract):
    @pytest.fixture
    def logs(self, kafka: Kafka) -> Iterator[Logs]:
        topic = kafka.create(PARTITIONS, message_timestamp_type="LogAppendTime")
        with Logs(
            lambda: KafkaLog(kafka.address, topic, check_s=0.1),
            lambda partition, before: kafka.trim(topic, partition, before),
            lambda partition: kafka.skip(topic, partition),
            lambda count: kafka.grow(topic, count),
            stopped=stopped,
        ) as logs:
            yield logs


class TestKafkaTopics(DataTopicsContract, DataGapContract):
    @pytest.fixture
    def cluster(self, kafka: Kafka) -> Iterator[TopicCluster]:
        topic = kafka.create(2)

        def topics(group_id: str) -> KafkaTopics:
            return KafkaTopics(kafka.address, f"{group_id}-{topic}", [topic], refresh_s=0.1)

        with TopicCluster(
            topics,
            producing(kafka.address, topic),
            lambda count: kafka.grow(topic, count),
            lambda count: kafka.recreate(topic, count),
            lambda partition: kafka.skip(topic, partition),
            topic,
        ) as cluster:
            yield cluster


def recorded() -> list[dict[str, Any]]:
    """What the Go library has written to its log."""
    lines = [json.loads(line) for line in GOLDEN.read_text("utf-8").splitlines()]
    return [line for line in lines if "key_is_nil" in line]


@pytest.mark.parametrize("kafka", [KAFKA], indirect=True)
def test_the_records_on_disk_are_those_of_the_go_library(kafka: Kafka) -> None:
    """The messages that the Go library has sent, sent by us: keys, values and places on the broker's disk."""
    topic = kafka.create(4, message_timestamp_type="LogAppendTime")
    log = KafkaLog(kafka.address, topic)
    rows = recorded()
    assert len(rows) > 5
    for row in rows:
        message = read_value(row["value"].encode())
        assert coordination_partition(message.topic, 4) == row["marshal_partition"]
        append(log, row["marshal_partition"], kw.encode(message, 0))
    log.close()
    found = {}
    for partition in range(4):
        (segment,) = (kafka.broker.folder / f"{topic}-{partition}").glob("*.log")
        for batch in SegmentReader(segment.read_bytes()):
            assert isinstance(batch, RecordBatch)
            assert not batch.is_transactional
            assert not batch.is_control
            assert batch.compression == 0
            for record in batch.records:
                assert not record.headers
                found[partition, record.offset] = (record.key, record.value)
    assert found == {(row["marshal_partition"], row["offset"]): (None, row["value"].encode()) for row in rows}


def fetched(response: bytes) -> list[tuple[int, bytes | None, bytes | None]]:
    """Offset, key and value of the records in the answer to a Fetch v0 of one partition."""
    (name_length,) = struct.unpack_from(">h", response, 8)  # correlation id and a count come first
    _, error, _, size = struct.unpack_from(">ihqi", response, 10 + name_length + 4)
    assert error == 0
    found = []
    for batch in read_records(response[-size:], allow_partial=True):  # the broker fills up what it has announced
        assert isinstance(batch, MessageSet), "message format 0"
        found += [(record.offset, record.key, record.value) for record in batch.records]
    return found


@pytest.mark.parametrize("kafka", [KAFKA], indirect=True)
def test_we_and_the_go_library_read_each_other(kafka: Kafka) -> None:
    """The Go library's own requests, as it has sent them, on a topic to which we append, too (not Kafka 4)."""
    assert create_topic(kafka.address, "__marshal", 4, replication=1)
    frames = [json.loads(line) for line in GOLDEN.read_text("utf-8").splitlines() if '"hex"' in line]
    requests = {kind: [bytes.fromhex(f["hex"]) for f in frames if f["request_kind"] == kind] for kind in (0, 1)}
    log = KafkaLog(kafka.address)
    ours = b"ReleasingPartition/1/1795224460/3879dfdf/cl-one/gr.live/test2/0/6"
    with Wire(kafka.address) as wire:
        for produce in requests[0]:
            wire.send_raw(produce)
            wire.receive_body()
        append(log, 1, ours)
        wire.send_raw(requests[1][0])
        answer = wire.receive_body()
    log.read_from_start([1])
    entries = read(log, 1)
    log.close()
    sent = [row["value"].encode() for row in recorded() if row["marshal_partition"] == 1][:2]
    assert values(entries, 1) == [*sent, ours]
    assert fetched(answer) == [(offset, None, value) for offset, value in enumerate([*sent, ours])]


def test_a_topic_of_ours_passes_its_check(kafka: Kafka) -> None:
    topic = f"topic-{next(NAMES)}"
    with pytest.raises(LogError, match=f"shows no topic {topic}"):
        check_topic(kafka.address, topic)
    assert create_topic(kafka.address, topic, 8, replication=1)
    assert not create_topic(kafka.address, topic, 4)
    assert KafkaLog(kafka.address, topic).partitions == 8
    assert check_topic(kafka.address, topic) == [
        f"{topic} has one replica: with its broker claims and offsets are lost"
    ]


def test_consume_creates_the_coordination_topic(kafka: Kafka, capsys: pytest.CaptureFixture[str]) -> None:
    topic = f"topic-{next(NAMES)}"
    argv = ["marshal", "consume", "--kafka", kafka.address, "--group", "g", "--client-id", "c", "--topics", "missing"]
    assert main([*argv, "--coordination-topic", topic]) == 1
    assert "kcoord marshal consume --create-topic" in capsys.readouterr().err
    for partitions in ("4", "8"):
        assert main([*argv, "--coordination-topic", topic, "--create-topic", partitions]) == 1
        assert "shows no topic missing" in capsys.readouterr().err
    assert KafkaLog(kafka.address, topic).partitions == 4


def test_the_settings_of_a_topic_are_checked(kafka: Kafka) -> None:
    compacted = kafka.create(1, cleanup_policy="compact")
    with pytest.raises(LogError, match=r"is compacted.*set cleanup.policy=delete"):
        check_topic(kafka.address, compacted)
    short = kafka.create(1, retention_ms="10000", message_timestamp_type="CreateTime")
    with pytest.raises(LogError, match=r"keeps entries for 10 s, 0.2 heartbeat intervals"):
        check_topic(kafka.address, short)
    warnings = " ".join(check_topic(kafka.address, short, heartbeat_interval_ms=1_000))
    assert "the members' clocks agree" in warnings


@pytest.mark.parametrize("kafka", [KAFKA], indirect=True)
def test_a_compacted_topic_refuses_entries_for_sure(kafka: Kafka) -> None:
    log = KafkaLog(kafka.address, kafka.create(1, cleanup_policy="compact"))
    (failed,) = append(log, 0, b"x")
    log.close()
    assert (type(failed).__name__, getattr(failed, "may_have_landed", None)) == ("AppendFailed", False)


@pytest.mark.parametrize("kafka", [KAFKA], indirect=True)
def test_a_log_behind_tls_and_a_login(kafka: Kafka) -> None:
    topic = kafka.create(1)
    log = KafkaLog(kafka.broker.secured_address, topic, login(kafka))
    append(log, 0, b"secret")
    log.read_from_start([0])
    assert values(read(log, 0)) == [b"secret"]
    log.close()
    with pytest.raises(LogError, match="refuses the login"):
        KafkaLog(kafka.broker.secured_address, topic, login(kafka, "wrong"))


@pytest.mark.parametrize("kafka", [KAFKA], indirect=True)
def test_committed_offsets_are_those_of_a_group(kafka: Kafka) -> None:
    """The way out of Marshal: a consumer group goes on where the positions are."""
    topic = kafka.create(2)
    for number in range(5):
        producing(kafka.address, topic)(0, b"%d" % number)
    commit_offsets(kafka.address, "leaving", {(topic, 0): 3})
    settings = {"bootstrap.servers": kafka.address, "group.id": "leaving", "enable.auto.commit": False}
    member = confluent_kafka.Consumer(settings | {"auto.offset.reset": "earliest"})
    member.subscribe([topic])
    first = None
    while first is None:
        first = member.poll(10)
    assert (first.offset(), first.value()) == (3, b"3")
    with pytest.raises(TopicsError, match="leaving"):
        commit_offsets(kafka.address, "leaving", {(topic, 0): 1})  # it has a member now
    member.close()
    topics = KafkaTopics(kafka.address, "leaving", [topic])
    topics.find_start(FindStart(Tenure(topic, 0, 1), True, request=1))
    assert [found.committed for found in wait_for(topics, StartFound)] == [3]
    topics.close()


@pytest.mark.parametrize("kafka", [KAFKA], indirect=True)
def test_a_deleted_topic_is_seen_and_not_made_again(kafka: Kafka) -> None:
    """The broker would create a topic that a consumer asks for by name."""
    topic = kafka.create(2)
    topics = KafkaTopics(kafka.address, "g", [topic], refresh_s=0.05)
    topics_until(topics, lambda reported: reported.counts == {topic: 2} and reported.ids)
    topics.start(Tenure(topic, 0, 1), 0)
    kafka.admin.delete_topics([topic])[topic].result(30)
    assert [reported.counts for reported in wait_for(topics, TopicPartitions)] == [{topic: 0}]
    for _ in range(20):
        topics.poll(0.05)
    assert topic not in kafka.admin.list_topics(timeout=30).topics
    topics.close()


@pytest.mark.parametrize("kafka", [KAFKA], indirect=True)
def test_a_log_goes_on_after_its_broker_was_away(kafka: Kafka) -> None:
    """Last: it restarts the broker of the tests."""
    topic = kafka.create(1)
    reader, log = KafkaLog(kafka.address, topic), KafkaLog(kafka.address, topic, timeout_s=60)
    reader.read_from_start([0])
    append(log, 0, b"before")
    entries = read(reader, 0)
    kafka.broker.restart()
    (result,) = append(log, 0, b"after", seconds=60)
    assert type(result).__name__ == "Appended"
    entries += read(reader, 0)
    assert values(entries) == [b"before", b"after"]
    reader.close()
    log.close()
