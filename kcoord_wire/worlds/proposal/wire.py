"""The proposal's frames on the simulated network.

Every request and response is encoded and decoded, and counted as it arrives: size, header and message. A response is
encoded when it arrives, not when it leaves: the responses of a rebalance of `all_members` would otherwise be in memory
at one time, 1 GB in the proposal's example.
"""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from kcoord_wire.codec.registry import decode_request, decode_response, encode_request, encode_response, peek_request
from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.kernel.virtual.network import Connection, Network
from kcoord_wire.kernel.virtual.processes import Process
from kcoord_wire.messages import HeartbeatResponse, LeaveGroupResponse
from kcoord_wire.protocol.api_keys import ApiKey
from kcoord_wire.worlds.proposal.events import Answer, Arrived, Asked, Caller, Disconnected, Send

_SIZE: Final = 4  # bytes before each frame
_ADDRESS: Final = "10.0.0.1:9092"


class Moved(NamedTuple):
    """What the trace has of a message.

    :ivar message: the name of its class
    :ivar size: bytes on the wire
    :ivar error: of a response; 0 for none
    """

    message: str
    size: int
    error: int = 0


@dataclass(slots=True)
class Broker:
    """The broker on which the coordinator runs: the server of the network.

    :ivar boot: see `network.Server`
    :ivar process: the coordinator's; None while it is down
    """

    boot: int = 0
    process: Process | None = None

    @property
    def is_up(self) -> bool:
        """See `network.Server`."""
        return self.process is not None


@dataclass(slots=True, eq=False)
class Link(Connection):
    """A member's connection.

    :ivar number: different for each connection
    """

    number: int = 0


class Wire(Network[Link]):
    """Carries requests and responses.

    :param family: of the variant's JoinGroup; the other requests are Kafka's
    :param compresses_joins: whether responses to JoinGroup are compressed whole, with zlib at level 6
    :ivar to_coordinator: bytes that have arrived there, by message
    :ivar to_members: likewise
    """

    def __init__(
        self,
        clock: VirtualClock,
        broker: Broker,
        family: str,
        latency_ms: tuple[int, int],
        *,
        compresses_joins: bool,
    ) -> None:
        super().__init__(clock, latency_ms)
        self.to_coordinator: Counter[str] = Counter()
        self.to_members: Counter[str] = Counter()
        self._broker = broker
        self._family = family
        self._compresses_joins = compresses_joins
        self._links: dict[int, Link] = {}

    def send(self, process: Process, effect: Send) -> None:
        """Send a member's request, on a new connection if it has none."""
        link = process.connection
        if not isinstance(link, Link):
            name = self.name_connection(process.host, _ADDRESS)
            link = process.connection = Link(process, self._broker, name, number=len(self._links) + 1)
            self._links[link.number] = link
        data = encode_request(effect.message, 0, correlation_id=effect.request_id, client_id=process.name)
        self._clock.record(process.name, "sends", Moved(type(effect.message).__name__, len(data) + _SIZE))
        self.send_to_server(link, data)

    def arrived(self, connection: Link, *message: Any) -> None:
        """A request has reached the coordinator."""
        [data] = message
        is_join = peek_request(data).request_api_key == ApiKey.JOIN_GROUP
        header, request = decode_request(data, family=self._family if is_join else "kafka")
        self.to_coordinator[type(request).__name__] += len(data) + _SIZE
        if self._broker.process is not None:
            caller = Caller(connection.number, header.correlation_id)
            self._broker.process.deliver(Asked(caller, header.client_id or "", request))

    def answer(self, effect: Answer) -> None:
        """Send the coordinator's answer."""
        link = self._links[effect.caller.connection]
        if link.is_open:
            self.send_to_process(link, effect.caller.request_id, effect.message)

    def returned(self, connection: Link, *message: Any) -> None:
        """A response has reached the member."""
        request_id, response = message
        data = encode_response(response, 0, correlation_id=request_id)
        is_compressed = self._compresses_joins and not isinstance(response, HeartbeatResponse | LeaveGroupResponse)
        if is_compressed:
            data = zlib.compress(data)
        self.to_members[type(response).__name__] += len(data) + _SIZE
        moved = Moved(type(response).__name__, len(data) + _SIZE, response.error_code)
        self._clock.record(connection.process.name, "gets", moved)
        plain = zlib.decompress(data) if is_compressed else data
        header, response = decode_response(plain, type(response), 0)
        connection.process.deliver(Arrived(header.correlation_id, response))

    def disconnected(self, connection: Link) -> None:
        """The member's connection was reset."""
        connection.process.deliver(Disconnected())

    def closing(self, connection: Link) -> None:
        """Nothing depends on the end of a connection."""

    def crashed(self) -> None:
        """The coordinator has crashed: its connections are reset."""
        self.server_crashed(link for link in self._links.values() if link.boot and link.is_open)
