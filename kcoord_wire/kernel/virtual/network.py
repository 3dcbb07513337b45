"""The network of a simulated system: connections from processes to servers, with latency, loss, resets and cuts.

Laws:

* Messages of one connection arrive in order, in each direction; between connections nothing keeps its order.
* A message is lost only while its process is cut off or the network is lossy. A connection whose messages were lost by
  a cut is reset when the next one is sent on it.
* A connection reaches one boot of its server: a restarted server resets it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.kernel.virtual.processes import P, Process, ProcessCluster

_FIRST_PORT: Final = 32_768  # of the ephemeral ports of Linux
_PORTS: Final = 28_000
_HOSTS: Final = 250  # addresses per value of the third octet: 10.0.1.2 to 10.0.1.251


class Server(Protocol):
    """What the network needs to know of a server."""

    @property
    def boot(self) -> int:
        """From 1; changes with every start and every crash."""

    @property
    def is_up(self) -> bool:
        """Whether the server takes connections."""


@dataclass(slots=True, eq=False)
class Connection:
    """A connection from a process to a server.

    :ivar process: the client
    :ivar server: the other end
    :ivar name: ``client_ip:port-server_ip:port#n``
    :ivar boot: which boot of the server it leads to; 0 before its first message has arrived there
    :ivar is_open: False once it was closed or reset
    :ivar is_broken: a cut has swallowed messages; the next one finds no connection
    :ivar up_at: when the last message to the server arrives, in ms since the Unix epoch
    :ivar down_at: when the last message to the process arrives, in ms since the Unix epoch
    """

    process: Process
    server: Server
    name: str
    boot: int = 0
    is_open: bool = True
    is_broken: bool = False
    up_at: int = 0
    down_at: int = 0


class Loss(NamedTuple):
    """How lossy the network is.

    :ivar until: for how long, in ms since the Unix epoch
    :ivar drop: probability that a message vanishes
    :ivar reset: probability that a message vanishes and its connection is reset
    """

    until: int = 0
    drop: float = 0.0
    reset: float = 0.0


ConnectionT = TypeVar("ConnectionT", bound=Connection)


class Network(ABC, Generic[ConnectionT]):
    """Carries messages between processes and servers. A protocol derives its own, which says what arrival means.

    :param latency_ms: least and most that a message takes
    :ivar loss: see `Loss`
    """

    def __init__(self, clock: VirtualClock, latency_ms: tuple[int, int]) -> None:
        self.loss = Loss()
        self._clock = clock
        self._latency = latency_ms
        self._hosts: dict[str, str] = {}
        self._connections = 0

    # ---- what a protocol says

    @abstractmethod
    def arrived(self, connection: ConnectionT, *message: Any) -> None:
        """A message has reached the server."""

    @abstractmethod
    def returned(self, connection: ConnectionT, *message: Any) -> None:
        """A message has reached the process."""

    @abstractmethod
    def disconnected(self, connection: ConnectionT) -> None:
        """The process has noticed that its connection was reset."""

    @abstractmethod
    def closing(self, connection: ConnectionT) -> None:
        """Called before an open connection is closed or reset."""

    # ---- for protocols whose processes have several connections at a time

    def is_held(self, connection: ConnectionT) -> bool:
        """Return whether the process still has its end of a connection."""
        return connection.process.connection is connection

    def release(self, connection: ConnectionT) -> None:
        """The process has its end of a connection no longer."""
        connection.process.connection = None

    # ---- addresses

    def host_of(self, name: str) -> str:
        """Return the address of a process: one for each name, in the order of the first calls."""
        if name not in self._hosts:
            network, last = divmod(len(self._hosts), _HOSTS)
            self._hosts[name] = f"10.0.{network + 1}.{last + 2}"
        return self._hosts[name]

    def name_connection(self, host: str, server: str) -> str:
        """Return the name of a new connection from a host to a server's ``ip:port``."""
        self._connections += 1
        port = _FIRST_PORT + self._connections % _PORTS
        return f"{host}:{port}-{server}#{self._connections}"

    # ---- messages

    def send_to_server(self, connection: ConnectionT, *message: Any) -> None:
        """Send a message of the process, unless the network loses it."""
        if not self._loses(connection):
            connection.up_at = max(connection.up_at, self._clock.time_ms + self._draw_latency(connection))
            self._clock.at(connection.up_at, self._reach_server, connection, *message)

    def _reach_server(self, connection: ConnectionT, *message: Any) -> None:
        if not connection.is_open:
            return
        server = connection.server
        if connection.boot == 0:
            connection.boot = server.boot
        if not server.is_up or connection.boot != server.boot:
            self.reset(connection)
        else:
            self.arrived(connection, *message)

    def send_to_process(self, connection: ConnectionT, *message: Any) -> bool:
        """Send a message of the server; return False if the network loses it."""
        if self._loses(connection):
            return False
        connection.down_at = max(connection.down_at, self._clock.time_ms + self._draw_latency(connection))
        self._clock.at(connection.down_at, self._reach_process, connection, *message)
        return True

    def _reach_process(self, connection: ConnectionT, *message: Any) -> None:
        if self.is_held(connection) and connection.process.is_alive:
            self.returned(connection, *message)

    def _draw_latency(self, connection: ConnectionT) -> int:
        return connection.process.random.randint(*self._latency)

    def _loses(self, connection: ConnectionT) -> bool:
        """Decide whether a message sent now gets lost; the connection is reset or marked as broken if it does."""
        process = connection.process
        if process.cut_until > self._clock.time_ms:
            connection.is_broken = True
            return True
        if connection.is_broken:
            self.reset(connection)
            return True
        until, drop, reset = self.loss
        if until <= self._clock.time_ms:
            return False
        drawn = process.random.random()
        if drop <= drawn < drop + reset:
            self.reset(connection)
        return drawn < drop + reset

    # ---- the ends of connections

    def close(self, connection: ConnectionT) -> None:
        """Close a connection from the process's side: the process does not get `disconnected` for it."""
        if connection.is_open:
            self.closing(connection)
            connection.is_open = False

    def reset(self, connection: ConnectionT) -> None:
        """End a connection; the process notices after the latency of a message."""
        self.close(connection)
        notices_at = max(connection.down_at, self._clock.time_ms + self._draw_latency(connection))
        self._clock.at(notices_at, self._notice_reset, connection)

    def _notice_reset(self, connection: ConnectionT) -> None:
        if self.is_held(connection):
            self.release(connection)
            self.disconnected(connection)

    def server_crashed(self, connections: Iterable[ConnectionT]) -> None:
        """Reset the connections that led to a server; those of processes that are cut off turn out broken later."""
        for connection in connections:
            if connection.is_open and connection.process.cut_until <= self._clock.time_ms:
                self.reset(connection)
            else:
                connection.is_broken = True


NetworkT = TypeVar("NetworkT", bound=Network[Any])


class NetworkCluster(ProcessCluster[P], Generic[P, NetworkT]):
    """A simulated system whose processes reach their servers by one network, which is `_wire`."""

    _wire: NetworkT

    def _kill(self, process: P) -> None:
        super()._kill(process)
        self._hang_up(process)

    def _hang_up(self, process: P) -> None:
        if process.connection is not None:
            self._wire.close(process.connection)
            process.connection = None

    def partition(self, name: str, ms: int) -> None:
        """Cut a process off from its servers: the network carries nothing between them."""
        process = self._working(name)
        if process is not None:
            process.cut_off(ms)

    def lose(self, ms: int, drop: float = 0.0, reset: float = 0.0) -> None:
        """Make the network lossy for so long.

        :param drop: probability that a message vanishes
        :param reset: probability that a message vanishes and its connection is reset
        """
        self._clock.record("cluster", "loses", (ms, drop, reset))
        self._wire.loss = Loss(self._clock.time_ms + ms, drop, reset)
