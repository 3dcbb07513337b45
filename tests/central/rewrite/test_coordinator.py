"""A broker of the rewrite: its term, the controller, Metadata, and requests that no correct client sends."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoord_wire import messages as m
from kcoord_wire.central.rewrite.coordinator import MOST_NAMES, spread
from kcoord_wire.central.rewrite.events import RewriteError
from kcoord_wire.central.rewrite.layout import CONTROLLER_EPOCH, SHARDS, parse_owners, shard_path
from kcoord_wire.kernel.machines import Received
from kcoord_wire.zookeeper.requests import ANY_VERSION, Ask, SetData
from tests.support.rewrite_brokers import (
    GROUP,
    ORDERS,
    SESSION_MS,
    SETTINGS,
    SHARD,
    Consumer,
    World,
    world_of,
)


def test_a_broker_that_lost_its_shard_cannot_write() -> None:
    world, (member,) = world_of(1, brokers=2)
    assert member.commit(5) == 0
    old = world.coordinator
    old.is_paused = True  # it does not see its watch
    held: list[Ask] = []
    old.link.ask = held.append  # type: ignore[method-assign]  # what it asks arrives later
    member.broker.handle(Received(member.connection, member.commit_request({("orders", 0): 6})))
    (new,) = set(world.brokers.values()) - {old}
    owners = ["null"] * 4
    owners[SHARD] = str(new.machine.broker_id)
    world.zookeeper.write(SetData(SHARDS, f"[{', '.join(owners)}]".encode(), ANY_VERSION))
    world.run(0)
    heir = Consumer(world, new)
    heir.consumer_id, heir.generation = member.consumer_id, member.generation
    assert heir.commit(7) == 0
    del old.link.ask
    for ask in held:
        old.link.ask(ask)
    old.is_paused = False
    world.run(0)
    assert member.take().topics[0].partitions[0].error_code == RewriteError.NOT_COORDINATOR_FOR_GROUP
    assert heir.committed() == [7]


@pytest.mark.parametrize("writes", [lambda member: member.commit(6), lambda member: member.join("other")])
def test_a_shard_whose_write_was_refused_is_retaken(writes: Callable[[Consumer], object]) -> None:
    """Somebody has written the shard's node, and no watch fires, since the assignment is the same."""
    world, (member,) = world_of(1)
    epoch = world.coordinator.machine.shards.own[SHARD].epoch
    world.zookeeper.write(SetData(shard_path(SHARD), b"9", ANY_VERSION))
    writes(member)
    world.run(0)
    assert world.coordinator.machine.shards.own[SHARD].epoch == epoch + 2
    again = Consumer(world)
    again.consumer_id, again.generation = member.consumer_id, member.generation
    assert again.heartbeat() == 0
    assert again.commit(6) == 0


