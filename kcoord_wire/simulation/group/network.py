"""The network of a virtual cluster: connections between processes and the coordinator, and what becomes of frames.

Faults meet requests and responses as on the server: both drive a `FaultedExchange`.

Laws:

* Connections are Kafka's: messages of one connection stay in order, and the coordinator looks at the next request of a
  connection when the one before is answered. Between connections nothing keeps its order.
* A `Tap` sees what a capture at the broker would, and changes nothing: the trace is the same with it and without.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from kcoord_wire.codec.headers import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from kcoord_wire.consumer.events import Arrived, Disconnected, MemberEvent, MemberState, Send
from kcoord_wire.coordinator.fault_injection import CLEAN, Faults, Injection
from kcoord_wire.coordinator.faulted_exchange import FaultedExchange
from kcoord_wire.messages import (
    LeaveGroupRequest,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kcoord_wire.simulation.clock import Timeline
from kcoord_wire.simulation.group.coordinator import VirtualCoordinator

if TYPE_CHECKING:
    from kcoord_wire.simulation.group.processes import Process

__all__ = ["Caller", "Connection", "Exchange", "Probe", "Tap", "VirtualTopics", "Wire"]

_DISCONNECTED: Final = Disconnected()
_BROKER: Final = "10.0.0.1:9092"
_FIRST_PORT: Final = 32_768  # of those that a system gives out
_HOSTS: Final = 250  # addresses a network of the last octet: 10.0.1.2 to 10.0.1.251


class Tap(Protocol):
    """Is told of every frame between clients and coordinator, as a capture on the broker's machine has it."""

    def __call__(self, time_ms: int, connection: str, direction: str, frame: bytes, /) -> None:
        """A request when it arrives, a response when it leaves; what the network loses on the way to the coordinator
        is never seen, what it loses on the way back is.

        What members know of the topics comes to them by the way; the tap is told the Metadata exchange that it stands
        for, on a connection of its own, as clients have one for that.

        :param time_ms: ms since the epoch
        :param connection: ``client_ip:port-broker_ip:port#n``
        :param direction: ``request`` or ``response``; ``opened`` and ``closed`` have no frame
        :param frame: header and message, without the four bytes of size
        """


class VirtualTopics:
    """The topics of the cluster, as the machine asks for them.

    :ivar counts: name to number of partitions
    """

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.counts = dict(counts)

    def partitions(self, name: str) -> int | None:
        """As many, or None where there is no such topic."""
        return self.counts.get(name)

    def id_of(self, name: str) -> uuid.UUID | None:
        """The id of a topic."""
        return uuid.uuid5(uuid.NAMESPACE_OID, name) if name in self.counts else None

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        """The topic with an id."""
        return next((name for name in self.counts if self.id_of(name) == topic_id), None)


class Connection:
    """A connection from a member to the coordinator.

    :ivar life: which life of the coordinator it leads to; 0 before its first bytes arrive there
    :ivar is_told: whether the tap knows of it
    :ivar is_broken: bytes were lost while the network was cut; the next ones find no connection
    :ivar queue: requests that have arrived and were not looked at
    :ivar exchange: the request that the coordinator works at
    """

    __slots__ = (
        "down_at",
        "exchange",
        "is_broken",
        "is_open",
        "is_told",
        "life",
        "name",
        "process",
        "queue",
        "up_at",
    )

    def __init__(self, process: Process, name: str) -> None:
        self.process = process
        self.name = name
        self.life = 0
        self.is_told = False
        self.is_open = True
        self.is_broken = False
        self.queue: list[tuple[int, bytes]] = []
        self.exchange: Exchange | None = None
        self.up_at = 0
        self.down_at = 0


class Exchange(FaultedExchange):
    """A request of a member that has arrived, and the response to it.

    :ivar wire: the network
    :ivar connection: the one it has arrived on
    :ivar request_id: its correlation id
    """

    __slots__ = ("connection", "request_id", "wire")

    def __init__(self, wire: Wire, connection: Connection, request_id: int, data: bytes) -> None:
        header, message = decode_request(data)
        super().__init__(header.request_api_key, message, header.request_api_version, header.client_id or "")
        self.wire = wire
        self.connection = connection
        self.request_id = request_id

    def decide(self, on: str) -> Injection:
        return self.wire.injection(on, self)

    def later(self, delay_ms: int, step: Callable[[], None]) -> None:
        self.wire.later(delay_ms, self, step)

    def submit(self, copies: int) -> None:
        for copy in range(copies):
            caller = None if copy else self
            host = self.connection.process.host
            self.wire.coordinator.submit(caller, self.message, self.version, self.client_id, host)

    def answer(self, response: Any, copies: int) -> None:
        self.wire.answer(self, response, copies)

    def disconnect(self) -> None:
        self.wire.reset(self.connection)


