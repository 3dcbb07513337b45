"""Brokers of the rewrite on a ZooKeeper in memory, and consumers that a test plays by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from kcoord_wire import messages as m
from kcoord_wire.central.rewrite.coordinator import RewriteCoordinator
from kcoord_wire.central.rewrite.events import CoordinatorSettings
from kcoord_wire.central.rewrite.layout import metadata_path, parse_metadata, topic_record
from kcoord_wire.kernel.machines import BrokerAddress
from kcoord_wire.protocol.key_partitions import partition_of
from kcoord_wire.zookeeper.layout import ROOTS, topic_path
from kcoord_wire.zookeeper.requests import ANY_VERSION, Ask, Create, Multi, Read, SetData
from tests.support.memory_brokers import Broker, MemoryWorld, Peer

RewriteHosted: TypeAlias = Broker[RewriteCoordinator]

SETTINGS = CoordinatorSettings(shards=4)
SESSION_MS = 9_000  # of ZooKeeper; the lease is 3,000
GROUP = "billing"
SHARD = partition_of(GROUP, SETTINGS.shards)
ORDERS = {"orders": 3}


def writes_a_generation(ask: Ask) -> bool:
    """Whether it is the write that ends a rebalance of `GROUP`."""
    request = ask.request
    return isinstance(request, Multi) and any(write.path == metadata_path(SHARD, GROUP) for write in request.writes)


def reads_a_group(ask: Ask) -> bool:
    """Whether it reads `GROUP`, as a takeover does."""
    return ask.request == Read(metadata_path(SHARD, GROUP))


class World(MemoryWorld[RewriteCoordinator]):
    """Brokers, and the ZooKeeper that they share."""

    def __init__(self, *broker_ids: int, topics: dict[str, int] | None = None) -> None:
        super().__init__()
        for path in ROOTS:
            self.zookeeper.write(Create(path))
        for topic, count in (topics or {}).items():
            self.set_topic(topic, count)
        for broker_id in broker_ids:
            self.add_broker(broker_id)

    # ---- the cluster

    def add_broker(self, broker_id: int, host: str = "", *, under: int = 0) -> RewriteHosted:
        """Start a broker.

        :param under: the number under which the test knows it, if that is another one
        """
        machine = RewriteCoordinator(BrokerAddress(broker_id, host or f"host{broker_id}", 9_092), SETTINGS)
        broker = self.brokers[under or broker_id] = Broker(self, machine, SESSION_MS)
        self.run(0)
        return broker

    def kill(self, broker_id: int) -> RewriteHosted:
        """End a broker and its session; the watches of the others fire."""
        broker = self.brokers.pop(broker_id)
        self.zookeeper.expire(broker.link.registry.session_id)
        self.run(0)
        return broker

    def set_topic(self, topic: str, count: int) -> None:
        data = topic_record([[1]] * count)
        if self.zookeeper.node(topic_path(topic)) is None:
            self.zookeeper.write(Create(topic_path(topic), data))
        else:
            self.zookeeper.write(SetData(topic_path(topic), data, ANY_VERSION))
        self.run(0)

    @property
    def coordinator(self) -> RewriteHosted:
        """The broker that coordinates `GROUP`."""
        (found,) = [broker for broker in self.brokers.values() if broker.machine.shards.find(GROUP) is not None]
        return found

    def group_record(self) -> Any:
        """What ZooKeeper has of `GROUP`; None for nothing."""
        node = self.zookeeper.node(metadata_path(SHARD, GROUP))
        return None if node is None else parse_metadata(node.data)


class Consumer(Peer):
    """A consumer on one connection, which sends what the test wants.

    :ivar consumer_id: and `generation`, of its last JoinGroupResponse without an error
    """

    def __init__(self, world: World, broker: RewriteHosted | None = None) -> None:
        self.consumer_id = ""
        self.generation = -1
        super().__init__(world, broker or world.coordinator)

    def disconnect(self) -> None:
        super().disconnect()
        self.world.run(0)

    def send(self, request: Any) -> None:
        super().send(request)
        self.world.run(0)

    def take(self) -> Any:
        """Return the answer that has come, None for none."""
        answer = self.inbox.pop(0) if self.inbox else None
        if isinstance(answer, m.rewrite.RewriteJoinGroupResponse) and answer.error_code == 0:
            self.consumer_id, self.generation = answer.consumer_id, answer.generation_id
        return answer

    def ask(self, request: Any) -> Any:
        self.send(request)
        return self.take()

    def join(
        self, *topics: str, strategy: str = "range", session_ms: int = 6_000, consumer_id: str | None = None
    ) -> Any:
        """Send JoinGroup and return the answer, None while it is parked."""
        return self.ask(
            m.rewrite.RewriteJoinGroupRequest(
                group_id=GROUP,
                session_timeout_ms=session_ms,
                topics=list(topics or ("orders",)),
                consumer_id=self.consumer_id if consumer_id is None else consumer_id,
                strategy=strategy,
            )
        )

    def heartbeat(self, generation: int | None = None) -> int:
        """Send a heartbeat and return the error."""
        wanted = self.generation if generation is None else generation
        answer = self.ask(m.HeartbeatRequest(group_id=GROUP, generation_id=wanted, member_id=self.consumer_id))
        return int(answer.error_code)

    def find(self, group: str = GROUP) -> Any:
        """Send ConsumerMetadata and return the answer."""
        return self.ask(m.FindCoordinatorRequest(key=group))

    def commit_request(self, offsets: dict[tuple[str, int], int], generation: int | None = None) -> Any:
        return m.OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=self.generation if generation is None else generation,
            member_id=self.consumer_id,
            topics=[
                m.OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[m.OffsetCommitRequestPartition(partition_index=number, committed_offset=offset)],
                )
                for (topic, number), offset in offsets.items()
            ],
        )

    def commit(self, offset: int, generation: int | None = None) -> int | None:
        """Commit an offset of orders-0 and return the error, None while it is not answered."""
        answer = self.ask(self.commit_request({("orders", 0): offset}, generation))
        return None if answer is None else int(answer.topics[0].partitions[0].error_code)

    def committed(self, *partitions: tuple[str, int]) -> list[int]:
        """Fetch committed offsets, of orders-0 if none is named."""
        wanted = partitions or (("orders", 0),)
        topics = [m.OffsetFetchRequestTopic(name=topic, partition_indexes=[number]) for topic, number in wanted]
        answer = self.ask(m.OffsetFetchRequest(group_id=GROUP, topics=topics))
        return [topic.partitions[0].committed_offset for topic in answer.topics]


def stable_group(world: World, count: int, **join: Any) -> list[Consumer]:
    """Return consumers that are members of one generation of `GROUP`."""
    consumers = [Consumer(world) for _ in range(count)]
    for consumer in consumers:
        consumer.join(**join)
    if count > 1:
        consumers[0].join(**join)
        assert [consumer.take().error_code for consumer in consumers[1:]] == [0] * (count - 1)
    return consumers


def world_of(count: int, *, brokers: int = 1, **join: Any) -> tuple[World, list[Consumer]]:
    """Return brokers with the topic ``orders`` of three partitions, and the members of `GROUP`."""
    world = World(*range(1, brokers + 1), topics=ORDERS)
    return world, stable_group(world, count, **join)


def change_partitions(world: World, members: Sequence[Consumer]) -> None:
    """Add a partition to ``orders``, with which the connections are closed; the members connect again."""
    world.set_topic("orders", 4)
    for member in members:
        member.connect()


def rejoin(consumers: Sequence[Consumer], **join: Any) -> list[Any]:
    """Send JoinGroup of every consumer, and return the answers when the last has joined."""
    answers = [consumer.join(**join) for consumer in consumers]
    return [answer or consumer.take() for answer, consumer in zip(answers, consumers, strict=True)]


def assigned(*answers: Any) -> list[tuple[str, int]]:
    """Return the partitions that answers to JoinGroup assign, sorted."""
    return sorted(
        (topic.topic, number)
        for answer in answers
        for topic in answer.assigned_partitions
        for number in topic.partitions
    )
