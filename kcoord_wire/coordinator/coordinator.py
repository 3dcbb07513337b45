"""`Coordinator`: a group coordinator with a real socket, in a thread and event loop apart from its caller's.

    async with Coordinator(topics={"orders": 12}) as c:
        consumer = KafkaConsumer("orders", bootstrap_servers=c.address, group_id="billing")

Laws:

* It never blocks or needs the caller's event loop: blocking clients may run in the caller's thread.
* The coordinators of a process share one thread and loop, which ends with the last of them.
* Every method may be called from any thread.
* Errors while it starts are raised by `start`; after `stop` no thread of its own, socket or open file is left.
"""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
import uuid
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from kcoord_wire.assignors.embedded import subscribed_topics
from kcoord_wire.coordinator.client_settings import client_settings
from kcoord_wire.coordinator.connection import PeerLimits
from kcoord_wire.coordinator.consumer_groups.machine import CoordinatorMachine
from kcoord_wire.coordinator.core.apis import SERVED
from kcoord_wire.coordinator.core.brokers import Brokers
from kcoord_wire.coordinator.core.config import MAX_NODE_ID, Endpoint, GroupConfig
from kcoord_wire.coordinator.fault_injection import Faults
from kcoord_wire.coordinator.log.batches import OFFSETS_FOLDER, SHARES, SHARES_FOLDER, TRANSACTIONS, TRANSACTIONS_FOLDER
from kcoord_wire.coordinator.log.store import Store
from kcoord_wire.coordinator.security.authentication import Users
from kcoord_wire.coordinator.security.permissions import Permissions
from kcoord_wire.coordinator.server import Server
from kcoord_wire.coordinator.testing import Inspection
from kcoord_wire.coordinator.topics.catalog import TopicLimits
from kcoord_wire.coordinator.topics.releases import served_by
from kcoord_wire.coordinator.topics.topics import Topics
from kcoord_wire.kernel import settings
from kcoord_wire.kernel.background import Background, Service
from kcoord_wire.kernel.disk import FileDisk, MemoryDisk
from kcoord_wire.kernel.net import WILDCARD_HOSTS, local_address

if TYPE_CHECKING:
    from kcoord_wire.kernel.scrapes import Scrapes

MOST_BROKERS: Final = 64
_LAST_PORT: Final = 65_535

T = TypeVar("T")