class Probe(NamedTuple):
    """A request past all faults.

    :ivar number: of its answer
    :ivar version: of the request
    :ivar connection: the name of its connection
    """

    number: int
    version: int
    connection: str


Caller = Exchange | Probe | None
"""Whose request a token is; None for the second copy of a request that a fault has duplicated."""


class Wire:
    """See the head of the module.

    :param latency_ms: least and most a message takes
    :param topics: what members are told of them is told to the tap as a Metadata exchange
    :param processes: by name; connections to the coordinator are theirs
    :param deliver: gives a process an event
    :ivar coordinator: at the other end; set before anything is sent
    :ivar faults: that meet requests and responses on their way
    :ivar lossy_until: ms since the epoch; until then messages vanish, or take their connection with them, with the
        probabilities in `loss`
    :ivar answers: to probes, by their number; an error where there is none
    """

    coordinator: VirtualCoordinator[Caller]

    def __init__(
        self,
        time: Timeline,
        topics: VirtualTopics,
        processes: Mapping[str, Process],
        *,
        latency_ms: tuple[int, int],
        faults: Faults | None,
        tap: Tap | None,
        deliver: Callable[[Process, MemberEvent], None],
    ) -> None:
        self.faults = faults
        self.lossy_until = 0
        self.loss = (0.0, 0.0)
        self.answers: dict[int, Any] = {}
        self._time = time
        self._topics = topics
        self._processes = processes
        self._latency = latency_ms
        self._tap = tap
        self._deliver = deliver
        self._hosts: dict[str, str] = {}
        self._connections = 0
        self._asked = 0  # for metadata
        self._probed = 0
        self._ready: list[Connection] = []

    def tell(self, connection: str, direction: str, frame: bytes = b"") -> None:
        """Let the tap know, if there is one."""
        if self._tap is not None:
            self._tap(self._time.clock, connection, direction, frame)

    def tell_topics(self, process: Process) -> None:
        """Let the tap see how a process learns of the topics."""
        if self._tap is None:
            return
        version = process.member.settings.versions.metadata
        client_id = process.member.settings.client_id
        if not process.bootstrap:
            process.bootstrap = self.connection_of(process.host)
            self.tell(process.bootstrap, "opened")
        response = MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=1, host="10.0.0.1", port=9092)],
            topics=[
                MetadataResponseTopic(
                    name=name,
                    topic_id=self._topics.id_of(name) or uuid.UUID(int=0),
                    partitions=[
                        MetadataResponsePartition(partition_index=index, leader_id=1, replica_nodes=[1], isr_nodes=[1])
                        for index in range(count)
                    ],
                )
                for name, count in self._topics.counts.items()
            ],
        )
        request = MetadataRequest(topics=None if version else [])
        self._asked += 1
        asked = encode_request(request, version, correlation_id=self._asked, client_id=client_id)
        self.tell(process.bootstrap, "request", asked)
        self.tell(process.bootstrap, "response", encode_response(response, version, correlation_id=self._asked))

    def connection_of(self, host: str) -> str:
        """The name of a new connection."""
        self._connections += 1
        port = _FIRST_PORT + self._connections % 28_000
        return f"{host}:{port}-{_BROKER}#{self._connections}"

    def host_of(self, name: str) -> str:
        """An address of its own for everybody, in the order of their coming."""
        if name not in self._hosts:
            network, last = divmod(len(self._hosts), _HOSTS)
            self._hosts[name] = f"10.0.{network + 1}.{last + 2}"
        return self._hosts[name]

    def send(self, process: Process, effect: Send) -> None:
        """A request of a member, if the network lets it go."""
        connection = process.connection
        if connection is None:
            connection = process.connection = Connection(process, self.connection_of(process.host))
        self._time.note(process.name, "sends", effect.message)
        data = encode_request(
            effect.message,
            effect.version,
            correlation_id=effect.request_id,
            client_id=process.member.settings.client_id,
        )
        if self._gets_lost(connection):
            return
        connection.up_at = max(connection.up_at, self._time.clock + process.random.randint(*self._latency))
        self._time.later(connection.up_at, self._arrive, (connection, effect.request_id, data))

    def _gets_lost(self, connection: Connection) -> bool:
        """Whether the network swallows what is sent on this connection now."""
        process = connection.process
        if process.cut_until > self._time.clock:
            connection.is_broken = True
            return True
        if connection.is_broken:
            self.reset(connection)
            return True
        if self.lossy_until > self._time.clock:
            drop, reset = self.loss
            luck = process.random.random()
            if luck < drop:
                return True
            if luck < drop + reset:
                self.reset(connection)
                return True
        return False

    def reset(self, connection: Connection) -> None:
        """The connection ends; the client sees it a little later."""
        self.shut(connection)
        wait = connection.process.random.randint(*self._latency)
        self._time.later(max(connection.down_at, self._time.clock + wait), self._see_reset, connection)

    def _see_reset(self, connection: Connection) -> None:
        process = connection.process
        if process.connection is connection:
            process.connection = None
            self._deliver(process, _DISCONNECTED)

    def shut(self, connection: Connection) -> None:
        """It ends."""
        self.part(connection)
        connection.is_open = False

    def part(self, connection: Connection) -> None:
        """The client is done with it, or it has ended."""
        if connection.is_open and connection.is_told:
            connection.is_told = False
            self.tell(connection.name, "closed")

    def probe(self, message: Any, version: int, client_id: str) -> int:
        """Send a request past all faults; its number in `answers`."""
        self._probed += 1
        host = self.host_of(client_id)
        probe = Probe(self._probed, version, self.connection_of(host))
        data = encode_request(message, version, client_id=client_id)
        self.tell(probe.connection, "opened")
        self.tell(probe.connection, "request", data)
        self.coordinator.submit(probe, decode_request(data)[1], version, client_id, host)
        self.look_after_coordinator()
        return probe.number

    def _arrive(self, about: tuple[Connection, int, bytes]) -> None:
        connection, request_id, data = about
        if not connection.is_open:
            return
        if connection.life == 0:
            connection.life = self.coordinator.life
        if not self.coordinator.is_up or connection.life != self.coordinator.life:
            self.reset(connection)
            return
        if self._tap is not None:
            if not connection.is_told:
                connection.is_told = True
                self.tell(connection.name, "opened")
            self.tell(connection.name, "request", data)
        connection.queue.append((request_id, data))
        self._serve(connection)
        self.look_after_coordinator()

    def _serve(self, connection: Connection) -> None:
        """Look at the next request, if none is in hand."""
        while connection.queue and connection.exchange is None and connection.is_open:
            connection.exchange = Exchange(self, connection, *connection.queue.pop(0))
            connection.exchange.receive()

    def injection(self, on: str, exchange: Exchange) -> Injection:
        """Return what the faults in force do to the request of an exchange, or to the response."""
        if self.faults is None:
            return CLEAN
        return self.faults.decide(
            on, exchange.api_key, exchange.message, exchange.version, exchange.client_id, self._time.now
        )

    def later(self, delay_ms: int, exchange: Exchange, step: Callable[[], None]) -> None:
        """Go on with an exchange after a delay, if its connection and the coordinator are still the same."""
        self._time.later(self._time.clock + delay_ms, self._go_on, (exchange, step))

    def _go_on(self, about: tuple[Exchange, Callable[[], None]]) -> None:
        exchange, step = about
        if exchange.connection.is_open and exchange.connection.life == self.coordinator.life:
            step()
            self.look_after_coordinator()

    def answered(self, caller: Caller, message: Any) -> None:
        """The coordinator has answered a request."""
        if isinstance(caller, Probe):
            data = encode_response(message, caller.version)
            self.tell(caller.connection, "response", data)
            self.tell(caller.connection, "closed")
            self.answers[caller.number] = decode_response(data, type(message), caller.version)[1]
        elif caller is not None and caller.connection.is_open:
            caller.respond(message)

    def crashed(self, callers: list[Caller]) -> None:
        """The coordinator has: every connection to it ends."""
        for caller in callers:
            if isinstance(caller, Probe):
                self.answers[caller.number] = ConnectionResetError("the coordinator has crashed")
        self._ready.clear()
        for process in self._processes.values():
            connection = process.connection
            if connection is None or not connection.life:
                continue
            if connection.is_open and process.cut_until <= self._time.clock:
                self.reset(connection)
            else:
                connection.is_broken = True

    def look_after_coordinator(self) -> None:
        """After whatever has happened to it: requests that wait their turn, the disk, the clock."""
        while self._ready:
            self._serve(self._ready.pop())
        self.coordinator.look_after()

    def answer(self, exchange: Exchange, message: Any, copies: int) -> None:
        """Send a response, if the network lets it go, and let the next request of the connection be served."""
        connection = exchange.connection
        connection.exchange = None
        self._ready.append(connection)
        for _ in range(copies):
            data = encode_response(message, exchange.version, correlation_id=exchange.request_id)
            self.tell(connection.name, "response", data)
            if self._gets_lost(connection):
                return
            wait = connection.process.random.randint(*self._latency)
            connection.down_at = max(connection.down_at, self._time.clock + wait)
            self._time.later(connection.down_at, self._come_back, (connection, data, type(message), exchange.version))
        if isinstance(exchange.message, LeaveGroupRequest) and connection.process.member.state is MemberState.LEFT:
            self.part(connection)  # nothing came behind that

    def _come_back(self, about: tuple[Connection, bytes, type, int]) -> None:
        connection, data, api, version = about
        process = connection.process
        if process.connection is not connection or not process.is_alive:
            return
        header, message = decode_response(data, api, version)
        self._time.note(process.name, "gets", message)
        self._deliver(process, Arrived(header.correlation_id, message))
