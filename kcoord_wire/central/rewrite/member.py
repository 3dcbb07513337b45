"""The member of "Kafka 0.9 Consumer Rewrite Design": finds its coordinator, joins, sends heartbeats, fetches, commits.

`RewriteMember` is a `machines.Machine`. What it fetches, its host does: `StartFetching` and `StopFetching`. Its
`CoordinatorLink` is the connection to its coordinator: found by ConsumerMetadata, kept, found again.

Laws:

* JoinGroup goes out only while nothing is fetched, after the commit of what was consumed.
* No heartbeat goes out between the `StopFetching` before a JoinGroup and the response to it.
* A request carries the generation and the consumer id of the last successful JoinGroupResponse.
* The loss of the coordinator alone does not stop fetching ("Co-ordinator failover", 3), except with
  `MemberSettings.stops_with_session`, which the document does not have.
* There is no request to leave a group: after a `Shutdown` the coordinator notices the end of the session.
* One connection at a time, and one request in flight on it. An answer is accepted once, on the connection on which its
  request went out; a broker that does not answer in time is left.
* After each failure, the next attempt waits for the back-off and asks the next broker of the bootstrap list.

Source: "Kafka 0.9 Consumer Rewrite Design".
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kcoord_wire.assignors import TopicPartition, group_partitions
from kcoord_wire.central.rewrite.events import (
    FetchingStopped,
    MemberEffect,
    MemberEvent,
    MemberSettings,
    Progress,
    RewriteError,
    StartFetching,
    StopFetching,
)
from kcoord_wire.kernel.machines import (
    BrokerAddress,
    Close,
    Connect,
    Connected,
    Disconnected,
    Ended,
    LogEvent,
    Received,
    Send,
    Shutdown,
    Tick,
)
from kcoord_wire.messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from kcoord_wire.messages.rewrite import RewriteJoinGroupRequest, RewriteJoinGroupResponse


@dataclass(frozen=True, slots=True)
class Answered:
    """The coordinator has answered.

    :ivar request: what it answers
    :ivar sent_at: when that was sent, in ms
    """

    request: Any
    response: Any
    sent_at: int


class CoordinatorLink:
    """Looks for the coordinator whenever there is no connection to it.

    :param emit: adds an effect to those that the member's `handle` returns
    :ivar is_open: False once the member has ended it
    """

    def __init__(self, settings: MemberSettings, emit: Callable[[Any], None]) -> None:
        self.is_open = True
        self._settings = settings
        self._emit = emit
        self._connection = 0  # the last number; in use while `_broker` is one
        self._broker: BrokerAddress | None = None
        self._is_coordinator = False
        self._is_connected = False
        self._request: Any = None
        self._sent_at = 0
        self._answer_by = 0  # of the request, or of Connect
        self._attempts = 0
        self._wait_until = 0

    @property
    def is_found(self) -> bool:
        """Whether there is a connection to the coordinator."""
        return self._is_coordinator and self._is_connected

    def is_ready(self, now: int) -> bool:
        """Return whether a request can be sent to the coordinator."""
        return self.is_found and self._request is None and self._wait_until <= now

    @property
    def deadline(self) -> int | None:
        """When something is due, in ms; None for nothing."""
        if not self.is_open:
            return None
        if self._request is not None or (self._broker is not None and not self._is_connected):
            return self._answer_by
        return None if self.is_ready(self._wait_until) else self._wait_until

    @property
    def ready_at(self) -> int | None:
        """When the next request can be sent, in ms; None while that depends on others."""
        return self._wait_until if self.is_found and self._request is None else None

    # ---- what the member wants

    def send(self, request: Any, now: int, timeout_ms: int | None = None) -> None:
        """Send a request to the coordinator, which `is_ready`."""
        self._request, self._sent_at = request, now
        self._answer_by = now + (timeout_ms or self._settings.request_timeout_ms)
        self._emit(Send(self._connection, request))

    def back_off(self, now: int) -> None:
        """Send no request for the time of the back-off."""
        self._wait_until = now + self._settings.retry_backoff_ms

    def look_again(self, now: int, reason: str) -> None:
        """Leave the broker, and look for the coordinator after the back-off."""
        if self._broker is not None:
            self._emit(Close(self._connection))
        self._lost(now, reason)

    def end(self) -> None:
        """Close the connection and open no other."""
        if self._broker is not None:
            self._emit(Close(self._connection))
        self.is_open, self._broker, self._request = False, None, None
        self._is_connected = self._is_coordinator = False

    # ---- events

    def handle(self, event: Any, now: int) -> Answered | None:
        """Take in an event of a connection; return what the coordinator has answered to the member, if it has."""
        if self._broker is None or event.connection != self._connection:
            return None
        if isinstance(event, Connected):
            self._is_connected = True
            if not self._is_coordinator:
                self.send(FindCoordinatorRequest(key=self._settings.group_id), now)
        elif isinstance(event, Disconnected):
            self._lost(now, "disconnected")
        elif isinstance(event, Received) and self._request is not None:
            answered = Answered(self._request, event.message, self._sent_at)
            self._request = None
            if self._is_coordinator:
                return answered
            self._found(event.message, now)
        return None

    def advance(self, now: int) -> None:
        """Do what is due."""
        due = self.deadline
        if due is None or due > now:
            return
        if self._broker is not None:
            self.look_again(now, "no answer")
        else:
            bootstrap = self._settings.bootstrap
            self._connect(bootstrap[self._attempts % len(bootstrap)], now)

    def _connect(self, broker: BrokerAddress, now: int) -> None:
        self._connection += 1
        self._broker, self._is_connected = broker, False
        self._answer_by = now + self._settings.request_timeout_ms
        self._emit(Connect(self._connection, broker))

    def _found(self, response: FindCoordinatorResponse, now: int) -> None:
        if response.error_code != RewriteError.NONE:
            self.look_again(now, f"error {response.error_code}")
            return
        self._emit(Close(self._connection))
        self._is_coordinator = True
        self._connect(BrokerAddress(response.node_id, response.host, response.port), now)

    def _lost(self, now: int, reason: str) -> None:
        broker = self._broker.broker_id if self._broker is not None else None
        what = "coordinator lost" if self._is_coordinator else "coordinator not found"
        self._emit(LogEvent(logging.INFO, what, {"broker": broker, "reason": reason}))
        self._broker, self._request = None, None
        self._is_connected = self._is_coordinator = False
        self._attempts += 1
        self.back_off(now)


_ELSEWHERE: Final = (RewriteError.NOT_COORDINATOR_FOR_GROUP, RewriteError.COORDINATOR_NOT_AVAILABLE)
_LATER: Final = (RewriteError.COORDINATOR_STARTUP_NOT_COMPLETE, RewriteError.UNKNOWN_TOPIC_OR_PARTITION)
_AGAIN: Final = (*_ELSEWHERE, RewriteError.COORDINATOR_STARTUP_NOT_COMPLETE)
_NEVER: Final = 1 << 62


class MemberPhase(enum.Enum):
    """What a member does in its group."""

    JOINING = "joining"  # fetches nothing; JoinGroup is next or waits for its response
    LOADING = "loading"  # in a generation; asks for the committed offsets
    FETCHING = "fetching"
    STOPPING = "stopping"  # the host stops fetching
    COMMITTING = "committing"  # fetches nothing; commits before JoinGroup or its end
    ENDED = "ended"


_IN_GENERATION: Final = (MemberPhase.LOADING, MemberPhase.FETCHING)


class RewriteMember:
    """One consumer of a group.

    :ivar settings: as given
    :ivar phase: see `MemberPhase`
    :ivar consumer_id: as the coordinator gave it; empty before that
    :ivar generation: of the last JoinGroupResponse; -1 before the first
    :ivar topics: what it subscribes to
    :ivar assigned: the partitions of its generation
    :ivar refusal: the error for which it has ended: the same request would be refused again
    """

    def __init__(self, settings: MemberSettings) -> None:
        self.settings = settings
        self.phase = MemberPhase.JOINING
        self.consumer_id = ""
        self.generation = -1
        self.topics = settings.topics
        self.assigned: frozenset[TopicPartition] = frozenset()
        self.refusal: RewriteError | int | None = None
        self._now = 0
        self._effects: list[MemberEffect] = []
        self._link = CoordinatorLink(settings, self._effects.append)
        self._positions: dict[TopicPartition, int] = {}  # of the assigned partitions, as far as they are known
        self._committed: dict[TopicPartition, int] = {}
        self._after_stop = MemberPhase.COMMITTING
        self._end_by = _NEVER  # after Shutdown, even if the commit was not possible
        self._next_heartbeat = 0
        self._next_commit = 0
        self._next_refresh = 0 if settings.is_wildcard else _NEVER
        self._session_ends = _NEVER  # with `stops_with_session`

    # ---- what a host asks

    @property
    def deadline(self) -> int | None:
        """When the next `Tick` is wanted, in ms; None for never."""
        if self.phase is MemberPhase.ENDED:
            return None
        times = [self._link.deadline, self._end_by]
        ready_at = self._link.ready_at
        if ready_at is not None:
            times.append(max(ready_at, self._next_request_at()))
        if self.phase is MemberPhase.FETCHING:
            times.append(self._session_ends)
        return min(each for each in times if each is not None)

    def handle(self, event: MemberEvent, now: int) -> list[MemberEffect]:
        """Take in one event and return what the host has to do.

        :param now: ms
        """
        if self.phase is MemberPhase.ENDED:
            return []
        self._now = now
        if self.phase is MemberPhase.FETCHING and not self._is_in_session:
            self._note("session ended")
            self._stop(MemberPhase.LOADING)
        if isinstance(event, Progress):
            self._progressed(event.positions)
        elif isinstance(event, FetchingStopped):
            self._stopped(event.positions)
        elif isinstance(event, Shutdown):
            self._shut_down(now)
        elif not isinstance(event, Tick):
            self._connection_event(event, now)
        self._advance(now)
        effects = list(self._effects)
        self._effects.clear()
        return effects

    # ---- what is due

    def _advance(self, now: int) -> None:
        if self.phase is MemberPhase.ENDED:
            return
        if self._end_by <= now:
            self._end()
            return
        self._link.advance(now)
        if self._link.is_ready(now) and self._next_request_at() <= now:
            self._send_next(now)

    def _next_request_at(self) -> int:
        """When the next request to the coordinator is due; what is due already is 0 or in the past."""
        if self.phase is MemberPhase.STOPPING:
            return _NEVER
        if self.phase is MemberPhase.COMMITTING:
            return 0
        if self.phase is MemberPhase.JOINING:
            return 0 if self.topics else self._next_refresh
        next_commit = self._next_commit if self._uncommitted() else _NEVER
        wanted = 0 if self.phase is MemberPhase.LOADING and self._is_in_session else next_commit
        return min(self._next_heartbeat, self._next_refresh, wanted)

    def _send_next(self, now: int) -> None:
        if self.phase is MemberPhase.COMMITTING:
            self._link.send(self._commit(), now)
        elif self._next_refresh <= now:
            # "Wildcard subscription": an empty list asks for all topics.
            self._link.send(MetadataRequest(topics=[]), now)
        elif self.phase is MemberPhase.JOINING:
            self._link.send(self._join(), now, self.settings.join_timeout_ms)
        elif self._next_heartbeat <= now:
            group, generation, consumer = self.settings.group_id, self.generation, self.consumer_id
            self._link.send(HeartbeatRequest(group_id=group, generation_id=generation, member_id=consumer), now)
        elif self.phase is MemberPhase.LOADING:
            topics = group_partitions(self.assigned).items()
            asked = [OffsetFetchRequestTopic(name=topic, partition_indexes=list(each)) for topic, each in topics]
            self._link.send(OffsetFetchRequest(group_id=self.settings.group_id, topics=asked), now)
        else:
            self._link.send(self._commit(), now)

    def _join(self) -> RewriteJoinGroupRequest:
        return RewriteJoinGroupRequest(
            group_id=self.settings.group_id,
            session_timeout_ms=self.settings.session_timeout_ms,
            topics=list(self.topics),
            consumer_id=self.consumer_id,
            strategy=self.settings.strategy,
        )

    def _commit(self) -> OffsetCommitRequest:
        changed = self._uncommitted()
        topics = [
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=each, committed_offset=changed[TopicPartition(topic, each)]
                    )
                    for each in partitions
                ],
            )
            for topic, partitions in group_partitions(changed).items()
        ]
        return OffsetCommitRequest(
            group_id=self.settings.group_id,
            generation_id_or_member_epoch=self.generation,
            member_id=self.consumer_id,
            topics=topics,
        )

    def _uncommitted(self) -> dict[TopicPartition, int]:
        return {each: offset for each, offset in self._positions.items() if offset != self._committed.get(each, -1)}

    # ---- answers

    def _connection_event(self, event: Connected | Disconnected | Received, now: int) -> None:
        was_found = self._link.is_found
        answered = self._link.handle(event, now)
        if answered is not None:
            self._answered(answered, now)
        elif self._link.is_found and not was_found:
            self._next_heartbeat = now  # "Partition changes", 3: a heartbeat says whether to join

    def _answered(self, answered: Answered, now: int) -> None:
        response = answered.response
        if isinstance(response, RewriteJoinGroupResponse):
            self._joined(response, now)
        elif isinstance(response, HeartbeatResponse):
            self._heard(response.error_code, answered.sent_at, now)
        elif isinstance(response, OffsetCommitResponse):
            self._has_committed(answered.request, response, now)
        elif isinstance(response, OffsetFetchResponse):
            self._loaded(response, now)
        elif isinstance(response, MetadataResponse):
            self._listed(response, now)

    def _joined(self, response: RewriteJoinGroupResponse, now: int) -> None:
        error = response.error_code
        if self.phase is not MemberPhase.JOINING:
            return
        if error in (RewriteError.REBALANCE_FAILED, RewriteError.ILLEGAL_GENERATION):
            # "Offset commits", 4: heartbeats are refused until the consumer has sent another JoinGroup.
            self._note("rebalance failed", error)
        elif error == RewriteError.UNKNOWN_CONSUMER_ID:
            self.consumer_id = ""
        elif error != RewriteError.NONE:
            self._refused(error, now)
        else:
            self.generation, self.consumer_id = response.generation_id, response.consumer_id
            self.assigned = frozenset(
                TopicPartition(each.topic, partition)
                for each in response.assigned_partitions
                for partition in each.partitions
            )
            self._positions, self._committed = {}, {}
            # The coordinator's timer runs since it sent the response. With the first heartbeat at once "consumption
            # starts normally" after any pause shorter than the session ("Heartbeats", 2); and only its answer says that
            # the session has not ended.
            self._next_heartbeat = now
            self._session_ends = now if self.settings.stops_with_session else _NEVER
            self.phase = MemberPhase.LOADING
            self._note("joined")
            if not self.assigned:
                self._fetch(now)

    def _heard(self, error: int, sent_at: int, now: int) -> None:
        self._next_heartbeat = now + self._heartbeat_ms
        if error != RewriteError.NONE:
            self._next_heartbeat = now
            self._refused(error, now)
        elif self.settings.stops_with_session:
            self._session_ends = sent_at + self.settings.session_timeout_ms
            if self.phase is MemberPhase.LOADING and self._is_in_session and self._is_loaded:
                self._fetch(now)  # it had stopped with its session, and the coordinator counts it still

    def _has_committed(self, request: OffsetCommitRequest, response: OffsetCommitResponse, now: int) -> None:
        error = max((each.error_code for topic in response.topics for each in topic.partitions), default=0)
        if error == RewriteError.NONE:
            self._committed.update(_offsets(request))
        self._next_commit = now + self.settings.commit_interval_ms
        if self.phase is MemberPhase.COMMITTING and error not in _AGAIN:
            if error != RewriteError.NONE:
                self._note("commit refused", error)
            self._commit_is_over()
        elif error != RewriteError.NONE:
            self._refused(error, now)

    def _loaded(self, response: OffsetFetchResponse, now: int) -> None:
        errors = {each.error_code for topic in response.topics for each in topic.partitions} - {RewriteError.NONE}
        if self.phase is not MemberPhase.LOADING:
            return
        retried = errors - {RewriteError.UNKNOWN_TOPIC_OR_PARTITION}  # in 0.8.2: nothing is committed
        if retried:
            self._refused(min(retried), now)
            return
        found = {
            TopicPartition(topic.name, each.partition_index): each.committed_offset
            for topic in response.topics
            for each in topic.partitions
        }
        self._committed = {each: found.get(each, -1) for each in sorted(self.assigned)}
        self._positions = dict(self._committed)
        if self._is_in_session:
            self._fetch(now)

    def _listed(self, response: MetadataResponse, now: int) -> None:
        self._next_refresh = now + self.settings.refresh_ms
        names = {topic.name for topic in response.topics if topic.name and not topic.error_code}
        matching = tuple(sorted(name for name in names if self.settings.matches(name)))
        if matching != self.topics:
            self._note("subscription changed")
            self.topics = matching
            self._rejoin()

    # ---- what errors mean

    def _refused(self, error: int, now: int) -> None:
        if error in _ELSEWHERE or error == RewriteError.ILLEGAL_PROTOCOL_STATE:
            self._link.look_again(now, RewriteError(error).name)
        elif error in _LATER:
            self._link.back_off(now)
        elif error == RewriteError.ILLEGAL_GENERATION:
            self._rejoin()
        elif error == RewriteError.UNKNOWN_CONSUMER_ID:
            # The coordinator has declared it dead: others may have its partitions, and its commit would be refused.
            self.consumer_id = ""
            self._rejoin()
        else:
            self._note("refused", error)
            self.refusal = RewriteError(error) if error in set(RewriteError) else error
            self._shut_down(now)

    def _rejoin(self) -> None:
        """Stop fetching, commit, send JoinGroup ("Partition changes", 3)."""
        if self.phase is MemberPhase.FETCHING:
            self._stop(MemberPhase.COMMITTING)
        elif self.phase is MemberPhase.STOPPING:
            self._after_stop = MemberPhase.COMMITTING
        elif self.phase is MemberPhase.LOADING:
            self.phase = MemberPhase.COMMITTING
            self._commit_or_join()

    def _stop(self, then: MemberPhase) -> None:
        self.phase, self._after_stop = MemberPhase.STOPPING, then
        self._effects.append(StopFetching())

    def _stopped(self, positions: Mapping[TopicPartition, int]) -> None:
        if self.phase is MemberPhase.STOPPING:
            self._progressed(positions)
            self.phase = self._after_stop
            if self.phase is MemberPhase.COMMITTING:
                self._commit_or_join()

    def _commit_or_join(self) -> None:
        if not self.consumer_id or not self._uncommitted():
            self._commit_is_over()

    def _commit_is_over(self) -> None:
        self._positions, self._committed, self.assigned = {}, {}, frozenset()
        if self._end_by < _NEVER:
            self._end()
        else:
            self.phase = MemberPhase.JOINING

    # ---- fetching

    def _fetch(self, now: int) -> None:
        self.phase = MemberPhase.FETCHING
        self._next_commit = now + self.settings.commit_interval_ms
        self._effects.append(StartFetching(self.generation, dict(self._positions)))

    def _progressed(self, positions: Mapping[TopicPartition, int]) -> None:
        if self.phase in (MemberPhase.FETCHING, MemberPhase.STOPPING):
            self._positions.update((each, offset) for each, offset in positions.items() if each in self.assigned)

    @property
    def _is_in_session(self) -> bool:
        return self._now < self._session_ends

    @property
    def _is_loaded(self) -> bool:
        return self._positions.keys() == self.assigned

    @property
    def _heartbeat_ms(self) -> int:
        """ "Heartbeats during rebalance", 1."""
        return self.settings.session_timeout_ms * 3 // 10

    # ---- the end

    def _shut_down(self, now: int) -> None:
        if self._end_by < _NEVER:
            return
        self._end_by = now + self.settings.session_timeout_ms
        if self.phase in (MemberPhase.FETCHING, MemberPhase.STOPPING, MemberPhase.LOADING):
            self._rejoin()
        elif self.phase is MemberPhase.JOINING:
            self._end()

    def _end(self) -> None:
        self._link.end()
        self.phase = MemberPhase.ENDED
        self._note("ended")
        self._effects.append(Ended())

    def _note(self, what: str, error: int | None = None) -> None:
        facts: dict[str, Any] = {"group": self.settings.group_id, "consumer": self.consumer_id}
        facts["generation"] = self.generation
        if error is not None:
            facts["error"] = RewriteError(error).name if error in set(RewriteError) else error
        self._effects.append(LogEvent(logging.INFO if error is None else logging.WARNING, what, facts))


def _offsets(request: OffsetCommitRequest) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, each.partition_index): each.committed_offset
        for topic in request.topics
        for each in topic.partitions
    }
