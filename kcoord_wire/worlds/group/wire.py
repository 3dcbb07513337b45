"""Kafka's protocol on the simulated network: frames between members and the coordinator.

Every request and response is encoded and decoded. Faults are injected as on the server: both drive a `FaultedExchange`.

Laws:

* The coordinator looks at the next request of a connection when the one before is answered, as Kafka's broker does.
* A `Tap` sees what a capture on the broker's machine would have, and changes nothing: the trace is the same without it.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from kcoord_wire import messages as m
from kcoord_wire.codec.registry import decode_request, decode_response, encode_request, encode_response
from kcoord_wire.consumer.member_events import Arrived, MemberState, SendRequest
from kcoord_wire.coordinator.fault_injection import Fault, FaultedExchange, Faults
from kcoord_wire.kernel.machines import Disconnected
from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.kernel.virtual.network import Network, VirtualConnection
from kcoord_wire.worlds.group.virtual_coordinator import VirtualCoordinator

if TYPE_CHECKING:
    from kcoord_wire.worlds.group.members import MemberProcess


class VirtualTopics:
    """The topics as the coordinator's machine looks them up.

    :ivar counts: name to number of partitions
    """

    def __init__(self, counts: Mapping[str, int]) -> None:
        for topic, count in counts.items():
            if type(count) is not int or count < 1:
                raise ValueError(f"topic {topic!r} needs one partition or more, not {count!r}")
        self.counts = dict(counts)

    @property
    def changes(self) -> int:
        """Number of partitions of all topics: they are only ever added."""
        return sum(self.counts.values())

    def names(self) -> list[str]:
        """Return the names of all topics."""
        return list(self.counts)

    def partitions(self, name: str) -> int | None:
        """Return the number of partitions; None if there is no such topic."""
        return self.counts.get(name)

    def id_of(self, name: str) -> uuid.UUID | None:
        """Return the id of a topic; None if there is no such topic."""
        return uuid.uuid5(uuid.NAMESPACE_OID, name) if name in self.counts else None

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        """Return the name of a topic; None if there is no such topic."""
        return next((name for name in self.counts if self.id_of(name) == topic_id), None)


_DISCONNECTED: Final = Disconnected()
_STATES_SOFTWARE: Final = 3  # version of ApiVersions
_BROKER_HOST: Final = "10.0.0.1"
_BROKER_PORT: Final = 9_092
_BROKER: Final = f"{_BROKER_HOST}:{_BROKER_PORT}"


class Tap(Protocol):
    """Gets every frame between clients and coordinator, as a capture on the broker's machine would have it."""

    def __call__(self, time_ms: int, connection: str, direction: str, frame: bytes, /) -> None:
        """Called for a request when it arrives at the broker and for a response when it leaves.

        So requests that the network loses are not seen, and responses that it loses are. Members learn about topics
        outside the wire; for each such update the tap sees the Metadata exchange that a real client would have made, on
        the client's bootstrap connection. Likewise it sees ApiVersions where a member states its software.

        :param time_ms: ms since the Unix epoch
        :param connection: ``client_ip:port-broker_ip:port#n``
        :param direction: ``opened``, ``request``, ``response`` or ``closed``
        :param frame: header and message, without the four bytes of size; empty for ``opened`` and ``closed``
        """


class MemberConnection(VirtualConnection):
    """A member's connection to the coordinator.

    :ivar is_tapped: whether the tap has seen it opened, and not yet closed
    :ivar broker: which of the server's brokers it leads to
    :ivar queue: requests that have arrived and are not handled yet: correlation id and frame
    :ivar exchange: the request that the coordinator works on
    """

    __slots__ = ("broker", "exchange", "is_tapped", "queue")

    process: MemberProcess

    def __init__(self, process: MemberProcess, server: VirtualCoordinator, name: str, number: int) -> None:
        super().__init__(process, server, name, number)
        self.broker = server.broker
        self.is_tapped = False
        self.queue: deque[tuple[int, bytes]] = deque()
        self.exchange: _Exchange | None = None


