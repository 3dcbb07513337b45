"""`Coordinator`: a group coordinator with a real socket, in a thread and an event loop of its own.

    async with Coordinator(topics={"orders": 12}) as c:
        consumer = KafkaConsumer("orders", bootstrap_servers=c.address, group_id="billing")

Laws:

* The loop of whoever starts it is never blocked, and never needed: blocking clients may run beside it in one thread.
* Everything here may be called from any thread.
* What goes wrong while it starts is raised by `start`; after `stop` neither thread, socket nor open file is left.
"""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
import uuid
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from kcoord_wire.assignors.embedded import subscribed_topics
from kcoord_wire.background import Background
from kcoord_wire.coordinator.connection import PeerLimits
from kcoord_wire.coordinator.core.config import Endpoint, GroupConfig
from kcoord_wire.coordinator.core.events import RebalanceAccount
from kcoord_wire.coordinator.core.machine import GroupMachine
from kcoord_wire.coordinator.fault_injection import Fault, Faults
from kcoord_wire.coordinator.log.disk import FileDisk
from kcoord_wire.coordinator.log.store import Store
from kcoord_wire.coordinator.metrics import MetricsServer
from kcoord_wire.coordinator.permissions import Permissions
from kcoord_wire.coordinator.security import Users
from kcoord_wire.coordinator.server import Server
from kcoord_wire.coordinator.topics.topics import Topics
from kcoord_wire.disk import MemoryDisk
from kcoord_wire.net import WILDCARD_HOSTS, local_address

__all__ = ["Coordinator"]

T = TypeVar("T")


