"""A Java application that consumes, transforms and produces in transactions, while it and the coordinator are killed.

Judged by a reader of committed records: every record is there exactly once.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from kcoord_wire.coordinator import Coordinator, GroupConfig
from kcoord_wire.zookeeper.ensemble import free_ports
from tests.support.kafka_broker import KAFKA, class_path, compile_java, java, run_java

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


@contextmanager
def served(folder: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """A coordinator in a process of its own, which has said that it serves."""
    command = [sys.executable, "-m", "kcoord_wire", "serve", "--port", str(port), "--data-dir", str(folder)]
    command += ["--topics", f"in:1,out:{PARTITIONS}", "--config", "group.initial.rebalance.delay.ms=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline(), "it ends before it serves"
            yield process
        finally:
            process.kill()


@contextmanager
def transforming(path: str, address: str) -> Iterator[subprocess.Popen[str]]:
    """The application; it prints a line for each transaction that it has committed."""
    command = java(path, "Transform", address, "tx", "in", "out", "billing", str(RECORDS - 1))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def lines(process: subprocess.Popen[str], count: int) -> None:
    assert process.stdout is not None
    for _ in range(count):
        assert process.stdout.readline(), "it ends early"


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
        producer = Producer({"bootstrap.servers": address})
        for number in range(RECORDS):
            producer.produce("in", b"%d" % number)
        assert producer.flush(SECONDS) == 0
        with transforming(programs[version], address) as application:
            lines(application, 4)
            application.kill()  # its transaction may be open, its member is in the group
        application = stack.enter_context(transforming(programs[version], address))
        lines(application, 4)
        coordinator.kill()
        coordinator.wait()
        stack.enter_context(served(tmp_path, port))
        application.communicate(timeout=120)
        assert application.returncode == 0
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
