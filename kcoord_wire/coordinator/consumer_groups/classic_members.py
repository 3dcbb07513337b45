"""Members of the classic protocol in a group of KIP-848: JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

A member's generation is its member epoch. JoinGroup is a heartbeat that reports what the member owns and moves it one
step on; SyncGroup returns what it may use; Heartbeat says when there is something to join for.

Laws:

* No request is parked: the group does not wait for its members.
* A member that is asked to join again, or has joined, has its rebalance timeout for that, then for SyncGroup.
* The group becomes classic when the last member of KIP-848 is gone.

Source: KIP-848 "Migration Plan"; Kafka's `GroupMetadataManager.java` (the methods ending in ToConsumerGroup).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from kcoord_wire import messages as m
from kcoord_wire.assignors.model import MemberSubscription
from kcoord_wire.coordinator.consumer_groups import migration
from kcoord_wire.coordinator.consumer_groups.group import (
    NOBODY,
    ClassicMember,
    ConsumerGroup,
    Member,
    MemberState,
    Refused,
)
from kcoord_wire.coordinator.consumer_groups.progress import Progress, Records
from kcoord_wire.coordinator.core import apis, events
from kcoord_wire.coordinator.core.apis import refusal
from kcoord_wire.coordinator.core.config import MigrationPolicy
from kcoord_wire.coordinator.core.groups import CONSUMER
from kcoord_wire.errors import DecodeError
from kcoord_wire.messages import ConsumerGroupHeartbeatRequestTopicPartitions as Owned
from kcoord_wire.protocol.error_codes import ErrorCode

_REBALANCING: Final = ErrorCode.REBALANCE_IN_PROGRESS

Convert = Callable[[ConsumerGroup, Member | None], None]
"""Makes a group classic; rebalances it if a member is given, which caused that."""


class _Joining(NamedTuple):
    """A JoinGroup that is in order.

    :ivar member: as it was before; of a new one, with defaults
    :ivar replaced: the static member whose place it takes
    :ivar subscription: what its first protocol says
    """

    member: Member
    replaced: Member | None
    subscription: MemberSubscription


class ClassicMembers:
    """Answers the requests of classic members to a group of KIP-848."""

    def __init__(self, progress: Progress, convert: Convert) -> None:
        self._progress = progress
        self._shared = progress.shared
        self._convert = convert

    # ---- JoinGroup

    def join(self, request: events.Request, message: m.JoinGroupRequest, group: ConsumerGroup) -> None:
        """Answer a JoinGroup to a group with members."""
        try:
            self._check_group(group, message)
            is_unknown = not message.member_id
            if is_unknown and message.group_instance_id is None and request.version >= apis.MEMBER_ID_REQUIRED_FROM:
                raise Refused(ErrorCode.MEMBER_ID_REQUIRED, request.unique)
            joining = self._joining(group, message, message.member_id or request.unique)
        except Refused as refused:
            answer = refusal(message, request.version, refused.code)
            if refused.code is ErrorCode.MEMBER_ID_REQUIRED:
                answer.member_id = refused.text
            return self._shared.effects.reply(request, answer)
        updated = self._joined(request, message, group, joining)
        assert updated.classic is not None, "it has just joined by the classic protocol"
        answer = m.JoinGroupResponse(
            member_id=updated.member_id,
            generation_id=updated.epoch,
            protocol_type=CONSUMER,
            protocol_name=updated.classic.protocols[0][0],
        )
        return self._shared.effects.reply(request, answer, self._shared.effects.appended)

    def _check_group(self, group: ConsumerGroup, message: m.JoinGroupRequest) -> None:
        config, names = self._shared.config, [protocol.name for protocol in message.protocols]
        if config.consumer_migration_policy is MigrationPolicy.DISABLED:
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "migration is disabled")
        is_known = message.member_id in group.members or group.static_member(message.group_instance_id) is not None
        if not is_known and len(group.members) >= config.consumer_max_size:
            raise Refused(ErrorCode.GROUP_MAX_SIZE_REACHED, "the group is full")
        agrees = any(group.offered[name] == group.classic_members for name in names)
        if message.protocol_type != CONSUMER or not agrees:
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "no protocol in common")

    def _joining(self, group: ConsumerGroup, message: m.JoinGroupRequest, member_id: str) -> _Joining:
        instance_id = message.group_instance_id
        try:
            subscription = self._shared.embedded.decode_subscription(bytes(message.protocols[0].metadata), instance_id)
        except DecodeError as cause:
            raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, str(cause)) from None
        if instance_id is None:
            return _Joining(group.members.get(member_id) or Member(member_id=member_id), None, subscription)
        if message.member_id:
            return _Joining(group.member(member_id, instance_id), None, subscription)
        holder = group.static_member(instance_id)
        if holder is None:
            return _Joining(Member(member_id=member_id), None, subscription)
        return _Joining(replace(holder, member_id=member_id, epoch=0, previous_epoch=0), holder, subscription)

    def _joined(
        self, request: events.Request, message: m.JoinGroupRequest, group: ConsumerGroup, joining: _Joining
    ) -> Member:
        """Store a member that joins, and move it on."""
        progress, records = self._progress, Records()
        member, replaced, subscription = joining
        downgrades = replaced is not None and migration.may_downgrade(self._shared, group, {replaced.member_id}, 1)
        timeout = message.rebalance_timeout_ms if request.version >= apis.REBALANCE_TIMEOUT_FROM else -1
        updated = replace(
            member,
            instance_id=message.group_instance_id or member.instance_id,
            rack_id=subscription.rack or member.rack_id,
            rebalance_timeout_ms=timeout if timeout >= 0 else message.session_timeout_ms,
            topics=tuple(sorted(set(subscription.topics))),
            regex="",
            client_id=request.client_id,
            client_host=request.client_host,
            classic=ClassicMember(
                message.session_timeout_ms,
                tuple((protocol.name, bytes(protocol.metadata)) for protocol in message.protocols),
            ),
        )
        if replaced is not None:
            progress.replace_static(group, replaced, member, records)
        has_new_topics = progress.update(group, member, updated, records, is_replaced=replaced is not None)
        if downgrades:
            updated = self._downgrade(group, updated, subscription, records)
            return updated
        progress.assign(group, records)
        updated = progress.step(group, updated, self._owned(subscription), records, has_new_topics=has_new_topics)
        if records:
            self._shared.effects.append(group, records)
        timers = group.timers[updated.member_id]
        timers.end_classic()
        progress.keep_alive(group, updated)
        timers.sync = progress.time_classic(group, updated, events.Trigger.SYNC_EXPIRED)
        return updated

    def _downgrade(
        self, group: ConsumerGroup, updated: Member, subscription: MemberSubscription, records: Records
    ) -> Member:
        """A static member has come back by the classic protocol, and was the last one of KIP-848."""
        rebalances = group.epoch > group.assignment_epoch
        if not rebalances:
            updated = self._progress.step(group, updated, self._owned(subscription), records)
        if records:
            self._shared.effects.append(group, records)
        self._convert(group, updated if rebalances else None)
        return updated

    def _owned(self, subscription: MemberSubscription) -> Sequence[Owned]:
        ids = ((self._shared.topics.id_of(name), numbers) for name, numbers in subscription.owned.items())
        return [Owned(topic_id=topic_id, partitions=list(numbers)) for topic_id, numbers in ids if topic_id is not None]

    # ---- SyncGroup, Heartbeat

    def sync(self, request: events.Request, message: m.SyncGroupRequest, group: ConsumerGroup) -> None:
        """Answer a SyncGroup with what the member may use."""
        try:
            member, classic = self._classic(group, message)
            is_other = message.protocol_name not in (None, classic.protocols[0][0])
            if message.protocol_type not in (None, CONSUMER) or is_other:
                raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "another protocol")
            if group.epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
                self._await_join(group, member)
                raise Refused(_REBALANCING, "a new epoch has begun")
        except Refused as refused:
            return self._shared.effects.reply(request, refusal(message, request.version, refused.code))
        timers = group.timers[member.member_id]
        if timers.sync is not None:
            timers.sync.cancel()
        self._progress.keep_alive(group, member)
        answer = m.SyncGroupResponse(
            protocol_type=message.protocol_type,
            protocol_name=message.protocol_name,
            assignment=migration.assignment_bytes(self._shared.topics, member.assigned, classic.protocols[0][1]),
        )
        return self._shared.effects.reply(request, answer, group.written)

    def heartbeat(self, request: events.Request, message: m.HeartbeatRequest, group: ConsumerGroup) -> None:
        """Answer a Heartbeat: REBALANCE_IN_PROGRESS where the member gets on by joining."""
        try:
            member, _ = self._classic(group, message)
        except Refused as refused:
            return self._shared.effects.reply(request, refusal(message, request.version, refused.code))
        self._progress.keep_alive(group, member)
        if not self._has_to_join(group, member):
            return self._shared.effects.reply(request, m.HeartbeatResponse())
        self._await_join(group, member)
        return self._shared.effects.reply(request, refusal(message, request.version, _REBALANCING))

    @staticmethod
    def _classic(
        group: ConsumerGroup, message: m.SyncGroupRequest | m.HeartbeatRequest
    ) -> tuple[Member, ClassicMember]:
        """Return the classic member that a request names."""
        member = group.member(message.member_id, message.group_instance_id)
        if member.classic is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, "a member of the newer protocol")
        if message.generation_id != member.epoch:
            raise Refused(ErrorCode.ILLEGAL_GENERATION, "another epoch")
        return member, member.classic

    @staticmethod
    def _has_to_join(group: ConsumerGroup, member: Member) -> bool:
        if member.epoch < group.epoch or member.state is MemberState.UNREVOKED_PARTITIONS:
            return True
        if member.state is not MemberState.UNRELEASED_PARTITIONS:
            return False
        return not any(
            partition not in member.assigned.get(topic_id, ()) and group.partition_epoch(topic_id, partition) != NOBODY
            for topic_id, partitions in group.target.get(member.member_id, {}).items()
            for partition in partitions
        )

    def _await_join(self, group: ConsumerGroup, member: Member) -> None:
        timers = group.timers[member.member_id]
        if timers.join is None or not timers.join.live:
            timers.join = self._progress.time_classic(group, member, events.Trigger.REBALANCE_EXPIRED)

    # ---- LeaveGroup

    def leave(self, request: events.Request, message: m.LeaveGroupRequest, group: ConsumerGroup) -> None:
        """Answer a LeaveGroup: it removes members of both protocols."""
        leavers: Sequence[m.LeaveGroupRequestMemberIdentity] = message.members
        if request.version < apis.BATCH_LEAVE_FROM:
            leavers = [m.LeaveGroupRequestMemberIdentity(member_id=message.member_id)]
        gone: dict[str, Member] = {}
        answers = []
        for leaver in leavers:
            error = ErrorCode.NONE
            try:
                member = self._leaver(group, leaver)
                gone[member.member_id] = member
            except Refused as refused:
                error = refused.code
            answers.append(
                m.LeaveGroupResponseMemberResponse(
                    member_id=leaver.member_id, group_instance_id=leaver.group_instance_id, error_code=error
                )
            )
        if gone:
            self._progress.lose(group, list(gone.values()), events.Trigger.MEMBER_LEFT, "left")
        if request.version < apis.BATCH_LEAVE_FROM:
            answer = m.LeaveGroupResponse(error_code=answers[0].error_code)
        else:
            answer = m.LeaveGroupResponse(members=answers)
        self._shared.effects.reply(request, answer, self._shared.effects.appended if gone else 0)

    @staticmethod
    def _leaver(group: ConsumerGroup, leaver: m.LeaveGroupRequestMemberIdentity) -> Member:
        static = group.static_member(leaver.group_instance_id)
        if not leaver.member_id and static is not None:  # an operator removes a static member
            return static
        return group.member(leaver.member_id, leaver.group_instance_id)
