"""Compaction: what a round keeps, what readers see of it, when it comes, and what a crash leaves of it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from kcoord_wire.coordinator import Coordinator
from kcoord_wire.coordinator.partitions.batch_header import check_batch, read_header
from kcoord_wire.coordinator.partitions.compaction import Cleaning, Round
from kcoord_wire.coordinator.partitions.partition_log import PartitionLog
from kcoord_wire.coordinator.partitions.producers import AbortedTransaction, LastBatch
from kcoord_wire.coordinator.topics.catalog import TopicLimits
from kcoord_wire.coordinator.topics.compaction import Compacting
from kcoord_wire.kernel.disk import Disk, MemoryDisk
from kcoord_wire.kernel.virtual.disk import VirtualDisk
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.records import (
    Compression,
    ControlType,
    Record,
    RecordBatch,
    encode_batch,
    end_transaction_record,
    read_records,
)
from tests.support.broker import Broker, resealed

Logged = list[tuple[list[tuple[bytes | None, bytes | None]], Compression]]
Row = tuple[int, bytes | None, bytes | None]
HOUR = 3_600_000


def read(data: bytes | None) -> list[RecordBatch]:
    return [each for each in read_records(data or b"") if isinstance(each, RecordBatch)]


def rows(batches: list[RecordBatch]) -> list[Row]:
    """Offset, key and value of each record that is no marker."""
    data = [batch for batch in batches if not batch.is_control]
    return [(record.offset, record.key, record.value) for batch in data for record in batch.records]


def cleaned(log: list[bytes], what: Round, most_keys: int = 1_000) -> tuple[list[bytes], int]:
    """What a round leaves of a log, and where it ends."""
    cleaning = Cleaning(what, most_keys)
    for data in log:
        last_offset = int.from_bytes(data[:8], "big") + read_header(data).last_offset_delta
        if last_offset >= what.begin and not cleaning.note(data):
            break
    return [left for data in log if (left := cleaning.clean(data))], cleaning.end


# ---- what a round keeps

RECORDS = st.tuples(st.sampled_from([b"a", b"b", b"c", None]), st.sampled_from([b"1", b"2", None]))
LOGS = st.lists(
    st.tuples(st.lists(RECORDS, min_size=1, max_size=4), st.sampled_from([Compression.NONE, Compression.GZIP])),
    min_size=1,
    max_size=8,
)


def encoded(logged: Logged) -> list[bytes]:
    log, offset = [], 0
    for records, codec in logged:
        made = [Record(key, value, timestamp=1_000 + offset + n) for n, (key, value) in enumerate(records)]
        log.append(encode_batch(made, base_offset=offset, compression=codec))
        offset += len(records)
    return log


@given(LOGS, st.data())
def test_the_latest_of_each_key_is_left(logged: Logged, data: st.DataObject) -> None:
    """The model is a dict of what a reader has seen last of each key, and the offsets of its values."""
    log = encoded(logged)
    everything = rows([each for batch in log for each in read(batch)])
    end = data.draw(st.integers(0, len(everything)))
    middle = data.draw(st.integers(0, end))
    retention = data.draw(st.sampled_from([0, HOUR]))

    first, _ = cleaned(log, Round(0, middle, 5_000, retention))
    second, reached = cleaned(first, Round(middle, end, 6_000, retention))
    assert reached == end
    left = rows([each for batch in second for each in read(batch)])

    latest = {key: offset for offset, key, _ in everything if offset < end and key is not None}
    values = {offset: (offset, key, value) for offset, key, value in everything}
    due = [values[offset] for offset in sorted(latest.values())] + [row for row in everything if row[0] >= end]
    kept = [row for row in due if row in left]
    assert left == kept  # in their order, with their offsets, and nothing else
    assert {row for row in due if row not in left} <= {row for row in due if row[2] is None and not retention}
    spans = [(each.base_offset, each.last_offset) for batch in second for each in read(batch)]
    assert all(before[1] < after[0] for before, after in pairwise(spans))


def test_a_tombstone_stays_until_its_horizon() -> None:
    log = encoded([([(b"a", b"1")], Compression.NONE), ([(b"a", None), (b"b", b"2")], Compression.NONE)])
    log.append(encode_batch([Record(b"z", b"", 0)], base_offset=3))
    first, _ = cleaned(log, Round(0, 3, 1_000, HOUR))
    assert rows(read(b"".join(first))) == [(1, b"a", None), (2, b"b", b"2"), (3, b"z", b"")]
    assert [each.delete_horizon_ms for each in read(b"".join(first))] == [1_000 + HOUR, None]
    assert [record.timestamp for record in read(first[0])[0].records] == [1_001, 1_002]
    again, _ = cleaned(first, Round(3, 4, 999 + HOUR, HOUR))
    assert again[0] == first[0]  # nothing is written anew
    gone, _ = cleaned(again, Round(4, 4, 1_000 + HOUR, HOUR))
    assert rows(read(b"".join(gone))) == [(2, b"b", b"2"), (3, b"z", b"")]
    assert read(gone[0])[0].base_offset == 1


def test_too_many_keys_end_a_round_and_the_next_goes_on() -> None:
    log = encoded([([(b"%d" % number, b"1")], Compression.NONE) for number in (1, 2, 1, 2, 3)])
    first, end = cleaned(log, Round(0, 5, 0, 0), most_keys=2)
    assert (end, [row[0] for row in rows(read(b"".join(first)))]) == (2, [0, 1, 2, 3, 4])
    second, end = cleaned(first, Round(end, 5, 0, 0), most_keys=3)
    assert (end, [row[0] for row in rows(read(b"".join(second)))]) == (5, [2, 3, 4])


def test_a_batch_that_cannot_be_read_is_left_as_it_is() -> None:
    log = encoded([([(b"a", b"1")], Compression.GZIP), ([(b"a", b"2")], Compression.NONE)])
    broken = resealed(log[0], len(log[0]) - 8, bytes(4))
    left, _ = cleaned([broken, log[1]], Round(0, 2, 0, 0))
    assert left == [broken, log[1]]


class Sent(NamedTuple):
    """What transactions write: a batch of a key, or a marker where there is none."""

    key: bytes | None
    producer: int = 7
    commits: bool = True


def transactional(*sent: Sent) -> list[bytes]:
    log = []
    for offset, (key, producer, commits) in enumerate(sent):
        options = {"producer_id": producer, "producer_epoch": 0, "transactional": True, "base_offset": offset}
        if key is None:
            marker = end_transaction_record(ControlType.COMMIT if commits else ControlType.ABORT, 0, timestamp=5)
            log.append(encode_batch([marker], control=True, **options))
        else:
            log.append(encode_batch([Record(key, b"%d" % offset, 5)], base_sequence=offset, **options))
    return log


def test_aborted_records_go_and_hide_nothing() -> None:
    log = transactional(
        Sent(b"a", 1), Sent(None, 1), Sent(b"a", 2), Sent(None, 2, commits=False), Sent(b"b", 1), Sent(None, 1)
    )
    aborted = [AbortedTransaction(2, 2, 3)]
    cleaning = Cleaning(Round(0, 6, 0, 0, aborted))
    assert all(cleaning.note(data) for data in log)
    left = read(b"".join(map(cleaning.clean, log)))
    assert rows(left) == [(0, b"a", b"0"), (4, b"b", b"4")]
    assert [each.base_offset for each in left] == [0, 1, 3, 4, 5]  # both markers are left
    assert cleaning.aborted == aborted


def test_a_marker_goes_some_time_after_its_transaction() -> None:
    log = transactional(Sent(b"a"), Sent(None), Sent(b"a"), Sent(None), Sent(b"z"), Sent(None))
    first, _ = cleaned(log, Round(0, 6, 1_000, HOUR))
    assert [each.base_offset for each in read(b"".join(first))] == [1, 2, 3, 4, 5]
    second, _ = cleaned(first, Round(6, 6, 2_000, HOUR))
    assert [each.delete_horizon_ms for each in read(b"".join(second))] == [2_000 + HOUR, None, None, None, None]
    third, _ = cleaned(second, Round(6, 6, 2_000 + HOUR, HOUR))
    assert [each.base_offset for each in read(b"".join(third))] == [2, 3, 4, 5]


def test_the_last_batch_of_a_producer_stays_without_its_records() -> None:
    options = {"producer_id": 9, "producer_epoch": 3}
    log = [encode_batch([Record(b"a", b"1", 5), Record(b"b", b"1", 6)], base_offset=0, base_sequence=40, **options)]
    log.append(encode_batch([Record(b"a", b"2", 7), Record(b"b", b"2", 8)], base_offset=2))
    left, _ = cleaned(log, Round(0, 4, 0, 0, producers={9: LastBatch(3, 1)}))
    empty, full = read(b"".join(left))
    assert (empty.records, empty.last_offset, empty.base_sequence, empty.max_timestamp) == ((), 1, 40, 6)
    assert (empty.producer_id, empty.producer_epoch, full.base_offset) == (9, 3, 2)
    assert cleaned(log, Round(0, 4, 0, 0))[0] == left[1:]


# ---- what readers see

COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "0"}


def compacting(disk: Disk | None = None, **configs: str) -> Broker:
    """A broker whose topic is compacted. Batches of more than 5,000 bytes have a segment each."""
    broker = Broker({"orders": 1}, disk=disk, limits=TopicLimits(retention_bytes=160_000))
    broker.topics.catalog.configure({"orders": COMPACT | configs})
    return broker


def put(broker: Broker, key: bytes, value: bytes | None, at: int = 500, size: int = 9_000, **options: int) -> int:
    """Produce a record in a segment of its own, and return its offset."""
    data = encode_batch([Record(key, value if value is None else value.ljust(size), at)], **options)
    outcome = broker.produce(data)
    assert outcome.error_code == 0
    return outcome.base_offset


def log_of(broker: Broker) -> PartitionLog:
    topic = broker.topics.catalog.named("orders")
    assert topic is not None
    return topic.logs[0]


def compact(broker: Broker) -> Compacting:
    asked = broker.topics.compact("orders")
    while not asked.is_ended:
        assert broker.due() == 0
        broker.tick(broker.now)
    return asked


def seen(broker: Broker, offset: int = 0) -> list[tuple[int, bytes, bytes]]:
    """What a reader gets that goes on behind each batch."""
    found = []
    while True:
        batches = read(broker.fetch(offset).records)
        if not batches:
            return found
        found += [(at, key or b"", (value or b"-").strip()) for at, key, value in rows(batches)]
        offset = batches[-1].last_offset + 1


def test_readers_of_a_compacted_topic() -> None:
    broker = compacting()
    for number, key in enumerate((b"a", b"b", b"a", b"c", b"a", b"b")):
        put(broker, key, b"%d" % number, at=1_000 + number)
    before = log_of(broker).size
    (done,) = compact(broker).done
    assert (done.partition, done.before, done.after) == (0, before, log_of(broker).size)
    left = [(3, b"c", b"3"), (4, b"a", b"4"), (5, b"b", b"5")]
    assert seen(broker) == left
    assert [seen(broker, offset) for offset in (2, 3, 4, 6)] == [left, left, left[1:], []]
    fetched = broker.fetch(1)
    assert (fetched.error_code, fetched.high_watermark, fetched.log_start_offset) == (0, 6, 0)
    assert broker.fetch(7).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert [broker.list_offset(at).offset for at in (0, 1_003, 1_005, 1_006, -1, -2, -3)] == [3, 3, 5, -1, 6, 0, 5]
    assert put(broker, b"d", b"6") == 6


def test_what_is_asked_for() -> None:
    broker = compacting()
    put(broker, b"a", b"1", size=0)
    put(broker, b"a", b"2", size=0)
    assert len(log_of(broker).segments) == 1
    compact(broker)
    assert seen(broker) == [(1, b"a", b"2")]
    with pytest.raises(KeyError, match="no topic 'nope'"):
        broker.topics.compact("nope")
    broker.topics.catalog.configure({"orders": {}})
    with pytest.raises(ValueError, match="does not include compact"):
        broker.topics.compact("orders")


def test_an_empty_batch_is_found_by_no_time() -> None:
    broker = compacting()
    put(broker, b"a", b"1", at=9_000, producer_id=5, producer_epoch=0, base_sequence=0)
    put(broker, b"a", b"2", at=8_000)
    compact(broker)
    assert [each.last_offset for each in read(broker.fetch(0).records)] == [0, 1]
    assert broker.list_offset(8_500).offset == -1
    assert (broker.list_offset(-3).offset, broker.list_offset(-3).timestamp) == (1, 8_000)


def test_a_producer_goes_on_after_compaction_and_a_restart() -> None:
    disk = MemoryDisk()
    broker = compacting(disk)
    put(broker, b"a", b"1", producer_id=5, producer_epoch=2, base_sequence=0)
    put(broker, b"a", b"2")
    put(broker, b"b", b"3")
    compact(broker)
    for again in (broker, compacting(disk)):
        late = encode_batch([Record(b"c", b"", 0)], producer_id=5, producer_epoch=2, base_sequence=7)
        assert again.produce(late).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    good = encode_batch([Record(b"c", b"", 0)], producer_id=5, producer_epoch=2, base_sequence=1)
    assert again.produce(good).base_offset == 3


def test_aborted_transactions_that_are_gone_are_not_answered() -> None:
    """A reader that hears of one would take what the producer writes after it for aborted, too."""
    disk = MemoryDisk()
    broker = compacting(disk)
    log = log_of(broker)

    def send(number: int, key: bytes, control: ControlType) -> None:
        data = encode_batch(
            [Record(key, b"x" * 9_000, 5)], transactional=True, producer_id=4, producer_epoch=0, base_sequence=number
        )
        log.append(check_batch(data, 1 << 20), data, verified=True)
        log.end_transaction(4, 0, control, 0, 5)

    send(0, b"a", ControlType.ABORT)
    send(1, b"b", ControlType.COMMIT)
    put(broker, b"z", b"")
    for _ in range(3):
        compact(broker)
    for again in (broker, compacting(disk)):
        answer = again.fetch(0, isolation_level=1)
        assert answer.aborted_transactions == []
        assert [row[:2] for row in rows(read(answer.records))] == [(2, b"b"), (4, b"z")]
        assert log_of(again).aborted_between(0, 10) == []


# ---- when it comes


def test_the_cleaner_waits_for_its_time_and_for_a_second_segment() -> None:
    broker = compacting()
    put(broker, b"a", b"1")
    assert broker.due() == broker.now + 300_000  # retention alone
    put(broker, b"a", b"2")
    assert broker.due() == broker.now + 15_000
    broker.tick(broker.now + 14_999)
    put(broker, b"a", b"3")
    assert seen(broker) == [(0, b"a", b"1"), (1, b"a", b"2"), (2, b"a", b"3")]
    broker.tick(16_000)
    assert seen(broker) == [(1, b"a", b"2"), (2, b"a", b"3")]  # the last segment is never compacted


@pytest.mark.parametrize(
    ("configs", "left"),
    [
        ({}, 3),
        ({"min.cleanable.dirty.ratio": "0.9"}, 3),
        ({"min.compaction.lag.ms": "1000"}, 4),
        ({"min.compaction.lag.ms": "100000"}, 6),
        ({"min.compaction.lag.ms": "100000", "max.compaction.lag.ms": "1"}, 6),
        ({"cleanup.policy": "delete"}, 6),
        ({"cleanup.policy": "compact,delete"}, 3),
    ],
)
def test_the_configs_decide_what_is_due(configs: dict[str, str], left: int) -> None:
    broker = compacting(**configs)
    broker.now = 10_000
    for number, at in enumerate((5_000, 6_000, 7_000, 15_000, 24_500, 24_600)):
        put(broker, b"ab"[number % 2 :][:1], b"%d" % number, at=at)
    for _ in range(9):
        broker.tick(25_000)
    assert len(seen(broker)) == left


@pytest.mark.parametrize(("lag", "left"), [("100000", 3), ("5000", 2)])
def test_what_is_overdue_waits_for_no_share(lag: str, left: int) -> None:
    broker = compacting(**{"min.cleanable.dirty.ratio": "1", "max.compaction.lag.ms": lag})
    for number, at in enumerate((15_500, 15_500, 15_600)):
        put(broker, b"a", b"%d" % number, at=at)
    for _ in range(4):
        broker.tick(21_000)
    assert len(seen(broker)) == left


def test_an_altered_policy_is_due_at_once() -> None:
    broker = compacting(**{"cleanup.policy": "delete"})
    for number in range(3):
        put(broker, b"a", b"%d" % number)
    broker.tick(300_000)
    broker.topics.catalog.configure({"orders": COMPACT})
    assert broker.due() == 0
    for _ in range(3):
        broker.tick(300_000)
    assert [row[0] for row in seen(broker)] == [1, 2]
    assert broker.due() != 0


def test_segments_are_as_long_as_their_configs_say() -> None:
    broker = compacting(**{"segment.ms": "1000"})
    for at in (100, 200, 1_100, 1_101, 5_000):
        put(broker, b"a", b"", at=at, size=0)
    assert [segment.base_offset for segment in log_of(broker).segments] == [0, 3, 4]
    broker.topics.catalog.configure({"orders": COMPACT | {"max.compaction.lag.ms": "10"}})
    put(broker, b"a", b"", at=5_011, size=0)
    assert [segment.base_offset for segment in log_of(broker).segments] == [0, 3, 4, 5]


def test_small_segments_become_one() -> None:
    broker = compacting(**{"segment.ms": "1"})
    for number in range(10):
        put(broker, b"%d" % (number % 3), b"", at=10 * number + 1, size=0)
    compact(broker)
    assert [segment.base_offset for segment in log_of(broker).segments] == [0, 10]
    assert [row[0] for row in seen(broker)] == [7, 8, 9]


def test_what_compaction_has_emptied_does_not_stop_retention() -> None:
    broker = compacting(**{"cleanup.policy": "compact,delete", "retention.ms": "1000"})
    for number in range(4):
        put(broker, b"a", b"%d" % number)
    compact(broker)
    broker.now = 10_000_000
    put(broker, b"b", b"", at=10_000_000)
    broker.tick(20_000_000)
    assert [row[1] for row in seen(broker, log_of(broker).start_offset)] in ([], [b"b"])
    assert log_of(broker).start_offset >= 4


# ---- what a crash leaves


def settle(disk: VirtualDisk) -> None:
    """Let the operating system write everything."""
    with disk.undisturbed():
        disk.sync_names()
        for name in disk.folders():
            folder = disk.folder(name)
            folder.sync_names()
            for file in folder.sizes():
                folder.open(file).sync()


def filled(seed: int) -> tuple[VirtualDisk, Broker, dict[bytes, bytes]]:
    random = Random(seed)
    disk = VirtualDisk(random)
    broker = compacting(disk)
    model: dict[bytes, bytes] = {}
    for number in range(12):
        key = b"%d" % random.randrange(4)
        model[key] = b"%d" % number
        put(broker, key, model[key], size=random.choice([10, 9_000]))
    settle(disk)
    return disk, broker, model


def latest(broker: Broker) -> dict[bytes, bytes]:
    found = seen(broker)
    assert [row[0] for row in found] == sorted({row[0] for row in found})
    return {key: value for _, key, value in found}


def until_power_fails(seed: int) -> Iterator[tuple[int, VirtualDisk, dict[bytes, bytes]]]:
    """Disks of brokers whose power fails at each operation of a compaction."""
    for power in range(200):
        disk, broker, model = filled(seed)
        disk.power_left = power
        asked = compact(broker)
        if not disk.is_off and disk.power_left >= 0:
            assert not asked.failure
            return
        yield power, disk, model
    raise AssertionError("the compaction does not end")


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("loses", [True, False], ids=["power", "process"])
def test_a_crash_at_any_operation_loses_nothing(seed: int, loses: bool) -> None:
    count = 0
    for _, disk, model in until_power_fails(seed):
        (disk.crash if loses else disk.restart)()
        broker = compacting(disk)
        assert (latest(broker), log_of(broker).end_offset) == (model, 12)
        assert put(broker, b"new", b"") == 12
        assert not compact(broker).failure
        assert latest(broker) == latest(compacting(disk)) == model | {b"new": b""}
        assert all(name.endswith(".log") for name in disk.folder("orders-0").sizes())
        count += 1
    assert count > 8


@pytest.mark.parametrize("seed", range(3))
def test_a_disk_that_fails_is_tried_again(seed: int) -> None:
    failures = 0
    for fails_in in range(200):
        disk, broker, model = filled(seed)
        disk.fails_in = fails_in
        failed = compact(broker).failure
        if disk.fails_in is not None:
            break
        failures += bool(failed)
        assert latest(broker) == model
        assert not compact(broker).failure
        assert latest(broker) == latest(compacting(disk)) == model
    assert failures > 8


# ---- with a real client


def test_librdkafka_reads_over_the_gaps(tmp_path: Path) -> None:
    with Coordinator(data_dir=tmp_path) as coordinator:
        coordinator.create_topic("prices", 1, {"cleanup.policy": "compact", "delete.retention.ms": "0"})
        producer = Producer({"bootstrap.servers": coordinator.address, "enable.idempotence": True})
        for number in range(50):
            producer.produce("prices", key=b"%d" % (number % 7), value=None if number == 49 else b"%d" % number)
            producer.flush(10)
        for _ in range(2):
            (done,) = coordinator.compact("prices")
        assert done.after < done.before
        with pytest.raises(KeyError):
            coordinator.compact("nope")
        settings = {"group.id": "g", "auto.offset.reset": "earliest", "enable.partition.eof": True}
        consumer = Consumer({**coordinator.client_settings("librdkafka"), **settings})
        consumer.subscribe(["prices"])
        found = []
        while (message := consumer.poll(30)) is not None and message.error() is None:
            found.append((message.offset(), message.key(), message.value()))
        assert message is not None
        assert found == [(at, b"%d" % (at % 7), b"%d" % at) for at in range(43, 49)]
        assert consumer.get_watermark_offsets(TopicPartition("prices", 0)) == (0, 50)
        consumer.close()
