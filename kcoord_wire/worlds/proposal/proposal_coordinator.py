"""The coordinator's side of every variant: members, sessions, generations, and the join that waits for all.

A variant derives its coordinator from `Coordinator` and says what JoinGroup carries and what happens once all have
joined. `Coordinator` is a `machines.Machine`.

Laws:

* A generation begins when every member of the former one has joined, left, or been silent for its session timeout.
* A member whose JoinGroup waits is not timed ("Heartbeats during rebalance", 2); its session begins with the answer.
* A member whose JoinGroup was answered and whose heartbeat has not come yet may have missed the answer. If it joins
  again with the same metadata, it gets the same answer and the others go on undisturbed. A member that has sent a
  heartbeat and joins wants a rebalance, and gets one.
* What a group was formed with is saved before its members learn of it.

Source: "Kafka Client-side Assignment Proposal", "Kafka 0.9 Consumer Rewrite Design".

Events, effects and settings are those of the machines of all variants. Times are in ms.
"""

from __future__ import annotations

import enum
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from uuid import UUID

from kcoord_wire.assignors import Assign
from kcoord_wire.kernel.machines import Tick
from kcoord_wire.kernel.virtual.clock import NEVER
from kcoord_wire.messages import HeartbeatRequest, HeartbeatResponse, LeaveGroupRequest, LeaveGroupResponse
from kcoord_wire.protocol.error_codes import ErrorCode

MessageT = TypeVar("MessageT")


class Subscription(NamedTuple):
    """What a member consumes.

    :ivar topics: by name; empty with a pattern
    :ivar pattern: a regular expression that whole topic names match; None for a subscription by name
    """

    topics: Sequence[str] = ()
    pattern: str | None = None


class Strategy(NamedTuple):
    """A version of an assignment strategy.

    :ivar name: of the group protocol
    :ivar version: of the strategy; on the wire only where the variant has it
    :ivar assign: the pure function
    :ivar needs_agreement: False for one that gives a partition the same owner however many partitions a member sees,
        such as consistent hashing
    """

    name: str
    version: int
    assign: Assign
    needs_agreement: bool = True


class Codec(Protocol):
    """What members do to the bytes that they exchange through the coordinator. The machines import no codec."""

    def encode(self, message: Any) -> bytes:
        """Return the bytes of a member's metadata or state."""

    def decode(self, cls: type[MessageT], data: bytes) -> MessageT:
        """Read them. ValueError: they are not such a message."""


# ---- the coordinator's


class Caller(NamedTuple):
    """To whom an answer goes.

    :ivar connection: the number of the connection on which the request has come
    :ivar request_id: the correlation id
    """

    connection: int
    request_id: int


@dataclass(slots=True)
class Asked:
    """A request has arrived at the coordinator."""

    caller: Caller
    client_id: str
    message: Any


@dataclass(slots=True)
class Answer:
    """The coordinator answers a request."""

    caller: Caller
    message: Any


@dataclass(slots=True)
class Save:
    """The coordinator's group, to be persisted before the answers that follow are sent.

    :ivar generation: of the group
    :ivar members: id to session timeout and what the member sent with JoinGroup
    :ivar decision: the variant's own: the chosen protocol, or the states of the members
    """

    generation: int
    members: Mapping[str, tuple[int, Any]]
    decision: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """The coordinator's settings.

    :ivar initial_delay_ms: how long the first join of an empty group waits for others
    :ivar synchronization_timeout_ms: how long the synchronizer of `single_assignor` may take
    :ivar waits_in_resync: whether a resync of `two_phases` waits until all members have given their partitions up
    :ivar lists_members: whether `single_assignor` fills GroupMembers of the last response, as the proposal draws it
    """

    initial_delay_ms: int = 0
    synchronization_timeout_ms: int = 10_000
    waits_in_resync: bool = True
    lists_members: bool = True


# ---- the member's


