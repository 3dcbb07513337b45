"""The coordinator's sockets: connections in, with TLS or without, and out again when they cost too much.

Laws:

* Connections count from the moment they are accepted, TLS handshakes included; more than `PeerLimits.max_connections`,
  or than there are open files for, are closed.
* An authentication that makes no progress ends, as all that `kernel.peers` bounds.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import sys
from functools import partial
from typing import Final

from kcoord_wire.coordinator.api_codec import NotServedError
from kcoord_wire.coordinator.connection import Connection, PeerLimits
from kcoord_wire.coordinator.metrics import Metrics
from kcoord_wire.coordinator.requests import Requests
from kcoord_wire.coordinator.scheduler import Scheduler
from kcoord_wire.coordinator.security.authentication import Session, Users
from kcoord_wire.coordinator.traffic import TappedConnection
from kcoord_wire.kernel.peers import BACKLOG, Peers, most_connections

ACCEPT_AT_ONCE: Final = 64  # connections with TLS that are accepted before others are served
ACCEPT_AGAIN_SECONDS: Final = 1.0  # after the system has refused to accept one
MOST_NOT_SERVED: Final = 1_000  # apis with versions and clients that are logged; the names come from clients

_log = logging.getLogger("kcoord_wire.coordinator")


class Listener(Peers[Connection]):
    """All connections of one broker, in one event loop.

    :param users: who may connect, by SASL; None lets every client connect
    :param requests: handles what they send
    :param scheduler: says when they go on
    :param broker: whose connections they are
    :param share: listeners among which the open files are divided
    """

    limits: PeerLimits

    def __init__(
        self,
        limits: PeerLimits,
        metrics: Metrics,
        users: Users | None,
        requests: Requests,
        scheduler: Scheduler,
        broker: int = 0,
        *,
        share: int = 1,
    ) -> None:
        super().__init__(limits, _log, metrics.peers)
        self._requests = requests
        self._of_connection = (self, requests.repeat, metrics, scheduler, broker)
        self.receive = requests.receive
        self._forget = requests.forget
        self._users = users
        self._loop = asyncio.get_running_loop()
        self._plain: asyncio.Server | None = None
        self._tls_sockets: list[socket.socket] = []
        self._handshakes: dict[Connection, asyncio.Task[None]] = {}
        self._share = share
        self._tls: ssl.SSLContext | None = None
        self._is_paused = False
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
        self.most = most_connections(self.limits.max_connections, self._share)
        self._tls = tls
        if tls is not None:
            for bound in plain.sockets:
                listening = socket.socket(fileno=os.dup(bound.fileno()))
                listening.setblocking(False)
                listening.listen(BACKLOG)
                self._tls_sockets.append(listening)
                self._accept_more(listening, tls)
        self.sweep(self.limits.unauthenticated_ms)
        return chosen

    def pause(self) -> None:
        """Read nothing more, and let answers wait; the sockets stay open."""
        self._is_paused = True
        for listening in self._tls_sockets:
            self._loop.remove_reader(listening)
        for connection in self.peers:
            connection.pause()

    def resume(self) -> None:
        """Go on after `pause`."""
        self._is_paused = False
        if self._tls is not None:
            for listening in self._tls_sockets:
                self._accept_more(listening, self._tls)
        for connection in list(self.peers):
            connection.resume()

    async def stop_accepting(self) -> None:
        """Close the listening sockets, and end the TLS handshakes."""
        self.is_closed = True
        if self._plain is not None:
            self._plain.close()
        for listening in self._tls_sockets:
            self._loop.remove_reader(listening)
            listening.close()
        handshakes = list(self._handshakes.values())
        for task in handshakes:
            task.cancel()
        await asyncio.gather(*handshakes, return_exceptions=True)

    def new_connection(self) -> Connection:
        """Return a connection that is to be connected."""
        traffic = self._requests.traffic
        if traffic is None:
            return Connection(*self._of_connection)
        return TappedConnection(traffic, *self._of_connection)

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
            if len(self.peers) + len(self._handshakes) >= self.most:
                self.report(address[0], "too many", f"{len(self._handshakes)} are at the TLS handshake")
                client.close()
                continue
            client.setblocking(False)
            connection = self.new_connection()
            handshake = self._loop.create_task(self._shake_hands(connection, client, address[0], tls))
            self._handshakes[connection] = handshake
            handshake.add_done_callback(partial(self._handshake_ended, connection, client))

    def _accept_more(self, listening: socket.socket, tls: ssl.SSLContext) -> None:
        if not (self.is_closed or self._is_paused):
            self._loop.add_reader(listening, self._accept, listening, tls)

    async def _shake_hands(self, connection: Connection, client: socket.socket, host: str, tls: ssl.SSLContext) -> None:
        try:
            timeout = self.limits.unauthenticated_ms / 1000
            await self._loop.connect_accepted_socket(lambda: connection, client, ssl=tls, ssl_handshake_timeout=timeout)
        except OSError as error:  # errors of TLS and timeouts are OSErrors too
            self._handshakes.pop(connection, None)  # before it is reported: a reader of the log may count them
            client.close()
            self.report(host, "TLS", str(error))

    def _handshake_ended(self, connection: Connection, client: socket.socket, task: asyncio.Task[None]) -> None:
        self._handshakes.pop(connection, None)
        if task.cancelled():  # maybe before it began
            client.close()

    # ---- what a connection calls

    def opened(self, connection: Connection) -> None:
        """Count a connection whose client has connected."""
        self._handshakes.pop(connection, None)
        super().opened(connection)
        connection.client_host = sys.intern(f"/{connection.host}")
        if self._users is not None:
            connection.session = Session(self._users)
            connection.set_frame_limit(self.limits.max_unauthenticated_frame_size)
        if self._is_paused:
            connection.pause()

    def lost(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        self._forget(connection)
        super().lost(connection)

    def refuse(self, connection: Connection, error: object) -> None:
        """Close a connection whose client has sent something that is not a request, or not yet, or not one that is
        served; earlier requests are still answered."""
        if not isinstance(error, NotServedError):
            super().refuse(connection, error)
            return
        self.counters.closed["not served"] += 1
        if error.what not in self._not_served and len(self._not_served) < MOST_NOT_SERVED:
            self._not_served.add(error.what)  # once, because clients try again and again
            text = "not served: %s; closed the connection from %s, as a broker does"
            _log.warning(text, error.what, connection.host)
        connection.close()
