"""The coordinator on a socket: one event loop, and the objects that share the work.

    Listener      sockets, TLS handshakes, what connections may cost      listener.py
    Connection    bytes to requests, answers to bytes                     connection.py
    Requests      authentication, faults, permissions, routing            requests.py
    Durability    writes to the log, compaction, reading it again         durability.py
    Scheduler     who goes on, and when                                   scheduler.py

Laws:

* Each knows those below it by what it calls of them, none knows this module, and no object is used before it is whole.
* A server serves once: `listen`, `load`, `close`.
"""

from __future__ import annotations

import logging
import ssl
from functools import partial

from kcoord_wire.coordinator.connection import Connection, PeerLimits
from kcoord_wire.coordinator.core.machine import GroupMachine
from kcoord_wire.coordinator.durability import Durability
from kcoord_wire.coordinator.fault_injection import Faults
from kcoord_wire.coordinator.listener import Listener
from kcoord_wire.coordinator.log.store import Store
from kcoord_wire.coordinator.metrics import Metrics
from kcoord_wire.coordinator.permissions import Permissions
from kcoord_wire.coordinator.requests import Requests
from kcoord_wire.coordinator.scheduler import Scheduler, steady_clock
from kcoord_wire.coordinator.security import Users
from kcoord_wire.coordinator.topics.topics import Topics
from kcoord_wire.disk import Disk, MemoryDisk

__all__ = ["Server"]

logging.getLogger("kcoord_wire.coordinator").addHandler(logging.NullHandler())  # silent unless logging is configured


class Server:
    """A coordinator's machines on sockets, in the event loop that runs where this is made.

    :param disk: the store's; one in memory is written at once, without another thread
    :ivar metrics: what is counted
    :ivar listener: the connections
    :ivar requests: what becomes of their requests
    :ivar clock: what the machines take for the time
    :ivar scheduler: who goes on, and when
    """

    def __init__(
        self,
        machine: GroupMachine,
        store: Store,
        topics: Topics,
        *,
        disk: Disk,
        users: Users | None = None,
        permissions: Permissions | None = None,
        faults: Faults | None = None,
        limits: PeerLimits | None = None,
    ) -> None:
        limits = limits or PeerLimits()
        clock = steady_clock()
        self.metrics = Metrics()
        self.metrics.read_log_bytes = lambda: store.size
        self.requests = Requests(
            machine, store, topics, self.metrics, clock, limits=limits, permissions=permissions, faults=faults
        )
        in_memory = isinstance(disk, MemoryDisk)
        self._durability = Durability(self.requests.runtime, self.metrics, clock, in_memory=in_memory)
        self.clock = clock
        self.scheduler = Scheduler(self.requests, self._durability, clock)
        make = partial(Connection, requests=self.requests, scheduler=self.scheduler)
        self.listener = Listener(limits, self.metrics, users, make)

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Open the sockets, and return the port: group requests are answered COORDINATOR_LOAD_IN_PROGRESS until `load`.

        :raises OSError: the port is taken, or the host is not an address of this machine
        """
        return await self.listener.listen(host, port, tls)

    async def load(self) -> None:
        """Read the log and begin to serve groups. Errors as `Store.recover`."""
        await self._durability.load()
        self.scheduler.settle()

    async def close(self, grace_ms: int = 1_000) -> None:
        """Write what is answered, answer what is parked, and close everything."""
        await self.listener.stop_accepting()
        await self._durability.finish(self.scheduler.settle)
        await self.listener.close(grace_ms)
        self.scheduler.close()
        self._durability.close()
