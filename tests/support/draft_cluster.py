"""Coordinators of the draft on a ZooKeeper in memory, and consumers that a test scripts; the clock is the test's."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from kcoord_wire.central.draft.coordinator import DraftCoordinator
from kcoord_wire.central.draft.events import CoordinatorSettings, Partition
from kcoord_wire.central.draft.subscription import format_topics
from kcoord_wire.kernel.machines import BrokerAddress, Close, Disconnected, LogEvent, Received, Send, Tick
from kcoord_wire.messages import central as m
from kcoord_wire.zookeeper.layout import BROKER_TOPICS, offset_path, owner_path
from kcoord_wire.zookeeper.memory import MemoryLink, MemoryZooKeeper
from kcoord_wire.zookeeper.requests import Ask, Create, SetData


class DraftBroker:
    """A coordinator with its session.

    :ivar notes: what it has logged
    :ivar asks: what it has asked of ZooKeeper
    :ivar is_paused: it takes in nothing, and its session is not kept alive
    """

    def __init__(self, cluster: DraftCluster, broker_id: int, settings: CoordinatorSettings) -> None:
        self.cluster = cluster
        self.machine = DraftCoordinator(BrokerAddress(broker_id, "host", 9_000 + broker_id), settings)
        self.link = MemoryLink(cluster.zookeeper, self.take)
        self.notes: list[LogEvent] = []
        self.asks: list[Ask] = []
        self.is_paused = False
        self._events: deque[Any] = deque()

    def take(self, event: Any) -> None:
        """Give the machine an event, and carry out its effects before the next one."""
        self._events.append(event)
        if len(self._events) > 1:
            return  # an effect has caused it
        while self._events:
            event = self._events[0]
            if not isinstance(event, Received) or event.connection in self.cluster.consumers:
                for effect in self.machine.handle(event, self.cluster.now):
                    self._carry_out(effect)
            self._events.popleft()

    def _carry_out(self, effect: Any) -> None:
        match effect:
            case Ask():
                self.asks.append(effect)
                self.link.ask(effect)
            case Send():
                self.cluster.deliver(effect)
            case Close():
                self.cluster.consumers.pop(effect.connection).is_open = False
            case LogEvent():
                self.notes.append(effect)

    def advance(self) -> bool:
        """Do what is due; return whether there was anything."""
        now, due = self.cluster.now, False
        while not self.is_paused and (self.link.deadline <= now or self.is_due):
            due = True
            self.link.advance(now)
            if self.is_due:
                self.take(Tick())
        return due

    @property
    def is_due(self) -> bool:
        """Whether the machine wants a tick."""
        deadline = self.machine.deadline
        return deadline is not None and deadline <= self.cluster.now

    @property
    def deadline(self) -> int:
        """When it has something to do, in ms."""
        return min(self.link.deadline, self.machine.deadline or self.link.deadline)

    def noted(self, what: str) -> list[Mapping[str, Any]]:
        """Return the facts of what it has logged."""
        return [note.facts for note in self.notes if note.what == what]


class Consumer:
    """A consumer whose answers the test gives, or that answers by itself.

    :ivar inbox: what the coordinator has sent
    :ivar positions: what its answers report; None for no auto-commit
    :ivar answers: the classes of requests that it answers by itself
    """

    def __init__(self, cluster: DraftCluster, broker: DraftBroker, consumer_id: str) -> None:
        cluster.last_connection += 1
        self.connection = cluster.last_connection
        self.consumer_id = consumer_id
        self.inbox: list[Any] = []
        self.positions: dict[Partition, int] | None = {}
        self.answers: set[type] = {m.PingRequest, m.StopFetcherRequest, m.StartFetcherRequest}
        self.is_open = True
        self._broker = broker
        self._now: Callable[[], int] = lambda: cluster.now
        cluster.consumers[self.connection] = self

    def send(self, message: Any) -> None:
        """Send a message to the broker."""
        if self.is_open:
            self._broker.take(Received(self.connection, message))

    def disconnect(self) -> None:
        """End the connection."""
        self.is_open = False
        self._broker.cluster.consumers.pop(self.connection, None)
        self._broker.take(Disconnected(self.connection))

    def register(self, group: str = "g", topics: str = "", **fields: Any) -> None:
        """Send RegisterConsumer; two streams of ``orders`` unless `topics` says otherwise."""
        given = {"auto_commit": True, "auto_offset_rest": "smallest", "session_timeout_ms": 6_000, **fields}
        topics = topics or format_topics({"orders": 1})
        self.send(m.RegisterConsumerRequest(group_id=group, consumer_id=self.consumer_id, topic_count=topics, **given))

    def receive(self, message: Any) -> None:
        """Take in what the coordinator has sent."""
        self.inbox.append(message)
        if type(message) in self.answers:
            self.answer(message)

    def answer(self, request: Any) -> None:
        """Answer a request as a consumer does."""
        if isinstance(request, m.StartFetcherRequest):
            if self.positions is not None:
                self.positions = self.owned(request)
            self.send(m.StartFetcherResponse(consumer_id=self.consumer_id))
        elif isinstance(request, m.StopFetcherRequest):
            self.send(
                m.StopFetcherResponse(
                    consumer_id=self.consumer_id, offset_info=self._offsets(m.StopFetcherResponseOffset)
                )
            )
            self.positions = None if self.positions is None else {}
        else:
            self.send(m.PingResponse(consumer_id=self.consumer_id, offset_info=self._offsets(m.PingResponseOffset)))

    def _offsets(self, entry: Callable[..., Any]) -> list[Any] | None:
        if self.positions is None:
            return None
        known = {at: offset for at, offset in self.positions.items() if offset not in (-1, -2)}
        return [entry(topic=at.topic, partition=at.name, offset=offset) for at, offset in known.items()]

    @staticmethod
    def owned(message: Any) -> dict[Partition, int]:
        """Return the partitions and offsets of a StartFetcherRequest or RegisterConsumerResponse."""
        return {
            Partition(part.topic, part.partition): part.offset
            for owned in message.ownership_info
            for part in owned.assigned_parts
        }

    def got(self, kind: type) -> list[Any]:
        """Return what it was sent of one class."""
        return [message for message in self.inbox if type(message) is kind]

    @property
    def started_with(self) -> dict[Partition, int]:
        """The partitions and offsets of the last StartFetcherRequest."""
        return self.owned(self.got(m.StartFetcherRequest)[-1])


class DraftCluster:
    """Brokers, consumers and ZooKeeper; messages between them need no time.

    :ivar now: ms
    :ivar consumers: by connection, those whose connection is open
    """

    def __init__(self, **settings: Any) -> None:
        self.now = 1_000
        self.zookeeper = MemoryZooKeeper()
        self.settings = CoordinatorSettings(**settings)
        self.brokers: dict[int, DraftBroker] = {}
        self.consumers: dict[int, Consumer] = {}
        self.last_connection = 0
        self.add_broker(1)

    def add_broker(self, broker_id: int) -> DraftBroker:
        """Start a broker."""
        broker = self.brokers[broker_id] = DraftBroker(self, broker_id, self.settings)
        self.run(0)
        return broker

    def add_topic(self, topic: str, partitions: int, broker_id: int = 1) -> None:
        """Create a topic, or change its number of partitions at a broker."""
        for path in (f"{BROKER_TOPICS}/{topic}", f"{BROKER_TOPICS}/{topic}/{broker_id}"):
            self.zookeeper.write(Create(path))
        self.zookeeper.write(SetData(f"{BROKER_TOPICS}/{topic}/{broker_id}", b"%d" % partitions))
        self.run(0)

    def consumer(self, consumer_id: str, broker_id: int = 1, **fields: Any) -> Consumer:
        """Connect and register a consumer."""
        consumer = Consumer(self, self.brokers[broker_id], consumer_id)
        consumer.register(**fields)
        self.run(0)
        return consumer

    def deliver(self, sent: Send) -> None:
        """Give a consumer a message."""
        self.consumers[sent.connection].receive(sent.message)

    def run(self, ms: int) -> None:
        """Let time pass, in steps from one deadline to the next."""
        end = self.now + ms
        while True:
            while sum(broker.advance() for broker in self.brokers.values()):
                pass
            running = [broker.deadline for broker in self.brokers.values() if not broker.is_paused]
            following = min(running, default=end + 1)
            if following > end:
                break
            self.now = max(self.now, following)
        self.now = end

    def owners(self, group: str = "g", topic: str = "orders") -> dict[str, str]:
        """Return the owner of each partition of a topic, as ZooKeeper has it."""
        names = self.zookeeper.names(f"/consumers/{group}/owners/{topic}") or ()
        nodes = {name: self.zookeeper.node(owner_path(group, topic, name)) for name in names}
        return {name: node.data.decode() for name, node in nodes.items() if node is not None}

    def committed(self, group: str = "g", topic: str = "orders") -> dict[str, int]:
        """Return the committed offsets of a topic, as ZooKeeper has them."""
        names = self.zookeeper.names(f"/consumers/{group}/offsets/{topic}") or ()
        nodes = {name: self.zookeeper.node(offset_path(group, topic, name)) for name in names}
        return {name: int(node.data) for name, node in nodes.items() if node is not None}
