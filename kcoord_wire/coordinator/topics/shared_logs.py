"""The partitions of topics, as share groups read them: batches with their offsets, and which of them were aborted."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import partial
from typing import Final

from kcoord_wire.coordinator.core.apis import Refused
from kcoord_wire.coordinator.core.brokers import NO_LEADER
from kcoord_wire.coordinator.core.config import Endpoint
from kcoord_wire.coordinator.partitions.batch_header import BATCH_HEADER_SIZE, Header, read_header
from kcoord_wire.coordinator.partitions.partition_log import PartitionLog
from kcoord_wire.coordinator.share.share_machine import Read, Reset, ShareSettings
from kcoord_wire.coordinator.share.share_partition import ShareLimits, Span
from kcoord_wire.coordinator.topics.catalog import Catalog, TopicLimits
from kcoord_wire.coordinator.topics.configs import DURATION
from kcoord_wire.coordinator.topics.configuration import Configuration
from kcoord_wire.protocol.error_codes import ErrorCode

_AT_LENGTH: Final = 8  # bytes of the base offset
_LENGTH_END: Final = 12


class SharedPartition:
    """A partition; see `SharedLog`."""

    def __init__(self, log: PartitionLog, max_fetch_bytes: int) -> None:
        self._log = log
        self._max_fetch_bytes = max_fetch_bytes
        self.start_offset = log.start_offset
        self.leader_epoch = log.leader_epoch

    def end(self, committed: bool) -> int:
        """See `SharedLog`."""
        return self._log.stable_offset if committed else self._log.end_offset

    def read(self, offset: int, most: int, first_whole: bool, committed: bool) -> Read:
        """See `SharedLog`."""
        end = self.end(committed)
        if offset < self._log.start_offset:
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE)
        data = self._log.read(offset, min(most, self._max_fetch_bytes), first_whole, end)
        aborted = self._log.aborted_between(offset, end) if committed and data else []
        spans: list[Span] = []
        ends: list[int] = []
        left_out: list[Span] = []
        for span, stop, header in _batches(data):
            spans.append(span)
            ends.append(stop)
            if header.is_transactional and not header.is_control:
                for each in aborted:
                    if each.producer_id == header.producer_id and each.first_offset <= span.first <= each.last_offset:
                        left_out.append(span)
                        break
        return Read(data, spans, ends, left_out)

    def first_since(self, timestamp: int) -> int:
        """See `SharedLog`."""
        found = self._log.first_since(timestamp)
        return self._log.end_offset if found is None else found.offset


def _batches(data: bytes) -> Iterator[tuple[Span, int, Header]]:
    """Yield of each batch its offsets, where it ends, and its header."""
    at = 0
    view = memoryview(data)
    while at + BATCH_HEADER_SIZE <= len(data):
        first = int.from_bytes(view[at : at + _AT_LENGTH], "big")
        end = at + _LENGTH_END + int.from_bytes(view[at + _AT_LENGTH : at + _LENGTH_END], "big")
        header = read_header(bytes(view[at : at + BATCH_HEADER_SIZE]))
        yield Span(first, first + header.last_offset_delta), end, header
        at = end


class SharedLogs:
    """All partitions; see `ShareLogs`.

    :param catalog: the topics
    :param limits: what an answer may cost
    """

    def __init__(self, catalog: Catalog, limits: TopicLimits) -> None:
        self._catalog = catalog
        self._limits = limits

    def find(self, topic_id: uuid.UUID, index: int, broker: int) -> SharedPartition:
        """See `ShareLogs`."""
        topic = self._catalog.find("", topic_id, True)
        return SharedPartition(self._catalog.log(topic, index, broker), self._limits.max_fetch_bytes)

    def has(self, topic_id: uuid.UUID, index: int) -> bool:
        """See `ShareLogs`."""
        topic = self._catalog.with_id(topic_id)
        return topic is not None and 0 <= index < len(topic.logs)

    def id_of(self, name: str) -> uuid.UUID | None:
        """See `SharedTopics`."""
        topic = self._catalog.named(name)
        return None if topic is None else topic.id

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        """See `SharedTopics`."""
        topic = self._catalog.with_id(topic_id)
        return None if topic is None else topic.name

    def end_of(self, topic_id: uuid.UUID, index: int) -> int | None:
        """See `SharedTopics`."""
        topic = self._catalog.with_id(topic_id)
        return None if topic is None or not self.has(topic_id, index) else topic.logs[index].end_offset

    def leader(self, topic_id: uuid.UUID, index: int) -> tuple[Endpoint, int] | None:
        """See `ShareLogs`."""
        topic = self._catalog.with_id(topic_id)
        if topic is None or not self.has(topic_id, index) or topic.leaders.of[index] == NO_LEADER:
            return None
        return self._catalog.brokers.endpoints[topic.leaders.of[index]], topic.logs[index].leader_epoch


_UNITS: Final = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1_000}


def duration_of(text: str) -> int | None:
    """Return the ms of ``by_duration:`` with a duration in ISO 8601 (``PnDTnHnMn.nS``); None for any other text."""
    found = DURATION.fullmatch(text)
    if found is None:
        return None
    return int(sum(float(value) * _UNITS[unit] for unit, value in found.groupdict().items() if value))


def share_settings(configuration: Configuration, group_id: str) -> ShareSettings:
    """Return the settings of a share group: its own, or those of the broker."""

    value = partial(configuration.group_value, group_id)
    reset = value("share.auto.offset.reset")
    duration = duration_of(reset)
    return ShareSettings(
        ShareLimits(
            value("share.partition.max.record.locks"),
            value("share.delivery.count.limit"),
            value("share.record.lock.duration.ms"),
        ),
        Reset(reset) if duration is None else Reset.BY_DURATION,
        duration or 0,
        value("share.isolation.level") == "read_committed",
        value("share.renew.acknowledge.enable"),
    )
