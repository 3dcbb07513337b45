"""A group machine with scripted time and members of a share group."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.events import (
    DeleteShareState,
    InitializeShareState,
    Load,
    ShareStateDeleted,
    ShareStateInitialized,
)
from kcoord_wire.coordinator.share_groups.share_group import ShareGroup
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.consumer_script import partitions
from tests.support.scripted import Script


@dataclass
class ShareScript(Script):
    """Runs one machine with members of a share group. Assignments need no time between them.

    :ivar wanted: the state of partitions that was asked for and has not come
    :ivar unwanted: the state that was to be deleted
    """

    config: GroupConfig = field(default_factory=lambda: GroupConfig(share_assignment_interval_ms=0))
    wanted: list[InitializeShareState] = field(default_factory=list)
    unwanted: list[DeleteShareState] = field(default_factory=list)

    @property
    def group(self) -> ShareGroup:
        group = self.machine.groups[self.group_id]
        assert isinstance(group, ShareGroup)
        return group

    def carry_out(self, effect: Any) -> None:
        super().carry_out(effect)
        if isinstance(effect, InitializeShareState):
            self.wanted.append(effect)
        elif isinstance(effect, DeleteShareState):
            self.unwanted.append(effect)

    def beat(self, member_id: str, epoch: int, *topics: str, **more: Any) -> m.ShareGroupHeartbeatResponse:
        """Send a heartbeat, with topics if there are any; the answer."""
        more.setdefault("group_id", self.group_id)
        message = m.ShareGroupHeartbeatRequest(
            member_id=member_id, member_epoch=epoch, subscribed_topic_names=list(topics) or None, **more
        )
        answer = self.ask(message, client_id=f"client-{member_id}")
        assert isinstance(answer, m.ShareGroupHeartbeatResponse)
        return answer

    def initialize(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """Say that the state that was asked for is there, or could not be initialized."""
        wanted, self.wanted = self.wanted, []
        for asked in wanted:
            known = {topic_id: frozenset(offsets) for topic_id, offsets in asked.partitions.items()}
            self.do(ShareStateInitialized(asked.group_id, known, error))

    def delete(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """Say that the state that was to be deleted is gone, or could not be deleted."""
        unwanted, self.unwanted = self.unwanted, []
        for asked in unwanted:
            self.do(ShareStateDeleted(asked.group_id, error))

    def enter(self, *member_ids: str, topics: tuple[str, ...] = ("orders",)) -> None:
        """Let members join, one after the other, and all of them beat until each has its part."""
        for member_id in member_ids:
            assert self.beat(member_id, 0, *topics).error_code == 0
            self.initialize()
            self.follow()

    def follow(self, rounds: int = 10) -> None:
        """Let all members beat until nothing changes."""
        for _ in range(rounds):
            before = len(self.log)
            for member_id, member in [*self.group.members.items()]:
                assert self.beat(member_id, member.epoch).error_code == 0
            self.initialize()
            if len(self.log) == before:
                return
        raise AssertionError(f"no end after {rounds} rounds: {self.group.members}")

    def has(self, member_id: str) -> dict[str, list[int]]:
        """What a member may fetch from, by topic."""
        record = [
            m.ShareGroupHeartbeatResponseTopicPartitions(topic_id=topic_id, partitions=sorted(numbers))
            for topic_id, numbers in self.group.members[member_id].assigned.items()
        ]
        return partitions(record)

    def counts(self) -> list[int]:
        """How many partitions each member may fetch from."""
        return [sum(map(len, member.assigned.values())) for member in self.group.members.values()]

    def restarted(self) -> ShareScript:
        """The same coordinator after a restart, from its log."""
        script = ShareScript(self.config, self.now, self.group_id, load=False)
        script.topics.known = dict(self.topics.known)
        script.log = [self.records]
        script.do(Load(self.records))
        return script
