"""Committed offsets: committing, fetching, deleting and expiring them, also within transactions.

Laws:

* A commit is accepted from a member of the current generation; while a rebalance is being prepared that is still the
  old one, so that members can commit before they join ("Kafka 0.9 Consumer Rewrite Design", section "Offset commits
  during rebalance"). A client that is not a member may commit to a group that has none.
* A partition's commit fails by itself: the others of the request are stored.
* An offset of a transaction counts once that is committed, and never if it is aborted. Of two offsets of a partition
  the one that was written later wins, whenever their transactions end: as in a log in which compaction keeps the last
  record of a key. Removing a committed offset removes what is pending for its partition, too.
* A TxnOffsetCommit in the name of a member is checked like an OffsetCommit, except that a rebalance which waits for its
  leader does not stop it; one without a member id is always accepted (clients before KIP-447). The host has asked the
  transaction coordinator before (KIP-890). Topics that do not exist are answered before the group is asked.
* A marker is answered once it is in the log, also where nothing is pending: it may be a repeated one.
* The deletion of a topic is applied once to the groups of each partition of ``__consumer_offsets`` that was being read
  when the topic was deleted; an offset that is committed after that, to a topic made anew, stays.

Source: KIP-98, KIP-211 (retention), KIP-447, KIP-496 (OffsetDelete); Kafka's `OffsetMetadataManager.java`,
`ClassicGroup.java`, `GroupCoordinatorService.java`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Final, NamedTuple

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.apis import (
    BATCH_FETCH_FROM,
    GROUP_NOT_FOUND_FROM,
    GROUP_OFFSETS_FROM,
    TIMESTAMP_VERSION,
    TOPIC_IDS_FROM,
    TXN_TOPIC_IDS_FROM,
    paired_partitions,
    refusal,
)
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.events import (
    AppendMarker,
    EffectCollector,
    LogRecord,
    PendingRecord,
    Producer,
    Request,
)
from kcoord_wire.coordinator.core.groups import (
    CONSUMER,
    FOREVER,
    NO_EPOCH,
    BaseGroup,
    Committed,
    Group,
    TopicNames,
    committed_from,
    offset_record,
    offset_tombstone,
    tombstones,
)
from kcoord_wire.protocol.error_codes import ErrorCode


class DeletedTopics:
    """Names of deleted topics, by the partitions of ``__consumer_offsets`` that are still to be read."""

    __slots__ = ("_missing",)

    def __init__(self) -> None:
        self._missing: dict[frozenset[int], frozenset[str]] = {}

    def note(self, names: frozenset[str], loading: frozenset[int]) -> None:
        """Note that topics were deleted while these partitions are read."""
        if loading:
            self._missing[loading] = self._missing.get(loading, frozenset()) | names

    def read(self, read: frozenset[int]) -> list[tuple[frozenset[str], frozenset[int]]]:
        """Note that partitions have been read; return names with those of them in which they are to be forgotten."""
        noted, self._missing = self._missing, {}
        for loading, names in noted.items():
            self.note(names, loading - read)
        return [(names, loading & read) for loading, names in noted.items() if loading & read]


LATEST = 1 << 62
"""The place in the log of what is written now, after everything that is pending."""

_Key = tuple[str, int]  # topic and partition


class Pending(NamedTuple):
    """A pending offset.

    :ivar order: its place in the log, compared with others
    :ivar committed: the offset; a later one of the partition, where that is committed already
    """

    order: int
    committed: Committed


class PendingOffsets:
    """The pending offsets of all groups."""

    __slots__ = ("_groups", "_producers")

    def __init__(self) -> None:
        self._groups: dict[str, dict[int, dict[_Key, Pending]]] = {}  # group id, producer id
        self._producers: dict[int, set[str]] = {}  # producer id to group ids

    def add(self, producer_id: int, group_id: str, topic: str, partition: int, pending: Pending) -> None:
        """Note an offset."""
        self._producers.setdefault(producer_id, set()).add(group_id)
        self._groups.setdefault(group_id, {}).setdefault(producer_id, {})[topic, partition] = pending

    def supersede(self, group_id: str, topic: str, partition: int, committed: Committed, order: int = LATEST) -> None:
        """Note that an offset has been committed, which what was written before it must not replace."""
        for offsets in self._groups.get(group_id, {}).values():
            pending = offsets.get((topic, partition))
            if pending is not None and pending.order < order:
                offsets[topic, partition] = Pending(pending.order, committed)

    def forget(self, group_id: str, topic: str, partition: int) -> bool:
        """Forget what is pending for a partition, and return whether anything was."""
        found = [offsets.pop((topic, partition), None) for offsets in self._groups.get(group_id, {}).values()]
        return any(pending is not None for pending in found)

    def of_group(self, group_id: str) -> set[_Key]:
        """Return the partitions of a group for which an offset is pending."""
        return {key for offsets in self._groups.get(group_id, {}).values() for key in offsets}

    def drop(self, is_dropped: Callable[[str], bool]) -> None:
        """Forget what is pending for these groups."""
        for group_id in [group_id for group_id in self._groups if is_dropped(group_id)]:
            for producer_id in self._groups.pop(group_id):
                self._leave(producer_id, group_id)

    def end(self, producer_id: int) -> Iterator[tuple[str, str, int, Pending]]:
        """Forget what a producer's transaction has, and yield it in the order of the log: group, topic, partition."""
        ended = []
        for group_id in self._producers.pop(producer_id, set()):
            producers = self._groups[group_id]
            ended += [(group_id, topic, index, each) for (topic, index), each in producers.pop(producer_id).items()]
            if not producers:
                del self._groups[group_id]
        yield from sorted(ended, key=lambda each: each[3].order)

    def _leave(self, producer_id: int, group_id: str) -> None:
        groups = self._producers[producer_id]
        groups.discard(group_id)
        if not groups:
            del self._producers[producer_id]


