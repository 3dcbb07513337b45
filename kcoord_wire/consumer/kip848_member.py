"""A member of KIP-848 as a pure state machine: what a client sends, owns and gives up.

    JOINING        sends epoch 0 until it is answered
    STABLE         owns what it was given
    RECONCILING    waits until its application has given partitions up
    ACKNOWLEDGING  has not yet reported what it owns
    LEAVING        sends epoch -1, or -2 as a static member that will return
    LEFT, FAILED   the end; it failed where only an operator can help (FENCED_INSTANCE_ID)

Laws:

* It owns a partition from the moment at which it was given, and its application had given up all that goes, until its
  application has given it up. It reports what it owns whenever that has changed.
* One heartbeat is in flight at a time. After an error, a timeout or a lost connection the next one is complete.
* A member that is fenced or unknown loses all partitions at once, and joins again.
* The state is a value: two members with equal `state_key` behave alike from then on.

It knows no names of topics, fetches nothing, and takes its coordinator for known: `kip848_client` adds that for the
consumer; in the simulation it runs alone.

Source: KIP-848 "Client State Machine"; Kafka's `AbstractMembershipManager.java`,
`ConsumerHeartbeatRequestManager.java`.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kcoord_wire import messages as m
from kcoord_wire.consumer.member_events import Arrived, SendRequest
from kcoord_wire.consumer.requests import commit_of
from kcoord_wire.kernel.machines import Close, Disconnected, Tick
from kcoord_wire.protocol.error_codes import ErrorCode

_HEARTBEAT_VERSION: Final = 1
_COMMIT_VERSION: Final = 9
_JOINING: Final = 0
_LEAVING: Final = -1
_AWAY: Final = -2
_LOSES_ALL: Final = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND)


class Partition(NamedTuple):
    """A partition by the id of its topic."""

    topic_id: uuid.UUID
    number: int

    def __repr__(self) -> str:
        return f"{str(self.topic_id)[:4]}-{self.number}"


class State(enum.StrEnum):
    """How far a member is."""

    JOINING = "joining"
    STABLE = "stable"
    RECONCILING = "reconciling"
    ACKNOWLEDGING = "acknowledging"
    LEAVING = "leaving"
    LEFT = "left"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """How a member is set up. Times are in ms.

    :ivar member_id: chosen by itself, and never used again by another process
    :ivar instance_id: of a static member; None for a dynamic one
    :ivar rack: ``client.rack``
    :ivar assignor: the server assignor that it asks for; None leaves the choice to the coordinator
    :ivar rebalance_timeout_ms: what it may take to give partitions up
    :ivar request_timeout_ms: after which a heartbeat that is not answered is sent again
    :ivar retry_ms: how long it waits after an error
    """

    group_id: str
    client_id: str
    member_id: str
    instance_id: str | None = None
    rack: str | None = None
    assignor: str | None = None
    rebalance_timeout_ms: int = 60_000
    request_timeout_ms: int = 5_000
    retry_ms: int = 100


# ---- events, besides Arrived, Disconnected and Tick


@dataclass(slots=True)
class Subscribe:
    """The application subscribes to these topics, and to those that match a regular expression; empty for none."""

    topics: Sequence[str]
    regex: str = ""


@dataclass(slots=True)
class Released:
    """The application has given up what `Revoking` with this ticket names."""

    ticket: int


@dataclass(slots=True)
class Leave:
    """The application closes the member; with `for_a_while` a static member will return."""

    for_a_while: bool = False


@dataclass(slots=True)
class Commit:
    """The application commits offsets, by topic name and partition."""

    offsets: Mapping[tuple[str, int], int]


Event = Subscribe | Released | Leave | Commit | Arrived | Disconnected | Tick


# ---- effects, besides SendRequest


@dataclass(slots=True)
class Assigned:
    """These partitions are the member's from now on."""

    partitions: frozenset[Partition]


@dataclass(slots=True)
class Revoking:
    """The application is to give these partitions up, and to say so with `Released`."""

    ticket: int
    partitions: frozenset[Partition]


@dataclass(slots=True)
class Lost:
    """These partitions may be another member's already."""

    partitions: frozenset[Partition]


@dataclass(slots=True)
class Committed:
    """A commit was acknowledged."""


@dataclass(slots=True)
class NotCommitted:
    """A commit was refused, or its answer is lost."""

    error: int


@dataclass(slots=True)
class Left:
    """The member has left."""


@dataclass(slots=True)
class Failed:
    """The member cannot go on."""

    error: int


Effect = SendRequest | Close | Assigned | Revoking | Lost | Committed | NotCommitted | Left | Failed


@dataclass(slots=True)
class _Pending:
    """The heartbeat in flight."""

    request_id: int
    until: int


