"""The member's side of every variant: join, heartbeat, rejoin, leave.

A variant derives its member from `ProposalMember`: what it sends with JoinGroup, how it comes to its partitions.
`ProposalMember` is a `machines.Machine`.

Laws:

* One request is in flight at a time, so that a connection keeps the order of a member's requests; only LeaveGroup, the
  last one, does not wait.
* A member owns nothing from before it sends JoinGroup until it has its assignment.
* A member that has received nothing for its session timeout owns nothing: the coordinator may have removed it.
* A member that wants a rebalance has first shown, by a heartbeat, that it has the answer to its last JoinGroup.

Source: "Kafka Client-side Assignment Proposal", "Kafka 0.9 Consumer Rewrite Design".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final, NamedTuple

from kcoord_wire.assignors import NO_RACKS, Racks, TopicPartition
from kcoord_wire.consumer.member_events import Arrived, Leave, SendRequest, TopicsKnown
from kcoord_wire.kernel.machines import Close, Disconnected, Tick
from kcoord_wire.kernel.virtual.clock import NEVER
from kcoord_wire.messages import HeartbeatRequest, HeartbeatResponse, LeaveGroupRequest
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.worlds.proposal.proposal_coordinator import (
    Codec,
    Failed,
    MemberSettings,
    MemberState,
    MessageT,
    Refetch,
    Subscribe,
    Subscription,
)

_OVER: Final = (MemberState.LEFT, MemberState.FAILED)
_RETRIED: Final = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.REQUEST_TIMED_OUT)


class _InFlight(NamedTuple):
    request_id: int
    sent_at: int
    deadline: int


class ProposalMember(ABC):
    """A consumer.

    :ivar state: see `MemberState`
    :ivar member_id: from the coordinator; empty before the first answer
    :ivar generation: of which it is a member; -1 for none
    :ivar owned: its partitions
    :ivar subscription: what it consumes
    :ivar error: why it has failed; 0 for no error
    :ivar racks: of the partitions, by topic
    :cvar syncs_again: what it sends while it assigns may be sent again on another connection
    """

    syncs_again: ClassVar[bool] = False

    def __init__(self, settings: MemberSettings, codec: Codec) -> None:
        self.settings = settings
        self.codec = codec
        self.state = MemberState.UNJOINED
        self.member_id = ""
        self.generation = -1
        self.owned: frozenset[TopicPartition] = frozenset()
        self.subscription: Subscription | None = None
        self.counts: Mapping[str, int] = {}
        self.racks: Racks = NO_RACKS
        self.error = 0
        self.now = 0
        self._effects: list[Any] = []
        self._requests = 0
        self._in_flight: _InFlight | None = None
        self._acts_at = NEVER  # when the next JoinGroup is due, or the next heartbeat
        self._rejoins_at = NEVER
        self._is_confirmed = False
        self._session_ends = NEVER

    # ---- what a variant says

    @abstractmethod
    def join_request(self) -> Any:
        """Return the JoinGroup of a member that joins."""

    @abstractmethod
    def joined(self, response: Any) -> None:
        """JoinGroup was answered without an error."""

    @abstractmethod
    def topics_changed(self) -> None:
        """A member in a generation has other topic metadata, or another subscription."""

    @property
    def is_dormant(self) -> bool:
        """Whether it owns nothing because its generation does without it."""
        return False

    @property
    def is_at_rest(self) -> bool:
        """Whether it is in a generation and wants no other."""
        return self.state is MemberState.STABLE and self._rejoins_at == NEVER

    # ---- events

    @property
    def deadline(self) -> int | None:
        """See `machines.Machine`."""
        due = min(self._session_ends, self._due_at() if self._in_flight is None else self._in_flight.deadline)
        return None if due == NEVER or self.state in _OVER else due

    def handle(self, event: Any, now: int) -> list[Any]:
        """See `machines.Machine`."""
        self.now = now
        self._effects = []
        if self.state not in _OVER:
            if now >= self._session_ends:
                self._leave_generation(rejoins_at=now)
            _HANDLE[type(event)](self, event)
            self._act()
        return self._effects

    def _due_at(self) -> int:
        return min(self._acts_at, self._rejoins_at) if self._is_confirmed else self._acts_at

    def _act(self) -> None:
        """Send what is due."""
        if self._in_flight is not None or self.now < self._due_at() or self.state in _OVER:
            return
        if self.state is MemberState.UNJOINED or (self._is_confirmed and self.now >= self._rejoins_at):
            self._join()
        elif self.state is MemberState.ASSIGNING:
            self.send_assignment()
        else:
            self._acts_at = self.now + self.settings.heartbeat_interval_ms
            request = HeartbeatRequest(
                group_id=self.settings.group_id, generation_id=self.generation, member_id=self.member_id
            )
            self.send(request, self.settings.request_timeout_ms)

    def send_assignment(self) -> None:
        """The synchronizer sends what it has computed."""
        raise NotImplementedError(type(self).__name__)

    def _join(self) -> None:
        self._leave_generation(rejoins_at=NEVER)
        self.state = MemberState.JOINING
        self.send(self.join_request(), self.settings.join_timeout_ms)

    def send(self, message: Any, timeout_ms: int) -> None:
        """Send a request; the connection is closed if no answer comes in time."""
        self._requests += 1
        self._in_flight = _InFlight(self._requests, self.now, self.now + timeout_ms)
        self._effects.append(SendRequest(self._requests, message, 0))

    def _tick(self, _event: Tick) -> None:
        if self._in_flight is not None and self.now >= self._in_flight.deadline:
            self._effects.append(Close())
            self._disconnected(_event)

    def _disconnected(self, _event: Any) -> None:
        self._in_flight = None
        if self.state is MemberState.STABLE:
            self._acts_at = self.now + self.settings.retry_ms
        elif self.state is MemberState.ASSIGNING and self.syncs_again:
            self.assign_until(self.now + self.settings.retry_ms)
        else:
            self._leave_generation(rejoins_at=self.now + self.settings.retry_ms)

    def _leave_generation(self, rejoins_at: int) -> None:
        self.owned = frozenset()
        self.state = MemberState.UNJOINED
        self._is_confirmed = False
        self._session_ends = self._rejoins_at = NEVER
        self._acts_at = rejoins_at

    def _arrived(self, event: Arrived) -> None:
        sent = self._in_flight
        if sent is None or event.request_id != sent.request_id:
            return  # the member has closed the connection, or its session has ended, since it asked
        self._in_flight = None
        error = event.message.error_code
        if isinstance(event.message, HeartbeatResponse):
            self._heard(error, sent.sent_at)
        elif error == ErrorCode.NONE:
            self.joined(event.message)
        elif error == ErrorCode.UNKNOWN_MEMBER_ID:
            self._forget_id()
        elif error in _RETRIED:
            self._leave_generation(rejoins_at=self.now + self.settings.retry_ms)
        else:
            self.fail(error, "JoinGroup was answered with an error that rejoining does not resolve")

    def _heard(self, error: int, sent_at: int) -> None:
        """A heartbeat was answered."""
        if self.state is not MemberState.STABLE:
            return  # its session has ended in the meantime
        if error == ErrorCode.NONE:
            self._is_confirmed = True
            self._session_ends = sent_at + self.settings.session_timeout_ms
        elif error == ErrorCode.UNKNOWN_MEMBER_ID:
            self._forget_id()
        else:
            self._leave_generation(rejoins_at=self.now)

    def _forget_id(self) -> None:
        self.member_id = ""
        self.generation = -1
        self._leave_generation(rejoins_at=self.now)

    def read_share(self, kind: type[MessageT], data: bytes) -> MessageT | None:
        """Return the member's share of the assignment, empty for none; None if it cannot be read: a failure."""
        try:
            return self.codec.decode(kind, data) if data else kind()
        except ValueError as error:
            self.fail(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the assignment cannot be read: {error}")
            return None

    def enter(self, generation: int, member_id: str, owned: Iterable[TopicPartition]) -> None:
        """The member is in a generation, with these partitions."""
        self.generation = generation
        self.member_id = member_id
        self.owned = frozenset(owned)
        self.state = MemberState.STABLE
        self._is_confirmed = False
        self._acts_at = self.now + self.settings.heartbeat_interval_ms
        self._rejoins_at = NEVER
        self._session_ends = self.now + self.settings.session_timeout_ms
        self.topics_changed()

    def assign_until(self, time_ms: int) -> None:
        """The member has been asked to assign, and `send_assignment` is called at that time."""
        self.state = MemberState.ASSIGNING
        self._acts_at = time_ms

    def rejoin(self, delay_ms: int = 0) -> None:
        """Join again after a delay."""
        self._rejoins_at = min(self._rejoins_at, self.now + delay_ms)
        if not self._is_confirmed:
            self._acts_at = min(self._acts_at, self._rejoins_at)  # a heartbeat comes first

    def refetch(self) -> None:
        """Fetch topic metadata; it comes with `TopicsKnown`."""
        self._effects.append(Refetch())

    def fail(self, error: int, text: str) -> None:
        """Leave the group with an error for the application."""
        self.error = error
        self._effects.append(Failed(error, text))
        self._end(MemberState.FAILED)

    def _end(self, state: MemberState) -> None:
        if self.member_id:
            self.send(LeaveGroupRequest(group_id=self.settings.group_id, member_id=self.member_id), 0)
        self._leave_generation(rejoins_at=NEVER)
        self.state = state

    # ---- the application

    def _topics_known(self, event: TopicsKnown) -> None:
        self.counts, self.racks = event.partitions, event.racks
        self._start()

    def _subscribe(self, event: Subscribe) -> None:
        self.subscription = event.subscription
        self._start()

    def _start(self) -> None:
        """Join for the first time once topics and subscription are known, or see what has changed."""
        if self.state is MemberState.STABLE:
            self.topics_changed()
        elif self.state is MemberState.UNJOINED and self._acts_at == NEVER and self.subscription and self.counts:
            self._acts_at = self.now

    def _leave(self, _event: Leave) -> None:
        self._end(MemberState.LEFT)


_HANDLE: Final[Mapping[type, Callable[[ProposalMember, Any], None]]] = {
    Tick: ProposalMember._tick,
    Arrived: ProposalMember._arrived,
    Disconnected: ProposalMember._disconnected,
    TopicsKnown: ProposalMember._topics_known,
    Subscribe: ProposalMember._subscribe,
    Leave: ProposalMember._leave,
}
