"""``__consumer_offsets``, as clients read it: partitions that are views of the log of groups.

The log of groups is one file after another for all groups. Partition p has the records of the groups that belong to it,
with the offsets that they have in that log: between them offsets are left out, as in any compacted topic.

Laws:

* A batch has records of one partition only, in the order of the log.
* Offsets are stable: a record has the same one after a compaction and after a restart, and a partition never ends
  before it ended. Where compaction has removed the last records of a partition, an empty batch covers their offsets.

Source: kafka/storage `Cleaner.java` (empty batches), `GroupCoordinatorService.partitionFor`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kcoord_wire.coordinator.topics.catalog import Topic
from kcoord_wire.coordinator.topics.fetching import Growth
from kcoord_wire.coordinator.topics.partition_log import PartitionLog
from kcoord_wire.coordinator.topics.storage import Storage
from kcoord_wire.disk import MemoryDisk
from kcoord_wire.records import Record, RecordBatch, encode_batch, group_of_key

__all__ = ["InternalTopic"]


class InternalTopic:
    """A topic that shows another log.

    :param topic: its partitions, which this fills
    :param partition_of: returns the partition of a group
    """

    def __init__(self, topic: Topic, partition_of: Callable[[str], int]) -> None:
        self.topic = topic
        self._partition_of = partition_of

    def extend(self, batches: Iterable[Sequence[Record]]) -> list[Growth]:
        """Show more records of the log, and return what that has added to partitions.

        :param batches: records with their offsets, which are greater than those shown before
        """
        return [grown for batch in batches for grown in self._show(self.topic.logs, batch)]

    def build(self, batches: Iterable[RecordBatch]) -> tuple[list[PartitionLog], int]:
        """Return partitions with the whole log, which `replace` shows, and the offset at which it ends. May run in any
        thread."""
        storage = Storage(MemoryDisk())
        logs = [PartitionLog(storage, log.name) for log in self.topic.logs]
        end = holes_end = 0
        for batch in batches:
            self._show(logs, batch.records)
            end = batch.last_offset + 1
            if len(batch.records) <= batch.last_offset - batch.base_offset:
                holes_end = end
        for log in logs:
            if log.end_offset < holes_end:
                last = holes_end - 1
                data = encode_batch([], base_offset=last, last_offset=last, partition_leader_epoch=0)
                log.show(data, last, -1)
        return logs, end

    def replace(self, logs: Sequence[PartitionLog]) -> list[PartitionLog]:
        """Show these partitions, and return those that were shown before."""
        before = list(self.topic.logs)
        self.topic.logs[:] = logs
        return before

    def _show(self, logs: Sequence[PartitionLog], records: Sequence[Record]) -> list[Growth]:
        by_partition: dict[int, list[Record]] = {}
        for record in records:
            by_partition.setdefault(self._partition_of(group_of_key(record.key or b"")), []).append(record)
        grown = []
        for partition, own in by_partition.items():
            data = encode_batch(own, partition_leader_epoch=0)
            latest = max(record.timestamp for record in own)
            logs[partition].show(data, own[-1].offset, latest)
            grown.append(Growth(logs[partition], len(data), len(data)))
        return grown
