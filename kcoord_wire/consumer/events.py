"""What goes into a consumer's state machine and what comes out, its configuration, and the versions that clients speak.

The events are what the network, the clock and the user do; the effects are what to send and what the user is told.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from kcoord_wire.assignors import Assignor, MemberSubscription, TopicPartition
from kcoord_wire.error_codes import ErrorCode
from kcoord_wire.machines import Tick

__all__ = [
    "CLIENT_VERSIONS",
    "Arrived",
    "Assigned",
    "Close",
    "Commit",
    "Committed",
    "Disconnected",
    "EmbeddedProtocol",
    "Failed",
    "Fetched",
    "Leave",
    "Left",
    "Lost",
    "MemberEffect",
    "MemberEvent",
    "MemberSettings",
    "MemberState",
    "NotCommitted",
    "Offer",
    "Offsets",
    "Polled",
    "Rejoin",
    "Released",
    "Revoking",
    "Send",
    "Stalled",
    "Subscribe",
    "TopicsKnown",
    "Versions",
]

Offsets = Mapping[TopicPartition, int]


class Versions(NamedTuple):
    """The versions of the requests that a client sends: those about groups, and Metadata."""

    find_coordinator: int = 6
    join: int = 9
    sync: int = 5
    heartbeat: int = 4
    leave: int = 5
    commit: int = 9
    fetch: int = 9
    metadata: int = 12


CLIENT_VERSIONS: Final[Mapping[str, Versions]] = MappingProxyType(
    {
        "java": Versions(),
        "kafka-python": Versions(6, 7, 5, 4, 5, 8, 8, 8),
        "kafkajs": Versions(2, 5, 3, 3, 3, 5, 4, 6),
        "librdkafka": Versions(2, 5, 3, 3, 1, 9, 9, 12),
        "aiokafka": Versions(1, 5, 3, 1, 1, 3, 3, 5),
        "oldest": Versions(0, 0, 0, 0, 0, 1, 1, 1),
    }
)
"""What clients send to a broker that knows everything; ``oldest`` is no client of today, but near the bottom of every
range (OffsetCommit and OffsetFetch 0 are of the time when offsets were in ZooKeeper)."""


class EmbeddedProtocol(Protocol):
    """Encodes and decodes the bytes that members exchange through the coordinator (see `assignors.embedded`)."""

    def encode_subscription(self, subscription: MemberSubscription) -> bytes:
        """Return a subscription as it goes into JoinGroup."""

    def decode_subscription(self, data: bytes, instance_id: str | None) -> MemberSubscription:
        """Read a subscription that JoinGroup's response has for the leader."""

    def encode_assignment(self, partitions: Sequence[TopicPartition]) -> bytes:
        """Return one member's assignment as it goes into SyncGroup."""

    def decode_assignment(self, data: bytes) -> Sequence[TopicPartition]:
        """Read an assignment of SyncGroup's response; no bytes are an empty assignment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """A consumer's configuration, by Kafka's names and with the Java consumer's defaults; times in milliseconds.

    :ivar group_instance_id: makes the member static, where its JoinGroup version knows of that (5 and later)
    :ivar rebalance_timeout_ms: ``max.poll.interval.ms``
    """

    group_id: str
    client_id: str = ""
    group_instance_id: str | None = None
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000
    heartbeat_interval_ms: int = 3_000
    request_timeout_ms: int = 30_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    versions: Versions = CLIENT_VERSIONS["java"]


class MemberState(enum.StrEnum):
    """Where the member stands in the protocol."""

    UNJOINED = "unjoined"  # in no generation that it could heartbeat for, or about to rejoin
    REVOKING = "revoking"  # in a generation, giving partitions up before the next JoinGroup
    JOINING = "joining"  # JoinGroup is in flight
    SYNCING = "syncing"  # SyncGroup is in flight
    STABLE = "stable"  # in a generation, with its assignment
    LEFT = "left"
    FAILED = "failed"  # an error that the protocol has no way on from


# ---- events


@dataclass(slots=True)
class Arrived:
    """The answer to the request with this number."""

    request_id: int
    message: Any


@dataclass(slots=True)
class Disconnected:
    """The connection is gone, and with it whatever was in flight."""


@dataclass(slots=True)
class Subscribe:
    """The user wants these topics, and no others from now on."""

    topics: Sequence[str]


@dataclass(slots=True)
class TopicsKnown:
    """Metadata: how many partitions each topic has."""

    partitions: Mapping[str, int]


@dataclass(slots=True)
class Released:
    """The user is done with the partitions of `Revoking` `ticket`; `offsets` are committed before they are let go."""

    ticket: int
    offsets: Offsets


@dataclass(slots=True)
class Commit:
    """The user wants these offsets committed."""

    offsets: Offsets


@dataclass(slots=True)
class Leave:
    """The user is done. Dynamic members tell the coordinator; static ones come back, and do not."""

    reason: str | None = None


@dataclass(slots=True)
class Offer:
    """The user wants these assignors, the one it likes best first, and no others from now on."""

    assignors: Sequence[Assignor]


@dataclass(slots=True)
class Rejoin:
    """The user wants a rebalance (KIP-568)."""

    reason: str | None = None


@dataclass(slots=True)
class Stalled:
    """From now on the application does not poll. Heartbeats go on, and joining waits; when that has lasted for
    ``max.poll.interval.ms``, the member leaves."""


@dataclass(slots=True)
class Polled:
    """The application polls again."""


MemberEvent = (
    Arrived
    | Disconnected
    | Subscribe
    | TopicsKnown
    | Released
    | Commit
    | Leave
    | Offer
    | Rejoin
    | Stalled
    | Polled
    | Tick
)


# ---- effects


@dataclass(slots=True)
class Send:
    """Send this request, opening a connection to the coordinator where there is none."""

    request_id: int
    message: Any
    version: int


@dataclass(slots=True)
class Close:
    """Close the connection; no `Disconnected` is expected for that."""


@dataclass(slots=True)
class Assigned:
    """A rebalance has ended well: these partitions are new. Their committed offsets follow in `Fetched`."""

    generation_id: int
    partitions: frozenset[TopicPartition]


@dataclass(slots=True)
class Revoking:
    """These partitions are to be given up: answer with `Released`. Heartbeats go on until then."""

    ticket: int
    partitions: frozenset[TopicPartition]


@dataclass(slots=True)
class Lost:
    """These partitions are gone; another member may own them already."""

    partitions: frozenset[TopicPartition]


@dataclass(slots=True)
class Fetched:
    """The committed offsets of partitions assigned; -1 where there is none."""

    offsets: dict[TopicPartition, int]


@dataclass(slots=True)
class Committed:
    """The coordinator has acknowledged these offsets."""

    offsets: Offsets


@dataclass(slots=True)
class NotCommitted:
    """These offsets were refused, or nobody knows: NETWORK_EXCEPTION (13)."""

    offsets: Offsets
    error: ErrorCode


@dataclass(slots=True)
class Left:
    """The member is out; it sends nothing after what stands before this."""


@dataclass(slots=True)
class Failed:
    """The member has given up over this error."""

    error: ErrorCode


MemberEffect = Send | Close | Assigned | Revoking | Lost | Fetched | Committed | NotCommitted | Left | Failed
