"""The settings of a consumer, by Kafka's names in snake case and with the Java consumer's defaults; TLS and SASL.

Laws:

* Times end in ``_ms``, sizes in ``_bytes``. A value that cannot work is rejected here, before anything is opened.
* A setting that is not listed does not exist.
* A password is in no ``repr`` and in no error.
* The server has to prove that it knows the SCRAM credential: success without its signature is a failure.
* What a server may cost is bounded: `MAX_ITERATIONS` of key derivation, which runs on the event loop (0.1 s).
* SASLprep (RFC 4013) must leave a password as it is, because scramp applies it and Kafka's brokers do not: such a
  password is rejected instead of refused by the broker for an unclear reason.

SCRAM is scramp, of the extra ``consumer``. Sources: kafka/clients `ConsumerConfig.java`; KIP-43, 62, 84, 345, 580, 735;
RFC 4616, 5802, 7677.
"""

from __future__ import annotations

import ssl
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Final, Literal

from kcoord_wire.assignors import Assignor
from kcoord_wire.assignors.plugins import find_assignor
from kcoord_wire.consumer.errors import ConsumerError
from kcoord_wire.consumer.member_events import MemberSettings, Versions
from kcoord_wire.extras import require
from kcoord_wire.kernel.net import parse_address
from kcoord_wire.kernel.settings import check_values, setting

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
MAX_ITERATIONS: Final = 100_000
"""Kafka's brokers store at most 16,384."""


class SaslError(Exception):
    """The exchange cannot go on: the server's token is wrong, or the credentials cannot be expressed."""


@dataclass(frozen=True, slots=True)
class Sasl:
    """Credentials.

    :ivar mechanism: one of `MECHANISMS`
    :raises ValueError: another mechanism, or a name or password that is empty or has a NUL
    :raises MissingLibraryError: SCRAM without scramp; here, because a connection in the background would end by it
    """

    mechanism: str
    username: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise ValueError(f"{self.mechanism!r} is none of {', '.join(MECHANISMS)}")
        for what, text in (("name", self.username), ("password", self.password)):
            if not text or "\0" in text:
                raise ValueError(f"a {what} must not be empty and must not have a NUL")
        if self.mechanism != "PLAIN":
            require("scramp", "consumer", "SCRAM")


def tls_context(
    cafile: Path | str | None = None,
    certfile: Path | str | None = None,
    keyfile: Path | str | None = None,
    password: str | None = None,
) -> ssl.SSLContext:
    """Return a context that verifies the broker's certificate and name.

    :param cafile: PEM file of the authorities to trust; the system's where it is None
    :param certfile: PEM file of the client's own certificate, for brokers that require one
    :param keyfile: PEM file of its key; in `certfile` where it is None
    :param password: of the key
    :raises OSError: a file cannot be read, or is not such a file (ssl.SSLError)
    """
    context = ssl.create_default_context(cafile=cafile)
    if certfile is not None:
        context.load_cert_chain(certfile, keyfile, password)
    return context


def sasl_tokens(sasl: Sasl) -> Generator[bytes, bytes, None]:
    """Yield the client's tokens; each one is sent, and the server's answer to it is sent into the generator.

    The generator ends when the server has been accepted.

    :raises SaslError: see there
    """
    if sasl.mechanism == "PLAIN":
        yield f"\0{sasl.username}\0{sasl.password}".encode()
        return
    scramp = require("scramp", "consumer", "SCRAM")
    try:
        client = scramp.ScramClient([sasl.mechanism], sasl.username, sasl.password)
        if bytes(client.password) != sasl.password.encode():
            raise SaslError("the password is not in the normal form of RFC 4013, which SCRAM needs")
        client.set_server_first((yield client.get_client_first().encode()).decode())
        if int(client.iterations) > MAX_ITERATIONS:
            raise SaslError(f"the server asks for {int(client.iterations)} iterations; {MAX_ITERATIONS} are allowed")
        client.set_server_final((yield client.get_client_final().encode()).decode())
    except (scramp.ScramException, ValueError) as error:
        raise SaslError(f"{sasl.mechanism}: {error}") from None


