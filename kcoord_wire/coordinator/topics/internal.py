"""``__consumer_offsets`` and ``__transaction_state``, as clients read them: partitions that are views of a log.

The log of groups is one file after another for all groups. Partition p has the records of the groups that belong to it,
with the offsets that they have in that log: between them offsets are left out, as in any compacted topic. The log of
transactional ids is shown in the same way.

Laws:

* A batch has records of one partition only, in the order of the log. The marker of a transaction is in each partition
  that has records of it.
* Offsets are stable: a record has the same one after a compaction and after a restart, and a partition never ends
  before it ended. Where compaction has removed the last records of a partition, an empty batch covers their offsets.

Source: kafka/storage `Cleaner.java` (empty batches), `GroupCoordinatorService.partitionFor`,
`TransactionStateManager.partitionFor`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kcoord_wire.coordinator.core.events import Producer
from kcoord_wire.coordinator.log.batches import LogBatch
from kcoord_wire.coordinator.partitions.partition_log import PartitionLog, Storage
from kcoord_wire.coordinator.topics.catalog import Topic
from kcoord_wire.coordinator.topics.fetching import Growth
from kcoord_wire.kernel.disk import MemoryDisk
from kcoord_wire.records import Record, RecordBatch, encode_batch


class InternalTopic:
    """A topic that shows another log.

    :param topic: its partitions, which this fills
    :param partition_of: returns the partition of a record, by its key
    """

    def __init__(self, topic: Topic, partition_of: Callable[[bytes], int]) -> None:
        self.topic = topic
        self._partition_of = partition_of

    def is_read(self, message: Any) -> bool:
        """Return whether a Fetch, ListOffsets or OffsetForLeaderEpoch names the topic."""
        return any(
            getattr(part, "topic_id", None) == self.topic.id
            or self.topic.name in (getattr(part, "topic", ""), getattr(part, "name", ""))
            for part in message.topics
        )

    def extend(self, batches: Iterable[LogBatch]) -> list[Growth]:
        """Show more of the log, and return what that has added to partitions.

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
            producer = Producer(batch.producer_id, batch.producer_epoch) if batch.is_transactional else None
            self._show(logs, LogBatch(list(batch.records), producer, batch.is_control))
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

    def _show(self, logs: Sequence[PartitionLog], batch: LogBatch) -> list[Growth]:
        by_log: dict[PartitionLog, list[Record]] = {}
        if batch.is_marker and batch.producer is not None:
            ended = batch.producer.producer_id
            by_log = {log: batch.records for log in logs if log.has_open_transaction(ended)}
        else:
            for record in batch.records:
                partition = self._partition_of(record.key or b"")
                by_log.setdefault(logs[partition], []).append(record)
        grown = []
        for log, own in by_log.items():
            data = batch._replace(records=own).encode()
            stable = log.stable_offset
            log.show(data, own[-1].offset, max(record.timestamp for record in own))
            grown.append(Growth(log, len(data), log.bytes_between(stable, log.stable_offset)))
        return grown
