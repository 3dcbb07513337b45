"""Share groups' records as a pure object: ShareFetch and ShareAcknowledge, for all partitions that share groups read.

    machine = ShareMachine(logs, settings)
    machine.handle(Load([]), now)
    effects = machine.handle(Request(1, ShareFetchRequest(...), version=2), now)

Theory of operation (KIP-932). A member opens a session at the leader of its partitions, and fetches: what it gets is
acquired by it for a while. With its next fetch, or with a ShareAcknowledge, it says what became of the records. What
that changes is in the log before it is answered; who has acquired what is not: after a restart those records are
available again.

Laws (besides those of `core.events`):

* What was acknowledged with success is in the log, and so never delivered again.
* A fetch that finds fewer than ``min_bytes`` waits for as long as its client says, and acquires nothing before.
* When a session ends, its member's records are available at once; likewise when the connection ends that has opened it.
* What a member may cost is bounded: `MOST_PARTITIONS`, `MOST_SHARED`; more is refused.
* A share partition begins where ``share.auto.offset.reset`` says when it is fetched first, unless its offset was set.

Source: KIP-932, KIP-1206, KIP-1222; Kafka's `SharePartitionManager.java`, `DelayedShareFetch.java`,
`ShareCoordinatorShard.java`, `KafkaApis.scala`.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, Final, NamedTuple, Protocol

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core import events
from kcoord_wire.coordinator.core.apis import Refused
from kcoord_wire.coordinator.core.config import Endpoint, GroupConfig
from kcoord_wire.coordinator.core.events import LoggedMachine, Request
from kcoord_wire.coordinator.share.offset_requests import OffsetRequests, SharedTopics
from kcoord_wire.coordinator.share.sessions import CLOSES, OPENS, Partition, Session, Sessions
from kcoord_wire.coordinator.share.share_partition import (
    REJECT,
    RENEW,
    Acknowledgement,
    Acquired,
    AcquireMode,
    ShareLimits,
    SharePartition,
    Span,
)
from kcoord_wire.coordinator.share.shared import Shared, check_room, drop
from kcoord_wire.coordinator.share.state_requests import StateRequests
from kcoord_wire.kernel.timers import Timer
from kcoord_wire.protocol.error_codes import ErrorCode

MOST_PARTITIONS: Final = 20_000
"""Partitions of a session; Kafka has no bound."""

_RENEW_FROM: Final = 2  # version of ShareFetch and ShareAcknowledge with acknowledgements of type 4 (KIP-1222)
_LONGEST_MEMBER_ID: Final = 36
_LONGEST_WAIT_MS: Final = 300_000


class Reset(enum.StrEnum):
    """Where a share partition begins (``share.auto.offset.reset``)."""

    EARLIEST = "earliest"
    LATEST = "latest"
    BY_DURATION = "by_duration"


@dataclass(frozen=True, slots=True)
class ShareSettings:
    """Settings of a share group.

    :ivar limits: see there
    :ivar reset: where a partition begins
    :ivar reset_ms: how far back, with `Reset.BY_DURATION`
    :ivar is_committed: whether records of aborted transactions are left out (``share.isolation.level``)
    :ivar may_renew: whether members may renew their locks (``share.renew.acknowledge.enable``)
    """

    limits: ShareLimits = field(default_factory=ShareLimits)
    reset: Reset = Reset.LATEST
    reset_ms: int = 0
    is_committed: bool = False
    may_renew: bool = True


class Read(NamedTuple):
    """What was read of a log.

    :ivar data: whole batches
    :ivar spans: their offsets
    :ivar ends: where each ends in `data`
    :ivar aborted: the offsets of those whose transaction was aborted
    """

    data: bytes
    spans: Sequence[Span]
    ends: Sequence[int]
    aborted: Sequence[Span] = ()

    def cut(self, acquired: Sequence[Acquired]) -> bytes:
        """Return the batches from the first to the last with acquired records."""
        if not acquired:
            return b""
        first, last = acquired[0].first, acquired[-1].last
        held = [at for at, span in enumerate(self.spans) if span.last >= first and span.first <= last]
        begin = self.ends[held[0] - 1] if held[0] else 0
        return self.data[begin : self.ends[held[-1]]]


class SharedLog(Protocol):
    """The log of a partition.

    :ivar start_offset: where it begins
    :ivar leader_epoch: the present one
    """

    start_offset: int
    leader_epoch: int

    def end(self, committed: bool) -> int:
        """Return where it ends: for readers of committed records at the first open transaction."""

    def read(self, offset: int, most: int, first_whole: bool, committed: bool) -> Read:
        """Read batches from the one with `offset` on.

        :param most: bytes
        :param first_whole: whether the first batch may be larger
        :raises Refused: KAFKA_STORAGE_ERROR
        """

    def first_since(self, timestamp: int) -> int:
        """Return the offset of the first record of this time or later, or where the log ends."""


class ShareLogs(SharedTopics, Protocol):
    """The logs of all partitions."""

    def find(self, topic_id: uuid.UUID, index: int, broker: int) -> SharedLog:
        """Return a partition.

        :raises Refused: UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER
        """

    def has(self, topic_id: uuid.UUID, index: int) -> bool:
        """Return whether a partition exists."""

    def leader(self, topic_id: uuid.UUID, index: int) -> tuple[Endpoint, int] | None:
        """Return who leads a partition, and the leader epoch; None without one."""


Outcome = tuple[ErrorCode, str | None]
"""An error and its text, if there is one."""


@dataclass(slots=True, eq=False)
class _Fetch:
    """A ShareFetch that is being answered, or waits.

    :ivar request: the request
    :ivar session: its session
    :ivar settings: of its group
    :ivar outcomes: of the acknowledgements in it
    :ivar after: the `Append` that must be on disk before it is answered
    :ivar timer: for the end of its wait
    :ivar seen: what its partitions were like when there was not enough to acquire
    """

    request: Request
    session: Session
    settings: ShareSettings
    outcomes: dict[Partition, Outcome]
    after: int
    timer: Timer | None = None
    seen: object = None


class ShareMachine(LoggedMachine):
    """All share partitions of a cluster.

    :param logs: the partitions of topics
    :param settings: returns those of a group
    :param config: Kafka's defaults if None
    :ivar partitions: by group, and topic id and number
    :ivar sessions: of all members
    """

    def __init__(
        self, logs: ShareLogs, settings: Callable[[str], ShareSettings], config: GroupConfig | None = None
    ) -> None:
        super().__init__(config)
        self.partitions: dict[tuple[str, Partition], Shared] = {}
        self.sessions = Sessions()
        self._logs = logs
        self._settings = settings
        self._parked: dict[int, _Fetch] = {}
        states = StateRequests(self.partitions, self._effects, logs)
        self._handlers |= {
            m.ShareFetchRequest: self._fetch,
            m.ShareAcknowledgeRequest: self._acknowledge,
            m.InitializeShareGroupStateRequest: states.initialize,
            m.ReadShareGroupStateRequest: states.read,
            m.WriteShareGroupStateRequest: states.write,
            m.DeleteShareGroupStateRequest: states.delete,
            m.ReadShareGroupStateSummaryRequest: states.read_summary,
            m.DescribeShareGroupOffsetsRequest: OffsetRequests(self.partitions, self._effects, logs).describe,
        }

    @property
    def waits(self) -> bool:
        """Whether a fetch waits for records."""
        return bool(self._parked)

    def _take_in(self, event: events.Event) -> None:
        if isinstance(event, events.Load):
            self._unavailable = None
            for key, value in event.records:
                if value is not None:
                    shared = Shared.of(key, value)
                    self.partitions[shared.group_id, shared.partition] = shared
            self._forget_deleted()
        elif isinstance(event, events.RecordsChanged):
            self._retry()
        elif isinstance(event, events.ConnectionLost):
            self._refuse_parked(lambda fetch: fetch.request.connection == event.connection)
            for session in self.sessions.of_connection(event.connection):
                self._end_session(session)
            self._retry()
        elif isinstance(event, events.TopicsDeleted):
            self._forget_deleted()
            self._retry()
        elif isinstance(event, events.Resign):
            self._resign()

    def _resign(self) -> None:
        self._unavailable = ErrorCode.NOT_COORDINATOR
        parked, self._parked = self._parked, {}
        for fetch in parked.values():
            self._refuse(fetch.request, ErrorCode.NOT_COORDINATOR)
        self.sessions.clear()
        self.partitions.clear()
        self._timers.clear()

    def _forget_deleted(self) -> None:
        """Drop what is about topics that do not exist any more."""
        for shared in list(self.partitions.values()):
            if not self._logs.has(*shared.partition):
                drop(self.partitions, self._effects, shared)

    # ---- ShareFetch

    def _fetch(self, request: Request, message: m.ShareFetchRequest) -> None:
        try:
            _check_names(message)
            if message.share_acquire_mode not in _MODES:
                raise Refused(ErrorCode.INVALID_REQUEST)
            is_renewal = message.is_renew_ack and request.version >= _RENEW_FROM
            if is_renewal and (message.max_wait_ms, message.min_bytes, message.max_bytes, message.max_records) != _NONE:
                raise Refused(ErrorCode.INVALID_REQUEST)
            session = self._session_of(request, message)
        except Refused as refused:
            if refused.error is not ErrorCode.SHARE_SESSION_LIMIT_REACHED:
                return self._refuse(request, refused.error)
            wait = min(message.max_wait_ms, _LONGEST_WAIT_MS)  # so that clients do not try again at once
            self._timers.start(self._effects.now + wait, partial(self._refuse, request, refused.error))
            return None
        settings = self._settings(message.group_id or "")
        outcomes, after = self._acknowledge_all(request, message, session, settings)
        fetch = _Fetch(request, session, settings, outcomes, after)
        if message.share_session_epoch == CLOSES:
            fetch.after = max(after, self._end_session(session))
            self._answer(fetch, {})
        elif is_renewal:
            self._answer(fetch, {})
        elif not self._try(fetch, is_due=message.max_wait_ms <= 0):
            due = self._effects.now + min(message.max_wait_ms, _LONGEST_WAIT_MS)
            fetch.timer = self._timers.start(due, partial(self._end_wait, fetch))
            self._parked[request.token] = fetch
        return self._retry()

    def _session_of(self, request: Request, message: m.ShareFetchRequest) -> Session:
        """Return the session of a request, as it changes that.

        :raises Refused: there is none, or it is not to be
        """
        named = [(topic.topic_id, each.partition_index) for topic in message.topics for each in topic.partitions]
        key = request.broker, message.group_id or "", message.member_id or ""
        if message.share_session_epoch == OPENS:
            if any(each.acknowledgement_batches for topic in message.topics for each in topic.partitions):
                raise Refused(ErrorCode.INVALID_REQUEST)
            session = Session(*key, request.connection, dict.fromkeys(named, True))
            if len(session.partitions) > MOST_PARTITIONS:
                raise Refused(ErrorCode.INVALID_REQUEST)
            self._refuse_parked(lambda fetch: fetch.session.key == session.key)
            self.sessions.open(session, self.config.share_max_sessions)
            return session
        session = self.sessions.find(key, message.share_session_epoch)
        if message.share_session_epoch != CLOSES:
            forgotten = [(topic.topic_id, each) for topic in message.forgotten_topics_data for each in topic.partitions]
            session.update(named, forgotten)
            if len(session.partitions) > MOST_PARTITIONS:
                self._end_session(session)
                raise Refused(ErrorCode.INVALID_REQUEST)
        return session

    def _retry(self) -> None:
        """Answer the fetches that have enough now."""
        for fetch in list(self._parked.values()):
            self._try(fetch, is_due=False)

    def _end_wait(self, fetch: _Fetch) -> None:
        self._try(fetch, is_due=True)

    def _try(self, fetch: _Fetch, *, is_due: bool) -> bool:
        """Answer a fetch, if there is enough to acquire or its time is up; return whether it is answered."""
        message: m.ShareFetchRequest = fetch.request.message
        answers: dict[Partition, m.ShareFetchResponsePartitionData] = {}
        found: list[tuple[Shared, SharedLog]] = []
        for partition in fetch.session.partitions:
            try:
                found.append(self._open(fetch, partition))
            except Refused as refused:
                answers[partition] = self._refused(partition, refused.error)
        may_wait = bool(found) and not is_due
        if may_wait:
            before, fetch.seen = fetch.seen, _seen(found, fetch.settings.is_committed)
            if fetch.seen == before:
                return False
        reads = self._read(fetch, _acquirable(found, fetch.session.epoch), answers)
        if may_wait and sum(len(read.data) for _, _, read in reads) < message.min_bytes:
            return False
        self._acquire(fetch, reads, answers)
        self._parked.pop(fetch.request.token, None)
        events.cancel(fetch.timer)
        self._answer(fetch, answers)
        return True

    def _open(self, fetch: _Fetch, partition: Partition) -> tuple[Shared, SharedLog]:
        """Return a share partition of a fetch that has begun, with its log.

        :raises Refused: the partition cannot be read here
        """
        log = self._logs.find(*partition, fetch.request.broker)
        key = fetch.session.group_id, partition
        shared = self.partitions.get(key)
        if shared is None:
            check_room(self.partitions)
            shared = self.partitions[key] = Shared(*key, SharePartition(0), self._effects.now)
        shared.records.limits = fetch.settings.limits
        if not shared.is_started:
            shared.records.reset(self._first_offset(log, fetch.settings))
            shared.is_started = True
        shared.leader_epoch = max(shared.leader_epoch, log.leader_epoch)
        shared.records.begin_at(log.start_offset)
        return shared, log

    def _first_offset(self, log: SharedLog, settings: ShareSettings) -> int:
        if settings.reset is Reset.LATEST:
            return log.end(False)
        if settings.reset is Reset.BY_DURATION:
            return log.first_since(self._effects.now - settings.reset_ms)
        return log.start_offset

    def _read(
        self,
        fetch: _Fetch,
        found: Sequence[tuple[Shared, SharedLog]],
        answers: dict[Partition, m.ShareFetchResponsePartitionData],
    ) -> list[tuple[Shared, int, Read]]:
        """Read what could be acquired; of those that cannot be read, the error goes to the answers."""
        message: m.ShareFetchRequest = fetch.request.message
        most = max(message.max_bytes, 0) // max(len(found), 1)
        committed = fetch.settings.is_committed
        reads: list[tuple[Shared, int, Read]] = []
        is_first = True
        for shared, log in found:
            offset = shared.records.next_offset
            try:
                read = log.read(offset, most, is_first, committed)
            except Refused as refused:
                answers[shared.partition] = self._refused(shared.partition, refused.error)
                continue
            is_first = is_first and not read.data
            reads.append((shared, offset, read))
        return reads

    def _acquire(
        self,
        fetch: _Fetch,
        reads: Iterable[tuple[Shared, int, Read]],
        answers: dict[Partition, m.ShareFetchResponsePartitionData],
    ) -> None:
        message: m.ShareFetchRequest = fetch.request.message
        left = message.max_records
        for shared, offset, read in reads:
            member = fetch.session.member_id
            acquired = shared.records.acquire(
                member,
                read.spans,
                offset,
                max_records=left,
                batch_size=message.batch_size,
                now=self._effects.now,
                mode=AcquireMode(message.share_acquire_mode),
            )
            shared.changes += bool(acquired)
            if acquired and read.aborted:
                acquired = shared.records.archive(member, read.aborted, acquired)
            left -= sum(each.last - each.first + 1 for each in acquired)
            self._watch_locks(shared)
            index = shared.partition[1]
            answer = m.ShareFetchResponsePartitionData(partition_index=index, records=read.cut(acquired))
            answer.acquired_records = [
                m.ShareFetchResponseAcquiredRecords(
                    first_offset=each.first, last_offset=each.last, delivery_count=each.deliveries
                )
                for each in acquired
            ]
            answers[shared.partition] = answer

    def _refused(self, partition: Partition, error: ErrorCode) -> m.ShareFetchResponsePartitionData:
        return m.ShareFetchResponsePartitionData(partition_index=partition[1], error_code=error, records=b"")

    def _answer(self, fetch: _Fetch, answers: dict[Partition, m.ShareFetchResponsePartitionData]) -> None:
        """Answer a fetch: what has records or an error, and what the session has not answered yet."""
        session = fetch.session
        named = {partition: answer for partition, answer in answers.items() if _is_named(session, partition, answer)}
        for partition, (error, text) in fetch.outcomes.items():
            answer = named.setdefault(
                partition, m.ShareFetchResponsePartitionData(partition_index=partition[1], records=b"")
            )
            answer.acknowledge_error_code, answer.acknowledge_error_message = error, text
        response = m.ShareFetchResponse(
            acquisition_lock_timeout_ms=fetch.settings.limits.lock_ms,
            responses=[
                m.ShareFetchResponseShareFetchableTopicResponse(topic_id=topic_id, partitions=parts)
                for topic_id, parts in _by_topic(named)
            ],
        )
        self._name_leaders(response, m.ShareFetchResponseLeaderIdAndEpoch, m.ShareFetchResponseNodeEndpoint)
        self._effects.reply(fetch.request, response, fetch.after)

    # ---- ShareAcknowledge

    def _acknowledge(self, request: Request, message: m.ShareAcknowledgeRequest) -> None:
        try:
            _check_names(message)
            if message.share_session_epoch == OPENS:
                raise Refused(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
            key = request.broker, message.group_id or "", message.member_id or ""
            session = self.sessions.find(key, message.share_session_epoch)
        except Refused as refused:
            return self._refuse(request, refused.error)
        settings = self._settings(session.group_id)
        outcomes, after = self._acknowledge_all(request, message, session, settings)
        if message.share_session_epoch == CLOSES:
            after = max(after, self._end_session(session))
        answers = {
            partition: m.ShareAcknowledgeResponsePartitionData(
                partition_index=partition[1], error_code=error, error_message=text
            )
            for partition, (error, text) in outcomes.items()
        }
        response = m.ShareAcknowledgeResponse(
            acquisition_lock_timeout_ms=settings.limits.lock_ms,
            responses=[
                m.ShareAcknowledgeResponseShareAcknowledgeTopicResponse(topic_id=topic_id, partitions=parts)
                for topic_id, parts in _by_topic(answers)
            ],
        )
        self._name_leaders(response, m.ShareAcknowledgeResponseLeaderIdAndEpoch, m.ShareAcknowledgeResponseNodeEndpoint)
        self._effects.reply(request, response, after)
        return self._retry()

    def _acknowledge_all(
        self,
        request: Request,
        message: m.ShareFetchRequest | m.ShareAcknowledgeRequest,
        session: Session,
        settings: ShareSettings,
    ) -> tuple[dict[Partition, Outcome], int]:
        """Take in the acknowledgements of a request; return what became of them, and the `Append` that must be on disk
        before that may be said."""
        renews = message.is_renew_ack and request.version >= _RENEW_FROM and settings.may_renew
        outcomes: dict[Partition, Outcome] = {}
        after = 0
        for topic in message.topics:
            for each in topic.partitions:
                if not each.acknowledgement_batches and isinstance(message, m.ShareFetchRequest):
                    continue
                partition = topic.topic_id, each.partition_index
                asked = [
                    Acknowledgement(batch.first_offset, batch.last_offset, batch.acknowledge_types)
                    for batch in each.acknowledgement_batches
                ]
                try:
                    if any(kind > (RENEW if renews else REJECT) for one in asked for kind in one.types):
                        raise Refused(ErrorCode.INVALID_REQUEST)
                    self._logs.find(*partition, request.broker)
                    after = max(after, self._acknowledge_one(session, partition, asked, settings.limits))
                    outcomes[partition] = ErrorCode.NONE, None
                except Refused as refused:
                    outcomes[partition] = refused.error, _text_of(refused)
        return outcomes, after

    def _acknowledge_one(
        self, session: Session, partition: Partition, asked: Sequence[Acknowledgement], limits: ShareLimits
    ) -> int:
        """Take in the acknowledgements of a partition; return the `Append` that must be on disk before their answer.

        :raises Refused: they do not hold
        """
        shared = self.partitions.get((session.group_id, partition))
        if shared is None or not shared.is_started:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        shared.records.limits = limits
        if shared.records.acknowledge(session.member_id, asked, self._effects.now):
            shared.write(self._effects)
        return shared.written

    # ---- ends of sessions and locks

    def _end_session(self, session: Session) -> int:
        """Close a session and make its member's records available; return the `Append` that says so."""
        self.sessions.close(session)
        self._refuse_parked(lambda fetch: fetch.session is session)
        after = 0
        for partition in session.partitions:
            shared = self.partitions.get((session.group_id, partition))
            if shared is not None and shared.records.release(session.member_id):
                shared.write(self._effects)
                after = shared.written
        return after

    def _refuse_parked(self, is_meant: Callable[[_Fetch], bool]) -> None:
        """Refuse the fetches that wait and whose session is over: they would acquire records that no member gets."""
        for token, fetch in list(self._parked.items()):
            if is_meant(fetch):
                del self._parked[token]
                events.cancel(fetch.timer)
                self._refuse(fetch.request, ErrorCode.SHARE_SESSION_NOT_FOUND)

    def _watch_locks(self, shared: Shared) -> None:
        due = shared.records.deadline
        if due is None:
            events.cancel(shared.timer)
            shared.timer = None
        elif shared.timer is None or not shared.timer.live:
            shared.timer = self._timers.start(due, partial(self._expire, shared))
        else:
            shared.timer = self._timers.move(shared.timer, due)

    def _expire(self, shared: Shared) -> None:
        if shared.records.expire(self._effects.now):
            shared.write(self._effects)
        self._watch_locks(shared)
        self._retry()

    # ---- leaders

    def _name_leaders(self, response: Any, named: Callable[..., Any], addressed: Callable[..., Any]) -> None:
        """Add the leaders of partitions that were refused because another broker leads them."""
        nodes = {}
        for topic in response.responses:
            for answer in topic.partitions:
                if answer.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    continue
                found = self._logs.leader(topic.topic_id, answer.partition_index)
                if found is not None:
                    endpoint, epoch = found
                    answer.current_leader = named(leader_id=endpoint.node_id, leader_epoch=epoch)
                    nodes[endpoint.node_id] = endpoint
        response.node_endpoints = [addressed(**endpoint._asdict()) for _, endpoint in sorted(nodes.items())]


