"""Requests and responses between applications and brokers, as bytes on the simulated network.

Laws:

* A process has one connection to each broker; messages on it arrive in order.
* While the brokers are slow (`Slow`), a request that has arrived is handled late, or once more later, even if its
  connection has been closed since: what lay in a queue of the broker. That is for transaction version 2; the protocol
  of version 1 does not allow for it, which is why there is a version 2 (KIP-890).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kcoord_wire.codec.registry import decode_response, encode_request
from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.kernel.virtual.network import Connection, Network
from kcoord_wire.worlds.transactions.broker import Call, VirtualBrokers
from kcoord_wire.worlds.transactions.transformer import Ask

if TYPE_CHECKING:
    from kcoord_wire.worlds.transactions.cluster import ApplicationProcess


class Slow(NamedTuple):
    """How slow the brokers are.

    :ivar until: for how long, in ms since the Unix epoch
    :ivar most_ms: what a request waits at most
    :ivar late: probability that it waits
    :ivar twice: probability that it is handled once more
    """

    until: int = 0
    most_ms: int = 0
    late: float = 0.0
    twice: float = 0.0


class BrokerConnection(Connection):
    """A process's connection to one broker.

    :ivar broker: which
    :ivar tokens: of the requests that are not answered yet
    """

    __slots__ = ("broker", "tokens")

    process: ApplicationProcess
    server: VirtualBrokers

    def __init__(self, process: ApplicationProcess, server: VirtualBrokers, name: str, broker: int) -> None:
        super().__init__(process, server, name)
        self.broker = broker
        self.tokens: dict[int, Any] = {}


class TransactionWire(Network[BrokerConnection]):
    """Carries requests and responses.

    :param latency_ms: least and most that a message takes
    :ivar slow: see `Slow`
    """

    def __init__(self, clock: VirtualClock, brokers: VirtualBrokers, latency_ms: tuple[int, int]) -> None:
        super().__init__(clock, latency_ms)
        self.slow = Slow()
        self._brokers = brokers
        self._open: dict[BrokerConnection, None] = {}
        brokers.on_kill.append(self._killed)

    def send(self, process: ApplicationProcess, ask: Ask, broker: int) -> None:
        """Send a request, on a new connection if there is none to this broker."""
        connection = process.connections.get(broker)
        if connection is None:
            name = self.name_connection(process.host, f"10.0.0.{broker + 1}:9092")
            connection = process.connections[broker] = BrokerConnection(process, self._brokers, name, broker)
            self._open[connection] = None
        connection.tokens[ask.token] = None
        self._clock.record(process.name, "sends", ask.message)
        data = encode_request(ask.message, ask.version, correlation_id=ask.token, client_id=process.name)
        self.send_to_server(connection, data)

    def arrived(self, connection: BrokerConnection, *message: Any) -> None:
        """A request has reached its broker."""
        until, most_ms, late, twice = self.slow
        random = connection.process.random
        if until > self._clock.time_ms and connection.process.settings.version > 1:
            is_late, is_twice = random.random() < late, random.random() < twice
            if is_twice:
                self._clock.after(random.randint(1, most_ms), self._handle, connection, connection.boot, *message)
            if is_late:
                self._clock.after(random.randint(1, most_ms), self._handle, connection, connection.boot, *message)
                return
        self._handle(connection, connection.boot, *message)

    def _handle(self, connection: BrokerConnection, boot: int, data: bytes) -> None:
        if boot == self._brokers.boot:
            call = Call(self._brokers, connection.broker, connection.process.host, partial(self._answered, connection))
            self._brokers.receive(call, data)

    def _answered(self, connection: BrokerConnection, message: Any, version: int, data: bytes) -> None:
        if connection.is_open and message is not None:
            self.send_to_process(connection, data, type(message), version)

    def returned(self, connection: BrokerConnection, *message: Any) -> None:
        """A response has reached the process."""
        header, response = decode_response(*message)
        if header.correlation_id in connection.tokens:
            del connection.tokens[header.correlation_id]
            self._clock.record(connection.process.name, "gets", response)
            connection.process.answered(header.correlation_id, response)

    # ---- the ends of connections

    def is_held(self, connection: BrokerConnection) -> bool:
        """Whether the process has this end still."""
        return connection.process.connections.get(connection.broker) is connection

    def release(self, connection: BrokerConnection) -> None:
        """The process has its end no longer."""
        del connection.process.connections[connection.broker]

    def hang_up(self, connection: BrokerConnection) -> None:
        """The process closes a connection."""
        self.close(connection)
        self.release(connection)
        connection.process.lost(connection)

    def closing(self, connection: BrokerConnection) -> None:
        """See `Network`."""
        self._open.pop(connection, None)

    def disconnected(self, connection: BrokerConnection) -> None:
        """See `Network`."""
        connection.process.lost(connection)

    def _killed(self) -> None:
        self.server_crashed([connection for connection in self._open if connection.boot])