def test_a_broker_without_connection_to_zookeeper_stops_at_once() -> None:
    world, (member,) = world_of(1, brokers=2)
    waiting = Consumer(world)
    waiting.join()
    broker = world.coordinator
    broker.link.cut(world.now)
    assert not member.is_open
    assert not waiting.is_open
    assert broker.noted("broker resigned")
    assert broker.machine.shards.own == {}
    late = Consumer(world, broker)
    assert late.find().error_code == RewriteError.COORDINATOR_NOT_AVAILABLE
    broker.link.heal()
    world.run(SESSION_MS // 3)
    again = Consumer(world)
    again.consumer_id, again.generation = member.consumer_id, member.generation
    assert again.heartbeat() == 0, "the session lives: the group is read again"


def test_a_paused_broker_resigns_before_it_acts() -> None:
    world, (member,) = world_of(1)
    broker = world.coordinator
    world.now += SESSION_MS // 3 + 1
    member.broker.handle(
        Received(member.connection, m.HeartbeatRequest(group_id=GROUP, generation_id=1, member_id=member.consumer_id))
    )
    assert member.take() is None
    assert not member.is_open
    assert broker.noted("broker resigned")[-1]["reason"] == "lease expired"


def test_two_brokers_with_one_id_do_not_depose_each_other() -> None:
    world = World(1, topics=ORDERS)
    first = world.brokers[1]
    second = world.add_broker(1, "elsewhere", under=2)
    world.run(5_000)
    terms = {number: shard.epoch for number, shard in first.machine.shards.own.items()}
    elections = world.data(CONTROLLER_EPOCH)
    world.run(20_000)
    assert world.data(CONTROLLER_EPOCH) == elections
    assert terms == {number: shard.epoch for number, shard in first.machine.shards.own.items()}
    assert len(terms) == 4
    assert second.machine.shards.own == {}


OWNERS = st.lists(st.none() | st.integers(0, 6), min_size=1, max_size=30)
LIVE = st.sets(st.integers(0, 6), max_size=6)


@given(OWNERS, LIVE)
def test_all_shards_go_to_brokers_that_live_evenly(owners: list[int | None], live: set[int]) -> None:
    after = spread(owners, live)
    assert len(after) == len(owners)
    if not live:
        assert set(after) == {None}
        return
    loads = [after.count(broker) for broker in live]
    assert sum(loads) == len(owners)
    assert max(loads) - min(loads) <= 1


@given(OWNERS, LIVE.filter(bool))
def test_a_shard_moves_only_from_dead_or_fuller_brokers(owners: list[int | None], live: set[int]) -> None:
    after = spread(owners, live)
    assert spread(after, live) == after
    for shard, (before, now) in enumerate(zip(owners, after, strict=True)):
        if before in live and now != before:
            assert owners.count(before) > after.count(before), shard


def owners_of(world: World) -> list[int | None]:
    return parse_owners(world.data(SHARDS))


def test_brokers_that_come_and_go_change_the_assignment() -> None:
    world = World(1)
    assert owners_of(world) == [1] * SETTINGS.shards
    world.add_broker(2)
    assert sorted(map(str, owners_of(world))) == ["1", "1", "2", "2"]
    world.kill(1)
    world.run(1_000)
    assert owners_of(world) == [2] * SETTINGS.shards


def test_every_shard_has_one_coordinator() -> None:
    world = World(1, 2, 3)
    for dead in (2, 1):
        own = [shard for broker in world.brokers.values() for shard in broker.machine.shards.own]
        assert sorted(own) == list(range(SETTINGS.shards))
        world.kill(dead)
        world.run(1_000)


def test_only_one_broker_is_controller_at_a_time() -> None:
    world = World(1, 2, 3)
    history = []
    for dead in (1, 2):
        history += [broker for broker in world.brokers.values() if broker.noted("controller elected")]
        world.kill(dead)
        world.run(1_000)
    history += [broker for broker in world.brokers.values() if broker.noted("controller elected")]
    epochs = [broker.noted("controller elected")[-1]["epoch"] for broker in history]
    assert all(before < after for before, after in pairwise(epochs))
    assert int(world.data(CONTROLLER_EPOCH)) == epochs[-1]


def test_a_controller_that_was_replaced_cannot_assign() -> None:
    """Another broker's election counts the epoch up; the write of the former controller checks it."""
    world = World(1)
    before = owners_of(world)
    world.zookeeper.write(SetData(CONTROLLER_EPOCH, world.data(CONTROLLER_EPOCH), ANY_VERSION))
    controller = world.brokers[1]
    controller.is_paused = True
    world.add_broker(2)
    controller.is_paused = False
    world.run(1_000)
    assert controller.noted("controller resigned")
    assert set(before) == {1}
    assert set(owners_of(world)) == {1, 2}, "it has been elected again"
    assert len(controller.noted("controller elected")) == 2


def test_an_unreadable_assignment_is_reported_now_and_then() -> None:
    world = World(1)
    world.zookeeper.write(SetData(SHARDS, b"nonsense", ANY_VERSION))
    world.add_broker(2)
    world.run(5_000)
    failures = [broker.noted("shards not assigned") for broker in world.brokers.values()]
    assert 1 <= sum(map(len, failures)) <= 20
    assert all(broker.machine.shards.own == {} for broker in world.brokers.values())
    assert Consumer(world, world.brokers[1]).find().error_code == RewriteError.COORDINATOR_NOT_AVAILABLE


def test_metadata_has_brokers_topics_and_leaders() -> None:
    world = World(1, 2, topics=ORDERS)
    answer = Consumer(world).ask(m.MetadataRequest(topics=[]))
    assert [(broker.node_id, broker.host, broker.port) for broker in answer.brokers] == [
        (1, "host1", 9092),
        (2, "host2", 9092),
    ]
    assert [(topic.name, len(topic.partitions)) for topic in answer.topics] == [("orders", 3)]
    assert {partition.leader_id for partition in answer.topics[0].partitions} == {1}
    wrong = Consumer(world).ask(m.MetadataRequest(topics=[m.MetadataRequestTopic(name="a/b")]))
    assert [topic.error_code for topic in wrong.topics] == [RewriteError.UNKNOWN_TOPIC_OR_PARTITION]


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"group_id": "a/b"}, RewriteError.INVALID_REQUEST),
        ({"group_id": ""}, RewriteError.INVALID_REQUEST),
        ({"topics": ["a/../b"]}, RewriteError.INVALID_REQUEST),
        ({"session_timeout_ms": 10}, RewriteError.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1 << 30}, RewriteError.INVALID_SESSION_TIMEOUT),
        ({"strategy": "mine"}, RewriteError.UNKNOWN_STRATEGY),
    ],
)
def test_a_joingroup_with_wrong_values_is_refused_and_noted(request_: dict[str, object], error: RewriteError) -> None:
    world, (member,) = world_of(1)
    right = {"group_id": GROUP, "session_timeout_ms": 6_000, "topics": ["orders"], "strategy": "range"}
    hostile = Consumer(world)
    assert hostile.ask(m.rewrite.RewriteJoinGroupRequest(**(right | request_))).error_code == error  # type: ignore[arg-type]
    assert world.coordinator.noted("request refused")[-1]["error"] == error.name
    assert member.heartbeat() == 0