_NONE: Final = (0, 0, 0, 0)
_MODES: Final = frozenset(int(mode) for mode in AcquireMode)


def _acquirable(found: list[tuple[Shared, SharedLog]], turn: int) -> list[tuple[Shared, SharedLog]]:
    """Return the share partitions of which records may be acquired, with each fetch another one first."""
    able = [each for each in found if each[0].records.can_acquire]
    first = turn % len(able) if able else 0
    return able[first:] + able[:first]


def _seen(found: Sequence[tuple[Shared, SharedLog]], committed: bool) -> object:
    """Return what says that a fetch can acquire no more than before."""
    return [(log.start_offset, log.end(committed), shared.changes, shared.is_started) for shared, log in found]


def _check_names(message: m.ShareFetchRequest | m.ShareAcknowledgeRequest) -> None:
    """Raise `Refused` if a request names no group, or nothing that can be a member."""
    if message.group_id is None or not 0 < len(message.member_id or "") <= _LONGEST_MEMBER_ID:
        raise Refused(ErrorCode.INVALID_REQUEST)


def _is_named(session: Session, partition: Partition, answer: m.ShareFetchResponsePartitionData) -> bool:
    """Return whether an answer names a partition: it has records or an error, or the answer before had one."""
    has_error = answer.error_code != ErrorCode.NONE
    is_named = bool(answer.records) or has_error or session.partitions.get(partition, False)
    if partition in session.partitions:
        session.partitions[partition] = has_error
    return is_named


def _by_topic(answers: dict[Partition, Any]) -> Iterator[tuple[uuid.UUID, list[Any]]]:
    """Yield the answers of each topic."""
    for topic_id, parts in groupby(sorted(answers.items(), key=_place), key=lambda each: each[0][0]):
        yield topic_id, [answer for _, answer in parts]


def _place(answer: tuple[Partition, Any]) -> tuple[int, int]:
    (topic_id, index), _ = answer
    return topic_id.int, index


def _text_of(refused: Refused) -> str | None:
    """Return the text of an error, where it says more than the error does."""
    return None if refused.detail == refused.error.meaning else refused.detail
