"""Brokers of either design on a ZooKeeper in memory, and peers that a test plays by hand; the clock is the test's.

Beside `kcoord_wire.worlds`, for tests of single steps: messages need no time, and what a broker asks of ZooKeeper can
be counted, held back and let go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from kcoord_wire.kernel.machines import Close, Disconnected, LogEvent, Machine, Received, Send, Tick
from kcoord_wire.zookeeper.memory import MemoryLink, MemoryZooKeeper
from kcoord_wire.zookeeper.requests import Ask

MachineT = TypeVar("MachineT", bound=Machine)


class Broker(Generic[MachineT]):
    """A machine with its session.

    :ivar notes: what it has logged
    :ivar asks: what it has asked of ZooKeeper
    :ivar held: whether an ask waits for `release`
    :ivar is_paused: it takes in nothing, and its session is not kept alive
    """

    def __init__(self, world: MemoryWorld[MachineT], machine: MachineT, session_ms: int) -> None:
        self.world = world
        self.machine = machine
        self.link = MemoryLink(world.zookeeper, self.handle, timeout_ms=session_ms)
        self.notes: list[LogEvent] = []
        self.asks: list[Ask] = []
        self.held: Callable[[Ask], bool] = lambda ask: False
        self.is_paused = False
        self._held: list[Ask] = []
        self._events: deque[Any] = deque()

    def handle(self, event: Any) -> None:
        """Give the machine an event, and carry out its effects before the next one."""
        self._events.append(event)
        if len(self._events) > 1:
            return  # an effect has caused it
        while self._events:
            event = self._events[0]
            if not isinstance(event, Received) or event.connection in self.world.peers:
                for effect in self.machine.handle(event, self.world.now):
                    self._carry_out(effect)
            self._events.popleft()

    def _carry_out(self, effect: Any) -> None:
        match effect:
            case Ask():
                self.asks.append(effect)
                if self.held(effect):
                    self._held.append(effect)
                else:
                    self.link.ask(effect)
            case Send():
                peer = self.world.peers[effect.connection]
                if peer.connection == effect.connection:
                    peer.receive(effect.message)
            case Close():
                peer = self.world.peers.pop(effect.connection)
                if peer.connection == effect.connection:
                    peer.is_open = False
            case LogEvent():
                self.notes.append(effect)

    def release(self) -> None:
        """Let the requests to ZooKeeper go that were held."""
        self.held = lambda ask: False
        held, self._held = self._held, []
        for ask in held:
            self.link.ask(ask)
        self.world.run(0)

    @property
    def deadline(self) -> int:
        """When it has something to do, in ms."""
        own = self.machine.deadline
        return self.link.deadline if own is None else min(self.link.deadline, own)

    def advance(self) -> bool:
        """Do what is due; return whether there was anything."""
        now = self.world.now
        if self.is_paused or self.deadline > now:
            return False
        self.link.advance(now)
        if self.machine.deadline is not None and self.machine.deadline <= now:
            self.handle(Tick())
        return True

    def noted(self, what: str) -> list[Mapping[str, Any]]:
        """Return the facts of what it has logged."""
        return [note.facts for note in self.notes if note.what == what]


class Peer:
    """A client on one connection at a time; it sees nothing of what comes on those that it has left.

    :ivar inbox: what it was sent
    :ivar is_open: whether its connection is
    """

    def __init__(self, world: MemoryWorld[Any], broker: Broker[Any]) -> None:
        self.world = world
        self.broker = broker
        self.connect()

    def connect(self, broker: Broker[Any] | None = None) -> None:
        """Open a connection, in place of the one before."""
        self.broker = broker or self.broker
        self.world.last_connection += 1
        self.connection = self.world.last_connection
        self.inbox: list[Any] = []
        self.is_open = True
        self.world.peers[self.connection] = self

    def disconnect(self) -> None:
        """End the connection."""
        self.is_open = False
        self.world.peers.pop(self.connection, None)
        self.broker.handle(Disconnected(self.connection))

    def send(self, message: Any) -> None:
        """Send a message to the broker."""
        if self.is_open:
            self.broker.handle(Received(self.connection, message))

    def receive(self, message: Any) -> None:
        """Take in what the broker has sent."""
        self.inbox.append(message)


class MemoryWorld(Generic[MachineT]):
    """Brokers, their peers and ZooKeeper; messages between them need no time.

    :ivar now: ms
    :ivar peers: by connection, those whose connection is open
    """

    def __init__(self) -> None:
        self.now = 1_000
        self.zookeeper = MemoryZooKeeper()
        self.brokers: dict[int, Broker[MachineT]] = {}
        self.peers: dict[int, Any] = {}
        self.last_connection = 0

    def data(self, path: str) -> bytes:
        """Return what a node has."""
        node = self.zookeeper.node(path)
        assert node is not None, path
        return node.data

    def run(self, ms: int) -> None:
        """Let time pass, in steps from one deadline to the next."""
        end = self.now + ms
        while True:
            while sum(broker.advance() for broker in list(self.brokers.values())):
                pass
            running = [broker.deadline for broker in self.brokers.values() if not broker.is_paused]
            following = min(running, default=end + 1)
            if following > end:
                break
            self.now = max(self.now, following)
        self.now = end
