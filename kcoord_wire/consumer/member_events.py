"""The events and effects of a consumer's state machine, its configuration, and the versions that clients speak.

Events come from the network, the clock and the application; effects are requests to send and news for the application.
A member has one connection at a time, to its coordinator: `Disconnected` and `Close` end everything in flight on it.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from kcoord_wire.assignors import Assignor, MemberAssignment, MemberSubscription, Racks, TopicPartition
from kcoord_wire.kernel.machines import Close, Disconnected, Tick
from kcoord_wire.protocol.error_codes import ErrorCode


class OffsetAndMetadata(NamedTuple):
    """An offset as it is committed.

    :ivar offset: of the next record to read
    :ivar metadata: a text of the application's; brokers take 4,096 bytes (``offset.metadata.max.bytes``)
    :ivar leader_epoch: of the last record that was read; -1 for unknown
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


Offsets = Mapping[TopicPartition, int | OffsetAndMetadata]


class Versions(NamedTuple):
    """The versions in which a client library sends its requests about groups, and Metadata.

    :ivar consumer_heartbeat: of ConsumerGroupHeartbeat (KIP-848); of those with ids that members choose
    """

    find_coordinator: int = 6
    join: int = 9
    sync: int = 5
    heartbeat: int = 4
    leave: int = 5
    commit: int = 9
    fetch: int = 9
    metadata: int = 12
    consumer_heartbeat: int = 1


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
"""What clients send to a broker that supports every version. ``oldest`` is not a client in use: it stands for the lower
end of each range (without OffsetCommit and OffsetFetch 0, which kept offsets in ZooKeeper)."""


class EmbeddedProtocol(Protocol):
    """Encodes and decodes the bytes that members exchange through the coordinator (see `assignors.embedded`)."""

    def encode_subscription(self, subscription: MemberSubscription) -> bytes:
        """Return a subscription as it goes into JoinGroup."""

    def decode_subscription(self, data: bytes, instance_id: str | None) -> MemberSubscription:
        """Read a subscription that JoinGroup's response has for the leader."""

    def encode_assignment(self, assignment: MemberAssignment) -> bytes:
        """Return one member's assignment as it goes into SyncGroup."""

    def decode_assignment(self, data: bytes) -> MemberAssignment:
        """Read an assignment of SyncGroup's response; no bytes are an empty assignment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """A consumer's configuration, by Kafka's names and with the Java consumer's defaults; times in milliseconds.

    :ivar group_instance_id: makes the member static if its JoinGroup version has the field (5 and later)
    :ivar rack: ``client.rack``
    :ivar rebalance_timeout_ms: ``max.poll.interval.ms``
    :ivar heartbeat_restarts: whether the first heartbeat of a generation comes an interval after the assignment, as the
        Java client's; librdkafka goes on from its last one, so that its members' heartbeats are not in step
    """

    group_id: str
    client_id: str = ""
    group_instance_id: str | None = None
    rack: str | None = None
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000
    heartbeat_interval_ms: int = 3_000
    heartbeat_restarts: bool = True
    request_timeout_ms: int = 30_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    versions: Versions = CLIENT_VERSIONS["java"]


class MemberState(enum.StrEnum):
    """The state of the member in the protocol."""

    UNJOINED = "unjoined"  # outside any generation, or about to rejoin
    REVOKING = "revoking"  # in a generation; the application gives up partitions before the next JoinGroup
    JOINING = "joining"  # JoinGroup is in flight
    SYNCING = "syncing"  # SyncGroup is in flight
    STABLE = "stable"  # in a generation, with its assignment
    LEFT = "left"
    FAILED = "failed"  # after an error that cannot be retried


# ---- events


@dataclass(slots=True)
class Arrived:
    """The response to the request with this number has arrived."""

    request_id: int
    message: Any


@dataclass(slots=True)
class Subscribe:
    """The application subscribes to these topics, and to no others from now on."""

    topics: Sequence[str]


@dataclass(slots=True)
class TopicsKnown:
    """The number of partitions of each topic, the racks of their replicas and the topics' ids, from Metadata."""

    partitions: Mapping[str, int]
    racks: Racks = field(default_factory=dict)
    ids: Mapping[str, uuid.UUID] = field(default_factory=dict)


@dataclass(slots=True)
class Released:
    """The application has stopped working on the partitions of the `Revoking` with this ticket.

    :ivar offsets: committed before the partitions are given up
    """

    ticket: int
    offsets: Offsets


@dataclass(slots=True)
class Commit:
    """The application commits these offsets.

    :ivar number: the host's, returned in `Committed` and `NotCommitted`
    """

    offsets: Offsets
    number: int = 0


@dataclass(slots=True)
class AskCommitted:
    """The application asks for committed offsets, of any partitions.

    :ivar number: the host's, 1 or more, returned in `CommittedKnown`
    """

    partitions: frozenset[TopicPartition]
    number: int