class MemberState(enum.StrEnum):
    """The state of a member."""

    UNJOINED = "unjoined"  # outside any generation
    JOINING = "joining"  # JoinGroup is in flight
    ASSIGNING = "assigning"  # the synchronizer computes the assignment
    STABLE = "stable"  # in a generation
    LEFT = "left"
    FAILED = "failed"  # after an error that rejoining does not resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """A member's settings.

    :ivar join_timeout_ms: how long JoinGroup may take: a session of others, and the synchronization
    :ivar assign_ms: how long the synchronizer computes
    :ivar batch_ms: how long the leader of `two_phases` collects changes of topic metadata before it assigns anew
    :ivar rack: where the member of `two_phases` runs; empty if racks do not matter
    :ivar metadata_version: of the embedded format of `single_assignor`
    :ivar max_disagreements: how many generations in a row may fail because members see different topic metadata
    """

    group_id: str = "group"
    session_timeout_ms: int = 6_000
    heartbeat_interval_ms: int = 1_000
    request_timeout_ms: int = 5_000
    join_timeout_ms: int = 30_000
    retry_ms: int = 100
    assign_ms: int = 0
    batch_ms: int = 0
    rack: str = ""
    metadata_version: str = "default"
    max_disagreements: int = 5


@dataclass(slots=True)
class Subscribe:
    """The application subscribes to this, and to nothing else from now on."""

    subscription: Subscription


@dataclass(slots=True)
class Refetch:
    """The member fetches topic metadata."""


@dataclass(slots=True)
class Failed:
    """The application gets an error that it has to handle.

    :ivar error: a code of `error_codes`
    """

    error: int
    text: str


def boot_of(member_id: str) -> str:
    """Return which coordinator has given out a member id."""
    return member_id[-36:-28]


def _name_member(client_id: str, boot: int, number: int) -> str:
    """Return a member id as long as Kafka's, and nearly as random: compressed, it takes as much room as theirs."""
    digest = hashlib.sha256(f"{boot}/{number}".encode()).digest()
    return f"{client_id}-{UUID(bytes=boot.to_bytes(4) + digest[:12])}"


class Phase(enum.StrEnum):
    """The states of the group; the proposal's Initialize is a coordinator that is not up yet."""

    EMPTY = "empty"  # Down
    JOINING = "joining"
    SYNCHRONIZING = "synchronizing"  # AwaitingSync
    STABLE = "stable"


class Join(NamedTuple):
    """What the coordinator reads of a JoinGroup.

    :ivar offer: what the member sends to the group; the variant knows its form
    """

    member_id: str
    session_timeout_ms: int
    protocol_type: str
    offer: Any


@dataclass(slots=True)
class Registration:
    """A member, as the coordinator knows it.

    :ivar offer: of its last JoinGroup
    :ivar expires_at: when its session ends; `NEVER` while it waits for the coordinator
    :ivar waiting: its JoinGroup that is not answered yet
    :ivar is_confirmed: whether it has sent a heartbeat in this generation
    """

    session_timeout_ms: int
    offer: Any
    expires_at: int
    waiting: Caller | None = None
    is_confirmed: bool = False


