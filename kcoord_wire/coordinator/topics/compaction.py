"""When partitions are compacted: topics whose cleanup.policy includes ``compact``, by time and on request.

Laws:

* The last segment of a partition is never compacted, nor anything from the last stable offset on, nor segments with a
  record younger than min.compaction.lag.ms. What is older than max.compaction.lag.ms makes the rest due at once,
  otherwise its share of the partition has to be greater than min.cleanable.dirty.ratio.
* One partition at a time, first the one with the greatest share of what was not compacted. What a step reads is
  bounded, so that requests are answered meanwhile.
* What is asked for begins a new segment and waits for no share; the two lags and delete.retention.ms hold for it, too.
* A partition whose disk fails is tried again after ``log.cleaner.backoff.ms``.

Source: kafka/storage `LogCleaner.java`, `LogCleanerManager.java` (grabFilthiestCompactedLog, cleanableOffsets,
maxCompactionDelay), `LogToClean.java`; KIP-58, KIP-354.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from kcoord_wire.coordinator.core.apis import Refused
from kcoord_wire.coordinator.partitions.partition_log import PartitionLog
from kcoord_wire.coordinator.topics.catalog import Catalog, Topic
from kcoord_wire.coordinator.topics.configuration import Configuration

_STEP_BYTES: Final = 128 << 10  # of batches, about 10 ms


class Dirt(NamedTuple):
    """What of a partition can be compacted.

    :ivar end: the offset before which it can
    :ivar clean: bytes that the last round has left
    :ivar dirty: bytes that are newer
    :ivar is_overdue: whether a record of these is older than max.compaction.lag.ms
    """

    end: int
    clean: int
    dirty: int
    is_overdue: bool

    @property
    def share(self) -> float:
        """The share of what is newer."""
        return self.dirty / (self.clean + self.dirty) if self.dirty else 0.0


def dirt_of(log: PartitionLog, now: int, min_lag_ms: int, max_lag_ms: int) -> Dirt:
    """Return what of a partition can be compacted now."""
    begin = max(log.compacted.clean_before, log.start_offset)
    closed = log.segments[:-1]
    end = min(log.stable_offset, log.segments[-1].base_offset) if log.segments else 0
    newer = [segment for segment in closed if segment.end_offset > begin]
    for segment in newer if min_lag_ms else ():
        if segment.max_timestamp > now - min_lag_ms:
            end = min(end, segment.base_offset)
            break
    end = max(begin, end)
    sizes = [(segment.base_offset < begin, segment.size) for segment in closed if segment.base_offset < end]
    first = min((each.first_timestamp for each in newer if each.first_timestamp > 0), default=now)
    clean = sum(size for is_clean, size in sizes if is_clean)
    return Dirt(end, clean, sum(size for _, size in sizes) - clean, first < now - max_lag_ms)


class Compacted(NamedTuple):
    """A partition that was compacted on request.

    :ivar partition: its number
    :ivar before: bytes of its batches before
    :ivar after: likewise after; batches that have come meanwhile count in both
    """

    partition: int
    before: int
    after: int


class Compacting:
    """A topic that is compacted on request.

    :param topic: which
    :ivar waiting: its partitions that were not yet, with their numbers
    :ivar done: those that were
    :ivar failure: why one was not; empty for none
    :ivar is_ended: whether all were tried
    """

    def __init__(self, topic: Topic) -> None:
        self.waiting = deque(enumerate(topic.logs))
        self.done: list[Compacted] = []
        self.failure = ""
        self.is_ended = False


class Compaction:
    """Compacts the partitions of a catalog's topics.

    :param configuration: what is set for topics
    :param backoff_ms: between two looks for what is due (``log.cleaner.backoff.ms``)
    """

    def __init__(self, catalog: Catalog, configuration: Configuration, backoff_ms: int) -> None:
        self._catalog = catalog
        self._configuration = configuration
        self._backoff_ms = backoff_ms
        is_grown = any(len(log.segments) > 1 for topic in catalog for log in topic.logs)
        self._deadline: int | None = 0 if is_grown else None
        self._configured = catalog.configured
        self._running: Iterator[int] | None = None
        self._requests: deque[Compacting] = deque()

    @property
    def deadline(self) -> int | None:
        """When `step` is due, in ms; None if nothing can become due."""
        if self._running is not None or self._requests or self._configured != self._catalog.configured:
            return 0
        return self._deadline

    def grown(self, now: int) -> None:
        """Note that a partition has begun a segment."""
        due = now + self._backoff_ms
        self._deadline = due if self._deadline is None else min(due, self._deadline)

    def ask(self, topic: Topic) -> Compacting:
        """Have all partitions of a topic compacted before anything else."""
        request = Compacting(topic)
        self._requests.append(request)
        return request

    def step(self, now: int) -> None:
        """Go on with the partition in hand, or begin with the one that is due first."""
        if self._running is None:
            self._running = self._asked(now) if self._requests else self._due(now)
            if self._running is None:
                return
        read = 0
        self._deadline = now  # then the next is looked for at once
        try:
            for size in self._running:
                read += size
                if read >= _STEP_BYTES:
                    return
        except Refused:
            self._deadline = now + self._backoff_ms  # the partition has logged it
        self._running = None

    def _asked(self, now: int) -> Iterator[int]:
        """Compact a partition of the first request."""
        request = self._requests[0]
        if not request.waiting:
            request.is_ended = True
            self._requests.popleft()
            return
        number, log = request.waiting.popleft()
        topic = self._catalog.named(log.topic)
        if topic is None or log not in topic.logs:
            return  # it was deleted
        before = log.size
        try:
            log.roll()
            yield from self._compact(topic, log, self._dirt(topic, log, now), now)
        except Refused as refused:
            request.failure = refused.detail
            raise
        request.done.append(Compacted(number, before, log.size))

    def _due(self, now: int) -> Iterator[int] | None:
        """Return the work on the partition that is due first; None if none is."""
        self._configured, self._deadline = self._catalog.configured, None
        due: tuple[float, Topic, PartitionLog, Dirt] | None = None
        for topic in self._catalog:
            if "compact" not in self._configuration.value(topic, "cleanup.policy"):
                continue
            least: float = self._configuration.value(topic, "min.cleanable.dirty.ratio")
            for log in topic.logs:
                dirt = self._dirt(topic, log, now)
                if len(log.segments) > 1 and log.segments[-1].base_offset > log.compacted.clean_before:
                    self._deadline = now + self._backoff_ms
                is_due = dirt.share > least or (dirt.is_overdue and dirt.dirty)
                if is_due and (due is None or dirt.share > due[0]):
                    due = dirt.share, topic, log, dirt
        return None if due is None else self._compact(*due[1:], now)

    def _dirt(self, topic: Topic, log: PartitionLog, now: int) -> Dirt:
        lags = (self._configuration.value(topic, f"{which}.compaction.lag.ms") for which in ("min", "max"))
        return dirt_of(log, now, *lags)

    def _compact(self, topic: Topic, log: PartitionLog, dirt: Dirt, now: int) -> Iterator[int]:
        retention: int = self._configuration.value(topic, "delete.retention.ms")
        return log.compact(dirt.end, now, retention, self._configuration.rolling(topic).bytes)
