"""The groups of a coordinator, of the classic protocol and of KIP-848, as one pure object.

    machine = CoordinatorMachine(brokers, topics, subscribed, config)
    machine.handle(Load([]), now)
    effects = machine.handle(Request(1, ConsumerGroupHeartbeatRequest(...), version=1, ...), now)

Laws:

* Group ids are one namespace: `groups` has classic groups (`core.groups.Group`) and those of KIP-848 (`ConsumerGroup`).
  A request goes to the protocol of the group that it names.
* An epoch or assignment is in the log before it is answered.
* Members of KIP-848 have no parked requests: each heartbeat is answered at once.

Source: KIP-848; Kafka's `GroupMetadataManager.java`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kcoord_wire import messages as m
from kcoord_wire.assignors.embedded import ConsumerProtocol
from kcoord_wire.coordinator.consumer_groups.describe import describe
from kcoord_wire.coordinator.consumer_groups.group import ConsumerGroup
from kcoord_wire.coordinator.consumer_groups.heartbeat import Heartbeats
from kcoord_wire.coordinator.consumer_groups.migration import Migration
from kcoord_wire.coordinator.consumer_groups.progress import Progress, Shared
from kcoord_wire.coordinator.consumer_groups.records import replay_groups
from kcoord_wire.coordinator.consumer_groups.regexes import CompileRegex, compile_regex
from kcoord_wire.coordinator.core import events
from kcoord_wire.coordinator.core.brokers import Brokers
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.groups import AnyGroup, Subscribed, TopicNames
from kcoord_wire.coordinator.core.machine import GroupMachine

__all__ = ["CoordinatorMachine"]


class CoordinatorMachine(GroupMachine):
    """All groups of one coordinator, of both protocols; see `GroupMachine`.

    :param compile_regex: compiles the pattern of a subscription
    """

    def __init__(
        self,
        brokers: Brokers,
        topics: TopicNames,
        subscribed: Subscribed,
        config: GroupConfig | None = None,
        *,
        compile_regex: CompileRegex = compile_regex,
    ) -> None:
        super().__init__(brokers, topics, subscribed, config)
        shared = Shared(
            self.groups, topics, self.config, self._timers, self._effects, compile_regex, ConsumerProtocol()
        )
        self._progress = Progress(shared)
        self._migration = Migration(self._progress)
        heartbeats = Heartbeats(self._progress, self._migration.upgraded, self._migration.install)
        self._handlers[m.ConsumerGroupHeartbeatRequest] = heartbeats.handle
        self._handlers[m.ConsumerGroupDescribeRequest] = partial(describe, shared)
        self.serves = frozenset({m.FindCoordinatorRequest, *self._handlers})

    def _load(self, records: Sequence[events.LogRecord], partitions: frozenset[int] | None) -> None:
        super()._load(records, partitions)
        for group_id, group in replay_groups(records, self._effects.now).items():
            before = self.groups.get(group_id)
            if before is not None:
                group.offsets = before.offsets
            self.groups[group_id] = group
            self._progress.restart_timers(group)

    def _rebalance_requested(self, event: events.Rebalance) -> None:
        group = self.groups.get(event.group_id)
        if isinstance(group, ConsumerGroup):
            self._progress.rebalance(group, event.reason)
        else:
            super()._rebalance_requested(event)

    def _release(self, group: AnyGroup) -> None:
        if isinstance(group, ConsumerGroup):
            self._progress.release(group)
        else:
            super()._release(group)
