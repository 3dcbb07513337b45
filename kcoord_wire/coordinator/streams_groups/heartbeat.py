"""The requests of members of streams groups: StreamsGroupHeartbeat (joining, staying, reporting what is held, leaving)
and StreamsGroupTopologyDescriptionUpdate.

Laws:

* A request is checked before anything changes: one that is refused leaves no trace.
* A heartbeat with an epoch that is not the member's is refused with FENCED_MEMBER_EPOCH, except the previous one from a
  member that holds no more than it was assigned: the answer that moved it on may have been lost.
* Each answer says what keeps the group from running (`Status`). It says what the member may run when it joins and when
  that has changed, and the addresses of all members when they have.
* What a group that is new keeps in memory only is forgotten with the answer to its first heartbeat, as in Kafka, which
  makes the group of its records.
* Internal topics that are missing are created; why one could not be is in the status for two intervals of heartbeats.

Source: KIP-1071, KIP-1331; Kafka's `GroupCoordinatorService.java`, `GroupMetadataManager.java`, `KafkaApis.scala`,
`EndpointToPartitionsManager.java`, `DefaultAutoTopicCreationManager.java` (4.4).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from kcoord_wire import messages as m
from kcoord_wire.assignors.streams import Task
from kcoord_wire.coordinator.consumer_groups.epochs import Records, hash_topics
from kcoord_wire.coordinator.consumer_groups.group import AWAY, JOINING, LEAVING
from kcoord_wire.coordinator.core.admin import not_found
from kcoord_wire.coordinator.core.apis import Refused, filled, topology_topics
from kcoord_wire.coordinator.core.brokers import INTERNAL_TOPICS, is_topic_name
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.events import CreateTopics, EffectCollector, Request, TopicsRefused, Trigger
from kcoord_wire.coordinator.core.groups import BaseGroup, Group, TopicNames
from kcoord_wire.coordinator.streams_groups import streams_records as log
from kcoord_wire.coordinator.streams_groups.progress import TAGS, Goal, StreamsProgress
from kcoord_wire.coordinator.streams_groups.streams_group import (
    NO_TASKS,
    NO_TOPOLOGY,
    StreamsGroup,
    StreamsMember,
    TargetTasks,
    TaskOffsets,
    TaskState,
    UserEndpoint,
)
from kcoord_wire.coordinator.streams_groups.topology import (
    ConfiguredTopology,
    InternalTopic,
    Status,
    Topology,
    configure,
    topology_from,
)
from kcoord_wire.kernel.timers import Timers
from kcoord_wire.protocol.error_codes import ErrorCode

_TAGS_STATUS_FROM: Final = 1  # StreamsGroupHeartbeat: the version that has MISSING_CLIENT_TAGS
_UNCHANGED: Final = -1  # the rebalance timeout of a heartbeat that does not say it
_MOST_SHOWN: Final = 3  # topics that could not be created, in a status
_NO_TARGET: Final = TargetTasks()


class _Configured(NamedTuple):
    """A topology as it is with a heartbeat.

    :ivar topology: of the group
    :ivar is_new: the log has to get it
    :ivar topics: with the topics that exist
    :ivar metadata_hash: of these
    """

    topology: Topology
    is_new: bool
    topics: ConfiguredTopology
    metadata_hash: int


class StreamsGroups(StreamsProgress):
    """Answers requests of members of streams groups, and moves the groups and their members on. Arguments as of
    `Epochs`."""

    def __init__(
        self,
        groups: dict[str, BaseGroup],
        topics: TopicNames,
        config: GroupConfig,
        timers: Timers,
        effects: EffectCollector,
        configs_of: Callable[[str], Mapping[str, str]],
    ) -> None:
        super().__init__(groups, topics, config, timers, effects, configs_of)
        self._refused_topics: dict[str, tuple[str, int]] = {}  # why a topic could not be created, and until when

    def heartbeat(self, request: Request, message: m.StreamsGroupHeartbeatRequest) -> None:
        """Answer a heartbeat."""
        try:
            _check_topics(message)
            _check(message)
            if message.member_epoch in (LEAVING, AWAY):
                self._leave(request, message)
            else:
                self._beat(request, message)
        except Refused as refused:
            answer = m.StreamsGroupHeartbeatResponse(error_code=refused.error, error_message=refused.detail, status=[])
            self.effects.reply(request, answer)

    def refuse_description(self, request: Request, message: m.StreamsGroupTopologyDescriptionUpdateRequest) -> None:
        """Answer StreamsGroupTopologyDescriptionUpdate as a broker without a plugin that keeps descriptions, which is
        what Kafka's is by default: no member is asked to send one."""
        answer = m.StreamsGroupTopologyDescriptionUpdateResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION,
            error_message="The broker has no streams group topology description plugin configured.",
        )
        self.effects.reply(request, answer)

    # ---- joining and staying

    def _beat(self, request: Request, message: m.StreamsGroupHeartbeatRequest) -> None:
        existing = self.groups.get(message.group_id)
        group = self._group(message, existing)
        self._check_size(group, message)
        member, replaced = self._member(group, message)
        updated = _updated(member, request, message)
        configured = self._configured(group, message)
        _check_tasks(configured.topics, message)
        offsets = _offsets(message, group.offsets_of.get(message.member_id, TaskOffsets()))

        records: Records = []
        was_empty = group.is_empty
        is_stale = group.topology is not None and updated.topology_epoch < group.topology.epoch
        status = [_status(Status.STALE_TOPOLOGY, _stale_text(updated, group))] if is_stale else []
        if existing is not group:
            self._install(existing, group, records)
        if replaced is not None:
            self.replace_static(group, replaced, member, records)
        self._update(group, member, updated, configured, records, is_replaced=replaced is not None)
        group.offsets_of[updated.member_id] = offsets
        if was_empty:
            self.delay_first(group)
        delayed = self.assign(group, records)
        if delayed is not None:
            status.append(_status(*delayed))
        updated = self.step(group, updated, _goal(group, message), records)
        self.keep_alive(group, updated)
        if records:
            self.effects.append(group, records)
        if message.shutdown_application:
            group.shutdown_by = group.shutdown_by or updated.member_id
        answer = self._answer(group, message, member, updated, is_written=existing is group)
        answer.status = [*status, *self._problems(group, updated, request.version)]
        self._create_missing(group)
        if existing is not group:
            group.forget_unwritten()
        self.effects.reply(request, answer, group.written)

    def _group(self, message: m.StreamsGroupHeartbeatRequest, existing: BaseGroup | None) -> StreamsGroup:
        """Return the group of a heartbeat; a new one, also in place of a classic one without members, if it joins."""
        if isinstance(existing, StreamsGroup):
            return existing
        is_free = existing is None or (isinstance(existing, Group) and existing.is_empty)
        if message.member_epoch != JOINING or not is_free:
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, not_found(StreamsGroup.kind, message.group_id, existing))
        return StreamsGroup(message.group_id, self.effects.now, self.topics)

    def _install(self, existing: BaseGroup | None, group: StreamsGroup, records: Records) -> None:
        """Store a new group, with the offsets of the classic one in whose place it comes."""
        if existing is not None:
            records += existing.tombstones()
            group.offsets = existing.offsets
            existing.end(self.effects.now)
        self.groups[group.group_id] = group

    def _check_size(self, group: StreamsGroup, message: m.StreamsGroupHeartbeatRequest) -> None:
        most = self.config.streams_max_size
        is_known = message.member_id in group.members or message.instance_id in group.instances
        if message.member_epoch == JOINING and not is_known and len(group.members) >= most:
            text = f"The streams group has reached its maximum capacity of {most} members."
            raise Refused(ErrorCode.GROUP_MAX_SIZE_REACHED, text)

    @staticmethod
    def _member(
        group: StreamsGroup, message: m.StreamsGroupHeartbeatRequest
    ) -> tuple[StreamsMember, StreamsMember | None]:
        """Return the member of a heartbeat as it was before, and the static member whose place it takes."""
        member_id, instance_id = message.member_id, message.instance_id
        if message.member_epoch != JOINING:
            member = group.member(member_id, instance_id)
            _check_epoch(member, message)
            return member, None
        holder = None if instance_id is None else group.static_member(instance_id)
        if holder is None:
            return group.members.get(member_id) or StreamsMember(member_id=member_id), None
        if holder.epoch != AWAY:
            text = (
                f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance "
                f"id is owned by {holder.member_id} member."
            )
            raise Refused(ErrorCode.UNRELEASED_INSTANCE_ID, text)
        return replace(holder, member_id=member_id, epoch=0, previous_epoch=0), holder

    def _configured(self, group: StreamsGroup, message: m.StreamsGroupHeartbeatRequest) -> _Configured:
        """Return the topology of the group; where topics have changed since it was configured, configure it again."""
        topology = group.topology
        if message.topology is not None:
            asked = topology_from(message.topology)
            if topology is not None and topology.epoch <= asked.epoch and not topology.is_same(asked):
                raise Refused(ErrorCode.INVALID_REQUEST, "Topology updates are not supported yet.")
            topology = topology or asked
        if topology is None:  # of its record nothing is left but that of a member
            raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, "The topology is null and the group topology is also null.")
        topics, seen = self.topics, self.topics.changes
        if group.configured is not None and group.topics_seen == seen:
            return _Configured(topology, False, group.configured, group.metadata_hash)
        metadata_hash = hash_topics(topics, topology.required_topics())
        configured = group.configured
        if configured is None or metadata_hash != group.metadata_hash:
            configured = configure(topology, topics.partitions)
        return _Configured(topology, group.topology is None, configured, metadata_hash)

    def _update(
        self,
        group: StreamsGroup,
        member: StreamsMember,
        updated: StreamsMember,
        configured: _Configured,
        records: Records,
        *,
        is_replaced: bool,
    ) -> None:
        """Store what a heartbeat says, and begin a group epoch if the assignment depends on it.

        :param member: as it was before
        :param is_replaced: it has taken the place of another static member
        """
        is_new = member.member_id not in group.members
        trigger = None
        if updated != member or is_new:
            group.put(updated)
            records.append(log.member_record(group, updated))
            if updated.instance_id is None or _needs_epoch(member, updated):
                trigger = Trigger.NEW_MEMBER if is_new else Trigger.SUBSCRIPTION_CHANGED
                trigger = Trigger.STATIC_REPLACED if is_replaced else trigger
        if configured.is_new:
            group.topology = configured.topology
            records.append(log.topology_record(group, configured.topology))
        validated = NO_TOPOLOGY if configured.topics.problem is not None else configured.topology.epoch
        if configured.metadata_hash != group.metadata_hash or validated != group.validated_epoch:
            trigger = trigger or Trigger.TOPICS_CHANGED
        configs = self.assignment_configs(group)
        if configs != group.configs:
            trigger = trigger or Trigger.ASSIGNOR_CHANGED
        group.configured, group.topics_seen = configured.topics, self.topics.changes
        if trigger is not None:
            group.metadata_hash, group.validated_epoch = configured.metadata_hash, validated
            group.configs = configs
            self.bump(group, trigger, updated, records)

    # ---- the answer

    def _answer(
        self,
        group: StreamsGroup,
        message: m.StreamsGroupHeartbeatRequest,
        member: StreamsMember,
        updated: StreamsMember,
        *,
        is_written: bool,
    ) -> m.StreamsGroupHeartbeatResponse:
        """Return the answer without its statuses.

        :param member: as it was before
        :param is_written: the group was there before
        """
        config = self.config
        answer = m.StreamsGroupHeartbeatResponse(
            member_id=updated.member_id,
            member_epoch=updated.epoch,
            heartbeat_interval_ms=self.heartbeat_interval(group),
            task_offset_interval_ms=self.setting(
                group, "streams.task.offset.interval.ms", config.streams_task_offset_interval_ms
            ),
            acceptable_recovery_lag=self.setting(
                group, "streams.acceptable.recovery.lag", config.streams_acceptable_recovery_lag
            ),
        )
        has_new_tasks = updated.assigned != member.assigned
        if message.member_epoch == JOINING or has_new_tasks:
            answer.active_tasks = log.task_ids(_TaskIds, updated.assigned.active)
            answer.standby_tasks = log.task_ids(_TaskIds, updated.assigned.standby)
            answer.warmup_tasks = log.task_ids(_TaskIds, updated.assigned.warmup)
        has_endpoint = updated.user_endpoint is not None
        if updated.user_endpoint != member.user_endpoint or (has_new_tasks and has_endpoint):
            group.endpoint_epoch += 1
        if group.endpoint_epoch != message.endpoint_information_epoch:
            answer.partitions_by_user_endpoint = self._endpoints(group, updated)
        if is_written:
            answer.endpoint_information_epoch = group.endpoint_epoch
        return answer

    @staticmethod
    def _endpoints(
        group: StreamsGroup, last: StreamsMember
    ) -> list[m.StreamsGroupHeartbeatResponseEndpointToPartitions]:
        """Return which partitions each address serves; that of one member comes last."""
        is_configured = group.configured is not None and group.configured.subtopologies is not None
        members = [*(each for each in group.members.values() if each.member_id != last.member_id), last]
        return [
            m.StreamsGroupHeartbeatResponseEndpointToPartitions(
                user_endpoint=filled(m.StreamsGroupHeartbeatResponseEndpoint, member.user_endpoint),
                active_partitions=_partitions(group, member.assigned.active),
                standby_partitions=_partitions(group, member.assigned.standby | member.assigned.warmup),
            )
            for member in members
            if member.user_endpoint is not None and is_configured
        ]

    def _problems(
        self, group: StreamsGroup, member: StreamsMember, version: int
    ) -> list[m.StreamsGroupHeartbeatResponseStatus]:
        """Return what keeps the group or a member from running, besides a delay."""
        found = []
        if group.configured is not None and (problem := group.configured.problem) is not None:
            found.append(_status(problem.status, problem.detail + self._why_not_created(group.configured.missing)))
        if group.shutdown_by is not None:
            text = (
                f"Streams group member {group.shutdown_by} encountered a fatal error and requested a shutdown for the "
                "entire application."
            )
            found.append(_status(Status.SHUTDOWN_APPLICATION, text))
        wanted = group.configs.get(TAGS, "")
        missing = [tag for tag in wanted.split(",") if tag and tag not in member.client_tags]
        if missing and version >= _TAGS_STATUS_FROM:
            text = (
                f"Missing required client tags for rack-aware standby assignment: [{', '.join(missing)}]. Configure "
                "them via 'client.tag.<tagKey>' in your Streams config."
            )
            found.append(_status(Status.MISSING_CLIENT_TAGS, text))
        return found

    # ---- internal topics

    def _create_missing(self, group: StreamsGroup) -> None:
        """Have internal topics created that are missing, except those that could not be a short while ago."""
        missing = () if group.configured is None else group.configured.missing
        wanted = [topic for topic in missing if self._why_refused(topic.name) is None]
        if wanted:
            self.effects.effects.append(CreateTopics(group.group_id, list(map(_creatable, wanted))))

    def topics_refused(self, event: TopicsRefused) -> None:
        """Take in that topics of a group could not be created."""
        group = self.groups.get(event.group_id)
        if isinstance(group, StreamsGroup):
            now = self.effects.now
            self._refused_topics = {name: each for name, each in self._refused_topics.items() if each[1] > now}
            until = now + 2 * self.heartbeat_interval(group)
            self._refused_topics |= {name: (why, until) for name, why in event.errors.items()}

    def _why_refused(self, topic: str) -> str | None:
        why, until = self._refused_topics.get(topic, ("", 0))
        return why if until > self.effects.now else None

    def _why_not_created(self, missing: Iterable[InternalTopic]) -> str:
        errors = {topic.name: why for topic in missing if (why := self._why_refused(topic.name)) is not None}
        if not errors:
            return ""
        shown = ", ".join(f"{name} ({why})" for name, why in list(errors.items())[:_MOST_SHOWN])
        more = f" and {len(errors) - _MOST_SHOWN} more" if len(errors) > _MOST_SHOWN else ""
        return f"; Creation failed: {shown}{more}."

    # ---- leaving

    def _leave(self, request: Request, message: m.StreamsGroupHeartbeatRequest) -> None:
        group = self.groups.get(message.group_id)
        if not isinstance(group, StreamsGroup):
            text = not_found(StreamsGroup.kind, message.group_id, group)
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, text)
        if message.shutdown_application:  # Kafka takes note of it before it looks for the member
            group.shutdown_by = group.shutdown_by or message.member_id
        member = group.member(message.member_id, message.instance_id)
        is_away = message.instance_id is not None and message.member_epoch == AWAY
        if is_away:
            held = member.assigned._replace(active=dict.fromkeys(member.assigned.active, 0))
            away = replace(member, epoch=AWAY, assigned=held, revoking=NO_TASKS)
            group.put(away)
            self.effects.append(group, [log.assignment_record(group, away)])
        else:
            self.lose(group, [member], Trigger.MEMBER_LEFT, "left")
        answer = m.StreamsGroupHeartbeatResponse(
            member_id=member.member_id, member_epoch=message.member_epoch, status=[]
        )
        self.effects.reply(request, answer, self.effects.appended)


