"""Committed offsets, and what of a group is in the log.

Laws:

* `group_record` and `replay` are the two directions of one thing: what is written is what comes back. A group with
  members comes back Stable, knowing of each member the chosen protocol alone (Kafka's `GroupMetadataManager`).
* A commit is taken from a member of the present generation; while a rebalance is being prepared that is still the old
  one, so that members can commit before they join ("Kafka 0.9 Consumer Rewrite Design", section "Offset commits during
  rebalance"). Who is no member may commit to a group that has none.
* A partition's commit fails by itself: the others of the request are stored.

Source: KIP-211 (retention), KIP-496 (OffsetDelete); Kafka's `OffsetMetadataManager.java`, `ClassicGroup.java`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.error_responses import refusal
from kcoord_wire.coordinator.core.events import LogRecord, Request
from kcoord_wire.coordinator.core.groups import (
    CONSUMER,
    Committed,
    EffectCollector,
    Group,
    Member,
    Move,
    State,
    TopicNames,
)
from kcoord_wire.error_codes import ErrorCode

__all__ = ["commit", "delete", "expire", "fetch", "group_record", "replay", "tombstones"]

TOPIC_IDS_FROM: Final = 10  # version of OffsetCommit and OffsetFetch (KIP-848)
GROUP_OFFSETS_FROM: Final = 1  # version of both; offsets of version 0 were in ZooKeeper
BATCH_FETCH_FROM: Final = 8  # version of OffsetFetch (KIP-709)
GROUP_NOT_FOUND_FROM: Final = 9  # version of OffsetCommit (KIP-848)
NO_OFFSET: Final = -1
FOREVER: Final = -1
MAX_INT64: Final = (1 << 63) - 1


# ---- the log


def group_record(group: Group) -> LogRecord:
    """What the log keeps of the group's present generation."""
    return LogRecord(
        m.GroupMetadataKey(group=group.group_id),
        m.GroupMetadataValue(
            protocol_type=group.protocol_type or "",
            generation=group.generation_id,
            protocol=group.protocol,
            leader=group.leader_id,
            current_state_timestamp=group.state_since,
            members=[
                m.GroupMetadataValueMemberMetadata(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout=member.rebalance_timeout_ms,
                    session_timeout=member.session_timeout_ms,
                    subscription=member.metadata(group.protocol),
                    assignment=member.assignment,
                )
                for member in group.members.values()
            ],
        ),
    )


def _offset_record(group: Group, topic: str, partition: int, committed: Committed) -> LogRecord:
    return LogRecord(
        m.OffsetCommitKey(group=group.group_id, topic=topic, partition=partition),
        m.OffsetCommitValue(
            offset=committed.offset,
            leader_epoch=committed.leader_epoch,
            metadata=committed.metadata,
            commit_timestamp=committed.commit_timestamp,
            expire_timestamp=committed.expire_timestamp,
        ),
    )


def _offset_tombstone(group: Group, topic: str, partition: int) -> LogRecord:
    return LogRecord(m.OffsetCommitKey(group=group.group_id, topic=topic, partition=partition), None)


def tombstones(group: Group) -> list[LogRecord]:
    """What removes the group and its offsets from the log."""
    records = [
        _offset_tombstone(group, topic, partition)
        for topic, partitions in group.offsets.items()
        for partition in partitions
    ]
    return [*records, LogRecord(m.GroupMetadataKey(group=group.group_id), None)]


def replay(records: Sequence[LogRecord], now: int) -> dict[str, Group]:
    """The groups that a log tells of; record types of other group protocols are passed over."""
    groups: dict[str, Group] = {}
    offsets: dict[str, dict[str, dict[int, Committed]]] = {}
    for key, value in records:
        if isinstance(key, m.GroupMetadataKey):
            if value is None:
                groups.pop(key.group, None)
            else:
                groups[key.group] = _group_from(key.group, value, now)
        elif isinstance(key, m.OffsetCommitKey | m.LegacyOffsetCommitKey):
            partitions = offsets.setdefault(key.group, {}).setdefault(key.topic, {})
            if value is None:
                partitions.pop(key.partition, None)
            else:
                expires = getattr(value, "expire_timestamp", FOREVER)
                epoch = getattr(value, "leader_epoch", -1)
                partitions[key.partition] = Committed(
                    value.offset, epoch, value.metadata, value.commit_timestamp, expires
                )
    for group_id, topics in offsets.items():
        kept = {topic: partitions for topic, partitions in topics.items() if partitions}
        if kept:
            groups.setdefault(group_id, Group(group_id, now)).offsets = kept
    return groups


