"""When records are dropped: what all topics may hold together, and each topic's retention.bytes and retention.ms.

Laws:

* Records are dropped by segments, from the start of a partition, the segment that was appended to least recently first.
* A topic whose cleanup.policy does not include ``delete`` keeps its records, whatever its retention; the bound of all
  topics holds for it too. There is no compaction: ``compact`` keeps the older records of a key.
* The first drop from a topic is logged with the setting that asks for it, and that compaction is not done, once.

Source: kafka/storage `UnifiedLog.java` (deleteOldSegments), `LogManager.java` (cleanupLogs).
"""

from __future__ import annotations

import logging
from typing import Final

from kcoord_wire.coordinator.core.apis import Refused
from kcoord_wire.coordinator.partitions.partition_log import PartitionLog
from kcoord_wire.coordinator.topics.catalog import Catalog, Topic
from kcoord_wire.coordinator.topics.configuration import Configuration

_TOTAL: Final = "--retention-bytes (TopicLimits.retention_bytes)"
_CHECK_MS: Final = 300_000  # log.retention.check.interval.ms
_LONGEST_PAUSE_MS: Final = 86_400_000  # timestamps are the producers' and may lie in any future

_log = logging.getLogger("kcoord_wire.coordinator")


class Retention:
    """Drops the records of a catalog's topics.

    :param configuration: what is set for topics
    :param total: bytes of all partitions together; None for no bound
    :ivar deadline: when `check` is due, in ms; None if nothing can expire
    """

    def __init__(self, catalog: Catalog, configuration: Configuration, total: int | None) -> None:
        self._catalog = catalog
        self._configuration = configuration
        self._total = total
        self.deadline: int | None = None
        self._warned: set[tuple[str, str]] = set()

    def after_append(self, now: int) -> None:
        """Drop what is too much, after records were appended."""
        storage = self._catalog.storage
        if storage.grown:
            grown, storage.grown = storage.grown, []
            for log in dict.fromkeys(grown):
                topic = self._catalog.named(log.topic)
                if topic is not None:
                    self._bound_size(topic, log)
            self.deadline = min(self.deadline or now + _CHECK_MS, now + _CHECK_MS)
        if self._total is not None and storage.held > self._total:
            self._bound_total(self._total)

    def check(self, now: int) -> None:
        """Drop what has expired."""
        due = None
        for topic in self._catalog:
            for log in topic.logs:
                self._bound_size(topic, log)
                expires = self._expire(topic, log, now)
                if expires is not None:
                    due = min(due or expires, expires)
        self.deadline = None if due is None else min(max(due, now + _CHECK_MS), now + _LONGEST_PAUSE_MS)

    def _bound_total(self, total: int) -> None:
        storage = self._catalog.storage
        emptied: set[PartitionLog] = set()
        # What partitions cost without records may be more than the total, so one is emptied once.
        while storage.held > total and (log := storage.oldest()) is not None and log not in emptied:
            if not self._drop(log, _TOTAL, f"all topics together may hold {total:,} bytes"):
                break
            if log.start_offset == log.end_offset:
                emptied.add(log)

    def _bound_size(self, topic: Topic, log: PartitionLog) -> None:
        if self._is_deleted_from(topic):
            most = self._configuration.value(topic, "retention.bytes")
            while most >= 0 and (first := log.first_segment) and first.size and log.size - first.size >= most:
                if not self._drop(log, "retention.bytes", f"a partition of the topic may hold {most:,} bytes"):
                    break

    def _expire(self, topic: Topic, log: PartitionLog, now: int) -> int | None:
        """Drop what has expired, and return when the next records do; None if none will."""
        age: int = self._configuration.value(topic, "retention.ms")
        if age < 0 or not self._is_deleted_from(topic):
            return None
        while (first := log.first_segment) and first.size and 0 <= first.max_timestamp < now - age:
            if not self._drop(log, "retention.ms", f"records of the topic are kept for {age:,} ms"):
                break
        first = log.first_segment
        return None if first is None or first.max_timestamp < 0 else first.max_timestamp + age + 1

    def _is_deleted_from(self, topic: Topic) -> bool:
        policy = self._configuration.value(topic, "cleanup.policy")
        if "compact" in policy and self._is_new(topic.name, "cleanup.policy"):
            _log.warning(
                "topic %s has cleanup.policy=%s: it is not compacted here, the older records of its keys are kept",
                topic.name,
                ",".join(policy),
            )
        return "delete" in policy

    def _drop(self, log: PartitionLog, setting: str, why: str) -> bool:
        """Drop the oldest records of a partition; return whether the disk has done so."""
        start = log.start_offset
        try:
            size = log.drop_first_segment()
        except Refused:
            return False  # which the partition has logged
        if self._is_new(log.topic, setting):
            _log.warning(
                "records of topic %s are dropped by %s: offsets %d to %d of %s (%d bytes), since %s; further drops from"
                " it are not logged",
                log.topic,
                setting,
                start,
                log.start_offset - 1,
                log.name,
                size,
                why,
            )
        return True

    def _is_new(self, topic: str, setting: str) -> bool:
        known = (topic, setting) in self._warned
        self._warned.add((topic, setting))
        return not known