def _partitions(group: StreamsGroup, tasks: Iterable[Task]) -> list[m.StreamsGroupHeartbeatResponseTopicPartition]:
    return [
        m.StreamsGroupHeartbeatResponseTopicPartition(topic=topic, partitions=numbers)
        for topic, numbers in group.inputs(tasks).items()
    ]


_TaskIds: Final = m.StreamsGroupHeartbeatResponseTaskIds


def _status(status: Status, detail: str) -> m.StreamsGroupHeartbeatResponseStatus:
    return m.StreamsGroupHeartbeatResponseStatus(status_code=status, status_detail=detail)


def _stale_text(member: StreamsMember, group: StreamsGroup) -> str:
    epoch = NO_TOPOLOGY if group.topology is None else group.topology.epoch
    return f"The member's topology epoch {member.topology_epoch} is behind the group's topology epoch {epoch}."


def _creatable(topic: InternalTopic) -> m.CreateTopicsRequestCreatableTopic:
    return m.CreateTopicsRequestCreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor or -1,
        configs=[
            m.CreateTopicsRequestCreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()
        ],
    )


def _goal(group: StreamsGroup, message: m.StreamsGroupHeartbeatRequest) -> Goal:
    owned = None
    if message.active_tasks is not None and message.standby_tasks is not None and message.warmup_tasks is not None:
        owned = TargetTasks(*map(log.tasks_from, (message.active_tasks, message.standby_tasks, message.warmup_tasks)))
    target: Any = _NO_TARGET if group.is_delayed else group.target.get(message.member_id, _NO_TARGET)
    return Goal(group.assignment_epoch, target, owned)


