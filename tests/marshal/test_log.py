"""The laws of `marshal.log.Log`, in memory, in a folder and in a topic of our coordinator; what its entries hold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcoord_wire.errors import EncodeError
from kcoord_wire.marshal.file_log import FileLog
from kcoord_wire.marshal.kafka_log import KafkaLog
from kcoord_wire.marshal.log import RawEntry, coordination_partition
from kcoord_wire.marshal.memory import MemoryBroker, MemoryLog
from kcoord_wire.marshal.values import MAX_VALUE, check_id, read_entry, read_value
from kcoord_wire.marshal.world_state import Unreadable
from kcoord_wire.messages.marshal import Heartbeat
from tests.support.fixtures import StartCoordinator
from tests.support.log_contract import PARTITIONS, GapContract, LogContract, Logs, TrimContract
from tests.support.marshal_garbage import GARBAGE


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


GOLDEN = Path(__file__).parent.parent / "data" / "golden" / "marshal"


def test_coordination_partition_is_that_of_the_go_library() -> None:
    rows = [json.loads(line) for line in (GOLDEN / "partition_hash.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) > 100
    wrong = [row for row in rows if coordination_partition(row["topic"], row["partitions"]) != row["claim_partition"]]
    assert wrong == []


@pytest.mark.parametrize(("value", "kind"), GARBAGE.values(), ids=GARBAGE)
def test_what_is_no_message_becomes_the_reason(value: bytes | None, kind: str) -> None:
    message = read_entry(RawEntry(0, 5, -1, False, value)).message
    assert isinstance(message, Unreadable)
    assert message.kind == kind
    assert 0 < len(message) < 300


def test_a_value_of_the_greatest_length_is_read() -> None:
    zeros = b"0" * (MAX_VALUE - len(b"Heartbeat/1/2/ii/cl/gr/t/1/9"))
    message = read_value(b"Heartbeat/1/2/ii/cl/gr/t/1/" + zeros + b"9")
    assert isinstance(message, Heartbeat)


def test_a_message_keeps_its_place_in_the_log() -> None:
    entry = read_entry(RawEntry(3, 5, 1000, True, b"Heartbeat/1/2/ii/cl/gr/t/1/9"))
    assert entry[:4] == (3, 5, 1000, True)
    assert isinstance(entry.message, Heartbeat)
    assert entry.message.current_offset == 9


@pytest.mark.parametrize("wrong", ["", "a/b", "\ud800"])
def test_ids_that_nobody_could_read_are_refused(wrong: str) -> None:
    with pytest.raises(EncodeError):
        check_id("client_id", wrong)
    assert check_id("client_id", "cl-1") == "cl-1"