class Coordinator(Inspection, Service):
    """A group coordinator that any Kafka client can connect to, started and stopped by ``with`` or ``async with``.

    ::

        with Coordinator(topics={"orders": 12}) as coordinator:
            consumer = Consumer({"bootstrap.servers": coordinator.address, "group.id": "billing"})

    :param topics: name to number of partitions; those that `data_dir` has already keep their records and get the
        partitions that are missing
    :param host: the address to listen on
    :param port: the first broker's; the others have those that follow it. 0 takes free ones
    :param brokers: how many there are, each with a port of its own
    :param node_id: the first broker's (``node.id``); the others have those that follow it
    :param data_dir: the folder for groups, offsets, topics and records; None keeps them in memory, so a restart begins
        without any
    :param config: the settings of a Kafka broker that concern groups, also by Kafka's names; Kafka's defaults
    :param faults: what goes wrong; see `Fault`. More can be added while it runs
    :param tls: a server's context; plain text is not served then
    :param users: who may connect, by SASL; without them everybody may
    :param permissions: who may do what; without them everything is allowed
    :param advertise: host and port that clients are sent to, of further brokers the ports that follow; by default those
        it listens on
    :param auto_create_partitions: of a topic that a client asks for and that does not exist; None creates none
    :param as_version: a release of Kafka, such as ``2.8``: newer apis and versions are neither advertised nor answered
    :param metrics_port: serves Prometheus metrics over HTTP; 0 takes a free port, None serves none
    :param limits: what clients may cost
    :param topic_limits: what topics may cost, as how many bytes of records are kept
    :ivar host: as given
    :ivar port: the first broker's, once it has started
    :ivar ports: of all brokers, in the order of `node_ids`, once it has started
    :ivar node_ids: of all brokers
    :ivar metrics_port: likewise
    :raises ValueError: a topic's name or number of partitions is not allowed, or there would be no broker, or too many,
        or the release is unknown
    :raises TypeError: an argument has the wrong type
    """

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        brokers: int = 1,
        node_id: int = 0,
        data_dir: Path | str | None = None,
        config: GroupConfig | Mapping[str, str | int] | None = None,
        faults: Faults | None = None,
        tls: ssl.SSLContext | None = None,
        users: Users | None = None,
        permissions: Permissions | None = None,
        advertise: tuple[str, int] | None = None,
        auto_create_partitions: int | None = None,
        as_version: str | None = None,
        metrics_port: int | None = None,
        limits: PeerLimits | None = None,
        topic_limits: TopicLimits | None = None,
    ) -> None:
        __tracebackhide__ = settings.__tracebackhide__
        if isinstance(config, Mapping):
            config = GroupConfig.from_properties(config)
        for name, value, kind in (
            ("topics", topics, Mapping),
            ("config", config, GroupConfig),
            ("faults", faults, Faults),
            ("tls", tls, ssl.SSLContext),
            ("users", users, Users),
            ("permissions", permissions, Permissions),
            ("advertise", advertise, tuple),
            ("limits", limits, PeerLimits),
            ("as_version", as_version, str),
            ("topic_limits", topic_limits, TopicLimits),
        ):  # checked here: otherwise the first client's request would fail, in another thread
            if value is not None and not isinstance(value, kind):
                raise TypeError(f"{name} must be a {kind.__name__}, not {value!r}")
        _check_brokers(brokers, node_id, max(port, 0 if advertise is None else advertise[1]))
        super().__init__()
        self.host: str = host
        self.port: int = port
        self.ports: list[int] = []
        self.node_ids: list[int] = list(range(node_id, node_id + brokers))
        self._data_dir = None if data_dir is None else Path(data_dir)
        self.metrics_port: int | None = metrics_port
        self._tls = tls
        self._advertise = advertise
        self._brokers = Brokers(  # endpoints are replaced once the sockets are open
            [Endpoint(node, host, port) for node in self.node_ids],
            offsets_partitions=(config or GroupConfig()).offsets_topic_partitions,
        )
        self._topics = Topics(
            self._brokers,
            topics,
            cluster_id=_cluster_id(self._data_dir),
            sasl=users is not None,
            auto_create_partitions=auto_create_partitions,
            served=SERVED if as_version is None else served_by(as_version),
            limits=topic_limits,
            broker_configs=(config or GroupConfig()).properties(),
        )
        self._machine = CoordinatorMachine(
            self._brokers, self._topics, subscribed_topics, config, configs_of=self._topics.configuration.of_group
        )
        self._users, self._permissions, self._faults, self._limits = users, permissions, faults, limits
        self._life = Background("coordinator", self._serve, thread="kcoord", is_shared=True)
        self._server: Server | None = None

    # ---- life

    def start(self) -> Self:
        """Open the socket, read the log, and serve.

        :raises OSError: the port is in use, or the folder cannot be used
        :raises CorruptLogError: the log is damaged in a way that a crash does not explain
        :raises RuntimeError: it was started before
        """
        self._life.start()
        return self

    def stop(self) -> None:
        """Answer parked requests, write what must be kept, and end. A second call does nothing.

        :raises RuntimeError: it does not end in time
        """
        self._life.stop()

    def wait(self) -> None:
        """Wait until another thread has stopped it, or the exception of a signal ends the wait.

        :raises BackgroundError: an error has ended it
        """
        if self._life.started:
            self._life.wait()

    # ---- while it runs

    @property
    def address(self) -> str:
        """The address for ``bootstrap.servers``: ``HOST:PORT``, with several brokers all of theirs, with commas."""
        return ",".join(self.addresses)

    @property
    def addresses(self) -> list[str]:
        """The address of each broker, in the order of `node_ids`."""
        return [local_address(self.host, port) for port in self.ports or [self.port]]

    def client_settings(self, client: str) -> dict[str, Any]:
        """Return a consumer's settings that make tests fast, by the client's own names, with `address`; times are ms.

        ::

            consumer = Consumer({**coordinator.client_settings("librdkafka"), "group.id": "billing"})

        :param client: ``librdkafka`` (also as ``confluent-kafka``), ``java``, ``kafka-python``, ``aiokafka`` or
            ``kcoord_wire``
        :raises ValueError: it is none of these
        """
        return client_settings(client, self.address)

    def metrics(self) -> str:
        """Return its metrics, in Prometheus's text format."""
        return self._call(lambda server: server.metrics.exposition().decode())

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        """Create a topic.

        :param configs: that differ from their defaults, by Kafka's names, such as ``max.message.bytes``
        :raises ValueError: the name is not allowed or taken, the number of partitions is not from 1 to 100,000, or a
            config does not exist or cannot have its value
        """
        self._call(lambda server: server.host.topics.create(name, partitions, configs))

    def delete_topic(self, name: str) -> None:
        """Delete a topic, its records, and the offsets that groups have committed to it.

        :raises KeyError: the topic does not exist
        """
        self._call(lambda server: server.host.execute(server.host.topics.delete(name)))

    def add_partitions(self, name: str, count: int) -> int:
        """Give a topic `count` more partitions, and return how many it has then.

        :raises KeyError: the topic does not exist
        """
        return self._call(lambda server: server.host.topics.catalog.add_partitions(name, count))

    def _call(self, what: Callable[[Server], T]) -> T:
        """Call `what` in the thread of the loop, which owns the server."""
        server = self._server
        if server is None:
            raise RuntimeError("the coordinator is not running")
        return self._life.call(lambda: what(server))

    def _run(self, what: Callable[[Server], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine of the server in its loop."""
        server = self._server
        if server is None:
            raise RuntimeError("the coordinator is not running")
        return self._life.run(lambda: what(server))

    # ---- in its thread

    async def _serve(self, ready: Callable[[], None], stopping: asyncio.Event) -> None:
        disk = MemoryDisk() if self._data_dir is None else FileDisk(self._data_dir)
        offsets, transactions = disk.folder(OFFSETS_FOLDER), disk.folder(TRANSACTIONS_FOLDER)
        shares = disk.folder(SHARES_FOLDER)
        disk.sync_names()
        server = Server(
            self._machine,
            Store(offsets),
            self._topics,
            disk=disk,
            transactions=None if self._data_dir is None else Store(transactions, TRANSACTIONS),
            shares=None if self._data_dir is None else Store(shares, SHARES),
            users=self._users,
            permissions=self._permissions,
            faults=self._faults,
            limits=self._limits,
        )
        metrics: Scrapes | None = None
        try:
            if self._data_dir is not None:
                await asyncio.to_thread(self._topics.open, disk)
            self.ports = await server.listen(self.host, self.port, self._tls)
            self.port = self.ports[0]
            self._brokers.endpoints[:] = self._endpoints()
            if not await _done_before(stopping, server.load()):
                return
            if self.metrics_port is not None:
                metrics = server.metrics.serve(
                    self.host or "0.0.0.0",
                    self.metrics_port,
                    known={endpoint.host for endpoint in self._brokers.endpoints},
                )
                self.metrics_port = metrics.port
            self._server = server
            ready()
            await stopping.wait()
        finally:
            self._server = None
            self._end_waits()
            await server.close()
            self._topics.close()
            disk.close()
            if metrics is not None:
                await asyncio.to_thread(metrics.stop)

    def _endpoints(self) -> list[Endpoint]:
        if self._advertise is not None:
            host, first = self._advertise
            return [Endpoint(node, host, first + at) for at, node in enumerate(self.node_ids)]
        host = socket.gethostname() if self.host in WILDCARD_HOSTS else self.host
        return [Endpoint(node, host, port) for node, port in zip(self.node_ids, self.ports, strict=True)]


def _check_brokers(count: int, node_id: int, port: int) -> None:
    """Raise ValueError if there cannot be so many brokers, whose ids and ports begin at these."""
    if type(count) is not int or not 1 <= count <= MOST_BROKERS:
        raise ValueError(f"there can be 1 to {MOST_BROKERS} brokers, not {count!r}")
    if type(node_id) is not int or not 0 <= node_id <= MAX_NODE_ID - count + 1:
        raise ValueError(f"node ids are 0 to {MAX_NODE_ID}: those of {count} brokers cannot begin at {node_id!r}")
    if port + count - 1 > _LAST_PORT:
        raise ValueError(f"{count} brokers need as many ports in sequence, up to {_LAST_PORT}")


async def _done_before(stopping: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    working, stopped = asyncio.ensure_future(work), asyncio.ensure_future(stopping.wait())
    await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if working.done():
        working.result()
        return True
    working.cancel()
    return False


def _cluster_id(data_dir: Path | None) -> str:
    """Return a cluster id in Kafka's form; the same folder has the same id."""
    known = uuid.uuid4() if data_dir is None else uuid.uuid5(uuid.NAMESPACE_URL, data_dir.resolve().as_uri())
    return base64.urlsafe_b64encode(known.bytes).rstrip(b"=").decode()