_positive: Final = partial(setting, least=1)
_CLASSIC: Final = ("partition_assignment_strategy", "session_timeout_ms", "heartbeat_interval_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """A consumer's configuration.

    :ivar bootstrap_servers: ``HOST:PORT``, several separated by commas or as a list
    :ivar group_id: may be missing where the application assigns partitions itself and commits nothing
    :ivar group_protocol: ``consumer`` is KIP-848, of Kafka 4.0: the coordinator assigns, and decides on sessions and
        heartbeats
    :ivar partition_assignment_strategy: names or `Assignor` objects, most preferred first. The member rebalances
        cooperatively if all of them do
    :ivar auto_offset_reset: where to begin in a partition whose committed offset is missing or out of range; with
        ``none`` that is an error
    :ivar isolation_level: ``read_committed`` leaves out the records of aborted transactions
    :ivar check_crcs: compare the checksum of each batch
    :ivar tls: a client's context; None for plain text
    :ivar sasl: credentials; None for none
    :raises ValueError: a value is out of range, or two contradict each other
    :raises TypeError: a value is of another type
    """

    bootstrap_servers: str | Sequence[str]
    group_id: str | None = None
    client_id: str = setting("kcoord-consumer", "in the header of each request")
    group_instance_id: str | None = setting(None, "makes the member static (KIP-345); None for a dynamic one")
    group_protocol: Literal["classic", "consumer"] = "classic"
    group_remote_assignor: str | None = setting(
        None, "the coordinator's assignor that the member asks for; None leaves the choice to the coordinator"
    )
    partition_assignment_strategy: Sequence[str | Assignor] = ("range", "cooperative-sticky")
    client_rack: str | None = setting(
        None, "where the consumer runs, for assignors that look at racks (KIP-881), not for fetching"
    )
    session_timeout_ms: int = _positive(45_000, "without a heartbeat for so long, the coordinator removes the member")
    heartbeat_interval_ms: int = _positive(3_000, "between two heartbeats")
    max_poll_interval_ms: int = _positive(
        300_000, "without a poll for so long, the member leaves; it is also the rebalance timeout"
    )
    max_poll_records: int = _positive(500, "the most that one poll returns")
    enable_auto_commit: bool = setting(
        True, "commit the positions in `poll` at an interval, before a revocation, and at the end"
    )
    auto_commit_interval_ms: int = _positive(5_000, "between two such commits")
    auto_offset_reset: Literal["earliest", "latest", "none"] = "latest"
    fetch_min_bytes: int = _positive(1, "a broker waits for so much")
    fetch_max_wait_ms: int = setting(500, "so long at most")
    fetch_max_bytes: int = _positive(
        52_428_800, "of one response; with `max_partition_fetch_bytes` it bounds what is buffered for a broker"
    )
    max_partition_fetch_bytes: int = _positive(1_048_576, "of one partition in a response")
    isolation_level: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"
    check_crcs: bool = True
    allow_auto_create_topics: bool = True
    exclude_internal_topics: bool = True
    metadata_max_age_ms: int = _positive(300_000, "topics and leaders are asked for at least so often")
    request_timeout_ms: int = _positive(
        30_000, "of one request; JoinGroup and SyncGroup may take the rebalance timeout"
    )
    default_api_timeout_ms: int = _positive(
        60_000, "of `commit`, `position` and the other methods that wait for a broker"
    )
    retry_backoff_ms: int = _positive(100, "before the first retry of a request")
    retry_backoff_max_ms: int = _positive(1_000, "before any retry")
    tls: ssl.SSLContext | None = None
    sasl: Sasl | None = None

    def __post_init__(self) -> None:
        check_values(self)
        for name in ("group_id", "group_instance_id", "group_remote_assignor"):
            if getattr(self, name) == "":
                raise ValueError(f"{name} must not be empty")
        self._check_protocol()
        if not 0 <= self.fetch_max_wait_ms < self.request_timeout_ms:
            raise ValueError("fetch_max_wait_ms must be from 0 to less than request_timeout_ms")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ValueError("heartbeat_interval_ms must be less than session_timeout_ms")
        if not self.addresses:
            raise ValueError("bootstrap_servers names no server")
        if not self.assignors:
            raise ValueError("partition_assignment_strategy names no assignor")

    def _check_protocol(self) -> None:
        """Refuse what the group's protocol has no use for, as Java's ConsumerConfig does."""
        if self.group_protocol == "classic":
            if self.group_remote_assignor is not None:
                raise ValueError("group_remote_assignor is for group_protocol 'consumer'")
            return
        defaults = {each.name: each.default for each in fields(self)}
        for name in _CLASSIC:
            if getattr(self, name) != defaults[name]:
                raise ValueError(f"{name} is for group_protocol 'classic': of others the coordinator decides it")

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
        """Return the settings of the member machine.

        :raises ConsumerError: there is no group
        """
        if self.group_id is None:
            raise ConsumerError("this needs a group_id")
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
