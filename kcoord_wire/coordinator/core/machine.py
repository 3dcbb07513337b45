"""The group coordinator as a pure object: the classic protocol, every version of it.

    machine = GroupMachine(brokers, topics, subscribed, config)
    machine.handle(Load([]), now)
    effects = machine.handle(Request(1, JoinGroupRequest(...), version=9, client_id="c1", unique=...), now)

Theory of operation ("Kafka Client-side Assignment Proposal"). Members join: their JoinGroup requests are parked until
all members of the last generation have sent one, or the longest rebalance timeout has passed. Then the generation is
incremented, a protocol that all members offer is chosen, and every JoinGroup is answered; only the leader's answer
lists the members. The leader computes the assignment and sends it with its SyncGroup; the SyncGroup requests of the
others are parked until then. The assignment is written to the log, and every SyncGroup is answered: the group is
Stable. This starts over when a member is silent for its session timeout, leaves, is new, or has changed what it offers.

`_JOIN`, `_SYNC` and `_HEARTBEAT` say what each request does in each state, and `groups.TRANSITIONS` which moves exist.

Laws (besides those of events.py):

* A member with a parked request is alive: its session timer may fire without effect, and is restarted with the answer
  ("Kafka 0.9 Consumer Rewrite Design", section "Heartbeats during rebalance"). A new member, which has no id to send
  heartbeats with, is kept for the join timeout of new members instead.
* A generation is in the log before its assignment is answered, and an offset before its commit is answered. What a read
  answers is in the log too.
* A member that is removed while a request is parked is answered UNKNOWN_MEMBER_ID.

Source: KIP-62, 134, 345, 389, 394, 559, 800, 814; Kafka's `GroupMetadataManager.java`, `ClassicGroup.java`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core import admin, apis, events, offsets
from kcoord_wire.coordinator.core.brokers import Brokers
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.groups import (
    BaseGroup,
    Group,
    Member,
    Move,
    Protocols,
    Pulse,
    State,
    Subscribed,
    TopicNames,
    group_record,
    replay,
)
from kcoord_wire.coordinator.core.offsets import DeletedTopics, PendingOffsets
from kcoord_wire.coordinator.core.rebalancing import RebalancingMachine
from kcoord_wire.protocol.error_codes import ErrorCode

_NO_MEMBER: Final = Member("", None, "", "", 0, 0, ())
_ALIVE: Final = m.HeartbeatResponse()  # shared, because it is most of what a coordinator answers; never changed


class GroupMachine(RebalancingMachine):
    """All groups of one coordinator. Until the first `Load`, it answers COORDINATOR_LOAD_IN_PROGRESS (14), except to
    Heartbeat (answered without an error, as Kafka does) and FindCoordinator.

    :param brokers: what FindCoordinator answers, and which partition of ``__consumer_offsets`` a group belongs to
    :param topics: the topics that exist; commits to others are refused
    :param subscribed: decodes the topics of a subscription
    :param config: Kafka's defaults if None
    :ivar groups: by id
    """

    def __init__(
        self, brokers: Brokers, topics: TopicNames, subscribed: Subscribed, config: GroupConfig | None = None
    ) -> None:
        super().__init__(subscribed, config)
        self.brokers = brokers
        self.topics = topics
        self.groups: dict[str, BaseGroup] = {}
        self._pending = PendingOffsets()
        self._deleted = DeletedTopics()
        self._handlers |= {
            m.FindCoordinatorRequest: partial(admin.find_coordinator, self._effects, brokers),
            m.HeartbeatRequest: self._heartbeat,
            m.JoinGroupRequest: self._join,
            m.SyncGroupRequest: self._sync,
            m.LeaveGroupRequest: self._leave,
            m.OffsetCommitRequest: self._commit,
            m.OffsetFetchRequest: partial(offsets.fetch, self._effects, self.groups, topics, self._pending),
            m.OffsetDeleteRequest: partial(offsets.delete, self._effects, self.groups, topics, self._pending),
            m.TxnOffsetCommitRequest: partial(
                offsets.commit_in_transaction, self._effects, self.groups, topics, self.config, self._pending
            ),
            m.WriteTxnMarkersRequest: partial(offsets.end_transactions, self._effects, self.groups, self._pending),
            m.DescribeGroupsRequest: partial(admin.describe, self._effects, self.groups),
            m.ListGroupsRequest: partial(admin.list_groups, self._effects, self.groups),
            m.DeleteGroupsRequest: self._delete_groups,
        }

    def _take_in(self, event: events.Event) -> None:
        if isinstance(event, events.Load):
            self._load(event.records, event.partitions)
            offsets.load_pending(self.groups, self._pending, event.pending, self._effects.now)
            self._forget_deleted(event.partitions)
        elif isinstance(event, events.Rebalance):
            self._rebalance_requested(event)
        elif isinstance(event, events.TopicsDeleted):
            self._deleted.note(event.names, self._all_partitions() if self._unavailable else self.brokers.loading)
            offsets.forget_topics(self._effects, self.groups, self._pending, event.names)
        elif isinstance(event, events.Resign):
            self._resign(event.partitions)

    def _refuses(self, message: Any) -> ErrorCode | None:
        """See `LoggedMachine`. A request of a transaction comes from the transaction coordinator, past what keeps
        clients' requests away from partitions of ``__consumer_offsets`` that are being read: the `Load` would miss
        it."""
        loading = self.brokers.loading
        if loading and self._concerns(message, loading):
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if self._unavailable is None or isinstance(message, m.FindCoordinatorRequest):
            return None
        return self._unavailable

    def _concerns(self, message: Any, partitions: Set[int]) -> bool:
        """Return whether a request of a transaction is about these partitions of ``__consumer_offsets``."""
        if isinstance(message, m.TxnOffsetCommitRequest):
            return self.brokers.groups.partition_of(message.group_id) in partitions
        if isinstance(message, m.WriteTxnMarkersRequest):
            topics = (topic for marker in message.markers for topic in marker.topics)
            return any(not partitions.isdisjoint(topic.partition_indexes) for topic in topics)
        return False

    def _refuse(self, request: events.Request, error: ErrorCode, after: int = 0) -> None:
        """See `LoggedMachine`. As in Kafka, members do not give up their generation because the log is being read."""
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and isinstance(request.message, m.HeartbeatRequest):
            self._effects.reply(request, _ALIVE)
        else:
            super()._refuse(request, error, after)

    # ---- JoinGroup

    def _join(self, request: events.Request, message: m.JoinGroupRequest) -> None:
        if error := self._invalid_join(message):
            return self._refuse(request, error)
        group = self._classic(message.group_id)
        if group is None:
            if message.group_id in self.groups:
                return self._refuse_join(request, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            group = Group(message.group_id, self._effects.now)
            self.groups[group.group_id] = group
            self._effects.append(group, [group_record(group)])
        if not self._has_room(group, message.member_id):
            self._remove(group, message.member_id, "group.max.size")
            self._maybe_complete_join(group)
            return self._refuse_join(request, ErrorCode.GROUP_MAX_SIZE_REACHED)
        if not group.accepts(message.protocol_type, [protocol.name for protocol in message.protocols]):
            return self._refuse_join(request, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message.member_id)
        if not message.member_id:
            return self._join_unknown(request, message, group)
        if message.member_id in group.pending:
            if message.group_instance_id is not None:  # only dynamic members are given ids to join with
                return self._refuse_join(request, ErrorCode.UNKNOWN_SERVER_ERROR)
            return self._admit(request, message, group, message.member_id)
        if error := group.check_member(message.member_id, message.group_instance_id):
            return self._refuse(request, error)
        return _JOIN[group.state](self, request, message, group, group.members[message.member_id])

    def _invalid_join(self, message: m.JoinGroupRequest) -> ErrorCode:
        """Return what is wrong with a JoinGroup whatever the state of its group; NONE if nothing."""
        config = self.config
        if not message.group_id:
            return ErrorCode.INVALID_GROUP_ID
        if not config.min_session_timeout_ms <= message.session_timeout_ms <= config.max_session_timeout_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if message.member_id and message.group_id not in self.groups:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE

    def _has_room(self, group: Group, member_id: str) -> bool:
        if group.state is State.EMPTY:
            return True
        member = group.members.get(member_id)
        if group.state is State.PREPARING:
            return (member is not None and member.join is not None) or group.waiting < self.config.max_size
        return member is not None or len(group.members) < self.config.max_size

    def _join_unknown(self, request: events.Request, message: m.JoinGroupRequest, group: Group) -> None:
        instance = message.group_instance_id
        new_id = f"{request.client_id if instance is None else instance}-{request.unique}"
        if instance is not None:
            if instance in group.instances:
                return self._replace_static(request, message, group, new_id)
            return self._admit(request, message, group, new_id)
        if request.version < apis.MEMBER_ID_REQUIRED_FROM:
            return self._admit(request, message, group, new_id)
        until = self._effects.now + message.session_timeout_ms
        group.pending[new_id] = self._timers.start(until, partial(self._pending_expired, group, new_id))
        return self._refuse_join(request, ErrorCode.MEMBER_ID_REQUIRED, new_id, group.written)

    def _admit(self, request: events.Request, message: m.JoinGroupRequest, group: Group, member_id: str) -> None:
        """Add a new member, and park its request."""
        member = Member(
            member_id,
            message.group_instance_id,
            request.client_id,
            request.client_host,
            message.session_timeout_ms,
            _rebalance_timeout(request, message),
            _protocols(message),
        )
        group.drop_pending(member_id)
        if not group.members:
            group.protocol_type = message.protocol_type
        if group.state is State.PREPARING and group.filling:
            group.filling_grew = True
        group.add(member)
        member.is_new = True
        self._park_join(group, member, request)
        self._keep_alive(group, member, self.config.new_member_join_timeout_ms)
        self._rebalance(group, events.Trigger.NEW_MEMBER, member, message.reason)

    def _rejoin(self, request: events.Request, message: m.JoinGroupRequest, group: Group, member: Member) -> None:
        """Park the request of a known member that joins again, perhaps with other protocols."""
        protocols = _protocols(message)
        if member.protocols == protocols:
            trigger = events.Trigger.LEADER_REJOINED
        elif [name for name, _ in member.protocols] == [name for name, _ in protocols]:
            trigger = events.Trigger.SUBSCRIPTION_CHANGED
        else:
            trigger = events.Trigger.PROTOCOLS_CHANGED
        self._update(member, request, message)
        group.offer(member, protocols)
        self._park_join(group, member, request)
        self._rebalance(group, trigger, member, message.reason)

    def _rejoin_completing(
        self, request: events.Request, message: m.JoinGroupRequest, group: Group, member: Member
    ) -> None:
        if member.protocols == _protocols(message):  # it did not get the answer
            self._answer_join(group, member, request)
        else:
            self._rejoin(request, message, group, member)

    def _rejoin_stable(
        self, request: events.Request, message: m.JoinGroupRequest, group: Group, member: Member
    ) -> None:
        # The leader joins again when it has a reason to assign anew, even with an unchanged subscription.
        if group.leader_id == member.member_id or member.protocols != _protocols(message):
            self._rejoin(request, message, group, member)
        else:
            self._answer_join(group, member, request, group.written)

    def _replace_static(self, request: events.Request, message: m.JoinGroupRequest, group: Group, new_id: str) -> None:
        """A static member has restarted: it replaces the member with the same instance id (KIP-345)."""
        old_id = group.instances[message.group_instance_id or ""]
        member = group.members[old_id]
        old_leader = group.leader_id or ""
        self._answer_waiting(group, member, ErrorCode.FENCED_INSTANCE_ID, old_id)
        group.rename(member, new_id)
        member.is_new = False
        member.client_id = request.client_id
        member.client_host = request.client_host
        # In this order, as GroupMetadataManager.updateStaticMemberThenRebalanceOrCompleteJoin in Kafka: if nothing is
        # rebalanced, the session timeout of the former process counts until the first heartbeat of the new one.
        self._keep_alive(group, member)
        self._update(member, request, message)
        group.offer(member, _protocols(message))
        if group.state is not State.STABLE or group.select_protocol() != group.protocol:
            self._park_join(group, member, request)
            return self._rebalance(group, events.Trigger.STATIC_REPLACED, member, message.reason)
        self._effects.append(group, [group_record(group)])
        skip = request.version >= apis.SKIP_ASSIGNMENT_FROM and group.leader_id == new_id
        answer = self._join_response(group, member, members=skip)
        answer.skip_assignment = skip
        if request.version < apis.SKIP_ASSIGNMENT_FROM:
            answer.leader = old_leader  # else it would take itself for the leader, and assign
        return self._effects.reply(request, answer, group.written)

    @staticmethod
    def _update(member: Member, request: events.Request, message: m.JoinGroupRequest) -> None:
        member.session_timeout_ms = message.session_timeout_ms
        member.rebalance_timeout_ms = _rebalance_timeout(request, message)

    def _park_join(self, group: Group, member: Member, request: events.Request) -> None:
        if member.join is not None:  # sent again over another connection; nothing reads the first one any more
            self._refuse(member.join, ErrorCode.REBALANCE_IN_PROGRESS)
        else:
            group.waiting += 1
            if group.state is State.PREPARING and group.rebalance is not None:
                group.rebalance.joins.append((member.member_id, self._effects.now - group.rebalance.started_at))
        member.join = request

    # ---- SyncGroup

    def _sync(self, request: events.Request, message: m.SyncGroupRequest) -> None:
        if lacks_protocol(request, message):
            return self._refuse(request, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        group = self._find(request, message.group_id)
        if group is None:
            return
        error = group.check_member(message.member_id, message.group_instance_id, message.generation_id)
        if not error and (
            message.protocol_type not in (None, group.protocol_type)
            or message.protocol_name not in (None, group.protocol)
        ):
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if error:
            return self._refuse(request, error)
        return _SYNC[group.state](self, request, message, group, group.members[message.member_id])

    def _sync_preparing(
        self, request: events.Request, message: m.SyncGroupRequest, group: Group, member: Member
    ) -> None:
        self._refuse(request, ErrorCode.REBALANCE_IN_PROGRESS)

    def _sync_completing(
        self, request: events.Request, message: m.SyncGroupRequest, group: Group, member: Member
    ) -> None:
        if member.sync is not None:  # sent again over another connection
            self._answer_sync(group, member, ErrorCode.REBALANCE_IN_PROGRESS)
        member.sync = request
        self._synced(group, member)
        if group.leader_id != member.member_id:
            return
        assigned = {item.member_id: item.assignment for item in message.assignments}
        for other in group.members.values():
            other.assignment = assigned.get(other.member_id, b"")
        group.move(Move.ASSIGN, self._effects.now)
        self._effects.append(group, [group_record(group)])
        for other in group.members.values():
            if other.sync is not None:
                self._answer_sync(group, other, ErrorCode.NONE)
        group.end_rebalance(self._effects, "stable")

    def _sync_stable(self, request: events.Request, message: m.SyncGroupRequest, group: Group, member: Member) -> None:
        member.sync = request
        self._synced(group, member)
        self._answer_sync(group, member, ErrorCode.NONE)

    def _synced(self, group: Group, member: Member) -> None:
        group.unsynced.discard(member.member_id)
        if not group.unsynced:
            events.cancel(group.sync_timer)

    # ---- Heartbeat, LeaveGroup, OffsetCommit

    def _heartbeat(self, request: events.Request, message: m.HeartbeatRequest) -> None:
        group = self.groups.get(message.group_id)
        if not isinstance(group, Group) or not group.group_id:
            return self._heartbeat_of_others(request, message)
        error = group.check_member(message.member_id, message.group_instance_id, message.generation_id)
        if not error:
            error = _HEARTBEAT[group.state]
            self._keep_alive(group, group.members[message.member_id])
        if error:
            self._refuse(request, error)
        else:
            self._effects.reply(request, _ALIVE)

    def _heartbeat_of_others(self, request: events.Request, message: m.HeartbeatRequest) -> None:
        """Answer a Heartbeat for what is not a classic group."""
        self._find(request, message.group_id)

    def pulse(self, message: m.HeartbeatRequest) -> Pulse | None:
        """Return what knows for how long a Heartbeat is answered without an error; None if it is not even now, or its
        group is not of the classic protocol, or the session of its member does not run. For hosts that get the same
        Heartbeat time and again."""
        group = self._classic(message.group_id)
        if self._unavailable is not None or group is None or group.state is State.PREPARING:
            return None
        if group.check_member(message.member_id, message.group_instance_id, message.generation_id):
            return None
        member = group.members[message.member_id]
        return None if member.session is None else Pulse(group, member.session, member.session_timeout_ms)

    def _leave(self, request: events.Request, message: m.LeaveGroupRequest) -> None:
        if not message.group_id:
            return self._refuse(request, ErrorCode.INVALID_GROUP_ID)
        group = self._classic(message.group_id)
        gone: list[tuple[Member, str | None]] = []

        def let_go(leaver: m.LeaveGroupRequestMemberIdentity) -> ErrorCode:
            if group is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            error, member = self._let_go(group, leaver)
            if member is not None:
                gone.append((member, leaver.reason))
            return error

        answer = leave_answer(request, message, let_go)
        if gone and group is not None:
            self._rebalance(group, events.Trigger.MEMBER_LEFT, *gone[0])
        elif group is not None:
            self._maybe_complete_join(group)
        return self._effects.reply(request, answer, self._effects.written(group))

    def _let_go(self, group: Group, leaver: m.LeaveGroupRequestMemberIdentity) -> tuple[ErrorCode, Member | None]:
        member_id = leaver.member_id
        if not member_id and leaver.group_instance_id in group.instances:  # an operator removes a static member
            member_id = group.instances[leaver.group_instance_id or ""]
        elif group.drop_pending(member_id):
            return ErrorCode.NONE, None
        elif error := group.check_member(member_id, leaver.group_instance_id):
            return error, None
        return ErrorCode.NONE, self._remove(group, member_id, "left")

    def _commit(self, request: events.Request, message: m.OffsetCommitRequest) -> None:
        group = offsets.commit(self._effects, self.groups, self.topics, self.config, self._pending, request, message)
        if isinstance(group, Group) and (member := group.members.get(message.member_id)) is not None:
            self._keep_alive(group, member)

    # ---- groups

    def _delete_groups(
        self,
        request: events.Request,
        message: m.DeleteGroupsRequest,
        errors: Mapping[str, ErrorCode] = MappingProxyType({}),
    ) -> None:
        admin.delete_groups(self._effects, self.groups, self._pending, request, message, errors)

    def _find(self, request: events.Request, group_id: str) -> Group | None:
        """Return the group; refuse the request if it does not exist. The one without a name has no members, only the
        offsets of clients that name no group."""
        group = self._classic(group_id) if group_id else None
        if group is None:
            self._refuse(request, ErrorCode.UNKNOWN_MEMBER_ID if group_id else ErrorCode.INVALID_GROUP_ID)
        return group

    def _classic(self, group_id: str) -> Group | None:
        """Return the group; None if there is none of the classic protocol with this id."""
        group = self.groups.get(group_id)
        return group if isinstance(group, Group) else None

    # ---- the whole coordinator

    def _rebalance_requested(self, event: events.Rebalance) -> None:
        group = self._classic(event.group_id)
        if group is not None and group.state in (State.STABLE, State.COMPLETING):
            self._prepare(group, events.Trigger.REQUESTED, _NO_MEMBER, event.reason)

    def _load(self, records: Sequence[events.LogRecord], partitions: frozenset[int] | None) -> None:
        self.brokers.has_groups |= bool(records)
        loaded = replay(records, self._effects.now)
        if partitions is None:
            self._timers.clear()
            self.groups.clear()
            self._unavailable = None
        self.groups.update(loaded)
        for group in loaded.values():
            group.read_subscriptions(self._subscribed)
            for member in group.members.values():
                self._keep_alive(group, member)
            if len(group.members) > self.config.max_size:
                self._prepare(group, events.Trigger.GROUP_TOO_LARGE, next(reversed(group.members.values())), None)
        if partitions is None:
            self._expire_offsets_later()

    def _forget_deleted(self, partitions: frozenset[int] | None) -> None:
        """Forget the offsets of topics that were deleted while the groups of these partitions were read."""
        for names, read in self._deleted.read(self._all_partitions() if partitions is None else partitions):
            own = {name: group for name, group in self.groups.items() if self.brokers.groups.partition_of(name) in read}
            offsets.forget_topics(self._effects, own, self._pending, names)

    def _all_partitions(self) -> frozenset[int]:
        return frozenset(range(len(self.brokers.groups.of)))

    def _resign(self, partitions: frozenset[int] | None) -> None:
        for group in list(self.groups.values()):
            if partitions is None or self.brokers.groups.partition_of(group.group_id) in partitions:
                self._release(group)
                del self.groups[group.group_id]
        self._pending.drop(lambda name: partitions is None or self.brokers.groups.partition_of(name) in partitions)
        if partitions is None:
            self._unavailable = ErrorCode.NOT_COORDINATOR
            self._timers.clear()

    def _release(self, group: BaseGroup) -> None:
        """Give up a group: another coordinator has it now, or this one after the next `Load`."""
        if isinstance(group, Group):
            for member in group.members.values():
                self._answer_waiting(group, member, ErrorCode.NOT_COORDINATOR, member.member_id)
            group.end_rebalance(self._effects, "interrupted")
        group.end(self._effects.now)

    def _expire_offsets_later(self) -> None:
        until = self._effects.now + self.config.offsets_retention_check_interval_ms
        self._timers.start(until, self._expire_offsets)

    def _expire_offsets(self) -> None:
        offsets.expire(self._effects, self.groups, self._pending, self.config.offsets_retention_ms)
        self._expire_offsets_later()


def leave_answer(
    request: events.Request,
    message: m.LeaveGroupRequest,
    let_go: Callable[[m.LeaveGroupRequestMemberIdentity], ErrorCode],
) -> m.LeaveGroupResponse:
    """Return the answer to a LeaveGroup.

    :param let_go: removes a member, and returns why it cannot
    """
    if request.version < apis.BATCH_LEAVE_FROM:
        return m.LeaveGroupResponse(error_code=let_go(m.LeaveGroupRequestMemberIdentity(member_id=message.member_id)))
    return m.LeaveGroupResponse(
        members=[
            m.LeaveGroupResponseMemberResponse(
                member_id=leaver.member_id, group_instance_id=leaver.group_instance_id, error_code=let_go(leaver)
            )
            for leaver in message.members
        ]
    )


def lacks_protocol(request: events.Request, message: m.SyncGroupRequest) -> bool:
    """Return whether a SyncGroup of a version that names the protocol does not."""
    return request.version >= apis.PROTOCOL_NAMED_FROM and None in (message.protocol_type, message.protocol_name)


def _rebalance_timeout(request: events.Request, message: m.JoinGroupRequest) -> int:
    is_given = request.version >= apis.REBALANCE_TIMEOUT_FROM and message.rebalance_timeout_ms >= 0
    return message.rebalance_timeout_ms if is_given else message.session_timeout_ms


def _protocols(message: m.JoinGroupRequest) -> Protocols:
    """Return what is offered; of a protocol that is listed twice, the first."""
    offered: dict[str, bytes] = {}
    for protocol in message.protocols:
        offered.setdefault(protocol.name, bytes(protocol.metadata))
    return tuple(offered.items())


# An Empty group has no members, so a request that names one was refused before.
_JOIN: Mapping[State, Callable[[GroupMachine, events.Request, m.JoinGroupRequest, Group, Member], None]] = {
    State.PREPARING: GroupMachine._rejoin,
    State.COMPLETING: GroupMachine._rejoin_completing,
    State.STABLE: GroupMachine._rejoin_stable,
}
_SYNC: Mapping[State, Callable[[GroupMachine, events.Request, m.SyncGroupRequest, Group, Member], None]] = {
    State.PREPARING: GroupMachine._sync_preparing,
    State.COMPLETING: GroupMachine._sync_completing,
    State.STABLE: GroupMachine._sync_stable,
}
_HEARTBEAT: Mapping[State, ErrorCode] = {
    State.PREPARING: ErrorCode.REBALANCE_IN_PROGRESS,
    State.COMPLETING: ErrorCode.NONE,
    State.STABLE: ErrorCode.NONE,
}
