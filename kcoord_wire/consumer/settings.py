"""The settings of a consumer, by Kafka's names in snake case and with the Java consumer's defaults.

Laws:

* Times end in ``_ms``, sizes in ``_bytes``. A value that cannot work is rejected here, before anything is opened.
* A setting that is not listed does not exist.

Source: kafka/clients `ConsumerConfig.java`; KIP-62, KIP-345, KIP-580, KIP-735.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Final, Literal

from kcoord_wire.assignors import Assignor
from kcoord_wire.assignors.plugins import find_assignor
from kcoord_wire.consumer.events import MemberSettings, Versions
from kcoord_wire.consumer.security import Sasl
from kcoord_wire.kernel.net import parse_address

_MAX_INT32: Final = (1 << 31) - 1
_POSITIVE: Final = (
    "session_timeout_ms",
    "heartbeat_interval_ms",
    "max_poll_interval_ms",
    "max_poll_records",
    "auto_commit_interval_ms",
    "fetch_min_bytes",
    "fetch_max_bytes",
    "max_partition_fetch_bytes",
    "metadata_max_age_ms",
    "request_timeout_ms",
    "default_api_timeout_ms",
    "retry_backoff_ms",
    "retry_backoff_max_ms",
)
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    **dict.fromkeys((*_POSITIVE, "fetch_max_wait_ms"), (int,)),
    **dict.fromkeys(("group_id", "client_id"), (str,)),
    **dict.fromkeys(("group_instance_id", "client_rack"), (str, NoneType)),
    **dict.fromkeys(
        ("enable_auto_commit", "check_crcs", "allow_auto_create_topics", "exclude_internal_topics"), (bool,)
    ),
    "tls": (ssl.SSLContext, NoneType),
    "sasl": (Sasl, NoneType),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """A consumer's configuration.

    :ivar bootstrap_servers: ``HOST:PORT``, several separated by commas or as a list
    :ivar group_id: of the consumer group
    :ivar client_id: in the header of each request
    :ivar group_instance_id: makes the member static (KIP-345); None for a dynamic one
    :ivar partition_assignment_strategy: names or `Assignor` objects, most preferred first. The member rebalances
        cooperatively if all of them do
    :ivar client_rack: where the consumer runs, for assignors that look at racks (KIP-881), not for fetching
    :ivar session_timeout_ms: without a heartbeat for so long, the coordinator removes the member
    :ivar max_poll_interval_ms: without a poll for so long, the member leaves; it is also the rebalance timeout
    :ivar max_poll_records: the most that one poll returns
    :ivar enable_auto_commit: commit the positions in `poll` at an interval, before a revocation, and at the end
    :ivar auto_offset_reset: where to begin in a partition whose committed offset is missing or out of range; with
        ``none`` that is an error
    :ivar fetch_max_bytes: of one response; with `max_partition_fetch_bytes` it bounds what is buffered for a broker
    :ivar isolation_level: ``read_committed`` leaves out the records of aborted transactions
    :ivar check_crcs: compare the checksum of each batch
    :ivar metadata_max_age_ms: topics and leaders are asked for at least so often
    :ivar request_timeout_ms: of one request; JoinGroup and SyncGroup may take the rebalance timeout
    :ivar default_api_timeout_ms: of `commit`, `position` and the other methods that wait for a broker
    :ivar tls: a client's context; None for plain text
    :ivar sasl: credentials; None for none
    :raises ValueError: a value is out of range, or two contradict each other
    :raises TypeError: a value is of another type
    """

    bootstrap_servers: str | Sequence[str]
    group_id: str
    client_id: str = "kcoord-consumer"
    group_instance_id: str | None = None
    partition_assignment_strategy: Sequence[str | Assignor] = ("range", "cooperative-sticky")
    client_rack: str | None = None
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    max_poll_records: int = 500
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    auto_offset_reset: Literal["earliest", "latest", "none"] = "latest"
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 52_428_800
    max_partition_fetch_bytes: int = 1_048_576
    isolation_level: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"
    check_crcs: bool = True
    allow_auto_create_topics: bool = True
    exclude_internal_topics: bool = True
    metadata_max_age_ms: int = 300_000
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    tls: ssl.SSLContext | None = None
    sasl: Sasl | None = None

    def __post_init__(self) -> None:
        for name, types in _TYPES.items():
            if not isinstance(getattr(self, name), types):
                allowed = " or ".join("None" if each is NoneType else each.__name__ for each in types)
                raise TypeError(f"{name} must be of type {allowed}, not {getattr(self, name)!r}")
        self._check_values()

    def _check_values(self) -> None:
        if not self.group_id or self.group_instance_id == "":
            raise ValueError(f"group_{'instance_' if self.group_id else ''}id must not be empty")
        for name in _POSITIVE:
            if not 0 < getattr(self, name) <= _MAX_INT32:
                raise ValueError(f"{name} must be from 1 to {_MAX_INT32}, not {getattr(self, name)}")
        if not 0 <= self.fetch_max_wait_ms < self.request_timeout_ms:
            raise ValueError("fetch_max_wait_ms must be from 0 to less than request_timeout_ms")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ValueError("heartbeat_interval_ms must be less than session_timeout_ms")
        if self.auto_offset_reset not in ("earliest", "latest", "none"):
            raise ValueError(f"auto_offset_reset is {self.auto_offset_reset!r}")
        if self.isolation_level not in ("read_uncommitted", "read_committed"):
            raise ValueError(f"isolation_level is {self.isolation_level!r}")
        if not self.addresses:
            raise ValueError("bootstrap_servers names no server")
        if not self.assignors:
            raise ValueError("partition_assignment_strategy names no assignor")

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each bootstrap server."""
        servers = self.bootstrap_servers
        names = servers.split(",") if isinstance(servers, str) else servers
        return [parse_address(name.strip()) for name in names if name.strip()]

    @property
    def assignors(self) -> list[Assignor]:
        """The assignors that the member offers, most preferred first.

        :raises PluginError: no assignor has that name, or its plug-in is broken; a ValueError
        :raises TypeError: the strategy is a single string, or has an item that is neither a name nor an `Assignor`
        """
        if isinstance(self.partition_assignment_strategy, str):
            raise TypeError(f"partition_assignment_strategy is a list, not {self.partition_assignment_strategy!r}")
        found = []
        for item in self.partition_assignment_strategy:
            if not isinstance(item, str | Assignor):
                raise TypeError(f"partition_assignment_strategy has {item!r}, neither a name nor an Assignor")
            found.append(find_assignor(item) if isinstance(item, str) else item)
        return found

    def of_member(self, versions: Versions) -> MemberSettings:
        """Return the settings of the member machine."""
        return MemberSettings(
            group_id=self.group_id,
            client_id=self.client_id,
            group_instance_id=self.group_instance_id,
            rack=self.client_rack,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.max_poll_interval_ms,
            heartbeat_interval_ms=self.heartbeat_interval_ms,
            request_timeout_ms=self.request_timeout_ms,
            retry_backoff_ms=self.retry_backoff_ms,
            retry_backoff_max_ms=self.retry_backoff_max_ms,
            versions=versions,
        )
