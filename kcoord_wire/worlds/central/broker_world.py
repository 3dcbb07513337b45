"""What the worlds of both designs on ZooKeeper share: brokers and their clients, the network between them, ZooKeeper.

Laws, besides those of `kernel.virtual.network` and `kernel.virtual.world`:

* Every message is encoded and decoded.
* A client may have several connections, each with a broker of its choice: one with its coordinator, others to fetch.
* A cut or a delay changes when messages arrive, and when an end of a connection is noticed, in one direction or both;
  nothing is lost by it, and each direction keeps its order. What a client sent before it closed a connection arrives.
* A broker that crashes loses its memory. While it is paused, what clients send waits; ZooKeeper's news come a moment
  after it has resumed, so it acts before.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final, NamedTuple, TypeVar

from kcoord_wire.kernel.machines import (
    BrokerAddress,
    Close,
    Connect,
    Connected,
    Disconnected,
    LogEvent,
    Machine,
    Received,
    Send,
)
from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.kernel.virtual.network import Network, ProcessServer, VirtualConnection
from kcoord_wire.kernel.virtual.processes import Process
from kcoord_wire.kernel.virtual.scripts import Draw
from kcoord_wire.kernel.virtual.world import World
from kcoord_wire.worlds.central.zookeeper import VirtualZooKeeper
from kcoord_wire.zookeeper.requests import Ask

PORT: Final = 9092
_CONNECT: Final = b""


class Link(VirtualConnection):
    """A client's connection with a broker.

    :ivar events: gets what the client's side of it sees: None for connected, a message, `Disconnected`
    :ivar about: what the client uses it for, for the laws
    :ivar is_ended_by_broker: the broker has closed it
    """

    __slots__ = ("about", "events", "is_ended_by_broker")

    server: ProcessServer
    events: Callable[[Link, Any], None]

    def __init__(self, process: Process, server: ProcessServer, name: str, number: int) -> None:
        super().__init__(process, server, name, number)
        self.about: Any = None
        self.is_ended_by_broker = False


class Cut(NamedTuple):
    """What the network carries late: TCP sends it again until it arrives.

    :ivar until: in ms since the Unix epoch
    :ivar client: name; None for all
    :ivar broker: name; None for all
    :ivar up: whether messages to brokers are meant
    :ivar down: whether messages to clients are meant
    :ivar delay_ms: what is sent before `until` arrives so much later; 0: it arrives then
    """

    until: int
    client: str | None
    broker: str | None
    up: bool
    down: bool
    delay_ms: int = 0

    def concerns(self, link: Link, *, up: bool) -> bool:
        """Whether messages on a connection are meant."""
        is_way = self.up if up else self.down
        return is_way and self.broker in (None, link.server.name) and self.client in (None, link.process.name)

    def arrival(self, now: int) -> int:
        """Return when what is sent now arrives."""
        return now + self.delay_ms if self.delay_ms else self.until


class BrokerNetwork(Network[Link]):
    """Carries the messages of a design, which derives its own and says how they are encoded.

    :param brokers: by name
    :ivar brokers: by host
    :ivar cuts: what the network does not carry
    """

    def __init__(self, clock: VirtualClock, latency_ms: tuple[int, int]) -> None:
        super().__init__(clock, latency_ms, Link)
        self.brokers: dict[str, ProcessServer] = {}
        self.cuts: list[Cut] = []
        self._links: dict[int, Link] = {}

    @abstractmethod
    def encode_to_broker(self, client: str, message: Any) -> bytes:
        """Return a client's message as bytes."""

    @abstractmethod
    def decode_to_broker(self, frame: bytes) -> Any:
        """Return the message."""

    @abstractmethod
    def encode_to_client(self, message: Any) -> bytes:
        """Return a broker's message as bytes."""

    @abstractmethod
    def decode_to_client(self, frame: bytes, cls: type[Any]) -> Any:
        """Return the message."""

    def heal(self) -> None:
        """End all faults of the network."""
        super().heal()
        self.cuts.clear()

    # ---- the clients' side

    def link_to(self, process: Process, broker: ProcessServer, events: Callable[[Link, Any], None]) -> Link:
        """Return a new connection of a client; nothing is sent yet."""
        link = self.connect(process, broker, f"{broker.host}:{PORT}")
        link.events = events
        self._links[link.number] = link
        return link

    def establish(self, link: Link) -> None:
        """Let the client know whether the broker can be reached."""
        self.send_to_server(link, _CONNECT)

    def request(self, link: Link, message: Any) -> None:
        """Send a client's message."""
        self.send_to_server(link, self.encode_to_broker(link.process.name, message))

    def hang_up(self, connection: Link) -> None:
        """The client closes a connection, or has crashed: what it sent before arrives before the end."""
        connection.is_held = False
        earliest = max(self._earliest(connection, up=True), self._clock.time_ms + self._draw_latency(connection))
        connection.up_at = max(connection.up_at, earliest)
        self._clock.at(connection.up_at, self.close, connection)

    def returned(self, connection: Link, *message: Any) -> None:
        """A message has reached the client, or its connection has been accepted."""
        [frame, cls] = message
        connection.events(connection, None if cls is None else self.decode_to_client(frame, cls))

    def disconnected(self, connection: Link) -> None:
        """The client has noticed the end of a connection."""
        connection.events(connection, Disconnected(connection.number))

    # ---- the brokers' side

    def arrived(self, connection: Link, *message: Any) -> None:
        """A frame has reached a broker; the operating system accepts connections while the process is paused."""
        [frame] = message
        if frame == _CONNECT:
            self.send_to_process(connection, _CONNECT, None)
            return
        assert connection.server.process is not None
        connection.server.process.deliver(Received(connection.number, self.decode_to_broker(frame)))

    def link(self, number: int) -> Link:
        """Return the connection that a broker knows by this number."""
        return self._links[number]

    def answer(self, number: int, message: Any) -> Link | None:
        """Send a broker's message; return its link, None if that has ended."""
        link = self._links[number]
        if not link.is_open:
            return None
        self.send_to_process(link, self.encode_to_client(message), type(message))
        return link

    def end(self, connection: Link) -> None:
        """The broker closes a connection, or has crashed."""
        connection.is_ended_by_broker = True
        connection.down_at = max(connection.down_at, self._earliest(connection, up=False))
        self.reset(connection)

    def closing(self, connection: Link) -> None:
        """The broker will notice."""
        if connection.boot and not connection.is_ended_by_broker:
            at = max(connection.up_at, self._clock.time_ms + self._draw_latency(connection))
            self._clock.at(at, self._notice_close, connection)

    def _notice_close(self, link: Link) -> None:
        broker = link.server
        if broker.process is not None and broker.boot == link.boot and not link.is_ended_by_broker:
            broker.process.deliver(Disconnected(link.number))

    # ---- faults

    def _earliest(self, link: Link, *, up: bool) -> int:
        """Return when a message sent now may arrive at the earliest."""
        now = self._clock.time_ms
        self.cuts = [cut for cut in self.cuts if cut.until > now]
        return max((cut.arrival(now) for cut in self.cuts if cut.concerns(link, up=up)), default=0)

    def send_to_server(self, connection: Link, *message: Any) -> None:
        """Send a message of the client, unless the network loses it."""
        connection.up_at = max(connection.up_at, self._earliest(connection, up=True))
        super().send_to_server(connection, *message)

    def send_to_process(self, connection: Link, *message: Any) -> bool:
        """Send a message of the broker; return False if the network loses it."""
        connection.down_at = max(connection.down_at, self._earliest(connection, up=False))
        return super().send_to_process(connection, *message)