class ConsumerGroupMember:
    """One member; see the module.

    :ivar settings: as given
    :ivar state: see `State`
    :ivar epoch: the member epoch of the last answer; 0 while it joins
    :ivar owned: what it may use
    :ivar target: what it was given last; None before
    :ivar topics: what it subscribes to by name
    :ivar regex: what it subscribes to by pattern; empty for none
    """

    __slots__ = (
        "_changes",
        "_effects",
        "_interval_ms",
        "_is_complete",
        "_next_at",
        "_pending",
        "_reported",
        "_requests",
        "_revoking",
        "_ticket",
        "epoch",
        "owned",
        "regex",
        "settings",
        "state",
        "target",
        "topics",
    )

    def __init__(self, settings: MemberSettings) -> None:
        self.settings = settings
        self.state = State.JOINING
        self.epoch = _JOINING
        self.owned: frozenset[Partition] = frozenset()
        self.target: frozenset[Partition] | None = None
        self.topics: tuple[str, ...] = ()
        self.regex = ""
        self._effects: list[Effect] = []
        self._interval_ms = 0
        self._is_complete = True  # whether the next heartbeat says everything
        self._changes: frozenset[str] = frozenset()  # fields that the next heartbeat says besides
        self._next_at: int | None = None
        self._pending: _Pending | None = None
        self._reported: frozenset[Partition] = frozenset()
        self._requests = 0
        self._revoking: frozenset[Partition] = frozenset()
        self._ticket = 0

    @property
    def deadline(self) -> int | None:
        """When it wants the next `Tick`, in ms; None for never."""
        if self.is_over:
            return None
        return self._next_at if self._pending is None else self._pending.until

    @property
    def is_over(self) -> bool:
        """Whether it has left or failed."""
        return self.state in (State.LEFT, State.FAILED)

    @property
    def is_at_rest(self) -> bool:
        """Whether it owns what it was given, and has reported that."""
        return self.state is State.STABLE and self.owned == self.target == self._reported

    @property
    def member_id(self) -> str:
        """Its id, which it has chosen."""
        return self.settings.member_id

    @property
    def waits_for(self) -> int | None:
        """The number of the heartbeat in flight; None if there is none."""
        return None if self._pending is None else self._pending.request_id

    @property
    def ticket(self) -> int:
        """The ticket of the last `Revoking`."""
        return self._ticket

    def state_key(self) -> Hashable:
        """Return what decides the member's further course, times excepted: two members with the same key do the same
        when the same happens to them, if each is given its `Tick` when it has waited for as long as it wanted."""
        return (
            *(self.settings.member_id, self.state, self.epoch, self.owned, self.target, self.topics, self.regex),
            *(self._changes, self._is_complete, self._reported, self._revoking, self._pending is None),
            self._next_at is None,
        )

    def handle(self, event: Event, now: int) -> list[Effect]:
        """Take in one event and return the effects that the host carries out.

        :param now: ms; never decreases from one call to the next
        """
        self._effects = []
        if not self.is_over:
            if isinstance(event, Arrived):
                self._arrived(event, now)
            elif isinstance(event, Released):
                self._released(event, now)
            elif isinstance(event, Subscribe):
                self._subscribe(event, now)
            elif isinstance(event, Leave):
                self._leave(event, now)
            elif isinstance(event, Commit):
                self._commit(event)
            elif isinstance(event, Disconnected):
                self._unanswered(now)
            self._send_if_due(now)
        return self._effects

    # ---- what the application does

    def _subscribe(self, event: Subscribe, now: int) -> None:
        if tuple(event.topics) != self.topics:
            self.topics = tuple(event.topics)
            self._changes |= {"subscribed_topic_names"}
        if event.regex != self.regex:
            self.regex = event.regex
            self._changes |= {"subscribed_topic_regex"}
        self._next_at = now

    def _leave(self, event: Leave, now: int) -> None:
        self._lose_all()
        self.epoch = _AWAY if event.for_a_while and self.settings.instance_id is not None else _LEAVING
        self.state = State.LEAVING
        self._next_at = now

    def _released(self, event: Released, now: int) -> None:
        if event.ticket != self._ticket or self.state is not State.RECONCILING:
            return  # lost in the meantime
        self.owned -= self._revoking
        self._revoking = frozenset()
        self._reconcile(now)

    def _commit(self, event: Commit) -> None:
        known = self.settings
        request = commit_of(
            known.group_id, self.epoch, known.member_id, known.instance_id, event.offsets.items(), has_epochs=True
        )
        self._requests += 1
        self._effects.append(SendRequest(self._requests, request, _COMMIT_VERSION))

    # ---- heartbeats

    def _send_if_due(self, now: int) -> None:
        if self.is_over:
            return
        if self._pending is not None and self._pending.until <= now:
            self._unanswered(now)
        if self._pending is not None or self._next_at is None or self._next_at > now:
            return
        self._requests += 1
        self._pending = _Pending(self._requests, now + self.settings.request_timeout_ms)
        self._effects.append(SendRequest(self._requests, self._heartbeat(), _HEARTBEAT_VERSION))
        self._next_at = None
        if self.state is State.ACKNOWLEDGING:
            self.state = State.STABLE

    def _heartbeat(self) -> m.ConsumerGroupHeartbeatRequest:
        settings = self.settings
        request = m.ConsumerGroupHeartbeatRequest(
            group_id=settings.group_id,
            member_id=settings.member_id,
            member_epoch=self.epoch,
            instance_id=settings.instance_id,
        )
        if self.state is State.LEAVING:
            return request
        is_complete = self._is_complete or self.epoch == _JOINING
        if is_complete:
            request.rebalance_timeout_ms = settings.rebalance_timeout_ms
            request.server_assignor = settings.assignor
            request.rack_id = settings.rack
        if is_complete or "subscribed_topic_names" in self._changes:
            request.subscribed_topic_names = list(self.topics)
        if self.regex if is_complete else "subscribed_topic_regex" in self._changes:
            request.subscribed_topic_regex = self.regex
        if is_complete or self.owned != self._reported:
            request.topic_partitions = _by_topic(self.owned)
            self._reported = self.owned
        self._is_complete = False
        self._changes = frozenset()
        return request

    def _unanswered(self, now: int) -> None:
        """The heartbeat in flight, if there is one, may or may not have arrived."""
        if self._pending is None:
            return
        self._pending = None
        if self.state is State.LEAVING:
            self._answered_or_lost_while_leaving()
        else:
            self._is_complete = True
            self._next_at = now + self.settings.retry_ms

    def _arrived(self, event: Arrived, now: int) -> None:
        answer = event.message
        if isinstance(answer, m.OffsetCommitResponse):
            error = next((each.error_code for topic in answer.topics for each in topic.partitions), 0)
            self._effects.append(NotCommitted(error) if error else Committed())
        elif self._pending is not None and event.request_id == self._pending.request_id:
            self._pending = None
            if self.state is State.LEAVING:
                self._answered_or_lost_while_leaving()
            elif answer.error_code == ErrorCode.NONE:
                self._succeeded(answer, now)
            else:
                self._refused(answer.error_code, now)

    def _succeeded(self, answer: m.ConsumerGroupHeartbeatResponse, now: int) -> None:
        if self.state is State.JOINING:
            self.state = State.STABLE
        self.epoch = answer.member_epoch
        self._interval_ms = answer.heartbeat_interval_ms
        due = now + self._interval_ms
        self._next_at = due if self._next_at is None else min(self._next_at, due)
        if answer.assignment is not None:
            self.target = frozenset(
                Partition(part.topic_id, number)
                for part in answer.assignment.topic_partitions
                for number in part.partitions
            )
            if self.state is not State.RECONCILING:
                self._reconcile(now)

    def _refused(self, error: int, now: int) -> None:
        self._is_complete = True
        if error in _LOSES_ALL:
            self._lose_all()
            self.epoch = _JOINING
            self.state = State.JOINING
        elif error == ErrorCode.FENCED_INSTANCE_ID:
            self._lose_all()
            self.state = State.FAILED
            self._effects.append(Failed(error))
        elif error == ErrorCode.NOT_COORDINATOR:
            self._effects.append(Close())  # the next connection leads to the broker that is
        self._next_at = now + self.settings.retry_ms

    # ---- partitions

    def _reconcile(self, now: int) -> None:
        target = frozenset() if self.target is None else self.target
        excess = self.owned - target
        if excess:
            self.state = State.RECONCILING
            self._revoking = excess
            self._ticket += 1
            self._effects.append(Revoking(self._ticket, excess))
            return
        new = target - self.owned
        self.owned = target
        if new:
            self._effects.append(Assigned(new))
        if self.owned == self._reported:
            self.state = State.STABLE
        else:
            self.state = State.ACKNOWLEDGING
            self._next_at = now

    def _lose_all(self) -> None:
        if self.owned:
            self._effects.append(Lost(self.owned))
        self.owned = self._reported = self._revoking = frozenset()
        self.target = None

    def _answered_or_lost_while_leaving(self) -> None:
        """It has left if that was the farewell, and not a heartbeat that was in flight when it began to leave."""
        if self._next_at is None:
            self.state = State.LEFT
            self._effects.append(Left())


def _by_topic(partitions: Iterable[Partition]) -> list[m.ConsumerGroupHeartbeatRequestTopicPartitions]:
    topics: dict[uuid.UUID, list[int]] = {}
    for topic_id, number in sorted(partitions):
        topics.setdefault(topic_id, []).append(number)
    part = m.ConsumerGroupHeartbeatRequestTopicPartitions
    return [part(topic_id=topic_id, partitions=numbers) for topic_id, numbers in topics.items()]
