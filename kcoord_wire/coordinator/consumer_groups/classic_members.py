"""Members of the classic protocol in a group of KIP-848 (JoinGroup, SyncGroup, Heartbeat and LeaveGroup), and the
conversions of a group between the two protocols while its members go on.

A member's generation is its member epoch. JoinGroup is a heartbeat that reports what the member owns and moves it one
step on; SyncGroup returns what it may use; Heartbeat says when there is something to join for.

Laws:

* No request is parked: the group does not wait for its members.
* A member that is asked to join again, or has joined, has its rebalance timeout for that, then for SyncGroup.
* The group becomes classic when the last member of KIP-848 is gone.
* A group is converted in one append: what removes it in the one form, then the whole of it in the other. Committed
  offsets stay.
* Each member keeps what it was assigned: a classic generation becomes the group's epoch, and the reverse.
* A group without members is converted whatever the policy says.

Source: KIP-848 "Migration Plan"; Kafka's `GroupMetadataManager.java` (the methods ending in ToConsumerGroup),
`ConsumerGroup.java` (fromClassicGroup), `ClassicGroup.java` (fromConsumerGroup).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from kcoord_wire import messages as m
from kcoord_wire.assignors.embedded import ConsumerProtocol
from kcoord_wire.assignors.subscriptions import MemberAssignment, MemberSubscription
from kcoord_wire.coordinator.consumer_groups.epoch_group import Target
from kcoord_wire.coordinator.consumer_groups.epochs import Records, hash_topics
from kcoord_wire.coordinator.consumer_groups.group import (
    NOBODY,
    ClassicMember,
    ConsumerGroup,
    Member,
    MemberState,
)
from kcoord_wire.coordinator.consumer_groups.progress import Progress
from kcoord_wire.coordinator.core import apis, events
from kcoord_wire.coordinator.core import groups as classic
from kcoord_wire.coordinator.core.apis import Refused, refusal
from kcoord_wire.coordinator.core.config import MigrationPolicy
from kcoord_wire.coordinator.core.groups import CONSUMER, BaseGroup, TopicNames
from kcoord_wire.coordinator.core.machine import lacks_protocol, leave_answer
from kcoord_wire.errors import DecodeError
from kcoord_wire.messages import ConsumerGroupHeartbeatRequestTopicPartitions as Owned
from kcoord_wire.protocol.error_codes import ErrorCode

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
    """Answers the requests of classic members to a group of KIP-848, or raises `Refused`."""

    def __init__(self, progress: Progress, convert: Convert) -> None:
        self._progress = progress
        self._convert = convert

    # ---- JoinGroup

    def join(self, request: events.Request, message: m.JoinGroupRequest, group: ConsumerGroup) -> None:
        """Answer a JoinGroup to a group with members."""
        self._check_group(group, message)
        is_unknown = not message.member_id and message.group_instance_id is None
        if is_unknown and request.version >= apis.MEMBER_ID_REQUIRED_FROM:
            answer = refusal(message, request.version, ErrorCode.MEMBER_ID_REQUIRED)
            answer.member_id = request.unique
            return self._progress.effects.reply(request, answer)
        joining = self._joining(group, message, message.member_id or request.unique)
        updated = self._joined(request, message, group, joining)
        assert updated.classic is not None, "it has just joined by the classic protocol"
        answer = m.JoinGroupResponse(
            member_id=updated.member_id,
            generation_id=updated.epoch,
            protocol_type=CONSUMER,
            protocol_name=updated.classic.protocols[0][0],
        )
        return self._progress.effects.reply(request, answer, self._progress.effects.appended)

    def _check_group(self, group: ConsumerGroup, message: m.JoinGroupRequest) -> None:
        config, names = self._progress.config, [protocol.name for protocol in message.protocols]
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
            subscription = self._progress.embedded.decode_subscription(
                bytes(message.protocols[0].metadata), instance_id
            )
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
        downgrades = replaced is not None and may_downgrade(self._progress, group, {replaced.member_id}, 1)
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
            self._progress.effects.append(group, records)
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
            self._progress.effects.append(group, records)
        self._convert(group, updated if rebalances else None)
        return updated

    def _owned(self, subscription: MemberSubscription) -> Sequence[Owned]:
        ids = ((self._progress.topics.id_of(name), numbers) for name, numbers in subscription.owned.items())
        return [Owned(topic_id=topic_id, partitions=list(numbers)) for topic_id, numbers in ids if topic_id is not None]

    # ---- SyncGroup, Heartbeat

    def sync(self, request: events.Request, message: m.SyncGroupRequest, group: ConsumerGroup) -> None:
        """Answer a SyncGroup with what the member may use."""
        if lacks_protocol(request, message):
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        member, classic = self._classic(group, message)
        is_other = message.protocol_name not in (None, classic.protocols[0][0])
        if message.protocol_type not in (None, CONSUMER) or is_other:
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "another protocol")
        if group.epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._await_join(group, member)
            raise Refused(ErrorCode.REBALANCE_IN_PROGRESS, "a new epoch has begun")
        timers = group.timers[member.member_id]
        events.cancel(timers.sync)
        self._progress.keep_alive(group, member)
        answer = m.SyncGroupResponse(
            protocol_type=message.protocol_type,
            protocol_name=message.protocol_name,
            assignment=assignment_bytes(self._progress.topics, member.assigned, classic.protocols[0][1]),
        )
        return self._progress.effects.reply(request, answer, group.written)

    def heartbeat(self, request: events.Request, message: m.HeartbeatRequest, group: ConsumerGroup) -> None:
        """Answer a Heartbeat: REBALANCE_IN_PROGRESS where the member gets on by joining."""
        member, _ = self._classic(group, message)
        self._progress.keep_alive(group, member)
        if self._has_to_join(group, member):
            self._await_join(group, member)
            raise Refused(ErrorCode.REBALANCE_IN_PROGRESS)
        self._progress.effects.reply(request, m.HeartbeatResponse())

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
        gone: dict[str, Member] = {}

        def let_go(leaver: m.LeaveGroupRequestMemberIdentity) -> ErrorCode:
            try:
                member = self._leaver(group, leaver)
            except Refused as refused:
                return refused.error
            gone[member.member_id] = member
            return ErrorCode.NONE

        answer = leave_answer(request, message, let_go)
        if gone:
            self._progress.lose(group, list(gone.values()), events.Trigger.MEMBER_LEFT, "left")
        self._progress.effects.reply(request, answer, self._progress.effects.appended if gone else 0)

    @staticmethod
    def _leaver(group: ConsumerGroup, leaver: m.LeaveGroupRequestMemberIdentity) -> Member:
        static = group.static_member(leaver.group_instance_id)
        if not leaver.member_id and static is not None:  # an operator removes a static member
            return static
        return group.member(leaver.member_id, leaver.group_instance_id)


_NEWEST: Final = 3  # version of the embedded protocol

# ---- to KIP-848


def check_upgrade(progress: Progress, group: BaseGroup) -> None:
    """Check that a classic group with members may become one of KIP-848.

    :raises Refused: GROUP_ID_NOT_FOUND: the policy does not allow it, or the group cannot be one of consumers
    """
    text = None
    if not progress.config.consumer_migration_policy.upgrades:
        text = "upgrades are disabled"
    elif group.protocol_type != CONSUMER:
        text = "its members are not consumers"
    elif len(group.members) > progress.config.consumer_max_size:
        text = "it has more members than a consumer group may have"
    if text is not None:
        raise _cannot(group, text)


def upgraded(progress: Progress, group: BaseGroup) -> ConsumerGroup:
    """Return what a classic group becomes when a member of KIP-848 joins it; the group itself is not changed.

    :raises Refused: as `check_upgrade`; or what its members have sent cannot be read, or would be lost
    """
    new = ConsumerGroup(group.group_id, progress.effects.now)
    new.offsets = group.offsets
    new.written = group.written
    if not isinstance(group, classic.Group) or group.state is classic.State.EMPTY:
        return new
    check_upgrade(progress, group)
    new.epoch = group.generation_id
    try:
        for member in group.members.values():
            _upgrade_member(progress, group, new, member)
    except DecodeError as cause:
        raise _cannot(group, f"what a member has sent is not of a consumer: {cause}") from None
    new.set_assignment_epoch(group.generation_id, 0)
    new.metadata_hash = hash_topics(progress.topics, new.subscribed_topics())
    return new


def _upgrade_member(progress: Progress, group: classic.Group, new: ConsumerGroup, member: classic.Member) -> None:
    metadata = member.metadata(group.protocol) or member.protocols[0][1]
    subscription = progress.embedded.decode_subscription(metadata, member.group_instance_id)
    assigned = progress.embedded.decode_assignment(member.assignment)
    if assigned.user_data:
        raise _cannot(group, "the user data of its assignor would be lost")
    target: dict[uuid.UUID, frozenset[int]] = {}
    for name, partitions in assigned.partitions.items():
        topic_id = progress.topics.id_of(name)
        if topic_id is not None:
            target[topic_id] = frozenset(partitions)
    new.target[member.member_id] = target
    new.put(
        Member(
            member_id=member.member_id,
            instance_id=member.group_instance_id,
            rack_id=subscription.rack,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            topics=tuple(sorted(set(subscription.topics))),
            classic=ClassicMember(member.session_timeout_ms, member.protocols),
            epoch=group.generation_id,
            previous_epoch=group.generation_id,
            assigned={topic: dict.fromkeys(sorted(held), group.generation_id) for topic, held in target.items()},
        )
    )


def _cannot(group: BaseGroup, why: str) -> Refused:
    return Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group.group_id} cannot become a consumer group: {why}.")


# ---- to the classic protocol


def may_downgrade(progress: Progress, group: ConsumerGroup, leaving: Collection[str], joining: int = 0) -> bool:
    """Return whether a group becomes classic when these members are gone: only classic members are left.

    :param joining: how many classic members come in their place
    """
    left = len(group.members) - len(leaving) + joining
    others = (member for member in group.members.values() if member.member_id not in leaving)
    if left == 0 or not progress.config.consumer_migration_policy.downgrades or left > progress.config.max_size:
        return False
    return all(member.classic is not None for member in others)


def downgraded(progress: Progress, group: ConsumerGroup) -> classic.Group:
    """Return what a group of classic members becomes; the group itself is not changed."""
    new = classic.Group(group.group_id, progress.effects.now)
    new.offsets = group.offsets
    new.written = group.written
    new.generation_id = group.epoch
    new.protocol_type = CONSUMER
    for member in group.members.values():
        assert member.classic is not None, "only classic members are left"
        new.add(
            classic.Member(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.classic.session_timeout_ms,
                member.rebalance_timeout_ms,
                member.classic.protocols,
            )
        )
    new.protocol = new.select_protocol()
    for member_id, assigned in new.members.items():
        target = group.target.get(member_id, {})
        assigned.assignment = assignment_bytes(progress.topics, target, assigned.metadata(new.protocol))
    new.move(classic.Move.LOAD_STABLE, progress.effects.now)
    return new


def assignment_bytes(topics: TopicNames, held: Target | Mapping[uuid.UUID, Collection[int]], metadata: bytes) -> bytes:
    """Return partitions as a classic member gets them, in the version of the subscription that it has sent."""
    named = ((topics.name_of(topic_id), sorted(partitions)) for topic_id, partitions in held.items())
    partitions = {name: numbers for name, numbers in named if name is not None}
    version = min(int.from_bytes(metadata[:2]), _NEWEST)
    return ConsumerProtocol(version).encode_assignment(MemberAssignment(partitions))