# ---- processes


class ClientProcess(Process):
    """A client's process: it carries out what concerns connections, and writes down what its machine notes.

    :ivar fetching: its present assignment; None while it fetches nothing
    """

    __slots__ = ("_invariants", "_links", "_network", "fetching")

    def __init__(self, world: BrokerWorld[Any], name: str, machine: Machine, random: Random) -> None:
        network = world.network
        super().__init__(world.zookeeper.clock, name, network.host_of(name), machine, random)
        self.fetching: Any = None
        self._network = network
        self._invariants = world.invariants
        self._links: dict[int, Link] = {}  # by the machine's number

    def changed(self) -> None:
        """A killed process fetches nothing."""
        if not self.is_alive:
            self._end_fetching()

    def _end_fetching(self) -> Any:
        """Stop its fetchers; return the assignment that this ends, None for none."""
        fetching, self.fetching = self.fetching, None
        return fetching

    def carry_out(self, effect: Any) -> None:
        """Do what the machine wants."""
        match effect:
            case Send():
                self._network.request(self._links[effect.connection], effect.message)
            case Connect():
                self._connect(effect)
            case Close():
                link = self._links.pop(effect.connection, None)
                if link is not None:
                    self._network.hang_up(link)
            case LogEvent():
                self._clock.record(self.name, effect.what, dict(effect.facts))

    def _connect(self, effect: Connect) -> None:
        number, broker = effect.connection, self._network.brokers.get(effect.broker.host)
        if broker is None:
            self._clock.after(1, self.deliver, Disconnected(number))
            return

        def seen(_link: Link, what: Any) -> None:
            if what is None:
                self.deliver(Connected(number))
            else:
                self.deliver(Disconnected(number) if isinstance(what, Disconnected) else Received(number, what))

        self._links[number] = link = self._network.link_to(self, broker, seen)
        self._network.establish(link)