def test_another_strategy_than_the_groups_is_refused() -> None:
    world, (member,) = world_of(1)
    assert Consumer(world).join(strategy="roundrobin").error_code == RewriteError.INCONSISTENT_STRATEGY
    assert member.heartbeat() == 0


def test_unknown_consumers_are_refused() -> None:
    world, (member,) = world_of(1)
    stranger = Consumer(world)
    stranger.consumer_id, stranger.generation = "stranger", 1
    unknown = RewriteError.UNKNOWN_CONSUMER_ID
    assert (stranger.heartbeat(), stranger.commit(1), stranger.join().error_code) == (unknown, unknown, unknown)
    assert member.heartbeat() == 0


@pytest.mark.parametrize(("partition", "offset"), [(("orders", -1), 1), (("orders", 0), -2), (("or/ders", 0), 1)])
def test_invalid_commits_are_refused(partition: tuple[str, int], offset: int) -> None:
    _world, (member,) = world_of(1)
    answer = member.ask(member.commit_request({partition: offset}))
    assert answer.topics[0].partitions[0].error_code == RewriteError.INVALID_REQUEST


def test_requests_of_too_many_names_are_refused() -> None:
    world = World(1, topics=ORDERS)
    consumer = Consumer(world)
    many = [f"t{number}" for number in range(MOST_NAMES + 1)]
    metadata = m.MetadataRequest(topics=[m.MetadataRequestTopic(name=name) for name in many])
    assert {topic.error_code for topic in consumer.ask(metadata).topics} == {RewriteError.INVALID_REQUEST}
    assert consumer.join(*many).error_code == RewriteError.INVALID_REQUEST
    indexes = list(range(2 * MOST_NAMES + 1))
    wanted = m.OffsetFetchRequest(
        group_id=GROUP, topics=[m.OffsetFetchRequestTopic(name="orders", partition_indexes=indexes)]
    )
    [topic] = consumer.ask(wanted).topics
    assert {partition.error_code for partition in topic.partitions} == {RewriteError.INVALID_REQUEST}
