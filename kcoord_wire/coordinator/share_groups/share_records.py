"""What the log keeps of a share group: record types 10 to 15. Those that every kind of group has are in
`consumer_groups/epoch_records.py`.

Laws:

* Writing and reading are inverse: `replay_groups` returns what the other functions have written.
* A member of which the log has only a part (after compaction) comes back with defaults for the rest.

Source: Kafka's `GroupCoordinatorRecordHelpers.java`, and the ``replay`` methods of `GroupMetadataManager.java`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from kcoord_wire import messages as m
from kcoord_wire.coordinator.consumer_groups.epoch_records import (
    read_epoch,
    read_target,
    read_target_epoch,
    replay,
    target_from,
)
from kcoord_wire.coordinator.core.apis import filled
from kcoord_wire.coordinator.core.events import LogRecord
from kcoord_wire.coordinator.share_groups.share_group import NO_EPOCH, STABLE, ShareGroup, ShareMember, StatePartitions


def member_record(group: ShareGroup, member: ShareMember) -> LogRecord:
    """Return the record of what a member has sent of itself (type 10)."""
    return LogRecord(
        m.ShareGroupMemberMetadataKey(group_id=group.group_id, member_id=member.member_id),
        filled(m.ShareGroupMemberMetadataValue, member, subscribed_topic_names=list(member.topics)),
    )


def assignment_record(group: ShareGroup, member: ShareMember) -> LogRecord:
    """Return the record of what a member has (type 14)."""
    return LogRecord(
        m.ShareGroupCurrentMemberAssignmentKey(group_id=group.group_id, member_id=member.member_id),
        m.ShareGroupCurrentMemberAssignmentValue(
            member_epoch=member.epoch,
            previous_member_epoch=member.previous_epoch,
            state=member.state,
            assigned_partitions=[
                m.ShareGroupCurrentMemberAssignmentValueTopicPartitions(
                    topic_id=topic_id, partitions=sorted(partitions)
                )
                for topic_id, partitions in member.assigned.items()
            ],
        ),
    )


def states_record(group: ShareGroup) -> LogRecord:
    """Return the record of the partitions that have state, or are getting or losing it (type 15)."""
    return LogRecord(
        m.ShareGroupStatePartitionMetadataKey(group_id=group.group_id),
        m.ShareGroupStatePartitionMetadataValue(
            initializing_topics=_topics(group.initializing),
            initialized_topics=_topics(group.initialized),
            deleting_topics=[
                m.ShareGroupStatePartitionMetadataValueTopicInfo(topic_id=topic_id, topic_name=name)
                for topic_id, name in group.deleting.items()
            ],
        ),
    )


def _topics(
    known: Mapping[uuid.UUID, StatePartitions],
) -> list[m.ShareGroupStatePartitionMetadataValueTopicPartitionsInfo]:
    return [
        m.ShareGroupStatePartitionMetadataValueTopicPartitionsInfo(
            topic_id=topic_id, topic_name=topic.name, partitions=sorted(topic.partitions)
        )
        for topic_id, topic in known.items()
    ]


# ---- reading


def replay_groups(records: Iterable[LogRecord], now: int) -> dict[str, ShareGroup]:
    """Return the share groups in a log, by id. Records of other types are skipped."""
    return replay(records, lambda group_id: ShareGroup(group_id, now), _READERS)


def _read_member(group: ShareGroup, key: m.ShareGroupMemberMetadataKey, value: Any) -> None:
    if value is None:
        group.remove(key.member_id)
        return
    group.put(
        replace(
            _known(group, key.member_id),
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topics=tuple(sorted(set(value.subscribed_topic_names))),
        )
    )


def _read_assignment(group: ShareGroup, key: m.ShareGroupCurrentMemberAssignmentKey, value: Any) -> None:
    if value is None:
        if key.member_id in group.members:
            member = group.members[key.member_id]
            group.put(replace(member, epoch=0, previous_epoch=NO_EPOCH, state=STABLE, assigned={}))
        return
    group.put(
        replace(
            _known(group, key.member_id),
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=value.state,
            assigned=target_from(value.assigned_partitions),
        )
    )


def _read_states(group: ShareGroup, key: m.ShareGroupStatePartitionMetadataKey, value: Any) -> None:
    if value is None:
        group.initializing, group.initialized, group.deleting = {}, {}, {}
        return
    group.initializing = _known_topics(value.initializing_topics, group.state_since)
    group.initialized = _known_topics(value.initialized_topics, group.state_since)
    group.deleting = {topic.topic_id: topic.topic_name for topic in value.deleting_topics}


def _known_topics(
    topics: Iterable[m.ShareGroupStatePartitionMetadataValueTopicPartitionsInfo], now: int
) -> dict[uuid.UUID, StatePartitions]:
    return {topic.topic_id: StatePartitions(topic.topic_name, frozenset(topic.partitions), now) for topic in topics}


def _known(group: ShareGroup, member_id: str) -> ShareMember:
    member = group.members.get(member_id)
    return ShareMember(member_id=member_id) if member is None else member


_READERS: Mapping[type, Callable[[ShareGroup, Any, Any], None]] = {
    m.ShareGroupMetadataKey: read_epoch,
    m.ShareGroupMemberMetadataKey: _read_member,
    m.ShareGroupTargetAssignmentMetadataKey: read_target_epoch,
    m.ShareGroupTargetAssignmentMemberKey: read_target,
    m.ShareGroupCurrentMemberAssignmentKey: _read_assignment,
    m.ShareGroupStatePartitionMetadataKey: _read_states,
}
