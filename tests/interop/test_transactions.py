"""Applications that consume, transform and produce in transactions, while they and the coordinator are killed.

In Java, on librdkafka and on aiokafka. Judged by a reader of committed records: every record is there exactly once.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from kcoord_wire.coordinator import Coordinator, GroupConfig
from kcoord_wire.zookeeper.ensemble import free_ports
from tests.support.kafka_broker import KAFKA, class_path, compile_java, java, run_java
from tests.support.processes import Process

VERSIONS = ("3.9.2", "4.4.0")  # the latter adds partitions and raises epochs by itself (KIP-890)
RECORDS = 200
PARTITIONS = 3
SECONDS = 60  # to wait for what must come
SOURCE = Path(__file__).parents[1] / "support" / "java" / "Transform.java"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The class path of the application, compiled against each version of kafka-clients."""
    return {
        version: compile_java(SOURCE, tmp_path_factory.mktemp("classes"), class_path("kafka-clients", version))
        for version in VERSIONS
    }


def served(folder: Path, port: int) -> Process:
    """A coordinator in a process of its own, which has said that it serves."""
    command = [sys.executable, "-m", "kcoord_wire", "serve", "--port", str(port), "--data-dir", str(folder)]
    command += ["--topics", f"in:1,out:{PARTITIONS}", "--config", "group.initial.rebalance.delay.ms=0"]
    return Process(command, ready="serves")


def transforming(path: str, address: str) -> Process:
    """The application; it prints a line for each transaction that it has committed."""
    return Process(java(path, "Transform", address, "tx", "in", "out", "billing", str(RECORDS - 1)))


def lines(process: Process, count: int) -> None:
    for _ in range(count):
        process.line()


def fill(address: str) -> None:
    """Write what the applications transform."""
    producer = Producer({"bootstrap.servers": address})
    for number in range(RECORDS):
        producer.produce("in", b"%d" % number)
    assert producer.flush(SECONDS) == 0


def committed(address: str) -> list[int]:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "judge",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        consumer.assign([TopicPartition("out", partition, 0) for partition in range(PARTITIONS)])
        found: list[int] = []
        ended = 0
        while ended < PARTITIONS:
            message = consumer.poll(SECONDS)
            assert message is not None, "nothing comes"
            if (error := message.error()) is None:
                found.append(int(message.value() or b""))
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended += 1
        return sorted(found)
    finally:
        consumer.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_exactly_once_through_kills(version: str, programs: dict[str, str], tmp_path: Path) -> None:
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    with ExitStack() as stack:
        coordinator = stack.enter_context(served(tmp_path, port))
        fill(address)
        with transforming(programs[version], address) as application:
            lines(application, 4)
            application.kill()  # its transaction may be open, its member is in the group
        application = stack.enter_context(transforming(programs[version], address))
        lines(application, 4)
        coordinator.kill()
        stack.enter_context(served(tmp_path, port))
        assert application.finish(120)[0] == 0
        assert committed(address) == list(range(RECORDS))


READING = {
    "group_id": "billing",
    "isolation_level": "read_committed",
    "auto_offset_reset": "earliest",
    "enable_auto_commit": False,
    "session_timeout_ms": 60_000,
}
"""How the applications in Python consume, by aiokafka's names."""
BATCH = 10
CRASH, ABORT = 2, 5  # transactions: the coordinator is killed before the commit of one, another is aborted


def transform_with_librdkafka(address: str, crash: Callable[[], None]) -> None:
    # librdkafka 2.16 drops a broker that is the only one and down ("rebootstrap"), and then sends it no batches again.
    common = {"bootstrap.servers": address, "metadata.recovery.strategy": "none"}
    consumer = Consumer({**common, **{name.replace("_", "."): value for name, value in READING.items()}})
    producer = Producer({**common, "transactional.id": "tx"})
    producer.init_transactions(SECONDS)
    consumer.subscribe(["in"])
    try:
        seen = -1
        transaction = 0
        while seen < RECORDS - 1:
            records = consumer.consume(BATCH, SECONDS)
            assert [record.error() for record in records] == [None] * BATCH
            producer.begin_transaction()
            for record in records:
                producer.produce("out", record.value())
                seen = int(record.value() or b"")
            places = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), SECONDS)
            transaction += 1
            if transaction == CRASH:
                crash()
            if transaction == ABORT:
                producer.abort_transaction(SECONDS)
                for place in consumer.committed(places, SECONDS):
                    consumer.seek(place)
            else:
                producer.commit_transaction(SECONDS)
    finally:
        consumer.close()


def transform_with_aiokafka(address: str, crash: Callable[[], None]) -> None:
    async def transform() -> None:
        consumer = AIOKafkaConsumer("in", bootstrap_servers=address, **READING)
        producer = AIOKafkaProducer(bootstrap_servers=address, transactional_id="tx")
        async with consumer, producer:
            seen = -1
            transaction = 0
            while seen < RECORDS - 1:
                fetched = await consumer.getmany(timeout_ms=SECONDS * 1_000, max_records=BATCH)
                assert fetched, "nothing comes"
                await producer.begin_transaction()
                for record in (record for records in fetched.values() for record in records):
                    await producer.send("out", record.value)
                    seen = int(record.value)
                places = {partition: await consumer.position(partition) for partition in fetched}
                await producer.send_offsets_to_transaction(places, "billing")
                transaction += 1
                if transaction == CRASH:
                    await asyncio.to_thread(crash)
                if transaction == ABORT:
                    await producer.abort_transaction()
                    await consumer.seek_to_committed()
                else:
                    await producer.commit_transaction()

    asyncio.run(asyncio.wait_for(transform(), 2 * SECONDS))


@pytest.mark.parametrize("transform", [transform_with_librdkafka, transform_with_aiokafka])
def test_offsets_in_transactions_through_a_kill(
    transform: Callable[[str, Callable[[], None]], None], tmp_path: Path
) -> None:
    """The coordinator is killed between the offsets of a transaction and its commit."""
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    with ExitStack() as stack:
        coordinator = stack.enter_context(served(tmp_path, port))
        fill(address)

        def crash() -> None:
            coordinator.kill()
            stack.enter_context(served(tmp_path, port))

        transform(address, crash)
        assert committed(address) == list(range(RECORDS))


def test_kafkas_tool_lists_describes_and_aborts() -> None:
    with Coordinator(topics={"orders": 1}, config=GroupConfig()) as coordinator:
        producer = Producer({"bootstrap.servers": coordinator.address, "transactional.id": "billing"})
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        producer.produce("orders", b"open")
        assert producer.flush(SECONDS) == 0

        def ask(*arguments: str) -> str:
            tool = "org.apache.kafka.tools.TransactionsCommand"
            return run_java(
                class_path("kafka-tools", KAFKA), tool, "--bootstrap-server", coordinator.address, *arguments
            )

        assert "Ongoing" in ask("list")
        assert "orders-0" in ask("describe", "--transactional-id", "billing")
        ask("abort", "--topic", "orders", "--partition", "0", "--start-offset", "0")
        consumer = Consumer({"bootstrap.servers": coordinator.address, "group.id": "judge"})
        try:
            assert consumer.get_watermark_offsets(TopicPartition("orders", 0), SECONDS) == (0, 2)
        finally:
            consumer.close()
