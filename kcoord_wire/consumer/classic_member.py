"""A consumer's side of the classic group protocol: join, sync, heartbeat, commit, fetch offsets, leave.

`MemberMachine` is a `machines.Machine`: it has no socket, clock or codec. An `EmbeddedProtocol` turns subscriptions and
assignments into bytes. It reacts as Kafka's Java consumer does (AbstractCoordinator, ConsumerCoordinator), eager and
cooperative (KIP-429), dynamic and static (KIP-345).

Laws:

* ``now`` is milliseconds and never decreases from one call to the next.
* Requests are numbered 1, 2, 3 ... An answer is accepted once, and only while the connection lasts on which its request
  was sent: `Close` and `Disconnected` end everything in flight.
* A partition is in `owned` from its `Assigned` until the application has answered its `Revoking` with `Released`, or
  until its `Lost`.
* An eager member sends JoinGroup only when it owns no partition.
* A commit carries the member's present generation; a commit outside a generation is refused here, not sent.
* An error of an assignor's `on_join` or `on_assignment` leaves `handle` as `AssignorHookError` and ends the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from kcoord_wire import messages as m
from kcoord_wire.assignors import (
    Assignor,
    MemberAssignment,
    MemberSubscription,
    Partitions,
    Racks,
    RebalanceProtocol,
    TopicPartition,
    group_partitions,
    list_partitions,
)
from kcoord_wire.consumer import member_events as events
from kcoord_wire.consumer import requests
from kcoord_wire.consumer.errors import AssignorHookError
from kcoord_wire.consumer.requests import NEVER, InFlight, Kind, assign, is_static
from kcoord_wire.errors import DecodeError
from kcoord_wire.kernel.machines import Close, Disconnected, Tick
from kcoord_wire.protocol.error_codes import ErrorCode

_NO_COORDINATOR: Final = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)
_FETCH_AGAIN: Final = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.UNSTABLE_OFFSET_COMMIT)
_MAY_JOIN: Final = (events.MemberState.UNJOINED, events.MemberState.STABLE)
_IN_GENERATION: Final = (events.MemberState.STABLE, events.MemberState.REVOKING, events.MemberState.SYNCING)
_OVER: Final = (events.MemberState.LEFT, events.MemberState.FAILED)
_NONE: Final[frozenset[TopicPartition]] = frozenset()
_EXTRA_MS: Final = 5_000
"""How much longer than the rebalance timeout JoinGroup and SyncGroup may take (Kafka's JOIN_GROUP_TIMEOUT_LAPSE)."""


class MemberMachine:
    """One consumer of a group.

    :param settings: its configuration
    :param assignors: offered in JoinGroup, most preferred first; it rebalances cooperatively if all of them do
    :param embedded: encodes and decodes subscriptions and assignments
    :param host_assigns: as leader, emit `Assigning` and wait for `Distribute` instead of calling the assignor: the host
        may need newer metadata first, or another thread
    :ivar settings: as given
    :ivar state: see `MemberState`
    :ivar member_id: as the coordinator gave it; empty before that
    :ivar generation_id: -1 outside any generation
    :ivar is_leader: whether it computed the assignment of its generation
    :ivar owned: the partitions that it holds
    :ivar owned_generation: the generation of its last assignment; -1 before the first
    :ivar joined_for: why it sent its last JoinGroup, whether or not its version has the field (KIP-800)
    :ivar assigned_for: the partition counts for which it, as leader, computed the assignment of its generation
    """

    __slots__ = (
        "_all_assignors",
        "_assignors",
        "_coordinator_known",
        "_effects",
        "_embedded",
        "_failures",
        "_fetches_with_poll",
        "_host_assigns",
        "_in_flight",
        "_is_cooperative",
        "_is_stalled",
        "_is_subscribed",
        "_last_assignment",
        "_next_heartbeat",
        "_now",
        "_partition_counts",
        "_poll_until",
        "_protocol",
        "_racks",
        "_rejoin_for",
        "_releasing",
        "_retry_at",
        "_session_ends",
        "_tickets",
        "_topics",
        "_unfetched",
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

    def __init__(
        self,
        settings: events.MemberSettings,
        assignors: Sequence[Assignor],
        embedded: events.EmbeddedProtocol,
        *,
        host_assigns: bool = False,
    ) -> None:
        self.settings = settings
        self.state = events.MemberState.UNJOINED
        self.member_id = ""
        self.generation_id = -1
        self.is_leader = False
        self.owned = _NONE
        self.owned_generation = -1
        self.joined_for: str | None = None
        self.assigned_for: Mapping[str, int] | None = None
        self._embedded = embedded
        self._host_assigns = host_assigns
        self._now = 0
        self._effects: list[events.MemberEffect] = []
        # What the application wants.
        self._topics: tuple[str, ...] = ()
        self._is_subscribed = False  # it is with a pattern that matches nothing, too
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._all_assignors = dict(self._assignors)  # and those offered before: a join under way may still choose one
        self._is_cooperative = _are_cooperative(assignors)
        self._is_stalled = False
        self._poll_until = NEVER
        # The coordinator, and what waits for it.
        self._coordinator_known = False
        self._in_flight = InFlight()
        self._retry_at = 0
        self._failures = 0  # since the last successful FindCoordinator
        self._next_heartbeat = NEVER
        self._session_ends = NEVER
        # The rebalance.
        self._rejoin_for: str | None = None  # why the next JoinGroup is due; None if it is not
        self._protocol: str | None = None
        self._tickets = 0
        self._releasing = _NONE
        self._last_assignment: Partitions = {}  # an assignor may report it in its user data
        self._unfetched = _NONE
        self._fetches_with_poll = False  # the last OffsetFetch was refused: the application polls before the next
        # What a leader watches.
        self._partition_counts: Mapping[str, int] = {}
        self._racks: Racks = {}
        self._watched: set[str] = set()

    # ---- what a host asks

    @property
    def deadline(self) -> int | None:
        """When the next `Tick` is wanted, in ms; None for never."""
        if self.state in _OVER or not self._is_subscribed:
            return None
        when = self._in_flight.deadline
        if self._wants_coordinator() or self._wants_join() or self._wants_offsets():
            when = min(when, self._retry_at)
        if self.state in _IN_GENERATION:
            when = min(when, self._poll_until)
            if not self._in_flight.has(Kind.SYNC):
                when = min(when, self._session_ends)
            if self._wants_heartbeat():
                when = min(when, self._next_heartbeat)
        return None if when == NEVER else when

    @property
    def topics(self) -> tuple[str, ...]:
        """The subscription."""
        return self._topics

    @property
    def is_waiting(self) -> bool:
        """Whether a request waits for its answer."""
        return bool(self._in_flight)

    def waits_for(self, request_id: int) -> bool:
        """Whether the answer to this request would still be accepted."""
        return request_id in self._in_flight

    @property
    def is_at_rest(self) -> bool:
        """Whether it is in a generation with its assignment, and has no reason to rejoin."""
        return self.state is events.MemberState.STABLE and self._rejoin_for is None

    @property
    def has_offsets(self) -> bool:
        """Whether the committed offsets of all its partitions are known."""
        return not self._unfetched

    def handle(self, event: events.MemberEvent, now: int) -> list[events.MemberEffect]:
        """Take in one event, do what is due, and return the effects; see `machines.Machine`."""
        self._now = now
        effects: list[events.MemberEffect] = []
        self._effects = effects
        if self.state not in _OVER:
            _HANDLE[type(event)](self, event)
            self._proceed()
        return effects

    # ---- what is due

    def _wants_coordinator(self) -> bool:
        return not self._coordinator_known and not self._in_flight.has(Kind.FIND)

    def _wants_join(self) -> bool:
        return (
            self._rejoin_for is not None
            and self._coordinator_known
            and not self._is_stalled
            and self.state in _MAY_JOIN
        )

    def _wants_offsets(self) -> bool:
        return (
            bool(self._unfetched)
            and self._coordinator_known
            and not self._fetches_with_poll
            and not self._in_flight.has(Kind.FETCH)
        )

    def _wants_heartbeat(self) -> bool:
        return self._coordinator_known and not self._in_flight.has(Kind.HEARTBEAT)

    def _proceed(self) -> None:
        """Send what is due."""
        if self.state in _OVER or not self._is_subscribed:
            return
        may_retry = self._now >= self._retry_at
        if may_retry and self._wants_coordinator():
            self._send(Kind.FIND, requests.find_coordinator(self.settings))
        if may_retry and self._wants_join():
            self._prepare_join()
        if may_retry and self._wants_offsets():
            self._send(Kind.FETCH, requests.fetch_offsets(self.settings, self._unfetched), self._unfetched)
        if self.state in _IN_GENERATION and self._now >= self._next_heartbeat and self._wants_heartbeat():
            self._next_heartbeat = self._now + self.settings.heartbeat_interval_ms
            request = requests.heartbeat(self.settings, self.generation_id, self.member_id)
            # A parked SyncGroup keeps the member alive, and brokers read nothing behind it: a heartbeat that timed out
            # there would end every rebalance whose leader takes longer than the request timeout.
            timeout_ms = self._sync_timeout_ms if self._in_flight.has(Kind.SYNC) else None
            self._send(Kind.HEARTBEAT, request, self.generation_id, timeout_ms)

    def _send(self, kind: Kind, message: Any, context: Any = None, timeout_ms: int | None = None) -> None:
        wait = self.settings.request_timeout_ms if timeout_ms is None else timeout_ms
        request_id = self._in_flight.add(kind, context, self._now + wait)
        self._effects.append(events.SendRequest(request_id, message, getattr(self.settings.versions, kind.value)))

    def _tick(self, _event: Tick) -> None:
        now = self._now
        if self._poll_until <= now and self.state in _IN_GENERATION:
            self._effects.append(events.PollExpired())
            self._leave_until_polled("consumer poll timeout has expired.")
        is_in_doubt = self.state in _IN_GENERATION and not self._in_flight.has(Kind.SYNC)
        if self._in_flight.deadline <= now or (is_in_doubt and self._session_ends <= now):
            self._session_ends = now + self.settings.session_timeout_ms
            self._lose_coordinator()

    # ---- the connection and the coordinator

    def _arrived(self, event: events.Arrived) -> None:
        pending = self._in_flight.pop(event.request_id)
        if pending is None:
            return
        try:
            _ANSWERED[pending.kind](self, event.message, pending.context)
        except DecodeError as error:  # of the bytes that other members have sent through the coordinator
            self._effects.append(events.Unreadable(self._protocol or "", str(error)))
            self._leave_until_polled("the embedded protocol cannot be read")

    def _disconnected(self, _event: Disconnected) -> None:
        self._lose_connection()

    def _lose_connection(self) -> None:
        self._coordinator_known = False
        self._back_off()
        for request in self._in_flight.take_all():
            if request.kind is Kind.COMMIT:
                _, offsets, number = request.context
                self._effects.append(events.NotCommitted(offsets, ErrorCode.NETWORK_EXCEPTION, number))
            elif request.kind is Kind.JOIN or (request.kind is Kind.SYNC and self.state is events.MemberState.SYNCING):
                self._unjoin("the connection was lost while joining")

    def _lose_coordinator(self) -> None:
        self._effects.append(Close())
        self._lose_connection()

    def _back_off(self) -> None:
        """Wait before the next try, twice as long as before the last one (KIP-580)."""
        settings = self.settings
        # The shift is bounded because a coordinator may be away for days.
        wait = min(settings.retry_backoff_ms << min(self._failures, 20), settings.retry_backoff_max_ms)
        self._failures += 1
        self._retry_at = self._now + wait

    def _found(self, response: Any, _context: Any) -> None:
        error = requests.found_coordinator(self.settings, response).error_code
        if error == ErrorCode.NONE:
            self._coordinator_known = True
            self._retry_at = self._now
            self._failures = 0
        elif error == ErrorCode.GROUP_AUTHORIZATION_FAILED:
            self._fail(error)
        else:
            self._back_off()

    # ---- joining

    def _unjoin(self, reason: str) -> None:
        """Take no part in the generation any more, though the member may still be in it; rejoin for this reason."""
        self.state = events.MemberState.UNJOINED
        self._rejoin_for = reason

    def _reset(self, reason: str, *, keep_id: bool) -> None:
        """Start over: the coordinator has rejected the generation or, unless `keep_id`, the member id."""
        self.generation_id = -1
        self.is_leader = False
        self._protocol = None
        if not keep_id:
            self.member_id = ""
        self._lose_owned()
        self._unjoin(reason)

    def _lose_owned(self) -> None:
        if self.owned:
            self._effects.append(events.Lost(self.owned))
        self.owned = self._releasing = self._unfetched = _NONE

    def _fail(self, error: int) -> None:
        self._lose_owned()
        self.state = events.MemberState.FAILED
        self.generation_id = -1
        self._effects.append(events.Failed(_named(error)))

    def _prepare_join(self) -> None:
        """Revoke what the member may not hold while it joins, then join."""
        revoked = self.owned
        if self._is_cooperative:
            revoked = frozenset(partition for partition in self.owned if partition.topic not in self._topics)
        if revoked:
            self._revoke(revoked)
        else:
            self._join()

    def _revoke(self, partitions: frozenset[TopicPartition]) -> None:
        self.state = events.MemberState.REVOKING
        self._tickets += 1
        self._releasing = partitions
        self._effects.append(events.Revoking(self._tickets, partitions))

    def _released(self, event: events.Released) -> None:
        if self.state is not events.MemberState.REVOKING or event.ticket != self._tickets:
            return  # the partitions were lost in the meantime
        if event.offsets:
            self._commit(event.offsets)
        self.owned -= self._releasing
        self._unfetched -= self._releasing
        self._releasing = _NONE
        self.state = events.MemberState.STABLE
        if self._rejoin_for is None:
            self._rejoin_for = "partitions were given up"

    def _join(self) -> None:
        settings = self.settings
        reason, self._rejoin_for = self._rejoin_for, None
        request = requests.join(settings, self.member_id, self._subscriptions(), reason)
        self.state = events.MemberState.JOINING
        self.joined_for = reason
        # Before version 1 the coordinator takes the session timeout for the rebalance timeout.
        timeout_ms = settings.rebalance_timeout_ms if settings.versions.join >= 1 else settings.session_timeout_ms
        self._send(Kind.JOIN, request, timeout_ms=max(settings.request_timeout_ms, timeout_ms + _EXTRA_MS))

    def _subscriptions(self) -> list[m.JoinGroupRequestProtocol]:
        """The subscription as each assignor wants it."""
        topics, owned, generation = sorted(self._topics), group_partitions(self.owned), self.owned_generation
        protocols = []
        for assignor in self._assignors.values():
            user_data = _run_hook(assignor, "on_join", topics, self._last_assignment, generation) or b""
            subscription = MemberSubscription(topics, owned, generation, rack=self.settings.rack, user_data=user_data)
            data = self._embedded.encode_subscription(subscription)
            protocols.append(m.JoinGroupRequestProtocol(name=assignor.name, metadata=data))
        return protocols

    def _joined(self, response: m.JoinGroupResponse, _context: Any) -> None:
        error = response.error_code
        if error == ErrorCode.NONE and response.protocol_name not in self._all_assignors:
            self._fail(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)  # this member has not offered it
        elif error == ErrorCode.NONE:
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
        if self.settings.heartbeat_restarts:
            self._next_heartbeat = self._now + self.settings.heartbeat_interval_ms
        elif self._next_heartbeat == NEVER:
            self._next_heartbeat = self._now
        self._session_ends = self._now + self.settings.session_timeout_ms

    # ---- the assignment

    def _sync(self, joined: m.JoinGroupResponse) -> None:
        self.is_leader = joined.leader == self.member_id
        self.assigned_for = None
        if self.is_leader and self._host_assigns and not joined.skip_assignment:
            self.state = events.MemberState.SYNCING
            self._effects.append(self._task(joined))
        else:
            self._send_sync(self._assign(joined) if self.is_leader else [])

    def _send_sync(self, assignments: list[m.SyncGroupRequestAssignment]) -> None:
        settings = self.settings
        request = requests.sync(settings, self.generation_id, self.member_id, self._protocol, assignments)
        self.state = events.MemberState.SYNCING
        self._send(Kind.SYNC, request, self.generation_id, self._sync_timeout_ms)

    @property
    def _sync_timeout_ms(self) -> int:
        return max(self.settings.request_timeout_ms, self.settings.rebalance_timeout_ms + _EXTRA_MS)

    def _task(self, joined: m.JoinGroupResponse) -> events.Assigning:
        """Return what the leader has to assign, and watch those topics."""
        decode = self._embedded.decode_subscription
        subscriptions = {
            member.member_id: decode(member.metadata, member.group_instance_id) for member in joined.members
        }
        self._watched = {topic for subscription in subscriptions.values() for topic in subscription.topics}
        assignor = self._all_assignors[joined.protocol_name or ""]
        return events.Assigning(
            self.generation_id, assignor, subscriptions, self._watched_counts(self._partition_counts), self._racks
        )

    def _assign(self, joined: m.JoinGroupResponse) -> list[m.SyncGroupRequestAssignment]:
        """Compute the assignment as the leader. A static leader that rejoins only watches the topics (KIP-814)."""
        task = self._task(joined)
        self.assigned_for = task.partitions
        return [] if joined.skip_assignment else self._encoded(assign(task))

    def _encoded(self, assignments: Mapping[str, MemberAssignment]) -> list[m.SyncGroupRequestAssignment]:
        encode = self._embedded.encode_assignment
        return [
            m.SyncGroupRequestAssignment(member_id=member_id, assignment=encode(assignment))
            for member_id, assignment in assignments.items()
        ]

    def _distribute(self, event: events.Distribute) -> None:
        """Send what the host has assigned, unless the generation has ended for this member meanwhile."""
        is_awaited = self.state is events.MemberState.SYNCING and not self._in_flight.has(Kind.SYNC)
        if not is_awaited or event.generation_id != self.generation_id:
            return
        if event.assignments is None:
            self._leave_until_polled("the leader has no assignment to send")
        elif not self._coordinator_known:
            self._unjoin("the connection was lost while assigning")
        else:
            self.assigned_for = self._watched_counts(event.partitions)
            self._send_sync(self._encoded(event.assignments))

    def _watched_counts(self, counts: Mapping[str, int]) -> dict[str, int]:
        return {topic: count for topic, count in counts.items() if topic in self._watched}

    def _synced(self, response: Any, generation_id: int) -> None:
        if self.state is not events.MemberState.SYNCING or generation_id != self.generation_id:
            return  # the answer to a heartbeat has arrived first and ended the generation for this member
        error = response.error_code
        if error == ErrorCode.NONE:
            self._take_assignment(self._embedded.decode_assignment(response.assignment))
        elif error == ErrorCode.REBALANCE_IN_PROGRESS:
            self._unjoin("a rebalance began during SyncGroup")
        elif error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self._reset("SyncGroup was refused", keep_id=error == ErrorCode.ILLEGAL_GENERATION)
            self._back_off()
        elif error in _NO_COORDINATOR:
            self._unjoin("the coordinator has moved during SyncGroup")
            self._lose_coordinator()
        elif error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            self._unjoin("the coordinator was loading during SyncGroup")
            self._back_off()
        else:
            self._fail(error)

    def _take_assignment(self, assignment: MemberAssignment) -> None:
        assigned = frozenset(list_partitions(assignment.partitions))
        added = assigned - self.owned
        taken_away = self.owned - assigned  # empty for eager members, which own nothing when they join
        self.owned_generation = self.generation_id
        self._last_assignment = assignment.partitions
        self.owned |= added
        self.state = events.MemberState.STABLE
        self._restart_session()
        assignor = self._all_assignors[self._protocol or ""]
        _run_hook(assignor, "on_assignment", assignment.partitions, assignment.user_data, self.generation_id)
        self._unfetched |= added
        if taken_away:  # before what is new, as ConsumerCoordinator.onJoinComplete does
            self._rejoin_for = "partitions were given up"
            self._revoke(taken_away)
        self._effects.append(events.Assigned(self.generation_id, added))
        if not taken_away:
            self._compare_topics()

    def _topics_known(self, event: events.TopicsKnown) -> None:
        self._partition_counts, self._racks = event.partitions, event.racks
        self._compare_topics()

    def _compare_topics(self) -> None:
        """Rejoin if the topics are no longer those assigned; the leader watches them for the whole group."""
        if (
            self.is_leader
            and self.assigned_for is not None
            and self.assigned_for != self._watched_counts(self._partition_counts)
        ):
            self.assigned_for = None
            self._rejoin_for = "the topics have changed"

    # ---- heartbeats

    def _heartbeat_answered(self, response: Any, generation_id: int) -> None:
        error = response.error_code
        if error in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):  # both have renewed the session
            self._session_ends = self._now + self.settings.session_timeout_ms
        if error:
            self._react(error, generation_id, "Heartbeat")

    def _react(self, error: int, generation_id: int, request: str) -> None:
        """React to an error about the member's place in the group. One for a past generation is ignored."""
        if error in _NO_COORDINATOR:
            self._lose_coordinator()
        elif generation_id != self.generation_id or self.state not in _IN_GENERATION:
            return
        elif error == ErrorCode.REBALANCE_IN_PROGRESS:
            if self.is_at_rest:
                self._rejoin_for = "the group is rebalancing"
        elif error == ErrorCode.ILLEGAL_GENERATION:
            self._reset(f"{request} was for a generation that is over", keep_id=True)
        elif error == ErrorCode.UNKNOWN_MEMBER_ID:
            self._reset(f"{request} came from a member that is not known", keep_id=False)
        elif error == ErrorCode.FENCED_INSTANCE_ID:
            self._fail(error)

    # ---- offsets

    def _commit_wanted(self, event: events.Commit) -> None:
        self._commit(event.offsets, event.number)

    def _commit(self, offsets: events.Offsets, number: int = 0) -> None:
        if self.state not in (events.MemberState.STABLE, events.MemberState.REVOKING):
            self._effects.append(events.NotCommitted(offsets, ErrorCode.REBALANCE_IN_PROGRESS, number))
        elif not self._coordinator_known:
            self._effects.append(events.NotCommitted(offsets, ErrorCode.COORDINATOR_NOT_AVAILABLE, number))
        else:
            request = requests.commit(self.settings, self.generation_id, self.member_id, offsets)
            self._send(Kind.COMMIT, request, (self.generation_id, offsets, number))

    def _commit_answered(self, response: Any, context: tuple[int, events.Offsets, int]) -> None:
        generation_id, offsets, number = context
        # A partition that the answer leaves out was not committed, as far as the member can know.
        refused = dict.fromkeys(offsets, int(ErrorCode.UNKNOWN_SERVER_ERROR))
        for topic in response.topics:
            for partition in topic.partitions:
                key = TopicPartition(topic.name, partition.partition_index)
                if not partition.error_code:
                    refused.pop(key, None)
                elif key in refused:
                    refused[key] = partition.error_code
        if not refused:
            self._effects.append(events.Committed(offsets, number))
            return
        error = next(iter(refused.values()))
        taken = {partition: offset for partition, offset in offsets.items() if partition not in refused}
        if taken:
            self._effects.append(events.Committed(taken, number))
        left = {partition: offsets[partition] for partition in refused}
        self._effects.append(events.NotCommitted(left, _named(error), number))
        if error == ErrorCode.REQUEST_TIMED_OUT:  # of the coordinator's replication: another may lead by now
            self._lose_coordinator()
        else:
            self._react(error, generation_id, "OffsetCommit")

    def _fetched(self, response: m.OffsetFetchResponse, asked: frozenset[TopicPartition]) -> None:
        answer = requests.fetched_group(self.settings, response)
        offsets: dict[TopicPartition, int] = {}
        refused = dict.fromkeys(sorted(self._unfetched & asked), answer.error_code) if answer.error_code else {}
        errors = {answer.error_code}
        for topic in answer.topics:
            for partition in topic.partitions:
                key = TopicPartition(topic.name, partition.partition_index)
                errors.add(partition.error_code)
                if key not in self._unfetched:
                    continue
                if partition.error_code:
                    refused[key] = partition.error_code
                else:
                    offsets[key] = partition.committed_offset
        if offsets:
            self._unfetched -= offsets.keys()
            self._effects.append(events.Fetched(offsets))
        self._react_to_fetch(errors, {key: _named(error) for key, error in refused.items()}, asked)

    def _react_to_fetch(
        self, errors: set[int], refused: Mapping[TopicPartition, ErrorCode], asked: frozenset[TopicPartition]
    ) -> None:
        """React to the errors of OffsetFetch, which have refused the offsets of these partitions."""
        lasting = {partition: error for partition, error in refused.items() if error not in _FETCH_AGAIN}
        if errors.intersection(_NO_COORDINATOR):
            self._lose_coordinator()
        elif ErrorCode.GROUP_AUTHORIZATION_FAILED in errors:
            self._fail(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        elif lasting:
            self._fetches_with_poll = True
            self._effects.append(events.NotFetched(lasting))
        elif self._unfetched & asked:
            self._back_off()  # the errors pass, or the answer leaves some out

    # ---- what the application wants

    def _subscribe(self, event: events.Subscribe) -> None:
        if not self._is_subscribed or self._topics != tuple(event.topics):
            self._is_subscribed = True
            self._topics = tuple(event.topics)
            self._rejoin_for = "the subscription has changed"

    def _offer(self, event: events.Offer) -> None:
        if [assignor.name for assignor in event.assignors] != list(self._assignors):
            self._assignors = {assignor.name: assignor for assignor in event.assignors}
            self._all_assignors |= self._assignors
            self._is_cooperative = _are_cooperative(event.assignors)
            self._rejoin_for = "the list of assignors has changed"

    def _enforce_rebalance(self, event: events.Rejoin) -> None:
        if self.is_at_rest:
            self._rejoin_for = event.reason or "rebalance enforced by user"

    def _stall(self, _event: events.Stalled) -> None:
        self._is_stalled = True
        self._poll_until = self._now + self.settings.rebalance_timeout_ms

    def _leave_until_polled(self, reason: str) -> None:
        """Leave the group; rejoin when the application polls again."""
        self._poll_until = NEVER
        self._send_leave(reason)
        self._reset("", keep_id=False)
        self._rejoin_for = None

    def _polled(self, _event: events.Polled) -> None:
        self._is_stalled = self._fetches_with_poll = False
        self._poll_until = NEVER
        if self.state is events.MemberState.UNJOINED and self._rejoin_for is None and not self.member_id:
            self._rejoin_for = "the application polls again"

    def _leave(self, event: events.Leave) -> None:
        self._send_leave(event.reason)
        self.owned = self._releasing = self._unfetched = _NONE
        self.generation_id = -1
        self.state = events.MemberState.LEFT
        self._effects.append(events.Left())

    def _send_leave(self, reason: str | None) -> None:
        """Send LeaveGroup, unless the member is static: it comes back, or its session ends (KIP-345)."""
        if self.member_id and self._coordinator_known and not is_static(self.settings):
            self._send(Kind.LEAVE, requests.leave(self.settings, self.member_id, reason))

    def _left(self, _response: Any, _context: Any) -> None:
        """Ignore the answer to LeaveGroup: the member no longer depends on it."""


def _named(error: int) -> ErrorCode:
    """Return the error of this number; UNKNOWN_SERVER_ERROR for one that is newer than `ErrorCode`."""
    try:
        return ErrorCode(error)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def _run_hook(assignor: Assignor, name: Literal["on_join", "on_assignment"], *arguments: Any) -> Any:
    """Call a hook if the assignor has it.

    :raises AssignorHookError: it has failed
    """
    hook = getattr(assignor, name)
    try:
        return hook(*arguments) if hook is not None else None
    except Exception as error:
        raise AssignorHookError(assignor.name, f"its {name} has failed") from error


def _are_cooperative(assignors: Sequence[Assignor]) -> bool:
    return all(assignor.protocol is RebalanceProtocol.COOPERATIVE for assignor in assignors)


_HANDLE: Final[Mapping[type, Callable[[MemberMachine, Any], None]]] = {
    events.Arrived: MemberMachine._arrived,
    Disconnected: MemberMachine._disconnected,
    Tick: MemberMachine._tick,
    events.TopicsKnown: MemberMachine._topics_known,
    events.Distribute: MemberMachine._distribute,
    events.Subscribe: MemberMachine._subscribe,
    events.Offer: MemberMachine._offer,
    events.Released: MemberMachine._released,
    events.Commit: MemberMachine._commit_wanted,
    events.Rejoin: MemberMachine._enforce_rebalance,
    events.Stalled: MemberMachine._stall,
    events.Polled: MemberMachine._polled,
    events.Leave: MemberMachine._leave,
}

_ANSWERED: Final[Mapping[Kind, Callable[[MemberMachine, Any, Any], None]]] = {
    Kind.FIND: MemberMachine._found,
    Kind.JOIN: MemberMachine._joined,
    Kind.SYNC: MemberMachine._synced,
    Kind.HEARTBEAT: MemberMachine._heartbeat_answered,
    Kind.COMMIT: MemberMachine._commit_answered,
    Kind.FETCH: MemberMachine._fetched,
    Kind.LEAVE: MemberMachine._left,
}
