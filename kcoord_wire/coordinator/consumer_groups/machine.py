"""The groups of a coordinator, of the classic protocol, of KIP-848, KIP-932 and KIP-1071, as one pure object.

    machine = CoordinatorMachine(brokers, topics, subscribed, config)
    machine.handle(Load([]), now)
    effects = machine.handle(Request(1, ConsumerGroupHeartbeatRequest(...), version=1, ...), now)

Laws:

* Group ids are one namespace: `groups` has classic groups (`core.groups.Group`), those of KIP-848 (`ConsumerGroup`) and
  share groups (`ShareGroup`). A request goes to the protocol of the group that it names.
* An epoch or assignment is in the log before it is answered.
* Members of KIP-848 have no parked requests: each heartbeat is answered at once.

Source: KIP-848, KIP-932; Kafka's `GroupMetadataManager.java`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from kcoord_wire import messages as m
from kcoord_wire.coordinator.consumer_groups.classic_members import ClassicMembers, downgraded, may_downgrade
from kcoord_wire.coordinator.consumer_groups.group import ConsumerGroup, Member
from kcoord_wire.coordinator.consumer_groups.heartbeat import Heartbeats, describe
from kcoord_wire.coordinator.consumer_groups.progress import Progress
from kcoord_wire.coordinator.consumer_groups.records import replay_groups
from kcoord_wire.coordinator.core import events
from kcoord_wire.coordinator.core import groups as classic
from kcoord_wire.coordinator.core.apis import Refused
from kcoord_wire.coordinator.core.brokers import Brokers
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.groups import BaseGroup, Subscribed, TopicNames, group_record
from kcoord_wire.coordinator.core.machine import GroupMachine
from kcoord_wire.coordinator.core.regexes import CompileRegex, compile_regex
from kcoord_wire.coordinator.share_groups.share_group import ShareGroup
from kcoord_wire.coordinator.share_groups.share_offsets import ShareOffsets
from kcoord_wire.coordinator.share_groups.share_records import replay_groups as replay_share_groups
from kcoord_wire.coordinator.share_groups.sharing import ShareGroups
from kcoord_wire.coordinator.streams_groups.describing import describe as describe_streams
from kcoord_wire.coordinator.streams_groups.heartbeat import StreamsGroups
from kcoord_wire.coordinator.streams_groups.streams_group import StreamsGroup
from kcoord_wire.coordinator.streams_groups.streams_records import replay_groups as replay_streams_groups
from kcoord_wire.protocol.error_codes import ErrorCode

_Handler = Callable[[events.Request, Any], None]
_OfGroup = Callable[[events.Request, Any, ConsumerGroup], None]


def _no_configs(group_id: str) -> Mapping[str, str]:
    return {}


class CoordinatorMachine(GroupMachine):
    """All groups of one coordinator, of both protocols; see `GroupMachine`.

    :param compile_regex: compiles the pattern of a subscription
    :param configs_of: returns the configs that a group has of its own, by Kafka's names
    """

    def __init__(
        self,
        brokers: Brokers,
        topics: TopicNames,
        subscribed: Subscribed,
        config: GroupConfig | None = None,
        *,
        compile_regex: CompileRegex = compile_regex,
        configs_of: Callable[[str], Mapping[str, str]] = _no_configs,
    ) -> None:
        super().__init__(brokers, topics, subscribed, config)
        self._progress = progress = Progress(
            self.groups, topics, self.config, self._timers, self._effects, compile_regex, configs_of
        )
        progress.downgrade = self._maybe_downgrade
        self._classic_members = members = ClassicMembers(progress, self._downgrade)
        for cls, to_consumer in (
            (m.JoinGroupRequest, self._join_consumers),
            (m.SyncGroupRequest, members.sync),
            (m.LeaveGroupRequest, members.leave),
        ):
            self._handlers[cls] = partial(self._by_protocol, self._handlers[cls], to_consumer)
        self._handlers[m.ConsumerGroupHeartbeatRequest] = Heartbeats(progress, self._dissolve).handle
        self._handlers[m.ConsumerGroupDescribeRequest] = partial(describe, progress)
        self._shares = ShareGroups(
            self.groups, topics, self.config, self._timers, self._effects, configs_of, self._delete_groups
        )
        self._share_offsets = ShareOffsets(self.groups, topics, self._effects)
        self._handlers[m.AlterShareGroupOffsetsRequest] = self._share_offsets.alter
        self._handlers[m.DeleteShareGroupOffsetsRequest] = self._share_offsets.delete
        self._handlers[m.DeleteGroupsRequest] = self._shares.delete
        self._handlers[m.ShareGroupHeartbeatRequest] = self._shares.heartbeat
        self._handlers[m.ShareGroupDescribeRequest] = self._shares.describe
        self._streams = StreamsGroups(self.groups, topics, self.config, self._timers, self._effects, configs_of)
        self._handlers[m.StreamsGroupHeartbeatRequest] = self._streams.heartbeat
        self._handlers[m.StreamsGroupDescribeRequest] = partial(describe_streams, self._streams)
        self._handlers[m.StreamsGroupTopologyDescriptionUpdateRequest] = self._streams.refuse_description

    # ---- requests of the classic protocol

    def _by_protocol(self, to_classic: _Handler, to_consumer: _OfGroup, request: events.Request, message: Any) -> None:
        """Give a request to the protocol of the group that it names."""
        group = self.groups.get(message.group_id)
        try:
            if type(group) is ConsumerGroup:  # isinstance is slow where the base is abstract
                return to_consumer(request, message, group)
            if type(group) is StreamsGroup and isinstance(message, m.JoinGroupRequest) and not group.members:
                self._become_classic(message, group)
        except Refused as refused:
            return self._refuse(request, refused.error)
        return to_classic(request, message)

    def _heartbeat_of_others(self, request: events.Request, message: m.HeartbeatRequest) -> None:
        self._by_protocol(super()._heartbeat_of_others, self._classic_members.heartbeat, request, message)

    def _join_consumers(self, request: events.Request, message: m.JoinGroupRequest, group: ConsumerGroup) -> None:
        """Answer a JoinGroup. A group without members becomes a classic one, unless the request is refused anyway."""
        if error := self._invalid_join(message):
            raise Refused(error)
        if group.members:
            return self._classic_members.join(request, message, group)
        self._become_classic(message, group)
        return self._join(request, message)

    def _become_classic(self, message: m.JoinGroupRequest, group: ConsumerGroup | StreamsGroup) -> None:
        """Put a classic group in the place of one without members, unless the JoinGroup is refused anyway."""
        if error := self._invalid_join(message):
            raise Refused(error)
        if message.member_id:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
        new = classic.Group(group.group_id, self._effects.now)
        new.offsets = group.offsets
        self._release(group)
        self.groups[group.group_id] = new
        self._effects.append(new, [*group.tombstones(), group_record(new)])

    # ---- conversions

    def _dissolve(self, group: BaseGroup) -> None:
        """End a classic group that has become one of KIP-848: its members are to join again."""
        assert isinstance(group, classic.Group), "only classic groups are upgraded"
        for member in group.members.values():
            self._answer_waiting(group, member, ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
        group.end_rebalance(self._effects, "interrupted")
        group.end(self._effects.now)

    def _maybe_downgrade(self, group: ConsumerGroup, leaving: Sequence[Member]) -> bool:
        """Make a group classic that loses its last members of KIP-848; return whether it has become that."""
        gone = {member.member_id for member in leaving}
        if not may_downgrade(self._progress, group, gone):
            return False
        self._downgrade(group, leaving[0], gone)
        return True

    def _downgrade(self, group: ConsumerGroup, cause: Member | None, gone: Collection[str] = ()) -> None:
        """Make a group classic that has only classic members.

        :param cause: the member because of which the group has to rebalance; None if it need not
        :param gone: ids of members that it loses
        """
        removed = group.tombstones()
        for member_id in gone:
            group.remove(member_id)
        new = downgraded(self._progress, group)
        self._progress.release(group)
        self.groups[group.group_id] = new
        self._effects.append(new, [*removed, group_record(new)])
        new.read_subscriptions(self._subscribed)
        for member in new.members.values():
            self._keep_alive(new, member)
        if cause is not None:
            who = classic.Member(cause.member_id, cause.instance_id, cause.client_id, cause.client_host, 0, 0, ())
            new.removed = group.removed
            self._prepare(new, events.Trigger.DOWNGRADED, who, None)

    # ---- the whole coordinator

    def _take_in(self, event: events.Event) -> None:
        super()._take_in(event)
        if isinstance(event, events.ShareStateInitialized):
            self._shares.state_initialized(event)
            self._share_offsets.initialized(event)
        elif isinstance(event, events.ShareStateDeleted):
            self._shares.state_deleted(event)
            self._share_offsets.deleted(event)
        elif isinstance(event, events.Resign):
            self._shares.resign()
            self._share_offsets.resign()
        elif isinstance(event, events.TopicsDeleted | events.Load):
            self._shares.forget_topics()
        elif isinstance(event, events.TopicsRefused):
            self._streams.topics_refused(event)

    def _load(self, records: Sequence[events.LogRecord], partitions: frozenset[int] | None) -> None:
        super()._load(records, partitions)
        for group_id, group in replay_groups(records, self._effects.now).items():
            before = self.groups.get(group_id)
            if before is not None:
                group.offsets = before.offsets
            self.groups[group_id] = group
            self._progress.restart_timers(group)
        for group_id, shared in replay_share_groups(records, self._effects.now).items():
            self.groups[group_id] = shared
            self._shares.restart_timers(shared)
        for group_id, streams in replay_streams_groups(records, self._effects.now, self.topics).items():
            before = self.groups.get(group_id)
            if before is not None:
                streams.offsets = before.offsets
            self.groups[group_id] = streams
            self._streams.restart_timers(streams)

    def _rebalance_requested(self, event: events.Rebalance) -> None:
        group = self.groups.get(event.group_id)
        if isinstance(group, ConsumerGroup):
            self._progress.rebalance(group, event.reason)
        elif isinstance(group, ShareGroup):
            self._shares.rebalance(group, event.reason)
        elif isinstance(group, StreamsGroup):
            self._streams.rebalance(group, event.reason)
        else:
            super()._rebalance_requested(event)

    def _release(self, group: BaseGroup) -> None:
        if isinstance(group, ConsumerGroup):
            self._progress.release(group)
        elif isinstance(group, ShareGroup):
            self._shares.release(group)
        elif isinstance(group, StreamsGroup):
            self._streams.release(group)
        else:
            super()._release(group)
