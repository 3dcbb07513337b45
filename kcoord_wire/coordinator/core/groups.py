"""A group of the classic protocol, its members and its states: what is known of it, and the moves it may make.

The states, with the names they had in "Kafka Client-side Assignment Proposal", section "Coordinator State Machine":

    Empty                Down, or Stable without members; offsets may exist
    PreparingRebalance   Joining: waits for the members to (re)join
    CompletingRebalance  AwaitingSync: JoinGroup is answered, the leader's SyncGroup is awaited
    Stable               Stable: every member can have its assignment
    Dead                 the group is deleted or its coordinator has resigned

The proposal's Initialize (the log is being read) is a state of the whole coordinator, not of a group.

Laws:

* `TRANSITIONS` holds every legal move; `Group.move` rejects all others.
* Members are kept in the order in which they were added. Where Kafka leaves an order open (who leads after the leader
  has left, which of two protocols with equal votes wins, in which order members are listed), that order decides.
* Counts that decide whether a join is complete are kept up to date, never recounted: a join costs the same in a group
  of ten and of ten thousand.
"""

from __future__ import annotations

import enum
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core import events
from kcoord_wire.coordinator.core.any_group import CONSUMER, AnyGroup, Committed, Subscribed
from kcoord_wire.coordinator.core.moves import target_of
from kcoord_wire.kernel.timers import Timer
from kcoord_wire.protocol.error_codes import ErrorCode

Protocols = tuple[tuple[str, bytes], ...]
"""Names and metadata of the protocols that a member can follow, most preferred first."""


