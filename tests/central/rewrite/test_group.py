"""A group of the rewrite, the partition counts of its topics, and shards that are taken over and lost.

The numbered points are those of "Kafka 0.9 Consumer Rewrite Design", "Partition changes for subscribed topics" and
"Co-ordinator failover".
"""

from __future__ import annotations

import pytest

from kcoord_wire.central.rewrite.events import RewriteError
from kcoord_wire.central.rewrite.group import MOVES, Group, GroupMember, GroupState
from kcoord_wire.central.rewrite.layout import SHARDS, GroupMetadata
from kcoord_wire.zookeeper.requests import ANY_VERSION, SetData
from tests.support.rewrite_brokers import (
    ORDERS,
    SHARD,
    Consumer,
    World,
    assigned,
    change_partitions,
    reads_a_group,
    world_of,
    writes_a_generation,
)


@pytest.mark.parametrize("before", GroupState)
@pytest.mark.parametrize("after", GroupState)
def test_only_the_moves_of_the_table_are_made(before: GroupState, after: GroupState) -> None:
    group = Group("g", 0, state=before)
    if after in MOVES[before]:
        group.move(after)
        assert group.state is after
    else:
        with pytest.raises(AssertionError, match=f"{before} to {after}"):
            group.move(after)


def test_the_assignment_is_a_function_of_the_record() -> None:
    group = Group("g", 0, strategy="range")
    for name in ("b", "a"):
        group.add(GroupMember(name, ("orders", "missing"), 6_000))
    record = group.record({"orders": 3, "missing": 0})
    assert record.generation == 1
    group.begin(record)
    assert {name: list(topics["orders"]) for name, topics in group.assignment().items()} == {"a": [0, 1], "b": [2]}
    group.begin(GroupMetadata(2, "range", record.consumers, {"orders": 1}))
    assert list(group.assignment()["a"]["orders"]) == [0]


def test_a_group_without_members_has_no_new_generation() -> None:
    group = Group("g", 0, generation=4, strategy="range")
    assert group.record({}).generation == 4
    group.add(GroupMember("a", (), 6_000))
    assert group.record({}).generation == 5


def test_topics_sizes_and_joins_are_counted() -> None:
    group = Group("g", 0, strategy="range")
    members = [GroupMember(f"c-{number}", ("orders", f"own-{number}"), 6_000) for number in range(3)]
    for member in members:
        group.add(member)
    assert group.topics == {"orders": 3, "own-0": 1, "own-1": 1, "own-2": 1}
    assert len(group.record(dict.fromkeys(group.topics, 1)).to_bytes()) <= group.size + 200
    group.set_joined(members[0], True)
    group.set_joined(members[0], True)
    group.set_joined(members[1], True)
    assert (group.joined, group.have_all_joined) == (2, False)
    group.remove(members[2])
    assert group.have_all_joined
    group.remove(members[0])
    group.remove(members[1])
    assert (group.joined, group.size, group.topics) == (0, 0, {})


def test_partition_changes_1_every_subscribed_topic_is_watched() -> None:
    world = World(1, topics={"orders": 3, "payments": 1})
    consumer = Consumer(world)
    assert assigned(consumer.join("orders", "new")) == [("orders", 0), ("orders", 1), ("orders", 2)]
    world.set_topic("payments", 2)
    assert consumer.is_open, "it does not subscribe to that"
    world.set_topic("new", 1)
    assert not consumer.is_open


def test_partition_changes_2_all_sockets_are_closed() -> None:
    world, members = world_of(3)
    world.set_topic("orders", 4)
    assert not any(member.is_open for member in members)
    assert world.coordinator.noted("rebalance started")[-1]["reason"] == "partition change"
    assert world.group_record().generation == 2, "it goes up when all have joined"


def test_partition_changes_3_heartbeats_get_illegal_generation() -> None:
    world, members = world_of(2)
    change_partitions(world, members)
    assert [member.heartbeat() for member in members] == [RewriteError.ILLEGAL_GENERATION] * 2
    assert members[0].commit(7) == 0, "it commits before it joins"


