"""What goes into the two machines of the 0.8 draft, the coordinator's and the consumer's, and what comes out.

Sources: "the 0.8 consumer-coordinator draft", sections 5 to 11. The messages are those of `schemas/central`.

Laws of both machines:

* ``now`` is milliseconds and never decreases from one call of `handle` to the next.
* Connections are those of `kcoord_wire.kernel.machines`. On one, either side sends requests: RegisterConsumer is the
  consumer's, all others are the coordinator's.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

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


class CentralError(enum.IntEnum):
    """The error codes of the draft's responses. The draft names errors without numbers; where Kafka has an error of the
    same meaning, it is Kafka's number."""

    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    UNKNOWN_TOPIC_OR_PARTITION = 3
    NOT_COORDINATOR = 16
    INVALID_GROUP_ID = 24
    INVALID_SESSION_TIMEOUT = 26
    DUPLICATE_CONSUMER_ID = 100
    INVALID_TOPIC_COUNT = 101
    STALE_EPOCH = 102
    UNKNOWN_CONSUMER_ID = 103
    INVALID_CONSUMER_ID = 104
    INVALID_OFFSET_RESET = 105


LARGEST_MESSAGE: Final = 16 << 20
"""Bytes that either side takes from the other: some 60,000 partitions with the longest names. The coordinator assigns a
consumer no more than fits."""


class Partition(NamedTuple):
    """A partition as the draft writes it.

    :ivar topic: its topic
    :ivar name: ``BROKER-NUMBER``, the broker that has it and its number there, as in 0.7
    """

    topic: str
    name: str


class Fence(NamedTuple):
    """The extension that makes stale coordinators and fetchers recognisable: tokens are compared, the higher one wins.

    :ivar epoch: of the coordinator; increases with every election
    :ivar generation: of the group's assignment, counted from 1 by each coordinator
    """

    epoch: int
    generation: int


# ---- the coordinator


class RebalanceBy(enum.Enum):
    """How a coordinator makes its consumers change partitions.

    FETCHERS: by StopFetcher and StartFetcher (sections 9 and 11). SOCKETS: the older passage (section 2): it closes the
    consumers' connections, and RegisterConsumerResponse has the partitions.
    """

    FETCHERS = "fetchers"
    SOCKETS = "sockets"


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """The options that section 4 gives to brokers, without the size of a pool: each group has its own
    handler. Times are ms.

    :ivar min_session_timeout_ms: of consumers
    :ivar max_session_timeout_ms: of consumers; not in the draft. For two thirds of it a consumer that answers
        nothing holds its group up
    :ivar max_ping_retries: so many pings in a row may fail; one more, and the consumer has failed
    :ivar offset_commit_interval_ms: of the committer
    :ivar max_rebalance_retries: of one rebalance
    :ivar rebalance_backoff_ms: before each retry
    :ivar rebalance_by: see `RebalanceBy`
    :ivar coordinators: into so many subsets the groups are divided, each with a coordinator of its own ("every broker
        will be the co-ordinator for a subset of consumer groups", section 1), if this is the first broker
    """

    min_session_timeout_ms: int = 1_000
    max_session_timeout_ms: int = 300_000
    max_ping_retries: int = 1
    offset_commit_interval_ms: int = 1_000
    max_rebalance_retries: int = 4
    rebalance_backoff_ms: int = 2_000
    rebalance_by: RebalanceBy = RebalanceBy.FETCHERS
    coordinators: int = 1


CoordinatorEvent: TypeAlias = Received | Disconnected | Tick | RegistryEvent
CoordinatorEffect: TypeAlias = Send | Close | Ask | LogEvent


# ---- the consumer

RESET_OFFSETS: Final = {"smallest": -2, "largest": -1}
"""Where a partition begins without a committed offset: EarliestTime and LatestTime of Kafka's OffsetRequest."""


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """A consumer's configuration. Times are ms.

    :ivar bootstrap: the brokers to begin with; their ids need not be right
    :ivar topic_count: what it consumes, as RegisterConsumerRequest writes it (`draft.subscription`)
    :ivar auto_offset_reset: ``smallest`` or ``largest``
    :ivar is_fenced: it sends and compares epochs, and names its group when it asks for the coordinator, the
        extensions; without it the bytes are those of the draft
    """

    group_id: str
    consumer_id: str
    topic_count: str
    bootstrap: tuple[BrokerAddress, ...]
    auto_commit: bool = True
    auto_offset_reset: str = "smallest"
    session_timeout_ms: int = 6_000
    reconnect_backoff_ms: int = 500
    is_fenced: bool = True


@dataclass(slots=True)
class FetchersStopped:
    """The fetchers have stopped, as `StopFetchers` wanted, and nothing is delivered any more.

    :ivar positions: the next offset to consume, of each partition that was fetched
    """

    positions: Mapping[Partition, int]


@dataclass(slots=True)
class Progress:
    """The application has consumed records.

    :ivar positions: the next offset to consume, of the partitions that moved
    """

    positions: Mapping[Partition, int]


@dataclass(slots=True)
class FetcherFailed:
    """The fetcher of a partition has stopped by itself: its offset is out of range, or its fence is stale."""

    partition: Partition
    error: CentralError


@dataclass(slots=True)
class StopFetchers:
    """Stop all fetchers and empty their queues; `FetchersStopped` follows."""


@dataclass(slots=True)
class StartFetchers:
    """Start a fetcher for each partition. None runs at that moment.

    :ivar threads: of this consumer, each with its partitions and the offsets to begin with
    :ivar brokers: of the cluster
    :ivar fence: to send with each fetch; None without the extension
    """

    threads: Mapping[str, Mapping[Partition, int]]
    brokers: Sequence[BrokerAddress]
    fence: Fence | None = None


@dataclass(slots=True)
class Assigned:
    """The assignment as the application sees it, after each change; empty when the fetchers have stopped."""

    partitions: frozenset[Partition]


ConsumerEvent: TypeAlias = (
    Connected | Disconnected | Received | FetchersStopped | Progress | FetcherFailed | Shutdown | Tick
)
ConsumerEffect: TypeAlias = Connect | Send | Close | StopFetchers | StartFetchers | Assigned | LogEvent | Ended
