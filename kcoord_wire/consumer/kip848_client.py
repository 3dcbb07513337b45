"""A member of KIP-848 as an application has it: what `kip848_member` leaves to others.

`ServerAssignedMember` finds the coordinator, commits and asks for committed offsets as every `GroupClient` does, knows
the names of topics and heeds polls; its heartbeats, and what it owns, are those of a `ConsumerGroupMember`.

Laws, besides those of `group_client` and `kip848_member`:

* It joins when the application polls, and leaves when it has not polled for ``max.poll.interval.ms``, until it does.
* `owned` has the partitions that the application was given and has not given up. A partition whose topic has no name
  yet is owned for the coordinator, and given when `TopicsKnown` has the name.
* After each reconciliation there is an `Assigned`, with no partitions if none are new.
* A commit that was refused for a stale epoch is sent again if a newer one is known.
* A heartbeat that cannot be sent has not arrived: the next one says everything.

Source: KIP-848; Kafka's `AbstractMembershipManager.java`, `AbstractHeartbeatRequestManager.java`,
`CommitRequestManager.java`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.consumer import kip848_member as kip848
from kcoord_wire.consumer import member_events as events
from kcoord_wire.consumer import requests
from kcoord_wire.consumer.group_client import NONE, GroupMember, named
from kcoord_wire.consumer.kip848_member import ConsumerGroupMember, Partition
from kcoord_wire.consumer.requests import NEVER, Kind
from kcoord_wire.kernel.machines import Close, Disconnected, Tick
from kcoord_wire.protocol.error_codes import ErrorCode

_STATES: Final = {
    kip848.State.JOINING: events.MemberState.JOINING,
    kip848.State.STABLE: events.MemberState.STABLE,
    kip848.State.RECONCILING: events.MemberState.REVOKING,
    kip848.State.ACKNOWLEDGING: events.MemberState.STABLE,
    kip848.State.LEAVING: events.MemberState.UNJOINED,
    kip848.State.LEFT: events.MemberState.UNJOINED,
}
_BEATS_ON: Final = (
    *(ErrorCode.NONE, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND),
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,  # the metadata says of which topic
)
"""What a heartbeat may be answered with, besides what passes by itself; anything else is the end, as in Java."""


class _Releasing(NamedTuple):
    """What the application is to give up.

    :ivar ticket: of this machine
    :ivar inner: of its `ConsumerGroupMember`
    """

    ticket: int
    inner: int
    partitions: frozenset[TopicPartition]


class ServerAssignedMember(GroupMember):
    """One member whose coordinator assigns.

    :param settings: its configuration
    :param member_id: never used by another member
    :param assignor: the coordinator's assignor that it asks for; None leaves the choice to the coordinator
    """

    __slots__ = (
        "_assignor",
        "_is_closing",
        "_member",
        "_nameless",
        "_names",
        "_releasing",
        "_tickets",
    )
    kinds = (Kind.BEAT, *GroupMember.kinds)

    def __init__(self, settings: events.MemberSettings, member_id: str, assignor: str | None = None) -> None:
        super().__init__(settings)
        self.member_id = member_id
        self._assignor = assignor
        self._member: ConsumerGroupMember | None = None  # None outside the group
        self._is_closing = False
        self._names: dict[uuid.UUID, str] = {}
        self._nameless: frozenset[Partition] = frozenset()  # owned, and not yet given to the application
        self._releasing: _Releasing | None = None
        self._tickets = 0

    # ---- what is due

    def _next_deadline(self) -> int:
        when = super()._next_deadline()
        if self._member is not None:
            when = min(when, self._poll_until)
            beat_at = self._member.deadline
            if self._coordinator_known and beat_at is not None:
                when = min(when, beat_at)
        return when

    def _wants_join(self) -> bool:
        return self._member is None and self._coordinator_known and not self._is_stalled

    def _begin_join(self) -> None:
        settings = self.settings
        self._member = ConsumerGroupMember(
            kip848.MemberSettings(
                group_id=settings.group_id,
                client_id=settings.client_id,
                member_id=self.member_id,
                instance_id=settings.group_instance_id,
                rack=settings.rack,
                assignor=self._assignor,
                rebalance_timeout_ms=settings.rebalance_timeout_ms,
                request_timeout_ms=settings.request_timeout_ms,
                retry_ms=settings.retry_backoff_ms,
            )
        )
        self._run(kip848.Subscribe(self.topics))

    def _proceed(self) -> None:
        super()._proceed()
        if self._coordinator_known and self._member is not None:
            beat_at = self._member.deadline
            if beat_at is not None and beat_at <= self._now:
                self._run(Tick())

    def _tick(self, event: Tick) -> None:
        super()._tick(event)
        if self._member is not None and self._poll_until <= self._now:
            self._poll_until = NEVER
            self._effects.append(events.PollExpired())
            self._run(kip848.Leave(for_a_while=True))

    # ---- the member

    def _run(self, event: kip848.Event) -> None:
        """Give the member an event, and carry out its effects."""
        member = self._member
        assert member is not None  # the caller has looked
        target, state = member.target, member.state
        effects = member.handle(event, self._now)
        self.generation_id = max(member.epoch, 0) or -1
        if not member.is_over:
            self.state = _STATES[member.state]
        for effect in effects:
            self._carry_out(effect)
        has_news = member.target != target or state is kip848.State.RECONCILING
        is_through = member.state in (kip848.State.STABLE, kip848.State.ACKNOWLEDGING)
        if has_news and is_through and not any(isinstance(each, kip848.Assigned | kip848.Revoking) for each in effects):
            self._effects.append(events.Assigned(self.generation_id, NONE))

    def _carry_out(self, effect: kip848.Effect) -> None:
        match effect:
            case events.SendRequest() if self._coordinator_known:
                self._send(Kind.BEAT, effect.message, effect.request_id)
            case events.SendRequest():
                self._run(Disconnected())
            case Close():
                self._lose_coordinator()
            case kip848.Assigned():
                self._give(effect.partitions)
            case kip848.Revoking():
                self._take_away(effect.ticket, effect.partitions)
            case kip848.Lost():
                self._lose_owned()
            case kip848.Left():
                self._has_left()
            case kip848.Failed():
                self._fail(effect.error)
            case _:
                raise AssertionError(effect)  # of commits, which it is not given

    def _unanswered(self, request: requests.Pending) -> None:
        if request.kind is not Kind.BEAT:
            super()._unanswered(request)
        elif self._member is not None:
            self._run(Disconnected())

    def _beat_answered(self, response: Any, request_id: int) -> None:
        error = named(response.error_code)
        is_leaving = self._member is None or self._member.state is kip848.State.LEAVING
        if not is_leaving and error not in _BEATS_ON and not error.retriable:
            self._fail(error)
        elif self._member is not None:
            self._run(events.Arrived(request_id, response))
            if error is ErrorCode.COORDINATOR_NOT_AVAILABLE:
                self._lose_coordinator()

    def _has_left(self) -> None:
        self._member = None
        if self._is_closing:
            super()._leave(events.Leave())

    def _lose_owned(self) -> None:
        super()._lose_owned()
        self._nameless = frozenset()
        self._releasing = None

    # ---- partitions

    def _named(self, partitions: Iterable[Partition]) -> frozenset[TopicPartition]:
        return frozenset(TopicPartition(self._names[each.topic_id], each.number) for each in partitions)

    def _give(self, partitions: frozenset[Partition]) -> None:
        """Give partitions to the application; those without a name later."""
        nameless = frozenset(each for each in partitions if each.topic_id not in self._names)
        if nameless:
            self._nameless |= nameless
            self._effects.append(events.MetadataWanted())
        new = self._named(partitions - nameless)
        self.owned |= new
        self._unfetched |= new
        self._effects.append(events.Assigned(self.generation_id, new))

    def _take_away(self, inner: int, partitions: frozenset[Partition]) -> None:
        given = self._named(partitions - self._nameless)
        self._nameless -= partitions
        self._tickets += 1
        self._releasing = _Releasing(self._tickets, inner, given)
        if given:
            self._effects.append(events.Revoking(self._tickets, given))
        else:
            self._released(events.Released(self._tickets, {}))

    def _released(self, event: events.Released) -> None:
        releasing = self._releasing
        if releasing is None or event.ticket != releasing.ticket:
            return  # the partitions were lost in the meantime
        if event.offsets:
            self._commit(event.offsets)
        self._releasing = None
        self.owned -= releasing.partitions
        self._unfetched -= releasing.partitions
        self._run(kip848.Released(releasing.inner))

    def _topics_known(self, event: events.TopicsKnown) -> None:
        self._names.update((topic_id, name) for name, topic_id in event.ids.items())
        nameless, self._nameless = self._nameless, frozenset()
        if nameless:
            self._give(nameless)

    # ---- offsets

    def _why_not_commit(self) -> ErrorCode | None:
        return ErrorCode.REBALANCE_IN_PROGRESS if self.generation_id < 0 else super()._why_not_commit()

    def _commit_refused(self, left: events.Offsets, error: int, generation_id: int, number: int) -> None:
        if error == ErrorCode.STALE_MEMBER_EPOCH and self.generation_id > generation_id:
            self._commit(left, number)
        else:
            super()._commit_refused(left, error, generation_id, number)

    def _fetches_as(self) -> tuple[str | None, int]:
        return (self.member_id, self.generation_id) if self.generation_id > 0 else (None, -1)

    # ---- what the application wants

    def _subscribe(self, event: events.Subscribe) -> None:
        if self._takes_topics(event.topics) and self._member is not None:
            self._run(kip848.Subscribe(self.topics))

    def _leave(self, event: events.Leave) -> None:
        """Leave; a static member for a while, as in Java. The end comes when that is answered."""
        self.owned = self._unfetched = NONE  # the application has given them up
        self._is_closing = True
        if self._member is None:
            super()._leave(event)
        elif self._member.state is not kip848.State.LEAVING:
            self._run(kip848.Leave(for_a_while=True))

    _handlers = {  # noqa: RUF012
        **GroupMember._handlers,
        Tick: _tick,
        events.TopicsKnown: _topics_known,
        events.Subscribe: _subscribe,
        events.Released: _released,
        events.Leave: _leave,
    }
    _answers = {**GroupMember._answers, Kind.BEAT: _beat_answered}  # noqa: RUF012