class Coordinator:
    """A group coordinator that any Kafka client can use.

    :param topics: name -> number of partitions; records are kept in memory
    :param port: 0 takes a free one
    :param data_dir: where groups and offsets are kept; None keeps them in memory, and a restart has none
    :param faults: what is to go wrong (faults.py); more can be added while it runs
    :param tls: a server's context; then there is no plain text
    :param users: who may connect, by SASL; then nobody else may
    :param permissions: who may do what
    :param advertise: what clients are told to connect to; by default where it listens
    :param metrics_port: where Prometheus finds its metrics over HTTP; 0 takes a free port
    :param auto_create_partitions: of a topic that a client asks for and that is not there; None creates none
    :param limits: what a peer may cost
    :raises ValueError: a topic's name or number of partitions is not allowed
    :raises TypeError: an argument is not what it should be
    """

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        data_dir: Path | str | None = None,
        config: GroupConfig | None = None,
        faults: Faults | None = None,
        tls: ssl.SSLContext | None = None,
        users: Users | None = None,
        permissions: Permissions | None = None,
        advertise: tuple[str, int] | None = None,
        auto_create_partitions: int | None = None,
        metrics_port: int | None = None,
        limits: PeerLimits | None = None,
    ) -> None:
        for name, value, kind in (
            ("topics", topics, Mapping),
            ("config", config, GroupConfig),
            ("faults", faults, Faults),
            ("tls", tls, ssl.SSLContext),
            ("users", users, Users),
            ("permissions", permissions, Permissions),
            ("advertise", advertise, tuple),
            ("limits", limits, PeerLimits),
        ):  # here, since a wrong one would be found out by the first client's request, in another thread
            if value is not None and not isinstance(value, kind):
                raise TypeError(f"{name} must be a {kind.__name__}, not {value!r}")
        self.host, self.port = host, port
        self._data_dir = None if data_dir is None else Path(data_dir)
        self.metrics_port = metrics_port
        self._tls = tls
        self._advertise = advertise
        unknown = Endpoint(0, host, port)  # until the socket is open
        self._topics = Topics(
            unknown,
            topics,
            cluster_id=_cluster_id(self._data_dir),
            sasl=users is not None,
            auto_create_partitions=auto_create_partitions,
        )
        self._machine = GroupMachine(unknown, self._topics, subscribed_topics, config)
        self._users, self._permissions, self._faults, self._limits = users, permissions, faults, limits
        self._life = Background("coordinator", self._serve, thread="kcoord")
        self._server: Server | None = None

    # ---- life

    def start(self) -> Self:
        """Open the socket, read the log, and serve.

        :raises OSError: the port is taken, or the folder cannot be used
        :raises CorruptLogError: the log is damaged in a way that a crash does not explain
        :raises RuntimeError: it was started before
        """
        self._life.start()
        return self

    def stop(self) -> None:
        """Answer what waits, write what is to be kept, and end. A second call does nothing.

        :raises RuntimeError: it does not end
        """
        self._life.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    def wait(self) -> None:
        """Wait until it has been stopped, from another thread or by a signal's exception."""
        if self._life.started:
            self._life.wait()

    # ---- while it runs

    @property
    def address(self) -> str:
        """What clients connect to: ``HOST:PORT``."""
        return local_address(self.host, self.port)

    @property
    def rebalances(self) -> list[RebalanceAccount]:
        """The accounts of the rebalances that have ended, oldest first; the older ones are forgotten."""
        return self._call(lambda server: list(server.requests.rebalances.accounts))

    def metrics(self) -> str:
        """What it has counted, in Prometheus's text format."""
        return self._call(lambda server: server.metrics.exposition().decode())

    def create_topic(self, name: str, partitions: int) -> None:
        """Make a topic. ValueError: the name is not allowed or taken, or there are no partitions."""
        self._call(lambda server: server.requests.topics.create(name, partitions))

    def add_partitions(self, name: str, count: int) -> int:
        """Give a topic `count` more partitions, and say how many it has. KeyError: there is no such topic."""
        return self._call(lambda server: server.requests.topics.add_partitions(name, count))

    def add_fault(self, *faults: Fault) -> None:
        """Let more go wrong from now on."""

        def add(server: Server) -> None:
            if server.requests.faults is None:
                server.requests.faults = Faults(faults)
            else:
                server.requests.faults.add(*faults)

        self._call(add)

    def clear_faults(self) -> None:
        """Let nothing go wrong any more. What is being delayed still comes."""

        def clear(server: Server) -> None:
            server.requests.faults = None

        self._call(clear)

    def _call(self, what: Callable[[Server], T]) -> T:
        """Do something in the loop's thread, where everything lives."""
        server = self._server
        if server is None:
            raise RuntimeError("the coordinator does not run")
        return self._life.call(lambda: what(server))

    # ---- in its thread

    async def _serve(self, ready: Callable[[], None], stopping: asyncio.Event) -> None:
        disk = MemoryDisk() if self._data_dir is None else FileDisk(self._data_dir)
        server = Server(
            self._machine,
            Store(disk),
            self._topics,
            disk=disk,
            users=self._users,
            permissions=self._permissions,
            faults=self._faults,
            limits=self._limits,
        )
        metrics: MetricsServer | None = None
        try:
            self.port = await server.listen(self.host, self.port, self._tls)
            host, port = self._advertise or (
                socket.gethostname() if self.host in WILDCARD_HOSTS else self.host,
                self.port,
            )
            self._machine.endpoint = self._topics.endpoint = Endpoint(0, host, port)
            if not await _done_before(stopping, server.load()):
                return
            if self.metrics_port is not None:
                metrics = server.metrics.serve(self.host or "0.0.0.0", self.metrics_port)
                self.metrics_port = metrics.port
            self._server = server
            ready()
            await stopping.wait()
        finally:
            self._server = None
            await server.close()
            if metrics is not None:
                await asyncio.to_thread(metrics.stop)


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
    """Kafka's form of a cluster id: the same for the same folder."""
    known = uuid.uuid4() if data_dir is None else uuid.uuid5(uuid.NAMESPACE_URL, data_dir.resolve().as_uri())
    return base64.urlsafe_b64encode(known.bytes).rstrip(b"=").decode()
