"""The laws of `marshal.log.Log`: in memory, in a folder, and in a topic of our coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kcoord_wire.marshal.file_log import FileLog
from kcoord_wire.marshal.kafka_log import KafkaLog
from kcoord_wire.marshal.memory import MemoryBroker, MemoryLog
from tests.support.fixtures import StartCoordinator
from tests.support.log_contract import PARTITIONS, GapContract, LogContract, Logs, TrimContract


class TestMemoryLog(LogContract, GapContract, TrimContract):
    @pytest.fixture
    def logs(self) -> Iterator[Logs]:
        broker = MemoryBroker()
        broker.create("__marshal", PARTITIONS)
        with Logs(
            lambda: MemoryLog(broker),
            lambda partition, before: broker.trim("__marshal", partition, before),
            lambda partition: broker.skip("__marshal", partition),
            lambda count: broker.create("__marshal", count),
        ) as logs:
            yield logs


class TestFileLog(LogContract, TrimContract):
    @pytest.fixture
    def logs(self, tmp_path: Path) -> Iterator[Logs]:
        def trim(partition: int, before: int) -> None:
            for offset in range(before):  # each entry has a segment
                (tmp_path / f"__marshal-{partition}" / f"{offset:020d}.log").unlink(missing_ok=True)

        def grow(count: int) -> None:
            (tmp_path / f"__marshal-{count - 1}").mkdir()

        with Logs(lambda: FileLog(tmp_path, PARTITIONS, segment_bytes=1), trim, grow=grow) as logs:
            yield logs


class TestKafkaLogOnOurCoordinator(LogContract):
    @pytest.fixture
    def logs(self, coordinator: StartCoordinator) -> Iterator[Logs]:
        broker = coordinator(topics={"__marshal": PARTITIONS})

        def grow(count: int) -> None:
            broker.add_partitions("__marshal", count - PARTITIONS)

        with Logs(lambda: KafkaLog(broker.address, check_s=0.05), grow=grow, is_append_time=False) as logs:
            yield logs