def _updated(member: StreamsMember, request: Request, message: m.StreamsGroupHeartbeatRequest) -> StreamsMember:
    """Return the member with what a heartbeat says of it; the same if that is nothing new."""
    endpoint = message.user_endpoint
    changes: dict[str, Any] = {"client_id": request.client_id, "client_host": request.client_host}
    said = {
        "instance_id": message.instance_id,
        "rack_id": message.rack_id,
        "rebalance_timeout_ms": None if message.rebalance_timeout_ms == _UNCHANGED else message.rebalance_timeout_ms,
        "topology_epoch": None if message.topology is None else message.topology.epoch,
        "process_id": message.process_id,
        "client_tags": None if message.client_tags is None else {tag.key: tag.value for tag in message.client_tags},
        "user_endpoint": None if endpoint is None else UserEndpoint(endpoint.host, endpoint.port),
    }
    changes |= {name: value for name, value in said.items() if value is not None}
    if message.member_epoch == JOINING:
        changes["user_endpoint"] = said["user_endpoint"]
    if all(getattr(member, name) == value for name, value in changes.items()):
        return member
    return replace(member, **changes)


def _needs_epoch(member: StreamsMember, updated: StreamsMember) -> bool:
    """Return whether the assignment depends on what has changed of a static member."""
    names = ("topology_epoch", "rack_id", "client_tags", "process_id")
    return any(getattr(member, name) != getattr(updated, name) for name in names)


