"""A producer with a transactional id, as a script plays it: each request by itself, with fields of its own choice."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import kcoord_wire as kw
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.records import Record, encode_batch
from tests.interop.exchanges.stage import Answer, Stage

ADDED_BY_WRITES: Final = 12
"""The Produce from which on a write adds its partition to the transaction (KIP-890)."""

BUMPED_AT_END: Final = 5
"""The EndTxn from which on each transaction has an epoch of its own (KIP-890)."""


class Writer:
    """A producer whose transactional id is the script's name and its own; it remembers its id and epoch.

    :ivar producer: id and epoch
    :ivar sequence: the next one by topic and partition
    """

    def __init__(self, stage: Stage, name: str = "a", *, transactional_id: str | None = None, ms: int = 300_000):
        self.stage = stage
        self.connection = stage.connect(name)
        self.id = f"{stage.group}/{name}" if transactional_id is None else transactional_id
        self.ms = ms
        self.producer = (-1, -1)
        self.sequence: dict[tuple[str, int], int] = {}
        with stage.off_the_record():  # Kafka makes the internal topics when the first client asks for them
            for kind, key in enumerate((stage.group, self.id or "x")):
                request = kw.FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
                self.connection.call_when_free(request, 4)

    def asks(self, request: Any, version: int, error: ErrorCode | None = None) -> Answer:
        return self.connection.call_when_free(request, version, error)

    def _fields(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Who it is, with `changes` by field name."""
        producer_id, epoch = self.producer
        known = {"transactional_id": self.id, "producer_id": producer_id, "producer_epoch": epoch}
        return {**known, **changes}

    def starts(self, version: int = 5, error: ErrorCode | None = None, **changes: Any) -> Answer:
        """InitProducerId, as of a producer that has just started."""
        known = {"transactional_id": self.id, "transaction_timeout_ms": self.ms}
        answer = self.asks(kw.InitProducerIdRequest(**{**known, **changes}), version, error)
        if not answer.error_code:
            self.producer = answer.producer_id, answer.producer_epoch
            self.sequence.clear()
        return answer

    def adds(
        self,
        *partitions: int,
        topic: str | None = None,
        version: int = 3,
        error: ErrorCode | None = None,
        **changes: Any,
    ) -> Answer:
        """AddPartitionsToTxn of partitions of the script's topic, as a client asks for it."""
        topics = [
            kw.AddPartitionsToTxnRequestAddPartitionsToTxnTopic(
                name=topic or self.stage.group, partitions=list(partitions)
            )
        ]
        known = self._fields({"topics": topics, **changes})
        request = kw.AddPartitionsToTxnRequest(**{f"v3_and_below_{name}": value for name, value in known.items()})
        return self.asks(request, version, error)

    def batched(self, partitions: Sequence[int], verify: bool, **changes: Any) -> Any:
        """Its part of an AddPartitionsToTxn as brokers send it."""
        topic = kw.AddPartitionsToTxnRequestAddPartitionsToTxnTopic(name=self.stage.group, partitions=list(partitions))
        known = self._fields({"topics": [topic], "verify_only": verify, **changes})
        return kw.AddPartitionsToTxnRequestAddPartitionsToTxnTransaction(**known)

    def writes(
        self,
        *values: bytes,
        partition: int = 0,
        version: int = 11,
        error: ErrorCode | None = None,
        topic: str | None = None,
        transactional: bool = True,
        sequence: int | None = None,
        key: bytes | None = None,
        **changes: Any,
    ) -> Answer:
        """Produce one batch to a partition of the script's topic."""
        name = topic or self.stage.group
        who = self._fields(changes)
        at = self.sequence.get((name, partition), 0) if sequence is None else sequence
        now = int(time.time() * 1_000)  # else Kafka begins a segment with the marker, at which a Fetch ends
        batch = encode_batch(
            [Record(key, value, timestamp=now) for value in values],
            transactional=transactional,
            producer_id=who["producer_id"],
            producer_epoch=who["producer_epoch"],
            base_sequence=at,
        )
        part = kw.ProduceRequestPartitionProduceData(index=partition, records=batch)
        data = kw.ProduceRequestTopicProduceData(name=name, partition_data=[part])
        if version >= 13:
            data = kw.ProduceRequestTopicProduceData(topic_id=self.stage.topic_ids[name], partition_data=[part])
        request = kw.ProduceRequest(
            transactional_id=who["transactional_id"], acks=-1, timeout_ms=60_000, topic_data=[data]
        )
        answer = self.asks(request, version, error)
        if error is None:
            self.sequence[name, partition] = at + len(values)
        return answer

    def adds_group(self, version: int = 3, error: ErrorCode | None = None, **changes: Any) -> Answer:
        """AddOffsetsToTxn of the script's group."""
        known = self._fields({"group_id": self.stage.group, **changes})
        return self.asks(kw.AddOffsetsToTxnRequest(**known), version, error)

    def commits_offset(
        self,
        offset: int,
        version: int = 3,
        error: ErrorCode | None = None,
        partition: int = 0,
        topic: str = "orders",
        **changes: Any,
    ) -> Answer:
        """TxnOffsetCommit of one partition for the script's group."""
        part = kw.TxnOffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata="m"
        )
        named: dict[str, Any] = {"name": topic} if version < 6 else {"topic_id": self.stage.topic_ids[topic]}
        topics = [kw.TxnOffsetCommitRequestTopic(partitions=[part], **named)]
        known = self._fields({"group_id": self.stage.group, "topics": topics, **changes})
        return self.asks(kw.TxnOffsetCommitRequest(**known), version, error)

    def ends(self, *, commit: bool, version: int = 4, error: ErrorCode | None = None, **changes: Any) -> Answer:
        """EndTxn, and wait until its markers are written."""
        known = self._fields({"committed": commit, **changes})
        answer = self.asks(kw.EndTxnRequest(**known), version, error)
        if error is None:
            self.rests()
            if version >= BUMPED_AT_END:
                self.producer = answer.producer_id, answer.producer_epoch
                self.sequence.clear()
        return answer

    def rests(self) -> None:
        """Wait until its transaction has ended, off the record."""
        with self.stage.off_the_record():
            self.stage.eventually(
                lambda: self.describes(), lambda a: a.transaction_states[0].transaction_state.startswith("Complete"), 60
            )

    def describes(self, *names: str, error: ErrorCode | None = None) -> Answer:
        """DescribeTransactions, of its own one by default."""
        return self.asks(kw.DescribeTransactionsRequest(transactional_ids=list(names) or [self.id]), 0, error)

    def lists(
        self, states: Sequence[str] = (), version: int = 1, error: ErrorCode | None = None, **changes: Any
    ) -> Answer:
        """ListTransactions."""
        return self.asks(kw.ListTransactionsRequest(state_filters=list(states), **changes), version, error)

    def fetches_offsets(
        self, *partitions: int, stable: bool = True, version: int = 7, error: ErrorCode | None = None
    ) -> Answer:
        """OffsetFetch of the script's group."""
        topic = kw.OffsetFetchRequestTopic(name="orders", partition_indexes=list(partitions) or [0])
        request = kw.OffsetFetchRequest(group_id=self.stage.group, topics=[topic], require_stable=stable)
        return self.asks(request, version, error)

    def looks(self, partition: int = 0, offset: int = 0) -> None:
        """What readers and operators see of a partition: Fetch and ListOffsets at both isolation levels, producers."""
        name = self.stage.group
        part = kw.FetchRequestFetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
        asked = kw.ListOffsetsRequestListOffsetsPartition(partition_index=partition, timestamp=-1)
        for isolation in (0, 1):
            topics = [kw.FetchRequestFetchTopic(topic=name, partitions=[part])]
            self.asks(
                kw.FetchRequest(
                    max_wait_ms=0,
                    min_bytes=0,
                    max_bytes=1 << 20,
                    isolation_level=isolation,
                    session_epoch=-1,
                    topics=topics,
                ),
                12,
            )
            of = [kw.ListOffsetsRequestListOffsetsTopic(name=name, partitions=[asked])]
            self.asks(kw.ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=of), 8)
        topic = kw.DescribeProducersRequestTopicRequest(name=name, partition_indexes=[partition])
        self.asks(kw.DescribeProducersRequest(topics=[topic]), 0)
