"""Reading partitions: Fetch, with the requests that are parked until there is enough to read; offsets by time and by
leader epoch (ListOffsets, OffsetForLeaderEpoch).

Source: kafka `DelayedFetch.scala`, `ReplicaManager.scala`, `FetchSession`, `KafkaApis.scala`, `UnifiedLog`; KIP-74,
KIP-79, KIP-101, KIP-227, KIP-320, KIP-405, KIP-734, KIP-951.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.apis import (
    FETCH_NAMES_LEADER_FROM,
    LEADER_EPOCH_FROM,
    PRODUCE_NAMES_LEADER_FROM,
    TOPIC_UUIDS_FROM,
    Refused,
    paired_partitions,
    refusal,
    refused_in,
)
from kcoord_wire.coordinator.core.brokers import NO_LEADER
from kcoord_wire.coordinator.core.events import Effect, Reply, Request
from kcoord_wire.coordinator.partitions.partition_log import PartitionLog, RecordAt
from kcoord_wire.coordinator.topics.catalog import NO_ID, Catalog, TopicLimits
from kcoord_wire.protocol.error_codes import ErrorCode


def name_leaders(catalog: Catalog, response: m.FetchResponse | m.ProduceResponse, version: int) -> None:
    """Add the leaders of partitions that were refused because another broker leads them, and these brokers' addresses.

    :param version: of the response
    """
    fetched = isinstance(response, m.FetchResponse)
    if version < (FETCH_NAMES_LEADER_FROM if fetched else PRODUCE_NAMES_LEADER_FROM):
        return
    named = m.FetchResponseLeaderIdAndEpoch if fetched else m.ProduceResponseLeaderIdAndEpoch
    addressed: Any = m.FetchResponseNodeEndpoint if fetched else m.ProduceResponseNodeEndpoint
    leaders = set()
    for part in response.responses:
        name = part.topic if isinstance(part, m.FetchResponseFetchableTopicResponse) else part.name
        topic = catalog.find(name, part.topic_id, version >= TOPIC_UUIDS_FROM)
        for index, answer in _partitions(part):
            if answer.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER or isinstance(topic, ErrorCode):
                continue
            leader = topic.leaders.of[index]
            if leader != NO_LEADER:
                node_id = catalog.brokers.endpoints[leader].node_id
                answer.current_leader = named(leader_id=node_id, leader_epoch=topic.logs[index].leader_epoch)
                leaders.add(leader)
    response.node_endpoints = [addressed(**catalog.brokers.endpoints[leader]._asdict()) for leader in sorted(leaders)]


def _partitions(part: Any) -> list[tuple[int, Any]]:
    if isinstance(part, m.FetchResponseFetchableTopicResponse):
        return [(answer.partition_index, answer) for answer in part.partitions]
    return [(answer.index, answer) for answer in part.partition_responses]


READ_COMMITTED: Final = 1
"""The isolation level in which records count once their transaction is committed."""

_LONGEST_WAIT_MS = 300_000
_ABORTED_SIZE = 16  # bytes of an aborted transaction in an answer, of which a partition may have many


class Growth(NamedTuple):
    """What an append has added to a partition.

    :ivar log: the partition
    :ivar size: bytes of the batch
    :ivar stable_size: bytes that the last stable offset has moved over
    """

    log: PartitionLog
    size: int
    stable_size: int


@dataclass(slots=True)
class _Read:
    """What a Fetch would be answered now.

    :ivar response: the answer
    :ivar size: bytes of records in it
    :ivar failed: whether a partition has failed
    :ivar logs: the partitions that have not
    """

    response: m.FetchResponse
    size: int = 0
    failed: bool = False
    logs: list[PartitionLog] = field(default_factory=list)


@dataclass(slots=True)
class _Parked:
    """A parked Fetch.

    :ivar request: the Fetch
    :ivar missing: bytes that it waits for
    :ivar logs: the partitions in which they may arrive
    """

    request: Request
    missing: int
    logs: list[PartitionLog]


class Fetches:
    """Answers Fetch requests.

    :param catalog: the topics
    :param limits: what an answer may cost
    """

    def __init__(self, catalog: Catalog, limits: TopicLimits) -> None:
        self._catalog = catalog
        self._limits = limits
        self._parked: dict[int, _Parked] = {}
        self._due: list[tuple[int, int]] = []  # heap of (ms, token); of those that were answered before, too
        self._waiting: dict[PartitionLog, set[int]] = {}

    @property
    def deadline(self) -> int | None:
        """When a `Tick` is due, in ms; None if no Fetch is parked."""
        while self._due and self._due[0][1] not in self._parked:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def receive(self, request: Request, now: int) -> list[Effect]:
        """Answer a Fetch, or park it."""
        asked: m.FetchRequest = request.message
        if asked.session_epoch > 0:
            return [Reply(request.token, refusal(asked, request.version, ErrorCode.FETCH_SESSION_ID_NOT_FOUND))]
        read = self._read(request)
        if read.size >= asked.min_bytes or asked.max_wait_ms <= 0 or read.failed or not read.logs:
            return [Reply(request.token, read.response)]
        self._parked[request.token] = _Parked(request, asked.min_bytes - read.size, read.logs)
        for log in read.logs:
            self._waiting.setdefault(log, set()).add(request.token)
        if len(self._due) > 2 * len(self._parked) + 1_000:
            self._due = [entry for entry in self._due if entry[1] in self._parked]
            heapq.heapify(self._due)
        heapq.heappush(self._due, (now + min(asked.max_wait_ms, _LONGEST_WAIT_MS), request.token))
        return []

    def _read(self, request: Request) -> _Read:
        asked: m.FetchRequest = request.message
        read = _Read(m.FetchResponse())
        left = min(asked.max_bytes, self._limits.max_fetch_bytes)
        committed = asked.isolation_level == READ_COMMITTED
        for part in asked.topics:
            topic = self._catalog.find(part.topic, part.topic_id, request.version >= TOPIC_UUIDS_FROM)
            answers = []
            for wanted in part.partitions:
                answer = m.FetchResponsePartitionData(
                    partition_index=wanted.partition, high_watermark=-1, records=b"", aborted_transactions=None
                )
                answers.append(answer)
                try:
                    log = self._catalog.log(topic, wanted.partition, request.broker, wanted.current_leader_epoch)
                    if not log.start_offset <= wanted.fetch_offset <= log.end_offset:
                        raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE)
                    end = log.stable_offset if committed else log.end_offset
                    most = min(left, wanted.partition_max_bytes)
                    records = log.read(wanted.fetch_offset, most, read.size == 0, end)
                except Refused as refused:
                    answer.error_code = refused.error
                    read.failed = True
                    continue
                left -= len(records)
                read.size += len(records)
                read.logs.append(log)
                answer.records = records
                answer.high_watermark, answer.last_stable_offset = log.end_offset, log.stable_offset
                answer.log_start_offset = log.start_offset
                if committed:
                    answer.aborted_transactions = [
                        m.FetchResponseAbortedTransaction(
                            producer_id=aborted.producer_id, first_offset=aborted.first_offset
                        )
                        for aborted in (log.aborted_between(wanted.fetch_offset, end) if records else ())
                    ]
                    left -= _ABORTED_SIZE * len(answer.aborted_transactions)
            read.response.responses.append(
                m.FetchResponseFetchableTopicResponse(topic=part.topic, topic_id=part.topic_id, partitions=answers)
            )
        if read.failed:
            name_leaders(self._catalog, read.response, request.version)
        return read

    def wake(self, grown: Sequence[Growth]) -> list[Effect]:
        """Answer the Fetches that have enough bytes now."""
        if not self._waiting:
            return []
        ready: dict[int, None] = {}
        for log, size, stable_size in grown:
            for token in self._waiting.get(log, ()):
                parked = self._parked[token]
                committed = parked.request.message.isolation_level == READ_COMMITTED
                parked.missing -= stable_size if committed else size
                if parked.missing <= 0:
                    ready[token] = None
        return [self._answer(token) for token in sorted(ready)]

    def wake_all(self, logs: Sequence[PartitionLog]) -> list[Effect]:
        """Answer the Fetches of these partitions, because they have been deleted."""
        return [self._answer(token) for token in sorted({t for log in logs for t in self._waiting.get(log, ())})]

    def answer_due(self, now: int) -> list[Effect]:
        """Answer the Fetches that have waited long enough."""
        effects: list[Effect] = []
        while (due := self.deadline) is not None and due <= now:
            effects.append(self._answer(heapq.heappop(self._due)[1]))
        return effects

    def _answer(self, token: int) -> Reply:
        parked = self.unpark(token)
        assert parked is not None
        return Reply(token, self._read(parked.request).response)

    def unpark(self, token: int) -> _Parked | None:
        """Withdraw a Fetch: it is not answered."""
        parked = self._parked.pop(token, None)
        for log in parked.logs if parked else ():
            tokens = self._waiting.get(log, set())
            tokens.discard(token)
            if not tokens:
                self._waiting.pop(log, None)
        return parked


# Special timestamps of ListOffsets, each with its first version.
_LATEST, _EARLIEST, _MAX_TIMESTAMP, _EARLIEST_LOCAL, _LATEST_TIERED, _EARLIEST_PENDING = -1, -2, -3, -4, -5, -6
_SPECIAL_TIMES = {_LATEST: 0, _EARLIEST: 0, _MAX_TIMESTAMP: 7, _EARLIEST_LOCAL: 8, _LATEST_TIERED: 9}
_SPECIAL_TIMES[_EARLIEST_PENDING] = 11
_NOTHING = RecordAt(-1, -1, -1)


def list_offsets(catalog: Catalog, request: Request) -> m.ListOffsetsResponse:
    """Answer ListOffsets."""
    asked: m.ListOffsetsRequest = request.message
    times = Counter((part.name, wanted.partition_index) for part in asked.topics for wanted in part.partitions)
    response: m.ListOffsetsResponse = refusal(asked, request.version, ErrorCode.NONE)
    for part, wanted, answer in paired_partitions(asked, response):
        with refused_in(answer):
            if times[part.name, wanted.partition_index] > 1:
                raise Refused(ErrorCode.INVALID_REQUEST)
            if wanted.timestamp < 0 and request.version < _SPECIAL_TIMES.get(wanted.timestamp, 1 << 15):
                raise Refused(ErrorCode.UNSUPPORTED_VERSION)
            topic = catalog.find(part.name, NO_ID, False)
            log = catalog.log(topic, wanted.partition_index, request.broker, wanted.current_leader_epoch)
            if request.version == 0:
                answer.old_style_offsets = _offsets_before(log, wanted.timestamp)[: max(wanted.max_num_offsets, 0)]
                continue
            end = log.stable_offset if asked.isolation_level == READ_COMMITTED else log.end_offset
            found = _offset_at(log, wanted.timestamp, end)
            answer.offset, answer.timestamp = found.offset, found.timestamp
            if request.version >= LEADER_EPOCH_FROM:
                answer.leader_epoch = found.leader_epoch
    return response


def offset_for_leader_epoch(catalog: Catalog, request: Request) -> m.OffsetForLeaderEpochResponse:
    """Answer OffsetForLeaderEpoch (KIP-101, KIP-320)."""
    asked: m.OffsetForLeaderEpochRequest = request.message
    response: m.OffsetForLeaderEpochResponse = refusal(asked, request.version, ErrorCode.NONE)
    for part, wanted, answer in paired_partitions(asked, response):
        with refused_in(answer):
            topic = catalog.find(part.topic, NO_ID, False)
            log = catalog.log(topic, wanted.partition, request.broker, wanted.current_leader_epoch)
            end = log.epochs.end_of(wanted.leader_epoch, log.end_offset)
            if end is not None:
                answer.leader_epoch, answer.end_offset = end
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