class _Exchange(FaultedExchange):
    """A request of a member that has arrived, and the response to it. It is the coordinator's `Caller`.

    :ivar wire: the network
    :ivar connection: on which the request has arrived
    :ivar request_id: the correlation id
    """

    __slots__ = ("connection", "request_id", "wire")

    def __init__(self, wire: GroupNetwork, connection: MemberConnection, request_id: int, data: bytes) -> None:
        header, message = decode_request(data)
        super().__init__(
            header.request_api_key, message, header.request_api_version, header.client_id or "", wire.topics.name_of
        )
        self.wire = wire
        self.connection = connection
        self.request_id = request_id

    # ---- what the coordinator calls

    def answered(self, message: Any) -> None:
        if self.connection.is_open:
            self.respond(message)

    def dropped(self) -> None:
        pass  # the connection is reset

    # ---- what the faults call

    def decide(self, on: str) -> tuple[Fault, ...]:
        return self.wire.decide(on, self)

    def later(self, delay_ms: int, step: Callable[[], None]) -> None:
        self.wire.continue_after(delay_ms, self, step)

    def submit(self, copies: int) -> None:
        connection = self.connection
        for copy in range(copies):
            caller = None if copy else self
            connection.server.submit(
                caller, self.message, self.version, self.client_id, connection.process.host, connection.broker
            )

    def answer(self, response: Any, copies: int) -> None:
        self.wire.answer(self, response, copies)

    def disconnect(self) -> None:
        self.wire.reset(self.connection)


class _Probe:
    """A request past all faults and without latency. It is the coordinator's `Caller`."""

    __slots__ = ("client_id", "connection", "number", "version", "wire")

    def __init__(self, wire: GroupNetwork, number: int, version: int, client_id: str, connection: str) -> None:
        self.wire = wire
        self.number = number
        self.client_id = client_id
        self.version = version
        self.connection = connection

    def answered(self, message: Any) -> None:
        data = encode_response(message, self.version)
        self.wire.tap(self.connection, "response", data)
        self.wire.tap(self.connection, "closed")
        answer = self.wire.answers[self.number] = decode_response(data, type(message), self.version)[1]
        self.wire.note(self.client_id, "gets", answer)

    def dropped(self) -> None:
        self.wire.answers[self.number] = ConnectionResetError("the coordinator has crashed")


