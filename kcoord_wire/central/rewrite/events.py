"""What goes into the two machines of the 0.9 rewrite, the coordinator's and the member's, and what comes out.

Laws of both machines:

* ``now`` is milliseconds and never decreases from one call of `handle` to the next.
* Connections are those of `kcoord_wire.kernel.machines`. Only the member sends requests on one, and each is answered by
  exactly one `Send` or by `Close`, in the order of the requests: the coordinator's host delivers a request when the
  former one of its connection is answered, as Kafka's SocketServer does. So no machine needs correlation ids.
* With an error, a response has what the constructors of kafka-clients 0.8.2 give it: generation -1 and an empty
  consumer id, node -1, offset -1.

Source: "Kafka 0.9 Consumer Rewrite Design". The messages are those of clients 0.8.2 (KAFKA-1462): JoinGroup 0 of
`schemas/rewrite`; of `schemas/kafka` FindCoordinator 0, which that release calls ConsumerMetadata, Heartbeat 0,
OffsetCommit 1 and OffsetFetch 1.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from kcoord_wire import messages as m
from kcoord_wire.assignors import Partitions, TopicPartition
from kcoord_wire.kernel.machines import (
    BrokerAddress,
    Close,
    Connect,
    Connected,
    Disconnected,
    Ended,
    LogEvent,
    Received,
    Send,
    Shutdown,
    Tick,
)
from kcoord_wire.zookeeper.requests import Ask, RegistryEvent


class RewriteError(enum.IntEnum):
    """The error codes of the rewrite's responses.

    The document names errors without numbers. Where Kafka has had an error of the same meaning, it is Kafka's number,
    of trunk in May 2015 if that differs from today's. ILLEGAL_PROTOCOL_STATE and REBALANCE_FAILED never had a number in
    public: theirs are this project's, above those of the draft.
    """

    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    COORDINATOR_STARTUP_NOT_COMPLETE = 14
    """The coordinator is reading the groups from ZooKeeper: try again."""
    COORDINATOR_NOT_AVAILABLE = 15
    """No live broker coordinates the group yet: ask again."""
    NOT_COORDINATOR_FOR_GROUP = 16
    ILLEGAL_GENERATION = 22
    """The generation is not that of the group, or the group waits for JoinGroup."""
    INCONSISTENT_STRATEGY = 23
    """The group's other members use another strategy."""
    UNKNOWN_STRATEGY = 24
    UNKNOWN_CONSUMER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    INVALID_REQUEST = 42
    """A name or number that no client may send."""
    GROUP_TOO_LARGE = 81
    """The members' subscriptions would not fit into one node of ZooKeeper. Kafka's number of GROUP_MAX_SIZE_REACHED."""
    ILLEGAL_PROTOCOL_STATE = 110
    """JoinGroup to a coordinator that is reading the groups from ZooKeeper."""
    REBALANCE_FAILED = 111
    """A member was dead before its JoinGroup came: send JoinGroup again."""


# ---- the coordinator


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """A broker's configuration. Times are ms.

    :ivar shards: into how many the groups are divided; of the first broker of a cluster, the others read it from
        ZooKeeper. The default is that of ``offsets.topic.num.partitions``
    :ivar min_session_timeout_ms: of members; the limits are those of trunk in 2015
    :ivar max_session_timeout_ms: of members
    """

    shards: int = 50
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 30_000


CoordinatorEvent: TypeAlias = Received | Disconnected | Tick | RegistryEvent
CoordinatorEffect: TypeAlias = Send | Close | Ask | LogEvent


# ---- the member


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """A member's configuration. Times are ms.

    :ivar bootstrap: the brokers that it asks for its coordinator; their ids need not be right
    :ivar topics: what it consumes; empty for a wildcard subscription
    :ivar whitelist: a regular expression: of a wildcard subscription, the topics whose whole name matches; None for all
    :ivar blacklist: likewise those that it leaves out
    :ivar strategy: by which the coordinator assigns, ``range`` or ``roundrobin``
    :ivar commit_interval_ms: between the commits of a member that fetches
    :ivar retry_backoff_ms: before the coordinator is looked for again, or a request repeated that it could not serve
    :ivar request_timeout_ms: after which a connection whose broker does not answer is closed
    :ivar join_timeout_ms: the same for JoinGroup, whose answer waits for all members
    :ivar refresh_ms: between the requests of a wildcard subscription for all topics
    :ivar stops_with_session: an addition to the document: the member fetches only while the coordinator cannot have
        declared it dead, which is for a session timeout from its last heartbeat that was accepted
    :raises ValueError: no broker; neither topics nor a wildcard, or both
    """

    group_id: str
    bootstrap: tuple[BrokerAddress, ...]
    topics: tuple[str, ...] = ()
    whitelist: str | None = None
    blacklist: str | None = None
    strategy: str = "range"
    session_timeout_ms: int = 6_000
    commit_interval_ms: int = 5_000
    retry_backoff_ms: int = 100
    request_timeout_ms: int = 3_000
    join_timeout_ms: int = 40_000
    refresh_ms: int = 300_000
    stops_with_session: bool = False

    def __post_init__(self) -> None:
        if not self.bootstrap:
            raise ValueError("a member needs a broker to ask for its coordinator")
        if bool(self.topics) == self.is_wildcard:
            raise ValueError("a member consumes either topics or those that match a whitelist or blacklist")

    @property
    def is_wildcard(self) -> bool:
        """Whether topics are chosen by their names."""
        return self.whitelist is not None or self.blacklist is not None

    def matches(self, topic: str) -> bool:
        """Return whether a wildcard subscription has this topic."""
        if self.whitelist is not None and not re.fullmatch(self.whitelist, topic):
            return False
        return self.blacklist is None or not re.fullmatch(self.blacklist, topic)


