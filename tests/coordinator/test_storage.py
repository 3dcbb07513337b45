"""Which segment of all partitions was appended to least recently."""

from __future__ import annotations

from kcoord_wire.coordinator.partitions.batch_header import check_batch
from kcoord_wire.coordinator.partitions.partition_log import PartitionLog, Storage
from kcoord_wire.kernel.disk import MemoryDisk
from tests.support.broker import batch

DATA = batch(bytes(100))


def append(log: PartitionLog) -> None:
    log.append(check_batch(DATA, 1 << 20), DATA)


def test_the_least_recent_segment_is_the_next_to_go() -> None:
    storage = Storage(MemoryDisk(), segment_bytes=2 * len(DATA))
    assert storage.oldest() is None
    a, b = PartitionLog(storage, "a-0"), PartitionLog(storage, "b-0")
    for log in (a, b, b, b, a):
        append(log)
    assert storage.oldest() is b  # of a the first segment is still written
    b.drop_first_segment()
    assert storage.oldest() is b
    b.drop_first_segment()
    assert storage.oldest() is a
    a.remove()
    b.remove()
    assert storage.oldest() is None
    assert storage.held == 0


def test_bytes_are_counted_until_they_are_dropped() -> None:
    storage = Storage(MemoryDisk(), segment_bytes=1 << 20)
    log = PartitionLog(storage, "a-0")
    append(log)
    held = storage.held
    assert len(DATA) < held < len(DATA) + 4_096
    append(log)
    log.drop_first_segment()
    assert (storage.held, log.start_offset, log.end_offset) == (held - len(DATA) - 24, 2, 2)
