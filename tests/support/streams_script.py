"""A group machine with scripted time and members of a streams group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kcoord_wire import messages as m
from kcoord_wire.assignors.streams import Task
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.events import CreateTopics, Load, TopicsRefused
from kcoord_wire.coordinator.streams_groups.streams_group import HeldTasks, StreamsGroup
from kcoord_wire.coordinator.streams_groups.streams_records import task_ids
from kcoord_wire.coordinator.streams_groups.topology import Status
from tests.support.scripted import Script

Subtopology = m.StreamsGroupHeartbeatRequestSubtopology
NO_WAIT = {"streams_initial_rebalance_delay_ms": 0, "streams_assignment_interval_ms": 0}


def internal(name: str, partitions: int = 0) -> m.StreamsGroupHeartbeatRequestTopicInfo:
    """An internal topic; 0 partitions follow from its sources."""
    return m.StreamsGroupHeartbeatRequestTopicInfo(name=name, partitions=partitions)


def subtopology(name: str, *sources: str, **more: Any) -> Subtopology:
    """A subtopology that reads topics."""
    return Subtopology(subtopology_id=name, source_topics=list(sources), **more)


COUNTING = (
    subtopology("0", "orders", repartition_sink_topics=["g-words"]),
    subtopology("1", repartition_source_topics=[internal("g-words")], state_changelog_topics=[internal("g-counts")]),
)
"""What counts words: it repartitions ``orders``, and has a store."""


@dataclass
class StreamsScript(Script):
    """Runs one machine with members of a streams group; assignments need no time between them. Topics that the group
    needs are created, except those of `refused`.

    :ivar created: the topics, by name
    :ivar refused: why a topic cannot be created, by name
    """

    config: GroupConfig = field(default_factory=lambda: GroupConfig(**NO_WAIT))
    created: dict[str, m.CreateTopicsRequestCreatableTopic] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.topics.known["orders"] = 3

    @property
    def group(self) -> StreamsGroup:
        group = self.machine.groups[self.group_id]
        assert isinstance(group, StreamsGroup)
        return group

    def carry_out(self, effect: Any) -> None:
        super().carry_out(effect)
        if isinstance(effect, CreateTopics):
            for topic in effect.topics:
                if topic.name not in self.refused:
                    self.created[topic.name] = topic
                    self.topics.set(topic.name, topic.num_partitions)
            errors = {name: why for name, why in self.refused.items() if name in {each.name for each in effect.topics}}
            if errors:
                self.do(TopicsRefused(effect.group_id, errors))

    def beat(
        self, member_id: str, epoch: int, *, owned: HeldTasks | None = None, version: int = 1, **more: Any
    ) -> m.StreamsGroupHeartbeatResponse:
        """Send a heartbeat; the answer."""
        if owned is not None:
            kind = m.StreamsGroupHeartbeatRequestTaskIds
            names = ("active_tasks", "standby_tasks", "warmup_tasks")
            more |= {name: task_ids(kind, tasks) for name, tasks in zip(names, owned, strict=True)}
        message = m.StreamsGroupHeartbeatRequest(
            group_id=self.group_id, member_id=member_id, member_epoch=epoch, **more
        )
        answer = self.ask(message, version, client_id=f"client-{member_id}")
        assert isinstance(answer, m.StreamsGroupHeartbeatResponse)
        return answer

    def enter(
        self, member_id: str, subtopologies: Sequence[Subtopology] = COUNTING, *, topology_epoch: int = 0, **more: Any
    ) -> m.StreamsGroupHeartbeatResponse:
        """Join, as a process of its own if none is named; the answer."""
        more.setdefault("process_id", f"process-{member_id}")
        more.setdefault("rebalance_timeout_ms", 60_000)
        topology = m.StreamsGroupHeartbeatRequestTopology(epoch=topology_epoch, subtopologies=list(subtopologies))
        return self.beat(member_id, 0, owned=HeldTasks(), topology=topology, **more)

    def start(self, *member_ids: str, **more: Any) -> None:
        """Let members join one after the other, and all of them beat until each has its tasks."""
        for member_id in member_ids:
            assert self.enter(member_id, **more).error_code == 0
            self.follow()

    def follow(self, rounds: int = 20) -> None:
        """Let all members beat, and give up what they must, until nothing changes."""
        for _ in range(rounds):
            before = len(self.log)
            for member_id, member in [*self.group.members.items()]:
                assert self.beat(member_id, member.epoch, owned=member.assigned).error_code == 0
            if len(self.log) == before:
                return
        raise AssertionError(f"no end after {rounds} rounds: {self.group.members}")

    def active(self, member_id: str) -> list[str]:
        """The tasks that a member runs, as Streams names them: ``1_0``."""
        return names(self.group.members[member_id].assigned.active)

    def standby(self, member_id: str) -> list[str]:
        """The tasks of which a member has a standby."""
        return names(self.group.members[member_id].assigned.standby)

    def statuses(self, answer: m.StreamsGroupHeartbeatResponse) -> list[Status]:
        """What keeps the group from running, by an answer."""
        return [Status(each.status_code) for each in answer.status or ()]

    def restarted(self) -> StreamsScript:
        """The same coordinator after a restart, from its log."""
        script = StreamsScript(self.config, self.now, self.group_id, load=False)
        script.topics.known = dict(self.topics.known)
        script.do(Load(self.records))
        script.log.append(self.records)
        return script


def names(tasks: Any) -> list[str]:
    return [f"{task.subtopology}_{task.partition}" for task in sorted(tasks, key=lambda task: Task(*task))]