def test_partition_changes_4_all_join_then_the_generation_rises() -> None:
    world, members = world_of(2)
    change_partitions(world, members)
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
    world, (member,) = world_of(1)
    world.set_topic("orders", 4)
    member.connect()
    before = member.generation
    assert member.join().consumer_id == member.consumer_id
    assert member.heartbeat(before) == RewriteError.ILLEGAL_GENERATION
    assert member.heartbeat() == 0


def test_partition_changes_while_the_coordinator_fails_are_seen() -> None:
    world, (member,) = world_of(1, brokers=2)
    (other,) = set(world.brokers.values()) - {world.coordinator}
    other.held = reads_a_group
    world.kill(world.coordinator.machine.broker_id)
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
    assert not consumer.is_open, "the assignment that it has is not the last"


def test_co_ordinator_failover_1_groups_are_read_from_zookeeper() -> None:
    world, members = world_of(2, brokers=2)
    world.kill(world.coordinator.machine.broker_id)
    assert world.coordinator.noted("coordination started")[-1]["epoch"] > 1
    for member in members:
        member.connect(world.coordinator)
    assert [member.heartbeat() for member in members] == [0, 0], "consumer ids and generation are known"
    record = world.group_record()
    assert (record.generation, set(record.consumers)) == (2, {member.consumer_id for member in members})
    assert {consumer.topics for consumer in record.consumers.values()} == {("orders",)}


def test_co_ordinator_failover_1_errors_until_all_are_read() -> None:
    world, (member,) = world_of(1, brokers=2)
    (other,) = set(world.brokers.values()) - {world.coordinator}
    other.held = reads_a_group
    world.kill(world.coordinator.machine.broker_id)
    member.connect(other)
    assert member.heartbeat() == RewriteError.COORDINATOR_STARTUP_NOT_COMPLETE
    assert member.find().error_code == RewriteError.COORDINATOR_STARTUP_NOT_COMPLETE
    assert member.join().error_code == RewriteError.ILLEGAL_PROTOCOL_STATE
    assert member.commit(5) == RewriteError.COORDINATOR_STARTUP_NOT_COMPLETE
    other.release()
    assert member.heartbeat() == 0
    assert (member.find().error_code, member.find().node_id) == (0, other.machine.broker_id)


def test_co_ordinator_failover_1_the_controller_too_is_replaced() -> None:
    world = World(1, 2, 3, topics=ORDERS)
    (controller,) = [broker for broker in world.brokers.values() if broker.noted("controller elected")]
    world.kill(controller.machine.broker_id)
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
    owners[SHARD] = str(new.machine.broker_id)
    world.zookeeper.write(SetData(SHARDS, f"[{', '.join(owners)}]".encode(), ANY_VERSION))
    world.run(0)
    member.connect(stale)
    assert member.find().node_id == old.machine.broker_id, "the response is stale"
    member.connect(old)
    assert member.heartbeat(1) == RewriteError.NOT_COORDINATOR_FOR_GROUP
    assert member.commit(1, 1) == RewriteError.NOT_COORDINATOR_FOR_GROUP
    assert member.join().error_code == RewriteError.NOT_COORDINATOR_FOR_GROUP
    stale.is_paused = False
    world.run(0)
    member.connect(stale)
    assert member.find().node_id == new.machine.broker_id


def test_co_ordinator_failover_3_the_generation_goes_on() -> None:
    """The consumer goes on fetching: after a failover without changes its generation is still the group's."""
    world, members = world_of(2, brokers=2)
    generation = members[0].generation
    world.kill(world.coordinator.machine.broker_id)
    for member in members:
        member.connect(world.coordinator)
    world.run(5_000)
    assert [member.heartbeat() for member in members] == [0, 0]
    assert members[0].commit(3) == 0
    assert world.group_record().generation == generation