NO_OFFSET: Final = -1
MAX_INT64: Final = (1 << 63) - 1


# ---- OffsetCommit


class _Asked(NamedTuple):
    """A partition that a request to commit or to delete is for.

    :ivar position: of its topic in the request
    :ivar topic: the request's part for its topic
    :ivar name: of its topic; None where no topic has the id
    :ivar size: how many partitions its topic has; 0 if it does not exist
    :ivar item: the request's part for it
    :ivar error: why there is no such partition; NONE if there is
    """

    position: int
    topic: Any
    name: str | None
    size: int
    item: Any
    error: ErrorCode


_Outcome = tuple[_Asked, ErrorCode]


def _asked_partitions(topics: TopicNames, parts: Sequence[Any], *, by_id: bool = False) -> list[_Asked]:
    found = []
    for position, topic in enumerate(parts):
        name = topics.name_of(topic.topic_id) if by_id else topic.name
        count = 0 if name is None else topics.partitions(name) or 0
        missing = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for item in topic.partitions:
            error = ErrorCode.NONE if 0 <= item.partition_index < count else missing
            found.append(_Asked(position, topic, name, count, item, error))
    return found


def commit(
    effects: EffectCollector,
    groups: dict[str, BaseGroup],
    topics: TopicNames,
    config: GroupConfig,
    pending: PendingOffsets,
    request: Request,
    message: m.OffsetCommitRequest,
) -> BaseGroup | None:
    """Answer an OffsetCommit. Return the group if it has accepted the request."""
    group = groups.get(message.group_id)
    partitions = _asked_partitions(topics, message.topics, by_id=request.version >= TOPIC_IDS_FROM)
    existing = [asked for asked in partitions if not asked.error]
    error = ErrorCode.NONE
    if request.version < GROUP_OFFSETS_FROM:
        error = ErrorCode.UNSUPPORTED_VERSION
    elif existing:
        is_newer = request.version >= GROUP_NOT_FOUND_FROM
        error = _refuses_commit(group, topics, message, existing, request.version, has_all_errors=is_newer)
    if error:
        effects.reply(request, refusal(message, request.version, error))
        return None
    if group is None:
        group = Group(message.group_id, effects.now)
    records: list[LogRecord] = []
    outcomes: list[_Outcome] = []
    expires = _expire_timestamp(message, effects.now)
    for asked in existing:
        committed = _committed(asked.item, config, _commit_timestamp(request, asked.item, effects.now), expires)
        if committed is None:
            outcomes.append((asked, ErrorCode.OFFSET_METADATA_TOO_LARGE))
            continue
        name, index = asked.name or "", asked.item.partition_index
        group.offsets.setdefault(name, {})[index] = committed
        pending.supersede(group.group_id, name, index, committed)
        records.append(offset_record(group, name, index, committed))
        outcomes.append((asked, ErrorCode.NONE))
    if records:
        groups[group.group_id] = group
        effects.append(group, records)
    unknown = [(asked, asked.error) for asked in partitions if asked.error]
    effects.reply(request, _commit_answer(unknown, outcomes), effects.appended if records else 0)
    return group if existing else None


