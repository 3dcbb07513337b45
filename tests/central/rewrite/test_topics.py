"""Partition counts of the rewrite's topics.

The numbered points are those of "Kafka 0.9 Consumer Rewrite Design", "Partition changes for subscribed topics".
"""

from __future__ import annotations

from kcoord_wire.central.rewrite.events import RewriteError
from tests.support.rewrite_brokers import (
    ORDERS,
    Consumer,
    World,
    assigned,
    reads_a_group,
    stable_group,
    writes_a_generation,
)


def test_partition_changes_1_every_subscribed_topic_is_watched() -> None:
    world = World(1, topics={"orders": 3, "payments": 1})
    consumer = Consumer(world)
    assert assigned(consumer.join("orders", "new")) == [("orders", 0), ("orders", 1), ("orders", 2)]
    world.set_topic("payments", 2)
    assert not consumer.is_closed, "it does not subscribe to that"
    world.set_topic("new", 1)
    assert consumer.is_closed


def test_partition_changes_2_all_sockets_are_closed() -> None:
    world = World(1, topics=ORDERS)
    members = stable_group(world, 3)
    world.set_topic("orders", 4)
    assert [member.is_closed for member in members] == [True] * 3
    assert world.coordinator.noted("rebalance started")[-1]["reason"] == "partition change"
    assert world.group_record().generation == 2, "it goes up when all have joined"


def test_partition_changes_3_heartbeats_get_illegal_generation() -> None:
    world = World(1, topics=ORDERS)
    members = stable_group(world, 2)
    world.set_topic("orders", 4)
    for member in members:
        member.connect()
    assert [member.heartbeat() for member in members] == [RewriteError.ILLEGAL_GENERATION] * 2
    assert members[0].commit(7) == 0, "it commits before it joins"


def test_partition_changes_4_all_join_then_the_generation_rises() -> None:
    world = World(1, topics=ORDERS)
    members = stable_group(world, 2)
    world.set_topic("orders", 4)
    for member in members:
        member.connect()
    assert members[0].join() is None, "it waits for the other"
    assert world.group_record().generation == 2
    world.coordinator.held = writes_a_generation
    assert members[1].join() is None, "ZooKeeper does not have the generation yet"
    assert members[0].take() is None
    world.coordinator.release()
    answers = [member.take() for member in members]
    assert world.group_record().generation == 3
    assert [answer.generation_id for answer in answers] == [3, 3]
    assert assigned(*answers) == [("orders", number) for number in range(4)]


def test_partition_changes_5_requests_use_the_new_generation() -> None:
    world = World(1, topics=ORDERS)
    (member,) = stable_group(world, 1)
    world.set_topic("orders", 4)
    member.connect()
    before = member.generation
    assert member.join().consumer_id == member.consumer_id
    assert member.heartbeat(before) == RewriteError.ILLEGAL_GENERATION
    assert member.heartbeat() == 0


def test_partition_changes_while_the_coordinator_fails_are_seen() -> None:
    world = World(1, 2, topics=ORDERS)
    (member,) = stable_group(world, 1)
    (other,) = set(world.brokers.values()) - {world.coordinator}
    other.held = reads_a_group
    world.kill(world.coordinator.broker_id)
    world.set_topic("orders", 5)
    other.release()
    member.connect(other)
    assert member.heartbeat() == RewriteError.ILLEGAL_GENERATION
    assert len(assigned(member.join())) == 5


def test_partition_changes_while_the_generation_is_written() -> None:
    world = World(1, topics=ORDERS)
    consumer = Consumer(world)
    world.coordinator.held = writes_a_generation
    assert consumer.join() is None
    world.set_topic("orders", 4)
    world.coordinator.release()
    assert len(assigned(consumer.take())) == 3
    assert consumer.is_closed, "the assignment that it has is not the last"
