"""The coordinator's sockets: connections in, with TLS or without, and out again when they cost too much.

Laws:

* Connections count from the moment they are accepted, TLS handshakes included; more than `PeerLimits.max_connections`,
  or than there are open files for, are closed.
* What all connections hold is bounded by `PeerLimits.max_bytes_held`: the one that holds most is closed.
* Time is bounded: a frame, an answer, an authentication that makes no progress, and an idle connection all end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final

from kcoord_wire.coordinator.api_codec import NotServedError
from kcoord_wire.coordinator.connection import Connection, ConnectionOwner, PeerLimits
from kcoord_wire.coordinator.metrics import Metrics
from kcoord_wire.coordinator.security.authentication import Session, Users
from kcoord_wire.kernel.listening import BACKLOG, Sweeper, all_closed, most_connections
from kcoord_wire.kernel.net import LogLimiter

ACCEPT_AT_ONCE: Final = 64  # connections with TLS that are accepted before others are served
ACCEPT_AGAIN_SECONDS: Final = 1.0  # after the system has refused to accept one
MOST_NOT_SERVED: Final = 1_000  # apis with versions and clients that are logged; the names come from clients

_log = logging.getLogger("kcoord_wire.coordinator")


class Listener:
    """All connections of one broker, in one event loop.

    :param users: who may connect, by SASL; None lets every client connect
    :param make: makes a connection that this listener owns
    :param broker: whose connections they are
    :param share: listeners among which the open files are divided
    :ivar limits: of each connection, and of all together
    :ivar broker: as given
    :ivar metrics: counts connections
    :ivar connections: those that are open, oldest first; the values are None
    """

    def __init__(
        self,
        limits: PeerLimits,
        metrics: Metrics,
        users: Users | None,
        make: Callable[[ConnectionOwner], Connection],
        broker: int = 0,
        *,
        share: int = 1,
    ) -> None:
        self.limits = limits
        self.broker = broker
        self.metrics = metrics
        self.connections: dict[Connection, None] = {}  # in order, so that a simulation repeats
        self.new_connection = partial(make, self)
        self._users = users
        self._most = limits.max_connections
        self._held = 0
        self._loop = asyncio.get_running_loop()
        self._plain: asyncio.Server | None = None
        self._tls_sockets: list[socket.socket] = []
        self._handshakes: dict[Connection, asyncio.Task[None]] = {}
        self._sweeper: Sweeper | None = None
        self._share = share
        self._tls: ssl.SSLContext | None = None
        self._is_paused = False
        self._is_closed = False
        self._warnings = LogLimiter()
        self._not_served: set[str] = set()  # what was logged

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Open the sockets, and return the port.

        :raises OSError: the port is taken, or the host is not an address of this machine
        """
        plain = await self._loop.create_server(
            self.new_connection, host, port, backlog=BACKLOG, start_serving=tls is None
        )
        chosen: int = plain.sockets[0].getsockname()[1]
        if port == 0 and len(plain.sockets) > 1:  # a name with several addresses, each bound to a port of its own
            plain.close()
            return await self.listen(host, chosen, tls)
        self._plain = plain
        self._most = most_connections(self.limits.max_connections, self._share)
        self._tls = tls
        if tls is not None:
            for bound in plain.sockets:
                listening = socket.socket(fileno=os.dup(bound.fileno()))
                listening.setblocking(False)
                listening.listen(BACKLOG)
                self._tls_sockets.append(listening)
                self._accept_more(listening, tls)
        limits = self.limits
        times = (limits.frame_ms, limits.unread_ms, limits.idle_ms, limits.unauthenticated_ms)
        self._sweeper = Sweeper(lambda: () if self._is_paused else self.connections, self._drop, times)
        return chosen

    def pause(self) -> None:
        """Read nothing more, and let answers wait; the sockets stay open."""
        self._is_paused = True
        for listening in self._tls_sockets:
            self._loop.remove_reader(listening)
        for connection in self.connections:
            connection.pause()

    def resume(self) -> None:
        """Go on after `pause`."""
        self._is_paused = False
        if self._tls is not None:
            for listening in self._tls_sockets:
                self._accept_more(listening, self._tls)
        for connection in list(self.connections):
            connection.resume()

    async def stop_accepting(self) -> None:
        """Close the listening sockets, and end the TLS handshakes."""
        self._is_closed = True
        if self._plain is not None:
            self._plain.close()
        for listening in self._tls_sockets:
            self._loop.remove_reader(listening)
            listening.close()
        handshakes = list(self._handshakes.values())
        for task in handshakes:
            task.cancel()
        await asyncio.gather(*handshakes, return_exceptions=True)

    async def close(self, grace_ms: int) -> None:
        """Close the connections: in order, and after `grace_ms` at once."""
        for connection in list(self.connections):
            connection.close()
        await all_closed(self.connections, grace_ms)
        for connection in list(self.connections):
            connection.abort()
        if self._sweeper is not None:
            self._sweeper.close()

    # ---- TLS

    def _accept(self, listening: socket.socket, tls: ssl.SSLContext) -> None:
        """Accept connections with TLS. The loop's own server reports them only after the handshake: until then each
        takes an open file and 50 KB that nothing counts."""
        for _ in range(ACCEPT_AT_ONCE):
            try:
                client, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.error("connections cannot be accepted: %s", error)
                self._loop.remove_reader(listening)
                self._loop.call_later(ACCEPT_AGAIN_SECONDS, self._accept_more, listening, tls)
                return
            if len(self.connections) + len(self._handshakes) >= self._most:
                self._report(address[0], "too many", f"{len(self._handshakes)} are at the TLS handshake")
                client.close()
                continue
            client.setblocking(False)
            connection = self.new_connection()
            handshake = self._loop.create_task(self._shake_hands(connection, client, address[0], tls))
            self._handshakes[connection] = handshake
            handshake.add_done_callback(partial(self._handshake_ended, connection, client))

    def _accept_more(self, listening: socket.socket, tls: ssl.SSLContext) -> None:
        if not (self._is_closed or self._is_paused):
            self._loop.add_reader(listening, self._accept, listening, tls)

    async def _shake_hands(self, connection: Connection, client: socket.socket, host: str, tls: ssl.SSLContext) -> None:
        try:
            timeout = self.limits.unauthenticated_ms / 1000
            await self._loop.connect_accepted_socket(lambda: connection, client, ssl=tls, ssl_handshake_timeout=timeout)
        except OSError as error:  # errors of TLS and timeouts are OSErrors too
            self._handshakes.pop(connection, None)  # before it is reported: a reader of the log may count them
            client.close()
            self._report(host, "TLS", str(error))

    def _handshake_ended(self, connection: Connection, client: socket.socket, task: asyncio.Task[None]) -> None:
        self._handshakes.pop(connection, None)
        if task.cancelled():  # maybe before it began
            client.close()

    # ---- what a connection calls

    def opened(self, connection: Connection) -> None:
        """Count a connection whose client has connected."""
        self._handshakes.pop(connection, None)
        self.connections[connection] = None
        self.metrics.connections += 1
        self.metrics.accepted += 1
        if len(self.connections) > self._most or self._is_closed:
            self._drop(connection, "too many", f"{len(self.connections)} connections are open")
        elif self._users is not None:
            connection.session = Session(self._users)
        if self._is_paused:
            connection.pause()

    def lost(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        self.connections.pop(connection, None)
        self.metrics.connections -= 1
        self.hold(connection, 0)

    def refuse(self, connection: Connection, error: object) -> None:
        """Close a connection whose client has sent something that is not a request, or not yet, or not one that is
        served; earlier requests are still answered."""
        if isinstance(error, NotServedError):
            self._report_not_served(connection.host[1:], error.what)
        else:
            self._report(connection.host[1:], "malformed", str(error))
        connection.close()

    def _report_not_served(self, host: str, what: str) -> None:
        """Log it once, because clients try again and again."""
        self.metrics.closed["not served"] += 1
        if what not in self._not_served and len(self._not_served) < MOST_NOT_SERVED:
            self._not_served.add(what)
            _log.warning("not served: %s; closed the connection from %s, as a broker does", what, host)

    def hold(self, connection: Connection, held: int) -> None:
        """Account for the bytes held for a client; if all together are too many, close the one that holds most."""
        self._held += held - connection.held
        connection.held = held
        if self._held > self.limits.max_bytes_held:
            greatest = max(self.connections, key=lambda each: each.held)
            self._drop(greatest, "too many bytes held", f"{greatest.held} of {self._held}")

    # ---- bounds

    def _drop(self, connection: Connection, reason: str, detail: str = "") -> None:
        if not connection.is_closing:
            self._report(connection.host[1:], reason, detail)
        connection.abort()

    def _report(self, host: str, reason: str, detail: str) -> None:
        self.metrics.closed[reason] += 1
        if self._warnings.allows_line():
            _log.warning("closed the connection from %s: %s%s", host, reason, detail and f": {detail}")
