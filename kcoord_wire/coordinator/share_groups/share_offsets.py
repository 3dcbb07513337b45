"""AlterShareGroupOffsets and DeleteShareGroupOffsets: where a share group without members begins.

The offsets are in the states of share partitions, which others keep: the group notes what is to be begun or deleted,
asks for it, and answers when it has been done.

Laws:

* A request is answered once, when the state of all partitions that it names is in its log, or the group has gone.
* A group that has members is refused; one that does not exist comes to be with an altered offset, as in Kafka.

Source: KIP-932; Kafka's `GroupCoordinatorService.java` (alterShareGroupOffsets, deleteShareGroupOffsets),
`GroupMetadataManager.java`.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kcoord_wire import messages as m
from kcoord_wire.coordinator.consumer_groups.epoch_records import epoch_record
from kcoord_wire.coordinator.core import events
from kcoord_wire.coordinator.core.apis import Refused, refusal
from kcoord_wire.coordinator.core.events import EffectCollector, Request
from kcoord_wire.coordinator.core.groups import BaseGroup, TopicNames
from kcoord_wire.coordinator.share_groups.share_group import ShareGroup, StatePartitions
from kcoord_wire.coordinator.share_groups.share_records import states_record
from kcoord_wire.protocol.error_codes import ErrorCode

_NO_TOPIC: Final = uuid.UUID(int=0)
_NOTHING: Final = "There is no offset information to delete."


@dataclass(slots=True)
class _Waiting:
    """A request that waits for states.

    :ivar partitions: topic id to the partitions that it waits for
    :ivar answer: what it is answered if all goes well
    :ivar parts: the parts of the answer that are about these, which get the error if it does not
    """

    request: Request
    group_id: str
    partitions: dict[uuid.UUID, frozenset[int]]
    answer: Any
    parts: list[Any]


class ShareOffsets:
    """Answers these requests.

    :param groups: by id
    :param topics: that exist
    :param effects: of the machine
    """

    def __init__(self, groups: dict[str, BaseGroup], topics: TopicNames, effects: EffectCollector) -> None:
        self._groups = groups
        self._topics = topics
        self._effects = effects
        self._waiting: list[_Waiting] = []

    # ---- AlterShareGroupOffsets

    def alter(self, request: Request, message: m.AlterShareGroupOffsetsRequest) -> None:
        """Answer AlterShareGroupOffsets."""
        try:
            group = self._group(message.group_id) or ShareGroup(message.group_id, self._effects.now)
        except Refused as refused:
            answer = m.AlterShareGroupOffsetsResponse(error_code=refused.error, error_message=refused.detail)
            return self._effects.reply(request, answer)
        wanted: dict[uuid.UUID, dict[int, int]] = {}
        waiting = _Waiting(request, message.group_id, {}, m.AlterShareGroupOffsetsResponse(), [])
        for asked in message.topics:
            topic_id = self._topics.id_of(asked.topic_name)
            count = self._topics.partitions(asked.topic_name) or 0
            part = m.AlterShareGroupOffsetsResponseTopic(topic_name=asked.topic_name, topic_id=topic_id or _NO_TOPIC)
            waiting.answer.responses.append(part)
            for each in asked.partitions:
                outcome = m.AlterShareGroupOffsetsResponsePartition(partition_index=each.partition_index)
                part.partitions.append(outcome)
                if topic_id is None or not 0 <= each.partition_index < count:
                    outcome.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    outcome.error_message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.meaning
                else:
                    wanted.setdefault(topic_id, {})[each.partition_index] = each.start_offset
                    waiting.parts.append(outcome)
        if not wanted:
            return self._effects.reply(request, waiting.answer)
        waiting.partitions = {topic_id: frozenset(offsets) for topic_id, offsets in wanted.items()}
        self._begin(group, wanted)
        self._waiting.append(waiting)
        return None

    def _begin(self, group: ShareGroup, wanted: Mapping[uuid.UUID, Mapping[int, int]]) -> None:
        """Ask for the states of partitions, in an epoch of their own."""
        self._groups[group.group_id] = group
        group.epoch += 1
        for topic_id, offsets in wanted.items():
            before = group.initializing.get(topic_id)
            known = frozenset(offsets) | (before.partitions if before is not None else frozenset())
            name = self._topics.name_of(topic_id) or ""
            group.initializing[topic_id] = StatePartitions(name, known, self._effects.now)
            group.deleting.pop(topic_id, None)
        self._effects.append(group, [epoch_record(group), states_record(group)])
        self._effects.initialize_share_state(group.group_id, group.epoch, wanted)

    def initialized(self, event: events.ShareStateInitialized) -> None:
        """Answer those that have waited for states."""
        self._end(event.group_id, event.partitions, event.error)

    # ---- DeleteShareGroupOffsets

    def delete(self, request: Request, message: m.DeleteShareGroupOffsetsRequest) -> None:
        """Answer DeleteShareGroupOffsets."""
        try:
            group = self._group(message.group_id)
            if group is None:
                raise Refused(ErrorCode.GROUP_ID_NOT_FOUND)
        except Refused as refused:
            answer = m.DeleteShareGroupOffsetsResponse(error_code=refused.error, error_message=refused.detail)
            return self._effects.reply(request, answer)
        waiting = _Waiting(request, message.group_id, {}, m.DeleteShareGroupOffsetsResponse(), [])
        for asked in message.topics:
            topic_id = self._topics.id_of(asked.topic_name)
            outcome = m.DeleteShareGroupOffsetsResponseTopic(topic_name=asked.topic_name)
            waiting.answer.responses.append(outcome)
            known = frozenset[int]() if topic_id is None else _forgotten(group, topic_id)
            if topic_id is None or not known:
                outcome.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                outcome.error_message = _NOTHING if topic_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.meaning
                continue
            outcome.topic_id = topic_id
            group.deleting[topic_id] = asked.topic_name
            waiting.partitions[topic_id] = known
            waiting.parts.append(outcome)
        if not waiting.partitions:
            return self._effects.reply(request, waiting.answer, group.written)
        self._effects.append(group, [states_record(group)])
        self._effects.delete_share_state(group.group_id, waiting.partitions)
        self._waiting.append(waiting)
        return None

    def deleted(self, event: events.ShareStateDeleted) -> None:
        """Answer those that have waited for states to be deleted."""
        group = self._groups.get(event.group_id)
        waiting = [each for each in self._waiting if each.group_id == event.group_id]
        if isinstance(group, ShareGroup) and waiting:
            self._effects.append(group, [states_record(group)])
        for each in waiting:
            self._end(event.group_id, each.partitions, event.error)

    # ---- both

    def _group(self, group_id: str) -> ShareGroup | None:
        """Return a group without members; None if there is none.

        :raises Refused: it has members, or is of another kind
        """
        if not group_id:
            raise Refused(ErrorCode.INVALID_GROUP_ID)
        group = self._groups.get(group_id)
        if group is None:
            return None
        if not isinstance(group, ShareGroup):
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND)
        if not group.is_empty:
            raise Refused(ErrorCode.NON_EMPTY_GROUP)
        return group

    def _end(self, group_id: str, partitions: Mapping[uuid.UUID, frozenset[int]], error: ErrorCode) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if each.group_id != group_id or each.partitions != partitions:
                self._waiting.append(each)
                continue
            for part in each.parts if error else ():
                part.error_code, part.error_message = error, error.meaning
            self._effects.reply(each.request, each.answer, self._effects.appended)

    def resign(self) -> None:
        """Refuse the requests that wait: another coordinator has the groups."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            answer = refusal(each.request.message, each.request.version, ErrorCode.NOT_COORDINATOR)
            self._effects.reply(each.request, answer)


def _forgotten(group: ShareGroup, topic_id: uuid.UUID) -> frozenset[int]:
    """Take the partitions of a topic out of a group, and return them."""
    found = frozenset[int]()
    for known in (group.initialized, group.initializing):
        topic = known.pop(topic_id, None)
        if topic is not None:
            found |= topic.partitions
    return found