# ---- what is refused


def _check_topics(message: m.StreamsGroupHeartbeatRequest) -> None:
    """Refuse a topology with topics that it may not have; first of all, as Kafka does before the coordinator."""
    names = () if message.topology is None else topology_topics(message.topology)
    if internal := [name for name in names if name in INTERNAL_TOPICS]:
        text = f"Use of Kafka internal topics {','.join(internal)} in a Kafka Streams topology is prohibited."
        raise Refused(ErrorCode.STREAMS_INVALID_TOPOLOGY, text)
    if invalid := [name for name in names if not is_topic_name(name)]:
        text = f"Topic names {','.join(invalid)} are not valid topic names."
        raise Refused(ErrorCode.STREAMS_INVALID_TOPOLOGY, text)


def _check(message: m.StreamsGroupHeartbeatRequest) -> None:
    """Refuse what is wrong whatever the group."""
    topology = message.topology
    if topology is not None and any(each.source_topic_regex for each in topology.subtopologies):
        raise Refused(ErrorCode.INVALID_REQUEST, "Regular expressions for source topics are not supported yet.")
    if text := next((text for text, is_wrong in _WRONG.items() if is_wrong(message)), None):
        raise Refused(ErrorCode.INVALID_REQUEST, text)
    if message.member_epoch == JOINING and topology is not None:
        _check_changelogs(topology)
    if text := next((text for text, is_wrong in _WRONG_LATER.items() if is_wrong(message)), None):
        raise Refused(ErrorCode.INVALID_REQUEST, text)


