"""The coordinator on sockets: one event loop, and the objects that share the work.

    Cluster       brokers that stop, pause and come back                  cluster.py
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

from kcoord_wire.coordinator.cluster import Cluster
from kcoord_wire.coordinator.connection import Connection, PeerLimits
from kcoord_wire.coordinator.core.machine import GroupMachine
from kcoord_wire.coordinator.durability import Durability
from kcoord_wire.coordinator.fault_injection import Faults
from kcoord_wire.coordinator.listener import Listener
from kcoord_wire.coordinator.log.segments import TRANSACTIONS
from kcoord_wire.coordinator.log.store import Store
from kcoord_wire.coordinator.metrics import Metrics
from kcoord_wire.coordinator.requests import Requests
from kcoord_wire.coordinator.scheduler import Scheduler, steady_clock
from kcoord_wire.coordinator.security.authentication import Users
from kcoord_wire.coordinator.security.permissions import Permissions
from kcoord_wire.coordinator.topics.topics import Topics
from kcoord_wire.kernel.disk import Disk, MemoryDisk

logging.getLogger("kcoord_wire.coordinator").addHandler(logging.NullHandler())  # silent unless logging is configured


class Server:
    """A coordinator's machines on sockets, in the event loop that runs where this is made.

    :param disk: the store's; one in memory is written at once, without another thread
    :param transactions: the log of transactional ids, on a disk of the same kind; in memory if None
    :ivar metrics: what is counted
    :ivar cluster: the brokers, with their connections
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
        transactions: Store | None = None,
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
            machine,
            store,
            topics,
            self.metrics,
            clock,
            transactions=transactions or Store(MemoryDisk(), TRANSACTIONS),
            limits=limits,
            permissions=permissions,
            faults=faults,
        )
        in_memory = isinstance(disk, MemoryDisk)
        of_groups, of_transactions = self.requests.views
        self._brokers = brokers = machine.brokers
        groups = Durability(
            self.requests.runtime,
            of_groups,
            brokers.partition_of_group,
            self.metrics,
            clock,
            in_memory=in_memory,
            loading=brokers.set_loading,
        )
        own = Durability(
            self.requests.transactions,
            of_transactions,
            brokers.partition_of_transactions,
            self.metrics,
            clock,
            in_memory=in_memory,
        )
        self._logs = [groups, own]
        self.clock = clock
        self.scheduler = Scheduler(self.requests, self._logs, clock)
        for view in self.requests.views:
            view.settle = self.scheduler.settle
        make = partial(Connection, requests=self.requests, scheduler=self.scheduler)
        listener = partial(Listener, limits, self.metrics, users, make, share=len(brokers.endpoints))
        logs = [(brokers.groups, groups), (brokers.transactions, own)]
        self.cluster = Cluster(brokers, topics.catalog, logs, self.scheduler, listener)

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> list[int]:
        """Open the sockets, and return the port of each broker: group requests are answered
        COORDINATOR_LOAD_IN_PROGRESS until `load`.

        :param port: the first broker's, the others have those that follow; with 0 all have free ones
        :raises OSError: a port is taken, or the host is not an address of this machine
        """
        return await self.cluster.listen(host, port, tls)

    async def load(self) -> None:
        """Read the log and begin to serve groups. Errors as `Store.recover`."""
        for log in self._logs:
            await log.load()
        self._brokers.has_transactions |= bool(self.requests.transactions.machine.transactions)
        self.scheduler.settle()

    async def close(self, grace_ms: int = 1_000) -> None:
        """Write what is answered, answer what is parked, and close everything."""
        await self.cluster.stop_accepting()
        for log in reversed(self._logs):  # the end of a transaction writes to the groups' log
            await log.finish(self.scheduler.settle)
        await self.cluster.close(grace_ms)
        self.scheduler.close()
        for log in self._logs:
            log.close()