def _committed(item: Any, config: GroupConfig, at: int, expires: int = FOREVER) -> Committed | None:
    """Return the offset that a partition's part of a request commits; None if its text is too long."""
    text = item.committed_metadata or ""
    most = config.offset_metadata_max_bytes
    if 2 * len(text) > most and len(text.encode("utf-16-le")) // 2 > most:  # as Java counts
        return None
    return Committed(item.committed_offset, item.committed_leader_epoch, text, at, expires)


def _refuses_commit(
    group: BaseGroup | None,
    topics: TopicNames,
    message: m.OffsetCommitRequest | m.TxnOffsetCommitRequest,
    partitions: Iterable[_Asked],
    version: int,
    *,
    has_all_errors: bool,
) -> ErrorCode:
    """Return why a group does not accept a commit, for the whole or for a partition; NONE if it does.

    :param version: of the OffsetCommit
    :param has_all_errors: whether the client knows the errors of KIP-848
    """
    generation = message.generation_id_or_member_epoch
    if group is None:
        if generation < 0:
            return ErrorCode.NONE
        return ErrorCode.GROUP_ID_NOT_FOUND if has_all_errors else ErrorCode.ILLEGAL_GENERATION
    error = group.check_commit(message.member_id, message.group_instance_id, generation, version)
    for asked in partitions:
        if error:
            break
        topic_id = topics.id_of(asked.name or "")
        error = group.check_partition(message.member_id, generation, topic_id, asked.item.partition_index)
    return error


def _commit_answer(unknown: Sequence[_Outcome], others: Sequence[_Outcome]) -> m.OffsetCommitResponse:
    """Return the answer in Kafka's order: partitions that do not exist come first, then the others.

    Where there are any of the former Kafka merges two answers, and each topic appears once; otherwise topics appear as
    in the request, however often.
    """
    answers: dict[object, m.OffsetCommitResponseTopic] = {}
    for asked, error in (*unknown, *others):
        topic = asked.topic
        place = (topic.name, topic.topic_id) if unknown else asked.position
        answer = answers.get(place)
        if answer is None:
            answer = answers[place] = m.OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id)
        item = m.OffsetCommitResponsePartition(partition_index=asked.item.partition_index, error_code=error)
        answer.partitions.append(item)
    return m.OffsetCommitResponse(topics=list(answers.values()))


def _commit_timestamp(request: Request, item: m.OffsetCommitRequestPartition, now: int) -> int:
    return item.commit_timestamp if request.version == TIMESTAMP_VERSION and item.commit_timestamp >= 0 else now


def _expire_timestamp(message: m.OffsetCommitRequest, now: int) -> int:
    """Return when an offset expires by the client's wish, which only versions 2 to 4 have."""
    if message.retention_time_ms >= 0:
        return min(now + message.retention_time_ms, MAX_INT64)
    return FOREVER


# ---- OffsetFetch


