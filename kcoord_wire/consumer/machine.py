"""A consumer's side of the classic group protocol: join, sync, heartbeat, commit, fetch offsets, leave.

`MemberMachine` is a `machines.Machine`: it has no socket, clock or codec. An `EmbeddedProtocol` turns subscriptions and
assignments into bytes. It reacts as Kafka's Java consumer does (AbstractCoordinator, ConsumerCoordinator), eager and
cooperative (KIP-429), dynamic and static (KIP-345).

Laws:

* ``now`` is milliseconds and never decreases from one call to the next.
* Requests are numbered 1, 2, 3 ...; an answer is taken once, and only while the connection lasts that its request went
  out on: with `Close` or `Disconnected` everything in flight is over.
* A partition is in `owned` from its `Assigned` until the user has answered its `Revoking` with `Released`, or until its
  `Lost`.
* Never is JoinGroup sent while an eager member owns a partition.
* Commits carry the generation in which the member is; one without a generation is refused here, not sent.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kcoord_wire.assignors import Assignor, MemberSubscription, RebalanceProtocol, TopicPartition, sticky_user_data
from kcoord_wire.consumer.events import (
    Arrived,
    Assigned,
    Close,
    Commit,
    Committed,
    Disconnected,
    EmbeddedProtocol,
    Failed,
    Fetched,
    Leave,
    Left,
    Lost,
    MemberEffect,
    MemberEvent,
    MemberSettings,
    MemberState,
    NotCommitted,
    Offer,
    Offsets,
    Polled,
    Rejoin,
    Released,
    Revoking,
    Send,
    Stalled,
    Subscribe,
    TopicsKnown,
)
from kcoord_wire.error_codes import ErrorCode
from kcoord_wire.machines import Tick
from kcoord_wire.messages import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupRequestMemberIdentity,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)

__all__ = ["MemberMachine"]

_CONSUMER: Final = "consumer"
_NEVER = 1 << 62
_NO_COORDINATOR = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)
_IN_GENERATION = (MemberState.STABLE, MemberState.REVOKING, MemberState.SYNCING)
_OVER = (MemberState.LEFT, MemberState.FAILED)


class _Kind(enum.Enum):
    FIND = enum.auto()
    JOIN = enum.auto()
    SYNC = enum.auto()
    HEARTBEAT = enum.auto()
    COMMIT = enum.auto()
    FETCH = enum.auto()
    LEAVE = enum.auto()


class _InFlight(NamedTuple):
    """A request that waits for its answer: of what kind, what it was about, and until when it is waited for."""

    kind: _Kind
    about: Any
    deadline: int


class MemberMachine:
    """One consumer of a group.

    :param settings: its configuration
    :param assignors: what it offers in JoinGroup, most preferred first; it rebalances cooperatively if all of them do
    :param embedded: encodes and decodes subscriptions and assignments
    :ivar state: see `MemberState`
    :ivar member_id: as the coordinator gave it; empty before that
    :ivar generation_id: -1 outside any
    :ivar is_leader: whether it computed the assignment of its generation
    :ivar owned: the partitions that it holds
    :ivar owned_generation: the generation whose assignment that is; -1 before the first
    :ivar joined_for: why it sent its last JoinGroup, whether its version tells that (KIP-800) or not
    :ivar assigned_for: the partition counts that it, as leader, computed the assignment of its generation for
    """

    __slots__ = (
        "_assignors",
        "_coordinator_known",
        "_effects",
        "_embedded",
        "_failures",
        "_in_flight",
        "_is_cooperative",
        "_kept",
        "_known",
        "_next_heartbeat",
        "_now",
        "_partition_counts",
        "_poll_until",
        "_protocol",
        "_rejoin",
        "_releasing",
        "_requests",
        "_retry_at",
        "_session_ends",
        "_stalled",
        "_tickets",
        "_topics",
        "_unfetched",
        "_waiting",
        "_watched",
        "assigned_for",
        "generation_id",
        "is_leader",
        "joined_for",
        "member_id",
        "owned",
        "owned_generation",
        "settings",
        "state",
    )

    def __init__(self, settings: MemberSettings, assignors: Sequence[Assignor], embedded: EmbeddedProtocol) -> None:
        self.settings = settings
        self.state = MemberState.UNJOINED
        self.member_id = ""
        self.generation_id = -1
        self.is_leader = False
        self.owned: frozenset[TopicPartition] = frozenset()
        self.assigned_for: Mapping[str, int] | None = None
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._known = dict(self._assignors)
        self._is_cooperative = _are_cooperative(assignors)
        self._embedded = embedded
        self.joined_for: str | None = None
        self._stalled = False
        self._poll_until = _NEVER
        self._topics: tuple[str, ...] = ()
        self._partition_counts: Mapping[str, int] = {}
        self._coordinator_known = False
        self._in_flight: dict[int, _InFlight] = {}
        self._waiting: set[_Kind] = set()
        self._watched: set[str] = set()
        self._requests = 0
        self._tickets = 0
        self._releasing: frozenset[TopicPartition] = frozenset()
        self._rejoin: str | None = None  # why the next JoinGroup is due; None for: it is not
        self._retry_at = 0
        self._failures = 0  # since the coordinator last answered as it should
        self._next_heartbeat = _NEVER
        self._session_ends = _NEVER
        self._protocol: str | None = None
        self.owned_generation = -1
        self._kept: frozenset[TopicPartition] = frozenset()  # the last assignment, which the sticky assignor tells on
        self._unfetched: frozenset[TopicPartition] = frozenset()
        self._effects: list[MemberEffect] = []
        self._now = 0

    @property
    def deadline(self) -> int | None:
        """When the next `Tick` is wanted, in ms; None for never."""
        state = self.state
        if state in _OVER or not self._topics:
            return None
        when = _NEVER
        waiting = self._waiting
        for request in self._in_flight.values():
            if request.deadline < when:
                when = request.deadline
        if not self._coordinator_known:
            if _Kind.FIND not in waiting:
                when = min(when, self._retry_at)
        elif (
            self._rejoin is not None
            and not self._stalled
            and (state is MemberState.UNJOINED or state is MemberState.STABLE)
        ) or (self._unfetched and _Kind.FETCH not in waiting):
            when = min(when, self._retry_at)
        if state in _IN_GENERATION:
            if self._coordinator_known and _Kind.HEARTBEAT not in waiting:
                when = min(when, self._next_heartbeat)
            when = min(when, self._session_ends, self._poll_until)
        return None if when == _NEVER else when

    @property
    def topics(self) -> tuple[str, ...]:
        """What it is subscribed to."""
        return self._topics

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is due."""
        return bool(self._in_flight)

    def waits_for(self, request_id: int) -> bool:
        """Whether an answer to this request would still be taken."""
        return request_id in self._in_flight

    @property
    def is_at_rest(self) -> bool:
        """Whether it is in a generation with its assignment, and sees no reason to join the next."""
        return self.state is MemberState.STABLE and self._rejoin is None

    def handle(self, event: MemberEvent, now: int) -> list[MemberEffect]:
        """Take in what has happened; do what is due."""
        self._now = now
        effects: list[MemberEffect] = []
        self._effects = effects
        if self.state in _OVER:
            return effects
        match event:
            case Arrived():
                request = self._in_flight.pop(event.request_id, None)
                if request is not None:
                    self._waiting.discard(request.kind)
                    _ANSWERED[request.kind](self, event.message, request.about)
            case Tick():
                self._look_at_the_clock()
            case Disconnected():
                self._lose_connection()
            case Commit():
                self._commit(event.offsets)
            case Released():
                self._released(event)
            case TopicsKnown():
                self._partition_counts = event.partitions
                self._compare_topics()
            case Subscribe():
                if self._topics != tuple(event.topics):
                    self._topics = tuple(event.topics)
                    self._rejoin = "the subscription has changed"
            case Leave():
                self._leave(event.reason)
            case Offer():
                self._offer(event.assignors)
            case Rejoin():
                if self._rejoin is None and self.state is MemberState.STABLE:
                    self._rejoin = event.reason or "rebalance enforced by user"
            case Stalled():
                if self.state is MemberState.STABLE:
                    self._stalled = True
                    self._poll_until = now + self.settings.rebalance_timeout_ms
            case Polled():
                self._poll()
        self._go_on()
        return effects

    # ---- what is due

    def _look_at_the_clock(self) -> None:
        now = self._now
        if self._poll_until <= now:
            self._overrun()
        if any(request.deadline <= now for request in self._in_flight.values()) or (
            self.state in _IN_GENERATION and self._session_ends <= now
        ):
            self._session_ends = now + self.settings.session_timeout_ms
            self._lose_coordinator()

    def _go_on(self) -> None:
        """Send whatever is to be sent now."""
        state = self.state
        if state in _OVER or not self._topics:
            return
        now = self._now
        if not self._coordinator_known:
            if now >= self._retry_at and _Kind.FIND not in self._waiting:
                self._find_coordinator()
            return
        if (
            self._rejoin is not None
            and not self._stalled
            and now >= self._retry_at
            and (state is MemberState.UNJOINED or state is MemberState.STABLE)
        ):
            self._prepare_join()
            state = self.state
        if self._unfetched and now >= self._retry_at and _Kind.FETCH not in self._waiting:
            self._fetch()
        if state in _IN_GENERATION and now >= self._next_heartbeat and _Kind.HEARTBEAT not in self._waiting:
            self._heartbeat()

    def _send(self, kind: _Kind, message: Any, version: int, about: Any = None, timeout_ms: int | None = None) -> None:
        self._requests += 1
        wait = self.settings.request_timeout_ms if timeout_ms is None else timeout_ms
        self._in_flight[self._requests] = _InFlight(kind, about, self._now + wait)
        self._waiting.add(kind)
        self._effects.append(Send(self._requests, message, version))

    # ---- the connection and the coordinator

    def _lose_connection(self) -> None:
        gone = list(self._in_flight.values())
        self._in_flight.clear()
        self._waiting.clear()
        self._coordinator_known = False
        self._back_off()
        for request in gone:
            if request.kind is _Kind.COMMIT:
                self._effects.append(NotCommitted(request.about[1], ErrorCode.NETWORK_EXCEPTION))
            elif request.kind is _Kind.JOIN or (request.kind is _Kind.SYNC and self.state is MemberState.SYNCING):
                self._unjoin("the connection was lost while joining")

    def _lose_coordinator(self) -> None:
        self._effects.append(Close())
        self._lose_connection()

    def _back_off(self) -> None:
        """Wait before the next try, twice as long as before the last one (KIP-580)."""
        settings = self.settings
        wait = min(settings.retry_backoff_ms << min(self._failures, 20), settings.retry_backoff_max_ms)
        self._failures += 1
        self._retry_at = self._now + wait

    def _find_coordinator(self) -> None:
        version = self.settings.versions.find_coordinator
        group_id = self.settings.group_id
        if version >= 4:
            request = FindCoordinatorRequest(coordinator_keys=[group_id])
        else:
            request = FindCoordinatorRequest(key=group_id)
        self._send(_Kind.FIND, request, version)

    def _found(self, response: Any, _about: Any) -> None:
        answer = response.coordinators[0] if self.settings.versions.find_coordinator >= 4 else response
        error = answer.error_code
        if error == ErrorCode.NONE:
            self._coordinator_known = True
            self._retry_at = self._now
            self._failures = 0
        elif error == ErrorCode.GROUP_AUTHORIZATION_FAILED:
            self._fail(error)
        else:
            self._back_off()

    # ---- joining

    def _unjoin(self, why: str) -> None:
        """Out of the generation's work, though perhaps not out of the generation."""
        self.state = MemberState.UNJOINED
        self._rejoin = why

    def _reset(self, why: str, *, keep_id: bool) -> None:
        """The coordinator does not know the member (any more) as what it takes itself for."""
        self.generation_id = -1
        self.is_leader = False
        self._protocol = None
        if not keep_id:
            self.member_id = ""
        self._lose_owned()
        self._unjoin(why)

    def _lose_owned(self) -> None:
        if self.owned:
            self._effects.append(Lost(self.owned))
        self.owned = self._releasing = self._unfetched = frozenset()

    def _fail(self, error: int) -> None:
        self._lose_owned()
        self.state = MemberState.FAILED
        self.generation_id = -1
        self._effects.append(Failed(ErrorCode(error)))

    def _prepare_join(self) -> None:
        giving = (
            frozenset(partition for partition in self.owned if partition.topic not in self._topics)
            if self._is_cooperative
            else self.owned
        )
        if giving:
            self._revoke(giving)
        else:
            self._join()

    def _revoke(self, partitions: frozenset[TopicPartition]) -> None:
        self.state = MemberState.REVOKING
        self._tickets += 1
        self._releasing = partitions
        self._effects.append(Revoking(self._tickets, partitions))

    def _released(self, event: Released) -> None:
        if self.state is not MemberState.REVOKING or event.ticket != self._tickets:
            return  # lost in the meantime
        if event.offsets:
            self._commit(event.offsets)
        self.owned -= self._releasing
        self._unfetched -= self._releasing
        self._releasing = frozenset()
        self.state = MemberState.STABLE
        if self._rejoin is None:
            self._rejoin = "partitions were given up"

    def _join(self) -> None:
        settings = self.settings
        version = settings.versions.join
        subscription = MemberSubscription(
            topics=sorted(self._topics), owned=sorted(self.owned), generation=self.owned_generation
        )
        plain = self._embedded.encode_subscription(subscription)
        protocols = []
        for name in self._assignors:
            blob = plain
            if name == "sticky" and self._kept:
                told = sticky_user_data(self._kept, self.owned_generation)
                blob = self._embedded.encode_subscription(MemberSubscription(subscription.topics, user_data=told))
            protocols.append(JoinGroupRequestProtocol(name=name, metadata=blob))
        request = JoinGroupRequest(
            group_id=settings.group_id,
            session_timeout_ms=settings.session_timeout_ms,
            rebalance_timeout_ms=settings.rebalance_timeout_ms if version >= 1 else -1,
            member_id=self.member_id,
            group_instance_id=self._instance(version >= 5),
            protocol_type=_CONSUMER,
            protocols=protocols,
            reason=self._rejoin if version >= 8 else None,
        )
        self.state = MemberState.JOINING
        self.joined_for = self._rejoin
        self._rejoin = None
        patience = settings.rebalance_timeout_ms if version >= 1 else settings.session_timeout_ms
        self._send(_Kind.JOIN, request, version, timeout_ms=max(settings.request_timeout_ms, patience + 5_000))

    def _instance(self, is_known: bool) -> str | None:
        return self.settings.group_instance_id if is_known and self.settings.versions.join >= 5 else None

    def _joined(self, response: JoinGroupResponse, _about: Any) -> None:
        error = response.error_code
        if error == ErrorCode.NONE:
            self.member_id = response.member_id
            self.generation_id = response.generation_id
            self._protocol = response.protocol_name
            self._restart_session()
            self._sync(response)
        elif error == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            self._unjoin("a member id was given")
        elif error == ErrorCode.UNKNOWN_MEMBER_ID:
            self._reset("the member id was not known to JoinGroup", keep_id=False)
            self._back_off()
        elif error in _NO_COORDINATOR:
            self._unjoin("the coordinator has moved while joining")
            self._lose_coordinator()
        elif error in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.REBALANCE_IN_PROGRESS):
            self._unjoin("JoinGroup was to be tried again")
            self._back_off()
        else:
            self._fail(error)

    def _restart_session(self) -> None:
        self._next_heartbeat = self._now + self.settings.heartbeat_interval_ms
        self._session_ends = self._now + self.settings.session_timeout_ms

    # ---- the assignment

    def _sync(self, joined: JoinGroupResponse) -> None:
        settings = self.settings
        version = settings.versions.sync
        self.is_leader = joined.leader == self.member_id
        self.assigned_for = None
        assignments = self._lead(joined) if self.is_leader else []
        request = SyncGroupRequest(
            group_id=settings.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self._instance(version >= 3),
            protocol_type=_CONSUMER if version >= 5 else None,
            protocol_name=self._protocol if version >= 5 else None,
            assignments=assignments,
        )
        self.state = MemberState.SYNCING
        self._send(
            _Kind.SYNC,
            request,
            version,
            self.generation_id,
            max(settings.request_timeout_ms, settings.rebalance_timeout_ms + 5_000),
        )

    def _lead(self, joined: JoinGroupResponse) -> list[SyncGroupRequestAssignment]:
        """Compute who gets what. A static leader that is back only takes up watching the topics again (KIP-814)."""
        read = self._embedded.decode_subscription
        subscriptions = {member.member_id: read(member.metadata, member.group_instance_id) for member in joined.members}
        self._watched = {topic for subscription in subscriptions.values() for topic in subscription.topics}
        self.assigned_for = self._watched_counts()
        if joined.skip_assignment:
            return []
        assignment = self._known[self._protocol or ""].assign(self.assigned_for, subscriptions)
        write = self._embedded.encode_assignment
        return [
            SyncGroupRequestAssignment(member_id=member_id, assignment=write(partitions))
            for member_id, partitions in assignment.items()
        ]

    def _watched_counts(self) -> dict[str, int]:
        return {topic: count for topic, count in self._partition_counts.items() if topic in self._watched}

    def _synced(self, response: Any, generation_id: int) -> None:
        if self.state is not MemberState.SYNCING or generation_id != self.generation_id:
            return  # a heartbeat's answer has been quicker, and has taken the member out of that generation
        error = response.error_code
        if error == ErrorCode.NONE:
            self._take_assignment(self._embedded.decode_assignment(response.assignment))
        elif error == ErrorCode.REBALANCE_IN_PROGRESS:
            self._unjoin("a rebalance began during SyncGroup")
        elif error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            keep = error == ErrorCode.ILLEGAL_GENERATION
            self._reset("SyncGroup was refused", keep_id=keep)
            self._back_off()
        elif error in _NO_COORDINATOR:
            self._unjoin("the coordinator has moved during SyncGroup")
            self._lose_coordinator()
        elif error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            self._unjoin("the coordinator was loading during SyncGroup")
            self._back_off()
        else:
            self._fail(error)

    def _take_assignment(self, assignment: Iterable[TopicPartition]) -> None:
        assigned = frozenset(assignment)
        added = assigned - self.owned
        given_up = self.owned - assigned  # empty for eager members, which came with nothing
        self.owned_generation = self.generation_id
        self._kept = assigned
        self.owned |= added
        self.state = MemberState.STABLE
        self._restart_session()
        self._effects.append(Assigned(self.generation_id, added))
        self._unfetched |= added
        if given_up:
            self._rejoin = "partitions were given up"
            self._revoke(given_up)
        else:
            self._compare_topics()

    def _compare_topics(self) -> None:
        """The leader looks after the number of partitions for the whole group."""
        if self.is_leader and self.assigned_for is not None and self.assigned_for != self._watched_counts():
            self.assigned_for = None
            self._rejoin = "the topics have changed"

    # ---- heartbeats

    def _heartbeat(self) -> None:
        version = self.settings.versions.heartbeat
        self._next_heartbeat = self._now + self.settings.heartbeat_interval_ms
        request = HeartbeatRequest(
            group_id=self.settings.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self._instance(version >= 3),
        )
        self._send(_Kind.HEARTBEAT, request, version, self.generation_id)

    def _heartbeat_answered(self, response: Any, generation_id: int) -> None:
        error = response.error_code
        if error == ErrorCode.NONE:
            self._session_ends = self._now + self.settings.session_timeout_ms
        else:
            self._react(error, generation_id, "Heartbeat")

    def _react(self, error: int, generation_id: int, request: str) -> None:
        """To an error that tells where the group stands. One for a generation that is past tells nothing."""
        if error in _NO_COORDINATOR:
            self._lose_coordinator()
        elif generation_id != self.generation_id or self.state not in _IN_GENERATION:
            return
        elif error == ErrorCode.REBALANCE_IN_PROGRESS:
            if self._rejoin is None and self.state is MemberState.STABLE:
                self._rejoin = "the group is rebalancing"
        elif error == ErrorCode.ILLEGAL_GENERATION:
            self._reset(f"{request} was for a generation that is over", keep_id=True)
        elif error == ErrorCode.UNKNOWN_MEMBER_ID:
            self._reset(f"{request} came from a member that is not known", keep_id=False)
        elif error == ErrorCode.FENCED_INSTANCE_ID:
            self._fail(error)

    # ---- offsets

    def _commit(self, offsets: Offsets) -> None:
        if self.state not in (MemberState.STABLE, MemberState.REVOKING):
            self._effects.append(NotCommitted(offsets, ErrorCode.REBALANCE_IN_PROGRESS))
            return
        if not self._coordinator_known:
            self._effects.append(NotCommitted(offsets, ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        version = self.settings.versions.commit
        topics: dict[str, OffsetCommitRequestTopic] = {}
        for (topic, partition), offset in offsets.items():
            if topic not in topics:
                topics[topic] = OffsetCommitRequestTopic(name=topic)
            topics[topic].partitions.append(
                OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
            )
        request = OffsetCommitRequest(
            group_id=self.settings.group_id,
            generation_id_or_member_epoch=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self._instance(version >= 7),
            topics=list(topics.values()),
        )
        self._send(_Kind.COMMIT, request, version, (self.generation_id, offsets))

    def _commit_answered(self, response: Any, about: tuple[int, Offsets]) -> None:
        generation_id, offsets = about
        refused: dict[TopicPartition, int] = {
            TopicPartition(topic.name, partition.partition_index): partition.error_code
            for topic in response.topics
            for partition in topic.partitions
            if partition.error_code
        }
        if not refused:
            self._effects.append(Committed(offsets))
            return
        error = next(iter(refused.values()))
        taken = {partition: offset for partition, offset in offsets.items() if partition not in refused}
        if taken:
            self._effects.append(Committed(taken))
        self._effects.append(NotCommitted({partition: offsets[partition] for partition in refused}, ErrorCode(error)))
        self._react(error, generation_id, "OffsetCommit")

    def _fetch(self) -> None:
        version = self.settings.versions.fetch
        topics: dict[str, list[int]] = {}
        for topic, partition in sorted(self._unfetched):
            topics.setdefault(topic, []).append(partition)
        request = OffsetFetchRequest(require_stable=version >= 7)
        if version >= 8:
            asked = [OffsetFetchRequestTopics(name=name, partition_indexes=indexes) for name, indexes in topics.items()]
            request.groups = [OffsetFetchRequestGroup(group_id=self.settings.group_id, topics=asked)]
        else:
            request.group_id = self.settings.group_id
            request.topics = [
                OffsetFetchRequestTopic(name=name, partition_indexes=indexes) for name, indexes in topics.items()
            ]
        self._send(_Kind.FETCH, request, version)

    def _fetched(self, response: OffsetFetchResponse, _about: Any) -> None:
        version = self.settings.versions.fetch
        answer: Any = response.groups[0] if version >= 8 else response
        error = answer.error_code
        got: dict[TopicPartition, int] = {}
        for topic in answer.topics:
            for partition in topic.partitions:
                if partition.error_code:
                    error = partition.error_code
                else:
                    got[TopicPartition(topic.name, partition.partition_index)] = partition.committed_offset
        got = {partition: offset for partition, offset in got.items() if partition in self._unfetched}
        if got:
            self._unfetched -= got.keys()
            self._effects.append(Fetched(got))
        if error in _NO_COORDINATOR:
            self._lose_coordinator()
        elif error in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.UNSTABLE_OFFSET_COMMIT):
            self._back_off()
        elif error:
            self._fail(error)

    # ---- what the user wants otherwise

    def _offer(self, assignors: Sequence[Assignor]) -> None:
        if [assignor.name for assignor in assignors] != list(self._assignors):
            self._assignors = {assignor.name: assignor for assignor in assignors}
            self._known |= self._assignors  # the join that goes on may choose one that is no longer offered
            self._is_cooperative = _are_cooperative(assignors)
            self._rejoin = "the list of assignors has changed"

    def _overrun(self) -> None:
        """The application has not polled for too long: out of the group until it does."""
        self._poll_until = _NEVER
        self._say_goodbye("consumer poll timeout has expired.")
        self._reset("", keep_id=False)
        self._rejoin = None

    def _poll(self) -> None:
        self._stalled = False
        self._poll_until = _NEVER
        if self.state is MemberState.UNJOINED and self._rejoin is None and not self.member_id:
            self._rejoin = "the application polls again"

    # ---- leaving

    def _leave(self, reason: str | None) -> None:
        self._say_goodbye(reason)
        self.owned = self._releasing = self._unfetched = frozenset()
        self.generation_id = -1
        self.state = MemberState.LEFT
        self._effects.append(Left())

    def _say_goodbye(self, reason: str | None) -> None:
        """Static members do not: they come back, or their session ends (KIP-345)."""
        version = self.settings.versions.leave
        is_static = self.settings.versions.join >= 5 and self.settings.group_instance_id is not None
        if self.member_id and self._coordinator_known and not is_static:
            request = LeaveGroupRequest(group_id=self.settings.group_id)
            if version >= 3:
                request.members = [
                    LeaveGroupRequestMemberIdentity(member_id=self.member_id, reason=reason if version >= 5 else None)
                ]
            else:
                request.member_id = self.member_id
            self._send(_Kind.LEAVE, request, version)

    def _ignore(self, _response: Any, _about: Any) -> None:
        pass


def _are_cooperative(assignors: Sequence[Assignor]) -> bool:
    return all(assignor.protocol is RebalanceProtocol.COOPERATIVE for assignor in assignors)


_ANSWERED: Final[Mapping[_Kind, Callable[[MemberMachine, Any, Any], None]]] = {
    _Kind.FIND: MemberMachine._found,
    _Kind.JOIN: MemberMachine._joined,
    _Kind.SYNC: MemberMachine._synced,
    _Kind.HEARTBEAT: MemberMachine._heartbeat_answered,
    _Kind.COMMIT: MemberMachine._commit_answered,
    _Kind.FETCH: MemberMachine._fetched,
    _Kind.LEAVE: MemberMachine._ignore,
}
