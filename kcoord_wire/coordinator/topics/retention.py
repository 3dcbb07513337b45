"""When records are dropped: what all topics may hold together, and each topic's retention.bytes and retention.ms.

Laws:

* Records are dropped by segments, from the start of a partition.
* Where all topics together hold too much, the one that holds most pays: of its segments that goes first which was
  appended to least recently. Compacted topics, whose oldest record may be the only one of its key, lose records only
  when the others have none left. What is the brokers' own is not among the topics.
* A topic whose cleanup.policy does not include ``delete`` keeps its records, whatever its retention.
* The first drop from a topic is logged with the setting that asks for it.

Source: kafka/storage `UnifiedLog.java` (deleteOldSegments), `LogManager.java` (cleanupLogs).
"""

from __future__ import annotations

import heapq
import logging
from typing import Final

from kcoord_wire.coordinator.core.apis import Refused
from kcoord_wire.coordinator.partitions.partition_log import PartitionLog
from kcoord_wire.coordinator.partitions.segments import Segment
from kcoord_wire.coordinator.topics.catalog import Catalog, Topic
from kcoord_wire.coordinator.topics.configuration import Configuration

_TOTAL: Final = "--retention-bytes (TopicLimits.retention_bytes)"
_AT_ONCE: Final = (
    64  # of the total, a part is dropped at a time: the partitions, of which there may be many, are compared
)
_CHECK_MS: Final = 300_000  # log.retention.check.interval.ms
_LONGEST_PAUSE_MS: Final = 86_400_000  # timestamps are the producers' and may lie in any future

_log = logging.getLogger("kcoord_wire.coordinator")

_Holder = tuple[int, str, list[tuple[int, int, PartitionLog]]]
"""A topic: its bytes below zero, its name, and its partitions with records as a heap, least recently written first."""


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
        why = f"all topics together may hold {total:,} bytes"
        for is_compacted in (False, True):
            if storage.held > total:
                self._shrink(total - total // _AT_ONCE, self._largest(is_compacted), why)
                why += ", and none is left that is not compacted"

    def _largest(self, is_compacted: bool) -> list[_Holder]:
        """Return the topics that hold records, as a heap with the largest first."""
        holders = []
        for topic in self._catalog:
            if self._configuration.record_rules(topic).is_compacted is is_compacted:
                logs = [
                    (first.stamp, index, log)
                    for index, log in enumerate(topic.logs)
                    if (first := log.first_segment) and first.size
                ]
                if logs:
                    heapq.heapify(logs)
                    holders.append((-sum(log.size for _, _, log in logs), topic.name, logs))
        heapq.heapify(holders)
        return holders

    def _shrink(self, goal: int, holders: list[_Holder], why: str) -> None:
        """Drop the oldest segment of the topic that is the largest each time, until no more is held than `goal`."""
        while holders and self._catalog.storage.held > goal:
            size, name, logs = holders[0]
            _, index, log = logs[0]
            before = log.size
            if not self._drop(log, _TOTAL, why):
                return
            first = log.first_segment
            if first and first.size:
                heapq.heapreplace(logs, (first.stamp, index, log))
            else:  # empty; what it still costs cannot be dropped
                heapq.heappop(logs)
            if logs:
                heapq.heapreplace(holders, (size + before - log.size, name, logs))
            else:
                heapq.heappop(holders)

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
        while (first := log.first_segment) and _is_older(log, first, now - age):
            if not self._drop(log, "retention.ms", f"records of the topic are kept for {age:,} ms"):
                break
        first = log.first_segment
        return None if first is None or first.max_timestamp < 0 else first.max_timestamp + age + 1

    def _is_deleted_from(self, topic: Topic) -> bool:
        return "delete" in self._configuration.value(topic, "cleanup.policy")

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


def _is_older(log: PartitionLog, first: Segment, than: int) -> bool:
    """Return whether the first segment can go: compaction may have left nothing in it but its name."""
    return 0 <= first.max_timestamp < than if first.size else len(log.segments) > 1