def _check_changelogs(topology: m.StreamsGroupHeartbeatRequestTopology) -> None:
    for topic in (topic for each in topology.subtopologies for topic in each.state_changelog_topics):
        if topic.partitions:
            text = (
                f"Changelog topic {topic.name} must have an undefined partition count, but it is set to "
                f"{topic.partitions}."
            )
            raise Refused(ErrorCode.STREAMS_INVALID_TOPOLOGY, text)


def _joins(message: m.StreamsGroupHeartbeatRequest) -> bool:
    return message.member_epoch == JOINING


def _task_lists(message: m.StreamsGroupHeartbeatRequest) -> Collection[Any]:
    return message.active_tasks, message.standby_tasks, message.warmup_tasks


def _is_blank(text: str | None) -> bool:
    return text is not None and not text.strip()


_Check = Callable[[m.StreamsGroupHeartbeatRequest], bool]

_WRONG: Final[dict[str, _Check]] = {
    "MemberId can't be empty.": lambda message: _is_blank(message.member_id),
    "GroupId can't be empty.": lambda message: _is_blank(message.group_id),
    "InstanceId can't be empty.": lambda message: _is_blank(message.instance_id),
    "RackId can't be empty.": lambda message: _is_blank(message.rack_id),
    "RebalanceTimeoutMs must be provided in first request.": lambda message: (
        _joins(message) and message.rebalance_timeout_ms == _UNCHANGED
    ),
    "ActiveTasks must be empty when (re-)joining.": lambda message: _joins(message) and bool(message.active_tasks),
    "StandbyTasks must be empty when (re-)joining.": lambda message: _joins(message) and bool(message.standby_tasks),
    "WarmupTasks must be empty when (re-)joining.": lambda message: _joins(message) and bool(message.warmup_tasks),
    "Topology must be non-null when (re-)joining.": lambda message: _joins(message) and message.topology is None,
    "InstanceId can't be null.": lambda message: message.member_epoch == AWAY and message.instance_id is None,
    "MemberEpoch must be greater than or equal to -2.": lambda message: message.member_epoch < AWAY,
}