class BrokerProcess(Process):
    """A broker's process, from one start to its end.

    :ivar registry: its client of ZooKeeper
    """

    __slots__ = ("_network", "registry")

    def __init__(self, world: BrokerWorld[Any], server: ProcessServer, machine: Machine) -> None:
        random = Random(f"{world.seed}/{server.name}/{server.boot}")
        super().__init__(world.zookeeper.clock, server.name, server.host, machine, random)
        self._network = world.network
        self.registry = world.zookeeper.client(self.name, self.deliver, random, timeout_ms=world.zookeeper_timeout_ms)

    def carry_out(self, effect: Any) -> None:
        """Do what the machine wants."""
        match effect:
            case Send():
                self._network.answer(effect.connection, effect.message)
            case Close():
                self._network.end(self._network.link(effect.connection))
            case Ask():
                self.registry.ask(effect)
            case LogEvent():
                self._clock.record(self.name, effect.what, dict(effect.facts))

    def changed(self) -> None:
        """It was paused, resumed or killed, and its client of ZooKeeper with it."""
        self.registry.follow(self)


ClientT = TypeVar("ClientT", bound=ClientProcess)


# ---- the world


class BrokerWorld(World[ClientT]):
    """Brokers, named broker-1, broker-2 ..., ZooKeeper, and clients.

    :ivar zookeeper: to look at, and to break
    :ivar zookeeper_timeout_ms: of the brokers' sessions
    :ivar invariants: the laws; made by each world before anything is written
    """

    network: BrokerNetwork
    invariants: Any

    def __init__(
        self,
        seed: int,
        network: type[BrokerNetwork],
        brokers: int,
        zookeeper_timeout_ms: int,
        latency_ms: tuple[int, int],
        lag_ms: tuple[int, int],
    ) -> None:
        super().__init__(seed)
        self.network = network(self._clock, latency_ms)
        for number in range(1, brokers + 1):
            server = ProcessServer(f"broker-{number}", f"10.0.0.{number}", number)
            self.servers[server.name] = self.network.brokers[server.host] = server
        self.zookeeper_timeout_ms = zookeeper_timeout_ms
        self.zookeeper = VirtualZooKeeper(
            self._clock,
            Random(f"{seed}/zookeeper"),
            lag_ms=lag_ms,
            on_write=lambda writes, session_id: self.invariants.written(writes, session_id),
        )

    @property
    def addresses(self) -> tuple[BrokerAddress, ...]:
        """Of the brokers."""
        return tuple(map(address_of, self.servers.values()))

    def _broker(self, name: str) -> BrokerProcess | None:
        process = self.servers[name].process if name in self.servers else None
        return process if isinstance(process, BrokerProcess) else None

    # ---- faults of ZooKeeper

    def cut_zookeeper(self, broker: str, ms: int, up: bool = True, down: bool = True) -> None:
        """Cut a broker off from ZooKeeper, in one direction or both."""
        process = self._broker(broker)
        if process is not None:
            self._clock.record(broker, "is cut off", ("zookeeper", ms, up, down))
            process.registry.cut(ms, up=up, down=down)

    def reset_zookeeper(self, broker: str) -> None:
        """Reset a broker's connection with ZooKeeper."""
        process = self._broker(broker)
        if process is not None:
            self._clock.record(broker, "loses its connection", "zookeeper")
            process.registry.reset()

    def expire(self, broker: str) -> None:
        """End a broker's session at the servers."""
        process = self._broker(broker)
        if process is not None and process.registry.session_id:
            self.zookeeper.expire(process.registry.session_id)

    def stop_zookeeper(self, ms: int) -> None:
        """Let no server of the ensemble answer for so long."""
        self.zookeeper.stop(ms)

    def lag_zookeeper(self, follower: int, ms: int) -> None:
        """Let one of the followers apply nothing for so long."""
        self.zookeeper.lag(follower, ms)

    # ---- faults between clients and brokers

    def cut(self, client: str | None, broker: str | None, ms: int, up: bool = True, down: bool = True) -> None:
        """Deliver what is sent within `ms` between a client and a broker after that; None for all of them."""
        self._clock.record("cluster", "cuts", (client, broker, ms, up, down))
        self.network.cuts.append(Cut(self._clock.time_ms + ms, client, broker, up, down))

    def delay(self, client: str | None, broker: str | None, ms: int, up: bool, down: bool, by_ms: int) -> None:
        """Deliver what is sent within `ms` between a client and a broker later, by `by_ms`."""
        self._clock.record("cluster", "delays", (client, broker, ms, up, down, by_ms))
        self.network.cuts.append(Cut(self._clock.time_ms + ms, client, broker, up, down, by_ms))

    def _end_faults(self) -> None:
        self.zookeeper.heal()


def address_of(server: ProcessServer) -> BrokerAddress:
    """Return the address of a broker."""
    return BrokerAddress(server.number, server.host, PORT)


class BrokerDraw(Draw):
    """Draws of a script with brokers.

    :ivar brokers: how many there are
    :ivar topics: name to number of partitions
    """

    def __init__(self, random: Random, names: list[str], brokers: int, topics: Mapping[str, int]) -> None:
        super().__init__(random, names)
        self.brokers = brokers
        self.topics = topics


def broker(draw: BrokerDraw) -> str:
    """Draw the name of a broker."""
    return f"broker-{draw.random.randint(1, draw.brokers)}"