def fetch(
    effects: EffectCollector,
    groups: Mapping[str, BaseGroup],
    topics: TopicNames,
    pending: PendingOffsets,
    request: Request,
    message: m.OffsetFetchRequest,
) -> None:
    """Answer an OffsetFetch: what is committed, -1 where nothing is.

    All offsets of a group are returned once, and refused with INVALID_REQUEST (42) where the request asks for them
    again: otherwise a short request could ask for an answer larger than memory.
    """
    if request.version < GROUP_OFFSETS_FROM:
        return effects.reply(request, refusal(message, request.version, ErrorCode.UNSUPPORTED_VERSION))
    is_batch = request.version >= BATCH_FETCH_FROM
    wanted: Sequence[Any] = message.groups if is_batch else [message]  # which is like the part for one group
    after = max((effects.written(groups.get(asked.group_id)) for asked in wanted), default=0)
    answers = []
    returned_whole: set[str] = set()
    for asked in wanted:
        unstable = pending.of_group(asked.group_id) if message.require_stable else set()
        answers.append(
            _fetch_group(groups.get(asked.group_id), topics, asked, returned_whole, unstable, request.version)
        )
    if is_batch:
        return effects.reply(request, m.OffsetFetchResponse(groups=answers), after)
    found: Any = answers[0].topics
    return effects.reply(request, m.OffsetFetchResponse(topics=found), after)


def _fetch_group(
    group: BaseGroup | None,
    topics: TopicNames,
    asked: Any,
    returned_whole: set[str],
    unstable: Set[tuple[str, int]],
    version: int,
) -> m.OffsetFetchResponseGroup:
    """Return what is committed for a group.

    :param returned_whole: groups of which all offsets were returned; this adds to them
    :param unstable: partitions whose offset a transaction which is open may change (KIP-447)
    """
    answer = m.OffsetFetchResponseGroup(group_id=asked.group_id)
    if asked.topics is None and asked.group_id in returned_whole:
        answer.error_code = ErrorCode.INVALID_REQUEST
    elif version >= BATCH_FETCH_FROM and group is not None:
        answer.error_code = group.check_fetch(asked.member_id, asked.member_epoch)
    if not answer.error_code:
        answer.topics = _fetch_topics(group, topics, asked.topics, unstable, version)
    if asked.topics is None and answer.topics:
        returned_whole.add(asked.group_id)
    return answer


def _wanted_topics(
    topics: TopicNames, offsets: Mapping[str, Iterable[int]], wanted: Sequence[Any] | None, by_id: bool
) -> list[tuple[str | None, uuid.UUID | None, Iterable[int]]]:
    """Return name, id and partitions of the topics that are asked for."""
    if wanted is None:
        known = [(name, topics.id_of(name), partitions) for name, partitions in offsets.items()]
        return [each for each in known if not by_id or each[1] is not None]  # no id can name a deleted topic
    if not by_id:
        return [(topic.name, None, topic.partition_indexes) for topic in wanted]
    found = [(topics.name_of(topic.topic_id), topic.topic_id, topic.partition_indexes) for topic in wanted]
    return sorted(found, key=lambda each: each[0] is None)


_NOTHING: Final = Committed(NO_OFFSET, NO_EPOCH, "", -1, FOREVER)


def _fetch_topics(
    group: BaseGroup | None,
    topics: TopicNames,
    wanted: Sequence[Any] | None,
    unstable: Set[tuple[str, int]],
    version: int,
) -> list[Any]:
    """Return what is committed for the topics wanted, those without a name last; for None, for all there are."""
    make_topic: Any = m.OffsetFetchResponseTopics if version >= BATCH_FETCH_FROM else m.OffsetFetchResponseTopic
    make: Any = m.OffsetFetchResponsePartitions if version >= BATCH_FETCH_FROM else m.OffsetFetchResponsePartition
    by_id = version >= TOPIC_IDS_FROM
    offsets = {} if group is None else group.offsets
    answers = []
    for name, topic_id, indexes in _wanted_topics(topics, offsets, wanted, by_id):
        answer = make_topic(topic_id=topic_id) if by_id else make_topic(name=name)
        for index in indexes:
            error = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.NONE
            if (name, index) in unstable:
                error = ErrorCode.UNSTABLE_OFFSET_COMMIT
            committed = _NOTHING if error else offsets.get(name or "", {}).get(index, _NOTHING)
            item = make(
                partition_index=index,
                committed_offset=committed.offset,
                committed_leader_epoch=committed.leader_epoch,
                metadata=committed.metadata,
                error_code=error,
            )
            answer.partitions.append(item)
        answers.append(answer)
    return answers


