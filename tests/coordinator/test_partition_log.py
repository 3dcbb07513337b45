"""One partition's records: what is found by its time."""

from __future__ import annotations

import pytest

from kcoord_wire.coordinator.partitions.batch_header import check_batch
from kcoord_wire.coordinator.partitions.partition_log import LeaderEpochs, PartitionLog, Storage
from kcoord_wire.kernel.disk import MemoryDisk
from kcoord_wire.records import Compression
from tests.support.broker import GOOD, Broker, batch, resealed, values


@pytest.mark.parametrize(
    "data",
    [
        resealed(GOOD, 22, b"\2"),  # not compressed, as it says
        resealed(GOOD, 61, b"\x7f"),
        resealed(GOOD, 35, (1_000).to_bytes(8, "big")),  # no record is as late as the header says
        batch(bytes(1 << 25), compression=Compression.ZSTD, at=1_000),  # more than is decompressed
        resealed(
            resealed(batch(b"a", compression=Compression.GZIP), 57, b"\0\1\0\0"), 23, b"\0\0\xff\xff"
        ),  # more records than are read
    ],
    ids=["codec", "record", "time", "bomb", "many"],
)
def test_a_batch_with_unreadable_records_is_found_whole(broker: Broker, data: bytes) -> None:
    latest = int.from_bytes(data[35:43], "big")
    assert broker.produce(data).error_code == 0
    for timestamp in (-3, latest):
        answer = broker.list_offset(timestamp)
        assert (answer.error_code, answer.offset, answer.timestamp) == (0, 0, latest)


def epochs(*begun: tuple[int, int]) -> LeaderEpochs:
    made = LeaderEpochs(*begun[0])
    for epoch, offset in begun[1:]:
        made.begin(epoch, offset)
    return made


def test_an_epoch_ends_where_the_next_begins() -> None:
    known = epochs((0, 0), (2, 100), (5, 150))
    ends = [known.end_of(epoch, 160) for epoch in (0, 1, 2, 3, 4, 5, 6, -1)]
    assert ends == [(0, 100), (0, 100), (2, 150), (2, 150), (2, 150), (5, 160), None, None]


def test_an_epoch_without_records_leaves_no_entry() -> None:
    known = epochs((0, 0), (1, 0), (2, 7), (3, 7))
    assert known.latest == 3
    assert [known.end_of(epoch, 9) for epoch in (0, 1, 2, 3)] == [(0, 0), (1, 7), (1, 7), (3, 9)]


def test_the_epoch_of_a_record() -> None:
    known = epochs((1, 0), (4, 10))
    assert [known.at(offset) for offset in (0, 9, 10, 11)] == [1, 1, 4, 4]


def test_epochs_before_the_start_are_forgotten() -> None:
    known = epochs((0, 0), (1, 10), (2, 20))
    known.forget_before(15)
    assert [known.end_of(epoch, 30) for epoch in (0, 1, 2)] == [(0, 15), (1, 20), (2, 30)]
    known.forget_before(40)
    assert known.end_of(1, 40) == (1, 40)
    assert known.at(40) == 2


DATA = batch(bytes(100))


def append(log: PartitionLog, data: bytes = DATA) -> None:
    log.append(check_batch(data, 1 << 20), data)


def test_bytes_are_counted_until_they_are_dropped() -> None:
    storage = Storage(MemoryDisk(), segment_bytes=1 << 20)
    log = PartitionLog(storage, "a-0")
    append(log)
    held = storage.held
    assert len(DATA) < held < len(DATA) + 4_096
    append(log)
    log.drop_first_segment()
    assert (storage.held, log.start_offset, log.end_offset) == (held - len(DATA) - 24, 2, 2)


@pytest.mark.parametrize("room", [0, 1, 2, 3])
def test_a_read_leaves_no_batch_out_between_segments(room: int) -> None:
    """What is left of the bytes after the first batch is enough for the next segment's, and not for the second."""
    log = PartitionLog(Storage(MemoryDisk(), segment_bytes=1_700), "a-0")
    small, large = batch(b"s"), batch(bytes(1_500))
    for data in (small, large, small, small):
        append(log, data)
    assert [segment.base_offset for segment in log.segments] == [0, 2]
    found = log.read(0, (1 + room) * len(small), True, log.end_offset)
    assert [offset for offset, _ in values(found)] == [0]
    assert [offset for offset, _ in values(log.read(1, 2_000, True, log.end_offset))] == [1, 2, 3]
