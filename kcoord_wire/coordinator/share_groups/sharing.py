"""The requests of share groups: ShareGroupHeartbeat (joining, staying, leaving) and ShareGroupDescribe; and the share
partitions whose state a group needs before they can be assigned.

    heartbeat   subscribes to a topic: its partitions are initializing, `InitializeShareState` asks for their state
    event       `ShareStateInitialized`: they are initialized
    heartbeat   the next one begins an epoch, and they are assigned

Laws:

* A request is checked before anything changes: one that is refused leaves no trace.
* A heartbeat with an epoch that is neither the member's nor its previous one is refused with FENCED_MEMBER_EPOCH.
* The answer says what the member may fetch from when it joins, when it names its topics, and when that has changed.
* State that was asked for and has not come is asked for again after `RETRY_MS`, with a heartbeat.

Source: KIP-932; Kafka's `GroupCoordinatorService.java`, `GroupMetadataManager.java` (shareGroupHeartbeat,
initializeShareGroupState), `ShareGroupAssignmentBuilder.java`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from kcoord_wire import messages as m
from kcoord_wire.assignors.kip932 import SIMPLE, ShareSubscription, order_of_names, simple
from kcoord_wire.coordinator.consumer_groups.epoch_group import Target
from kcoord_wire.coordinator.consumer_groups.epochs import Epochs, Records, described_partitions, may_assign
from kcoord_wire.coordinator.consumer_groups.group import JOINING, LEAVING
from kcoord_wire.coordinator.core import events
from kcoord_wire.coordinator.core.admin import not_found
from kcoord_wire.coordinator.core.apis import Refused, filled, refusal
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.events import Request, Trigger
from kcoord_wire.coordinator.core.groups import BaseGroup, TopicNames
from kcoord_wire.coordinator.share_groups import share_records as log
from kcoord_wire.coordinator.share_groups.share_group import STABLE, ShareGroup, ShareMember, StatePartitions
from kcoord_wire.kernel.timers import Timers
from kcoord_wire.protocol.error_codes import ErrorCode

RETRY_MS: Final = 30_000
"""After how long the state of partitions is asked for again (``group.share.initialize.retry.interval.ms``)."""

EARLIEST: Final = 0
"""Where the partitions begin that a topic of the group gets later: none of their records may be left out."""

BY_CONFIG: Final = -1
"""The start offset that the reader of a share partition finds out by the group's ``share.auto.offset.reset``."""

DeleteGroups = Callable[[Request, m.DeleteGroupsRequest, Mapping[str, ErrorCode]], None]
"""Deletes groups and answers; a group with an error is not deleted."""

_LONGEST_ID: Final = 36  # characters of a member id, as many as a UUID has (`KafkaApis.isMemberIdValid`)


@dataclass(slots=True)
class _Deletion:
    """A DeleteGroups that waits for the state of share groups to be deleted.

    :ivar waits_for: ids of these groups
    :ivar errors: group id to why its state could not be deleted
    """

    request: Request
    message: m.DeleteGroupsRequest
    waits_for: set[str]
    errors: dict[str, ErrorCode]


