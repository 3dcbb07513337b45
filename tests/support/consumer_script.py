"""A group machine with scripted time and members of KIP-848."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kcoord_wire import messages as m
from kcoord_wire.coordinator.consumer_groups.group import ConsumerGroup
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.events import Load
from tests.support.scripted import TOPICS, Script

ORDERS = uuid.uuid5(uuid.NAMESPACE_OID, "orders")
PAYMENTS = uuid.uuid5(uuid.NAMESPACE_OID, "payments")

_NAMES = {ORDERS: "orders", PAYMENTS: "payments"}


def partitions(entries: Iterable[Any]) -> dict[str, list[int]]:
    """The partitions of an answer, or of a record, by the name of their topic."""
    return {_NAMES.get(entry.topic_id, str(entry.topic_id)): sorted(entry.partitions) for entry in entries}


def _owned(held: Mapping[uuid.UUID, Iterable[int]]) -> list[Any]:
    return [
        m.ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=topic_id, partitions=sorted(numbers))
        for topic_id, numbers in held.items()
    ]


@dataclass
class ConsumerScript(Script):
    """Runs one machine with members of KIP-848. Assignments need no time between them."""

    config: GroupConfig = field(default_factory=lambda: GroupConfig(consumer_assignment_interval_ms=0))

    @property
    def group(self) -> ConsumerGroup:
        group = self.machine.groups[self.group_id]
        assert isinstance(group, ConsumerGroup)
        return group

    def beat(
        self,
        member_id: str,
        epoch: int,
        *,
        version: int | None = None,
        owned: Mapping[uuid.UUID, Iterable[int]] | None = None,
        topics: Iterable[str] | None = None,
        **more: Any,
    ) -> m.ConsumerGroupHeartbeatResponse:
        """Send a heartbeat; the answer."""
        message = m.ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=member_id,
            member_epoch=epoch,
            subscribed_topic_names=None if topics is None else list(topics),
            topic_partitions=None if owned is None else _owned(owned),
            **more,
        )
        answer = self.ask(message, version, client_id=f"client-{member_id}")
        assert isinstance(answer, m.ConsumerGroupHeartbeatResponse)
        return answer

    def enter(self, member_id: str, *topics: str, **more: Any) -> m.ConsumerGroupHeartbeatResponse:
        """Join as a member of these topics, of ``orders`` if none are named; the answer."""
        more.setdefault("topics", topics or ("orders",))
        more.setdefault("rebalance_timeout_ms", 60_000)
        return self.beat(member_id, 0, owned={}, **more)

    def follow(self, *member_ids: str, rounds: int = 10) -> None:
        """Let members beat and give up what they must, as clients do, until nothing changes."""
        for _ in range(rounds):
            before = len(self.log)
            for member_id in member_ids:
                member = self.group.members[member_id]
                answer = self.beat(member_id, member.epoch, owned=self.holds(member_id))
                assert answer.error_code == 0
            if len(self.log) == before:
                return
        raise AssertionError(f"no end after {rounds} rounds: {self.group.members}")

    def holds(self, member_id: str) -> dict[uuid.UUID, list[int]]:
        """What a member may use."""
        return {topic: sorted(numbers) for topic, numbers in self.group.members[member_id].assigned.items()}

    def counts(self) -> dict[str, int]:
        """How many partitions each member may use."""
        members = self.group.members.values()
        return {member.member_id: sum(map(len, member.assigned.values())) for member in members}

    def restarted(self) -> ConsumerScript:
        """The same coordinator after a restart, from its log."""
        script = ConsumerScript(self.config, self.now, self.group_id, load=False)
        script.topics.known = dict(self.topics.known)
        script.do(Load(self.records))
        return script


assert set(_NAMES.values()) == set(TOPICS)
