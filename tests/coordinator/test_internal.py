"""The views of the log of groups that ``__consumer_offsets`` consists of."""

from __future__ import annotations

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.events import LogRecord
from kcoord_wire.coordinator.log.store import Store
from kcoord_wire.coordinator.partitions.partition_log import PartitionLog
from kcoord_wire.coordinator.topics.catalog import Catalog
from kcoord_wire.coordinator.topics.internal import InternalTopic
from kcoord_wire.kernel.disk import MemoryDisk
from kcoord_wire.protocol.key_partitions import partition_of
from kcoord_wire.records import group_of_key, read_records
from tests.support.broker import BROKERS

GROUPS = [f"group-{number}" for number in range(8)]


class Log:
    """A store with commits of some groups, and the topic that shows it."""

    def __init__(self) -> None:
        self.store = Store(MemoryDisk())
        self.store.recover()
        own = Catalog("cluster", BROKERS).offsets
        self.topic = InternalTopic(own, lambda key: BROKERS.groups.partition_of(group_of_key(key)))
        self.topic.replace(self.topic.build(self.store.batches())[0])

    def commit(self, *groups: str, offset: int | None = 1) -> None:
        """Write a commit of each group, in one batch of the log."""
        for group in groups:
            value = None if offset is None else m.OffsetCommitValue(offset=offset)
            self.store.append([LogRecord(m.OffsetCommitKey(group=group, topic="orders", partition=0), value)], 1)
        sync = self.store.begin_sync()
        assert sync is not None
        sync.run()
        self.store.end_sync(sync)
        self.topic.extend(sync.batches)

    def rebuilt(self) -> list[PartitionLog]:
        """The partitions as a new process builds them."""
        return self.topic.build(self.store.batches())[0]


def offsets(log: PartitionLog) -> list[int]:
    data = log.read(0, 1 << 20, True, log.end_offset)
    return [record.offset for batch in read_records(data) for record in batch.records]


def shown(logs: list[PartitionLog]) -> dict[int, list[int]]:
    return {partition: offsets(log) for partition, log in enumerate(logs) if log.end_offset}


def test_a_partition_has_its_groups_records_at_their_offsets() -> None:
    log = Log()
    log.commit(*GROUPS)
    log.commit(*GROUPS)
    expected: dict[int, list[int]] = {}
    for offset, group in enumerate([*GROUPS, *GROUPS]):
        expected.setdefault(partition_of(group, 50), []).append(offset)
    assert shown(log.topic.topic.logs) == expected
    assert shown(log.rebuilt()) == expected
    for partition, found in expected.items():
        assert log.topic.topic.logs[partition].end_offset == found[-1] + 1


def test_compaction_moves_no_offset_and_no_end_back() -> None:
    log = Log()
    log.commit(*GROUPS)
    log.commit(*GROUPS[:4])
    log.commit(*GROUPS[:2], offset=None)
    before = {n: (offsets(each), each.end_offset) for n, each in enumerate(log.topic.topic.logs)}
    log.store.compact()
    for partition, each in enumerate(log.rebuilt()):
        found, end = before[partition]
        assert set(offsets(each)) <= set(found)
        assert each.end_offset >= end
        if each.end_offset:  # a reader comes to the end, whatever was removed
            (*_, last) = read_records(each.read(0, 1 << 20, True, each.end_offset))
            assert last.last_offset + 1 == each.end_offset


def test_uncompacted_partitions_end_with_their_records() -> None:
    log = Log()
    log.commit(GROUPS[0])
    ends = [each.end_offset for each in log.rebuilt()]
    assert sum(end > 0 for end in ends) == 1
