"""The term of a broker of the rewrite: what ends it, and what it cannot write after that."""

from __future__ import annotations

from kcoord_wire import messages as m
from kcoord_wire.central.rewrite.coordinator import RewriteCoordinator
from kcoord_wire.central.rewrite.events import RewriteError
from kcoord_wire.central.rewrite.layout import SHARDS
from kcoord_wire.kernel.machines import BrokerAddress, Received
from kcoord_wire.zookeeper.model import ANY_VERSION, Ask, SetData
from tests.support.rewrite_brokers import (
    GROUP,
    ORDERS,
    SESSION_MS,
    SHARD,
    Broker,
    Consumer,
    World,
    stable_group,
)


def test_a_broker_that_lost_its_shard_cannot_write() -> None:
    world = World(1, 2, topics=ORDERS)
    (member,) = stable_group(world, 1)
    assert member.commit(5) == 0
    old = world.coordinator
    old.is_paused = True  # it does not see its watch
    held: list[Ask] = []
    old.link.ask = held.append  # type: ignore[method-assign]  # what it asks arrives later
    member.broker.handle(Received(member.connection, member.commit_request({("orders", 0): 6})))
    (new,) = set(world.brokers.values()) - {old}
    owners = ["null"] * 4
    owners[SHARD] = str(new.broker_id)
    world.zookeeper.write(SetData(SHARDS, f"[{', '.join(owners)}]".encode(), ANY_VERSION))
    world.settle()
    heir = Consumer(world, new)
    heir.consumer_id, heir.generation = member.consumer_id, member.generation
    assert heir.commit(7) == 0
    del old.link.ask
    for ask in held:
        old.link.ask(ask)
    old.is_paused = False
    world.settle()
    assert member.take().topics[0].partitions[0].error_code == RewriteError.NOT_COORDINATOR_FOR_GROUP
    assert heir.committed() == [7]


def test_a_broker_without_connection_to_zookeeper_stops_at_once() -> None:
    world = World(1, 2, topics=ORDERS)
    (member,) = stable_group(world, 1)
    waiting = Consumer(world)
    waiting.join()
    broker = world.coordinator
    broker.link.cut(world.now)
    assert member.is_closed
    assert waiting.is_closed
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
    world = World(1, topics=ORDERS)
    (member,) = stable_group(world, 1)
    broker = world.coordinator
    world.now += SESSION_MS // 3 + 1
    member.broker.handle(
        Received(member.connection, m.HeartbeatRequest(group_id=GROUP, generation_id=1, member_id=member.consumer_id))
    )
    assert member.take() is None
    assert member.is_closed
    assert broker.noted("broker resigned")[-1]["reason"] == "lease expired"


def test_two_brokers_with_one_id_do_not_depose_each_other() -> None:
    world = World(1, topics=ORDERS)
    first = world.brokers[1]
    second = world.brokers[2] = Broker(world, 1)
    second.machine = RewriteCoordinator(BrokerAddress(1, "elsewhere", 9_092))
    world.run(5_000)
    terms = {number: shard.epoch for number, shard in first.machine.shards.own.items()}
    world.run(20_000)
    assert terms == {number: shard.epoch for number, shard in first.machine.shards.own.items()}
    assert len(terms) == 4
    assert second.machine.shards.own == {}
