"""Fetch: reading partitions, and the requests that are parked until there is enough to read.

Source: kafka `DelayedFetch.scala`, `ReplicaManager.scala`, `FetchSession`; KIP-74, KIP-227.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.apis import TOPIC_UUIDS_FROM, refusal
from kcoord_wire.coordinator.core.events import Effect, Reply, Request
from kcoord_wire.coordinator.partitions.batch_header import Refused
from kcoord_wire.coordinator.partitions.partition_log import PartitionLog
from kcoord_wire.coordinator.topics.catalog import Catalog
from kcoord_wire.coordinator.topics.current_leader import name_leaders
from kcoord_wire.coordinator.topics.limits import TopicLimits
from kcoord_wire.protocol.error_codes import ErrorCode

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
