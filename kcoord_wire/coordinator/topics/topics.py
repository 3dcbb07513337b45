"""The topics that clients read and write: a broker of one node with its partitions in memory.

Answers ApiVersions, Metadata, Produce, Fetch, ListOffsets, OffsetForLeaderEpoch and InitProducerId as Kafka's broker
does, so that consumers poll, commit and rebalance without a warning. A machine as events.py describes it.

Laws:

* Records are kept in memory only: a restart begins with empty topics, whose ids are the same for the same cluster id.
  The bytes of all partitions together are bounded; the oldest batch of all is dropped first.
* A Fetch is parked until there are ``min_bytes``, or for ``max_wait_ms``; not if one of its partitions fails. It is
  answered with whole batches, at least one if there is one.
* There are no fetch sessions: full requests are answered with session id 0, so that clients go on without one; a
  request in a session is answered FETCH_SESSION_ID_NOT_FOUND (70), as by a broker that has dropped it.
* There are no transactions: a transactional id is answered TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53), which producers
  do not retry.
* Unlike in other machines, the `Reply` to a Produce with acks 0 has the message None: nothing is sent. And `abandon`
  withdraws a parked request.

Source: kafka `KafkaApis.scala`, `ReplicaManager.scala`, `DelayedFetch.scala`, `FetchSession`; KIP-74, KIP-98, KIP-227,
KIP-320, KIP-511, KIP-516, KIP-1242.
"""

from __future__ import annotations

import heapq
import re
import uuid
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from kcoord_wire import messages as m
from kcoord_wire.api_keys import ApiKey
from kcoord_wire.coordinator.core.config import Endpoint
from kcoord_wire.coordinator.core.error_responses import refusal
from kcoord_wire.coordinator.core.events import Effect, Event, Reply, Request, Tick
from kcoord_wire.coordinator.core.versions import (
    LEADER_EPOCH_FROM,
    NULLABLE_TOPIC_NAME_FROM,
    SOFTWARE_NAMED_FROM,
    TOPIC_UUIDS_FROM,
    ZSTD_FROM,
)
from kcoord_wire.coordinator.topics.partition_log import (
    BATCH_OVERHEAD,
    LEADER_EPOCH,
    PartitionLog,
    Refused,
    check_batch,
)
from kcoord_wire.error_codes import ErrorCode
from kcoord_wire.extras import require
from kcoord_wire.records import Compression

__all__ = ["SERVED", "TopicLimits", "Topics"]

SERVED: Final[Mapping[int, range]] = MappingProxyType(
    {
        ApiKey.PRODUCE: range(3, 14),
        ApiKey.FETCH: range(4, 19),
        ApiKey.LIST_OFFSETS: range(12),
        ApiKey.METADATA: range(14),
        ApiKey.OFFSET_COMMIT: range(11),
        ApiKey.OFFSET_FETCH: range(11),
        ApiKey.FIND_COORDINATOR: range(7),
        ApiKey.JOIN_GROUP: range(10),
        ApiKey.HEARTBEAT: range(5),
        ApiKey.LEAVE_GROUP: range(6),
        ApiKey.SYNC_GROUP: range(6),
        ApiKey.DESCRIBE_GROUPS: range(7),
        ApiKey.LIST_GROUPS: range(6),
        ApiKey.SASL_HANDSHAKE: range(2),
        ApiKey.API_VERSIONS: range(6),
        ApiKey.INIT_PRODUCER_ID: range(6),  # v6 is in no release yet
        ApiKey.OFFSET_FOR_LEADER_EPOCH: range(5),
        ApiKey.SASL_AUTHENTICATE: range(3),
        ApiKey.DELETE_GROUPS: range(4),
        ApiKey.OFFSET_DELETE: range(1),
    }
)
"""Api key to the versions that are answered, including group apis and SASL.

These are advertised, except that Produce is advertised from 0 on, as by Kafka 4: older librdkafka does not work with a
broker otherwise (KAFKA-18659). A request of such a version closes the connection.
"""

