"""A broker of either design with a real socket, in its own thread and event loop.

    with CentralBroker("zk1:2181,zk2:2181/kafka", broker_id=1, topics={"orders": 4}) as broker:
        ...  # consumers of the draft find the coordinator through broker.address

    with CentralBroker(topics={"orders": 4}) as broker:  # alone, with a ZooKeeper of its own in memory

    with RewriteBroker("zk1:2181,zk2:2181/kafka", broker_id=1, topics={"orders": 4}) as broker:
        ...  # members of the rewrite find the coordinator of their group through broker.address

Laws:

* `start` returns when the broker is registered and its topics are announced; an error before that is raised by it.
* After `stop` no thread, socket or session is left, so another broker takes over at once.
* Every method may be called from any thread.
* `CentralBroker` refuses a fetch with a fence, ``STALE_EPOCH``, if its epoch is lower than the coordinator's that this
  broker knows, or, while this broker itself coordinates, if it is another one.
* Each `RewriteBroker` coordinates the groups of its shards; there is no broker that coordinates all. It serves
  ConsumerMetadata, JoinGroup, Heartbeat, OffsetCommit, OffsetFetch, Metadata and Fetch, in the versions of clients
  0.8.2 (`dialects.VERSIONS`), and closes connections that send anything else.

Source: "the 0.8 consumer-coordinator draft", sections 5 and 10; "Kafka 0.9 Consumer Rewrite Design".
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from kcoord_wire import messages as kafka
from kcoord_wire.central.dialects import RewriteDialect
from kcoord_wire.central.draft.coordinator import DraftCoordinator
from kcoord_wire.central.draft.events import CentralError, CoordinatorSettings
from kcoord_wire.central.peer import Limits
from kcoord_wire.central.rewrite.coordinator import RewriteCoordinator
from kcoord_wire.central.rewrite.events import CoordinatorSettings as RewriteSettings
from kcoord_wire.central.rewrite.layout import COORDINATION
from kcoord_wire.central.served_topics import GeneratedTopics, OwnTopics, RecordClock, RewriteTopics, check_broker
from kcoord_wire.central.server import Server
from kcoord_wire.central.status import ClusterClient
from kcoord_wire.kernel.background import Background, Service
from kcoord_wire.kernel.driver import Driver, monotonic_ms
from kcoord_wire.kernel.machines import BrokerAddress, Machine, Tick
from kcoord_wire.kernel.net import WILDCARD_HOSTS, address_text, local_address
from kcoord_wire.messages import central as m
from kcoord_wire.zookeeper.layout import COORDINATOR_EPOCH, Brokers
from kcoord_wire.zookeeper.memory import MemoryLink, MemoryZooKeeper
from kcoord_wire.zookeeper.registry import ZooKeeperRegistry
from kcoord_wire.zookeeper.requests import Ask, Deliver


class LoopMemory:
    """A ZooKeeper of its own and the one client of it, in the loop that runs where this is made; a `Machine`."""

    def __init__(self, deliver: Deliver, *, timeout_ms: int) -> None:
        self._link = MemoryLink(MemoryZooKeeper(), deliver, timeout_ms=timeout_ms)
        self._driver = Driver(self, execute=lambda *_: None, failed=_raise)

    async def start(self, within: float = 0.0) -> None:
        """Connect, which always succeeds; the first event is ``CONNECTED``."""
        self._wake()

    def ask(self, ask: Ask) -> None:
        """Execute a request in the next iteration of the loop."""
        self._link.ask(ask)
        self._wake()

    async def close(self) -> None:
        """Stop; no event follows."""
        self._driver.stop()

    @property
    def deadline(self) -> int:
        """See `Machine`."""
        return self._link.deadline

    def handle(self, _event: Tick, now: int) -> Sequence[Any]:
        """See `Machine`."""
        self._link.advance(now)
        return ()

    def _wake(self) -> None:
        asyncio.get_running_loop().call_soon(self._driver.deliver, Tick())


def _raise(error: Exception, _cause: object) -> None:
    raise error


SettingsT = TypeVar("SettingsT")

LOOK_SECONDS: Final = 0.05  # between two looks at whether the broker is registered
ID_SECONDS: Final = 1.0  # beyond the session timeout


class BrokerStartError(ValueError):
    """The broker cannot register itself: ZooKeeper does not answer, another broker has the id, or the chroot is that of
    the other design, whose topics have the same names and other data."""


class Coordinates(Machine, Protocol):
    """The machine of a broker.

    :ivar brokers: the registration of this broker, and all that are registered
    """

    brokers: Brokers


class HostedBroker(Service, Generic[SettingsT]):
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

    def wait(self) -> None:
        """Wait until another thread has stopped it, or the exception of a signal ends the wait.

        :raises BackgroundError: an error has ended it
        """
        self._life.wait()

    # ---- while it runs

    @property
    def address(self) -> str:
        """``HOST:PORT``, for the bootstrap list of consumers."""
        return local_address(self.host, self.port)

    # ---- what the designs differ in

    topics_class: type[OwnTopics] = OwnTopics
    """Announces the topics."""

    other_design: tuple[str, str]
    """The name of the design that cannot share a chroot with this one, and a node that it makes first."""

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
            await self._check_cluster(self._zookeeper)
        self._machine = self._make_machine(self._own)
        self._registry = registry = self._make_registry(server.deliver)
        await server.serve(self._machine, self._own_topics, registry=registry)
        await registry.start(self._connect_seconds)
        until = time.monotonic() + self._session_timeout_ms / 1000 + self._connect_seconds
        while not self._is_registered:
            if time.monotonic() > until:
                raise BrokerStartError(f"{self._zookeeper} has not accepted broker {self._broker_id}; the log says why")
            await asyncio.sleep(LOOK_SECONDS)

    async def _check_cluster(self, zookeeper: str) -> None:
        """Refuse a chroot of the other design, and wait until the id is free, or registered with the own address.

        Only one of two brokers with one id can act (`Leadership.bar`). The registration of a process that has ended
        lasts for its session timeout.
        """
        async with ClusterClient(zookeeper, seconds=self._connect_seconds, **self._session) as reader:
            design, node = self.other_design
            if await reader.exists(node):
                raise BrokerStartError(f"{zookeeper} is in use by the {design}, as {node} shows; give another chroot")
            until = time.monotonic() + self._session_timeout_ms / 1000 + ID_SECONDS
            while (other := await reader.broker(self._broker_id)) not in (None, self._own):
                if time.monotonic() > until:
                    address = address_text(other.host, other.port)
                    raise BrokerStartError(f"broker id {self._broker_id} is taken by the broker at {address}")
                await asyncio.sleep(LOOK_SECONDS)

    def _make_registry(self, deliver: Deliver) -> ZooKeeperRegistry | LoopMemory:
        if self._zookeeper is None:
            return LoopMemory(deliver, timeout_ms=self._session_timeout_ms)
        return ZooKeeperRegistry(self._zookeeper, deliver, **self._session)

    @property
    def _session(self) -> dict[str, Any]:
        return {"session_timeout_ms": self._session_timeout_ms, "credentials": self._auth}

    @property
    def _is_registered(self) -> bool:
        has_topics = self._own_topics.announced.keys() >= self._topics.keys()
        return has_topics and self._machine.brokers.known.get(self._broker_id) == self._own


async def _first(*futures: asyncio.Future[Any]) -> None:
    """Wait until one is done, cancel the other tasks, but for the first, and raise the error of one that has failed."""
    done, left = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    for task in left - {futures[0]}:
        if isinstance(task, asyncio.Task):
            task.cancel()
    for future in done:
        future.result()


class CentralBroker(HostedBroker[CoordinatorSettings]):
    """A broker that stands for election as the coordinator. Its parameters are those of `HostedBroker`."""

    other_design = "rewrite", COORDINATION
    _machine: DraftCoordinator
    _generated: GeneratedTopics | None = None

    @property
    def epoch(self) -> int | None:
        """Of its term as the coordinator of the first subset of the groups, all by default; None if another broker, or
        none, is elected."""
        return self.epochs.get(0)

    @property
    def epochs(self) -> dict[int, int]:
        """The subsets of the groups that it coordinates, each with the epoch of its term."""
        return self._life.call(lambda: self._machine.epochs_at(monotonic_ms()))

    def _make_server(self) -> Server:
        return Server({m.CentralFetchRequest: self._fetch, m.CentralStatusRequest: self._status}, limits=self._limits)

    def _make_machine(self, own: BrokerAddress) -> DraftCoordinator:
        return DraftCoordinator(own, self._settings or CoordinatorSettings())

    def _fetch(self, request: m.CentralFetchRequest) -> m.CentralFetchResponse:
        clock = self._own_topics.clock
        if clock is None:
            return m.CentralFetchResponse(error_code=CentralError.UNKNOWN_TOPIC_OR_PARTITION)
        if self._generated is None:
            partitions = self._own_topics.announced
            self._generated = GeneratedTopics(self._broker_id, partitions, clock.since_ms, clock.rate)
        if request.fence and self._is_stale(request.fence[0]):
            return m.CentralFetchResponse(error_code=CentralError.STALE_EPOCH)
        return self._generated.fetch(request, int(time.time() * 1000))

    def _is_stale(self, fence: m.CentralFetchRequestFence) -> bool:
        candidate = self._machine.candidate_of(fence.group_id)
        if candidate is None:
            return False
        own, leader = candidate.epoch_at(monotonic_ms()), candidate.leadership.leader
        if own is not None:
            return fence.epoch != own
        return leader is not None and fence.epoch < leader.epoch

    def _status(self, request: m.CentralStatusRequest) -> m.CentralStatusResponse:
        return self._machine.status(self._server.host_of, monotonic_ms())


class RewriteBroker(HostedBroker[RewriteSettings]):
    """A broker that coordinates the groups of its shards. Its parameters are those of `HostedBroker`."""

    topics_class = RewriteTopics
    other_design = "draft", COORDINATOR_EPOCH
    _machine: RewriteCoordinator
    _own_topics: RewriteTopics

    @property
    def shards(self) -> dict[int, int]:
        """The shards whose groups it coordinates, each with the epoch of its takeover."""
        return self._life.call(
            lambda: {shard.number: shard.epoch for shard in self._machine.shards.own.values() if shard.is_loaded}
        )

    def _make_server(self) -> Server:
        limits = self._limits or Limits()
        # No peer is registered here, and commits are as long as an assignment.
        limits = replace(limits, max_unregistered_frame_size=limits.max_frame_size)
        answers: dict[type, Callable[[Any], Any]] = {
            kafka.FetchRequest: self._fetch,
            kafka.ListOffsetsRequest: self._list_offsets,
        }
        return Server(answers, dialect=RewriteDialect(), limits=limits)

    def _make_machine(self, own: BrokerAddress) -> RewriteCoordinator:
        return RewriteCoordinator(own, self._settings)

    def _fetch(self, request: kafka.FetchRequest) -> kafka.FetchResponse:
        return self._own_topics.fetch(request, int(time.time() * 1000))

    def _list_offsets(self, request: kafka.ListOffsetsRequest) -> kafka.ListOffsetsResponse:
        return self._own_topics.list_offsets(request, int(time.time() * 1000))
