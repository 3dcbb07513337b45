"""What goes into the two machines of the 0.9 rewrite, the coordinator's and the member's, and what comes out.

Source: "Kafka 0.9 Consumer Rewrite Design". The messages are those of clients 0.8.2 (KAFKA-1462): JoinGroup 0 of
`schemas/rewrite`; of `schemas/kafka` FindCoordinator 0, which that release calls ConsumerMetadata, Heartbeat 0,
OffsetCommit 1 and OffsetFetch 1.

Laws of both machines:

* ``now`` is milliseconds and never decreases from one call of `handle` to the next.
* Connections are those of `kcoord_wire.machines`. Only the member sends requests on one, and each is answered by
  exactly one `Send` or by `Close`, in the order of the requests: the coordinator's host delivers a request when the
  former one of its connection is answered, as Kafka's SocketServer does. So no machine needs correlation ids.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

from kcoord_wire.machines import Close, Disconnected, Noted, Received, Send, Tick
from kcoord_wire.zookeeper.model import Ask, RegistryEvent

__all__ = [
    "CoordinatorEffect",
    "CoordinatorEvent",
    "CoordinatorSettings",
    "RewriteError",
]


class RewriteError(enum.IntEnum):
    """The error codes of the rewrite's responses.

    The document names errors without numbers. Where Kafka has had an error of the same meaning, it is Kafka's number,
    of trunk in May 2015 if that differs from today's. ILLEGAL_PROTOCOL_STATE and REBALANCE_FAILED never had a number in
    public: theirs are this project's, above those of the draft.
    """

    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 3
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
    :ivar retry_backoff_ms: before a request that ZooKeeper has refused is tried again
    """

    shards: int = 50
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 30_000
    retry_backoff_ms: int = 500


CoordinatorEvent: TypeAlias = Received | Disconnected | Tick | RegistryEvent
CoordinatorEffect: TypeAlias = Send | Close | Ask | Noted
