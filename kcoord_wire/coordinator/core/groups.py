"""Groups: what those of every kind have (`BaseGroup`), and those of the classic one, with members and states.

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
* While `Group.changes` stays and a member's session runs, its Heartbeat is answered likewise, and its timeout stays.
* Writing to the log and reading are inverse: `replay` returns what the other functions have written. A group with
  members comes back Stable, with the chosen protocol of each member only (Kafka's `GroupMetadataManager`).
"""

from __future__ import annotations

import enum
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core import events
from kcoord_wire.coordinator.core.events import LogRecord, target_of
from kcoord_wire.kernel.timers import Timer
from kcoord_wire.protocol.error_codes import ErrorCode

CONSUMER: Final = "consumer"
"""The protocol type of consumers; the coordinator reads subscriptions of such groups only."""

FOREVER: Final = -1
"""The expiry of an offset that the coordinator's retention decides about."""

NO_EPOCH: Final = -1
"""The leader epoch of an offset that was committed without one."""


class TopicNames(Protocol):
    """What the coordinator needs to know of topics: which exist, and their ids."""

    @property
    def changes(self) -> int:
        """How often a topic was created, deleted or given more partitions; it never decreases."""

    def names(self) -> Iterable[str]:
        """Return the names of all topics."""

    def partitions(self, name: str) -> int | None:
        """Return the number of partitions; None if the topic does not exist."""

    def id_of(self, name: str) -> uuid.UUID | None:
        """Return the topic's id; None if the topic does not exist."""

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        """Return the topic's name; None if no topic has the id."""


Subscribed = Callable[[bytes], frozenset[str] | None]
"""Returns the topics that a subscription names; None if it cannot be decoded. The machine itself has no codec."""


class Committed(NamedTuple):
    """A committed offset, as the log has it.

    :ivar offset: the committed offset
    :ivar leader_epoch: of the last record consumed; `NO_EPOCH` if unknown
    :ivar metadata: the client's text
    :ivar commit_timestamp: ms
    :ivar expire_timestamp: ms at which it expires; `FOREVER` where the coordinator's retention decides
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int


class BaseGroup(ABC):
    """What groups of every kind have: an id, a state, members and committed offsets.

    :cvar kind: as ListGroups names the protocol
    :cvar has_offsets: whether offsets may be committed for it
    :ivar state: a member of an enum of strings; its value is what ListGroups returns
    :ivar protocol_type: None for a group that never had a member (offsets only)
    :ivar members: by id
    :ivar offsets: topic to partition to committed offset
    :ivar written: number of the last `Append` that concerns this group
    :ivar state_since: ms of the last move
    :ivar rebalance: the account of the rebalance in progress
    :ivar removed: members lost since the last rebalance began
    """

    __slots__ = ("group_id", "offsets", "rebalance", "removed", "state_since", "written")

    kind: ClassVar[str]
    has_offsets: ClassVar[bool] = True
    state: Any
    protocol_type: str | None
    members: dict[str, Any]

    def __init__(self, group_id: str, now: int) -> None:
        self.group_id: str = group_id
        self.offsets: dict[str, dict[int, Committed]] = {}
        self.rebalance: events.RebalanceAccount | None = None
        self.removed: list[events.Removal] = []
        self.state_since: int = now
        self.written: int = 0

    def begin_rebalance(
        self,
        effects: events.EffectCollector,
        trigger: events.Trigger,
        generation_id: int,
        who: Any,
        instance_id: str | None,
        reason: str | None,
    ) -> events.RebalanceAccount:
        """Begin the account of a rebalance, and report it.

        :param who: the member that has caused it
        """
        self.end_rebalance(effects, "interrupted")
        self.rebalance = account = events.RebalanceAccount(
            group_id=self.group_id,
            generation_id=generation_id,
            trigger=trigger,
            member_id=who.member_id,
            client_id=who.client_id,
            client_host=who.client_host,
            group_instance_id=instance_id,
            reason=reason or None,
            started_at=effects.now,
            removed=self.removed,
        )
        self.removed = []
        effects.report(events.Phase.STARTED, account)
        return account

    def end_rebalance(self, effects: events.EffectCollector, outcome: str) -> None:
        """End the account of the rebalance in progress, if there is one, and report it."""
        rebalance, self.rebalance = self.rebalance, None
        if rebalance is not None:
            rebalance.outcome = outcome
            rebalance.ended_at = effects.now
            effects.report(events.Phase.ENDED, rebalance)

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        return bool(self.state.value == "Empty")

    @property
    def is_unused(self) -> bool:
        """Whether it has no members, and none is about to join."""
        return self.is_empty

    @abstractmethod
    def check_commit(self, member_id: str, group_instance_id: str | None, epoch: int, version: int) -> ErrorCode:
        """Return what is wrong with a commit of this member in this generation or member epoch; NONE if nothing.

        :param version: of the OffsetCommit
        """

    @abstractmethod
    def check_partition(self, member_id: str, epoch: int, topic_id: uuid.UUID | None, partition: int) -> ErrorCode:
        """Return what is wrong with the commit of one partition, which `check_commit` has allowed; NONE if nothing."""

    @abstractmethod
    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Return what is wrong with an OffsetFetch (v9 and later) in the name of this member; NONE if nothing."""

    @abstractmethod
    def is_subscribed(self, topic: str) -> bool:
        """Return whether a member may read the topic."""

    @property
    @abstractmethod
    def may_expire(self) -> bool:
        """Whether offsets of topics that no member subscribes to may expire."""

    @abstractmethod
    def unused_since(self, committed: Committed) -> int:
        """Return since when an offset is not in use, in ms, where no member subscribes to its topic."""

    @abstractmethod
    def tombstones(self) -> list[events.LogRecord]:
        """Return what removes the group, but not its offsets, from the log."""

    @abstractmethod
    def end(self, now: int) -> None:
        """Mark the group as deleted, or as no longer coordinated here."""


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
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""


