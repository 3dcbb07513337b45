"""What every consumer does at its group's coordinator: find it, commit offsets, ask for committed ones.

`GroupClient` is a `machines.Machine`. As it is, it is no member: it serves an application that assigns partitions
itself, and commits in no generation. A `GroupMember` subscribes, and heeds polls: `classic_member.MemberMachine`,
`kip848_client.ServerAssignedMember`.

Laws:

* ``now`` is milliseconds and never decreases from one call to the next.
* Requests are numbered 1, 2, 3 ... An answer is accepted once, and only while the connection lasts on which its request
  was sent: `Close` and `Disconnected` end everything in flight.
* A commit that cannot be sent, or whose answer is lost, is refused at once: nothing waits here for a coordinator.
* The committed offsets of assigned partitions are asked for until they are known, or refused for good.

Source: kafka/clients `AbstractCoordinator.java`, `ConsumerCoordinator.java`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Self

from kcoord_wire import messages as m
from kcoord_wire.assignors import TopicPartition
from kcoord_wire.consumer import member_events as events
from kcoord_wire.consumer import requests
from kcoord_wire.consumer.requests import NEVER, InFlight, Kind
from kcoord_wire.kernel.machines import Close, Disconnected, Tick
from kcoord_wire.protocol.error_codes import ErrorCode

NO_COORDINATOR: Final = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)
NONE: Final[frozenset[TopicPartition]] = frozenset()
OVER: Final = (events.MemberState.LEFT, events.MemberState.FAILED)
_FETCH_AGAIN: Final = (
    ErrorCode.NONE,  # the answer leaves the partition out
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.STALE_MEMBER_EPOCH,  # a heartbeat brings the newer one
)


class GroupClient:
    """One consumer at its coordinator.

    :param settings: its configuration
    :cvar kinds: the requests that its coordinator has to understand
    :ivar settings: as given
    :ivar state: see `MemberState`; a client that is no member is STABLE until its end
    :ivar member_id: empty for none
    :ivar generation_id: what commits carry; -1 outside any generation
    :ivar is_leader: whether it computed the assignment of its generation, which only classic members do
    :ivar owned: the partitions that it holds
    """

    __slots__ = (
        "_coordinator_known",
        "_effects",
        "_failures",
        "_fetches_with_poll",
        "_in_flight",
        "_now",
        "_retry_at",
        "_unfetched",
        "generation_id",
        "is_leader",
        "member_id",
        "owned",
        "settings",
        "state",
    )
    kinds: ClassVar[tuple[Kind, ...]] = (Kind.COMMIT, Kind.FETCH)

    def __init__(self, settings: events.MemberSettings) -> None:
        self.settings = settings
        self.state = events.MemberState.STABLE
        self.member_id = ""
        self.generation_id = -1
        self.is_leader = False
        self.owned = NONE
        self._now = 0
        self._effects: list[events.MemberEffect] = []
        self._coordinator_known = False
        self._in_flight = InFlight()
        self._retry_at = 0
        self._failures = 0  # since the last successful FindCoordinator
        self._unfetched = NONE
        self._fetches_with_poll = False  # the last OffsetFetch was refused: the application polls before the next

    # ---- what a host asks

    @property
    def deadline(self) -> int | None:
        """When the next `Tick` is wanted, in ms; None for never."""
        when = self._next_deadline() if self._is_active() else NEVER
        return None if when == NEVER else when

    @property
    def is_waiting(self) -> bool:
        """Whether a request waits for its answer."""
        return bool(self._in_flight)

    def waits_for(self, request_id: int) -> bool:
        """Whether the answer to this request would still be accepted."""
        return request_id in self._in_flight

    @property
    def has_offsets(self) -> bool:
        """Whether the committed offsets of all its partitions are known."""
        return not self._unfetched

    def copied(self) -> Self:
        """Return a client in the same state, which goes on by itself."""
        copied = copy.copy(self)
        copied._in_flight = copy.deepcopy(self._in_flight)
        return copied

    def handle(self, event: events.MemberEvent, now: int) -> list[events.MemberEffect]:
        """Take in one event, do what is due, and return the effects; see `machines.Machine`."""
        self._now = now
        effects: list[events.MemberEffect] = []
        self._effects = effects
        if self.state not in OVER:
            handler = self._handlers.get(type(event))
            if handler is not None:
                handler(self, event)
            if self._is_active():
                self._proceed()
        return effects

    # ---- what is due

    def _is_active(self) -> bool:
        return self.state not in OVER

    def _next_deadline(self) -> int:
        when = self._in_flight.deadline
        if self._wants_coordinator() or self._wants_join() or self._wants_offsets():
            when = min(when, self._retry_at)
        return when

    def _wants_join(self) -> bool:
        return False

    def _wants_coordinator(self) -> bool:
        return not self._coordinator_known and not self._in_flight.has(Kind.FIND)

    def _wants_offsets(self) -> bool:
        return (
            bool(self._unfetched)
            and self._coordinator_known
            and not self._fetches_with_poll
            and not self._in_flight.has(Kind.FETCH)
        )

    def _proceed(self) -> None:
        """Send what is due."""
        if self._now < self._retry_at:
            return
        if self._wants_coordinator():
            self._send(Kind.FIND, requests.find_coordinator(self.settings))
        if self._wants_join():
            self._begin_join()
        if self._wants_offsets():
            self._fetch(self._unfetched, 0)

    def _begin_join(self) -> None:
        """Join the group, which only members want."""

    def _send(self, kind: Kind, message: Any, context: Any = None, timeout_ms: int | None = None) -> None:
        wait = self.settings.request_timeout_ms if timeout_ms is None else timeout_ms
        request_id = self._in_flight.add(kind, context, self._now + wait)
        self._effects.append(events.SendRequest(request_id, message, getattr(self.settings.versions, kind.value)))

    def _tick(self, _event: Tick) -> None:
        if self._in_flight.deadline <= self._now:
            self._lose_coordinator()

    # ---- the connection and the coordinator

    def _arrived(self, event: events.Arrived) -> None:
        pending = self._in_flight.pop(event.request_id)
        if pending is not None:
            self._answers[pending.kind](self, event.message, pending.context)

    def _disconnected(self, _event: Disconnected) -> None:
        self._lose_connection()

    def _lose_connection(self) -> None:
        self._coordinator_known = False
        self._back_off()
        for request in self._in_flight.take_all():
            self._unanswered(request)

    def _unanswered(self, request: requests.Pending) -> None:
        """The connection has ended on which this request waited."""
        if request.kind is Kind.COMMIT:
            _, offsets, number = request.context
            self._effects.append(events.NotCommitted(offsets, ErrorCode.NETWORK_EXCEPTION, number))
        elif request.kind is Kind.FETCH:
            asked, number = request.context
            self._refuse(asked, ErrorCode.NETWORK_EXCEPTION, number)

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

    def _lose_owned(self) -> None:
        if self.owned:
            self._effects.append(events.Lost(self.owned))
        self.owned = self._unfetched = NONE

    def _fail(self, error: int) -> None:
        self._lose_owned()
        self.state = events.MemberState.FAILED
        self.generation_id = -1
        self._effects.append(events.Failed(named(error)))

    def _react(self, error: int, generation_id: int, request: str) -> None:
        """React to an error about the client's place in the group.

        :param generation_id: of the request that was answered so
        :param request: its name
        """
        if error in NO_COORDINATOR:
            self._lose_coordinator()

    # ---- offsets

    def _why_not_commit(self) -> ErrorCode | None:
        """Return why a commit is refused here; None if it can be sent."""
        return None if self._coordinator_known else ErrorCode.COORDINATOR_NOT_AVAILABLE

    def _commit_wanted(self, event: events.Commit) -> None:
        self._commit(event.offsets, event.number)

    def _commit(self, offsets: events.Offsets, number: int = 0) -> None:
        refusal = self._why_not_commit()
        if refusal is not None:
            self._effects.append(events.NotCommitted(offsets, refusal, number))
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
        self._commit_refused(left, error, generation_id, number)

    def _commit_refused(self, left: events.Offsets, error: int, generation_id: int, number: int) -> None:
        self._effects.append(events.NotCommitted(left, named(error), number))
        if error == ErrorCode.REQUEST_TIMED_OUT:  # of the coordinator's replication: another may lead by now
            self._lose_coordinator()
        else:
            self._react(error, generation_id, "OffsetCommit")

    def _committed_wanted(self, event: events.AskCommitted) -> None:
        if self._coordinator_known:
            self._fetch(event.partitions, event.number)
        else:
            self._refuse(event.partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE, event.number)

    def _refuse(self, asked: frozenset[TopicPartition], error: ErrorCode, number: int) -> None:
        if number:
            self._effects.append(events.CommittedKnown({}, dict.fromkeys(sorted(asked), error), number))

    def _fetch(self, partitions: frozenset[TopicPartition], number: int) -> None:
        """Ask for committed offsets.

        :param number: of the application's question; 0 for the partitions that it holds
        """
        request = requests.fetch_offsets(self.settings, partitions, self._fetches_as())
        self._send(Kind.FETCH, request, (partitions, number))

    def _fetches_as(self) -> tuple[str | None, int]:
        """Return member id and epoch for OffsetFetch, which only members of KIP-848 have."""
        return None, -1

    def _fetched(self, response: m.OffsetFetchResponse, context: tuple[frozenset[TopicPartition], int]) -> None:
        asked, number = context
        if not number:
            asked &= self._unfetched
        error, offsets, refused = requests.fetched_offsets(self.settings, response, asked)
        if number:
            by_name = {key: named(each) for key, each in refused.items()}
            self._effects.append(events.CommittedKnown(offsets, by_name, number))
        elif offsets:
            self._unfetched -= offsets.keys()
            self._effects.append(events.Fetched({key: each.offset for key, each in offsets.items()}))
        self._react_to_fetch({error, *refused.values()}, {} if number else refused)

    def _react_to_fetch(self, errors: set[int], refused: Mapping[TopicPartition, int]) -> None:
        """React to the errors of OffsetFetch, which have refused the offsets of these partitions of its own."""
        lasting = {key: named(error) for key, error in refused.items() if error not in _FETCH_AGAIN}
        if errors.intersection(NO_COORDINATOR):
            self._lose_coordinator()
        elif ErrorCode.GROUP_AUTHORIZATION_FAILED in errors:
            self._fail(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        elif lasting:
            self._fetches_with_poll = True
            self._effects.append(events.NotFetched(lasting))
        elif refused:
            self._back_off()  # the errors pass, or the answer leaves some out

    # ---- what the application wants

    def _assign_itself(self, event: events.Assign) -> None:
        self._unfetched = (self._unfetched & event.partitions) | (event.partitions - self.owned)
        self.owned = event.partitions

    def _polled(self, _event: events.Polled) -> None:
        self._fetches_with_poll = False

    def _leave(self, _event: events.Leave) -> None:
        self.owned = self._unfetched = NONE
        self.state = events.MemberState.LEFT
        self._effects.append(events.Left())

    _handlers: ClassVar[Mapping[type, Callable[[Any, Any], None]]] = {
        events.Arrived: _arrived,
        Disconnected: _disconnected,
        Tick: _tick,
        events.Commit: _commit_wanted,
        events.AskCommitted: _committed_wanted,
        events.Assign: _assign_itself,
        events.Polled: _polled,
        events.Leave: _leave,
    }
    _answers: ClassVar[Mapping[Kind, Callable[[Any, Any, Any], None]]] = {
        Kind.FIND: _found,
        Kind.COMMIT: _commit_answered,
        Kind.FETCH: _fetched,
    }


class GroupMember(GroupClient):
    """A client that becomes a member of the group when its application has subscribed and polls.

    :ivar topics: the subscription
    """

    __slots__ = ("_is_stalled", "_is_subscribed", "_poll_until", "topics")

    def __init__(self, settings: events.MemberSettings) -> None:
        super().__init__(settings)
        self.state = events.MemberState.UNJOINED
        self.topics: tuple[str, ...] = ()
        self._is_subscribed = False  # it is with a pattern that matches nothing, too
        self._is_stalled = False
        self._poll_until = NEVER

    def _is_active(self) -> bool:
        return self._is_subscribed and super()._is_active()

    def _takes_topics(self, topics: Sequence[str]) -> bool:
        """Subscribe to these topics; return whether that is a change."""
        is_new = not self._is_subscribed or self.topics != tuple(topics)
        self._is_subscribed = True
        self.topics = tuple(topics)
        return is_new

    def _stall(self, _event: events.Stalled) -> None:
        self._is_stalled = True
        self._poll_until = self._now + self.settings.rebalance_timeout_ms

    def _polled(self, event: events.Polled) -> None:
        super()._polled(event)
        self._is_stalled = False
        self._poll_until = NEVER

    _handlers = {**GroupClient._handlers, events.Stalled: _stall, events.Polled: _polled}  # noqa: RUF012


def named(error: int) -> ErrorCode:
    """Return the error of this number; UNKNOWN_SERVER_ERROR for one that is newer than `ErrorCode`."""
    try:
        return ErrorCode(error)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
