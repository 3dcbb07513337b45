"""The coordinator on sockets: one event loop, and the objects that share the work.

    Server        brokers that stop, pause and come back                  server.py
    Listener      sockets, TLS handshakes, what connections may cost      listener.py
    Connection    a client: its requests in hand, answers to bytes        connection.py
    Requests      authentication, faults, permissions, routing            requests.py
    Host          machines, logs, elections                               host.py
    Scheduler     who goes on, and when; threads for the disk             scheduler.py

Laws:

* Each knows those below it by what it calls of them, and no object is used before it is whole.
* A server serves once: `listen`, `load`, `close`.
* A broker that stops hands over what it leads: leaders are elected among the others, parked requests of its groups are
  answered NOT_COORDINATOR, and the others load its groups and transactional ids from the log. Then its connections are
  closed, and later ones refused. Its port stays its own.
* A broker that is paused keeps its sockets: clients connect, and nothing is read or answered until it is resumed. What
  it led stays with it, or moves after a time, as when the controller fences a broker that sends no heartbeats
  (``broker.session.timeout.ms``).
* A broker that runs again leads what it led, as after an election of preferred leaders.
"""

from __future__ import annotations

import asyncio
import enum
import ssl
from collections.abc import Iterable
from functools import partial
from typing import Final

from kcoord_wire.coordinator.connection import PeerLimits
from kcoord_wire.coordinator.core.brokers import Leaders
from kcoord_wire.coordinator.core.machine import GroupMachine
from kcoord_wire.coordinator.fault_injection import Faults
from kcoord_wire.coordinator.listener import Listener
from kcoord_wire.coordinator.log.batches import TRANSACTIONS
from kcoord_wire.coordinator.log.store import Store
from kcoord_wire.coordinator.metrics import Metrics
from kcoord_wire.coordinator.requests import Requests
from kcoord_wire.coordinator.scheduler import Scheduler
from kcoord_wire.coordinator.security.authentication import Users
from kcoord_wire.coordinator.security.permissions import Permissions
from kcoord_wire.coordinator.topics.topics import Topics
from kcoord_wire.kernel.disk import Disk, MemoryDisk

STOP_GRACE_MS: Final = 200  # for the last answers of a broker that stops to leave