_ACKS: Final = (-1, 0, 1)
_NO_ID: Final = uuid.UUID(int=0)
_TOPIC_NAME = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}\Z")
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?\Z")
_MAX_NODE_ID = (1 << 31) - 1
_LONGEST_WAIT_MS = 300_000
_MOST_PARTITIONS = 100_000  # of one topic; Metadata describes them all in one answer
# Bit sets of AclOperation codes: a broker without ACLs answers all that exist for the resource.
_TOPIC_OPERATIONS = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
_CLUSTER_OPERATIONS = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))
# Special timestamps of ListOffsets, each with its first version.
_LATEST, _EARLIEST, _MAX_TIMESTAMP, _EARLIEST_LOCAL, _LATEST_TIERED, _EARLIEST_PENDING = -1, -2, -3, -4, -5, -6
_SPECIAL_TIMES = {_LATEST: 0, _EARLIEST: 0, _MAX_TIMESTAMP: 7, _EARLIEST_LOCAL: 8, _LATEST_TIERED: 9}
_SPECIAL_TIMES[_EARLIEST_PENDING] = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLimits:
    """What topics may cost, in bytes.

    :ivar max_message_bytes: of one batch (``max.message.bytes``)
    :ivar retention_bytes: of all partitions together, the objects around each batch included
    :ivar max_fetch_bytes: of one answer (``fetch.max.bytes``), apart from a first batch. Less than Kafka's 55 MiB,
        because a client that does not read its answers can hold that much
    :ivar max_partitions: of all topics together, where clients create topics
    """

    max_message_bytes: int = 1_048_588
    retention_bytes: int = 64 << 20
    max_fetch_bytes: int = 4 << 20
    max_partitions: int = 100_000


class _Topic:
    __slots__ = ("id", "logs", "name")

    def __init__(self, name: str, topic_id: uuid.UUID, partitions: int) -> None:
        self.name = name
        self.id = topic_id
        self.logs = [PartitionLog() for _ in range(partitions)]


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