_WRONG_LATER: Final[dict[str, _Check]] = {
    "If one task-type is non-null, all must be non-null.": lambda message: (
        any(tasks is not None for tasks in _task_lists(message)) and None in _task_lists(message)
    ),
    "Topology can only be provided when (re-)joining.": lambda message: (
        not _joins(message) and message.topology is not None
    ),
}


def _check_epoch(member: StreamsMember, message: m.StreamsGroupHeartbeatRequest) -> None:
    epoch = message.member_epoch
    text = None
    if epoch > member.epoch:
        text = f"has a greater member epoch ({epoch}) than the one known by the group coordinator ({member.epoch})"
    elif epoch < member.epoch and not (epoch == member.previous_epoch and _owns_no_more(member, message)):
        text = f"has a smaller member epoch ({epoch}) than the one known by the group coordinator ({member.epoch})"
    elif member.state is TaskState.UNKNOWN and any(tasks is None or tasks for tasks in _task_lists(message)):
        text = "is in an unknown state"
    if text is not None:
        detail = f"The streams group member {text}. The member must abandon all its partitions and rejoin."
        raise Refused(ErrorCode.FENCED_MEMBER_EPOCH, detail)


def _owns_no_more(member: StreamsMember, message: m.StreamsGroupHeartbeatRequest) -> bool:
    """Return whether a member says that it holds no more than it was assigned."""
    held = member.assigned
    return all(
        tasks is not None and log.tasks_from(tasks) <= own
        for tasks, own in zip(_task_lists(message), (held.active.keys(), held.standby, held.warmup), strict=True)
    )