@dataclass(slots=True)
class Assign:
    """The application assigns itself these partitions, and no others from now on; it is no member of its group."""

    partitions: frozenset[TopicPartition]


@dataclass(slots=True)
class Leave:
    """The application closes the consumer. Dynamic members send LeaveGroup; static ones do not: they come back."""

    reason: str | None = None


@dataclass(slots=True)
class Offer:
    """The application offers these assignors, most preferred first, and no others from now on."""

    assignors: Sequence[Assignor]


@dataclass(slots=True)
class Rejoin:
    """The application enforces a rebalance (KIP-568)."""

    reason: str | None = None


@dataclass(slots=True)
class Stalled:
    """The application has stopped polling. Heartbeats go on and joining waits; after ``max.poll.interval.ms`` the
    member leaves."""


@dataclass(slots=True)
class Polled:
    """The application polls again."""


@dataclass(slots=True)
class Distribute:
    """The host has done what `Assigning` asked for.

    :ivar generation_id: of that `Assigning`
    :ivar partitions: the number of partitions of each topic, for which the assignment was computed
    :ivar assignments: by member id; None if there is none to send, and the member shall leave
    """

    generation_id: int
    partitions: Mapping[str, int]
    assignments: Mapping[str, MemberAssignment] | None


_FromApplication = Subscribe | Released | Commit | AskCommitted | Assign | Leave | Offer | Rejoin | Stalled | Polled
MemberEvent = Arrived | Disconnected | TopicsKnown | Distribute | Tick | _FromApplication


# ---- effects


@dataclass(slots=True)
class SendRequest:
    """Send this request, opening a connection to the coordinator where there is none."""

    request_id: int
    message: Any
    version: int


@dataclass(slots=True)
class Assigned:
    """A rebalance has succeeded. These partitions are new; their committed offsets follow in `Fetched`."""

    generation_id: int
    partitions: frozenset[TopicPartition]


@dataclass(slots=True)
class Assigning:
    """The member leads its generation. If its host assigns (see `MemberMachine`), it answers with `Distribute`.

    :ivar assignor: the one that the group has chosen
    :ivar subscriptions: by member id
    :ivar partitions: the number of partitions of each topic that a member subscribes to, if it is known
    :ivar racks: of their replicas
    """

    generation_id: int
    assignor: Assignor
    subscriptions: Mapping[str, MemberSubscription]
    partitions: Mapping[str, int]
    racks: Racks


@dataclass(slots=True)
class Unreadable:
    """Another member's bytes cannot be read: a subscription, where this one leads, or its assignment. It has left the
    group, and rejoins when the application polls again."""

    protocol: str
    detail: str


@dataclass(slots=True)
class Revoking:
    """The application must give up these partitions and answer with `Released`. Heartbeats go on until then."""

    ticket: int
    partitions: frozenset[TopicPartition]


@dataclass(slots=True)
class Lost:
    """These partitions are lost; another member may own them already."""

    partitions: frozenset[TopicPartition]


@dataclass(slots=True)
class Fetched:
    """The committed offsets of assigned partitions; -1 for a partition without one."""

    offsets: dict[TopicPartition, int]


@dataclass(slots=True)
class NotFetched:
    """The committed offsets of these partitions were refused; they are asked for again when the application polls."""

    errors: Mapping[TopicPartition, ErrorCode]


@dataclass(slots=True)
class CommittedKnown:
    """What `AskCommitted` with this number asked for.

    :ivar offsets: the offset is negative for a partition without one
    :ivar errors: of the other partitions; `ErrorCode.NONE` where the answer has none of both
    """

    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    errors: Mapping[TopicPartition, ErrorCode]
    number: int


@dataclass(slots=True)
class MetadataWanted:
    """Topics are assigned whose names are not known: `TopicsKnown` is to say more."""


@dataclass(slots=True)
class Committed:
    """The coordinator has acknowledged these offsets, of the `Commit` with this number."""

    offsets: Offsets
    number: int = 0


@dataclass(slots=True)
class NotCommitted:
    """These offsets were refused. With NETWORK_EXCEPTION (13) the outcome is unknown."""

    offsets: Offsets
    error: ErrorCode
    number: int = 0


@dataclass(slots=True)
class PollExpired:
    """The application has not polled for ``max_poll_interval_ms``: the member leaves, until the next poll."""


@dataclass(slots=True)
class Left:
    """The member has left; it sends nothing after the effects before this one."""


@dataclass(slots=True)
class Failed:
    """The member has failed with this error."""

    error: ErrorCode


_OfOffsets = Fetched | NotFetched | CommittedKnown | Committed | NotCommitted
_News = MetadataWanted | Assigned | Revoking | Lost | Unreadable | PollExpired | Left | Failed
MemberEffect = SendRequest | Close | Assigning | _OfOffsets | _News
