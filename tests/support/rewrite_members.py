"""A member of the rewrite without a network: the test is its coordinator, its host and its clock."""

from __future__ import annotations

from typing import Any, Final

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.central.rewrite.events import FetchingStopped, MemberSettings, RewriteError, StopFetching
from kcoord_wire.central.rewrite.member import MemberPhase, RewriteMember
from kcoord_wire.kernel.machines import BrokerAddress, Connect, Connected, Disconnected, LogEvent, Received, Send, Tick
from kcoord_wire.messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    MetadataResponse,
    MetadataResponseTopic,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from kcoord_wire.messages.rewrite import RewriteJoinGroupResponse, RewriteJoinGroupResponseAssignedTopic

BOOTSTRAP: Final = (BrokerAddress(1, "one", 9092), BrokerAddress(2, "two", 9092))
COORDINATOR: Final = BrokerAddress(3, "three", 9092)
P0: Final = TopicPartition("orders", 0)
P1: Final = TopicPartition("orders", 1)


class Driven:
    """The member, and what it wants done.

    :ivar now: ms
    :ivar effects: those of the last event, without what goes to the log
    :ivar connection: the one that it has opened last
    """

    def __init__(self, **settings: Any) -> None:
        wanted: dict[str, Any] = {"group_id": "g", "bootstrap": BOOTSTRAP, **settings}
        if not {"topics", "whitelist", "blacklist"} & wanted.keys():
            wanted["topics"] = ("orders",)
        self.member = RewriteMember(MemberSettings(**wanted))
        self.now = 0
        self.connection = 0
        self.effects: list[Any] = []
        self.happens(Tick())

    # ---- events

    def happens(self, event: Any) -> list[Any]:
        """Deliver an event."""
        effects = self.member.handle(event, self.now)
        self.effects = [each for each in effects if not isinstance(each, LogEvent)]
        for each in self.effects:
            if isinstance(each, Connect):
                assert each.connection > self.connection, "a connection's number is used twice"
                self.connection = each.connection
        return self.effects

    def tick(self, ms: int) -> list[Any]:
        """Let time pass without the ticks in between."""
        self.now += ms
        return self.happens(Tick())

    def wait(self) -> list[Any]:
        """Let time pass to the deadline."""
        assert self.member.deadline is not None
        return self.tick(max(self.member.deadline - self.now, 0))

    def connects(self) -> list[Any]:
        """The last `Connect` succeeds."""
        return self.happens(Connected(self.connection))

    def disconnects(self) -> list[Any]:
        """The connection is closed by the other side."""
        return self.happens(Disconnected(self.connection))

    def answers(self, response: Any) -> list[Any]:
        """The broker answers."""
        return self.happens(Received(self.connection, response))

    # ---- answers

    def beat(self, error: int = RewriteError.NONE) -> list[Any]:
        """Wait for the next heartbeat, and answer it."""
        while not isinstance(self.sent(), HeartbeatRequest):
            self.wait()
        return self.answers(HeartbeatResponse(error_code=error))

    def joined(self, generation: int, *partitions: int, error: int = RewriteError.NONE) -> list[Any]:
        """Answer JoinGroup, and the heartbeat that follows a success."""
        if error:
            return self.answers(RewriteJoinGroupResponse(error_code=error, generation_id=-1))
        assigned = RewriteJoinGroupResponseAssignedTopic(topic="orders", partitions=list(partitions))
        assigned_partitions = [assigned] if partitions else []
        self.answers(
            RewriteJoinGroupResponse(
                generation_id=generation, consumer_id="c-1", assigned_partitions=assigned_partitions
            )
        )
        assert self.sent() == HeartbeatRequest(group_id="g", generation_id=generation, member_id="c-1")
        return self.beat()

    def offsets(self, error: int = RewriteError.NONE, **committed: int) -> list[Any]:
        """Answer OffsetFetch; the keys are like ``p0``."""
        partitions = [
            OffsetFetchResponsePartition(partition_index=int(name[1:]), committed_offset=offset, error_code=error)
            for name, offset in committed.items()
        ]
        return self.answers(
            OffsetFetchResponse(topics=[OffsetFetchResponseTopic(name="orders", partitions=partitions)])
        )

    def stops(self, **positions: int) -> list[Any]:
        """The host has stopped fetching."""
        assert any(isinstance(each, StopFetching) for each in self.effects)
        return self.happens(FetchingStopped({TopicPartition("orders", int(k[1:])): v for k, v in positions.items()}))

    def committed(self, error: int = RewriteError.NONE) -> list[Any]:
        """Answer OffsetCommit."""
        request = self.sent()
        assert isinstance(request, OffsetCommitRequest)
        return self.answers(
            OffsetCommitResponse(
                topics=[
                    OffsetCommitResponseTopic(
                        name=topic.name,
                        partitions=[
                            OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=error)
                            for each in topic.partitions
                        ],
                    )
                    for topic in request.topics
                ]
            )
        )

    def lists(self, *topics: str) -> list[Any]:
        """Answer Metadata."""
        return self.answers(MetadataResponse(topics=[MetadataResponseTopic(name=topic) for topic in topics]))

    def finds(self, error: int = RewriteError.NONE) -> list[Any]:
        """Answer ConsumerMetadata; with the coordinator, the member connects to it."""
        if not isinstance(self.sent(), FindCoordinatorRequest):
            self.connects()
        assert self.sent() == FindCoordinatorRequest(key="g")
        node, host, port = COORDINATOR
        found = FindCoordinatorResponse(error_code=error, node_id=node, host=host, port=port)
        effects = self.answers(found)
        return effects if error else self.connects()

    # ---- where it is

    @property
    def is_fetching(self) -> bool:
        return self.member.phase is MemberPhase.FETCHING

    def sent(self) -> Any:
        """The request among the last effects; None for none."""
        requests = [each.message for each in self.effects if isinstance(each, Send)]
        return requests[0] if requests else None

    def kinds(self) -> list[str]:
        """What the last effects are."""
        return [type(each.message if isinstance(each, Send) else each).__name__ for each in self.effects]

    def start(self, generation: int = 1, **committed: int) -> Driven:
        """Bring it to where it fetches ``p0`` and ``p1``."""
        self.finds()
        self.joined(generation, 0, 1)
        self.offsets(**(committed or {"p0": 10, "p1": 20}))
        return self
