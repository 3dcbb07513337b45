"""ConsumerGroupDescribe: a group's epochs, and what each member holds and is to hold.

Source: KIP-848, KIP-1099 (member types); Kafka's `ConsumerGroup.java`, `ConsumerGroupMember.java`.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from typing import Final

from kcoord_wire import messages as m
from kcoord_wire.coordinator.consumer_groups.assignment import preferred_assignor
from kcoord_wire.coordinator.consumer_groups.group import ConsumerGroup, Member
from kcoord_wire.coordinator.consumer_groups.progress import Shared
from kcoord_wire.coordinator.core.events import Request
from kcoord_wire.coordinator.core.groups import TopicNames
from kcoord_wire.protocol.error_codes import ErrorCode

_OPERATIONS: Final = sum(1 << code for code in (3, 6, 8, 10, 11))  # read, delete, describe, describe and alter configs
_CLASSIC: Final = 0
_CONSUMER: Final = 1


def describe(shared: Shared, request: Request, message: m.ConsumerGroupDescribeRequest) -> None:
    """Answer ConsumerGroupDescribe. A classic group is not found.

    A group with members is described once, and refused with INVALID_REQUEST (42) where the request names it again:
    otherwise a short request could ask for an answer larger than memory.
    """
    answers = []
    described: set[str] = set()
    after = 0
    for group_id in message.group_ids:
        group = shared.groups.get(group_id)
        after = max(after, shared.effects.written(group))
        if not isinstance(group, ConsumerGroup):
            what = "not found" if group is None else "is not a consumer group"
            answer = m.ConsumerGroupDescribeResponseDescribedGroup(
                group_id=group_id,
                error_code=ErrorCode.GROUP_ID_NOT_FOUND if group_id else ErrorCode.INVALID_GROUP_ID,
                error_message=f"Group {group_id} {what}.",
            )
        elif group_id in described:
            answer = m.ConsumerGroupDescribeResponseDescribedGroup(
                group_id=group_id, error_code=ErrorCode.INVALID_REQUEST
            )
        else:
            answer = _described(group, shared)
            if message.include_authorized_operations:
                answer.authorized_operations = _OPERATIONS
            if group.members:
                described.add(group_id)
        answers.append(answer)
    shared.effects.reply(request, m.ConsumerGroupDescribeResponse(groups=answers), after)


def _described(group: ConsumerGroup, shared: Shared) -> m.ConsumerGroupDescribeResponseDescribedGroup:
    return m.ConsumerGroupDescribeResponseDescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=preferred_assignor(group, shared.config.consumer_assignors[0]),
        members=[_member(group, member, shared.topics) for member in group.members.values()],
    )


def _member(group: ConsumerGroup, member: Member, topics: TopicNames) -> m.ConsumerGroupDescribeResponseMember:
    held: dict[uuid.UUID, set[int]] = {}
    for part in (member.assigned, member.revoking):
        for topic_id, partitions in part.items():
            held.setdefault(topic_id, set()).update(partitions)
    return m.ConsumerGroupDescribeResponseMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
        subscribed_topic_regex=member.regex,
        assignment=_partitions(held, topics),
        target_assignment=_partitions(group.target.get(member.member_id, {}), topics),
        member_type=_CONSUMER if member.classic is None else _CLASSIC,
    )


def _partitions(
    held: Mapping[uuid.UUID, Collection[int]], topics: TopicNames
) -> m.ConsumerGroupDescribeResponseAssignment:
    """Return partitions by topic; a topic that was deleted has no name, and is left out."""
    return m.ConsumerGroupDescribeResponseAssignment(
        topic_partitions=[
            m.ConsumerGroupDescribeResponseTopicPartitions(
                topic_id=topic_id, topic_name=name, partitions=sorted(partitions)
            )
            for topic_id, partitions in held.items()
            if (name := topics.name_of(topic_id)) is not None
        ]
    )