class BrokerState(enum.StrEnum):
    """What a broker does."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


class Server:
    """A coordinator's machines on sockets, in the event loop that runs where this is made.

    :param disk: the store's; one in memory is written at once, without another thread
    :param transactions: the log of transactional ids, on a disk of the same kind; in memory if None
    :param shares: likewise of share groups
    :ivar metrics: what is counted
    :ivar requests: what becomes of the requests of all connections
    :ivar host: the machines
    :ivar brokers: who leads what
    :ivar scheduler: who goes on, and when
    :ivar listeners: of each broker; of one that is stopped, the closed one
    :ivar states: what each broker does

    The methods about a broker take its node id.
    """

    def __init__(
        self,
        machine: GroupMachine,
        store: Store,
        topics: Topics,
        *,
        disk: Disk,
        transactions: Store | None = None,
        shares: Store | None = None,
        users: Users | None = None,
        permissions: Permissions | None = None,
        faults: Faults | None = None,
        limits: PeerLimits | None = None,
    ) -> None:
        limits = limits or PeerLimits()
        self.metrics = Metrics()
        self.metrics.read_log_bytes = lambda: store.size
        self.scheduler = Scheduler(in_memory=isinstance(disk, MemoryDisk))
        self.requests = Requests(
            machine,
            store,
            topics,
            self.metrics,
            self.scheduler,
            transactions=transactions or Store(MemoryDisk(), TRANSACTIONS),
            shares=shares,
            limits=limits,
            users=users,
            permissions=permissions,
            faults=faults,
        )
        self.scheduler.host = self.host = self.requests.host
        self.brokers = machine.brokers
        count = len(self.brokers.endpoints)
        self._make_listener = partial(
            Listener, limits, self.metrics, self.requests.access.users, self.requests, self.scheduler, share=count
        )
        self.listeners = [self._make_listener(broker) for broker in range(count)]
        self.states = [BrokerState.RUNNING for _ in self.listeners]
        self._host = ""
        self._ports: list[int] = []
        self._tls: ssl.SSLContext | None = None
        self._failovers: dict[int, asyncio.TimerHandle] = {}

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> list[int]:
        """Open the sockets, and return the port of each broker: group requests are answered
        COORDINATOR_LOAD_IN_PROGRESS until `load`.

        :param port: the first broker's, the others have those that follow; with 0 all have free ones
        :raises OSError: a port is taken, or the host is not an address of this machine
        """
        self._host, self._tls = host, tls
        self.requests.access.load()  # the topics' disk is open by now
        for at, listener in enumerate(self.listeners):
            self._ports.append(await listener.listen(host, port and port + at, tls))
        return self._ports

    async def load(self) -> None:
        """Read the log and begin to serve groups. Errors as `Store.recover`."""
        *others, shares = self.host.logs
        for log in (shares, *others):  # groups ask for states of share partitions as soon as they are served
            loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            log.load(partial(loaded.set_result, None), loaded.set_exception)
            await asyncio.shield(loaded)  # what is cancelled must not be cancelled under the thread that reads
        self.brokers.has_transactions |= bool(self.host.transactions.machine.transactions)
        self.brokers.has_shares |= bool(self.host.shares.machine.partitions)
        self.scheduler.settle()

    async def close(self, grace_ms: int = 1_000) -> None:
        """Write what is answered, answer what is parked, and close everything."""
        for timer in self._failovers.values():
            timer.cancel()
        for listener in self.listeners:
            await listener.stop_accepting()
        for log in reversed(self.host.logs):  # the end of a transaction writes to the groups' log
            log.stop()
            self.scheduler.settle()
            await self.scheduler.written()
            log.runtime.sync_failed(self.scheduler.now())  # nothing is being written: parked requests alone are refused
            self.scheduler.settle()
        await asyncio.gather(*(listener.close(grace_ms) for listener in self.listeners))
        self.scheduler.close()
        for log in self.host.logs:
            log.runtime.store.close()

    # ---- what befalls brokers

    async def move_coordinator(self, group_id: str, to: int) -> None:
        """Let a broker coordinate a group, with all groups of the same partition of ``__consumer_offsets``, from now
        on; return when it has loaded them.

        :raises ValueError: there is no such broker, or it does not run
        """
        broker = self.brokers.with_node(to)
        if not self.brokers.runs(broker):
            raise ValueError(f"broker {to} does not run")
        self.brokers.groups.move(self.brokers.groups.partition_of(group_id), broker)
        await self._elect([self.brokers.groups])

    async def stop_broker(self, node: int) -> None:
        """Stop a broker: what it leads moves, then its connections are closed. Nothing happens if it is stopped.

        :raises ValueError: there is no such broker
        """
        broker = self.brokers.with_node(node)
        if self.states[broker] is BrokerState.STOPPED:
            return
        self.states[broker] = BrokerState.STOPPED
        await self._set_running(broker, False)
        listener = self.listeners[broker]
        await listener.stop_accepting()
        await listener.close(STOP_GRACE_MS)

    async def restart_broker(self, node: int) -> None:
        """Start a stopped broker again at its port; one that runs or is paused is stopped before.

        :raises ValueError: there is no such broker
        :raises OSError: another program has taken the port; the broker stays stopped
        """
        await self.stop_broker(node)
        broker = self.brokers.with_node(node)
        self.listeners[broker] = listener = self._make_listener(broker)
        await listener.listen(self._host, self._ports[broker], self._tls)
        self.states[broker] = BrokerState.RUNNING
        await self._set_running(broker, True)

    def pause_broker(self, node: int, failover_ms: int | None = None) -> None:
        """Pause a running broker: its sockets stay, nothing is read or answered. Nothing happens to another one.

        :param failover_ms: what it leads moves to others after so long; None leaves it there
        :raises ValueError: there is no such broker
        """
        broker = self.brokers.with_node(node)
        if self.states[broker] is not BrokerState.RUNNING:
            return
        self.states[broker] = BrokerState.PAUSED
        self.listeners[broker].pause()
        if failover_ms is not None:
            loop = asyncio.get_running_loop()
            self._failovers[broker] = loop.call_later(failover_ms / 1000, self._fail_over, broker)

    async def resume_broker(self, node: int) -> None:
        """Let a paused broker go on. Nothing happens to one that is not paused.

        :raises ValueError: there is no such broker
        """
        broker = self.brokers.with_node(node)
        if self.states[broker] is not BrokerState.PAUSED:
            return
        self.states[broker] = BrokerState.RUNNING
        self.listeners[broker].resume()
        await self._set_running(broker, True)

    # ---- elections

    def _fail_over(self, broker: int) -> None:
        self.brokers.set_running(broker, False)
        self.host.elect(self._all())
        self.scheduler.settle()

    async def _set_running(self, broker: int, runs: bool) -> None:
        timer = self._failovers.pop(broker, None)
        if timer is not None:
            timer.cancel()
        self.brokers.set_running(broker, runs)
        await self._elect(self._all())

    def _all(self) -> list[Leaders]:
        catalog = self.host.topics.catalog
        own = (self.brokers.groups, self.brokers.transactions, self.brokers.shares)
        return [*own, *(topic.leaders for topic in catalog)]

    async def _elect(self, changed: Iterable[Leaders]) -> None:
        """Elect the leaders of topics, and return when the groups and transactions that have moved are loaded."""
        loaded = asyncio.Event()
        self.host.elect(changed, loaded.set)
        self.scheduler.settle()
        await loaded.wait()
