"""Where share groups are, for operators: DescribeShareGroupOffsets, with the lag (KIP-932, KIP-1226).

Source: KIP-932, KIP-1226; Kafka's `GroupCoordinatorService.java` (describeShareGroupOffsets).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Protocol

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.events import EffectCollector, Request
from kcoord_wire.coordinator.share.sessions import Partition
from kcoord_wire.coordinator.share.shared import NO_START, Shared

_NO_TOPIC = uuid.UUID(int=0)


class SharedTopics(Protocol):
    """The topics that exist."""

    def id_of(self, name: str) -> uuid.UUID | None:
        """Return the id of a topic; None if it does not exist."""

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        """Return the name of a topic; None if it does not exist."""

    def end_of(self, topic_id: uuid.UUID, index: int) -> int | None:
        """Return where a partition ends; None if it does not exist."""


class OffsetRequests:
    """Answers these requests.

    :param partitions: all share partitions
    :param effects: of the machine
    :param topics: the topics
    """

    def __init__(
        self, partitions: Mapping[tuple[str, Partition], Shared], effects: EffectCollector, topics: SharedTopics
    ) -> None:
        self._partitions = partitions
        self._effects = effects
        self._topics = topics

    def describe(self, request: Request, message: m.DescribeShareGroupOffsetsRequest) -> None:
        """Answer DescribeShareGroupOffsets. As Kafka does, it says of what it does not know that it has not begun."""
        after = max((shared.written for shared in self._partitions.values()), default=0)
        groups = []
        for asked in {each.group_id: each for each in message.groups}.values():
            answer = m.DescribeShareGroupOffsetsResponseGroup(group_id=asked.group_id)
            if asked.topics is None:
                answer.topics = self._all(asked.group_id)
            else:
                answer.topics = [self._topic(asked.group_id, each.topic_name, each.partitions) for each in asked.topics]
            groups.append(answer)
        response = m.DescribeShareGroupOffsetsResponse(groups=groups)
        self._effects.reply(request, response, max(after, self._effects.deleted))

    def _all(self, group_id: str) -> list[m.DescribeShareGroupOffsetsResponseTopic]:
        """Describe every partition that a group has a state of."""
        found: dict[str, list[int]] = {}
        for group, (topic_id, index) in self._partitions:
            name = self._topics.name_of(topic_id)
            if group == group_id and name is not None:
                found.setdefault(name, []).append(index)
        return [self._topic(group_id, name, sorted(indexes)) for name, indexes in sorted(found.items())]

    def _topic(self, group_id: str, name: str, indexes: Iterable[int]) -> m.DescribeShareGroupOffsetsResponseTopic:
        topic_id = self._topics.id_of(name) or _NO_TOPIC
        parts = [self._part(self._partitions.get((group_id, (topic_id, index))), index) for index in indexes]
        return m.DescribeShareGroupOffsetsResponseTopic(topic_name=name, topic_id=topic_id, partitions=parts)

    def _part(self, shared: Shared | None, index: int) -> m.DescribeShareGroupOffsetsResponsePartition:
        answer = m.DescribeShareGroupOffsetsResponsePartition(partition_index=index, start_offset=NO_START)
        if shared is not None:
            answer.start_offset, answer.leader_epoch = shared.start_offset, shared.leader_epoch
            end = self._topics.end_of(*shared.partition)
            if shared.is_kept and end is not None:
                answer.lag = end - shared.start_offset - shared.done
        return answer
