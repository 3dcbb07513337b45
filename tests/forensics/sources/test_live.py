"""Reading a live topic, from librdkafka's mock broker, which needs no Kafka; the errors where it cannot be read."""

from __future__ import annotations

import _thread
import json
import signal
import socket
import sys
import threading
import time

import confluent_kafka
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kcoord_wire.cli.main import main
from kcoord_wire.coordinator import Coordinator, GroupConfig
from kcoord_wire.extras import MissingLibraryError
from kcoord_wire.forensics.model import LogRow, arrow_schema
from kcoord_wire.forensics.records.reader import log_histories
from kcoord_wire.forensics.sources.frames import read_log
from kcoord_wire.forensics.sources.live import TopicError, read_lag, read_topic
from tests.support.marshal_rows import live_log
from tests.support.offsets_log import CONSUMER_GROUPS


class Mock:
    """A broker inside a librdkafka producer, whose topics have four partitions."""

    def __init__(self) -> None:
        self.producer = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "log_level": 0})
        (broker,) = self.producer.list_topics(timeout=10).brokers.values()
        self.address = f"{broker.host}:{broker.port}"

    def produce(self, topic: str, partition: int, key: bytes | None, value: bytes | None, time_ms: int) -> None:
        self.producer.produce(topic, value=value, key=key, partition=partition, timestamp=time_ms)

    def flush(self) -> None:
        assert self.producer.flush(20) == 0


@pytest.fixture
def mock() -> Mock:
    return Mock()


def test_a_log_read_live_is_the_log(mock: Mock) -> None:
    segment = pa.Table.from_batches(read_log(next(CONSUMER_GROUPS.glob("kafka-3.9.2/*/*.log"))))
    for row in segment.to_pylist():
        mock.produce("__consumer_offsets", 2, row["key"], row["value"], row["time_ns"] // 1_000_000)
    mock.flush()
    calls: list[tuple[int, int]] = []
    batches = list(read_topic(mock.address, batch_rows=50, progress=lambda done, total: calls.append((done, total))))
    assert all(batch.schema == arrow_schema(LogRow) for batch in batches)
    read = pa.Table.from_batches(batches)
    for name in ("key", "value", "time_ns"):
        assert read[name].to_pylist() == segment[name].to_pylist()
    assert read["offset"].to_pylist() == read["position"].to_pylist() == [*range(segment.num_rows)]
    assert set(read["source"].to_pylist()) == {"__consumer_offsets-2"}
    assert calls[-1] == (segment.num_rows, segment.num_rows)
    assert calls == sorted(calls)
    causes = [[rebalance.cause for rebalance in history.rebalances] for history in log_histories(read)]
    assert causes == [[rebalance.cause for rebalance in history.rebalances] for history in log_histories(segment)]


def test_the_lag_of_groups_is_read_from_the_cluster() -> None:
    """Five records of which two are committed, a partition without a commit, and a group without members."""
    with Coordinator({"orders": 2, "idle": 1}, config=GroupConfig(initial_rebalance_delay_ms=0)) as broker:
        producer = Producer({"bootstrap.servers": broker.address})
        for _ in range(5):
            producer.produce("orders", b"x", partition=0)
        assert producer.flush(20) == 0
        consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "billing", "enable.auto.commit": False})
        other = Consumer({"bootstrap.servers": broker.address, "group.id": "audit", "enable.auto.commit": False})
        consumer.subscribe(["orders"])
        while not consumer.assignment():
            consumer.poll(0.1)
        consumer.commit(offsets=[TopicPartition("orders", 0, 2)], asynchronous=False)
        other.commit(offsets=[TopicPartition("idle", 0, 0)], asynchronous=False)
        rows = read_lag(broker.address)
        member = consumer.memberid()
        assert [
            (r.group_id, r.topic, r.partition, r.committed_offset, r.end_offset, r.lag, r.member_id) for r in rows
        ] == [
            ("audit", "idle", 0, 0, 0, 0, None),
            ("billing", "orders", 0, 2, 5, 3, member),
            ("billing", "orders", 1, None, 0, None, member),
        ]
        assert [row.group_id for row in read_lag(broker.address, groups=["audit", "unknown"])] == ["audit"]
        consumer.close()
        other.close()


def test_the_lag_of_an_unreachable_cluster_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(TopicError, match="no broker answers"):
        read_lag(f"127.0.0.1:{port}", patience_s=1)


def test_a_coordination_topic_is_analyzed_live(mock: Mock, capsys: pytest.CaptureFixture[str]) -> None:
    rows = live_log()
    for row in rows:
        mock.produce("__marshal", row.partition, row.key, row.value, 1_795_224_460_000)
    mock.flush()
    assert main(["analyze", "--kafka", mock.address, "--topic", "__marshal", "--format", "json"]) == 0
    [group] = json.loads(capsys.readouterr().out)["groups"]
    assert group["group"]["origin"] == "marshal"
    assert [(row["topic"], row["client_id"], row["ended"]) for row in group["claims"]] == [
        ("test1", "cl-one", "released"),
        ("test2", "cl-one", "released"),
        ("test2", "cl-two", "open"),
    ]
    [first, *_] = list(read_topic(mock.address, topic="__marshal"))
    assert first["is_append_time"].to_pylist() == [False] * len(first)


