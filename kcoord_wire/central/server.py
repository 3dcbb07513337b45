"""A broker on sockets: one event loop, and the pure machines that it runs.

The server cuts and decodes what peers send (`peer`, and a `Dialect` of `dialects`), passes it to the
coordinator's machine, and executes the effects: messages, closed connections, requests to ZooKeeper, log lines.
Fetches do not pass through the machine.

Laws:

* A machine sees the events of one connection in their order, and after its own `Close` none.
* An unsolicited answer, bytes that do not decode, a peer that exceeds its `Limits`: that connection is closed, with the
  reason in the log, and no other is affected. A peer cannot fill the log (`LogLimiter`).
* An error of a machine closes the connection of the peer whose message caused it. One that no peer caused ends the
  server: a coordinator with a fault must not keep its node in ZooKeeper.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from kcoord_wire.central.dialects import DraftDialect
from kcoord_wire.central.peer import CentralPeer, Dialect, Limits
from kcoord_wire.errors import EncodeError
from kcoord_wire.kernel.driver import Driver, log_event
from kcoord_wire.kernel.machines import Close, Disconnected, LogEvent, Machine, Received, Send
from kcoord_wire.kernel.net import LogLimiter
from kcoord_wire.kernel.peers import BACKLOG, Peers, most_connections
from kcoord_wire.zookeeper.requests import Ask, Registry, RegistryEvent, Replied

Answerers = Mapping[type, Callable[[Any], Any]]
"""What answers the requests that are not for the coordinator's machine, at once, by the class of the request."""

LOG: Final = logging.getLogger("kcoord_wire.central")
LOG.addHandler(logging.NullHandler())  # silent unless logging is configured


class Server(Peers[CentralPeer]):
    """The connections of one broker, in the event loop that runs where this is made.

    :param answerers: see `Answerers`
    :param dialect: the frames that peers exchange with this broker; the draft's if not given
    :ivar failed: done when a machine has raised an error that no peer caused, with that error
    :ivar connections: those that the machine has not closed, by number
    """

    limits: Limits
    _machine: Machine
    _registry: Registry

    def __init__(self, answerers: Answerers, *, dialect: Dialect | None = None, limits: Limits | None = None) -> None:
        super().__init__(limits or Limits(), LOG)
        self._dialect = dialect or DraftDialect()
        self.connections: dict[int, CentralPeer] = {}
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._driver = Driver(execute=self._execute, failed=self._fail)
        self._answerers = answerers
        self._per_host: Counter[str] = Counter()
        self._last_number = self._last_token = 0
        self._asked: dict[int, tuple[Machine, int]] = {}
        self._loop = asyncio.get_running_loop()
        self._listener: asyncio.Server | None = None
        self._warnings = LogLimiter()

    # ---- life

    async def listen(self, host: str, port: int) -> int:
        """Open the socket, and return the port. Connections are accepted by `serve`.

        :raises OSError: the port is taken, or the host is not an address of this machine
        """
        self._listener = await self._loop.create_server(self._accept, host, port, backlog=BACKLOG, start_serving=False)
        chosen: int = self._listener.sockets[0].getsockname()[1]
        return chosen

    async def serve(self, machine: Machine, *others: Machine, registry: Registry) -> None:
        """Accept connections.

        :param machine: of the coordinator; gets what peers send, and ZooKeeper's events
        :param others: machines that get ZooKeeper's events alone
        :param registry: executes the machines' asks, and calls `deliver`
        """
        assert self._listener is not None
        self._machine = machine
        self._driver.machines = (*others, machine)
        self._registry = registry
        await self._listener.start_serving()
        self.most = most_connections(self.limits.max_connections)
        self.sweep()

    async def close(self, grace_ms: float = 1_000) -> None:
        """Close the connections, in order and after `grace_ms` at once; the machines see no further event."""
        self._driver.stop()
        if self._listener is not None:
            self._listener.close()
        self.connections.clear()
        await super().close(grace_ms)

    def host_of(self, number: int) -> str:
        """Return the address of a connection's peer; empty if it has ended."""
        connection = self.connections.get(number)
        return "" if connection is None else connection.host

    # ---- events from outside

    def deliver(self, event: RegistryEvent) -> None:
        """Pass an event of ZooKeeper to the machine that it is for; news of the session and of watches to all."""
        if isinstance(event, Replied):
            asked = self._asked.pop(event.token, None)
            if asked is not None:
                self._driver.deliver(replace(event, token=asked[1]), to=asked[0])
        else:
            self._driver.deliver(event)

    @property
    def dropped(self) -> int:
        """Number of connections that the server has closed for a fault of the peer."""
        return self.counters.closed.total()

    def opened(self, connection: CentralPeer) -> None:
        """Count a connection whose peer has connected."""
        self.connections[connection.number] = connection
        self._per_host[connection.host] += 1
        super().opened(connection)
        if self._per_host[connection.host] > self.limits.max_connections_per_host:
            self.drop(connection, "too many", f"{self._per_host[connection.host]} connections of its host are open")

    def lost(self, connection: CentralPeer) -> None:
        """Forget a connection that has ended."""
        self._per_host[connection.host] -= 1
        if not self._per_host[connection.host]:
            del self._per_host[connection.host]
        super().lost(connection)
        if self.connections.pop(connection.number, None) is not None and self._driver.machines:
            self._driver.deliver(Disconnected(connection.number), to=self._machine)

    def receive(self, connection: CentralPeer, data: bytes, start: int) -> None:
        """Decode a frame, and pass it on. Errors as `PeerOwner.receive`."""
        message = self._dialect.read(connection, data[start:])
        if (answerer := self._answerers.get(type(message))) is not None:
            self._send(connection, answerer(message))
        else:
            self._driver.deliver(Received(connection.number, message), to=self._machine, cause=connection)

    def refuse(self, connection: CentralPeer, error: object) -> None:
        """Close a connection for a fault of its peer; the machine gets `Disconnected`."""
        self.drop(connection, "malformed", str(error))

    def report(self, host: str, reason: str, detail: str) -> None:
        """Count a connection that the server closes, and log why."""
        self.counters.closed[reason] += 1
        if self._lines.allows_line():
            facts = {"peer": host, "reason": detail or reason}
            log_event(LOG, LogEvent(logging.WARNING, "connection closed", facts))

    # ---- the machines

    def _fail(self, error: Exception, cause: CentralPeer | None) -> None:
        if cause is not None:
            self.blame(cause, error)
        elif not self.failed.done():
            self._driver.stop()
            self.failed.set_exception(error)

    def _execute(self, machine: Machine, effect: Any, cause: CentralPeer | None) -> None:
        if isinstance(effect, Send):
            connection = self.connections.get(effect.connection)
            if connection is not None:
                self._send(connection, effect.message)
        elif isinstance(effect, Ask):
            self._last_token += 1
            self._asked[self._last_token] = machine, effect.token
            self._registry.ask(Ask(self._last_token, effect.request))
        elif isinstance(effect, LogEvent):
            if cause is None or effect.level < logging.WARNING or self._warnings.allows_line():
                log_event(LOG, effect)
        elif isinstance(effect, Close):
            connection = self.connections.pop(effect.connection, None)
            if connection is not None:
                connection.close()

    def _send(self, connection: CentralPeer, message: Any) -> None:
        try:
            frame = self._dialect.frame(connection, message)
        except EncodeError as error:
            self.refuse(connection, f"what it has to be sent does not fit into a message: {error}")
            return
        connection.write(frame)

    def _accept(self) -> CentralPeer:
        self._last_number += 1
        return CentralPeer(self, self.limits.max_unregistered_frame_size, self._last_number)