# ---- OffsetDelete, retention


def delete(
    effects: EffectCollector,
    groups: Mapping[str, BaseGroup],
    topics: TopicNames,
    pending: PendingOffsets,
    request: Request,
    message: m.OffsetDeleteRequest,
) -> None:
    """Answer an OffsetDelete (KIP-496): remove offsets of topics that no member is subscribed to.

    Partitions that do not exist come first in the answer, as in Kafka's.
    """
    if not message.group_id:
        return effects.reply(request, refusal(message, request.version, ErrorCode.INVALID_GROUP_ID))
    group = groups.get(message.group_id)
    if group is None or not group.has_offsets:
        error = refusal(message, request.version, ErrorCode.GROUP_ID_NOT_FOUND)
        return effects.reply(request, error, effects.deleted)
    if not group.is_empty and group.protocol_type != CONSUMER:
        return effects.reply(request, refusal(message, request.version, ErrorCode.NON_EMPTY_GROUP))
    partitions = _asked_partitions(topics, message.topics)
    outcomes = [(asked, asked.error) for asked in partitions if asked.error]
    records: list[LogRecord] = []
    for asked in partitions:
        if asked.error:
            continue
        name, index = asked.topic.name, asked.item.partition_index
        subscribed = group.is_subscribed(name)
        outcomes.append((asked, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else ErrorCode.NONE))
        if not subscribed and _forget(group, pending, name, index):
            records.append(offset_tombstone(group, name, index))
    if records:
        effects.append(group, records)
    answers: dict[str, m.OffsetDeleteResponseTopic] = {}
    for asked, error in outcomes:
        answer = answers.setdefault(asked.topic.name, m.OffsetDeleteResponseTopic(name=asked.topic.name))
        part = m.OffsetDeleteResponsePartition(partition_index=asked.item.partition_index, error_code=error)
        answer.partitions.append(part)
    return effects.reply(request, m.OffsetDeleteResponse(topics=list(answers.values())), group.written)


def _forget(group: BaseGroup, pending: PendingOffsets, topic: str, partition: int) -> bool:
    partitions = group.offsets.get(topic, {})
    gone = partitions.pop(partition, None) is not None
    if gone and not partitions:
        del group.offsets[topic]
    return pending.forget(group.group_id, topic, partition) or gone


def forget_topics(
    effects: EffectCollector, groups: Mapping[str, BaseGroup], pending: PendingOffsets, topics: frozenset[str]
) -> None:
    """Remove what groups have committed to topics that have been deleted."""
    for group in groups.values():
        gone = {key for key in pending.of_group(group.group_id) if key[0] in topics}
        gone.update((topic, partition) for topic in topics & group.offsets.keys() for partition in group.offsets[topic])
        for topic, partition in sorted(gone):
            _forget(group, pending, topic, partition)
        if gone:
            effects.append(group, [offset_tombstone(group, topic, partition) for topic, partition in sorted(gone)])


def expire(effects: EffectCollector, groups: dict[str, BaseGroup], pending: PendingOffsets, retention_ms: int) -> None:
    """Remove offsets that have not been used for too long, and groups of which nothing is left (KIP-211)."""
    for group in list(groups.values()):
        if not group.may_expire:
            continue
        records = []
        unstable = pending.of_group(group.group_id)
        for topic, partition in list(_expired(group, effects.now, retention_ms)):
            if (topic, partition) in unstable:
                continue
            _forget(group, pending, topic, partition)
            records.append(offset_tombstone(group, topic, partition))
        if group.is_unused and not group.offsets and not unstable:
            effects.delete(group, [*records, *tombstones(group)])
            group.end(effects.now)
            del groups[group.group_id]
        elif records:
            effects.append(group, records)


