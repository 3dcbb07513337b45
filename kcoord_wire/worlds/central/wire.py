"""The draft's frames on the simulated network, between consumers and brokers.

Laws, besides those of `kernel.virtual.network`:

* Every message is encoded and decoded.
* A consumer may have several connections, each with a broker of its choice: one with its coordinator, others to fetch.
* A cut or a delay changes when messages arrive, and when an end of a connection is noticed, in one direction or both;
  nothing is lost by it, and each direction keeps its order. What a consumer sent before it closed a connection arrives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import kcoord_wire as kw
from kcoord_wire.central.frames import decode_to_broker, draft_frame
from kcoord_wire.kernel.machines import BrokerAddress, Disconnected, Received
from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.kernel.virtual.network import Connection, Network
from kcoord_wire.kernel.virtual.processes import Process

PORT: Final = 9092
_SIZE: Final = 4  # bytes before each frame
_TYPE_ID: Final = 2


class VirtualBroker:
    """The server of the network that a broker is, through all its boots.

    :ivar address: where it listens
    :ivar boot: see `network.Server`
    :ivar process: of the present boot; None while it is down
    """

    def __init__(self, broker_id: int) -> None:
        self.address = BrokerAddress(broker_id, f"10.0.0.{broker_id}", PORT)
        self.boot = 0
        self.process: Process | None = None

    @property
    def is_up(self) -> bool:
        """See `network.Server`."""
        return self.process is not None


class Link(Connection):
    """A consumer's connection with a broker.

    :ivar broker: the other end
    :ivar number: different for each connection; the coordinator's name for it
    :ivar events: gets what the consumer's side of it sees: None for connected, a message, `Disconnected`
    :ivar about: what the consumer uses it for, for the laws
    :ivar is_held: whether the consumer has its end
    :ivar is_ended_by_broker: the broker has closed it
    """

    __slots__ = ("about", "broker", "events", "is_ended_by_broker", "is_held", "number")

    def __init__(
        self, process: Process, broker: VirtualBroker, name: str, number: int, events: Callable[[Link, Any], None]
    ) -> None:
        Connection.__init__(self, process, broker, name)
        self.broker, self.number, self.events = broker, number, events
        self.about: Any = None
        self.is_held, self.is_ended_by_broker = True, False


class Cut(NamedTuple):
    """What the network carries late: TCP sends it again until it arrives.

    :ivar until: in ms since the Unix epoch
    :ivar consumer: name; None for all
    :ivar broker_id: None for all
    :ivar up: whether messages to brokers are meant
    :ivar down: whether messages to consumers are meant
    :ivar delay_ms: what is sent before `until` arrives so much later; 0: it arrives then
    """

    until: int
    consumer: str | None
    broker_id: int | None
    up: bool
    down: bool
    delay_ms: int = 0

    def concerns(self, link: Link, *, up: bool) -> bool:
        """Whether messages on a connection are meant."""
        is_way = self.up if up else self.down
        is_broker = self.broker_id in (None, link.broker.address.broker_id)
        return is_way and is_broker and self.consumer in (None, link.process.name)

    def arrival(self, now: int) -> int:
        """Return when what is sent now arrives."""
        return now + self.delay_ms if self.delay_ms else self.until


_CONNECT: Final = b""


class Wire(Network[Link]):
    """Carries the draft's messages.

    :ivar brokers: by host
    :ivar cuts: what the network does not carry
    """

    def __init__(self, clock: VirtualClock, latency_ms: tuple[int, int]) -> None:
        super().__init__(clock, latency_ms)
        self.brokers: dict[str, VirtualBroker] = {}
        self.cuts: list[Cut] = []
        self._links: dict[int, Link] = {}

    # ---- the consumers' side

    def open(self, process: Process, broker: VirtualBroker, events: Callable[[Link, Any], None]) -> Link:
        """Return a new connection of a consumer; nothing is sent yet."""
        name = self.name_connection(process.host, f"{broker.address.host}:{PORT}")
        link = Link(process, broker, name, len(self._links) + 1, events)
        self._links[link.number] = link
        return link

    def connect(self, link: Link) -> None:
        """Let the consumer know whether the broker can be reached."""
        self.send_to_server(link, _CONNECT)

    def request(self, link: Link, message: Any) -> None:
        """Send a consumer's message."""
        self.send_to_server(link, draft_frame(message))

    def hang_up(self, link: Link) -> None:
        """The consumer closes a connection, or has crashed: what it sent before arrives before the end."""
        link.is_held = False
        link.up_at = max(link.up_at, self._earliest(link, up=True), self._clock.time_ms + self._draw_latency(link))
        self._clock.at(link.up_at, self.close, link)

    def is_held(self, connection: Link) -> bool:
        """Return whether the consumer has its end."""
        return connection.is_held

    def release(self, connection: Link) -> None:
        """The consumer has its end no longer."""
        connection.is_held = False

    def returned(self, connection: Link, *message: Any) -> None:
        """A message has reached the consumer."""
        [frame, cls] = message
        if cls is None:
            connection.events(connection, None)
            return
        codec = kw.registry.by_class(cls)
        start = _SIZE + (_TYPE_ID if codec.header == "typeId" else 0)
        decoded, _ = codec.decode_prefix(frame, 0, offset=start)
        connection.events(connection, decoded)

    def disconnected(self, connection: Link) -> None:
        """The consumer has noticed the end of a connection."""
        connection.events(connection, Disconnected(connection.number))

    # ---- the brokers' side

    def arrived(self, connection: Link, *message: Any) -> None:
        """A frame has reached a broker; the operating system accepts connections while the process is paused."""
        [frame] = message
        if frame == _CONNECT:
            self.send_to_process(connection, _CONNECT, None)
            return
        assert connection.broker.process is not None
        connection.broker.process.deliver(Received(connection.number, decode_to_broker(frame[_SIZE:])))

    def link(self, number: int) -> Link:
        """Return the connection that a broker knows by this number."""
        return self._links[number]

    def answer(self, number: int, message: Any) -> Link | None:
        """Send a broker's message; return its link, None if that has ended."""
        link = self._links[number]
        if not link.is_open:
            return None
        self.send_to_process(link, draft_frame(message), type(message))
        return link

    def end(self, number: int) -> None:
        """The broker closes a connection."""
        self._end(self._links[number])

    def _end(self, link: Link) -> None:
        link.is_ended_by_broker = True
        link.down_at = max(link.down_at, self._earliest(link, up=False))
        self.reset(link)

    def closing(self, connection: Link) -> None:
        """The broker will notice."""
        if connection.boot and not connection.is_ended_by_broker:
            at = max(connection.up_at, self._clock.time_ms + self._draw_latency(connection))
            self._clock.at(at, self._notice_close, connection)

    def _notice_close(self, link: Link) -> None:
        broker = link.broker
        if broker.process is not None and broker.boot == link.boot and not link.is_ended_by_broker:
            broker.process.deliver(Disconnected(link.number))

    def crashed(self, broker: VirtualBroker) -> None:
        """A broker's process has ended: its connections are reset."""
        for link in self._links.values():
            if link.broker is broker and link.is_open and link.boot:
                self._end(link)

    # ---- faults

    def _earliest(self, link: Link, *, up: bool) -> int:
        """Return when a message sent now may arrive at the earliest."""
        now = self._clock.time_ms
        self.cuts = [cut for cut in self.cuts if cut.until > now]
        return max((cut.arrival(now) for cut in self.cuts if cut.concerns(link, up=up)), default=0)

    def send_to_server(self, connection: Link, *message: Any) -> None:
        """Send a message of the consumer, unless the network loses it."""
        connection.up_at = max(connection.up_at, self._earliest(connection, up=True))
        super().send_to_server(connection, *message)

    def send_to_process(self, connection: Link, *message: Any) -> bool:
        """Send a message of the broker; return False if the network loses it."""
        connection.down_at = max(connection.down_at, self._earliest(connection, up=False))
        return super().send_to_process(connection, *message)
