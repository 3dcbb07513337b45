"""The controller of the rewrite: which broker coordinates which shard."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kcoord_wire.central.rewrite.coordinator import spread
from kcoord_wire.central.rewrite.events import RewriteError
from kcoord_wire.central.rewrite.layout import CONTROLLER_EPOCH, SHARDS, parse_owners
from kcoord_wire.zookeeper.model import ANY_VERSION, SetData
from tests.support.rewrite_brokers import SETTINGS, Consumer, World

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
    node = world.zookeeper.node(SHARDS)
    assert node is not None
    return parse_owners(node.data)


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
    node = world.zookeeper.node(CONTROLLER_EPOCH)
    assert node is not None
    assert int(node.data) == epochs[-1]


def test_a_controller_that_was_replaced_cannot_assign() -> None:
    """Another broker's election counts the epoch up; the write of the former controller checks it."""
    world = World(1)
    before = owners_of(world)
    node = world.zookeeper.node(CONTROLLER_EPOCH)
    assert node is not None
    world.zookeeper.write(SetData(CONTROLLER_EPOCH, node.data, ANY_VERSION))
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