def _expired(group: BaseGroup, now: int, retention_ms: int) -> Iterator[tuple[str, int]]:
    """Yield topic and partition of the group's offsets that have expired."""
    for topic, partitions in group.offsets.items():
        if group.is_subscribed(topic):
            continue
        for partition, committed in partitions.items():
            if committed.expire_timestamp != FOREVER:
                has_expired = now >= committed.expire_timestamp
            else:
                has_expired = now - group.unused_since(committed) >= retention_ms
            if has_expired:
                yield topic, partition


def commit_in_transaction(
    effects: EffectCollector,
    groups: dict[str, BaseGroup],
    topics: TopicNames,
    config: GroupConfig,
    pending: PendingOffsets,
    request: Request,
    message: m.TxnOffsetCommitRequest,
) -> None:
    """Answer a TxnOffsetCommit."""
    group = groups.get(message.group_id)
    partitions = _asked_partitions(topics, message.topics, by_id=request.version >= TXN_TOPIC_IDS_FROM)
    refused = _refuses_in_transaction(group, topics, request, message, [asked for asked in partitions if asked.size])
    answer: m.TxnOffsetCommitResponse = refusal(message, request.version, ErrorCode.NONE)
    if group is None:
        group = Group(message.group_id, effects.now)
    producer = Producer(message.producer_id, message.producer_epoch)
    records: list[LogRecord] = []
    order = effects.appended + 1
    for asked, (_, _, each) in zip(partitions, paired_partitions(message, answer), strict=True):
        each.error_code = refused if refused and asked.size else asked.error
        if each.error_code:
            continue
        committed = _committed(asked.item, config, effects.now)
        if committed is None:
            each.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            continue
        name, index = asked.name or "", asked.item.partition_index
        pending.add(producer.producer_id, group.group_id, name, index, Pending(order, committed))
        records.append(offset_record(group, name, index, committed))
    if records:
        groups[group.group_id] = group
        effects.append(group, records, producer)
    return effects.reply(request, answer, effects.appended if records else 0)


def _refuses_in_transaction(
    group: BaseGroup | None,
    topics: TopicNames,
    request: Request,
    message: m.TxnOffsetCommitRequest,
    partitions: Iterable[_Asked],
) -> ErrorCode:
    """Return why the group does not accept the request; NONE if it does."""
    if not message.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if message.generation_id_or_member_epoch < 0 and not message.member_id and message.group_instance_id is None:
        return ErrorCode.NONE
    has_all_errors = request.version >= TXN_TOPIC_IDS_FROM
    error = _refuses_commit(group, topics, message, partitions, GROUP_NOT_FOUND_FROM, has_all_errors=has_all_errors)
    if error is ErrorCode.REBALANCE_IN_PROGRESS:
        return ErrorCode.NONE
    is_stale = error is ErrorCode.STALE_MEMBER_EPOCH and not has_all_errors
    return ErrorCode.ILLEGAL_GENERATION if is_stale else error


def end_transactions(
    effects: EffectCollector,
    groups: dict[str, BaseGroup],
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


def load_pending(
    groups: dict[str, BaseGroup], pending: PendingOffsets, records: Sequence[PendingRecord], now: int
) -> None:
    """Take in the offsets that are pending in a log, in their order."""
    for place, (producer, record) in enumerate(records, -len(records)):
        key = record.key
        if isinstance(key, m.OffsetCommitKey) and record.value is not None:
            groups.setdefault(key.group, Group(key.group, now))
            committed = committed_from(record.value)
            pending.add(producer.producer_id, key.group, key.topic, key.partition, Pending(place, committed))
