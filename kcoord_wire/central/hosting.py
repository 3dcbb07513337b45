"""A broker with a real socket, in its own thread and event loop: what the brokers of both designs have in common.

Laws:

* `start` returns when the broker is registered and its topics are announced; an error before that is raised by it.
* After `stop` no thread, socket or session is left, so another broker takes over at once.
* Every method may be called from any thread.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from kcoord_wire.central.connection import Limits
from kcoord_wire.central.loop_memory import LoopMemory
from kcoord_wire.central.own_topics import OwnTopics, RecordClock, check_broker
from kcoord_wire.central.server import Server
from kcoord_wire.central.status import StatusReader
from kcoord_wire.kernel.background import Background
from kcoord_wire.kernel.machines import BrokerAddress, Machine
from kcoord_wire.kernel.net import WILDCARD_HOSTS, address_text, local_address
from kcoord_wire.zookeeper.brokers import Brokers
from kcoord_wire.zookeeper.client import ZooKeeperRegistry
from kcoord_wire.zookeeper.model import Deliver

SettingsT = TypeVar("SettingsT")

LOOK_SECONDS: Final = 0.05  # between two looks at whether the broker is registered
ID_SECONDS: Final = 1.0  # beyond the session timeout


class BrokerStartError(ValueError):
    """The broker cannot register itself: ZooKeeper does not answer, or another broker has the id."""


class Coordinates(Machine, Protocol):
    """The machine of a broker.

    :ivar brokers: the registration of this broker, and all that are registered
    """

    brokers: Brokers


class HostedBroker(ABC, Generic[SettingsT]):
    """A broker, started and stopped by ``with`` or ``async with``.

    :param zookeeper: ``HOST:PORT,...[/CHROOT]``; None for a ZooKeeper of its own in memory, for tests of consumers
    :param topics: name to number of partitions at this broker
    :param host: the address to listen on
    :param port: 0 takes a free one
    :param advertise: host and port that consumers are sent to; by default those it listens on
    :param rate: records a second of each partition, if this is the first broker of the cluster
    :param settings: of the coordinator; its defaults if not given
    :param session_timeout_ms: of the session with ZooKeeper
    :param auth: user and password, for digest ACLs on the nodes
    :param limits: of peers
    :param connect_seconds: that ZooKeeper may take to answer at the start, and then for the broker's registration,
        beyond the session timeout that the former registration of the same broker may last
    :raises ValueError: the id or a topic cannot be registered
    :ivar host: as given
    :ivar port: the chosen one, once it has started
    """

    def __init__(
        self,
        zookeeper: str | None = None,
        *,
        broker_id: int = 1,
        topics: Mapping[str, int] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        advertise: tuple[str, int] | None = None,
        rate: float = 10.0,
        settings: SettingsT | None = None,
        session_timeout_ms: int = 6_000,
        auth: tuple[str, str] | None = None,
        limits: Limits | None = None,
        connect_seconds: float = 15.0,
    ) -> None:
        check_broker(broker_id, topics or {})
        self.host, self.port = host, port
        self._zookeeper = zookeeper
        self._broker_id = broker_id
        self._topics = dict(topics or {})
        self._advertise = advertise
        self._settings = settings
        self._session_timeout_ms = session_timeout_ms
        self._auth = auth
        self._limits = limits
        self._connect_seconds = connect_seconds
        self._life = Background("broker", self._serve, thread=f"kcoord-central-{broker_id}")
        self._own: BrokerAddress
        self._machine: Coordinates
        self._own_topics = self.topics_class(broker_id, self._topics, RecordClock(int(time.time() * 1000), rate))
        self._server: Server
        self._registry: ZooKeeperRegistry | LoopMemory | None = None

    # ---- life

    def start(self) -> Self:
        """Open the socket, register in ZooKeeper, and serve.

        :raises OSError: the port is in use
        :raises BrokerStartError: see there
        :raises RuntimeError: it was started before
        """
        self._life.start()
        return self

    def stop(self) -> None:
        """Close the connections, end the session, and end. A second call does nothing."""
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
        """Wait until another thread has stopped it, or the exception of a signal ends the wait."""
        self._life.wait()

    # ---- while it runs

    @property
    def address(self) -> str:
        """``HOST:PORT``, for the bootstrap list of consumers."""
        return local_address(self.host, self.port)

    # ---- what the designs differ in

    topics_class: type[OwnTopics] = OwnTopics
    """Announces the topics."""

    @abstractmethod
    def _make_server(self) -> Server:
        """Return the server, in the event loop in which it runs."""

    @abstractmethod
    def _make_machine(self, own: BrokerAddress) -> Coordinates:
        """Return the machine of the broker at this address."""

    # ---- in its thread

    async def _serve(self, ready: Callable[[], None], stopping: asyncio.Event) -> None:
        server = self._server = self._make_server()
        try:
            self.port = await server.listen(self.host, self.port)
            host, port = self._advertise or (WILDCARD_HOSTS.get(self.host, self.host), self.port)
            self._own = BrokerAddress(self._broker_id, host, port)
            stopped = asyncio.ensure_future(stopping.wait())
            await _first(stopped, server.failed, asyncio.ensure_future(self._start(server)))
            if not stopped.done():
                ready()
                await _first(stopped, server.failed)
        finally:
            await server.close()
            if self._registry is not None:
                await self._registry.close()

    async def _start(self, server: Server) -> None:
        """Connect to ZooKeeper, and wait until it has this broker and its topics."""
        if self._zookeeper is not None:
            await self._wait_for_id()
        self._machine = self._make_machine(self._own)
        self._registry = registry = self._make_registry(server.deliver)
        await server.serve(self._machine, self._own_topics, registry=registry)
        await registry.start(self._connect_seconds)
        until = time.monotonic() + self._session_timeout_ms / 1000 + self._connect_seconds
        while not self._is_registered:
            if time.monotonic() > until:
                raise BrokerStartError(f"{self._zookeeper} has not accepted broker {self._broker_id}; the log says why")
            await asyncio.sleep(LOOK_SECONDS)

    async def _wait_for_id(self) -> None:
        """Wait until the id is free, or registered with the own address.

        Only one of two brokers with one id can act (`Leadership.bar`). The registration of a process that has ended
        lasts for its session timeout.
        """
        reader = StatusReader()
        reader.registry = registry = self._make_registry(reader.deliver)
        await registry.start(self._connect_seconds)
        try:
            until = time.monotonic() + self._session_timeout_ms / 1000 + ID_SECONDS
            while (other := await reader.broker(self._broker_id)) not in (None, self._own):
                if time.monotonic() > until:
                    address = address_text(other.host, other.port)
                    raise BrokerStartError(f"broker id {self._broker_id} is taken by the broker at {address}")
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            await registry.close()

    def _make_registry(self, deliver: Deliver) -> ZooKeeperRegistry | LoopMemory:
        if self._zookeeper is None:
            return LoopMemory(deliver, timeout_ms=self._session_timeout_ms)
        return ZooKeeperRegistry(
            self._zookeeper, deliver, session_timeout_ms=self._session_timeout_ms, credentials=self._auth
        )

    @property
    def _is_registered(self) -> bool:
        has_topics = self._own_topics.announced.keys() == self._topics.keys()
        return has_topics and self._machine.brokers.known.get(self._broker_id) == self._own


async def _first(*futures: asyncio.Future[Any]) -> None:
    """Wait until one is done, cancel the other tasks, but for the first, and raise the error of one that has failed."""
    done, left = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    for task in left - {futures[0]}:
        if isinstance(task, asyncio.Task):
            task.cancel()
    for future in done:
        future.result()
