"""StreamsGroupDescribe: a streams group with its topology, its members and their tasks.

Source: KIP-1071, KIP-1331, KIP-1357; Kafka's `StreamsGroup.java`, `StreamsGroupMember.java`, `ConfiguredTopology.java`,
`StreamsTopology.java` (4.4).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from kcoord_wire import messages as m
from kcoord_wire.assignors.streams import STREAMS_ASSIGNOR, Task
from kcoord_wire.coordinator.core.apis import filled
from kcoord_wire.coordinator.core.events import Request
from kcoord_wire.coordinator.streams_groups.progress import StreamsProgress
from kcoord_wire.coordinator.streams_groups.streams_group import StreamsGroup, StreamsMember, TargetTasks, TaskOffsets
from kcoord_wire.coordinator.streams_groups.streams_records import task_ids
from kcoord_wire.coordinator.streams_groups.topology import Configured, InternalTopic, Written

_NOT_STORED: Final = 1  # TopologyDescriptionStatus
_Group = m.StreamsGroupDescribeResponseDescribedGroup
_Subtopology = m.StreamsGroupDescribeResponseSubtopology
_TopicInfo = m.StreamsGroupDescribeResponseTopicInfo
_KeyValue = m.StreamsGroupDescribeResponseKeyValue


def describe(progress: StreamsProgress, request: Request, message: m.StreamsGroupDescribeRequest) -> None:
    """Answer StreamsGroupDescribe."""

    def fields(group: StreamsGroup) -> dict[str, Any]:
        found = {
            "topology": _topology(group),
            "members": [_member(group, member) for member in group.members.values()],
            "assignor_name": STREAMS_ASSIGNOR,
        }
        return found | {"topology_description_status": _NOT_STORED} if message.include_topology_description else found

    answers, after = progress.described(StreamsGroup, _Group, message, fields)
    progress.effects.reply(request, m.StreamsGroupDescribeResponse(groups=answers), after)


def _topology(group: StreamsGroup) -> m.StreamsGroupDescribeResponseTopology | None:
    """Return the topology; with the numbers of partitions where the topics fit."""
    configured, topology = group.configured, group.topology
    if configured is not None and configured.problem is None and configured.subtopologies is not None:
        parts = [_configured(name, each) for name, each in configured.subtopologies.items()]
        return m.StreamsGroupDescribeResponseTopology(epoch=configured.epoch, subtopologies=parts)
    if topology is None:
        return None
    parts = [_written(each) for _, each in sorted(topology.subtopologies.items())]
    return m.StreamsGroupDescribeResponseTopology(epoch=topology.epoch, subtopologies=parts)


def _configured(subtopology_id: str, subtopology: Configured) -> _Subtopology:
    def infos(topics: Iterable[InternalTopic]) -> list[_TopicInfo]:
        return [filled(_TopicInfo, topic, topic_configs=_key_values(topic.configs)) for topic in sorted(topics)]

    return _Subtopology(
        subtopology_id=subtopology_id,
        source_topics=sorted(subtopology.sources),
        repartition_sink_topics=sorted(subtopology.sinks),
        repartition_source_topics=infos(subtopology.repartition),
        state_changelog_topics=infos(subtopology.changelogs),
    )


def _written(subtopology: Written) -> _Subtopology:
    def infos(topics: Iterable[m.StreamsGroupTopologyValueTopicInfo]) -> list[_TopicInfo]:
        return [
            filled(_TopicInfo, topic, topic_configs=_key_values({each.key: each.value for each in topic.topic_configs}))
            for topic in sorted(topics, key=lambda topic: topic.name)
        ]

    return _Subtopology(
        subtopology_id=subtopology.subtopology_id,
        source_topics=sorted(subtopology.source_topics),
        repartition_sink_topics=sorted(subtopology.repartition_sink_topics),
        repartition_source_topics=infos(subtopology.repartition_source_topics),
        state_changelog_topics=infos(subtopology.state_changelog_topics),
    )


def _key_values(values: Mapping[str, str]) -> list[_KeyValue]:
    return [_KeyValue(key=key, value=value) for key, value in values.items()]


def _member(group: StreamsGroup, member: StreamsMember) -> m.StreamsGroupDescribeResponseMember:
    offsets = group.offsets_of.get(member.member_id, TaskOffsets())
    target: TargetTasks = group.target.get(member.member_id, TargetTasks())
    endpoint = member.user_endpoint
    return filled(
        m.StreamsGroupDescribeResponseMember,
        member,
        member_epoch=member.epoch,
        user_endpoint=None if endpoint is None else filled(m.StreamsGroupDescribeResponseEndpoint, endpoint),
        client_tags=_key_values(member.client_tags),
        task_offsets=_offsets(offsets.offsets),
        task_end_offsets=_offsets(offsets.ends),
        assignment=_assignment(member.assigned.active, member.assigned.standby, member.assigned.warmup),
        target_assignment=_assignment(target.active, target.standby, target.warmup),
    )


def _assignment(
    active: Iterable[Task], standby: Iterable[Task], warmup: Iterable[Task]
) -> m.StreamsGroupDescribeResponseAssignment:
    kind = m.StreamsGroupDescribeResponseTaskIds
    return m.StreamsGroupDescribeResponseAssignment(
        active_tasks=task_ids(kind, active), standby_tasks=task_ids(kind, standby), warmup_tasks=task_ids(kind, warmup)
    )


def _offsets(offsets: Mapping[Task, int]) -> list[m.StreamsGroupDescribeResponseTaskOffset]:
    return [
        m.StreamsGroupDescribeResponseTaskOffset(
            subtopology_id=task.subtopology, partition=task.partition, offset=offset
        )
        for task, offset in sorted(offsets.items())
    ]