def _group_from(group_id: str, value: m.GroupMetadataValue, now: int) -> Group:
    group = Group(group_id, now)
    group.generation_id = value.generation
    group.protocol_type = value.protocol_type or None
    group.protocol = value.protocol
    for stored in value.members:
        timeout = stored.rebalance_timeout
        member = Member(
            stored.member_id,
            stored.group_instance_id,
            stored.client_id,
            stored.client_host,
            stored.session_timeout,
            stored.session_timeout if timeout == -1 else timeout,
            ((value.protocol or "", stored.subscription),),
        )
        member.assignment = stored.assignment
        group.add(member)
    group.leader_id = value.leader
    if group.members:
        group.move(Move.LOAD_STABLE, now)
    if value.current_state_timestamp != -1:
        group.state_since = value.current_state_timestamp
    return group


# ---- OffsetCommit


def commit(
    effects: EffectCollector,
    groups: dict[str, Group],
    topics: TopicNames,
    config: GroupConfig,
    request: Request,
    message: m.OffsetCommitRequest,
) -> Group | None:
    """Answer an OffsetCommit; the group if the request was let in.

    As in Kafka's answer, partitions that do not exist come first, then the others, and then a topic stands there once.
    """
    if request.version < GROUP_OFFSETS_FROM:
        effects.reply(request, refusal(message, request.version, ErrorCode.UNSUPPORTED_VERSION))
        return None
    by_id = request.version >= TOPIC_IDS_FROM
    answers: dict[object, m.OffsetCommitResponseTopic] = {}
    wanted: list[tuple[str, int, m.OffsetCommitRequestTopic, m.OffsetCommitRequestPartition]] = []

    def outcome(place: object, topic: m.OffsetCommitRequestTopic, index: int, error: ErrorCode) -> None:
        fresh = m.OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id)
        item = m.OffsetCommitResponsePartition(partition_index=index, error_code=error)
        answers.setdefault(place, fresh).partitions.append(item)

    for position, topic in enumerate(message.topics):
        name = topics.name_of(topic.topic_id) if by_id else topic.name
        count = None if name is None else topics.partitions(name)
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for item in topic.partitions:
            if name is None or count is None or not 0 <= item.partition_index < count:
                outcome((topic.name, topic.topic_id), topic, item.partition_index, unknown)
            else:
                wanted.append((name, position, topic, item))
    if not wanted:
        effects.reply(request, m.OffsetCommitResponse(topics=list(answers.values())))
        return None
    group = groups.get(message.group_id)
    error = _may_commit(group, request, message)
    if error:
        effects.reply(request, refusal(message, request.version, error))
        return None
    if group is None:
        group = Group(message.group_id, effects.now)
    retention = message.retention_time_ms
    expires = min(effects.now + retention, MAX_INT64) if 2 <= request.version <= 4 and retention >= 0 else FOREVER
    records: list[LogRecord] = []
    merged = bool(answers)
    for name, position, topic, item in wanted:
        place = (topic.name, topic.topic_id) if merged else position
        text = item.committed_metadata or ""
        if len(text.encode("utf-16-le")) // 2 > config.offset_metadata_max_bytes:  # Java's idea of a string's length
            outcome(place, topic, item.partition_index, ErrorCode.OFFSET_METADATA_TOO_LARGE)
            continue
        at = item.commit_timestamp if request.version == 1 and item.commit_timestamp >= 0 else effects.now
        committed = Committed(item.committed_offset, item.committed_leader_epoch, text, at, expires)
        group.offsets.setdefault(name, {})[item.partition_index] = committed
        records.append(_offset_record(group, name, item.partition_index, committed))
        outcome(place, topic, item.partition_index, ErrorCode.NONE)
    if records:
        groups[group.group_id] = group
        effects.append(group, records)
    effects.reply(request, m.OffsetCommitResponse(topics=list(answers.values())), effects.appended if records else 0)
    return group