class Topics:
    """The topics of a broker, as a machine: requests and the time go in, replies come out.

    :param endpoint: the one broker, as Metadata returns it; it is the controller and leads every partition
    :param topics: name to number of partitions
    :param cluster_id: as Metadata returns it; topic ids are made of it and the topic's name
    :param sasl: whether ApiVersions offers SASL
    :param auto_create_partitions: partitions of a topic that a Metadata request creates; None creates none
    :raises ValueError: a topic's name or number of partitions is not allowed
    :raises MissingLibraryError: the extra ``records`` is not installed
    """

    def __init__(
        self,
        endpoint: Endpoint,
        topics: Mapping[str, int] | None = None,
        *,
        cluster_id: str,
        sasl: bool = False,
        auto_create_partitions: int | None = None,
        limits: TopicLimits | None = None,
    ) -> None:
        if auto_create_partitions is not None:
            _check_count("a topic that is created", auto_create_partitions)
        for library in ("crc32c", "cramjam"):  # now, not when the first batch arrives
            require(library, "records", "topics in memory")
        self.endpoint = endpoint
        self.cluster_id = cluster_id
        self._auto_create = auto_create_partitions
        self._limits = limits or TopicLimits()
        self._api_keys = [
            m.ApiVersionsResponseApiVersion(
                api_key=key, min_version=0 if key == ApiKey.PRODUCE else versions[0], max_version=versions[-1]
            )
            for key, versions in SERVED.items()
            if sasl or key not in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
        ]
        self._topics: dict[str, _Topic] = {}
        self._by_id: dict[uuid.UUID, _Topic] = {}
        self._oldest: deque[PartitionLog] = deque()  # a log for each batch, in the order in which these were appended
        self._held = 0  # bytes
        self._parked: dict[int, _Parked] = {}
        self._due: list[tuple[int, int]] = []  # heap of (ms, token); of those that were answered before, too
        self._waiting: dict[PartitionLog, set[int]] = {}
        self._last_producer_id = -1
        for name, partitions in (topics or {}).items():
            self.create(name, partitions)

    # ---- topics

    def create(self, name: str, partitions: int) -> None:
        """Create a topic.

        :raises ValueError: the name is not allowed or taken, or the number of partitions is not from 1 to 100,000
        :raises TypeError: the number of partitions is not an int
        """
        if not _TOPIC_NAME.match(name):
            raise ValueError(f"{name!r} is not a topic name")
        if name in self._topics:
            raise ValueError(f"topic {name!r} exists already")
        _check_count(f"topic {name!r}", partitions)
        topic = _Topic(name, uuid.uuid5(uuid.NAMESPACE_OID, f"{self.cluster_id}/{name}"), partitions)
        self._topics[name] = self._by_id[topic.id] = topic

    def add_partitions(self, name: str, count: int) -> int:
        """Give a topic `count` more partitions. Consumers notice at their next Metadata request and rebalance.

        :returns: how many it has then
        :raises KeyError: the topic does not exist
        :raises ValueError: `count` is less than one, or the topic would have more than 100,000
        """
        logs = self._topics[name].logs
        if type(count) is int and count < 1:
            raise ValueError(f"{count} partitions cannot be added")
        _check_count(f"topic {name!r}", len(logs) + count)
        logs += [PartitionLog() for _ in range(count)]
        return len(logs)

    def partitions(self, name: str) -> int | None:
        """Return the number of partitions; None if the topic does not exist."""
        topic = self._topics.get(name)
        return len(topic.logs) if topic else None

    def id_of(self, name: str) -> uuid.UUID | None:
        """Return the topic's id; None if the topic does not exist."""
        topic = self._topics.get(name)
        return topic.id if topic else None

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        """Return the name of the topic with this id; None if no topic has it."""
        topic = self._by_id.get(topic_id)
        return topic.name if topic else None

    # ---- the machine

    @property
    def deadline(self) -> int | None:
        """When a `Tick` is due, in ms; None if no Fetch is parked."""
        while self._due and self._due[0][1] not in self._parked:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def handle(self, event: Event, now: int) -> list[Effect]:
        """Return the effects of `event`: only replies. `Load` and `Resign` concern the groups' log, and do nothing.

        :raises TypeError: a request that is not for the topics
        """
        if isinstance(event, Request):
            handler = _HANDLERS.get(type(event.message))
            if handler is None:
                raise TypeError(f"{type(event.message).__name__} is not for the topics")
            return handler(self, event, now)
        if isinstance(event, Tick):
            return self._answer_due(now)
        return []

    def abandon(self, token: int) -> None:
        """Withdraw the request `token` if it is parked, because its connection has ended: it gets no `Reply`."""
        self._unpark(token)

    def api_versions_fallback(self) -> m.ApiVersionsResponse:
        """Return the answer, in version 0, to an ApiVersions request of a version that is not served (KIP-511)."""
        own = [entry for entry in self._api_keys if entry.api_key == ApiKey.API_VERSIONS]
        return m.ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=own)

    # ---- ApiVersions, Metadata, InitProducerId

    def _api_versions(self, request: Request, now: int) -> list[Effect]:
        asked: m.ApiVersionsRequest = request.message
        error = self._wrong_api_versions(asked, request.version)
        # No features are listed: there are none, and v3 must not have those that begin at 0 (KAFKA-17011).
        return [
            Reply(request.token, m.ApiVersionsResponse(error_code=error, api_keys=[] if error else [*self._api_keys]))
        ]

    def _wrong_api_versions(self, asked: m.ApiVersionsRequest, version: int) -> ErrorCode:
        named = _SOFTWARE.match(asked.client_software_name) and _SOFTWARE.match(asked.client_software_version)
        if (version >= SOFTWARE_NAMED_FROM and not named) or (asked.cluster_id is None) != (asked.node_id == -1):
            return ErrorCode.INVALID_REQUEST
        if asked.cluster_id is None:
            return ErrorCode.NONE
        # Java consumers give the connection to their coordinator an id of its own, counted down from the greatest.
        ours = (self.endpoint.node_id, _MAX_NODE_ID - self.endpoint.node_id)
        is_ours = asked.cluster_id == self.cluster_id and asked.node_id in ours
        return ErrorCode.NONE if is_ours else ErrorCode.REBOOTSTRAP_REQUIRED

    def _metadata(self, request: Request, now: int) -> list[Effect]:
        asked: m.MetadataRequest = request.message
        found = self._find(asked, request.version)
        if found is None:
            return [Reply(request.token, refusal(asked, request.version, ErrorCode.INVALID_REQUEST))]
        if asked.include_topic_authorized_operations:
            for topic in found:
                if topic.name is not None:
                    topic.topic_authorized_operations = _TOPIC_OPERATIONS
        response = m.MetadataResponse(
            brokers=[m.MetadataResponseBroker(**self.endpoint._asdict())],
            cluster_id=self.cluster_id,
            controller_id=self.endpoint.node_id,
            topics=found,
        )
        if asked.include_cluster_authorized_operations:
            response.cluster_authorized_operations = _CLUSTER_OPERATIONS
        return [Reply(request.token, response)]

    def _find(self, asked: m.MetadataRequest, version: int) -> list[m.MetadataResponseTopic] | None:
        """Describe the topics that are asked for; None if the version has no such request."""
        if asked.topics is None or (version == 0 and not asked.topics):
            return [self._describe(topic) for topic in self._topics.values()]
        ids = dict.fromkeys(topic.topic_id for topic in asked.topics if topic.topic_id != _NO_ID)
        names = dict.fromkeys(topic.name for topic in asked.topics)
        if version < NULLABLE_TOPIC_NAME_FROM and (ids or None in names):
            return None
        if ids:  # names beside them are ignored, as by Kafka
            return [self._describe_id(topic_id) for topic_id in ids]
        return [self._describe_name(name, asked.allow_auto_topic_creation) for name in names]

    def _describe(self, topic: _Topic) -> m.MetadataResponseTopic:
        node = self.endpoint.node_id
        partitions = [
            m.MetadataResponsePartition(
                partition_index=index, leader_id=node, leader_epoch=LEADER_EPOCH, replica_nodes=[node], isr_nodes=[node]
            )
            for index in range(len(topic.logs))
        ]
        return m.MetadataResponseTopic(name=topic.name, topic_id=topic.id, partitions=partitions)

    def _describe_id(self, topic_id: uuid.UUID) -> m.MetadataResponseTopic:
        topic = self._by_id.get(topic_id)
        if topic is None:
            return m.MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
        return self._describe(topic)

    def _describe_name(self, name: str | None, may_create: bool) -> m.MetadataResponseTopic:
        topic = self._topics.get(name or "")
        if topic is not None:
            return self._describe(topic)
        if not name or not _TOPIC_NAME.match(name):
            return m.MetadataResponseTopic(error_code=ErrorCode.INVALID_TOPIC_EXCEPTION, name=name or "")
        if may_create and self._auto_create is not None:
            there = sum(len(topic.logs) for topic in self._topics.values())
            if there + self._auto_create <= self._limits.max_partitions:
                self.create(name, self._auto_create)
                return self._describe(self._topics[name])
        return m.MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name)

    def _init_producer_id(self, request: Request, now: int) -> list[Effect]:
        asked: m.InitProducerIdRequest = request.message
        if asked.transactional_id is not None:
            empty = not asked.transactional_id
            error = ErrorCode.INVALID_REQUEST if empty else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            return [Reply(request.token, refusal(asked, request.version, error))]
        if (asked.producer_id == -1) != (asked.producer_epoch == -1):
            return [Reply(request.token, refusal(asked, request.version, ErrorCode.INVALID_REQUEST))]
        # Counted from the time, so that a producer that outlives a restart does not share its id with a new one.
        self._last_producer_id = max(self._last_producer_id + 1, now)
        response = m.InitProducerIdResponse(producer_id=self._last_producer_id, producer_epoch=0)
        return [Reply(request.token, response)]

    # ---- finding a partition

    def _topic(self, name: str, topic_id: uuid.UUID, by_id: bool) -> _Topic | ErrorCode:
        """Return the topic, or the error of each of its partitions."""
        if by_id:
            return self._by_id.get(topic_id, ErrorCode.UNKNOWN_TOPIC_ID)
        return self._topics.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    @staticmethod
    def _log(topic: _Topic | ErrorCode, index: int, leader_epoch: int = -1) -> PartitionLog:
        if isinstance(topic, ErrorCode):
            raise Refused(topic)
        if not 0 <= index < len(topic.logs):
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if leader_epoch not in (-1, LEADER_EPOCH):
            newer = leader_epoch > LEADER_EPOCH
            raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH if newer else ErrorCode.FENCED_LEADER_EPOCH)
        return topic.logs[index]

    # ---- Produce

    def _produce(self, request: Request, now: int) -> list[Effect]:
        asked: m.ProduceRequest = request.message
        grown: list[tuple[PartitionLog, int]] = []
        if asked.transactional_id is not None:
            response = refusal(asked, request.version, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        elif asked.acks not in _ACKS:
            response = refusal(asked, request.version, ErrorCode.INVALID_REQUIRED_ACKS)
        else:
            response = m.ProduceResponse()
            for part in asked.topic_data:
                topic = self._topic(part.name, part.topic_id, request.version >= TOPIC_UUIDS_FROM)
                outcomes = [self._append(topic, data, request.version, grown) for data in part.partition_data]
                response.responses.append(
                    m.ProduceResponseTopicProduceResponse(
                        name=part.name, topic_id=part.topic_id, partition_responses=outcomes
                    )
                )
        effects: list[Effect] = [Reply(request.token, None if asked.acks == 0 else response)]
        effects += self._wake(grown)
        self._drop_oldest()
        return effects

    def _append(
        self,
        topic: _Topic | ErrorCode,
        data: m.ProduceRequestPartitionProduceData,
        version: int,
        grown: list[tuple[PartitionLog, int]],
    ) -> m.ProduceResponsePartitionProduceResponse:
        outcome = m.ProduceResponsePartitionProduceResponse(index=data.index, base_offset=-1)
        try:
            log = self._log(topic, data.index)
            batch = check_batch(data.records, self._limits.max_message_bytes)
            assert data.records is not None
            if version < ZSTD_FROM and batch.compression == Compression.ZSTD:
                raise Refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
            outcome.base_offset, size = log.append(batch, data.records)
        except Refused as refused:
            outcome.error_code, outcome.error_message = refused.error, refused.detail
            return outcome
        if size:
            self._held += size + BATCH_OVERHEAD
            self._oldest.append(log)
            grown.append((log, size))
        outcome.log_start_offset = log.start_offset
        return outcome

    def _drop_oldest(self) -> None:
        while self._held > self._limits.retention_bytes:
            self._held -= self._oldest.popleft().drop_oldest() + BATCH_OVERHEAD

    # ---- Fetch

    def _fetch(self, request: Request, now: int) -> list[Effect]:
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
        for part in asked.topics:
            topic = self._topic(part.topic, part.topic_id, request.version >= TOPIC_UUIDS_FROM)
            answers = []
            for wanted in part.partitions:
                answer = m.FetchResponsePartitionData(
                    partition_index=wanted.partition, high_watermark=-1, records=b"", aborted_transactions=None
                )
                answers.append(answer)
                try:
                    log = self._log(topic, wanted.partition, wanted.current_leader_epoch)
                    if not log.start_offset <= wanted.fetch_offset <= log.end_offset:
                        raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE)
                except Refused as refused:
                    answer.error_code = refused.error
                    read.failed = True
                    continue
                records = log.read(wanted.fetch_offset, min(left, wanted.partition_max_bytes), read.size == 0)
                left -= len(records)
                read.size += len(records)
                read.logs.append(log)
                answer.records = records
                answer.high_watermark = answer.last_stable_offset = log.end_offset
                answer.log_start_offset = log.start_offset
                if asked.isolation_level == 1:
                    answer.aborted_transactions = []
            read.response.responses.append(
                m.FetchResponseFetchableTopicResponse(topic=part.topic, topic_id=part.topic_id, partitions=answers)
            )
        return read

    def _wake(self, grown: list[tuple[PartitionLog, int]]) -> list[Effect]:
        """Answer the Fetches that have enough bytes now."""
        ready: dict[int, None] = {}
        for log, size in grown:
            for token in self._waiting.get(log, ()):
                parked = self._parked[token]
                parked.missing -= size
                if parked.missing <= 0:
                    ready[token] = None
        return [self._answer(token) for token in sorted(ready)]

    def _answer_due(self, now: int) -> list[Effect]:
        effects: list[Effect] = []
        while (due := self.deadline) is not None and due <= now:
            effects.append(self._answer(heapq.heappop(self._due)[1]))
        return effects

    def _answer(self, token: int) -> Reply:
        parked = self._unpark(token)
        assert parked is not None
        return Reply(token, self._read(parked.request).response)

    def _unpark(self, token: int) -> _Parked | None:
        parked = self._parked.pop(token, None)
        for log in parked.logs if parked else ():
            tokens = self._waiting.get(log, set())
            tokens.discard(token)
            if not tokens:
                self._waiting.pop(log, None)
        return parked

    # ---- ListOffsets, OffsetForLeaderEpoch

    def _list_offsets(self, request: Request, now: int) -> list[Effect]:
        asked: m.ListOffsetsRequest = request.message
        times = Counter((part.name, wanted.partition_index) for part in asked.topics for wanted in part.partitions)
        response = m.ListOffsetsResponse()
        for part in asked.topics:
            topic = self._topic(part.name, _NO_ID, False)
            answers = []
            for wanted in part.partitions:
                answer = m.ListOffsetsResponseListOffsetsPartitionResponse(partition_index=wanted.partition_index)
                answers.append(answer)
                try:
                    if times[part.name, wanted.partition_index] > 1:
                        raise Refused(ErrorCode.INVALID_REQUEST)
                    if wanted.timestamp < 0 and request.version < _SPECIAL_TIMES.get(wanted.timestamp, 1 << 15):
                        raise Refused(ErrorCode.UNSUPPORTED_VERSION)
                    log = self._log(topic, wanted.partition_index, wanted.current_leader_epoch)
                except Refused as refused:
                    answer.error_code = refused.error
                    continue
                if request.version == 0:
                    answer.old_style_offsets = _offsets_before(log, wanted.timestamp)[: max(wanted.max_num_offsets, 0)]
                else:
                    answer.offset, answer.timestamp = _offset_at(log, wanted.timestamp)
                    if answer.offset >= 0 and request.version >= LEADER_EPOCH_FROM:
                        answer.leader_epoch = LEADER_EPOCH
            response.topics.append(m.ListOffsetsResponseListOffsetsTopicResponse(name=part.name, partitions=answers))
        return [Reply(request.token, response)]

    def _offset_for_leader_epoch(self, request: Request, now: int) -> list[Effect]:
        asked: m.OffsetForLeaderEpochRequest = request.message
        response = m.OffsetForLeaderEpochResponse()
        for part in asked.topics:
            topic = self._topic(part.topic, _NO_ID, False)
            answers = []
            for wanted in part.partitions:
                answer = m.OffsetForLeaderEpochResponseEpochEndOffset(partition=wanted.partition)
                answers.append(answer)
                try:
                    log = self._log(topic, wanted.partition, wanted.current_leader_epoch)
                except Refused as refused:
                    answer.error_code = refused.error
                    continue
                if wanted.leader_epoch == LEADER_EPOCH:
                    answer.leader_epoch, answer.end_offset = LEADER_EPOCH, log.end_offset
            result = m.OffsetForLeaderEpochResponseOffsetForLeaderTopicResult(topic=part.topic, partitions=answers)
            response.topics.append(result)
        return [Reply(request.token, response)]