class Group(BaseGroup):
    """A group of the classic protocol.

    :ivar changes: how often its state, and so its generation, or the id of a member has changed
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
    """

    __slots__ = (
        "_offered",
        "changes",
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
        "state",
        "subscribed",
        "sync_timer",
        "unsynced",
        "waiting",
    )

    kind = "classic"

    def __init__(self, group_id: str, now: int) -> None:
        super().__init__(group_id, now)
        self.state: State = State.EMPTY
        self.changes: int = 0
        self.generation_id: int = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, Member] = {}
        self.instances: dict[str, str] = {}
        self.pending: dict[str, Timer] = {}
        self.unsynced: set[str] = set()
        self.waiting: int = 0
        self.filling: bool = False
        self.filling_grew: bool = False
        self.join_timer: Timer | None = None
        self.sync_timer: Timer | None = None
        self.subscribed: frozenset[str] | None = None
        self._offered: Counter[str] = Counter()  # protocol name to how many members offer it

    def move(self, move: Move, now: int) -> None:
        """Change the state.

        :raises IllegalMoveError: `TRANSITIONS` has no such move
        """
        self.state = target_of(TRANSITIONS, self.state, move, f"group {self.group_id!r}")
        self.state_since = now
        self.changes += 1

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
        self._count(member.protocols)

    def remove(self, member_id: str) -> Member | None:
        """Remove a member or a pending id, and return the member. If it led, the first of the other members leads."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._withdraw(member)
            if member.group_instance_id is not None:
                del self.instances[member.group_instance_id]
            events.cancel(member.session)
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
        self.changes += 1
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
        if protocols != member.protocols:
            self._withdraw(member)
            member.protocols = protocols
            self._count(protocols)

    def drop_pending(self, member_id: str) -> bool:
        """Remove a pending id; return whether there was one."""
        timer = self.pending.pop(member_id, None)
        events.cancel(timer)
        return timer is not None

    def _count(self, protocols: Protocols) -> None:
        for name, _ in protocols:
            self._offered[name] += 1

    def _withdraw(self, member: Member) -> None:
        for name, _ in member.protocols:
            self._offered[name] -= 1
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
        if self.protocol_type == protocol_type:
            for name in names:
                if self._offered[name] == len(self.members):
                    return True
        return False

    def select_protocol(self) -> str:
        """Return the protocol that most members prefer, of those that all of them offer.

        Every member votes for the first such protocol in its list. Between equal votes the current protocol stays, else
        the one that the member added first prefers wins (Kafka leaves this open).
        """
        everyone = len(self.members)
        common = {name for name, count in self._offered.items() if count == everyone}
        if len(common) == 1:
            return common.pop()
        votes: Counter[str] = Counter()
        for member in self.members.values():
            votes[next(name for name, _ in member.protocols if name in common)] += 1
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
        """See `BaseGroup`. While a rebalance is being prepared the generation is still the old one."""
        if self.state is State.EMPTY and epoch < 0:
            return ErrorCode.NONE
        if epoch < 0 and not member_id and group_instance_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = self.check_member(member_id, group_instance_id, epoch)
        if not error and self.state is State.COMPLETING:
            error = ErrorCode.REBALANCE_IN_PROGRESS
        return error

    def check_partition(self, member_id: str, epoch: int, topic_id: uuid.UUID | None, partition: int) -> ErrorCode:
        """See `BaseGroup`: every member may commit every partition."""
        return ErrorCode.NONE

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """See `BaseGroup`: everybody may read offsets."""
        return ErrorCode.NONE

    @property
    def may_expire(self) -> bool:
        """Offsets expire in a group that never had members, in one that has none now, and in a Stable one of consumers,
        whose subscriptions say which topics are in use."""
        if self.protocol_type is None or self.state is State.EMPTY:
            return True
        return self.state is State.STABLE and self.subscribed is not None

    def unused_since(self, committed: Committed) -> int:
        """See `BaseGroup`."""
        had_members = self.protocol_type is not None and self.state is State.EMPTY
        return self.state_since if had_members else committed.commit_timestamp

    def tombstones(self) -> list[events.LogRecord]:
        """See `BaseGroup`."""
        return [events.LogRecord(m.GroupMetadataKey(group=self.group_id), None)]

    @property
    def is_unused(self) -> bool:
        """See `BaseGroup`."""
        return self.state is State.EMPTY and not self.pending

    def end(self, now: int) -> None:
        """See `BaseGroup`."""
        self.move(Move.RESIGN, now)
        sessions = [member.session for member in self.members.values()]
        events.cancel(self.join_timer, self.sync_timer, *self.pending.values(), *sessions)


class Pulse:
    """Knows whether a Heartbeat that a member has sent is still answered without an error.

    :param group: the member's group, in a state in which it is
    :param session: ends when the member is silent
    :param timeout_ms: of the session
    """

    __slots__ = ("_changes", "_group", "_session", "_timeout_ms")

    def __init__(self, group: Group, session: Timer, timeout_ms: int) -> None:
        self._group = group
        self._changes = group.changes
        self._session = session
        self._timeout_ms = timeout_ms

    def goes_on(self, now: int) -> bool:
        """Postpone the end of the member's session, as the Heartbeat does, and return True; return False, and change
        nothing, if the answer may be another one, or more is to be done."""
        session, until = self._session, now + self._timeout_ms
        if self._changes != self._group.changes or session.action is None or until < session.when:
            return False
        session.when = until
        return True


_NO_TIME: Final = -1  # in records of old versions, which lack the field
_NO_TIMEOUT: Final = -1


def group_record(group: Group) -> LogRecord:
    """Return the record of the group's current generation."""
    return LogRecord(
        m.GroupMetadataKey(group=group.group_id),
        m.GroupMetadataValue(
            protocol_type=group.protocol_type or "",
            generation=group.generation_id,
            protocol=group.protocol,
            leader=group.leader_id,
            current_state_timestamp=group.state_since,
            members=[
                m.GroupMetadataValueMemberMetadata(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout=member.rebalance_timeout_ms,
                    session_timeout=member.session_timeout_ms,
                    subscription=member.metadata(group.protocol),
                    assignment=member.assignment,
                )
                for member in group.members.values()
            ],
        ),
    )