def _may_commit(group: Group | None, request: Request, message: m.OffsetCommitRequest) -> ErrorCode:
    generation = message.generation_id_or_member_epoch
    if group is None:
        if generation < 0:
            return ErrorCode.NONE
        return ErrorCode.GROUP_ID_NOT_FOUND if request.version >= GROUP_NOT_FOUND_FROM else ErrorCode.ILLEGAL_GENERATION
    if group.state is State.EMPTY and generation < 0:
        return ErrorCode.NONE
    if generation < 0 and not message.member_id and message.group_instance_id is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    error = group.verdict_on(message.member_id, message.group_instance_id, generation)
    if not error and group.state is State.COMPLETING:
        error = ErrorCode.REBALANCE_IN_PROGRESS
    return error


# ---- OffsetFetch


def fetch(
    effects: EffectCollector,
    groups: Mapping[str, Group],
    topics: TopicNames,
    request: Request,
    message: m.OffsetFetchRequest,
) -> None:
    """Answer an OffsetFetch: what is committed, -1 where nothing is.

    All offsets of a group are told once, and refused with INVALID_REQUEST (42) where the request asks for them again: a
    short request would be answered with more than there is memory for.
    """
    if request.version < GROUP_OFFSETS_FROM:
        return effects.reply(request, refusal(message, request.version, ErrorCode.UNSUPPORTED_VERSION))
    if request.version >= BATCH_FETCH_FROM:
        after = max((effects.written(groups.get(asked.group_id)) for asked in message.groups), default=0)
        by_id = request.version >= TOPIC_IDS_FROM
        answers = []
        told = set()
        for asked in message.groups:
            answer = m.OffsetFetchResponseGroup(group_id=asked.group_id)
            if asked.topics is None and asked.group_id in told:
                answer.error_code = ErrorCode.INVALID_REQUEST
            else:
                answer.topics = _fetch_batch(groups.get(asked.group_id), topics, asked.topics, by_id)
            if asked.topics is None and answer.topics:
                told.add(asked.group_id)
            answers.append(answer)
        return effects.reply(request, m.OffsetFetchResponse(groups=answers), after)
    group = groups.get(message.group_id)
    wanted = None if message.topics is None else [(topic.name, topic.partition_indexes) for topic in message.topics]
    found = [
        m.OffsetFetchResponseTopic(name=name, partitions=_told(m.OffsetFetchResponsePartition, partitions))
        for name, partitions in _look_up(group, wanted)
    ]
    return effects.reply(request, m.OffsetFetchResponse(topics=found), effects.written(group))


_NOTHING = Committed(NO_OFFSET, -1, "", -1, FOREVER)
_Found = list[tuple[str, list[tuple[int, Committed]]]]
P = TypeVar("P")


def _look_up(group: Group | None, wanted: Sequence[tuple[str, Sequence[int]]] | None) -> _Found:
    """What is committed for the partitions wanted; for None, of all there are."""
    offsets = {} if group is None else group.offsets
    if wanted is None:
        return [(topic, list(partitions.items())) for topic, partitions in offsets.items()]
    return [
        (topic, [(index, offsets.get(topic, {}).get(index, _NOTHING)) for index in indexes])
        for topic, indexes in wanted
    ]


def _told(kind: Callable[..., P], partitions: Sequence[tuple[int, Committed]]) -> list[P]:
    """Partitions of an answer: before version 8 they are of another class, with the same fields."""
    return [
        kind(
            partition_index=index,
            committed_offset=committed.offset,
            committed_leader_epoch=committed.leader_epoch,
            metadata=committed.metadata,
        )
        for index, committed in partitions
    ]


