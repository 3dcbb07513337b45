"""The events, effects and settings that the machines of all variants share. Times are in ms."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from kcoord_wire.assignors import Assign

MessageT = TypeVar("MessageT")


class Subscription(NamedTuple):
    """What a member consumes.

    :ivar topics: by name; empty with a pattern
    :ivar pattern: a regular expression that whole topic names match; None for a subscription by name
    """

    topics: Sequence[str] = ()
    pattern: str | None = None


class Strategy(NamedTuple):
    """A version of an assignment strategy.

    :ivar name: of the group protocol
    :ivar version: of the strategy; on the wire only where the variant has it
    :ivar assign: the pure function
    :ivar needs_agreement: False for one that gives a partition the same owner however many partitions a member sees,
        such as consistent hashing
    """

    name: str
    version: int
    assign: Assign
    needs_agreement: bool = True


class Codec(Protocol):
    """What members do to the bytes that they exchange through the coordinator. The machines import no codec."""

    def encode(self, message: Any) -> bytes:
        """Return the bytes of a member's metadata or state."""

    def decode(self, cls: type[MessageT], data: bytes) -> MessageT:
        """Read them. ValueError: they are not such a message."""


# ---- the coordinator's


class Caller(NamedTuple):
    """To whom an answer goes.

    :ivar connection: the number of the connection on which the request has come
    :ivar request_id: the correlation id
    """

    connection: int
    request_id: int


@dataclass(slots=True)
class Asked:
    """A request has arrived at the coordinator."""

    caller: Caller
    client_id: str
    message: Any


@dataclass(slots=True)
class Answer:
    """The coordinator answers a request."""

    caller: Caller
    message: Any


@dataclass(slots=True)
class Save:
    """The coordinator's group, to be persisted before the answers that follow are sent.

    :ivar generation: of the group
    :ivar members: id to session timeout and what the member sent with JoinGroup
    :ivar decision: the variant's own: the chosen protocol, or the states of the members
    """

    generation: int
    members: Mapping[str, tuple[int, Any]]
    decision: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """The coordinator's settings.

    :ivar initial_delay_ms: how long the first join of an empty group waits for others
    :ivar synchronization_timeout_ms: how long the synchronizer of `single_assignor` may take
    :ivar lists_members: whether `single_assignor` fills GroupMembers of the last response, as the proposal draws it
    """

    initial_delay_ms: int = 0
    synchronization_timeout_ms: int = 10_000
    lists_members: bool = True


# ---- the member's


class MemberState(enum.StrEnum):
    """The state of a member."""

    UNJOINED = "unjoined"  # outside any generation
    JOINING = "joining"  # JoinGroup is in flight
    ASSIGNING = "assigning"  # the synchronizer computes the assignment
    STABLE = "stable"  # in a generation
    LEFT = "left"
    FAILED = "failed"  # after an error that rejoining does not resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """A member's settings.

    :ivar join_timeout_ms: how long JoinGroup may take: a session of others, and the synchronization
    :ivar assign_ms: how long the synchronizer computes
    :ivar metadata_version: of the embedded format of `single_assignor`
    :ivar max_disagreements: how many generations in a row may fail because members see different topic metadata
    """

    group_id: str = "group"
    session_timeout_ms: int = 6_000
    heartbeat_interval_ms: int = 1_000
    request_timeout_ms: int = 5_000
    join_timeout_ms: int = 30_000
    retry_ms: int = 100
    assign_ms: int = 0
    metadata_version: str = "default"
    max_disagreements: int = 5


@dataclass(slots=True)
class Arrived:
    """The answer to the request with this number."""

    request_id: int
    message: Any


@dataclass(slots=True)
class Disconnected:
    """The connection is lost, and with it what was in flight."""


@dataclass(slots=True)
class TopicsKnown:
    """The number of partitions of each topic, as the broker sees it that the member has asked."""

    partitions: Mapping[str, int]


@dataclass(slots=True)
class Subscribe:
    """The application subscribes to this, and to nothing else from now on."""

    subscription: Subscription


@dataclass(slots=True)
class Leave:
    """The application closes the consumer."""


@dataclass(slots=True)
class Send:
    """The member sends a request."""

    request_id: int
    message: Any


@dataclass(slots=True)
class Close:
    """The member closes its connection."""


@dataclass(slots=True)
class Refetch:
    """The member fetches topic metadata."""


@dataclass(slots=True)
class Failed:
    """The application gets an error that it has to handle.

    :ivar error: a code of `error_codes`
    """

    error: int
    text: str
