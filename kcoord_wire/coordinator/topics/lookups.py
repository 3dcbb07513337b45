"""Offsets by time and by leader epoch: ListOffsets and OffsetForLeaderEpoch.

Source: kafka `KafkaApis.scala`, `UnifiedLog`; KIP-79, KIP-101, KIP-320, KIP-405, KIP-734.
"""

from __future__ import annotations

from collections import Counter

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.apis import LEADER_EPOCH_FROM
from kcoord_wire.coordinator.core.events import Request
from kcoord_wire.coordinator.partitions.batch_header import Refused
from kcoord_wire.coordinator.partitions.partition_log import PartitionLog, RecordAt
from kcoord_wire.coordinator.topics.catalog import NO_ID, Catalog
from kcoord_wire.coordinator.topics.fetching import READ_COMMITTED
from kcoord_wire.protocol.error_codes import ErrorCode

# Special timestamps of ListOffsets, each with its first version.
_LATEST, _EARLIEST, _MAX_TIMESTAMP, _EARLIEST_LOCAL, _LATEST_TIERED, _EARLIEST_PENDING = -1, -2, -3, -4, -5, -6
_SPECIAL_TIMES = {_LATEST: 0, _EARLIEST: 0, _MAX_TIMESTAMP: 7, _EARLIEST_LOCAL: 8, _LATEST_TIERED: 9}
_SPECIAL_TIMES[_EARLIEST_PENDING] = 11
_NOTHING = RecordAt(-1, -1, -1)


def list_offsets(catalog: Catalog, request: Request) -> m.ListOffsetsResponse:
    """Answer ListOffsets."""
    asked: m.ListOffsetsRequest = request.message
    times = Counter((part.name, wanted.partition_index) for part in asked.topics for wanted in part.partitions)
    response = m.ListOffsetsResponse()
    for part in asked.topics:
        topic = catalog.find(part.name, NO_ID, False)
        answers = []
        for wanted in part.partitions:
            answer = m.ListOffsetsResponseListOffsetsPartitionResponse(partition_index=wanted.partition_index)
            answers.append(answer)
            try:
                if times[part.name, wanted.partition_index] > 1:
                    raise Refused(ErrorCode.INVALID_REQUEST)
                if wanted.timestamp < 0 and request.version < _SPECIAL_TIMES.get(wanted.timestamp, 1 << 15):
                    raise Refused(ErrorCode.UNSUPPORTED_VERSION)
                log = catalog.log(topic, wanted.partition_index, request.broker, wanted.current_leader_epoch)
                if request.version == 0:
                    answer.old_style_offsets = _offsets_before(log, wanted.timestamp)[: max(wanted.max_num_offsets, 0)]
                    continue
                end = log.stable_offset if asked.isolation_level == READ_COMMITTED else log.end_offset
                found = _offset_at(log, wanted.timestamp, end)
            except Refused as refused:
                answer.error_code = refused.error
                continue
            answer.offset, answer.timestamp = found.offset, found.timestamp
            if request.version >= LEADER_EPOCH_FROM:
                answer.leader_epoch = found.leader_epoch
        response.topics.append(m.ListOffsetsResponseListOffsetsTopicResponse(name=part.name, partitions=answers))
    return response


def offset_for_leader_epoch(catalog: Catalog, request: Request) -> m.OffsetForLeaderEpochResponse:
    """Answer OffsetForLeaderEpoch (KIP-101, KIP-320)."""
    asked: m.OffsetForLeaderEpochRequest = request.message
    response = m.OffsetForLeaderEpochResponse()
    for part in asked.topics:
        topic = catalog.find(part.topic, NO_ID, False)
        answers = []
        for wanted in part.partitions:
            answer = m.OffsetForLeaderEpochResponseEpochEndOffset(partition=wanted.partition)
            answers.append(answer)
            try:
                log = catalog.log(topic, wanted.partition, request.broker, wanted.current_leader_epoch)
            except Refused as refused:
                answer.error_code = refused.error
                continue
            end = log.epochs.end_of(wanted.leader_epoch, log.end_offset)
            if end is not None:
                answer.leader_epoch, answer.end_offset = end
        result = m.OffsetForLeaderEpochResponseOffsetForLeaderTopicResult(topic=part.topic, partitions=answers)
        response.topics.append(result)
    return response


def _offset_at(log: PartitionLog, timestamp: int, end: int) -> RecordAt:
    """Return the record for a time, special or not; -1 for each part of it that does not exist.

    :param end: the offset at which the reader's records end
    """
    if timestamp == _LATEST:
        return RecordAt(end, -1, log.leader_epoch)
    if timestamp in (_EARLIEST, _EARLIEST_LOCAL):
        return RecordAt(log.start_offset, -1, log.epochs.at(log.start_offset))
    if timestamp in (_LATEST_TIERED, _EARLIEST_PENDING):
        return _NOTHING
    found = log.latest() if timestamp == _MAX_TIMESTAMP else log.first_since(timestamp)
    return _NOTHING if found is None or found.offset >= end else found


def _offsets_before(log: PartitionLog, timestamp: int) -> list[int]:
    """Return the answer of v0: the starts of segments older than the time, and the log's end, latest first.

    There is one segment, as old as its greatest timestamp.
    """
    latest = log.latest()
    if timestamp == _EARLIEST or latest is None:
        return [log.start_offset]
    return [log.end_offset, log.start_offset] if timestamp == _LATEST or timestamp >= latest.timestamp else []
