"""Shards of the rewrite: taken over with their groups, and lost.

The numbered points are those of "Kafka 0.9 Consumer Rewrite Design", "Co-ordinator failover".
"""

from __future__ import annotations

from kcoord_wire.central.rewrite.events import RewriteError
from kcoord_wire.central.rewrite.layout import SHARDS
from kcoord_wire.zookeeper.model import ANY_VERSION, SetData
from tests.support.rewrite_brokers import (
    ORDERS,
    SHARD,
    Consumer,
    World,
    reads_a_group,
    stable_group,
)


def test_co_ordinator_failover_1_groups_are_read_from_zookeeper() -> None:
    world = World(1, 2, topics=ORDERS)
    members = stable_group(world, 2)
    world.kill(world.coordinator.broker_id)
    assert world.coordinator.noted("coordination started")[-1]["epoch"] > 1
    for member in members:
        member.connect(world.coordinator)
    assert [member.heartbeat() for member in members] == [0, 0], "consumer ids and generation are known"
    record = world.group_record()
    assert (record.generation, set(record.consumers)) == (2, {member.consumer_id for member in members})
    assert {consumer.topics for consumer in record.consumers.values()} == {("orders",)}


def test_co_ordinator_failover_1_errors_until_all_are_read() -> None:
    world = World(1, 2, topics=ORDERS)
    (member,) = stable_group(world, 1)
    (other,) = set(world.brokers.values()) - {world.coordinator}
    other.held = reads_a_group
    world.kill(world.coordinator.broker_id)
    member.connect(other)
    assert member.heartbeat() == RewriteError.COORDINATOR_STARTUP_NOT_COMPLETE
    assert member.find().error_code == RewriteError.COORDINATOR_STARTUP_NOT_COMPLETE
    assert member.join().error_code == RewriteError.ILLEGAL_PROTOCOL_STATE
    assert member.commit(5) == RewriteError.COORDINATOR_STARTUP_NOT_COMPLETE
    other.release()
    assert member.heartbeat() == 0
    assert (member.find().error_code, member.find().node_id) == (0, other.broker_id)


def test_co_ordinator_failover_1_the_controller_too_is_replaced() -> None:
    world = World(1, 2, 3, topics=ORDERS)
    (controller,) = [broker for broker in world.brokers.values() if broker.noted("controller elected")]
    world.kill(controller.broker_id)
    world.run(1_000)
    assert sum(len(broker.noted("controller elected")) for broker in world.brokers.values()) == 1
    shards = [len(broker.machine.shards.own) for broker in world.brokers.values()]
    assert sorted(shards) == [2, 2]


def test_co_ordinator_failover_2_stale_metadata_until_the_watch() -> None:
    world = World(1, 2, 3, topics=ORDERS)
    member = Consumer(world)
    old = world.coordinator
    stale = next(broker for broker in world.brokers.values() if broker is not old)
    stale.is_paused = True
    node = world.zookeeper.node(SHARDS)
    assert node is not None
    (new,) = set(world.brokers.values()) - {old, stale}
    owners = ["null", "null", "null", "null"]
    owners[SHARD] = str(new.broker_id)
    world.zookeeper.write(SetData(SHARDS, f"[{', '.join(owners)}]".encode(), ANY_VERSION))
    world.settle()
    member.connect(stale)
    assert member.find().node_id == old.broker_id, "the response is stale"
    member.connect(old)
    assert member.heartbeat(1) == RewriteError.NOT_COORDINATOR_FOR_GROUP
    assert member.commit(1, 1) == RewriteError.NOT_COORDINATOR_FOR_GROUP
    assert member.join().error_code == RewriteError.NOT_COORDINATOR_FOR_GROUP
    stale.is_paused = False
    world.settle()
    member.connect(stale)
    assert member.find().node_id == new.broker_id


def test_co_ordinator_failover_3_the_generation_goes_on() -> None:
    """The consumer goes on fetching: after a failover without changes its generation is still the group's."""
    world = World(1, 2, topics=ORDERS)
    members = stable_group(world, 2)
    generation = members[0].generation
    world.kill(world.coordinator.broker_id)
    for member in members:
        member.connect(world.coordinator)
    world.run(5_000)
    assert [member.heartbeat() for member in members] == [0, 0]
    assert members[0].commit(3) == 0
    assert world.group_record().generation == generation
