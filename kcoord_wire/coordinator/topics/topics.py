"""The topics that clients read and write: a broker of one node with its partitions in memory.

Answers what is about topics and their configs as Kafka's broker does, so that consumers poll, commit and rebalance
without a warning, and AdminClients make the topics that they need. A machine as `core.events` describes it.

Laws:

* Records are on a disk, which may be memory (`partitions.partition_log`, `catalog`). Their bytes are bounded
  (`retention`).
* A Fetch is parked until there are ``min_bytes``, or for ``max_wait_ms``; not if one of its partitions fails. It is
  answered with whole batches, at least one if there is one.
* There are no fetch sessions: full requests are answered with session id 0, so that clients go on without one; a
  request in a session is answered FETCH_SESSION_ID_NOT_FOUND (70), as by a broker that has dropped it.
* The first batch of a transaction in a partition is refused unless it comes as `VerifiedProduce`, with which the host
  says what the transaction coordinator has answered for its partition.
* Unlike in other machines, the `Reply` to a Produce with acks 0 has the message None: nothing is sent; or `HANG_UP`, if
  one of its partitions fails. And `abandon` withdraws a parked request.

Source: kafka `KafkaApis.scala`, `ReplicaManager.scala`, `DelayedFetch.scala`, `FetchSession`; KIP-74, KIP-98, KIP-227,
KIP-320, KIP-511, KIP-516, KIP-1242.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.apis import SERVED, TOPIC_UUIDS_FROM, ZSTD_FROM, Refused, refusal
from kcoord_wire.coordinator.core.brokers import INTERNAL_TOPICS, Brokers
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.events import (
    HANG_UP,
    Effect,
    Event,
    HangUp,
    Reassigned,
    Reply,
    Request,
    TopicsDeleted,
)
from kcoord_wire.coordinator.log.batches import LogBatch
from kcoord_wire.coordinator.partitions.batch_header import Header, check_batch, read_header, with_append_time
from kcoord_wire.coordinator.partitions.partition_log import SEGMENT_BYTES, PartitionLog, Storage
from kcoord_wire.coordinator.partitions.record_rules import Reading, RefusedRecords
from kcoord_wire.coordinator.topics.administration import Administration
from kcoord_wire.coordinator.topics.catalog import NO_ID, Catalog, Topic, TopicLimits, disk_work
from kcoord_wire.coordinator.topics.compaction import Compacting, Compaction
from kcoord_wire.coordinator.topics.configs import TOPIC_CONFIGS, check_configs
from kcoord_wire.coordinator.topics.configuration import Configuration
from kcoord_wire.coordinator.topics.fetching import Fetches, Growth, list_offsets, name_leaders, offset_for_leader_epoch
from kcoord_wire.coordinator.topics.internal import InternalTopic
from kcoord_wire.coordinator.topics.metadata import ClusterMetadata
from kcoord_wire.coordinator.topics.retention import Retention
from kcoord_wire.coordinator.topics.shared_logs import SharedLogs
from kcoord_wire.extras import require_later
from kcoord_wire.kernel.disk import Disk, MemoryDisk
from kcoord_wire.kernel.machines import Tick
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.records import Compression, ControlType, decode_transaction_record, group_of_key
from kcoord_wire.records.batch import HEADER_SIZE
from kcoord_wire.records.share_state import share_state_key_of

_ACKS: Final = (-1, 0, 1)
_MEMORY_BYTES: Final = 256 << 20
_SEGMENTS: Final = 16  # of what all topics may hold: so much is dropped at a time
Partition = tuple[str, int]  # topic and number


@dataclass(slots=True)
class VerifiedProduce:
    """A Produce with what the transaction coordinator has said of the partitions that `Topics.unverified` returned.

    :ivar request: the Produce
    :ivar errors: NONE for those that are in the transaction
    """

    request: Request
    errors: Mapping[Partition, ErrorCode]


class Topics:
    """The topics of a broker, as a machine: requests and the time go in, replies come out.

    :param brokers: the brokers of the cluster
    :param topics: name to number of partitions
    :param cluster_id: as Metadata returns it; topic ids are made of it and the topic's name
    :param sasl: whether ApiVersions offers SASL
    :param auto_create_partitions: partitions of a topic that a Metadata request creates; None creates none
    :param limits: what topics may cost
    :param served: api key to the versions that are answered
    :ivar offsets: ``__consumer_offsets``
    :ivar transactions: ``__transaction_state``
    :ivar wall_ahead_ms: by which the machine's clock, which may be set, is ahead of the times that are passed in:
        the times of records are compared with it
    :ivar shares: ``__share_group_state``
    :ivar shared_logs: all partitions, as share groups read them
    :param broker_configs: what the broker was started with, by Kafka's names, for DescribeConfigs
    :raises ValueError: a topic's name or number of partitions is not allowed
    :raises MissingLibraryError: the extra ``records`` is not installed
    """

    def __init__(
        self,
        brokers: Brokers,
        topics: Mapping[str, int] | None = None,
        *,
        cluster_id: str,
        sasl: bool = False,
        auto_create_partitions: int | None = None,
        limits: TopicLimits | None = None,
        broker_configs: Mapping[str, str] | None = None,
        served: Mapping[int, range] = SERVED,
    ) -> None:
        for library in ("crc32c", "cramjam"):  # now, not when the first batch arrives
            require_later(library, "serve", "the coordinator")
        self.catalog = Catalog(cluster_id, brokers)
        self._limits = limits or TopicLimits()
        self.cluster = ClusterMetadata(
            brokers,
            self.catalog,
            sasl=sasl,
            auto_create_partitions=auto_create_partitions,
            limits=self._limits,
            served=served,
        )
        partitions = auto_create_partitions or 1
        start = {
            "auto.create.topics.enable": str(auto_create_partitions is not None).lower(),
            "num.partitions": str(partitions),
            "default.replication.factor": str(len(brokers.endpoints)),
            "delete.topic.enable": "true",
            **(broker_configs or {}),
        }
        self.configuration = Configuration(self.catalog, self.cluster, start)
        self._administration = Administration(self.catalog, self.cluster, self.configuration, self._limits, partitions)
        self._fetches = Fetches(self.catalog, self._limits)
        self.offsets = InternalTopic(self.catalog.offsets, lambda key: brokers.groups.partition_of(group_of_key(key)))
        self.transactions = InternalTopic(
            self.catalog.transactions,
            lambda key: brokers.transactions.partition_of(decode_transaction_record(key, None)[0].transactional_id),
        )
        self.wall_ahead_ms = 0
        self._backoff_ms = int(start.get("log.cleaner.backoff.ms", GroupConfig().log_cleaner_backoff_ms))
        self.shares = InternalTopic(
            self.catalog.shares, lambda key: brokers.shares.partition_of(share_state_key_of(key))
        )
        self.shared_logs = SharedLogs(self.catalog, self._limits)
        self._wanted = dict(topics or {})
        if own := sorted(INTERNAL_TOPICS & self._wanted.keys()):
            raise ValueError(f"topic {own[0]!r} is the brokers' own")
        self.open(MemoryDisk())
        self._handlers: dict[type, Callable[[Request, int], list[Effect]]] = {
            m.ProduceRequest: self._produce,
            m.FetchRequest: self._fetches.receive,
            m.WriteTxnMarkersRequest: self._write_markers,
            m.DeleteTopicsRequest: self._delete_topics,
            m.AlterPartitionReassignmentsRequest: self._reassign,
        }
        self._answers: dict[type, Callable[[Request], Any]] = {
            m.ListOffsetsRequest: partial(list_offsets, self.catalog),
            m.MetadataRequest: self.cluster.metadata,
            m.ApiVersionsRequest: self.cluster.api_versions,
            m.OffsetForLeaderEpochRequest: partial(offset_for_leader_epoch, self.catalog),
            m.DescribeClusterRequest: self.cluster.describe_cluster,
            m.DescribeTopicPartitionsRequest: self.cluster.describe_partitions,
            m.DeleteRecordsRequest: self._administration.delete_records,
            m.DescribeProducersRequest: self._administration.describe_producers,
            m.ElectLeadersRequest: self._administration.elect_leaders,
            m.DescribeLogDirsRequest: self._administration.describe_log_dirs,
            m.ListPartitionReassignmentsRequest: lambda _: m.ListPartitionReassignmentsResponse(error_message=None),
            m.CreateTopicsRequest: self._administration.create_topics,
            m.CreatePartitionsRequest: self._administration.create_partitions,
            m.DescribeConfigsRequest: self.configuration.describe,
            m.AlterConfigsRequest: self.configuration.alter,
            m.IncrementalAlterConfigsRequest: self.configuration.alter_incrementally,
            m.ListConfigResourcesRequest: self.configuration.list_resources,
        }

    # ---- topics

    def create(self, name: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        """Create a topic.

        :param configs: that differ from their defaults, by Kafka's names
        :raises ValueError: the name is not allowed or taken, the number of partitions is not from 1 to 100,000, or a
            config does not exist or cannot have its value
        :raises TypeError: the number of partitions is not an int
        """
        try:
            check_configs(TOPIC_CONFIGS, "topic", configs or {})
        except Refused as refused:
            raise ValueError(refused.detail) from None
        self.catalog.create(name, partitions, configs)

    def create_for(self, wanted: list[m.CreateTopicsRequestCreatableTopic]) -> dict[str, str]:
        """Create topics that a group needs, and return why some of them could not be, by name."""
        request = Request(0, m.CreateTopicsRequest(topics=wanted), 0)
        answers = self._administration.create_topics(request).topics
        return {
            each.name: each.error_message or ErrorCode(each.error_code).meaning for each in answers if each.error_code
        }

    def delete(self, *names: str) -> list[Effect]:
        """Delete topics: their records, what groups have committed to them, and what waits for their records.

        :raises KeyError: one does not exist, and none is deleted
        :raises OSError: the disk fails, and they are there
        """
        topics = self.catalog.delete(*names)
        logs = [log for topic in topics for log in topic.logs]
        return [TopicsDeleted(frozenset(names)), *self._fetches.wake_all(logs)]

    def compact(self, name: str) -> Compacting:
        """Have a topic compacted; `tick` does it.

        :raises KeyError: it does not exist, or is the brokers' own
        :raises ValueError: its cleanup.policy does not include ``compact``
        """
        topic = next((topic for topic in self.catalog if topic.name == name), None)
        if topic is None:
            raise KeyError(f"no topic {name!r}")
        if "compact" not in self.configuration.value(topic, "cleanup.policy"):
            raise ValueError(f"the cleanup.policy of topic {name!r} does not include compact")
        return self.compaction.ask(topic)

    @property
    def changes(self) -> int:
        """How often a topic was created, deleted or given more partitions."""
        return self.catalog.changes

    def names(self) -> list[str]:
        """Return the names of all topics; the brokers' own is one of them, for Kafka's patterns match it, too."""
        brokers = self.catalog.brokers
        own = [self.catalog.offsets, *([self.catalog.transactions] if brokers.has_transactions else ())]
        own += [self.catalog.shares] if brokers.has_shares else []
        return [topic.name for topic in (*self.catalog, *own)]

    def open(self, disk: Disk) -> None:
        """Replace the topics by those on a disk, and by those that this was made with and that are missing there.

        :raises CorruptLogError: the disk is damaged in a way that a crash does not explain
        :raises OSError: the disk fails
        """
        total = self._limits.retention_bytes
        if total is None and isinstance(disk, MemoryDisk):
            total = _MEMORY_BYTES
        self.catalog.open(Storage(disk, SEGMENT_BYTES if total is None else min(SEGMENT_BYTES, total // _SEGMENTS)))
        self._retention = Retention(self.catalog, self.configuration, total)
        self.compaction = Compaction(self.catalog, self.configuration, self._backoff_ms)
        for name, partitions in self._wanted.items():
            known = self.partitions(name)
            if known is None:
                self.catalog.create(name, partitions)
            elif known < partitions:
                self.catalog.add_partitions(name, partitions - known)

    def close(self) -> None:
        """Close the files of the disk."""
        self.catalog.storage.close()

    # ---- the brokers' own

    def show(self, internal: InternalTopic, batches: Iterable[LogBatch]) -> list[Effect]:
        """Show more records of its log. Effects and arguments as of `InternalTopic.extend`."""
        return self._fetches.wake(internal.extend(batches))

    def replace(self, internal: InternalTopic, logs: Sequence[PartitionLog]) -> list[Effect]:
        """Show what `InternalTopic.build` has built."""
        return self._fetches.wake_all(internal.replace(logs))

    # ---- look-ups

    def partitions(self, name: str) -> int | None:
        """Return the number of partitions; None if the topic does not exist."""
        topic = self.catalog.named(name)
        return len(topic.logs) if topic else None

    def id_of(self, name: str) -> uuid.UUID | None:
        """Return the topic's id; None if the topic does not exist."""
        topic = self.catalog.named(name)
        return topic.id if topic else None

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        """Return the name of the topic with this id; None if no topic has it."""
        topic = self.catalog.with_id(topic_id)
        return topic.name if topic else None

    def new_producer_id(self, now: int) -> int:
        """Return an id that no producer has or had."""
        return self.catalog.producer_ids.allocate(now)

    # ---- the machine

    @property
    def deadline(self) -> int | None:
        """When a `Tick` is due, in ms; None if no Fetch is parked, and no record can expire or be compacted."""
        first = self._fetches.deadline
        for due in (self._retention.deadline, self.compaction.deadline):
            if due is not None and (first is None or due < first):
                first = due
        return first

    def handle(self, event: Event | VerifiedProduce, now: int) -> list[Effect]:
        """Return the effects of `event`: only replies. `Load` and `Resign` concern the groups' log, and do nothing.

        :raises TypeError: a request that is not for the topics
        """
        if isinstance(event, VerifiedProduce):
            return self._produce(event.request, now, event.errors)
        if isinstance(event, Request):
            kind = type(event.message)
            if handler := self._handlers.get(kind):
                return handler(event, now)
            if answer := self._answers.get(kind):
                try:
                    return [Reply(event.token, answer(event))]
                except Refused as refused:
                    return [Reply(event.token, refusal(event.message, event.version, refused.error))]
            raise TypeError(f"{kind.__name__} is not for the topics")
        if isinstance(event, Tick):
            if (due := self._retention.deadline) is not None and due <= now:
                self._retention.check(now)
            if (due := self.compaction.deadline) is not None and due <= now:
                self.compaction.step(now)
            return self._fetches.answer_due(now)
        return []

    def abandon(self, token: int) -> None:
        """Withdraw the request `token` if it is parked, because its connection has ended: it gets no `Reply`."""
        self._fetches.unpark(token)

    def _delete_topics(self, request: Request, now: int) -> list[Effect]:
        response = self._administration.delete_topics(request)
        effects: list[Effect] = [Reply(request.token, response)]
        wanted = [answer for answer in response.responses if answer.error_code == ErrorCode.NONE]
        try:
            with disk_work():
                effects += self.delete(*(answer.name or "" for answer in wanted))
        except Refused as refused:
            for answer in wanted:
                answer.error_code, answer.error_message = refused.error, refused.detail
        return effects

    def _reassign(self, request: Request, now: int) -> list[Effect]:
        response, leaders = self._administration.reassign(request)
        reply = Reply(request.token, response)
        return [Reassigned(leaders), reply] if leaders else [reply]

    # ---- Produce

    def unverified(self, request: Request) -> tuple[Header | None, list[Partition]]:
        """Return the partitions in which a Produce begins its transaction, and the header of the first such batch,
        which has the producer; None if there is none. A batch of another producer is left out, and so refused: the
        coordinator is asked about one."""
        asked: m.ProduceRequest = request.message
        first: Header | None = None
        partitions: list[Partition] = []
        for part in asked.topic_data:
            topic = self.catalog.find(part.name, part.topic_id, request.version >= TOPIC_UUIDS_FROM)
            for data in part.partition_data:
                if isinstance(topic, ErrorCode) or not 0 <= data.index < len(topic.logs):
                    continue
                if data.records is None or len(data.records) < HEADER_SIZE:
                    continue
                batch = read_header(data.records)
                if batch.is_transactional and not topic.logs[data.index].in_transaction(batch):
                    first = first or batch
                    if (batch.producer_id, batch.producer_epoch) == (first.producer_id, first.producer_epoch):
                        partitions.append((topic.name, data.index))
        return first, partitions

    def _produce(
        self, request: Request, now: int, verified: Mapping[Partition, ErrorCode] = MappingProxyType({})
    ) -> list[Effect]:
        asked: m.ProduceRequest = request.message
        grown: list[Growth] = []
        reading = Reading()
        if asked.acks not in _ACKS:
            response = refusal(asked, request.version, ErrorCode.INVALID_REQUIRED_ACKS)
        else:
            response = m.ProduceResponse()
            for part in asked.topic_data:
                topic = self.catalog.find(part.name, part.topic_id, request.version >= TOPIC_UUIDS_FROM)
                outcomes = [
                    self._append(topic, data, request, verified, grown, now, reading) for data in part.partition_data
                ]
                response.responses.append(
                    m.ProduceResponseTopicProduceResponse(
                        name=part.name, topic_id=part.topic_id, partition_responses=outcomes
                    )
                )
            if not self.catalog.brokers.is_plain:
                name_leaders(self.catalog, response, request.version)
        effects: list[Effect] = [Reply(request.token, response if asked.acks else _unacknowledged(response))]
        effects += self._fetches.wake(grown)
        self._after_append(now)
        return effects

    def _after_append(self, now: int) -> None:
        if any(len(log.segments) > 1 for log in self.catalog.storage.grown):
            self.compaction.grown(now)
        self._retention.after_append(now)

    def _append(
        self,
        topic: Topic | ErrorCode,
        data: m.ProduceRequestPartitionProduceData,
        request: Request,
        verified: Mapping[Partition, ErrorCode],
        grown: list[Growth],
        now: int,
        reading: Reading,
    ) -> m.ProduceResponsePartitionProduceResponse:
        outcome = m.ProduceResponsePartitionProduceResponse(index=data.index, base_offset=-1)
        try:
            if isinstance(topic, Topic) and topic.is_internal:
                raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {topic.name}")
            log = self.catalog.log(topic, data.index, request.broker)
            assert isinstance(topic, Topic)
            largest = int(topic.configs.get("max.message.bytes", self._limits.max_message_bytes))
            batch = check_batch(data.records, largest)
            assert data.records is not None
            if request.version < ZSTD_FROM and batch.compression == Compression.ZSTD:
                raise Refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
            if request.message.transactional_id is None and batch.is_transactional:
                raise Refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
            answer = verified.get((topic.name, data.index)) if verified else None
            if answer:
                raise Refused(answer)
            self.configuration.record_rules(topic).check(
                batch, data.records, log.name, now + self.wall_ahead_ms, reading
            )
            stable = log.stable_offset
            records = data.records
            if topic.configs.get("message.timestamp.type") == "LogAppendTime":
                records, outcome.log_append_time_ms = with_append_time(records, now), now
                batch = read_header(records)
            if log.rolling is None:
                log.rolling = self.configuration.rolling(topic)
            outcome.base_offset, size = log.append(batch, records, verified=answer is not None)
        except Refused as refused:
            outcome.error_code, outcome.error_message = refused.error, refused.detail
            if isinstance(refused, RefusedRecords):
                outcome.log_start_offset = log.start_offset
                outcome.record_errors = [
                    m.ProduceResponseBatchIndexAndErrorMessage(
                        batch_index=each.batch_index, batch_index_error_message=each.text
                    )
                    for each in refused.records
                ]
            return outcome
        if size:
            grown.append(self._grew(log, outcome.base_offset, size, stable))
        outcome.log_start_offset = log.start_offset
        return outcome

    @staticmethod
    def _grew(log: PartitionLog, base_offset: int, size: int, stable_before: int) -> Growth:
        """Return what an append has added. Without an open transaction, before and after it, that is all stable."""
        stable = log.stable_offset
        if stable == log.end_offset and stable_before == base_offset:
            return Growth(log, size, size)
        return Growth(log, size, log.bytes_between(stable_before, stable))

    # ---- WriteTxnMarkers

    def _write_markers(self, request: Request, now: int) -> list[Effect]:
        asked: m.WriteTxnMarkersRequest = request.message
        response: m.WriteTxnMarkersResponse = refusal(asked, request.version, ErrorCode.NONE)
        grown: list[Growth] = []
        for marker, result in zip(asked.markers, response.markers, strict=True):
            written: dict[Partition, ErrorCode] = {}  # one marker for a partition, however often it is named
            for topic in result.topics:
                for answer in topic.partitions:
                    partition = topic.name, answer.partition_index
                    if partition not in written:
                        written[partition] = self._write_marker(marker, *partition, now, grown)
                    answer.error_code = written[partition]
        effects: list[Effect] = [Reply(request.token, response)]
        effects += self._fetches.wake(grown)
        self._after_append(now)
        return effects

    def _write_marker(
        self,
        marker: m.WriteTxnMarkersRequestWritableTxnMarker,
        name: str,
        index: int,
        now: int,
        grown: list[Growth],
    ) -> ErrorCode:
        control = ControlType.COMMIT if marker.transaction_result else ControlType.ABORT
        try:
            topic = self.catalog.find(name, NO_ID, by_id=False)
            if isinstance(topic, ErrorCode) or topic.is_internal or not 0 <= index < len(topic.logs):
                raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            log = topic.logs[index]
            stable = log.stable_offset
            base_offset, size = log.end_transaction(
                marker.producer_id, marker.producer_epoch, control, marker.coordinator_epoch, now
            )
        except Refused as refused:
            return refused.error
        grown.append(self._grew(log, base_offset, size, stable))
        return ErrorCode.NONE


def _unacknowledged(response: m.ProduceResponse) -> HangUp | None:
    parts = (part for topic in response.responses for part in topic.partition_responses)
    return HANG_UP if any(part.error_code for part in parts) else None
