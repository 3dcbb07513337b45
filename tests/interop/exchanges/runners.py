"""A member of a streams group on the stage: what it says in StreamsGroupHeartbeat, and what it does with the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import kcoord_wire as kw
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.interop.exchanges.heartbeats import JOINS, LEAVES, LEAVES_FOR_A_WHILE
from tests.interop.exchanges.stage import Answer, Connection, Stage

Tasks = dict[str, list[int]]
"""Partitions by subtopology."""

KINDS = ("active", "standby", "warmup")


def topic_info(name: str, partitions: int = 0, **configs: str) -> kw.StreamsGroupHeartbeatRequestTopicInfo:
    """An internal topic; 0 partitions follow from its sources."""
    pairs = [
        kw.StreamsGroupHeartbeatRequestKeyValue(key=key.replace("_", "."), value=value)
        for key, value in configs.items()
    ]
    return kw.StreamsGroupHeartbeatRequestTopicInfo(
        name=name, partitions=partitions, replication_factor=1, topic_configs=pairs
    )


def subtopology(name: str, *sources: str, **more: Any) -> kw.StreamsGroupHeartbeatRequestSubtopology:
    """A subtopology that reads topics."""
    return kw.StreamsGroupHeartbeatRequestSubtopology(subtopology_id=name, source_topics=list(sources), **more)


def counting(prefix: str) -> list[kw.StreamsGroupHeartbeatRequestSubtopology]:
    """What a count of words is: one subtopology that repartitions ``orders``, and one with a store."""
    repartition, changelog = f"{prefix}-repartition", f"{prefix}-changelog"
    return [
        subtopology("0", "orders", repartition_sink_topics=[repartition]),
        subtopology(
            "1",
            repartition_source_topics=[topic_info(repartition, cleanup_policy="delete")],
            state_changelog_topics=[topic_info(changelog, cleanup_policy="compact")],
        ),
    ]


@dataclass
class Runner:
    """A member of the script's group, on its own connection. It runs at once what it is given, and gives up at once
    what it is to give up, unless a script says otherwise.

    :ivar subtopologies: of its topology; by default one that reads ``orders``
    :ivar process: of which it is a thread; by default its own
    :ivar given: tasks by kind, of the last answer that had any
    """

    stage: Stage
    name: str
    subtopologies: Sequence[Any] = ()
    topology_epoch: int = 0
    process: str = ""
    instance: str | None = None
    endpoint: tuple[str, int] | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    rebalance_ms: int = 300_000
    version: int = 1
    epoch: int = 0
    endpoint_epoch: int = 0
    given: dict[str, Tasks] = field(default_factory=lambda: {kind: {} for kind in KINDS})

    def __post_init__(self) -> None:
        self.id = f"{self.name}-id"
        self.subtopologies = self.subtopologies or [subtopology("0", "orders")]
        self.connection: Connection = self.stage.connect(self.name)

    @property
    def topology(self) -> kw.StreamsGroupHeartbeatRequestTopology:
        return kw.StreamsGroupHeartbeatRequestTopology(
            epoch=self.topology_epoch, subtopologies=list(self.subtopologies)
        )

    def joins(self, error: ErrorCode | None = None, **changes: Any) -> Answer:
        """The first heartbeat, with everything in it."""
        host = kw.StreamsGroupHeartbeatRequestEndpoint
        known = {
            "member_epoch": JOINS,
            "rebalance_timeout_ms": self.rebalance_ms,
            "topology": self.topology,
            "process_id": self.process or f"{self.name}-process",
            "user_endpoint": None if self.endpoint is None else host(host=self.endpoint[0], port=self.endpoint[1]),
            "client_tags": [
                kw.StreamsGroupHeartbeatRequestKeyValue(key=key, value=value) for key, value in self.tags.items()
            ],
            **{f"{kind}_tasks": [] for kind in KINDS},
        }
        return self.beats(error, **{**known, **changes})

    def beats(self, error: ErrorCode | None = None, **changes: Any) -> Answer:
        """A heartbeat in which nothing has changed but `changes`."""
        known = {
            "group_id": self.stage.group,
            "member_id": self.id,
            "member_epoch": self.epoch,
            "endpoint_information_epoch": self.endpoint_epoch,
            "instance_id": self.instance,
        }
        answer = self.connection.call(kw.StreamsGroupHeartbeatRequest(**{**known, **changes}), self.version, error)
        if answer.error_code == ErrorCode.NONE and changes.get("member_epoch", 0) >= JOINS:
            self.epoch, self.endpoint_epoch = answer.member_epoch, answer.endpoint_information_epoch
            if answer.active_tasks is not None:
                self.given = {kind: _by_subtopology(getattr(answer, f"{kind}_tasks")) for kind in KINDS}
        return answer

    def reports(self, error: ErrorCode | None = None, **owned: Tasks) -> Answer:
        """A heartbeat that says that it runs what it was given, and nothing else; or what is given here, by kind."""
        part = kw.StreamsGroupHeartbeatRequestTaskIds
        held = {**self.given, **owned}
        lists = {
            f"{kind}_tasks": [
                part(subtopology_id=name, partitions=list(numbers)) for name, numbers in held[kind].items()
            ]
            for kind in KINDS
        }
        return self.beats(error, **lists)

    def starts(self) -> Answer:
        """Join, and beat until the internal topics are there."""
        self.joins()
        return self.stage.eventually(self.reports, lambda answer: not answer.status)

    def leaves(self, error: ErrorCode | None = None, *, for_a_while: bool = False, **changes: Any) -> Answer:
        """Leave the group; with an instance perhaps for a while."""
        answer = self.beats(error, member_epoch=LEAVES_FOR_A_WHILE if for_a_while else LEAVES, **changes)
        if error is None:
            self.given, self.epoch = {kind: {} for kind in KINDS}, JOINS
        return answer

    def commits(self, offset: int, version: int = 9, error: ErrorCode | None = None, **changes: Any) -> Answer:
        """OffsetCommit of one partition of ``orders`` in its epoch."""
        partition = kw.OffsetCommitRequestPartition(
            partition_index=changes.pop("partition", 0), committed_offset=offset, committed_metadata=""
        )
        topic = kw.OffsetCommitRequestTopic(name=changes.pop("topic", "orders"), partitions=[partition])
        known = {
            "group_id": self.stage.group,
            "generation_id_or_member_epoch": self.epoch,
            "member_id": self.id,
            "topics": [topic],
        }
        return self.connection.call(kw.OffsetCommitRequest(**{**known, **changes}), version, error)

    def fetches(self, version: int = 9, error: ErrorCode | None = None, **changes: Any) -> Answer:
        """OffsetFetch of ``orders`` with its id and epoch."""
        topic = kw.OffsetFetchRequestTopics(name="orders", partition_indexes=[0, 1, 2])
        known = {"group_id": self.stage.group, "member_id": self.id, "member_epoch": self.epoch, "topics": [topic]}
        group = kw.OffsetFetchRequestGroup(**{**known, **changes})
        return self.connection.call(kw.OffsetFetchRequest(groups=[group]), version, error)


def _by_subtopology(entries: Sequence[Any]) -> Tasks:
    return {entry.subtopology_id: sorted(entry.partitions) for entry in entries}


def runners(stage: Stage, *names: str, **settings: Any) -> list[Runner]:
    """Members of these names with the same settings, not yet joined."""
    return [Runner(stage, name, **settings) for name in names]


def shown(stage: Stage, version: int = 1, error: ErrorCode | None = None, **more: Any) -> Answer:
    """StreamsGroupDescribe of the script's group."""
    request = kw.StreamsGroupDescribeRequest(group_ids=[stage.group], **more)
    return stage.connect("admin").call(request, version, error)
