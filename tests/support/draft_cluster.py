"""Coordinators of the draft on a ZooKeeper in memory, and consumers that a test scripts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kcoord_wire.central.draft.coordinator import DraftCoordinator
from kcoord_wire.central.draft.events import CoordinatorSettings, Partition
from kcoord_wire.central.draft.subscription import format_topics
from kcoord_wire.kernel.machines import BrokerAddress
from kcoord_wire.messages import central as m
from kcoord_wire.zookeeper.layout import BROKER_TOPICS, offset_path, owner_path, topic_path, topic_switch
from kcoord_wire.zookeeper.requests import Create, SetData
from tests.support.memory_brokers import Broker, MemoryWorld, Peer

SESSION_MS = 6_000  # of ZooKeeper


class Consumer(Peer):
    """A consumer whose answers the test gives, or that answers by itself.

    :ivar positions: what its answers report; None for no auto-commit
    :ivar answers: the classes of requests that it answers by itself
    """

    def __init__(self, cluster: DraftCluster, broker: Broker[DraftCoordinator], consumer_id: str) -> None:
        self.consumer_id = consumer_id
        self.positions: dict[Partition, int] | None = {}
        self.answers: set[type] = {m.PingRequest, m.StopFetcherRequest, m.StartFetcherRequest}
        super().__init__(cluster, broker)

    def register(self, group: str = "g", topics: str = "", **fields: Any) -> None:
        """Send RegisterConsumer; two streams of ``orders`` unless `topics` says otherwise."""
        given = {"auto_commit": True, "auto_offset_rest": "smallest", "session_timeout_ms": 6_000, **fields}
        topics = topics or format_topics({"orders": 1})
        self.send(m.RegisterConsumerRequest(group_id=group, consumer_id=self.consumer_id, topic_count=topics, **given))

    def receive(self, message: Any) -> None:
        """Take in what the coordinator has sent."""
        super().receive(message)
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


class DraftCluster(MemoryWorld[DraftCoordinator]):
    """Brokers, the first of which is there at once, and consumers.

    :param orders: number of partitions of that topic; 0 for none
    """

    def __init__(self, *, orders: int = 0, **settings: Any) -> None:
        super().__init__()
        self.settings = CoordinatorSettings(**settings)
        self.add_broker(1)
        if orders:
            self.add_topic("orders", orders)

    @property
    def term(self) -> Any:
        """What the first broker does as the coordinator."""
        term = self.brokers[1].machine.candidates[0].term
        assert term is not None
        return term

    def add_broker(self, broker_id: int, host: str = "host", *, under: int = 0) -> Broker[DraftCoordinator]:
        """Start a broker.

        :param under: the number under which the test knows it, if that is another one
        """
        machine = DraftCoordinator(BrokerAddress(broker_id, host, 9_000 + broker_id), self.settings)
        broker = self.brokers[under or broker_id] = Broker(self, machine, SESSION_MS)
        self.run(0)
        return broker

    def add_topic(self, topic: str, partitions: int, broker_id: int = 1) -> None:
        """Create a topic, or change its number of partitions at a broker."""
        for path in (f"{BROKER_TOPICS}/{topic}", f"{BROKER_TOPICS}/{topic}/{broker_id}"):
            self.zookeeper.write(Create(path))
        self.zookeeper.write(SetData(f"{BROKER_TOPICS}/{topic}/{broker_id}", b"%d" % partitions))
        self.run(0)

    def switch_rebalancing(self, topic: str, *, is_on: bool) -> None:
        """Switch the rebalancing of a topic on or off, as an operator does."""
        self.zookeeper.write(SetData(topic_path(topic), topic_switch(is_on)))
        self.run(0)

    def consumer(self, consumer_id: str, broker_id: int = 1, **fields: Any) -> Consumer:
        """Connect and register a consumer."""
        consumer = Consumer(self, self.brokers[broker_id], consumer_id)
        consumer.register(**fields)
        self.run(0)
        return consumer

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
