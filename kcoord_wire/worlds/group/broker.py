"""The coordinator's server, with its real connections, listener and log, as a host of a virtual world.

Real clients talk to it: aiokafka, `kcoord_wire.consumer.Consumer`, whatever runs on asyncio.

    world = VirtualWorld(seed=7)
    broker = VirtualBroker(world, topics={"orders": 4})
    world.at(60, broker.down, 300)
    world.run(main(world, broker))

Laws:

* It is the server of `kcoord_wire.coordinator`, unchanged. `VirtualBroker.down` is a power failure: of the groups' log
  what was synced survives; the records of topics all survive, as if they were replicated.
* A `Tap` (wire.py) sees whole frames, as a capture on the broker's machine would have them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Final

from kcoord_wire.assignors.embedded import subscribed_topics
from kcoord_wire.codec.framing import Framer
from kcoord_wire.coordinator.consumer_groups.machine import CoordinatorMachine
from kcoord_wire.coordinator.core.brokers import Brokers
from kcoord_wire.coordinator.core.config import Endpoint, GroupConfig
from kcoord_wire.coordinator.core.events import RebalanceAccount
from kcoord_wire.coordinator.fault_injection import Faults
from kcoord_wire.coordinator.log.store import Store
from kcoord_wire.coordinator.security.authentication import Users
from kcoord_wire.coordinator.server import Server
from kcoord_wire.coordinator.topics.configs import TOPIC_CONFIGS
from kcoord_wire.coordinator.topics.topics import Topics
from kcoord_wire.kernel.virtual.disk import VirtualDisk
from kcoord_wire.kernel.virtual.loop import VirtualWorld
from kcoord_wire.worlds.group.wire import Tap

PORT: Final = 9_092
_CLUSTER_ID: Final = "virtual-cluster-000000"  # of 22 characters, as Kafka's are
_ANY_AGE: Final = TOPIC_CONFIGS["message.timestamp.before.max.ms"].default
_ANY_FUTURE: Final = {"log.message.timestamp.after.max.ms": _ANY_AGE}
"""Compiled parts of clients read the machine's clock, which is far ahead of the virtual one."""


class VirtualBroker:
    """A broker that serves groups and topics, from the start of the world's run.

    :param topics: name to number of partitions
    :param config: the settings of a Kafka broker that concern groups; Kafka's defaults
    :param faults: what goes wrong with requests; see `kcoord_wire.coordinator.fault_injection`
    :param users: who may connect, by SASL; without them any client may
    :param tap: gets every frame
    :param name: of its host
    :ivar host: its host, for `Host.pause` and the faults of the network
    :ivar address: for ``bootstrap_servers``
    """

    def __init__(
        self,
        world: VirtualWorld,
        topics: Mapping[str, int],
        *,
        config: GroupConfig | None = None,
        faults: Faults | None = None,
        users: Users | None = None,
        tap: Tap | None = None,
        name: str = "kafka",
    ) -> None:
        self.host = world.host(name)
        self.address = f"{name}:{PORT}"
        self._world = world
        self._brokers = Brokers([Endpoint(0, name, PORT)])
        self._topics = Topics(
            self._brokers, topics, cluster_id=_CLUSTER_ID, sasl=users is not None, broker_configs=_ANY_FUTURE
        )
        self._users = users
        self._config = config
        self._faults = faults
        self._disk = VirtualDisk(world.random)
        self._server: Server | None = None
        self._past: list[RebalanceAccount] = []
        if tap is not None:
            world.network.taps.append(_FrameTap(tap, f"{self.host.address}:{PORT}"))
        world.at(0, self.up)

    @property
    def rebalances(self) -> list[RebalanceAccount]:
        """Accounts of the last rebalances that have ended, oldest first."""
        now = [] if self._server is None else list(self._server.requests.rebalances.accounts)
        return self._past + now

    def up(self) -> None:
        """Start the server, unless it runs; it reads its log first."""
        if self._server is None:
            self.host.start(self._serve(), name=self.host.name)

    def down(self, seconds: float) -> None:
        """Kill the server, and start it again after so long. Connections are reset, new ones are refused."""
        if self._server is None:
            return
        self._past = self.rebalances
        for connection in list(self._server.listeners[0].peers):
            self._server.requests.forget(connection)  # withdraws what is parked at the topics
        self._server = None
        self.host.kill()
        self._disk.crash()
        self._world.at(self._world.now + seconds, self.up)

    async def _serve(self) -> None:
        machine = CoordinatorMachine(self._brokers, self._topics, subscribed_topics, self._config)
        self._server = server = Server(
            machine, Store(self._disk), self._topics, disk=self._disk, users=self._users, faults=self._faults
        )
        await server.listen(self.host.name, PORT)
        await server.load()
        self._world.record(self.host.name, "serves")
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await server.close()


class _FrameTap:
    """Cuts the bytes of the connections to one server into frames."""

    def __init__(self, tap: Tap, server: str) -> None:
        self._tap = tap
        self._server = server
        self._framers: dict[tuple[str, bool], Framer] = {}

    def __call__(self, time_ms: int, connection: str, from_client: bool, data: bytes) -> None:
        if connection.partition("#")[0].partition("-")[2] != self._server:
            return
        show = partial(self._tap, time_ms, connection)
        if (connection, True) not in self._framers:
            show("opened", b"")
            self._framers[connection, True] = Framer()
            self._framers[connection, False] = Framer()
        if not data:
            show("closed", b"")
            return
        for frame in self._framers[connection, from_client].feed(data):
            show("request" if from_client else "response", frame)