class ShareGroups(Epochs[ShareGroup, ShareMember]):
    """Answers requests of share groups, and moves the groups and their members on.

    :param delete_groups: answers DeleteGroups when the state of share groups is gone
    """

    no_member = ShareMember(member_id="")

    def __init__(
        self,
        groups: dict[str, BaseGroup],
        topics: TopicNames,
        config: GroupConfig,
        timers: Timers,
        effects: events.EffectCollector,
        configs_of: Callable[[str], Mapping[str, str]],
        delete_groups: DeleteGroups,
    ) -> None:
        super().__init__(groups, topics, config, timers, effects, configs_of)
        self._delete = delete_groups
        self._deletions: list[_Deletion] = []

    # ---- ShareGroupHeartbeat

    def heartbeat(self, request: Request, message: m.ShareGroupHeartbeatRequest) -> None:
        """Answer a heartbeat."""
        try:
            _check(message)
            if message.member_epoch == LEAVING:
                self._leave(request, message)
            else:
                self._beat(request, message)
        except Refused as refused:
            answer = m.ShareGroupHeartbeatResponse(error_code=refused.error, error_message=refused.detail)
            self.effects.reply(request, answer)

    def _beat(self, request: Request, message: m.ShareGroupHeartbeatRequest) -> None:
        joins = message.member_epoch == JOINING
        group = self._group(message.group_id, joins=joins)
        member = self._member(group, message)
        updated = _updated(member, request, message)

        records: Records = []
        self.groups[group.group_id] = group
        has_news = self._update(group, member, updated, records)
        self._assign(group, records)
        updated = self._step(group, updated, records, has_news=has_news)
        self.keep_alive(group, updated)
        wanted = self._wanted_states(group, records)
        if records:
            self.effects.append(group, records)
        answer = m.ShareGroupHeartbeatResponse(
            member_id=updated.member_id,
            member_epoch=updated.epoch,
            heartbeat_interval_ms=self.setting(
                group, "share.heartbeat.interval.ms", self.config.share_heartbeat_interval_ms
            ),
        )
        if joins or message.subscribed_topic_names is not None or updated.assigned != member.assigned:
            answer.assignment = _assignment(updated.assigned)
        self.effects.reply(request, answer, group.written)
        if wanted:
            self.effects.initialize_share_state(group.group_id, group.epoch, wanted)

    def _group(self, group_id: str, *, joins: bool) -> ShareGroup:
        group = self.groups.get(group_id)
        if group is None and joins:
            return ShareGroup(group_id, self.effects.now)
        if not isinstance(group, ShareGroup):
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, not_found(ShareGroup.kind, group_id, group))
        return group

    def _member(self, group: ShareGroup, message: m.ShareGroupHeartbeatRequest) -> ShareMember:
        """Return the member of a heartbeat as it was before."""
        member = group.members.get(message.member_id)
        if member is None and len(group.members) >= self.config.share_max_size:
            text = f"The group has {len(group.members)} members, as many as it may have."
            raise Refused(ErrorCode.GROUP_MAX_SIZE_REACHED, text)
        epoch = message.member_epoch
        if epoch == JOINING:
            return member or ShareMember(member_id=message.member_id)
        if member is None:
            raise _unknown(group, message.member_id)
        if epoch > member.epoch or epoch not in (member.epoch, member.previous_epoch):
            text = f"The member's epoch {epoch} is neither {member.epoch} nor {member.previous_epoch}, the one before."
            raise Refused(ErrorCode.FENCED_MEMBER_EPOCH, f"{text} The member must join again.")
        return member

    def _leave(self, request: Request, message: m.ShareGroupHeartbeatRequest) -> None:
        group = self._group(message.group_id, joins=False)
        member = group.members.get(message.member_id)
        if member is None:
            raise _unknown(group, message.member_id)
        self.lose(group, [member], Trigger.MEMBER_LEFT, "left")
        answer = m.ShareGroupHeartbeatResponse(member_id=member.member_id, member_epoch=message.member_epoch)
        self.effects.reply(request, answer, self.effects.appended)

    # ---- epochs, targets and members

    def session_timeout(self, group: ShareGroup, member: ShareMember) -> int:
        """See `Epochs`."""
        return self.setting(group, "share.session.timeout.ms", self.config.share_session_timeout_ms)

    def _update(self, group: ShareGroup, member: ShareMember, updated: ShareMember, records: Records) -> bool:
        """Store what a heartbeat says of a member, and begin a group epoch if an assignment depends on it or more can
        be assigned; return whether one has begun."""
        is_new = member.member_id not in group.members
        epoch = group.epoch
        has_unassigned = False
        if group.unchecked and group.assignment_epoch >= epoch:
            has_unassigned, group.unchecked = group.has_unassigned, False
        if updated is not member or is_new:
            group.put(updated)
            records.append(log.member_record(group, updated))
        if updated.topics != member.topics:
            trigger = Trigger.NEW_MEMBER if is_new else Trigger.SUBSCRIPTION_CHANGED
            self.bump(group, trigger, updated, records)
        elif has_unassigned:
            self.bump(group, Trigger.STATE_INITIALIZED, updated, records)
        else:
            self.refresh(group, updated, records)
        return group.epoch != epoch

    def _assign(self, group: ShareGroup, records: Records) -> None:
        """Compute the target of the group epoch, unless there is one, or the last one is too young."""
        if group.epoch <= group.assignment_epoch:
            return
        interval = self.setting(group, "share.assignment.interval.ms", self.config.share_assignment_interval_ms)
        if not may_assign(group, interval, self.effects.now):
            return
        assignable = {topic_id: known.partitions for topic_id, known in group.initialized.items()}
        members = {
            member_id: ShareSubscription(self._topic_ids(member.topics), group.target.get(member_id, {}))
            for member_id, member in group.members.items()
        }
        target = simple(assignable, members, is_homogeneous=group.is_homogeneous)
        self.set_target(group, target, SIMPLE, records)
        group.unchecked = True

    def _step(self, group: ShareGroup, member: ShareMember, records: Records, *, has_news: bool) -> ShareMember:
        """Give a member its target, and return it as it is then.

        :param has_news: a group epoch has begun with its heartbeat
        """
        epoch = group.assignment_epoch
        updated = member
        if has_news or not member.is_reconciled(epoch):
            subscribed = self._topic_ids(member.topics)
            target = group.target.get(member.member_id, {})
            assigned = {topic_id: partitions for topic_id, partitions in target.items() if topic_id in subscribed}
            if member.epoch != epoch:
                updated = replace(member, epoch=epoch, previous_epoch=member.epoch, state=STABLE, assigned=assigned)
            elif has_news:
                updated = replace(member, assigned=assigned)
        if updated != member:
            group.put(updated)
            records.append(log.assignment_record(group, updated))
        self.settle(group, updated)
        return updated

    def _topic_ids(self, names: Iterable[str]) -> list[uuid.UUID]:
        """Return the ids of topics, of those that exist, in the order that the assignor wants."""
        return [topic_id for name in order_of_names(names) if (topic_id := self.topics.id_of(name)) is not None]

    # ---- the state of partitions

    def _wanted_states(self, group: ShareGroup, records: Records) -> dict[uuid.UUID, dict[int, int]]:
        """Note as initializing the subscribed partitions that have no state yet.

        :returns: topic id to partition to the offset at which it begins
        """
        wanted: dict[uuid.UUID, dict[int, int]] = {}
        now = self.effects.now
        for name in group.named:
            topic_id, count = self.topics.id_of(name), self.topics.partitions(name)
            if topic_id is None or count is None:
                continue
            has = group.initialized.get(topic_id)
            known = frozenset() if has is None else has.partitions
            coming = group.initializing.get(topic_id)
            if coming is not None and now - coming.since < RETRY_MS:
                known |= coming.partitions
            if len(known) >= count:
                continue
            missing = frozenset(range(count)) - known
            first = BY_CONFIG if has is None and coming is None else EARLIEST
            wanted[topic_id] = dict.fromkeys(sorted(missing), first)
            before = frozenset() if coming is None else coming.partitions
            group.initializing[topic_id] = StatePartitions(name, before | missing, now)
            group.deleting.pop(topic_id, None)
        if wanted:
            records.append(log.states_record(group))
        return wanted

    def state_initialized(self, event: events.ShareStateInitialized) -> None:
        """Take in that the state of partitions is there, or could not be initialized."""
        group = self.groups.get(event.group_id)
        if not isinstance(group, ShareGroup) or not event.partitions:
            return
        for topic_id, partitions in event.partitions.items():
            coming = group.initializing.pop(topic_id, None)
            if coming is None:  # it is being deleted, or its topic has been
                continue
            if left := coming.partitions - partitions:
                group.initializing[topic_id] = coming._replace(partitions=left)
            if event.error:
                continue
            has = group.initialized.get(topic_id)
            known = partitions if has is None else has.partitions | partitions
            group.initialized[topic_id] = StatePartitions(coming.name, known, self.effects.now)
            group.unchecked = True
        self.effects.append(group, [log.states_record(group)])

    # ---- DeleteGroups

    def delete(self, request: Request, message: m.DeleteGroupsRequest) -> None:
        """Answer DeleteGroups: a share group is removed when the state of its partitions has been deleted."""
        waits_for = set()
        for group_id in message.groups_names:
            group = self.groups.get(group_id)
            if isinstance(group, ShareGroup) and group.is_empty and self._delete_states(group):
                waits_for.add(group_id)
        self._go_on(_Deletion(request, message, waits_for, {}))

    def _delete_states(self, group: ShareGroup) -> bool:
        """Begin to delete the state of a group's partitions; return whether there is any."""
        partitions: dict[uuid.UUID, frozenset[int]] = {}
        for known in (group.initialized, group.initializing):
            for topic_id, topic in known.items():
                partitions[topic_id] = partitions.get(topic_id, frozenset()) | topic.partitions
                group.deleting[topic_id] = topic.name
        for topic_id, name in group.deleting.items():  # the last attempt may have failed half-way
            partitions.setdefault(topic_id, frozenset(range(self.topics.partitions(name) or 0)))
        if not partitions:
            return False
        group.initialized, group.initializing = {}, {}
        self.effects.append(group, [log.states_record(group)])
        self.effects.delete_share_state(group.group_id, partitions)
        return True

    def state_deleted(self, event: events.ShareStateDeleted) -> None:
        """Take in that the state of a group's partitions has been deleted, or could not be."""
        group = self.groups.get(event.group_id)
        if isinstance(group, ShareGroup) and not event.error:
            group.deleting = {}
        waiting, self._deletions = self._deletions, []
        for deletion in waiting:
            if event.group_id in deletion.waits_for:
                deletion.waits_for.discard(event.group_id)
                if event.error:
                    deletion.errors[event.group_id] = event.error
            self._go_on(deletion)

    def _go_on(self, deletion: _Deletion) -> None:
        if deletion.waits_for:
            self._deletions.append(deletion)
        else:
            self._delete(deletion.request, deletion.message, deletion.errors)

    def resign(self) -> None:
        """Refuse the deletions that wait: another coordinator has the groups."""
        waiting, self._deletions = self._deletions, []
        for deletion in waiting:
            request = deletion.request
            answer = refusal(deletion.message, request.version, ErrorCode.NOT_COORDINATOR)
            self.effects.reply(request, answer)

    # ---- topics

    def forget_topics(self) -> None:
        """Forget the partitions of topics that have been deleted."""
        for group in self.groups.values():
            if not isinstance(group, ShareGroup):
                continue
            gone = [
                (known, topic_id)
                for known in (group.initializing, group.initialized, group.deleting)
                for topic_id in known
                if self.topics.name_of(topic_id) is None
            ]
            for known, topic_id in gone:
                del known[topic_id]
            if gone:
                self.effects.append(group, [log.states_record(group)])

    # ---- ShareGroupDescribe

    def describe(self, request: Request, message: m.ShareGroupDescribeRequest) -> None:
        """Answer ShareGroupDescribe. A group of another kind is not found."""

        def fields(group: ShareGroup) -> dict[str, Any]:
            return {"assignor_name": SIMPLE, "members": [self._described(each) for each in group.members.values()]}

        kind = m.ShareGroupDescribeResponseDescribedGroup
        answers, after = self.described(ShareGroup, kind, message, fields)
        self.effects.reply(request, m.ShareGroupDescribeResponse(groups=answers), after)

    def _described(self, member: ShareMember) -> m.ShareGroupDescribeResponseMember:
        return filled(
            m.ShareGroupDescribeResponseMember,
            member,
            member_epoch=member.epoch,
            subscribed_topic_names=list(member.topics),
            assignment=m.ShareGroupDescribeResponseAssignment(
                topic_partitions=described_partitions(
                    m.ShareGroupDescribeResponseTopicPartitions, member.assigned, self.topics
                )
            ),
        )