class State(enum.StrEnum):
    """State of a group, by the name that DescribeGroups and ListGroups give it."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Move(enum.StrEnum):
    """What can happen to a group."""

    PREPARE = "prepare a rebalance"
    COMPLETE_JOIN = "complete the join"
    LOSE_ALL = "complete the join with no members"
    ASSIGN = "take the leader's assignment"
    LOAD_STABLE = "load with members"
    DELETE = "delete"
    RESIGN = "resign"


TRANSITIONS: Final[Mapping[tuple[State, Move], State]] = MappingProxyType(
    {
        (State.EMPTY, Move.PREPARE): State.PREPARING,
        (State.STABLE, Move.PREPARE): State.PREPARING,
        (State.COMPLETING, Move.PREPARE): State.PREPARING,
        (State.PREPARING, Move.COMPLETE_JOIN): State.COMPLETING,
        (State.PREPARING, Move.LOSE_ALL): State.EMPTY,
        (State.COMPLETING, Move.ASSIGN): State.STABLE,
        (State.EMPTY, Move.LOAD_STABLE): State.STABLE,
        (State.EMPTY, Move.DELETE): State.DEAD,
        (State.EMPTY, Move.RESIGN): State.DEAD,
        (State.PREPARING, Move.RESIGN): State.DEAD,
        (State.COMPLETING, Move.RESIGN): State.DEAD,
        (State.STABLE, Move.RESIGN): State.DEAD,
    }
)
"""Every legal move, and where it leads."""


@dataclass(slots=True, eq=False)
class Member:
    """A member of a group.

    :ivar protocols: what it offered in its last JoinGroup
    :ivar assignment: what the leader of the current generation assigned to it
    :ivar join: its parked JoinGroup
    :ivar sync: its parked SyncGroup
    :ivar is_new: its first JoinGroup has not been answered yet
    :ivar session: fires when it has been silent for its session timeout; has no effect while one of its requests is
        parked
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    join: events.Request | None = None
    sync: events.Request | None = None
    is_new: bool = False
    session: Timer | None = None

    def metadata(self, protocol: str | None) -> bytes:
        """Return the metadata it offered for `protocol`; empty if none."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


class Group(AnyGroup):
    """A group of the classic protocol.

    :ivar protocol_type: None for a group that never had a member (offsets only)
    :ivar protocol: the assignor of the current generation; None in a group without members
    :ivar leader_id: the member that computes the assignment; None in a group without members
    :ivar members: by id, in the order in which they were added
    :ivar instances: group instance id to member id
    :ivar pending: ids returned with MEMBER_ID_REQUIRED (79) that are still unused, with their timers (KIP-394)
    :ivar unsynced: members of this generation whose SyncGroup has not arrived
    :ivar waiting: number of members with a parked JoinGroup
    :ivar filling: the first join after Empty is in progress, which ends with the initial delay, not with the last join
    :ivar filling_grew: a member has joined since the delay began, which makes it begin again
    :ivar join_timer: ends the join, or the initial delay
    :ivar sync_timer: ends the wait for SyncGroup
    :ivar subscribed: topics of all members; None if it is not a consumer group, or a subscription cannot be decoded
    :ivar rebalance: the account of the rebalance in progress
    :ivar removed: members lost since the last rebalance ended
    """

    __slots__ = (
        "_offered",
        "filling",
        "filling_grew",
        "generation_id",
        "instances",
        "join_timer",
        "leader_id",
        "members",
        "pending",
        "protocol",
        "protocol_type",
        "rebalance",
        "removed",
        "state",
        "subscribed",
        "sync_timer",
        "unsynced",
        "waiting",
    )

    kind = "classic"

    def __init__(self, group_id: str, now: int) -> None:
        super().__init__(group_id, now)
        self.state = State.EMPTY
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, Member] = {}
        self.instances: dict[str, str] = {}
        self.pending: dict[str, Timer] = {}
        self.unsynced: set[str] = set()
        self.waiting = 0
        self.filling = False
        self.filling_grew = False
        self.join_timer: Timer | None = None
        self.sync_timer: Timer | None = None
        self.subscribed: frozenset[str] | None = None
        self.rebalance: events.RebalanceAccount | None = None
        self.removed: list[events.Removal] = []
        self._offered: Counter[str] = Counter()  # protocol name to how many members offer it

    def move(self, move: Move, now: int) -> None:
        """Change the state.

        :raises IllegalMoveError: `TRANSITIONS` has no such move
        """
        self.state = target_of(TRANSITIONS, self.state, move, f"group {self.group_id!r}")
        self.state_since = now

    @property
    def all_joined(self) -> bool:
        """Whether every member has a parked JoinGroup, and no member id handed out is still unused."""
        return self.waiting == len(self.members) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of any member."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # ---- members

    def add(self, member: Member) -> None:
        """Add a member; the first one becomes the leader."""
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.instances[member.group_instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self._offered.update(name for name, _ in member.protocols)

    def remove(self, member_id: str) -> Member | None:
        """Remove a member or a pending id, and return the member. If it led, the first of the other members leads."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._withdraw(member)
            if member.group_instance_id is not None:
                del self.instances[member.group_instance_id]
            if member.session is not None:
                member.session.cancel()
                member.session = None
            if self.leader_id == member_id:
                self.leader_id = next(iter(self.members), None)
        self.drop_pending(member_id)
        self.unsynced.discard(member_id)
        return member

    def rename(self, member: Member, member_id: str) -> None:
        """Give a static member another id; its place in the order is the last."""
        old = member.member_id
        del self.members[old]
        self.members[member_id] = member
        member.member_id = member_id
        assert member.group_instance_id is not None, "only static members are renamed"
        self.instances[member.group_instance_id] = member_id
        if self.leader_id == old:
            self.leader_id = member_id
        if old in self.unsynced:
            self.unsynced.remove(old)
            self.unsynced.add(member_id)

    def offer(self, member: Member, protocols: Protocols) -> None:
        """Replace the protocols that a member offers."""
        self._withdraw(member)
        member.protocols = protocols
        self._offered.update(name for name, _ in protocols)

    def drop_pending(self, member_id: str) -> bool:
        """Remove a pending id; return whether there was one."""
        timer = self.pending.pop(member_id, None)
        if timer is not None:
            timer.cancel()
        return timer is not None

    def _withdraw(self, member: Member) -> None:
        self._offered.subtract(name for name, _ in member.protocols)
        for name, _ in member.protocols:
            if not self._offered[name]:
                del self._offered[name]

    def check_member(
        self, member_id: str, group_instance_id: str | None, generation_id: int | None = None
    ) -> ErrorCode:
        """Return what is wrong with a request in the name of this member: NONE, UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID
        (KIP-345).

        With a generation, which must be the current one, also ILLEGAL_GENERATION.
        """
        if group_instance_id is not None:
            holder = self.instances.get(group_instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if holder != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if generation_id in (None, self.generation_id) else ErrorCode.ILLEGAL_GENERATION

    # ---- protocols

    def accepts(self, protocol_type: str, names: list[str]) -> bool:
        """Return whether a member that offers these protocols can be in one group with the present members."""
        if self.state is State.EMPTY:
            return bool(protocol_type and names)
        everyone = len(self.members)
        return self.protocol_type == protocol_type and any(self._offered[name] == everyone for name in names)

    def select_protocol(self) -> str:
        """Return the protocol that most members prefer, of those that all of them offer.

        Every member votes for the first such protocol in its list. Between equal votes the current protocol stays, else
        the one that the member added first prefers wins (Kafka leaves this open).
        """
        everyone = len(self.members)
        votes: Counter[str] = Counter()
        for member in self.members.values():
            votes[next(name for name, _ in member.protocols if self._offered[name] == everyone)] += 1
        most = max(votes.values())
        if self.protocol is not None and votes[self.protocol] == most:
            return self.protocol
        first = next(iter(self.members.values()))
        return next(
            (name for name, _ in first.protocols if votes.get(name) == most),
            next(name for name, count in votes.items() if count == most),
        )

    def read_subscriptions(self, subscribed: Subscribed) -> None:
        """Set `subscribed` from the metadata that members offered for the chosen protocol."""
        self.subscribed = None
        if self.protocol_type != CONSUMER or (self.members and self.protocol is None):
            return
        topics: set[str] = set()
        seen: set[bytes] = set()
        for member in self.members.values():
            metadata = member.metadata(self.protocol)
            if metadata in seen:
                continue
            seen.add(metadata)
            named = subscribed(metadata)
            if named is None:
                return
            topics |= named
        self.subscribed = frozenset(topics)

    def is_subscribed(self, topic: str) -> bool:
        """Return whether a member may read the topic: any, if a consumer's subscription cannot be decoded."""
        return self.protocol_type == CONSUMER if self.subscribed is None else topic in self.subscribed

    # ---- offsets

    def check_commit(self, member_id: str, group_instance_id: str | None, epoch: int, version: int) -> ErrorCode:
        """See `AnyGroup`. While a rebalance is being prepared the generation is still the old one."""
        if self.state is State.EMPTY and epoch < 0:
            return ErrorCode.NONE
        if epoch < 0 and not member_id and group_instance_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = self.check_member(member_id, group_instance_id, epoch)
        if not error and self.state is State.COMPLETING:
            error = ErrorCode.REBALANCE_IN_PROGRESS
        return error

    def check_partition(self, member_id: str, epoch: int, topic_id: uuid.UUID | None, partition: int) -> ErrorCode:
        """See `AnyGroup`: every member may commit every partition."""
        return ErrorCode.NONE

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """See `AnyGroup`: everybody may read offsets."""
        return ErrorCode.NONE

    @property
    def may_expire(self) -> bool:
        """Offsets expire in a group that never had members, in one that has none now, and in a Stable one of consumers,
        whose subscriptions say which topics are in use."""
        if self.protocol_type is None or self.state is State.EMPTY:
            return True
        return self.state is State.STABLE and self.subscribed is not None

    def unused_since(self, committed: Committed) -> int:
        """See `AnyGroup`."""
        had_members = self.protocol_type is not None and self.state is State.EMPTY
        return self.state_since if had_members else committed.commit_timestamp

    def tombstones(self) -> list[events.LogRecord]:
        """See `AnyGroup`."""
        return [events.LogRecord(m.GroupMetadataKey(group=self.group_id), None)]

    @property
    def is_unused(self) -> bool:
        """See `AnyGroup`."""
        return self.state is State.EMPTY and not self.pending

    def end(self, now: int) -> None:
        """See `AnyGroup`."""
        self.move(Move.RESIGN, now)
        sessions = [member.session for member in self.members.values()]
        for timer in (self.join_timer, self.sync_timer, *self.pending.values(), *sessions):
            if timer is not None:
                timer.cancel()
