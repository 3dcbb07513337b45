"""What goes into the coordinator's state machines, what comes out, and what they have in common.

A machine is a pure object: ``handle(event, now)`` gives a list of effects. It owns no socket, clock, disk or source of
randomness; its host (host.py, under the server and under the simulation) has those.

Laws:

* ``now`` is milliseconds since the epoch and never decreases from one call to the next.
* Every `Request` is answered by exactly one `Reply` with its token, at once or after later events.
* `Append` effects are numbered 1, 2, 3 ... in the order in which the machine returns them, which is their order in the
  log. A `Reply` names in ``after`` the `Append` that must be on disk before it may be sent; 0 means none.
* After each call the machine's `deadline` says when it wants the next `Tick`.
* Until the first `Load`, and after `Resign`, requests are refused; a machine names the exceptions in `_refuses`.
* What the table of a machine's transitions does not have cannot happen (`target_of`).
"""

from __future__ import annotations

import enum
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from kcoord_wire.coordinator.core.apis import refusal
from kcoord_wire.coordinator.core.brokers import Leaders
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.kernel.machines import Tick
from kcoord_wire.kernel.timers import Timer, Timers
from kcoord_wire.messages.create_topics import CreateTopicsRequestCreatableTopic
from kcoord_wire.messages.write_txn_markers import WriteTxnMarkersRequestWritableTxnMarker as WritableTxnMarker
from kcoord_wire.protocol.error_codes import ErrorCode


class LogRecord(NamedTuple):
    """A record for the log: a key message and a value message, or None for a tombstone."""

    key: Any
    value: Any | None


class Producer(NamedTuple):
    """The producer of a transaction, by whose id readers of a log know which records belong together."""

    producer_id: int
    epoch: int


class PendingRecord(NamedTuple):
    """A record of a transaction that is open."""

    producer: Producer
    record: LogRecord


# ---- events


@dataclass(slots=True)
class Request:
    """A request has arrived.

    :ivar token: names the request in its `Reply`; never used twice in the life of a machine
    :ivar message: the decoded request
    :ivar version: the version of the request and of its response
    :ivar client_id: from the request's header; empty for null
    :ivar client_host: the peer, as Kafka writes it: ``/127.0.0.1``
    :ivar unique: text that no other request has (a random UUID), where the member has no id: its id is made of it
    :ivar broker: the broker that has received it, as `Brokers` counts them
    :ivar connection: names the connection that it has come on
    """

    token: int
    message: Any
    version: int
    client_id: str = ""
    client_host: str = ""
    unique: str = ""
    broker: int = 0
    connection: int = 0


@dataclass(slots=True)
class Load:
    """The log has been read: the coordinator begins to serve.

    :ivar records: of the log, in their order
    :ivar partitions: of the internal topic, to serve these besides those that are served; None for all
    :ivar pending: records of transactions that are open, in their order
    """

    records: Sequence[LogRecord]
    partitions: frozenset[int] | None = None
    pending: Sequence[PendingRecord] = ()


@dataclass(slots=True)
class Resign:
    """Groups or transactional ids are dropped, parked requests are answered NOT_COORDINATOR (16), and only `Load` makes
    them served again.

    :ivar partitions: of the internal topic, whose coordinator changes; None for all, because the log has failed or
        the coordinator is being stopped
    """

    partitions: frozenset[int] | None = None


@dataclass(slots=True)
class Rebalance:
    """An operator wants a group to rebalance: its members learn of it as of any rebalance. A group without members, or
    whose members are joining already, stays as it is.

    :ivar group_id: the group
    :ivar reason: for its account
    """

    group_id: str
    reason: str


@dataclass(slots=True)
class TopicsDeleted:
    """Topics have been deleted: an effect of the topics, and an event for the groups, which forget their offsets.

    :ivar names: the topics'
    """

    names: frozenset[str]


@dataclass(slots=True)
class Reassigned:
    """Partitions have other replicas: an effect of the topics, whose leaders are to be elected anew.

    :ivar leaders: of the topics
    """

    leaders: Sequence[Leaders]


