"""The network of a simulated system: connections from processes to servers, with latency, loss, resets and cuts.

Laws:

* Messages of one connection arrive in order, in each direction; between connections nothing keeps its order.
* A message is lost only while its process is cut off or the network is lossy. A connection whose messages were lost by
  a cut is reset when the next one is sent on it.
* A connection reaches one boot of its server: a restarted server resets it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.kernel.virtual.processes import Process

_FIRST_PORT: Final = 32_768  # of the ephemeral ports of Linux
_PORTS: Final = 28_000
_HOSTS: Final = 250  # addresses per value of the third octet: 10.0.1.2 to 10.0.1.251


class Server(Protocol):
    """What the network needs to know of a server."""

    @property
    def boot(self) -> int:
        """From 1; changes with every start."""

    @property
    def is_up(self) -> bool:
        """Whether the server takes connections."""


@dataclass(slots=True)
class ProcessServer:
    """A server that one process at a time is, through all its boots.

    :ivar name: of the process
    :ivar host: its address
    :ivar number: of the broker
    :ivar boot: see `Server`
    :ivar process: of the present boot; None while it is down
    """

    name: str
    host: str
    number: int = 1
    boot: int = 0
    process: Process | None = field(default=None, repr=False)

    @property
    def is_up(self) -> bool:
        """See `Server`."""
        return self.process is not None


@dataclass(slots=True, eq=False)
class VirtualConnection:
    """A connection from a process to a server.

    :ivar process: the client
    :ivar server: the other end
    :ivar name: ``client_ip:port-server_ip:port#n``
    :ivar number: n, different for each connection
    :ivar boot: which boot of the server it leads to; 0 before its first message has arrived there
    :ivar is_open: False once it was closed or reset
    :ivar is_held: whether the process still has its end
    :ivar is_broken: a cut has swallowed messages; the next one finds no connection
    :ivar up_at: when the last message to the server arrives, in ms since the Unix epoch
    :ivar down_at: when the last message to the process arrives, in ms since the Unix epoch
    """

    process: Process
    server: Any
    name: str
    number: int
    boot: int = 0
    is_open: bool = True
    is_held: bool = True
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


ConnectionT = TypeVar("ConnectionT", bound=VirtualConnection)


class Network(ABC, Generic[ConnectionT]):
    """Carries messages between processes and servers. A protocol derives its own, which says what arrival means.

    :param latency_ms: least and most that a message takes
    :param kind: of the connections
    :ivar loss: see `Loss`
    :ivar open: the connections that are open, oldest first; the values are None
    """

    def __init__(self, clock: VirtualClock, latency_ms: tuple[int, int], kind: type[ConnectionT] | None = None) -> None:
        self.loss = Loss()
        self.open: dict[ConnectionT, None] = {}
        self._clock = clock
        self._latency = latency_ms
        self._kind: Any = kind or VirtualConnection
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

    def closing(self, connection: ConnectionT) -> None:
        """Called before an open connection is closed or reset."""

    def heal(self) -> None:
        """End all faults of the network."""
        self.loss = Loss()

    # ---- addresses and connections

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

    def connect(self, process: Process, server: Server, address: str) -> ConnectionT:
        """Return a new connection of a process; nothing is sent yet.

        :param address: of the server, ``ip:port``
        """
        name = self.name_connection(process.host, address)
        connection: ConnectionT = self._kind(process, server, name, self._connections)
        self.open[connection] = None
        return connection

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
        if connection.is_held and connection.process.is_alive:
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
        """End a connection; the process does not get `disconnected` for it."""
        if connection.is_open:
            self.closing(connection)
            connection.is_open = False
            self.open.pop(connection, None)

    def hang_up(self, connection: ConnectionT) -> None:
        """The process closes its end of a connection, or was killed."""
        self._release(connection)
        self.close(connection)

    def hang_up_all(self, process: Process) -> None:
        """The process closes its ends of all connections, or was killed."""
        for connection in [each for each in self.open if each.process is process and each.is_held]:
            self.hang_up(connection)
        if process.connection is not None:  # it was reset: the process is not to notice that any more
            process.connection.is_held = False
            process.connection = None

    def _release(self, connection: ConnectionT) -> None:
        connection.is_held = False
        if connection.process.connection is connection:
            connection.process.connection = None

    def reset(self, connection: ConnectionT) -> None:
        """End a connection; the process notices after the latency of a message."""
        self.close(connection)
        notices_at = max(connection.down_at, self._clock.time_ms + self._draw_latency(connection))
        self._clock.at(notices_at, self._notice_reset, connection)

    def _notice_reset(self, connection: ConnectionT) -> None:
        if connection.is_held:
            self._release(connection)
            self.disconnected(connection)

    def end(self, connection: ConnectionT) -> None:
        """The server closes a connection, or has crashed."""
        self.reset(connection)

    def crashed(self, server: Server) -> None:
        """End the connections that led to a server; those of processes that are cut off turn out broken later."""
        for connection in [each for each in self.open if each.server is server and each.boot]:
            if connection.process.cut_until <= self._clock.time_ms:
                self.end(connection)
            else:
                connection.is_broken = True