def _check_count(whose: str, partitions: int) -> None:
    if type(partitions) is not int:
        raise TypeError(f"{whose} needs a whole number of partitions, not {partitions!r}")
    if partitions < 1:
        raise ValueError(f"{whose} needs one partition or more, not {partitions}")
    if partitions > _MOST_PARTITIONS:
        raise ValueError(f"{whose} may have {_MOST_PARTITIONS:,} partitions, not {partitions:,}")


def _offset_at(log: PartitionLog, timestamp: int) -> tuple[int, int]:
    """Return the offset for a time, special or not, and the time of its record; -1 for each that does not exist."""
    if timestamp == _LATEST:
        return log.end_offset, -1
    if timestamp in (_EARLIEST, _EARLIEST_LOCAL):
        return log.start_offset, -1
    if timestamp in (_LATEST_TIERED, _EARLIEST_PENDING):
        return -1, -1
    return (log.latest() if timestamp == _MAX_TIMESTAMP else log.first_since(timestamp)) or (-1, -1)


def _offsets_before(log: PartitionLog, timestamp: int) -> list[int]:
    """Return the answer of v0: the starts of segments older than the time, and the log's end, latest first.

    There is one segment, as old as its greatest timestamp.
    """
    latest = log.latest()
    if timestamp == _EARLIEST or latest is None:
        return [log.start_offset]
    return [log.end_offset, log.start_offset] if timestamp == _LATEST or timestamp >= latest.timestamp else []


_HANDLERS: Mapping[type, Callable[[Topics, Request, int], list[Effect]]] = {
    m.ProduceRequest: Topics._produce,
    m.FetchRequest: Topics._fetch,
    m.ListOffsetsRequest: Topics._list_offsets,
    m.MetadataRequest: Topics._metadata,
    m.ApiVersionsRequest: Topics._api_versions,
    m.InitProducerIdRequest: Topics._init_producer_id,
    m.OffsetForLeaderEpochRequest: Topics._offset_for_leader_epoch,
}