class Coordinator(ABC):
    """The coordinator of one group.

    :param boot: from 1, one more with every coordinator of the group; part of the member ids
    :param saved: what the coordinator before it has saved; None for nothing
    :param now: ms
    :ivar generation: of the group; 0 before the first
    :ivar members: by id, in the order of their last joins
    """

    def __init__(self, settings: CoordinatorSettings, boot: int, saved: Save | None, now: int) -> None:
        self.settings = settings
        self.phase: Phase = Phase.EMPTY
        self.generation: int = 0
        self.members: dict[str, Registration] = {}
        self._boot = boot
        self._named = 0
        self._not_before = 0  # when the first generation may begin
        self._now = now
        self._effects: list[Answer | Save] = []
        if saved is not None:
            self.generation = saved.generation
            self.members = {
                member_id: Registration(timeout_ms, offer, now + timeout_ms)
                for member_id, (timeout_ms, offer) in saved.members.items()
            }
            self.phase = self.restored(saved.decision)

    # ---- what a variant says

    @abstractmethod
    def read(self, message: Any) -> Join | None:
        """Return what a JoinGroup asks for; None for a request of another phase, which `synchronized` gets."""

    @abstractmethod
    def refusal(self, error: ErrorCode) -> Any:
        """Return the JoinGroup response with an error."""

    def synchronized(self, asked: Asked) -> None:
        """A request for which `read` has returned None."""
        raise NotImplementedError(type(asked.message).__name__)

    @abstractmethod
    def rejects(self, join: Join, others: list[Any]) -> bool:
        """Return whether a member cannot be in a group with the `others`, which are their offers."""

    @abstractmethod
    def restored(self, decision: Any) -> Phase:
        """Take over what was saved with a generation and return the phase in which that leaves the group."""

    @abstractmethod
    def formed(self) -> None:
        """All members have joined: the generation has begun."""

    @abstractmethod
    def joined(self, member_id: str) -> Any:
        """Return the JoinGroup response of a member of the present generation, in phase STABLE."""

    @abstractmethod
    def interrupted(self) -> None:
        """A generation that was not complete is given up."""

    def still_waits(self, member: Registration) -> bool:
        """Return whether a member may wait on although it has joined again with the same metadata."""
        return False

    # ---- events

    @property
    def deadline(self) -> int | None:
        """See `machines.Machine`."""
        due = min((member.expires_at for member in self.members.values()), default=NEVER)
        if self.phase is Phase.JOINING and self._all_wait():
            due = min(due, self._not_before)
        return None if due == NEVER else due

    def handle(self, event: Asked | Tick, now: int) -> list[Answer | Save]:
        """See `machines.Machine`."""
        self._now = now
        self._effects = []
        self.time_passed()
        if isinstance(event, Asked):
            _HANDLE.get(type(event.message), Coordinator._join)(self, event)
        return self._effects

    def time_passed(self) -> None:
        """Remove members whose session is over, and let a generation begin that has waited for its time."""
        expired = [member_id for member_id, member in self.members.items() if member.expires_at <= self._now]
        for member_id in expired:
            del self.members[member_id]
        if expired:
            self.rebalance()
        elif self.phase is Phase.JOINING:
            self._complete()

    def _heartbeat(self, asked: Asked) -> None:
        request: HeartbeatRequest = asked.message
        member = self.members.get(request.member_id)
        if member is None:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        elif request.generation_id != self.generation:
            error = ErrorCode.ILLEGAL_GENERATION
        elif self.phase is not Phase.STABLE:
            error = ErrorCode.REBALANCE_IN_PROGRESS
        else:
            error = ErrorCode.NONE
            member.is_confirmed = True
            member.expires_at = self._now + member.session_timeout_ms
        self.answer(asked.caller, HeartbeatResponse(error_code=error))

    def _leave(self, asked: Asked) -> None:
        known = self.members.pop(asked.message.member_id, None)
        self.answer(asked.caller, LeaveGroupResponse(error_code=0 if known else ErrorCode.UNKNOWN_MEMBER_ID))
        if known:
            self.rebalance()

    def _join(self, asked: Asked) -> None:
        join = self.read(asked.message)
        if join is None:
            self.synchronized(asked)
            return
        member_id = join.member_id
        member = self.members.get(member_id)
        others = [other.offer for other in self.members.values() if other is not member]
        if member_id and member is None:
            self.answer(asked.caller, self.refusal(ErrorCode.UNKNOWN_MEMBER_ID))
        elif join.protocol_type != "consumer" or self.rejects(join, others):
            self.answer(asked.caller, self.refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        elif member is None:
            self._named += 1
            member_id = _name_member(asked.client_id, self._boot, self._named)
            self._wait(member_id, Registration(join.session_timeout_ms, join.offer, NEVER, asked.caller))
        elif member.offer == join.offer and self.phase is Phase.STABLE and not member.is_confirmed:
            self.admit(member_id, member, asked.caller)
        elif member.offer == join.offer and self.still_waits(member):
            member.waiting = asked.caller
        else:
            self._wait(member_id, Registration(join.session_timeout_ms, join.offer, NEVER, asked.caller))

    def _wait(self, member_id: str, member: Registration) -> None:
        self.members.pop(member_id, None)  # so that the last to join is the last in order
        self.members[member_id] = member
        self.rebalance()

    # ---- the join that waits for all

    def rebalance(self) -> None:
        """Wait for all members to join, and begin a generation when they have."""
        if not self.members:
            self.interrupted()
            self.phase = Phase.EMPTY
            return
        if self.phase is not Phase.JOINING:
            self.interrupted()
            self._not_before = self._now + (self.settings.initial_delay_ms if self.phase is Phase.EMPTY else 0)
            self.phase = Phase.JOINING
            for member in self.members.values():
                if member.waiting is None:
                    member.expires_at = self._now + member.session_timeout_ms
        self._complete()

    def _all_wait(self) -> bool:
        return all(member.waiting is not None for member in self.members.values())

    def _complete(self) -> None:
        if self._now >= self._not_before and self._all_wait():
            self.generation += 1
            self.formed()

    def save(self, decision: Any) -> None:
        """Persist the generation."""
        members = {member_id: (member.session_timeout_ms, member.offer) for member_id, member in self.members.items()}
        self._effects.append(Save(self.generation, members, decision))

    def admit_all(self) -> None:
        """Answer every member that waits: the group is complete."""
        self.phase = Phase.STABLE
        for member_id, member in self.members.items():
            if member.waiting is not None:
                self.admit(member_id, member, member.waiting)

    def admit(self, member_id: str, member: Registration, caller: Caller) -> None:
        """Answer one member; its session begins."""
        member.waiting = None
        member.is_confirmed = False
        member.expires_at = self._now + member.session_timeout_ms
        self.answer(caller, self.joined(member_id))

    def answer(self, caller: Caller, message: Any) -> None:
        """Answer a request."""
        self._effects.append(Answer(caller, message))


_HANDLE: Final[Mapping[type, Callable[[Coordinator, Asked], None]]] = {
    HeartbeatRequest: Coordinator._heartbeat,
    LeaveGroupRequest: Coordinator._leave,
}