def _check_tasks(configured: ConfiguredTopology, message: m.StreamsGroupHeartbeatRequest) -> None:
    """Refuse tasks that the topology does not have."""
    if configured.problem is not None or configured.subtopologies is None:
        return
    for entry in (entry for tasks in _task_lists(message) for entry in tasks or ()):
        subtopology = configured.subtopologies.get(entry.subtopology_id)
        if subtopology is None:
            text = f"Subtopology {entry.subtopology_id} does not exist in the topology."
            raise Refused(ErrorCode.INVALID_REQUEST, text)
        for partition in entry.partitions:
            if not 0 <= partition < subtopology.tasks:
                text = (
                    f"Task {partition} for subtopology {entry.subtopology_id} is invalid. Number of tasks for this "
                    f"subtopology: {subtopology.tasks}"
                )
                raise Refused(ErrorCode.INVALID_REQUEST, text)


def _offsets(message: m.StreamsGroupHeartbeatRequest, before: TaskOffsets) -> TaskOffsets:
    """Return what a member says of the states of its tasks; what it leaves out is as before."""
    offsets, ends = message.task_offsets, message.task_end_offsets
    return TaskOffsets(
        before.offsets if offsets is None else _by_task(offsets), before.ends if ends is None else _by_task(ends)
    )


def _by_task(entries: Iterable[m.StreamsGroupHeartbeatRequestTaskOffset]) -> dict[Task, int]:
    found: dict[Task, int] = {}
    for entry in entries:
        task = Task(entry.subtopology_id, entry.partition)
        if task in found:
            text = (
                f"Task offsets contain a duplicate entry for subtopology {task.subtopology} and partition "
                f"{task.partition}."
            )
            raise Refused(ErrorCode.INVALID_REQUEST, text)
        found[task] = entry.offset
    return found
