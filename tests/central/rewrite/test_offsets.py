"""Commits of the rewrite.

The numbered points are those of "Kafka 0.9 Consumer Rewrite Design", "Offset commits during rebalance".
"""

from __future__ import annotations

from kcoord_wire.central.rewrite.events import RewriteError
from kcoord_wire.zookeeper.layout import offset_path
from kcoord_wire.zookeeper.model import Read
from tests.support.rewrite_brokers import (
    GROUP,
    ORDERS,
    Consumer,
    World,
    assigned,
    rejoin,
    stable_group,
    writes_a_generation,
)


def test_offset_commits_1_are_accepted_before_the_joingroup() -> None:
    world = World(1, topics=ORDERS)
    members = stable_group(world, 2)
    Consumer(world).join()
    assert members[0].heartbeat() == RewriteError.ILLEGAL_GENERATION
    assert members[0].commit(11) == 0
    assert members[0].committed() == [11]


def test_offset_commits_2_a_higher_generation_is_a_bug() -> None:
    world = World(1, topics=ORDERS)
    (member,) = stable_group(world, 1)
    assert member.commit(5, member.generation + 1) == RewriteError.ILLEGAL_GENERATION
    assert "bug of the consumer" in world.coordinator.noted("request refused")[-1]["reason"]
    assert member.committed() == [-1]


def test_offset_commits_3_an_older_generation_is_refused() -> None:
    world = World(1, topics=ORDERS)
    members = stable_group(world, 2)
    old = members[0].generation
    third = Consumer(world)
    assert third.join() is None
    rejoin(members)
    assert members[0].commit(5, old) == RewriteError.ILLEGAL_GENERATION
    assert members[0].commit(6) == 0
    assert members[0].committed() == [6]


def test_offset_commits_3_none_between_last_join_and_answer() -> None:
    world = World(1, topics=ORDERS)
    members = stable_group(world, 2)
    world.set_topic("orders", 4)
    for member in members:
        member.connect()
    members[0].join()
    world.coordinator.held = writes_a_generation
    members[1].join()
    zombie = Consumer(world)
    zombie.consumer_id, zombie.generation = members[0].consumer_id, members[0].generation
    assert zombie.commit(9) == RewriteError.ILLEGAL_GENERATION
    world.coordinator.release()
    assert zombie.commit(9) == RewriteError.ILLEGAL_GENERATION
    assert zombie.committed() == [-1]


def test_offset_commits_3_a_slow_commit_is_not_written_later() -> None:
    """Its first write found no node; while that is created, the group goes to its next generation."""
    world = World(1, topics=ORDERS)
    (member,) = stable_group(world, 1)
    broker = world.coordinator
    broker.held = lambda ask: ask.request == Read(offset_path(GROUP, "orders", "0"))
    assert member.commit(4) is None
    second = Consumer(world, broker)
    assert second.join() is None
    same = Consumer(world, broker)
    same.consumer_id = member.consumer_id
    same.join()
    broker.release()
    assert second.take().generation_id == 2
    assert member.take().topics[0].partitions[0].error_code == RewriteError.ILLEGAL_GENERATION
    assert second.committed() == [-1]


def test_offset_commits_4_a_pause_before_joining_fails_it() -> None:
    world = World(1, topics=ORDERS)
    members = stable_group(world, 3)
    world.set_topic("orders", 4)
    for member in members:
        member.connect()
    assert [member.join() for member in members[:2]] == [None, None]
    world.run(6_000)
    assert [member.take().error_code for member in members[:2]] == [RewriteError.REBALANCE_FAILED] * 2
    assert world.coordinator.noted("rebalance failed")[-1]["dead"] == members[2].consumer_id
    assert [member.heartbeat() for member in members[:2]] == [RewriteError.ILLEGAL_GENERATION] * 2
    answers = rejoin(members[:2])
    assert [answer.generation_id for answer in answers] == [3, 3]
    assert len(assigned(*answers)) == 4
    assert members[2].heartbeat() == RewriteError.UNKNOWN_CONSUMER_ID