@dataclass(slots=True)
class MarkersWritten:
    """The markers of a transaction are on disk: `WriteMarkers` has been carried out.

    :ivar transactional_id: whose transaction has ended
    :ivar producer_id: of the markers
    :ivar producer_epoch: likewise
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int


@dataclass(slots=True)
class ShareStateInitialized:
    """The state of partitions of a share group has been initialized, or could not be.

    :ivar group_id: the group
    :ivar partitions: topic id to partitions
    :ivar error: why it could not be; NONE if it has been
    """

    group_id: str
    partitions: Mapping[uuid.UUID, frozenset[int]]
    error: ErrorCode = ErrorCode.NONE


@dataclass(slots=True)
class ShareStateDeleted:
    """The state of partitions of a share group has been deleted, or could not be.

    :ivar group_id: the group
    :ivar error: why it could not be; NONE if it has been
    """

    group_id: str
    error: ErrorCode = ErrorCode.NONE


@dataclass(slots=True)
class ConnectionLost:
    """A connection has ended: for the share groups, whose sessions end with it.

    :ivar connection: as in `Request`
    """

    connection: int


@dataclass(slots=True)
class RecordsChanged:
    """Partitions of topics have more records or fewer: for the share groups, which may wait for them."""


@dataclass(slots=True)
class TopicsRefused:
    """Topics of `CreateTopics` could not be created.

    :ivar group_id: the group that needs them
    :ivar errors: name to why
    """

    group_id: str
    errors: Mapping[str, str]


ShareEvent = ShareStateInitialized | ShareStateDeleted | ConnectionLost | RecordsChanged
OutsideEvent = Load | Resign | MarkersWritten | Rebalance | TopicsDeleted | TopicsRefused | ShareEvent
Event = Request | Tick | OutsideEvent


# ---- effects


class HangUp:
    """The connection is closed: the only way to report an error to a client that wants no answer."""


HANG_UP: Final = HangUp()


@dataclass(slots=True)
class Reply:
    """Answer a request.

    :ivar token: the request's
    :ivar message: the response; None where the client wants none (Produce with acks=0), `HANG_UP` where such a request
        has failed
    :ivar after: the `Append` that must be on disk before; 0 for none
    :ivar request: what is answered; never None where `after` is not 0, since the disk may fail
    """

    token: int
    message: Any
    after: int = 0
    request: Request | None = None


@dataclass(slots=True)
class Append:
    """Write records to the log, all or none.

    :ivar records: in their order
    :ivar producer: of the transaction that the records belong to; None if they belong to none
    """

    records: list[LogRecord]
    producer: Producer | None = None


@dataclass(slots=True)
class AppendMarker:
    """Write the marker that ends the transaction of a producer to the log.

    :ivar producer: whose transaction
    :ivar committed: whether its records count
    :ivar coordinator_epoch: of the transaction coordinator
    """

    producer: Producer
    committed: bool
    coordinator_epoch: int


@dataclass(slots=True)
class WriteMarkers:
    """Write the marker of a transaction to its partitions, until that has succeeded; `MarkersWritten` follows.

    :ivar transactional_id: whose transaction has ended
    :ivar marker: producer, outcome, partitions
    :ivar after: the `Append` that must be on disk before; 0 for none
    """

    transactional_id: str
    marker: WritableTxnMarker
    after: int = 0


@dataclass(slots=True)
class InitializeShareState:
    """Initialize the state of partitions of a share group; `ShareStateInitialized` follows.

    :ivar group_id: the group
    :ivar epoch: the group epoch, which is the epoch of the state
    :ivar partitions: topic id to partition to start offset; -1 leaves it to ``share.auto.offset.reset``
    :ivar after: the `Append` that must be on disk before
    """

    group_id: str
    epoch: int
    partitions: Mapping[uuid.UUID, Mapping[int, int]]
    after: int


@dataclass(slots=True)
class DeleteShareState:
    """Delete the state of partitions of a share group; `ShareStateDeleted` follows.

    :ivar group_id: the group
    :ivar partitions: topic id to partitions
    :ivar after: the `Append` that must be on disk before
    """

    group_id: str
    partitions: Mapping[uuid.UUID, frozenset[int]]
    after: int


class Trigger(enum.StrEnum):
    """Why a rebalance began."""

    NEW_MEMBER = "new member"
    MEMBER_LEFT = "member left"
    SESSION_EXPIRED = "session timeout"
    LEADER_REJOINED = "leader rejoined"
    SUBSCRIPTION_CHANGED = "member changed its subscription"
    PROTOCOLS_CHANGED = "member changed its list of assignors"
    STATIC_REPLACED = "static member replaced"
    SYNC_EXPIRED = "sync timeout"
    REBALANCE_EXPIRED = "rebalance timeout"
    TOPICS_CHANGED = "topics changed"
    STATE_INITIALIZED = "share partitions initialized"
    ASSIGNOR_CHANGED = "members asked for another server assignor"
    DOWNGRADED = "group has become classic"
    GROUP_TOO_LARGE = "group larger than group.max.size after loading"
    REQUESTED = "requested by the operator"
    LOADED = "under way when the coordinator loaded the group"


class Phase(enum.StrEnum):
    """How far a rebalance has come. ENDED includes one that a new trigger cut short, or that left the group empty."""

    STARTED = "started"
    JOINED = "joined"
    ENDED = "ended"


class Removal(NamedTuple):
    """A member that was removed during a rebalance.

    :ivar member_id: its id
    :ivar client_id: from its request header
    :ivar client_host: its address, as Kafka writes it
    :ivar why: ``left``, ``session timeout``, ``rebalance timeout`` (did not rejoin), ``sync timeout``,
        ``group.max.size``
    """

    member_id: str
    client_id: str
    client_host: str
    why: str


@dataclass(slots=True)
class RebalanceAccount:
    """The coordinator's own account of one rebalance.

    :ivar group_id: the group
    :ivar generation_id: before the join completes the old generation, after it the new one
    :ivar trigger: why it began
    :ivar member_id: the member that caused it; empty where none did
    :ivar client_id: that member's
    :ivar client_host: that member's
    :ivar group_instance_id: that member's; None if it is dynamic
    :ivar reason: what that member stated (KIP-800)
    :ivar protocol: the assignor that was chosen; None before that, and for a group that has become empty
    :ivar leader_id: the member that computes the assignment; None likewise
    :ivar started_at: ms
    :ivar joined_at: ms; None until all have joined
    :ivar ended_at: ms; None until it has ended
    :ivar outcome: ``stable``, ``empty``, or ``interrupted`` (a new trigger came before the leader's SyncGroup)
    :ivar joins: (member id, ms after the start) in the order of arrival; the last ones were late
    :ivar removed: members that did not reach the new generation
    """

    group_id: str
    generation_id: int
    trigger: Trigger
    member_id: str
    client_id: str
    client_host: str
    group_instance_id: str | None
    reason: str | None
    started_at: int
    joined_at: int | None = None
    ended_at: int | None = None
    outcome: str | None = None
    protocol: str | None = None
    leader_id: str | None = None
    joins: list[tuple[str, int]] = field(default_factory=list)
    removed: list[Removal] = field(default_factory=list)


@dataclass(slots=True)
class RebalanceReport:
    """A rebalance has reached a phase: for log lines and metrics.

    :ivar phase: the phase
    :ivar rebalance: its account, which goes on changing until the rebalance has ended
    """

    phase: Phase
    rebalance: RebalanceAccount


@dataclass(slots=True)
class CreateTopics:
    """Topics that a group needs are to be created; `TopicsRefused` says which cannot be.

    :ivar group_id: the group
    :ivar topics: as CreateTopics has them
    """

    group_id: str
    topics: list[CreateTopicsRequestCreatableTopic]


ShareStateEffect = InitializeShareState | DeleteShareState
TopicsEffect = TopicsDeleted | Reassigned | CreateTopics
Effect = Reply | Append | AppendMarker | WriteMarkers | RebalanceReport | TopicsEffect | ShareStateEffect


S = TypeVar("S", bound=StrEnum)
M = TypeVar("M", bound=StrEnum)


class IllegalMoveError(RuntimeError):
    """A move that the table does not have: a bug of the coordinator, never a client's doing."""

    def __init__(self, what: str, state: StrEnum, move: StrEnum) -> None:
        super().__init__(f"{what} cannot {move} in state {state}")


def target_of(transitions: Mapping[tuple[S, M], S], state: S, move: M, what: str) -> S:
    """Return the state that a move leads to.

    :param transitions: every legal move, and where it leads
    :param what: whose move it is, for the error
    :raises IllegalMoveError: `transitions` has no such move
    """
    target = transitions.get((state, move))
    if target is None:
        raise IllegalMoveError(what, state, move)
    return target


class Logged(Protocol):
    """What the log keeps.

    :ivar written: number of the last `Append` that concerns it
    """

    written: int


class EffectCollector:
    """Collects the effects of one call of a machine's `handle`, and knows the time of that call.

    :ivar now: ms
    :ivar effects: of this call so far
    :ivar appended: number of `Append` effects since the machine was made
    :ivar deleted: number of the last one that deleted a group or transactional id
    """

    __slots__ = ("appended", "deleted", "effects", "now")

    def __init__(self) -> None:
        self.now: int = 0
        self.appended: int = 0
        self.deleted: int = 0
        self.effects: list[Effect] = []

    def reply(self, request: Request, message: object, after: int = 0) -> None:
        """Answer `request` once append number `after` is on disk."""
        self.effects.append(Reply(request.token, message, after, request))

    def append(self, owner: Logged, records: list[LogRecord], producer: Producer | None = None) -> None:
        """Write records of a group or transactional id to the log, as part of the transaction of `producer` if any."""
        self.appended += 1
        owner.written = self.appended
        self.effects.append(Append(records, producer))

    def append_marker(self, marker: AppendMarker) -> None:
        """Write the end of a transaction to the log."""
        self.appended += 1
        self.effects.append(marker)

    def delete(self, owner: Logged, records: list[LogRecord]) -> None:
        """Remove a group or transactional id from the log by these records."""
        self.append(owner, records)
        self.deleted = self.appended

    def initialize_share_state(
        self, group_id: str, epoch: int, partitions: Mapping[uuid.UUID, Mapping[int, int]]
    ) -> None:
        """Ask for the state of partitions of a share group, once what was appended is on disk."""
        self.effects.append(InitializeShareState(group_id, epoch, partitions, self.appended))

    def delete_share_state(self, group_id: str, partitions: Mapping[uuid.UUID, frozenset[int]]) -> None:
        """Delete the state of partitions of a share group, once what was appended is on disk."""
        self.effects.append(DeleteShareState(group_id, partitions, self.appended))

    def written(self, owner: Logged | None) -> int:
        """Return the `Append` that must be on disk before an answer may say something of the group or transactional
        id, or that it does not exist."""
        return self.deleted if owner is None else owner.written

    def report(self, phase: Phase, rebalance: RebalanceAccount) -> None:
        """Report that a rebalance has reached a phase."""
        self.effects.append(RebalanceReport(phase, rebalance))


def cancel(*timers: Timer | None) -> None:
    """Prevent timers from firing that have been started."""
    for timer in timers:
        if timer is not None:
            timer.cancel()


class LoggedMachine(ABC):
    """A state machine whose state is in a log.

    :param config: Kafka's defaults if None
    """

    def __init__(self, config: GroupConfig | None) -> None:
        self.config: GroupConfig = config or GroupConfig()
        self._timers = Timers()
        self._effects = EffectCollector()
        self._unavailable: ErrorCode | None = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self._handlers: dict[type, Callable[[Request, Any], None]] = {}

    @property
    def serves(self) -> Set[type]:
        """The classes of requests that `handle` accepts."""
        return self._handlers.keys()

    @property
    def deadline(self) -> int | None:
        """When the next `Tick` is due, in ms; None if nothing is."""
        return self._timers.next

    @property
    def appended(self) -> int:
        """Number of `Append` effects so far."""
        return self._effects.appended

    def handle(self, event: Event, now: int) -> list[Effect]:
        """Return the effects of `event` at the time `now` (ms).

        :raises TypeError: a request that is not in `serves`
        """
        effects: list[Effect] = []
        self._effects.now, self._effects.effects = now, effects
        if isinstance(event, Request):
            message = event.message
            handler = self._handlers.get(type(message))
            if handler is None:
                raise TypeError(f"{type(self).__name__} does not serve {type(message).__name__}")
            if error := self._refuses(message):
                self._refuse(event, error)
            else:
                handler(event, message)
        elif isinstance(event, Tick):
            self._timers.run_due(now)
        else:
            self._take_in(event)
        return effects

    def _refuses(self, message: Any) -> ErrorCode | None:
        """Return why a request is not handled now, whatever it asks; None if it is handled."""
        return self._unavailable

    def _refuse(self, request: Request, error: ErrorCode, after: int = 0) -> None:
        """Answer with an error once append number `after` is on disk."""
        self._effects.reply(request, refusal(request.message, request.version, error), after)

    @abstractmethod
    def _take_in(self, event: Event) -> None:
        """Handle an event that is neither a request nor `Tick`."""
