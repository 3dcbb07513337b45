"""Offsets within transactions: TxnOffsetCommit, and the markers that end a transaction.

The host has asked the transaction coordinator before a TxnOffsetCommit gets here (KIP-890).

Laws:

* Topics that do not exist are answered before the group is asked, which sees the rest, if any.
* A commit in the name of a member is checked like one outside a transaction, except that a rebalance which waits for
  its leader does not stop it; one without a member id is always accepted (clients before KIP-447).
* A marker is answered once it is in the log, also where nothing is pending: it may be a repeated one.

Source: KIP-98, KIP-447; Kafka's `OffsetMetadataManager.java`, `GroupCoordinatorService.java`.
"""

from __future__ import annotations

from collections.abc import Sequence

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.any_group import FOREVER, AnyGroup, Committed, TopicNames
from kcoord_wire.coordinator.core.apis import GROUP_NOT_FOUND_FROM, TXN_TOPIC_IDS_FROM, refusal
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.events import AppendMarker, LogRecord, PendingRecord, Producer, Request
from kcoord_wire.coordinator.core.groups import Group
from kcoord_wire.coordinator.core.log_records import committed_from, offset_record
from kcoord_wire.coordinator.core.logged_machine import EffectCollector
from kcoord_wire.coordinator.core.pending_offsets import Pending, PendingOffsets
from kcoord_wire.protocol.error_codes import ErrorCode


def commit(
    effects: EffectCollector,
    groups: dict[str, AnyGroup],
    topics: TopicNames,
    config: GroupConfig,
    pending: PendingOffsets,
    request: Request,
    message: m.TxnOffsetCommitRequest,
) -> None:
    """Answer a TxnOffsetCommit."""
    group = groups.get(message.group_id)
    known = [_find(topics, request, topic) for topic in message.topics]
    existing = [topic for topic, (_, count) in zip(message.topics, known, strict=True) if count]
    error = _may_commit(group, topics, request, message, existing) if existing else ErrorCode.NONE
    answer: m.TxnOffsetCommitResponse = refusal(message, request.version, error)
    if group is None:
        group = Group(message.group_id, effects.now)
    producer = Producer(message.producer_id, message.producer_epoch)
    records: list[LogRecord] = []
    order = effects.appended + 1
    for topic, answered, (name, count) in zip(message.topics, answer.topics, known, strict=True):
        if error and count:
            continue
        for item, each in zip(topic.partitions, answered.partitions, strict=True):
            each.error_code = _refuses(name, count, item, config)
            if name is not None and not each.error_code:
                text = item.committed_metadata or ""
                committed = Committed(item.committed_offset, item.committed_leader_epoch, text, effects.now, FOREVER)
                pending.add(producer.producer_id, group.group_id, name, item.partition_index, Pending(order, committed))
                records.append(offset_record(group, name, item.partition_index, committed))
    if records:
        groups[group.group_id] = group
        effects.append(group, records, producer)
    return effects.reply(request, answer, effects.appended if records else 0)


def _find(topics: TopicNames, request: Request, topic: m.TxnOffsetCommitRequestTopic) -> tuple[str | None, int]:
    """Return the name of a topic of the request, if it has one, and its partitions; 0 if it does not exist."""
    name = topics.name_of(topic.topic_id) if request.version >= TXN_TOPIC_IDS_FROM else topic.name
    return name, 0 if name is None else topics.partitions(name) or 0


def _refuses(name: str | None, count: int, item: m.TxnOffsetCommitRequestPartition, config: GroupConfig) -> ErrorCode:
    """Return why an offset cannot be committed, whatever the group; NONE if it can."""
    if name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    if not 0 <= item.partition_index < count:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    length = len((item.committed_metadata or "").encode("utf-16-le")) // 2  # as Java counts
    return ErrorCode.OFFSET_METADATA_TOO_LARGE if length > config.offset_metadata_max_bytes else ErrorCode.NONE


def _may_commit(
    group: AnyGroup | None,
    topics: TopicNames,
    request: Request,
    message: m.TxnOffsetCommitRequest,
    known: Sequence[m.TxnOffsetCommitRequestTopic],
) -> ErrorCode:
    """Return why the group does not accept the request, for the group or one of the partitions; NONE if it does.

    :param known: the topics of the request that exist
    """
    generation = message.generation_id_or_member_epoch
    has_all_errors = request.version >= TXN_TOPIC_IDS_FROM  # those of KIP-848
    if not message.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if generation < 0 and (group is None or (not message.member_id and message.group_instance_id is None)):
        return ErrorCode.NONE
    if group is None:
        return ErrorCode.GROUP_ID_NOT_FOUND if has_all_errors else ErrorCode.ILLEGAL_GENERATION
    error = group.check_commit(message.member_id, message.group_instance_id, generation, GROUP_NOT_FOUND_FROM)
    if error is ErrorCode.REBALANCE_IN_PROGRESS:
        error = ErrorCode.NONE
    for topic in known:
        topic_id = topic.topic_id if has_all_errors else topics.id_of(topic.name)
        for item in topic.partitions:
            error = error or group.check_partition(message.member_id, generation, topic_id, item.partition_index)
    is_stale = error is ErrorCode.STALE_MEMBER_EPOCH and not has_all_errors
    return ErrorCode.ILLEGAL_GENERATION if is_stale else error


def end(
    effects: EffectCollector,
    groups: dict[str, AnyGroup],
    pending: PendingOffsets,
    request: Request,
    message: m.WriteTxnMarkersRequest,
) -> None:
    """Answer a WriteTxnMarkers for ``__consumer_offsets``: offsets of committed transactions count from now on."""
    for marker in message.markers:
        producer = Producer(marker.producer_id, marker.producer_epoch)
        effects.append_marker(AppendMarker(producer, marker.transaction_result, marker.coordinator_epoch))
        for group_id, topic, partition, ended in pending.end(marker.producer_id):
            group = groups.get(group_id)
            if group is not None:
                group.written = effects.appended
                if marker.transaction_result:
                    group.offsets.setdefault(topic, {})[partition] = ended.committed
                    pending.supersede(group_id, topic, partition, ended.committed, ended.order)
    effects.reply(request, refusal(message, request.version, ErrorCode.NONE), effects.appended)


def load(groups: dict[str, AnyGroup], pending: PendingOffsets, records: Sequence[PendingRecord], now: int) -> None:
    """Take in the offsets that are pending in a log, in their order."""
    for place, (producer, record) in enumerate(records, -len(records)):
        key = record.key
        if isinstance(key, m.OffsetCommitKey) and record.value is not None:
            groups.setdefault(key.group, Group(key.group, now))
            committed = committed_from(record.value)
            pending.add(producer.producer_id, key.group, key.topic, key.partition, Pending(place, committed))