def test_all_partitions_and_no_later_records(mock: Mock) -> None:
    for number in range(400):
        mock.produce("t", number % 3, b"%d" % number, None, 1_000 + number)
    mock.flush()
    rows = []
    reading = read_topic(mock.address, topic="t", batch_rows=10)
    for batch in reading:
        if not rows:
            mock.produce("t", 0, b"late", b"x", 1)
            mock.flush()
        rows += batch.to_pylist()
    assert sorted(int(row["key"]) for row in rows) == [*range(400)]
    assert {row["partition"] for row in rows} == {0, 1, 2}
    again = [row for batch in read_topic(mock.address, topic="t") for row in batch.to_pylist()]
    assert len(again) == 401


def test_a_topic_without_records(mock: Mock) -> None:
    mock.producer.list_topics("empty", timeout=10)  # the mock broker creates it
    assert list(read_topic(mock.address, topic="empty")) == []


def test_reading_continues_at_the_end(mock: Mock) -> None:
    mock.produce("t", 0, b"1", None, 1)
    mock.flush()
    reading = read_topic(mock.address, topic="t", until_end=False)
    assert next(reading)["key"].to_pylist() == [b"1"]
    mock.produce("t", 1, b"2", None, 1)
    mock.flush()
    assert next(reading)["key"].to_pylist() == [b"2"]
    reading.close()


def test_an_interrupt_closes_the_reader(mock: Mock) -> None:
    mock.produce("t", 0, b"1", None, 1)
    mock.flush()
    reading = read_topic(mock.address, topic="t", until_end=False)
    next(reading)
    former = signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start background jobs without it
    timer = threading.Timer(0.3, _thread.interrupt_main)
    timer.start()
    began = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            next(reading)
    finally:
        timer.join()
        signal.signal(signal.SIGINT, former)
    assert time.monotonic() - began < 10
    assert list(reading) == [], "it is closed"


# ---- what cannot be read


def test_a_missing_topic_is_not_created(mock: Mock) -> None:
    for _ in range(2):
        with pytest.raises(TopicError, match=f"{mock.address} shows no topic __consumer_offsets .no group has ever"):
            next(read_topic(mock.address))
    with pytest.raises(TopicError, match="shows no topic nowhere"):
        next(read_topic(mock.address, topic="nowhere"))
    assert mock.producer.list_topics(timeout=10).topics == {}


def test_no_broker_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(
        TopicError, match=rf"no broker answers at 127.0.0.1:{port} within 1 s: .*refused.*check address"
    ):
        next(read_topic(f"127.0.0.1:{port}", patience_s=1))


def test_a_silent_broker_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(TopicError, match=f"no broker answers at {address} within 1 s"):
            next(read_topic(address, patience_s=1))
        assert time.monotonic() - began < 20


@pytest.mark.parametrize("config", [{"no.such.thing": "1"}, {"security.protocol": "carrier pigeon"}])
def test_settings_that_librdkafka_rejects(config: dict[str, str]) -> None:
    with pytest.raises(TopicError, match=r"librdkafka rejects these settings: .*(no.such.thing|security.protocol)"):
        next(read_topic("127.0.0.1:1", config))


def test_it_stays_a_reader(monkeypatch: pytest.MonkeyPatch, mock: Mock) -> None:
    """Settings that would make it commit are overruled."""
    made: list[dict[str, object]] = []
    consumer = confluent_kafka.Consumer

    def note(config: dict[str, object], **options: object) -> object:
        made.append(config)
        return consumer(config, **options)

    monkeypatch.setattr(confluent_kafka, "Consumer", note)
    mock.produce("t", 0, b"1", None, 1)
    mock.flush()
    (batch,) = read_topic(mock.address, {"enable.auto.commit": "true", "group.id": "g", "client.id": "c"}, topic="t")
    assert batch.num_rows == 1
    (config,) = made
    assert (config["enable.auto.commit"], config["group.id"], config["client.id"]) == (False, "g", "c")


def test_a_timestamp_beyond_64_bits_is_cut(mock: Mock) -> None:
    mock.produce("t", 0, b"1", None, 2**62)
    mock.flush()
    (batch,) = read_topic(mock.address, topic="t")
    assert batch["time_ns"].to_pylist() == [2**63 - 1]


def test_without_confluent_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(MissingLibraryError, match=r"kcoord_wire\[kafka\]"):
        next(read_topic("127.0.0.1:1"))
