"""A member of KIP-848 on the stage: what it says in ConsumerGroupHeartbeat, and what it does with the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import kcoord_wire as kw
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.interop.exchanges.script import TOPICS
from tests.interop.exchanges.stage import Answer, Connection, Stage

Held = dict[str, list[int]]
"""Partitions by topic."""

JOINS, LEAVES, LEAVES_FOR_A_WHILE = 0, -1, -2
"""Member epochs that say what a member wants."""


@dataclass
class Heartbeater:
    """A member of the script's group, on its own connection. It owns at once what it is given, and gives up at once
    what it is to give up, unless a script says otherwise.

    :ivar topics: its subscription by name
    :ivar id: chosen by itself, as v1 wants it
    :ivar given: the assignment of the last answer that had one
    """

    stage: Stage
    name: str
    topics: Sequence[str] | None = ("orders",)
    regex: str | None = None
    instance: str | None = None
    rebalance_ms: int = 300_000
    assignor: str | None = None
    version: int = 1
    id: str = ""
    epoch: int = 0
    given: Held = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.id = self.id or (f"{self.name}-id" if self.version else "")
        self.connection: Connection = self.stage.connect(self.name)

    def joins(self, error: ErrorCode | None = None, **changes: Any) -> Answer:
        """The first heartbeat, with everything in it."""
        known = {
            "member_epoch": JOINS,
            "instance_id": self.instance,
            "rebalance_timeout_ms": self.rebalance_ms,
            "subscribed_topic_names": None if self.topics is None else list(self.topics),
            "server_assignor": self.assignor,
            "topic_partitions": [],
        }
        if self.version:
            known["subscribed_topic_regex"] = self.regex
        return self.beats(error, **{**known, **changes})

    def beats(self, error: ErrorCode | None = None, *, owned: Held | None = None, **changes: Any) -> Answer:
        """A heartbeat in which nothing has changed but `changes`; `owned` reports partitions."""
        known = {
            "group_id": self.stage.group,
            "member_id": self.id,
            "member_epoch": self.epoch,
            "instance_id": self.instance,
            "topic_partitions": None if owned is None else self._partitions(owned),
        }
        request = kw.ConsumerGroupHeartbeatRequest(**{**known, **changes})
        answer = self.connection.call(request, self.version, error)
        if answer.error_code == ErrorCode.NONE:
            self.id, self.epoch = answer.member_id, answer.member_epoch
            if answer.assignment is not None:
                self.given = self._names(answer.assignment.topic_partitions)
        return answer

    def reports(self, error: ErrorCode | None = None) -> Answer:
        """A heartbeat that says that it owns what it was given, and nothing else."""
        return self.beats(error, owned=self.given)

    def leaves(self, error: ErrorCode | None = None, *, for_a_while: bool = False) -> Answer:
        """Leave the group; with an instance perhaps for a while."""
        answer = self.beats(error, member_epoch=LEAVES_FOR_A_WHILE if for_a_while else LEAVES)
        if error is None:
            self.given, self.epoch = {}, JOINS
        return answer

    def commits(self, offset: int, version: int = 9, error: ErrorCode | None = None, **changes: Any) -> Answer:
        """OffsetCommit of one partition of ``orders`` in its epoch."""
        partition = kw.OffsetCommitRequestPartition(
            partition_index=changes.pop("partition", 0), committed_offset=offset, committed_metadata=""
        )
        topic = kw.OffsetCommitRequestTopic(name="" if version > 9 else "orders", partitions=[partition])
        if version > 9:
            topic.topic_id = self.stage.topic_ids["orders"]
        known = {
            "group_id": self.stage.group,
            "generation_id_or_member_epoch": self.epoch,
            "member_id": self.id,
            "group_instance_id": self.instance,
            "topics": [topic],
        }
        return self.connection.call(kw.OffsetCommitRequest(**{**known, **changes}), version, error)

    def fetches(self, version: int = 9, error: ErrorCode | None = None, **changes: Any) -> Answer:
        """OffsetFetch of ``orders`` with its id and epoch."""
        topic = kw.OffsetFetchRequestTopics(name="" if version > 9 else "orders", partition_indexes=[0, 1, 2])
        if version > 9:
            topic.topic_id = self.stage.topic_ids["orders"]
        known = {"group_id": self.stage.group, "member_id": self.id, "member_epoch": self.epoch, "topics": [topic]}
        group = kw.OffsetFetchRequestGroup(**{**known, **changes})
        return self.connection.call(kw.OffsetFetchRequest(groups=[group]), version, error)

    def _partitions(self, held: Mapping[str, Sequence[int]]) -> list[Any]:
        part, ids = kw.ConsumerGroupHeartbeatRequestTopicPartitions, self.stage.topic_ids
        return [part(topic_id=ids[topic], partitions=list(numbers)) for topic, numbers in held.items()]

    def _names(self, parts: Sequence[Any]) -> Held:
        names = {number: name for name, number in self.stage.topic_ids.items()}
        return {names[part.topic_id]: sorted(part.partitions) for part in parts}


def heartbeaters(stage: Stage, *names: str, **settings: Any) -> list[Heartbeater]:
    """Members of these names with the same settings, not yet joined."""
    return [Heartbeater(stage, name, **settings) for name in names]


def settle(*members: Heartbeater, rounds: int = 4) -> None:
    """All of them join if they have not, then report and beat in turn until the group has its assignment."""
    for member in members:
        if member.epoch == JOINS:
            member.joins()
    for _ in range(rounds):
        for member in members:
            member.reports()


def shown(stage: Stage, group: str | None = None, version: int = 1, error: ErrorCode | None = None) -> Answer:
    """ConsumerGroupDescribe of one group, by default the script's."""
    request = kw.ConsumerGroupDescribeRequest(group_ids=[stage.group if group is None else group])
    return stage.connect("admin").call(request, version, error)


def know_topics(address: str) -> None:
    """Wait until the group coordinator of a new broker knows the topics: its metadata come some time after the
    leaders of the partitions."""
    stage = Stage(address, "know-topics")
    try:
        member = Heartbeater(stage, "member", topics=sorted(TOPICS))
        member.joins()
        stage.eventually(member.reports, lambda _: len(member.given) == len(TOPICS))
        member.leaves()
    finally:
        stage.close()
