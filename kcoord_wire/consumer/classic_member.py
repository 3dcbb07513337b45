"""A consumer's side of the classic group protocol: join, sync, heartbeat, leave.

`MemberMachine` is a `machines.Machine`: it has no socket, clock or codec. An `EmbeddedProtocol` turns subscriptions and
assignments into bytes. It reacts as Kafka's Java consumer does (AbstractCoordinator, ConsumerCoordinator), eager and
cooperative (KIP-429), dynamic and static (KIP-345).

Laws, besides those of `group_client`:

* A partition is in `owned` from its `Assigned` until the application has answered its `Revoking` with `Released`, or
  until its `Lost`.
* An eager member sends JoinGroup only when it owns no partition.
* A commit carries the member's present generation; a commit outside a generation is refused here, not sent.
* An error of an assignor's `on_join` or `on_assignment` leaves `handle` as `AssignorHookError` and ends the machine.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
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
from kcoord_wire.consumer.group_client import NO_COORDINATOR, NONE, GroupMember
from kcoord_wire.consumer.requests import NEVER, Kind, assign, is_static
from kcoord_wire.errors import DecodeError
from kcoord_wire.kernel.machines import Tick
from kcoord_wire.protocol.error_codes import ErrorCode

_MAY_JOIN: Final = (events.MemberState.UNJOINED, events.MemberState.STABLE)
_IN_GENERATION: Final = (events.MemberState.STABLE, events.MemberState.REVOKING, events.MemberState.SYNCING)
_EXTRA_MS: Final = 5_000
"""How much longer than the rebalance timeout JoinGroup and SyncGroup may take (Kafka's JOIN_GROUP_TIMEOUT_LAPSE)."""


class MemberMachine(GroupMember):
    """One consumer of a group.

    :param settings: its configuration
    :param assignors: offered in JoinGroup, most preferred first; it rebalances cooperatively if all of them do
    :param embedded: encodes and decodes subscriptions and assignments
    :param host_assigns: as leader, emit `Assigning` and wait for `Distribute` instead of calling the assignor: the host
        may need newer metadata first, or another thread
    :ivar member_id: as the coordinator gave it; empty before that
    :ivar owned_generation: the generation of its last assignment; -1 before the first
    :ivar joined_for: why it sent its last JoinGroup, whether or not its version has the field (KIP-800)
    :ivar assigned_for: the partition counts for which it, as leader, computed the assignment of its generation
    """

    __slots__ = (
        "_all_assignors",
        "_assignors",
        "_embedded",
        "_host_assigns",
        "_is_cooperative",
        "_last_assignment",
        "_next_heartbeat",
        "_partition_counts",
        "_protocol",
        "_racks",
        "_rejoin_for",
        "_releasing",
        "_session_ends",
        "_tickets",
        "_watched",
        "assigned_for",
        "joined_for",
        "owned_generation",
    )
    kinds = (Kind.JOIN, Kind.SYNC, Kind.HEARTBEAT, Kind.LEAVE, *GroupMember.kinds)

    def __init__(
        self,
        settings: events.MemberSettings,
        assignors: Sequence[Assignor],
        embedded: events.EmbeddedProtocol,
        *,
        host_assigns: bool = False,
    ) -> None:
        super().__init__(settings)
        self.owned_generation = -1
        self.joined_for: str | None = None
        self.assigned_for: Mapping[str, int] | None = None
        self._embedded = embedded
        self._host_assigns = host_assigns
        # What the application wants.
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._all_assignors = dict(self._assignors)  # and those offered before: a join under way may still choose one
        self._is_cooperative = _are_cooperative(assignors)
        self._next_heartbeat = NEVER
        self._session_ends = NEVER
        # The rebalance.
        self._rejoin_for: str | None = None  # why the next JoinGroup is due; None if it is not
        self._protocol: str | None = None
        self._tickets = 0
        self._releasing = NONE
        self._last_assignment: Partitions = {}  # an assignor may report it in its user data
        # What a leader watches.
        self._partition_counts: Mapping[str, int] = {}
        self._racks: Racks = {}
        self._watched: set[str] = set()

    # ---- what a host asks

    @property
    def is_at_rest(self) -> bool:
        """Whether it is in a generation with its assignment, and has no reason to rejoin."""
        return self.state is events.MemberState.STABLE and self._rejoin_for is None

    @property
    def ticket(self) -> int:
        """The ticket of the last `Revoking`."""
        return self._tickets

    def state_key(self) -> Hashable:
        """Return what decides the member's further course, times and texts excepted: two members with the same settings
        and key do the same when the same happens to them, if each is given its `Tick` when it has waited for as long as
        it wanted."""
        counts = None if self.assigned_for is None else tuple(sorted(self.assigned_for.items()))
        known = tuple(sorted(self._partition_counts.items())), tuple(sorted(self._watched))
        last = tuple((topic, tuple(numbers)) for topic, numbers in sorted(self._last_assignment.items()))
        return (
            *(self.state, self.member_id, self.generation_id, self.is_leader, self.owned, self.owned_generation),
            *(
                self.topics,
                self._is_stalled,
                self._coordinator_known,
                self._in_flight.kinds(),
                frozenset(self._unfetched),
            ),
            *(tuple(self._assignors), tuple(self._all_assignors), self._rejoin_for is not None, self._protocol),
            *(self._releasing, last, counts, known, self._next_heartbeat == NEVER),
        )

    # ---- what is due

    def _wants_join(self) -> bool:
        return (
            self._rejoin_for is not None
            and self._coordinator_known
            and not self._is_stalled
            and self.state in _MAY_JOIN
        )

    def _wants_heartbeat(self) -> bool:
        return self._coordinator_known and not self._in_flight.has(Kind.HEARTBEAT)

    def _next_deadline(self) -> int:
        when = super()._next_deadline()
        if self.state in _IN_GENERATION:
            when = min(when, self._poll_until)
            if not self._in_flight.has(Kind.SYNC):
                when = min(when, self._session_ends)
            if self._wants_heartbeat():
                when = min(when, self._next_heartbeat)
        return when

    def _proceed(self) -> None:
        super()._proceed()
        if self.state in _IN_GENERATION and self._now >= self._next_heartbeat and self._wants_heartbeat():
            self._next_heartbeat = self._now + self.settings.heartbeat_interval_ms
            request = requests.heartbeat(self.settings, self.generation_id, self.member_id)
            # A parked SyncGroup keeps the member alive, and brokers read nothing behind it: a heartbeat that timed out
            # there would end every rebalance whose leader takes longer than the request timeout.
            timeout_ms = self._sync_timeout_ms if self._in_flight.has(Kind.SYNC) else None
            self._send(Kind.HEARTBEAT, request, self.generation_id, timeout_ms)

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
        try:
            super()._arrived(event)
        except DecodeError as error:  # of the bytes that other members have sent through the coordinator
            self._effects.append(events.Unreadable(self._protocol or "", str(error)))
            self._leave_until_polled("the embedded protocol cannot be read")

    def _unanswered(self, request: requests.Pending) -> None:
        if request.kind is Kind.JOIN or (request.kind is Kind.SYNC and self.state is events.MemberState.SYNCING):
            self._unjoin("the connection was lost while joining")
        else:
            super()._unanswered(request)

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
        super()._lose_owned()
        self._releasing = NONE

    def _begin_join(self) -> None:
        """Revoke what the member may not hold while it joins, then join."""
        revoked = self.owned
        if self._is_cooperative:
            revoked = frozenset(partition for partition in self.owned if partition.topic not in self.topics)
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
        self._releasing = NONE
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
        topics, owned, generation = sorted(self.topics), group_partitions(self.owned), self.owned_generation
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
        elif error in NO_COORDINATOR:
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
        self._send(Kind.SYNC, request, None, self._sync_timeout_ms)

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

    def _synced(self, response: Any, _context: Any) -> None:
        if self.state is not events.MemberState.SYNCING:
            return  # the answer to a heartbeat has arrived first and ended the generation for this member
        error = response.error_code
        if error == ErrorCode.NONE:
            self._take_assignment(self._embedded.decode_assignment(response.assignment))
        elif error == ErrorCode.REBALANCE_IN_PROGRESS:
            self._unjoin("a rebalance began during SyncGroup")
        elif error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self._reset("SyncGroup was refused", keep_id=error == ErrorCode.ILLEGAL_GENERATION)
            self._back_off()
        elif error in NO_COORDINATOR:
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
        if error in NO_COORDINATOR:
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

    def _why_not_commit(self) -> ErrorCode | None:
        if self.state not in (events.MemberState.STABLE, events.MemberState.REVOKING):
            return ErrorCode.REBALANCE_IN_PROGRESS
        return super()._why_not_commit()

    # ---- what the application wants

    def _subscribe(self, event: events.Subscribe) -> None:
        if self._takes_topics(event.topics):
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

    def _leave_until_polled(self, reason: str) -> None:
        """Leave the group; rejoin when the application polls again."""
        self._poll_until = NEVER
        self._send_leave(reason)
        self._reset("", keep_id=False)
        self._rejoin_for = None

    def _polled(self, event: events.Polled) -> None:
        super()._polled(event)
        if self.state is events.MemberState.UNJOINED and self._rejoin_for is None and not self.member_id:
            self._rejoin_for = "the application polls again"

    def _leave(self, event: events.Leave) -> None:
        self._send_leave(event.reason)
        self._releasing = NONE
        self.generation_id = -1
        super()._leave(event)

    def _send_leave(self, reason: str | None) -> None:
        """Send LeaveGroup, unless the member is static: it comes back, or its session ends (KIP-345)."""
        if self.member_id and self._coordinator_known and not is_static(self.settings):
            self._send(Kind.LEAVE, requests.leave(self.settings, self.member_id, reason))

    def _left(self, _response: Any, _context: Any) -> None:
        """Ignore the answer to LeaveGroup: the member no longer depends on it."""

    _handlers = {  # noqa: RUF012
        **GroupMember._handlers,
        events.Arrived: _arrived,
        Tick: _tick,
        events.TopicsKnown: _topics_known,
        events.Distribute: _distribute,
        events.Subscribe: _subscribe,
        events.Offer: _offer,
        events.Released: _released,
        events.Rejoin: _enforce_rebalance,
        events.Polled: _polled,
        events.Leave: _leave,
    }
    _answers = {  # noqa: RUF012
        **GroupMember._answers,
        Kind.JOIN: _joined,
        Kind.SYNC: _synced,
        Kind.HEARTBEAT: _heartbeat_answered,
        Kind.LEAVE: _left,
    }


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
