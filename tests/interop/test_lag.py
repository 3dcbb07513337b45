"""Lag on a real broker: a recording of a slow consumer, the live cluster and Kafka's own tool agree."""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path

import confluent_kafka

from kcoord_wire.forensics.analysis import analyze
from kcoord_wire.forensics.sources.live import read_lag
from kcoord_wire.recorder.proxy import Recorder
from tests.support.kafka_broker import KafkaBroker, class_path, make_topics, run_java

GROUP, TOPIC, RECORDS = "slow", "orders", 300
AFTER = 30  # fetches have five records here, so that these were not all fetched before
Offsets = dict[int, tuple[int, int, int]]


def described(address: str) -> Offsets:
    """Current offset, end and lag of each partition, as kafka-consumer-groups.sh --describe prints them."""
    text = run_java(
        class_path("kafka-tools"),
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        *("--bootstrap-server", address, "--describe", "--group", GROUP),
    )
    rows = re.findall(rf"^{GROUP}\s+{TOPIC}\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s", text, re.MULTILINE)
    return {int(row[0]): (int(row[1]), int(row[2]), int(row[3])) for row in rows}


def produce(address: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "batch.num.messages": 5})
    for number in range(RECORDS):
        producer.produce(TOPIC, b"x" * 1_000, partition=number % 2)
    assert producer.flush(30) == 0


def test_recording_cluster_and_tool_agree_on_lag(tmp_path: Path) -> None:
    with KafkaBroker(tmp_path / "broker") as broker:
        make_topics(broker.address, {TOPIC: 2})
        produce(broker.address)
        with Recorder(broker.address, folder=tmp_path / "recording") as recorder:
            consumer = confluent_kafka.Consumer(
                {
                    "bootstrap.servers": recorder.address,
                    "group.id": GROUP,
                    "client.id": "slow-1",
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                    "queued.min.messages": 1,
                    "fetch.queue.backoff.ms": 200,
                    "max.partition.fetch.bytes": 5_000,
                }
            )
            consumer.subscribe([TOPIC])
            until, read, grown_at = time.monotonic() + 120, 0, 0.0
            more: Counter[int] = Counter()  # read since a recording must have shown the new ends, by partition
            while min(more[0], more[1]) < AFTER:
                assert time.monotonic() < until, more
                message = consumer.poll(1)
                if message is not None and message.error() is None:
                    consumer.commit(message=message, asynchronous=False)
                    read += 1
                    if read == RECORDS // 6:
                        produce(broker.address)
                        grown_at = time.monotonic()
                    elif grown_at and time.monotonic() > grown_at + 1.2:  # it keeps one fetch a second
                        more[message.partition()] += 1
            member = consumer.memberid()
            tool = described(broker.address)
            live = read_lag(broker.address, groups=[GROUP])
            consumer.close()
    assert sum(lag for _, _, lag in tool.values()) == 2 * RECORDS - read
    assert {row.partition: (row.committed_offset, row.end_offset, row.lag) for row in live} == tool
    assert {row.member_id for row in live} == {member}
    [history] = analyze([tmp_path / "recording"]).histories
    seen = {row.partition: (row.committed_offset, row.end_offset, row.lag) for row in history.partitions}
    assert seen == tool
    assert history.resets == []
    data = b"".join(path.read_bytes() for path in (tmp_path / "recording").iterdir())
    assert b"x" * 1_000 not in data