def offset_record(group: BaseGroup, topic: str, partition: int, committed: Committed) -> LogRecord:
    """Return the record of a committed offset."""
    return LogRecord(
        m.OffsetCommitKey(group=group.group_id, topic=topic, partition=partition),
        m.OffsetCommitValue(
            offset=committed.offset,
            leader_epoch=committed.leader_epoch,
            metadata=committed.metadata,
            commit_timestamp=committed.commit_timestamp,
            expire_timestamp=committed.expire_timestamp,
        ),
    )


def offset_tombstone(group: BaseGroup, topic: str, partition: int) -> LogRecord:
    """Return what removes a committed offset from the log."""
    return LogRecord(m.OffsetCommitKey(group=group.group_id, topic=topic, partition=partition), None)


def tombstones(group: BaseGroup, pending: Iterable[tuple[str, int]] = ()) -> list[LogRecord]:
    """Return what removes the group and its offsets from the log.

    :param pending: topics and partitions of offsets in transactions that are open
    """
    committed = [(topic, partition) for topic, partitions in group.offsets.items() for partition in partitions]
    keys = dict.fromkeys([*committed, *sorted(pending)])
    return [*(offset_tombstone(group, topic, partition) for topic, partition in keys), *group.tombstones()]


def replay(records: Sequence[LogRecord], now: int) -> dict[str, Group]:
    """Return the groups in a log, by id. Record types of other group protocols are skipped."""
    groups: dict[str, Group] = {}
    offsets: dict[str, dict[str, dict[int, Committed]]] = {}
    for key, value in records:
        if isinstance(key, m.GroupMetadataKey):
            if value is None:
                groups.pop(key.group, None)
            else:
                groups[key.group] = _group_from(key.group, value, now)
        elif isinstance(key, m.OffsetCommitKey | m.LegacyOffsetCommitKey):
            partitions = offsets.setdefault(key.group, {}).setdefault(key.topic, {})
            if value is None:
                partitions.pop(key.partition, None)
            else:
                partitions[key.partition] = committed_from(value)
    for group_id, topics in offsets.items():
        kept = {topic: partitions for topic, partitions in topics.items() if partitions}
        if kept:
            groups.setdefault(group_id, Group(group_id, now)).offsets = kept
    return groups


def committed_from(value: m.OffsetCommitValue | m.LegacyOffsetCommitValue) -> Committed:
    """Return the committed offset that a record has."""
    expires = getattr(value, "expire_timestamp", FOREVER)
    epoch = getattr(value, "leader_epoch", NO_EPOCH)
    return Committed(value.offset, epoch, value.metadata, value.commit_timestamp, expires)


def _group_from(group_id: str, value: m.GroupMetadataValue, now: int) -> Group:
    group = Group(group_id, now)
    group.generation_id = value.generation
    group.protocol_type = value.protocol_type or None
    group.protocol = value.protocol
    for stored in value.members:
        timeout = stored.rebalance_timeout
        member = Member(
            stored.member_id,
            stored.group_instance_id,
            stored.client_id,
            stored.client_host,
            stored.session_timeout,
            stored.session_timeout if timeout == _NO_TIMEOUT else timeout,
            ((value.protocol or "", stored.subscription),),
        )
        member.assignment = stored.assignment
        group.add(member)
    group.leader_id = value.leader
    if group.members:
        group.move(Move.LOAD_STABLE, now)
    if value.current_state_timestamp != _NO_TIME:
        group.state_since = value.current_state_timestamp
    return group
