"""``__consumer_offsets`` of a real Kafka as a stream: killed in the middle, gone on from its checkpoint, nothing lost.

Spark's Kafka source is fetched with Maven: the release of this pyspark, or one that the repository has. It leaves
internal topics out, without a word, unless spark.sql.streaming.kafka.useDeprecatedOffsetFetching is true.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from confluent_kafka import Consumer, TopicPartition

from kcoord_wire.forensics.model import LogRow, table_of
from kcoord_wire.forensics.records.reader import group_of, log_histories
from tests.support.kafka_broker import KAFKA, KafkaBroker, create_topics
from tests.support.maven import jars
from tests.support.spark_job import Job

RELEASES = [(pyspark.__version__, pyspark.__version__), ("4.2.0", "4.0.0")]
"""Of Spark's Kafka source and of its token provider: not every repository has every release of both."""

JOB = '''
"""Writes the topic's records to Parquet until it has to stop; then reports what is there, and which groups."""
import json, os, sys, time
from pyspark.sql import functions as F
from kcoord_wire.spark import from_kafka_wire, group_histories, kafka_records, session

address, folder, jars, at_once = sys.argv[1:]
spark = session("local[2]", **{
    "spark.jars": jars, "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2",
    # What asks for offsets by default, the admin client, is made to pass over internal topics.
    "spark.sql.streaming.kafka.useDeprecatedOffsetFetching": "true",
})
topic = spark.readStream.format("kafka").options(**{
    "kafka.bootstrap.servers": address, "subscribe": "__consumer_offsets", "startingOffsets": "earliest",
    "maxOffsetsPerTrigger": at_once}).load()
rows = kafka_records(topic)
options = {"message": "OffsetCommitKey,GroupMetadataKey", "form": "prefixed", "mode": "PERMISSIVE"}
named = rows.withColumn("k", from_kafka_wire("key", options))
written = named.writeStream.format("parquet").option("checkpointLocation", folder + "/checkpoint")
query = written.trigger(processingTime="300 milliseconds").start(folder + "/rows")
while not os.path.exists(folder + "/stop"):
    assert query.isActive, query.exception()
    time.sleep(0.1)
query.processAllAvailable()
query.stop()
read = spark.read.parquet(folder + "/rows")
hexed = F.hex("key"), F.hex("value")
found = read.select("partition", "offset", *hexed, "k.OffsetCommitKey.group", "k._error").collect()
histories = group_histories(read.drop("k"))
groups = [[h.group.group_id, h.group.commits, h.group.rebalances] for h in histories.collect()]
with open(folder + "/found.json", "w") as file:
    json.dump({"rows": [list(row) for row in found], "groups": groups}, file)
spark.stop()
'''


def spark_jars() -> str:
    """Spark's Kafka source and what it needs beside pyspark, for the setting spark.jars."""
    others = [("org.apache.kafka", "kafka-clients", KAFKA), ("org.apache.commons", "commons-pool2", "2.12.0")]
    releases = [
        [
            ("org.apache.spark", "spark-sql-kafka-0-10_2.13", source),
            ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", tokens),
            *others,
        ]
        for source, tokens in RELEASES
    ]
    return jars(f"spark-sql-kafka-{pyspark.__version__}", *releases)


class Clients:
    """Consumers that join, commit and leave, one after the other and two at a time, until the block is left."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.commits = 0
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._live, args=(f"group-{n}",)) for n in range(2)]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _live(self, group: str) -> None:
        settings = {"bootstrap.servers": self.address, "group.id": group, "enable.auto.commit": False}
        while not self._over.is_set():
            consumer = Consumer(settings)
            consumer.subscribe(["orders"])
            try:
                for _ in range(40):
                    consumer.poll(0.1)
                    if consumer.assignment():
                        consumer.commit(offsets=[TopicPartition("orders", 0, 0)], asynchronous=False)
                        self.commits += 1
                    if self._over.is_set():
                        break
            finally:
                consumer.close()


def read_plainly(address: str) -> list[LogRow]:
    """Every record of the topic, by a plain consumer."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "reader", "enable.auto.commit": False})
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition("__consumer_offsets", 0), timeout=10)
        consumer.assign([TopicPartition("__consumer_offsets", 0, 0)])
        rows: list[LogRow] = []
        while not rows or rows[-1].offset < end - 1:
            message = consumer.poll(10)
            assert message is not None
            assert message.error() is None
            time_ns = message.timestamp()[1] * 1_000_000
            at = message.offset()
            rows.append(LogRow("__consumer_offsets-0", 0, at, at, time_ns, message.key(), message.value()))
        return rows
    finally:
        consumer.close()


def names_of(rows: list[LogRow]) -> list[str]:
    """The group of each record."""
    names: list[str] = group_of(pa.array([row.key for row in rows], pa.binary())).to_pylist()
    return names


def as_hex(data: bytes | None) -> str | None:
    return None if data is None else data.hex().upper()


@pytest.mark.slow
def test_a_killed_query_goes_on_where_it_was(tmp_path: Path) -> None:
    properties = {"auto.create.topics.enable": "true", "group.initial.rebalance.delay.ms": "0"}
    with KafkaBroker(tmp_path / "kafka", properties) as broker:
        create_topics(broker.address, ["orders"])
        with Clients(broker.address) as clients:
            arguments = broker.address, str(tmp_path), spark_jars()
            with Job(JOB, tmp_path, *arguments, "40") as job:
                job.until(lambda: job.committed() >= 3)
                job.until(lambda: job.planned() > job.committed())  # in the middle of a batch
            killed_at, before = job.committed(), clients.commits
            with Job(JOB, tmp_path, *arguments, "400") as job:
                job.until(lambda: job.committed() >= killed_at + 2)
                clients.__exit__()
                (tmp_path / "stop").touch()
                job.process.wait(100)
        assert job.process.returncode == 0, job.written()
        every = read_plainly(broker.address)
    found = json.loads((tmp_path / "found.json").read_text())
    rows = sorted(found["rows"], key=lambda row: row[1])
    expected, later = every[: len(rows)], every[len(rows) :]
    assert [row[:4] for row in rows] == [[0, row.offset, as_hex(row.key), as_hex(row.value)] for row in expected]
    assert clients.commits > before > 0
    names = names_of(expected)
    for (*_, group, error), row, name in zip(rows, expected, names, strict=True):
        assert error is None
        assert group == (name if row.key is not None and row.key[:2] == b"\0\1" else None)
    # After its end there is but the leave of the group that the query itself asked for offsets with.
    assert all(name.startswith("spark-kafka-source-") for name in names_of(later))
    histories = log_histories(table_of(LogRow, expected))
    assert found["groups"] == [[h.group.group_id, h.group.commits, h.group.rebalances] for h in histories]
    assert sum(h.group.commits for h in histories) >= clients.commits
