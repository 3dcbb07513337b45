"""The requests of KIP-848: ConsumerGroupHeartbeat (joining, staying, reporting what is held, leaving) and
ConsumerGroupDescribe.

Laws:

* A request is checked before anything changes: one that is refused leaves no trace.
* A heartbeat with an epoch that is not the member's is refused with FENCED_MEMBER_EPOCH, except the previous one from a
  member that holds no more than it was assigned: the answer that moved it on may have been lost.
* The answer says what the member may hold when it joins, when it asks by sending everything, and when that has changed.

Source: KIP-848, KIP-1082 (member ids made by clients), KIP-1099 (member types); Kafka's `GroupCoordinatorService.java`,
`GroupMetadataManager.java`, `ConsumerGroup.java`, `ConsumerGroupMember.java`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final

from kcoord_wire import messages as m
from kcoord_wire.coordinator.consumer_groups import records as log
from kcoord_wire.coordinator.consumer_groups.classic_members import upgraded
from kcoord_wire.coordinator.consumer_groups.epochs import Records, described_partitions
from kcoord_wire.coordinator.consumer_groups.group import (
    AWAY,
    JOINING,
    LEAVING,
    ConsumerGroup,
    Held,
    Member,
    MemberState,
)
from kcoord_wire.coordinator.consumer_groups.progress import Progress, preferred_assignor
from kcoord_wire.coordinator.core.admin import not_found
from kcoord_wire.coordinator.core.apis import Refused, filled
from kcoord_wire.coordinator.core.events import Request, Trigger
from kcoord_wire.coordinator.core.groups import BaseGroup, Group, TopicNames
from kcoord_wire.coordinator.core.regexes import MAX_PATTERNS, InvalidRegexError
from kcoord_wire.protocol.error_codes import ErrorCode

_MADE_BY_CLIENTS_FROM: Final = 1  # member ids (KIP-1082)
_UNCHANGED: Final = -1  # the rebalance timeout of a heartbeat that does not say it

Dissolve = Callable[[BaseGroup], None]
"""Ends a classic group: parked requests are answered, timers are cancelled."""


class Heartbeats:
    """Answers ConsumerGroupHeartbeat.

    :param dissolve: called with a classic group that has become one of KIP-848
    """

    def __init__(self, progress: Progress, dissolve: Dissolve) -> None:
        self._progress = progress
        self._dissolve = dissolve

    def handle(self, request: Request, message: m.ConsumerGroupHeartbeatRequest) -> None:
        """Answer a heartbeat."""
        try:
            self._check(request, message)
            if message.member_epoch < JOINING:
                self._leave(request, message)
            else:
                self._beat(request, message)
        except Refused as refused:
            answer = m.ConsumerGroupHeartbeatResponse(error_code=refused.error, error_message=refused.detail)
            self._progress.effects.reply(request, answer)

    def _check(self, request: Request, message: m.ConsumerGroupHeartbeatRequest) -> None:
        """Refuse what is wrong whatever the group."""
        epoch = message.member_epoch
        needs_id = request.version >= _MADE_BY_CLIENTS_FROM or epoch > JOINING or epoch == LEAVING
        wrong = next((text for text, is_wrong in _WRONG.items() if is_wrong(message)), None)
        if needs_id and not message.member_id.strip():
            wrong = "The member id must not be empty."
        if wrong is not None:
            raise Refused(ErrorCode.INVALID_REQUEST, wrong)
        known = self._progress.config.consumer_assignors
        if message.server_assignor is not None and message.server_assignor not in known:
            text = f"There is no assignor {message.server_assignor}; there are {', '.join(known)}."
            raise Refused(ErrorCode.UNSUPPORTED_ASSIGNOR, text)

    # ---- joining and staying

    def _beat(self, request: Request, message: m.ConsumerGroupHeartbeatRequest) -> None:
        joins = message.member_epoch == JOINING
        existing = self._progress.groups.get(message.group_id)
        group = self._group(message.group_id, existing, joins)
        self._check_size(group, message)
        member_id = message.member_id or request.unique
        member, replaced = self._member(group, member_id, message)
        updated = self._updated(member, request, message)
        self._check_regex(group, member, updated)

        records: Records = []
        if existing is not group:
            self._install(existing, group, records)
        if replaced is not None:
            self._progress.replace_static(group, replaced, member, records)
        has_new_topics = self._progress.update(group, member, updated, records, is_replaced=replaced is not None)
        self._progress.assign(group, records)
        updated = self._progress.step(group, updated, message.topic_partitions, records, has_new_topics=has_new_topics)
        self._progress.keep_alive(group, updated)
        group.timers[updated.member_id].end_classic()
        if records:
            self._progress.effects.append(group, records)
        answer = m.ConsumerGroupHeartbeatResponse(
            member_id=updated.member_id,
            member_epoch=updated.epoch,
            heartbeat_interval_ms=self._progress.setting(
                group, "consumer.heartbeat.interval.ms", self._progress.config.consumer_heartbeat_interval_ms
            ),
        )
        if joins or _is_full(message) or updated.assigned != member.assigned:
            answer.assignment = _assignment(updated.assigned)
        self._progress.effects.reply(request, answer, group.written)
        self._progress.resolve_regexes(group, updated)

    def _install(self, existing: BaseGroup | None, group: ConsumerGroup, records: Records) -> None:
        """Store a new group, or one that was a classic one until now."""
        if existing is not None:
            self._dissolve(existing)
            records += existing.tombstones()
            records += log.all_records(group) if group.members else []
            for member in group.members.values():
                self._progress.keep_alive(group, member)
        self._progress.groups[group.group_id] = group

    def _group(self, group_id: str, existing: BaseGroup | None, joins: bool) -> ConsumerGroup:
        """Return the group of a heartbeat; a new one, or what a classic one becomes, if the member joins."""
        if isinstance(existing, ConsumerGroup):
            return existing
        if not joins:
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, not_found(ConsumerGroup.kind, group_id, existing))
        if existing is None:
            return ConsumerGroup(group_id, self._progress.effects.now)
        if not isinstance(existing, Group):
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, not_found(ConsumerGroup.kind, group_id, existing))
        return upgraded(self._progress, existing)

    def _check_size(self, group: ConsumerGroup, message: m.ConsumerGroupHeartbeatRequest) -> None:
        is_known = message.member_id in group.members or group.static_member(message.instance_id) is not None
        if not is_known and len(group.members) >= self._progress.config.consumer_max_size:
            text = f"The group has {len(group.members)} members, as many as it may have."
            raise Refused(ErrorCode.GROUP_MAX_SIZE_REACHED, text)

    def _member(
        self, group: ConsumerGroup, member_id: str, message: m.ConsumerGroupHeartbeatRequest
    ) -> tuple[Member, Member | None]:
        """Return the member of a heartbeat as it was before, and the static member whose place it takes."""
        instance_id, epoch = message.instance_id, message.member_epoch
        if epoch != JOINING:
            member = group.member(member_id, instance_id)
            _check_epoch(member, message)
            return member, None
        if instance_id is None:
            return group.members.get(member_id) or Member(member_id=member_id), None
        holder = group.static_member(instance_id)
        if holder is None:
            return group.members.get(member_id) or Member(member_id=member_id), None
        if holder.classic is None and holder.epoch != AWAY:
            text = f"Instance {instance_id} still belongs to member {holder.member_id}."
            raise Refused(ErrorCode.UNRELEASED_INSTANCE_ID, text)
        return replace(holder, member_id=member_id, epoch=0, previous_epoch=0), holder

    def _updated(self, member: Member, request: Request, message: m.ConsumerGroupHeartbeatRequest) -> Member:
        """Return the member with what the heartbeat says of it."""
        names = message.subscribed_topic_names
        topics = member.topics if names is None else tuple(sorted(set(names)))
        regex = member.regex if message.subscribed_topic_regex is None else message.subscribed_topic_regex
        timeout = message.rebalance_timeout_ms
        values = (
            message.instance_id if message.instance_id is not None else member.instance_id,
            message.rack_id if message.rack_id is not None else member.rack_id,
            member.rebalance_timeout_ms if timeout == _UNCHANGED else timeout,
            message.server_assignor if message.server_assignor is not None else member.assignor,
            topics,
            regex,
            request.client_id,
            request.client_host,
            None,
        )
        if values == _own_values(member):  # as nearly always; to compare a new instance would cost 3 us
            return member
        changes: dict[str, Any] = dict(zip(_OWN_FIELDS, values, strict=True))
        return replace(member, **changes)

    def _check_regex(self, group: ConsumerGroup, member: Member, updated: Member) -> None:
        if not updated.regex or updated.regex == member.regex or updated.regex in group.matching:
            return
        if len(group.matching) >= MAX_PATTERNS:
            text = f"The group has {MAX_PATTERNS} patterns, as many as it may have."
            raise Refused(ErrorCode.INVALID_REGULAR_EXPRESSION, text)
        try:
            self._progress.compile_regex(updated.regex)
        except InvalidRegexError as cause:
            text = f"The pattern {updated.regex} is not valid: {cause}."
            raise Refused(ErrorCode.INVALID_REGULAR_EXPRESSION, text) from None

    # ---- leaving

    def _leave(self, request: Request, message: m.ConsumerGroupHeartbeatRequest) -> None:
        group = self._progress.groups.get(message.group_id)
        if not isinstance(group, ConsumerGroup):
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, not_found(ConsumerGroup.kind, message.group_id, group))
        member = group.member(message.member_id, message.instance_id)
        if message.member_epoch == AWAY:
            held = {topic: dict.fromkeys(partitions, 0) for topic, partitions in member.assigned.items()}
            away = replace(member, epoch=AWAY, assigned=held, revoking={})
            group.put(away)
            self._progress.effects.append(group, [log.assignment_record(group, away)])
        else:
            self._progress.lose(group, [member], Trigger.MEMBER_LEFT, "left")
        answer = m.ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=message.member_epoch)
        self._progress.effects.reply(request, answer, self._progress.effects.appended)


_OWN_FIELDS: Final = (
    "instance_id",
    "rack_id",
    "rebalance_timeout_ms",
    "assignor",
    "topics",
    "regex",
    "client_id",
    "client_host",
    "classic",
)
"""What a heartbeat may change of a member, in the order of `Heartbeats._updated`."""
_own_values: Final = attrgetter(*_OWN_FIELDS)


def _check_epoch(member: Member, message: m.ConsumerGroupHeartbeatRequest) -> None:
    epoch, owned = message.member_epoch, message.topic_partitions
    text = None
    if epoch > member.epoch:
        text = f"The member's epoch {epoch} is greater than {member.epoch}, which the coordinator knows."
    elif epoch < member.epoch:
        is_subset = owned is not None and all(
            partition in member.assigned.get(item.topic_id, ()) for item in owned for partition in item.partitions
        )
        if epoch != member.previous_epoch or not is_subset:
            text = f"The member's epoch {epoch} is smaller than {member.epoch}, which the coordinator knows."
    elif member.state is MemberState.UNKNOWN and (owned is None or owned):
        text = "The coordinator does not know the member's state."
    if text is not None:
        raise Refused(ErrorCode.FENCED_MEMBER_EPOCH, f"{text} The member must give up its partitions and join again.")


def _is_full(message: m.ConsumerGroupHeartbeatRequest) -> bool:
    subscribes = message.subscribed_topic_names is not None or message.subscribed_topic_regex is not None
    return message.rebalance_timeout_ms != _UNCHANGED and subscribes and message.topic_partitions is not None


def _assignment(held: Held) -> m.ConsumerGroupHeartbeatResponseAssignment:
    return m.ConsumerGroupHeartbeatResponseAssignment(
        topic_partitions=[
            m.ConsumerGroupHeartbeatResponseTopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in held.items()
        ]
    )


def _is_blank(text: str | None) -> bool:
    return text is not None and not text.strip()


_WRONG: Final[dict[str, Callable[[m.ConsumerGroupHeartbeatRequest], bool]]] = {
    "The group id must not be empty.": lambda message: _is_blank(message.group_id),
    "The instance id must not be empty.": lambda message: _is_blank(message.instance_id),
    "The rack id must not be empty.": lambda message: _is_blank(message.rack_id),
    "A member that joins must name its rebalance timeout.": lambda message: (
        message.member_epoch == JOINING and message.rebalance_timeout_ms == _UNCHANGED
    ),
    "A member that joins must say that it owns no partitions.": lambda message: (
        message.member_epoch == JOINING and (message.topic_partitions is None or bool(message.topic_partitions))
    ),
    "A member that joins must subscribe to topics by name or pattern.": lambda message: (
        message.member_epoch == JOINING
        and message.subscribed_topic_names is None
        and message.subscribed_topic_regex is None
    ),
    "Only a member with an instance id can leave for a while.": lambda message: (
        message.member_epoch == AWAY and message.instance_id is None
    ),
    "There is no such member epoch.": lambda message: message.member_epoch < AWAY,
}


_CLASSIC: Final = 0
_CONSUMER: Final = 1


def describe(progress: Progress, request: Request, message: m.ConsumerGroupDescribeRequest) -> None:
    """Answer ConsumerGroupDescribe. A classic group is not found."""

    def fields(group: ConsumerGroup) -> dict[str, Any]:
        return {
            "assignor_name": preferred_assignor(group, progress.config.consumer_assignors[0]),
            "members": [_member(group, member, progress.topics) for member in group.members.values()],
        }

    kind = m.ConsumerGroupDescribeResponseDescribedGroup
    answers, after = progress.described(ConsumerGroup, kind, message, fields)
    progress.effects.reply(request, m.ConsumerGroupDescribeResponse(groups=answers), after)


def _member(group: ConsumerGroup, member: Member, topics: TopicNames) -> m.ConsumerGroupDescribeResponseMember:
    held: dict[uuid.UUID, set[int]] = {}
    for part in (member.assigned, member.revoking):
        for topic_id, partitions in part.items():
            held.setdefault(topic_id, set()).update(partitions)
    return filled(
        m.ConsumerGroupDescribeResponseMember,
        member,
        member_epoch=member.epoch,
        subscribed_topic_names=list(member.topics),
        subscribed_topic_regex=member.regex,
        assignment=_described(held, topics),
        target_assignment=_described(group.target.get(member.member_id, {}), topics),
        member_type=_CONSUMER if member.classic is None else _CLASSIC,
    )


def _described(
    held: Mapping[uuid.UUID, Collection[int]], topics: TopicNames
) -> m.ConsumerGroupDescribeResponseAssignment:
    part = m.ConsumerGroupDescribeResponseTopicPartitions
    return m.ConsumerGroupDescribeResponseAssignment(topic_partitions=described_partitions(part, held, topics))