def _fetch_batch(
    group: Group | None, topics: TopicNames, wanted: Sequence[m.OffsetFetchRequestTopics] | None, by_id: bool
) -> list[m.OffsetFetchResponseTopics]:
    answers = []
    names = None
    unknown: list[m.OffsetFetchRequestTopics] = []
    if wanted is not None:
        names = []
        for topic in wanted:
            name = topics.name_of(topic.topic_id) if by_id else topic.name
            if name is None:
                unknown.append(topic)
            else:
                names.append((name, topic.partition_indexes))
    for name, partitions in _look_up(group, names):
        answer = m.OffsetFetchResponseTopics(name=name, partitions=_told(m.OffsetFetchResponsePartitions, partitions))
        if by_id:
            topic_id = topics.id_of(name)
            if topic_id is None:
                continue  # the topic is gone: no id can name it
            answer.topic_id = topic_id
            answer.name = ""
        answers.append(answer)
    for topic in unknown:
        answers.append(
            m.OffsetFetchResponseTopics(
                topic_id=topic.topic_id,
                partitions=[
                    m.OffsetFetchResponsePartitions(
                        partition_index=index, committed_offset=NO_OFFSET, error_code=ErrorCode.UNKNOWN_TOPIC_ID
                    )
                    for index in topic.partition_indexes
                ],
            )
        )
    return answers


# ---- OffsetDelete, retention


def delete(
    effects: EffectCollector,
    groups: Mapping[str, Group],
    topics: TopicNames,
    request: Request,
    message: m.OffsetDeleteRequest,
) -> None:
    """Answer an OffsetDelete (KIP-496): offsets of topics that no member is subscribed to are forgotten.

    Partitions that do not exist come first in the answer, as in Kafka's.
    """
    group = groups.get(message.group_id)
    if group is None:
        return effects.reply(request, refusal(message, request.version, ErrorCode.GROUP_ID_NOT_FOUND), effects.deleted)
    if group.state is not State.EMPTY and group.protocol_type != CONSUMER:
        return effects.reply(request, refusal(message, request.version, ErrorCode.NON_EMPTY_GROUP))
    records: list[LogRecord] = []
    answers: dict[str, m.OffsetDeleteResponseTopic] = {}

    def outcome(topic: str, index: int, error: ErrorCode) -> None:
        answer = answers.setdefault(topic, m.OffsetDeleteResponseTopic(name=topic))
        answer.partitions.append(m.OffsetDeleteResponsePartition(partition_index=index, error_code=error))

    wanted = [(topic.name, item.partition_index) for topic in message.topics for item in topic.partitions]
    exists = {name: topics.partitions(name) or 0 for name, _ in wanted}
    for name, index in wanted:
        if not 0 <= index < exists[name]:
            outcome(name, index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    for name, index in wanted:
        if not 0 <= index < exists[name]:
            continue
        if group.is_subscribed(name):
            outcome(name, index, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
        else:
            outcome(name, index, ErrorCode.NONE)
            if _forget(group, name, index):
                records.append(_offset_tombstone(group, name, index))
    if records:
        effects.append(group, records)
    return effects.reply(request, m.OffsetDeleteResponse(topics=list(answers.values())), group.written)


def _forget(group: Group, topic: str, partition: int) -> bool:
    partitions = group.offsets.get(topic, {})
    gone = partitions.pop(partition, None) is not None
    if gone and not partitions:
        del group.offsets[topic]
    return gone


def expire(effects: EffectCollector, groups: dict[str, Group], retention_ms: int) -> None:
    """Forget offsets that nobody has used for too long, and groups of which nothing is left (KIP-211)."""
    for group in list(groups.values()):
        since_empty = group.protocol_type is not None and group.state is State.EMPTY
        if not (
            group.protocol_type is None or since_empty or (group.state is State.STABLE and group.subscribed is not None)
        ):
            continue
        records = []
        for topic, partition, committed in [
            (topic, partition, committed)
            for topic, partitions in group.offsets.items()
            for partition, committed in partitions.items()
        ]:
            if committed.expire_timestamp != FOREVER:
                expired = effects.now >= committed.expire_timestamp
            else:
                base = group.state_since if since_empty else committed.commit_timestamp
                expired = effects.now - base >= retention_ms
            if expired and not group.is_subscribed(topic):
                _forget(group, topic, partition)
                records.append(_offset_tombstone(group, topic, partition))
        if group.state is State.EMPTY and not group.offsets and not group.pending:
            effects.delete(group, groups, [*records, *tombstones(group)])
        elif records:
            effects.append(group, records)