def _check(message: m.ShareGroupHeartbeatRequest) -> None:
    """Refuse what is wrong whatever the group."""
    text = None
    if not message.member_id.strip():
        text = "The member id must not be empty."
    elif len(message.member_id) > _LONGEST_ID:
        text = f"The member id must not have more than {_LONGEST_ID} characters."
    elif not message.group_id.strip():
        text = "The group id must not be empty."
    elif message.rack_id is not None and not message.rack_id.strip():
        text = "The rack id must not be empty."
    elif message.member_epoch == JOINING and not message.subscribed_topic_names:
        text = "A member that joins must subscribe to topics."
    elif message.member_epoch < LEAVING:
        text = "There is no such member epoch."
    if text is not None:
        raise Refused(ErrorCode.INVALID_REQUEST, text)


def _updated(member: ShareMember, request: Request, message: m.ShareGroupHeartbeatRequest) -> ShareMember:
    """Return the member with what the heartbeat says of it; the same if that is nothing new."""
    names = message.subscribed_topic_names
    rack_id = member.rack_id if message.rack_id is None else message.rack_id
    topics = member.topics if names is None else tuple(sorted(set(names)))
    own = (rack_id, topics, request.client_id, request.client_host)
    if own == (member.rack_id, member.topics, member.client_id, member.client_host):
        return member
    return replace(member, rack_id=rack_id, topics=topics, client_id=request.client_id, client_host=request.client_host)


def _assignment(target: Target) -> m.ShareGroupHeartbeatResponseAssignment:
    return m.ShareGroupHeartbeatResponseAssignment(
        topic_partitions=[
            m.ShareGroupHeartbeatResponseTopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in target.items()
        ]
    )


def _unknown(group: ShareGroup, member_id: str) -> Refused:
    return Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not in group {group.group_id}.")
