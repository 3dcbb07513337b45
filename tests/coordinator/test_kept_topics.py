"""Topics on a disk: what a restart finds, what failing disks and crashes leave, and that Kafka's layout is kept."""

from __future__ import annotations

import logging
import uuid
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from random import Random

import pytest

from kcoord_wire import messages as m
from kcoord_wire.coordinator.partitions.batch_header import check_batch
from kcoord_wire.coordinator.partitions.journal import Journal, KnownTopic, KnownTopics
from kcoord_wire.coordinator.partitions.partition_log import PartitionLog
from kcoord_wire.coordinator.topics.catalog import TopicLimits
from kcoord_wire.kernel.disk import Disk, FolderDisk, MemoryDisk
from kcoord_wire.kernel.virtual.disk import VirtualDisk
from kcoord_wire.log.tail import CorruptLogError
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.records import ControlType, SegmentReader
from tests.support.broker import Broker, batch, sequenced, values
from tests.support.logs import content

FIRST = "00000000000000000000.log"


def opened(disk: Disk, topics: dict[str, int] | None = None, **limits: int) -> Broker:
    return Broker({"orders": 2} if topics is None else topics, disk=disk, limits=TopicLimits(**limits))


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


@pytest.fixture
def broker(disk: MemoryDisk) -> Broker:
    return opened(disk)


def in_segments(disk: Disk, *values: bytes) -> Broker:
    """A broker whose batches of a few thousand bytes have a segment each, with these."""
    broker = opened(disk, retention_bytes=160_000)
    for value in values:
        assert broker.produce(batch(value)).error_code == 0
    return broker


def epochs(broker: Broker, topic: str = "orders") -> list[int]:
    return [partition.leader_epoch for partition in broker.metadata(9, topic).topics[0].partitions]


def log_of(broker: Broker) -> PartitionLog:
    topic = broker.topics.catalog.named("orders")
    assert topic is not None
    return topic.logs[0]


def test_topics_and_records_are_there_after_a_restart(tmp_path: Path) -> None:
    broker = opened(FolderDisk(tmp_path))
    broker.topics.create("made", 3, {"retention.ms": "-1"})
    broker.topics.catalog.add_partitions("made", 1)
    ids = [broker.topics.id_of(name) for name in ("orders", "made")]
    for number in range(10):
        broker.produce(batch(b"%d" % number, b"again", at=1_000 * number))
    again = opened(FolderDisk(tmp_path), {"orders": 3})
    assert [again.topics.id_of(name) for name in ("orders", "made")] == ids
    assert (again.topics.partitions("orders"), again.topics.partitions("made")) == (3, 4)
    made = again.topics.catalog.named("made")
    assert made is not None
    assert made.configs == {"retention.ms": "-1"}
    assert values(again.fetch(0).records) == values(broker.fetch(0).records)
    assert again.produce(batch(b"more")).base_offset == 20
    assert (again.list_offset(4_000).offset, again.list_offset(-3).offset) == (8, 19)


def test_each_start_raises_the_leader_epoch(disk: MemoryDisk) -> None:
    for start in range(3):
        broker = opened(disk)
        assert epochs(broker) == [start, start]
        assert broker.produce(batch(b"%d" % start)).base_offset == start
    broker = opened(disk, {"orders": 2, "new": 1})
    assert epochs(broker, "new") == [0]
    assert [broker.list_offset(time).leader_epoch for time in (-2, -1)] == [0, 3]
    ends = [(broker.epoch_end(epoch).leader_epoch, broker.epoch_end(epoch).end_offset) for epoch in (0, 1, 2, 3, 4)]
    assert ends == [(0, 1), (1, 2), (2, 3), (3, 3), (-1, -1)]
    old, newer = (broker.fetch(0, 9, current_leader_epoch=epoch).error_code for epoch in (2, 4))
    assert (old, newer) == (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH)
    stored = [broker.fetch(offset).records or b"" for offset in range(3)]
    assert [int.from_bytes(data[12:16], "big") for data in stored] == [0, 1, 2]


def test_an_epoch_that_was_raised_is_kept(disk: MemoryDisk, broker: Broker) -> None:
    topic = broker.topics.catalog.named("orders")
    assert topic is not None
    for _ in range(3):
        broker.topics.catalog.raise_epochs(topic.leaders, [1])
    assert epochs(broker) == [0, 3]
    assert epochs(opened(disk)) == [1, 4]