@dataclass(slots=True)
class Progress:
    """The application has consumed records.

    :ivar positions: the next offset to consume, of the partitions that moved
    """

    positions: Mapping[TopicPartition, int]


@dataclass(slots=True)
class StopFetching:
    """Stop fetching: from here on no record is delivered. `FetchingStopped` follows."""


@dataclass(slots=True)
class FetchingStopped:
    """No record is delivered any more, as `StopFetching` wanted.

    :ivar positions: the next offset to consume, of each partition that was fetched
    """

    positions: Mapping[TopicPartition, int]


@dataclass(slots=True)
class StartFetching:
    """Fetch these partitions. Nothing is fetched at that moment.

    :ivar generation: that assigned them
    :ivar positions: the offset to begin with; -1 where none is committed
    """

    generation: int
    positions: Mapping[TopicPartition, int]


MemberEvent: TypeAlias = Connected | Disconnected | Received | Progress | FetchingStopped | Shutdown | Tick
MemberEffect: TypeAlias = Connect | Send | Close | StopFetching | StartFetching | LogEvent | Ended


Request: TypeAlias = (
    m.rewrite.RewriteJoinGroupRequest
    | m.HeartbeatRequest
    | m.FindCoordinatorRequest
    | m.OffsetCommitRequest
    | m.OffsetFetchRequest
    | m.MetadataRequest
)
SERVED: Final = {
    m.MetadataRequest: 0,
    m.OffsetCommitRequest: 1,
    m.OffsetFetchRequest: 1,
    m.FindCoordinatorRequest: 0,
    m.rewrite.RewriteJoinGroupRequest: 0,
    m.HeartbeatRequest: 0,
}
"""The requests that a broker answers, each with its version."""


def group_of(request: Request) -> str:
    """Return the group that a request is about; empty for none."""
    if isinstance(request, m.FindCoordinatorRequest):
        return request.key
    return "" if isinstance(request, m.MetadataRequest) else request.group_id


def joined(generation: int, consumer_id: str, partitions: Partitions) -> m.rewrite.RewriteJoinGroupResponse:
    """Return a member's place in a generation."""
    return m.rewrite.RewriteJoinGroupResponse(
        generation_id=generation,
        consumer_id=consumer_id,
        assigned_partitions=[
            m.rewrite.RewriteJoinGroupResponseAssignedTopic(topic=topic, partitions=list(partitions[topic]))
            for topic in sorted(partitions)
        ],
    )


def committed(request: m.OffsetCommitRequest, error: RewriteError) -> m.OffsetCommitResponse:
    """Return one outcome for every partition of a commit."""
    return m.OffsetCommitResponse(
        topics=[
            m.OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    m.OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def refusal(
    request: Request, error: RewriteError
) -> (
    m.rewrite.RewriteJoinGroupResponse
    | m.HeartbeatResponse
    | m.FindCoordinatorResponse
    | m.OffsetCommitResponse
    | m.OffsetFetchResponse
    | m.MetadataResponse
):
    """Return the response to a request that is refused."""
    match request:
        case m.rewrite.RewriteJoinGroupRequest():
            return m.rewrite.RewriteJoinGroupResponse(error_code=error, generation_id=-1)
        case m.HeartbeatRequest():
            return m.HeartbeatResponse(error_code=error)
        case m.FindCoordinatorRequest():
            return m.FindCoordinatorResponse(error_code=error, node_id=-1, port=-1)
        case m.OffsetCommitRequest():
            return committed(request, error)
        case m.OffsetFetchRequest():
            return m.OffsetFetchResponse(
                topics=[
                    m.OffsetFetchResponseTopic(
                        name=topic.name,
                        partitions=[
                            m.OffsetFetchResponsePartition(
                                partition_index=index, committed_offset=-1, metadata="", error_code=error
                            )
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in request.topics or ()
                ]
            )
        case m.MetadataRequest():
            return m.MetadataResponse(
                topics=[m.MetadataResponseTopic(name=topic.name, error_code=error) for topic in request.topics or ()]
            )