class GroupNetwork(Network[MemberConnection]):
    """Carries the requests of members to the coordinator, and its responses back.

    :param topics: for the Metadata exchanges that the tap sees
    :param latency_ms: least and most that a message takes
    :param tap: see `Tap`
    :ivar faults: injected into requests and responses; None for none
    :ivar answers: of probes, by number; ConnectionResetError if the coordinator crashed first
    """

    def __init__(
        self,
        clock: VirtualClock,
        coordinator: VirtualCoordinator,
        topics: VirtualTopics,
        *,
        latency_ms: tuple[int, int],
        faults: Faults | None,
        tap: Tap | None,
    ) -> None:
        super().__init__(clock, latency_ms, MemberConnection)
        self.faults = faults
        self.answers: dict[int, Any] = {}
        self._coordinator = coordinator
        self.topics = topics
        self._tap = tap
        self._metadata_requests = 0
        self._probes = 0
        coordinator.on_crash.append(partial(self.crashed, coordinator))

    def heal(self) -> None:
        """End all faults of the network, and those that were injected."""
        super().heal()
        self.faults = None

    def note(self, who: str, what: str, message: Any) -> None:
        """Add a line to the trace."""
        self._clock.record(who, what, message)

    # ---- the tap

    def tap(self, connection: str, direction: str, frame: bytes = b"") -> None:
        """Show a frame to the tap, if there is one."""
        if self._tap is not None:
            self._tap(self._clock.time_ms, connection, direction, frame)

    def tap_metadata(self, process: MemberProcess) -> None:
        """Show the tap the Metadata exchange by which a client would learn about the topics."""
        if self._tap is None:
            return
        settings = process.member.settings
        version = settings.versions.metadata
        if not process.bootstrap:
            process.bootstrap = self.name_connection(process.host, _BROKER)
            self.tap(process.bootstrap, "opened")
        self._metadata_requests += 1
        number = self._metadata_requests
        request = m.MetadataRequest(topics=None if version else [])
        self.tap(
            process.bootstrap,
            "request",
            encode_request(request, version, correlation_id=number, client_id=settings.client_id),
        )
        self.tap(process.bootstrap, "response", encode_response(self._metadata(), version, correlation_id=number))

    def _metadata(self) -> m.MetadataResponse:
        topics = [
            m.MetadataResponseTopic(
                name=name,
                topic_id=self.topics.id_of(name) or uuid.UUID(int=0),
                partitions=[
                    m.MetadataResponsePartition(partition_index=index, leader_id=1, replica_nodes=[1], isr_nodes=[1])
                    for index in range(count)
                ],
            )
            for name, count in self.topics.counts.items()
        ]
        broker = m.MetadataResponseBroker(node_id=1, host=_BROKER_HOST, port=_BROKER_PORT)
        return m.MetadataResponse(brokers=[broker], topics=topics)

    def _tap_software(self, connection: MemberConnection) -> None:
        """Show the tap the ApiVersions exchange by which a client states its software on a new connection (KIP-511)."""
        options = connection.process.options
        if options.software is None:
            return
        name, _, version = options.software.partition(" ")
        request = m.ApiVersionsRequest(client_software_name=name, client_software_version=version)
        client_id = connection.process.member.settings.client_id
        self.tap(connection.name, "request", encode_request(request, _STATES_SOFTWARE, client_id=client_id))
        self.tap(connection.name, "response", encode_response(m.ApiVersionsResponse(), _STATES_SOFTWARE))

    def closing(self, connection: MemberConnection) -> None:
        """Show the tap the end of a connection."""
        if connection.is_tapped:
            connection.is_tapped = False
            self.tap(connection.name, "closed")

    # ---- requests

    def send(self, process: MemberProcess, effect: SendRequest) -> None:
        """Send a request of a member, on a new connection if it has none."""
        connection = process.connection
        if connection is None:
            connection = process.connection = self.connect(process, self._coordinator, _BROKER)
        self._clock.record(process.name, "sends", effect.message)
        data = encode_request(
            effect.message,
            effect.version,
            correlation_id=effect.request_id,
            client_id=process.member.settings.client_id,
        )
        self.send_to_server(connection, effect.request_id, data)

    def arrived(self, connection: MemberConnection, *message: Any) -> None:
        """A request has reached the coordinator."""
        request_id, data = message
        if self._tap is not None:
            if not connection.is_tapped:
                connection.is_tapped = True
                self.tap(connection.name, "opened")
                self._tap_software(connection)
            self.tap(connection.name, "request", data)
        connection.queue.append((request_id, data))
        self._serve(connection)
        self._coordinator.settle()

    def _serve(self, connection: MemberConnection) -> None:
        """Handle the next request of a connection, unless one is being handled."""
        while connection.queue and connection.exchange is None and connection.is_open:
            connection.exchange = _Exchange(self, connection, *connection.queue.popleft())
            connection.exchange.receive()

    def decide(self, on: str, exchange: _Exchange) -> tuple[Fault, ...]:
        """Return the faults that strike the request of an exchange, or the response."""
        return () if self.faults is None else self.faults.decide(on, exchange, self._clock.now)

    def continue_after(self, delay_ms: int, exchange: _Exchange, step: Callable[[], None]) -> None:
        """Go on with an exchange after a delay, if its connection still leads to the coordinator."""
        self._clock.after(delay_ms, self._continue, exchange, step)

    def _continue(self, exchange: _Exchange, step: Callable[[], None]) -> None:
        connection = exchange.connection
        if connection.is_open and connection.boot == self._coordinator.boot:
            step()
            self._coordinator.settle()

    def probe(self, message: Any, version: int, client_id: str) -> int:
        """Send a request past all faults and without latency; return the number of its answer in `answers`."""
        self._probes += 1
        host = self.host_of(client_id)
        probe = _Probe(self, self._probes, version, client_id, self.name_connection(host, _BROKER))
        self.note(client_id, "sends", message)
        data = encode_request(message, version, client_id=client_id)
        self.tap(probe.connection, "opened")
        self.tap(probe.connection, "request", data)
        self._coordinator.submit(probe, decode_request(data)[1], version, client_id, host)
        self._coordinator.settle()
        return probe.number

    # ---- responses

    def answer(self, exchange: _Exchange, message: Any, copies: int) -> None:
        """Send a response `copies` times, and let the next request of the connection be handled."""
        connection = exchange.connection
        connection.exchange = None
        self._coordinator.defer(partial(self._serve, connection))
        for _ in range(copies):
            data = encode_response(message, exchange.version, correlation_id=exchange.request_id)
            self.tap(connection.name, "response", data)
            if not self.send_to_process(connection, data, type(message), exchange.version):
                return
        if isinstance(exchange.message, m.LeaveGroupRequest) and connection.process.member.state is MemberState.LEFT:
            self.closing(connection)  # a client sends nothing after LeaveGroup

    def returned(self, connection: MemberConnection, *message: Any) -> None:
        """A response has reached the member."""
        header, response = decode_response(*message)
        self._clock.record(connection.process.name, "gets", response)
        connection.process.deliver(Arrived(header.correlation_id, response))

    # ---- the ends of connections

    def broker_stopped(self) -> None:
        """Reset the connections to the broker that does not coordinate the groups."""
        for connection in [each for each in self.open if each.broker != self._coordinator.broker]:
            self.reset(connection)

    def disconnected(self, connection: MemberConnection) -> None:
        """The member's connection was reset."""
        connection.process.deliver(_DISCONNECTED)