def test_a_producer_that_sends_again_after_a_restart(disk: MemoryDisk, broker: Broker) -> None:
    for sequence in range(0, 12, 2):
        broker.produce(sequenced(sequence))
    again = opened(disk)
    assert [again.produce(sequenced(sequence)).base_offset for sequence in (2, 10)] == [2, 10]
    assert again.produce(sequenced(0)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert again.produce(sequenced(12)).base_offset == 12


def test_a_deleted_topic_leaves_the_disk_and_its_name_is_free(disk: MemoryDisk) -> None:
    broker = opened(disk, {"orders": 2, "orders-1": 1})
    broker.produce(batch(b"old"))
    broker.produce(batch(b"other"), topic="orders-1")
    old = broker.topics.id_of("orders")
    broker.topics.delete("orders")
    assert disk.folders() == ["orders-1-0"]
    broker.topics.create("orders", 1)
    assert broker.topics.id_of("orders") not in (old, None)
    assert broker.produce(batch(b"new")).base_offset == 0
    again = opened(disk, {})
    assert values(again.fetch(0).records) == [(0, b"new")]
    assert values(again.fetch(0, topic="orders-1").records) == [(0, b"other")]


def test_what_a_crash_leaves_of_a_deleted_topic_is_removed() -> None:
    disk = VirtualDisk(Random(1))
    broker = opened(disk)
    broker.produce(batch(b"old"))
    broker.topics.catalog.storage.journal.deleted(["orders"])  # and the process is killed
    again = opened(disk, {})
    assert disk.folders() == []
    again.topics.create("orders", 1)
    assert again.fetch(0).high_watermark == 0


@pytest.mark.parametrize("seed", range(8))
def test_a_power_failure_brings_no_deleted_records_back(seed: int) -> None:
    disk = VirtualDisk(Random(seed))
    opened(disk).produce(batch(b"old"))
    broker = opened(disk)  # which makes the folder durable
    folder = disk.folder("orders-0")
    folder.open(FIRST).sync()  # as the operating system does some time
    folder.sync_names()
    broker.topics.delete("orders")
    broker.topics.create("orders", 2)
    disk.crash()
    again = opened(disk)
    assert again.fetch(0).high_watermark == 0
    assert again.produce(batch(b"new")).base_offset == 0


def test_a_topic_has_another_id_after_all_were_deleted(disk: MemoryDisk) -> None:
    broker = opened(disk)
    before = broker.topics.id_of("orders")
    broker.topics.delete("orders")
    opened(disk, {})
    assert opened(disk).topics.id_of("orders") not in (before, None)


def test_files_that_cannot_be_removed_are_not_taken_over(caplog: pytest.LogCaptureFixture) -> None:
    disk = VirtualDisk(Random(1))
    broker = opened(disk)
    broker.produce(batch(b"old"))
    disk.fails_in = 2  # after the journal's append and fsync
    broker.topics.delete("orders")
    assert "files of the deleted topic orders cannot be removed before the next start" in caplog.text
    with pytest.raises(OSError, match="the folder of another partition is in the way"):
        broker.topics.create("orders", 1)
    again = opened(disk)
    assert again.fetch(0).high_watermark == 0


def test_a_folder_of_another_program_is_not_touched(disk: MemoryDisk) -> None:
    disk.folder("orders-0").open(FIRST).append(b"theirs")
    with pytest.raises(OSError, match="is in the way"):
        opened(disk)
    assert disk.folder("orders-0").sizes() == {FIRST: 6}


def test_the_start_of_a_log_is_kept(disk: MemoryDisk, broker: Broker) -> None:
    for number in range(6):
        broker.produce(batch(b"%d" % number, b"second", at=10 * number))
    log = log_of(broker)
    log.truncate_before(5)
    assert log.start_offset == 5
    for again in (broker, opened(disk)):
        assert [again.list_offset(time).offset for time in (-2, 0, 21)] == [5, 5, 5]
        assert again.fetch(4).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        fetched = again.fetch(5)
        assert (fetched.log_start_offset, values(fetched.records)[0][0]) == (5, 4)  # whole batches
    log = log_of(again)
    log.truncate_before(12)
    assert again.fetch(12).records == b""
    assert opened(disk).list_offset(-2).offset == 12


def test_deleted_records_leave_the_disk_by_segments(disk: MemoryDisk) -> None:
    broker = in_segments(disk, *[bytes(9_000)] * 10)
    log = log_of(broker)
    log.truncate_before(4)
    assert sorted(disk.folder("orders-0").sizes())[0] == f"{4:020}.log"
    again = in_segments(disk)
    assert (again.list_offset(-2).offset, again.list_offset(-1).offset) == (4, 10)


def test_a_torn_write_is_cut_off_and_said(caplog: pytest.LogCaptureFixture, disk: MemoryDisk, broker: Broker) -> None:
    broker.produce(batch(b"whole"))
    disk.folder("orders-0").open(FIRST).append(batch(b"half")[:50])
    again = opened(disk)
    assert "orders-0 ends in 50 bytes of a write that a crash has torn" in caplog.text
    assert again.produce(batch(b"next")).base_offset == 1
    assert values(again.fetch(0).records) == [(0, b"whole"), (1, b"next")]


@pytest.mark.parametrize("name", ["../../orders", "/orders", "..", ""])
def test_a_name_in_the_journal_does_not_lead_out_of_the_folder(name: str, disk: MemoryDisk) -> None:
    journal = Journal(disk)
    journal.begin(KnownTopics({name: KnownTopic(uuid.UUID(int=1), {}, [0])}))
    with pytest.raises(CorruptLogError, match="is not the name of a topic"):
        opened(disk)


@pytest.mark.parametrize("brokers", [[], [0, -1]])
def test_an_internal_partition_without_a_broker_is_an_error(brokers: list[int], disk: MemoryDisk) -> None:
    journal = Journal(disk)
    journal.begin(KnownTopics(kept={"replicas": {"__consumer_offsets-0": brokers}}))
    with pytest.raises(CorruptLogError, match="__consumer_offsets-0 is a partition without a broker"):
        opened(disk)


def damage(disk: MemoryDisk, at: int = 100) -> None:
    """Change a byte of the log of the partition orders-0."""
    data = content(disk.folder("orders-0"))[FIRST]
    disk.folder("orders-0").open(FIRST, new=True).append(data[:at] + b"\xff" + data[at + 1 :])


def test_a_log_ends_before_damage_and_is_consistent(caplog: pytest.LogCaptureFixture, disk: MemoryDisk) -> None:
    broker = opened(disk)
    for sequence in range(0, 8, 2):
        broker.produce(sequenced(sequence))
    size = log_of(broker).size // 4
    log_of(broker).truncate_before(5)
    before = content(disk.folder("orders-0"))[FIRST]
    damage(disk, 2 * size + 65)
    caplog.clear()
    again = opened(disk)
    (said,) = caplog.messages
    assert said.startswith(f"orders-0/{FIRST} at byte {2 * size}, offset 4: a batch with a wrong checksum; ")
    assert f"{2 * size} bytes are dropped, and kept in {FIRST}.cut-{2 * size}.1" in said
    kept = content(disk.folder("orders-0"))
    assert kept[FIRST] == before[: 2 * size]
    assert len(kept[f"{FIRST}.cut-{2 * size}.1"]) == 2 * size
    assert (again.list_offset(-2).offset, again.list_offset(-1).offset) == (4, 4)
    assert [(again.epoch_end(epoch).leader_epoch, again.epoch_end(epoch).end_offset) for epoch in (0, 1)] == [
        (0, 4),
        (1, 4),
    ]
    assert again.produce(sequenced(6)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert again.produce(sequenced(4)).base_offset == 4  # the producer's state ends with the log
    caplog.clear()
    once_more = opened(disk)  # the records that were deleted up to offset 5 do not take new ones along
    assert [offset for offset, _ in values(once_more.fetch(4).records)] == [4, 5]
    assert caplog.messages == []


def test_segments_behind_damage_are_set_aside(caplog: pytest.LogCaptureFixture, disk: MemoryDisk) -> None:
    in_segments(disk, *(b"%d" % number * 9_000 for number in range(6)))
    names = sorted(disk.folder("orders-0").sizes())
    assert names == [f"{offset:020}.log" for offset in range(6)]
    before = content(disk.folder("orders-0"))
    disk.folder("orders-0").open(names[2]).truncate(5_000)
    again = in_segments(disk)
    after = content(disk.folder("orders-0"))
    assert [offset for offset, _ in values(again.fetch(0).records)] == [0, 1]
    assert {name: after[f"{name}.cut-0.1"] for name in names[3:]} == {name: before[name] for name in names[3:]}
    assert after[f"{names[2]}.cut-0.1"] == before[names[2]][:5_000]
    assert [name for name in after if name.endswith(".log")] == names[:3]
    said = [record.message for record in caplog.records if "bytes are dropped" in record.message]
    assert [f"{name}.cut-0.1" in text for name, text in zip((names[2], *names[3:]), said, strict=True)] == [True] * 4
    assert again.produce(batch(b"next")).base_offset == 2
    caplog.clear()
    assert [offset for offset, _ in values(in_segments(disk).fetch(0).records)] == [0, 1, 2]
    assert caplog.messages == []


def test_damage_is_kept_though_a_repair_fails() -> None:
    fails_in, is_hit = 0, True
    while is_hit:
        disk = VirtualDisk(Random(1))
        in_segments(disk, *(b"%d" % number * 9_000 for number in range(4)))
        folder = disk.folder("orders-0")
        name = f"{1:020}.log"
        data = content(folder)[name]
        damaged = data[:-1] + bytes([data[-1] ^ 1])
        folder.open(name, new=True).append(damaged)
        disk.fails_in = fails_in
        with suppress(OSError):
            in_segments(disk)
        is_hit, disk.fails_in = disk.fails_in is None, None
        again = in_segments(disk)
        assert [offset for offset, _ in values(again.fetch(0).records)] == [0]
        kept = content(folder)
        assert damaged in [kept[each] for each in kept if each.startswith(f"{name}.cut-0.")]
        fails_in += 1
    assert fails_in > 10


def test_a_missing_segment_ends_the_log(disk: MemoryDisk) -> None:
    in_segments(disk, *(b"%d" % number * 9_000 for number in range(4)))
    disk.folder("orders-0").remove(f"{1:020}.log")
    again = in_segments(disk)
    assert [offset for offset, _ in values(again.fetch(0).records)] == [0]
    assert sorted(disk.folder("orders-0").sizes()) == [FIRST, *(f"{n:020}.log.cut-0.1" for n in (2, 3))]


@pytest.mark.parametrize("seed", range(60))
def test_a_power_failure_does_not_refuse_the_start(seed: int) -> None:
    disk = VirtualDisk(Random(seed))
    sent = [b"%d" % number * (3_000 + 500 * number) for number in range(8)]
    in_segments(disk, *sent)
    disk.sync_names()
    disk.folder("orders-0").sync_names()
    disk.crash()
    again = in_segments(disk)
    left = [value for _, value in values(again.fetch(again.list_offset(-2).offset).records)]
    assert left == sent[: len(left)]
    assert again.produce(batch(b"next")).base_offset == len(left)
    once_more = in_segments(disk)
    assert [value for _, value in values(once_more.fetch(0).records)] == [*left, b"next"]


@pytest.mark.parametrize("fails_in", range(4))
def test_a_disk_that_fails_refuses_and_loses_nothing(fails_in: int, caplog: pytest.LogCaptureFixture) -> None:
    disk = VirtualDisk(Random(fails_in))
    broker = opened(disk)
    disk.fails_in = fails_in
    outcomes = [broker.produce(batch(b"%d" % number)) for number in range(4)]
    failed = [outcome.error_code for outcome in outcomes]
    assert sorted(failed) == [0, 0, 0, ErrorCode.KAFKA_STORAGE_ERROR]
    stored = [number for number, error in enumerate(failed) if not error]
    for read in (broker, opened(disk)):
        assert [value for _, value in values(read.fetch(0).records)] == [b"%d" % number for number in stored]
    (said,) = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert said.startswith("orders-0 cannot be written: ")


def test_records_that_cannot_be_read(disk: MemoryDisk, broker: Broker) -> None:
    broker.produce(batch(b"value"))
    disk.folder("orders-0").open(FIRST).truncate(10)
    assert broker.fetch(0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert broker.list_offset(0).error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_changes_that_cannot_be_written_are_refused() -> None:
    disk = VirtualDisk(Random(1))
    broker = opened(disk)

    def failing(message: object, version: int, cls: type) -> object:
        disk.fails_in = 0
        return broker.ask(message, version, cls)

    wanted = m.CreateTopicsRequestCreatableTopic(name="new", num_partitions=1, replication_factor=1)
    created = failing(m.CreateTopicsRequest(topics=[wanted]), 5, m.CreateTopicsResponse)
    assert isinstance(created, m.CreateTopicsResponse)
    assert created.topics[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    deleted = failing(m.DeleteTopicsRequest(topic_names=["orders"]), 5, m.DeleteTopicsResponse)
    assert isinstance(deleted, m.DeleteTopicsResponse)
    assert deleted.responses[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert [topic.name for topic in broker.metadata(9).topics] == []
    assert broker.topics.partitions("orders") == 2
    disk.fails_in = None
    assert opened(disk, {}).topics.partitions("new") is None


def test_a_request_for_many_topics_costs_one_fsync() -> None:
    disk = VirtualDisk(Random(1))
    broker = opened(disk, {})
    names = [f"t{number}" for number in range(300)]
    new = [m.CreateTopicsRequestCreatableTopic(name=name, num_partitions=2, replication_factor=1) for name in names]
    more = [m.CreatePartitionsRequestCreatePartitionsTopic(name=name, count=3, assignments=None) for name in names]
    own = m.AlterConfigsRequestAlterableConfig(name="retention.ms", value="5")
    configs = [
        m.AlterConfigsRequestAlterConfigsResource(resource_type=kind, resource_name=name, configs=[own])
        for kind, name in [(2, name) for name in names]
    ]
    for request, version, cls in (
        (m.CreateTopicsRequest(topics=new), 5, m.CreateTopicsResponse),
        (m.CreatePartitionsRequest(topics=more), 1, m.CreatePartitionsResponse),
        (m.AlterConfigsRequest(resources=configs), 1, m.AlterConfigsResponse),
        (m.DeleteTopicsRequest(topic_names=names), 5, m.DeleteTopicsResponse),
    ):
        disk.power_left = 2  # operations until the power fails: one append, one fsync
        response = broker.ask(request, version, cls)
        assert disk.power_left == 0
        (answers,) = [each for field in fields(response) if isinstance(each := getattr(response, field.name), list)]
        assert [answer.error_code for answer in answers] == [0] * len(names)
    assert broker.deleted == sorted(names)


def test_many_topics_that_cannot_be_written_are_refused() -> None:
    disk = VirtualDisk(Random(1))
    broker = opened(disk, {"there": 1})
    new = [
        m.CreateTopicsRequestCreatableTopic(name=name, num_partitions=1, replication_factor=1)
        for name in ("a", "b", "there")
    ]
    disk.fails_in = 1  # the fsync
    answers = broker.ask(m.CreateTopicsRequest(topics=new), 5, m.CreateTopicsResponse).topics
    errors = [answer.error_code for answer in answers]
    assert errors == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.TOPIC_ALREADY_EXISTS]
    assert broker.topics.names()[:-1] == ["there"]
    broker = opened(disk, {})
    assert broker.topics.names()[:-1] == ["there"]
    assert broker.ask(m.CreateTopicsRequest(topics=new[:2]), 5, m.CreateTopicsResponse).topics[1].error_code == 0
    ids = [broker.topics.id_of(name) for name in ("a", "b")]
    again = opened(disk, {})
    assert [again.topics.id_of(name) for name in ("a", "b")] == ids
    again.topics.create("c", 1)
    assert again.topics.id_of("c") not in ids


def test_segments_are_kafkas_files(tmp_path: Path) -> None:
    broker = opened(FolderDisk(tmp_path), retention_bytes=16_000_000)
    for number in range(30):
        broker.produce(batch(bytes(100_000), b"%d" % number))
    files = sorted((tmp_path / "orders-0").iterdir())
    assert [file.name for file in files] == [f"{base:020}.log" for base in (0, 18, 36, 54)]
    found = []
    for file in files:
        with file.open("rb") as source:
            reader = SegmentReader(source)
            found += [record.offset for read in reader for record in read.records]
            assert reader.torn_tail is None
    assert found == list(range(60))
    assert len(values(broker.fetch(16, max_bytes=10 << 20).records)) == 20  # across segments


def test_open_and_aborted_transactions_are_known_after_a_restart(disk: MemoryDisk) -> None:
    log = log_of(opened(disk))

    def write(producer: int, sequence: int) -> None:
        data = sequenced(sequence, count=1, producer_id=producer, transactional=True)
        log.append(check_batch(data, 1 << 20), data, verified=True)

    write(5, 0)
    write(6, 0)
    log.end_transaction(5, 0, ControlType.ABORT, 0, now=1)
    write(7, 0)
    again = log_of(opened(disk))
    assert (again.stable_offset, again.end_offset) == (log.stable_offset, log.end_offset) == (1, 4)
    assert again.aborted_between(0, 4) == log.aborted_between(0, 4) != []
    again.end_transaction(6, 0, ControlType.COMMIT, 0, now=2)
    assert again.stable_offset == 3
