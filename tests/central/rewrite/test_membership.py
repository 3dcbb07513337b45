"""Members of the rewrite's groups, and their commits.

The numbered points are those of "Kafka 0.9 Consumer Rewrite Design", "Heartbeats during rebalance" and "Offset commits
during rebalance".
"""

from __future__ import annotations

import pytest

from kcoord_wire.central.rewrite.events import RewriteError
from kcoord_wire.zookeeper.layout import offset_path
from kcoord_wire.zookeeper.requests import Read
from tests.support.rewrite_brokers import (
    GROUP,
    ORDERS,
    Consumer,
    World,
    assigned,
    change_partitions,
    rejoin,
    stable_group,
    world_of,
    writes_a_generation,
)


def test_heartbeats_1_illegal_generation_gives_no_more_time() -> None:
    world, members = world_of(2)
    change_partitions(world, members)
    members[0].join()
    for _ in range(3):
        world.run(1_900)
        assert members[1].heartbeat() == RewriteError.ILLEGAL_GENERATION
    world.run(400)
    assert members[0].take().error_code == RewriteError.REBALANCE_FAILED
    assert members[1].heartbeat() == RewriteError.UNKNOWN_CONSUMER_ID


def test_heartbeats_2_a_parked_consumer_is_not_marked_dead() -> None:
    world, members = world_of(1, session_ms=30_000)
    second = Consumer(world)
    assert second.join() is None
    world.run(20_000)
    assert world.coordinator.noted("consumer failed") == [], "its session timeout is 6 s"
    members[0].join(session_ms=30_000)
    assert second.take().error_code == 0


def test_heartbeats_2_the_timer_restarts_with_the_response() -> None:
    world, members = world_of(2)
    world.run(5_900)
    assert world.coordinator.noted("consumer failed") == []
    world.run(200)
    (failed,) = world.coordinator.noted("consumer failed")
    assert failed["consumer"] == members[0].consumer_id
    world.run(5_700)
    assert len(world.coordinator.noted("consumer failed")) == 1, "the other has its time to join"
    world.run(300)
    assert len(world.coordinator.noted("consumer failed")) == 2


def test_heartbeats_2_a_short_pause_after_joining_costs_nothing() -> None:
    world, members = world_of(2)
    world.run(5_000)
    assert [member.heartbeat() for member in members] == [0, 0]
    assert len(world.coordinator.noted("rebalance completed")) == 2


def test_heartbeats_2_a_long_pause_after_joining_rebalances() -> None:
    world, members = world_of(2)
    for _ in range(4):
        world.run(1_800)
        members[0].heartbeat()
    assert world.coordinator.noted("consumer failed")[-1]["consumer"] == members[1].consumer_id
    assert members[0].heartbeat() == RewriteError.ILLEGAL_GENERATION
    assert len(assigned(members[0].join())) == 3


def test_heartbeats_2_a_join_outlives_its_connection() -> None:
    """A member whose connection ended after its JoinGroup counts as joined, and gets its place when it asks again."""
    world, members = world_of(2)
    change_partitions(world, members)
    members[0].join()
    members[0].disconnect()
    answer = members[1].join()
    assert answer.generation_id == 3
    members[0].connect()
    assert members[0].heartbeat() == RewriteError.ILLEGAL_GENERATION
    again = members[0].join()
    assert again.generation_id == 3, "no other rebalance"
    assert len(assigned(answer, again)) == 4


def test_heartbeats_3_only_the_new_generation_is_accepted() -> None:
    _world, members = world_of(2)
    assert {members[0].generation, members[1].generation} == {2}
    for generation, error in ((1, 22), (2, 0), (3, 22)):
        assert members[0].heartbeat(generation) == error


def test_rejoining_unchanged_is_answered_and_counts_as_heartbeat() -> None:
    world, members = world_of(2)
    world.run(5_000)
    members[1].heartbeat()
    assert members[0].join().generation_id == 2
    world.run(5_000)
    assert world.coordinator.noted("consumer failed") == []


@pytest.mark.parametrize("change", [{"session_ms": 7_000}, {"strategy": "roundrobin"}])
def test_rejoining_changed_rebalances(change: dict[str, object]) -> None:
    _world, (member,) = world_of(1)
    assert member.join(**change).generation_id == 2  # type: ignore[arg-type]  # one keyword of join


def test_a_join_while_a_generation_is_written_waits_for_the_next() -> None:
    world = World(1, topics=ORDERS)
    first, second = Consumer(world), Consumer(world)
    world.coordinator.held = writes_a_generation
    first.join()
    assert second.join() is None
    world.coordinator.release()
    assert first.take().generation_id == 1
    assert second.take() is None
    assert first.join().generation_id == 2
    assert second.take().generation_id == 2


def test_a_new_consumer_that_leaves_while_it_waits_is_forgotten() -> None:
    world, (member,) = world_of(1)
    second = Consumer(world)
    second.join()
    second.disconnect()
    assert member.join().generation_id == 2
    assert len(world.group_record().consumers) == 1


def test_a_new_consumer_joins_anew_after_a_failed_attempt() -> None:
    world, (member,) = world_of(1)
    second = Consumer(world)
    second.join()
    world.run(6_100)
    failed = second.take()
    assert (failed.error_code, failed.consumer_id) == (RewriteError.REBALANCE_FAILED, "")
    assert second.join().error_code == 0
    assert len(world.group_record().consumers) == 1
    assert member.heartbeat() == RewriteError.UNKNOWN_CONSUMER_ID


def test_a_group_without_consumers_keeps_its_generation() -> None:
    world = World(1, 2, topics=ORDERS)
    stable_group(world, 2)
    world.run(13_000)
    record = world.group_record()
    assert (record.generation, dict(record.consumers)) == (2, {})
    world.kill(world.coordinator.machine.broker_id)
    assert Consumer(world).join().generation_id == 3


def test_strategies_assign_as_they_are_named() -> None:
    world = World(1, topics={"orders": 3, "payments": 3})
    for strategy, expected in (
        ("range", [("orders", 0), ("orders", 1), ("payments", 0), ("payments", 1)]),
        ("roundrobin", [("orders", 0), ("orders", 2), ("payments", 1)]),
    ):
        consumers = [Consumer(world), Consumer(world)]
        consumers[0].join("orders", "payments", strategy=strategy)
        consumers[1].join("orders", "payments", strategy=strategy)
        answer = consumers[0].join("orders", "payments", strategy=strategy)
        other = consumers[1].take()
        by_id = {answer.consumer_id: answer, other.consumer_id: other}
        assert assigned(by_id[min(by_id)]) == expected
        assert len(assigned(answer, other)) == 6
        world.run(13_000)


def test_takeovers_never_give_a_consumer_id_twice() -> None:
    world = World(1, 2, topics=ORDERS)
    first = stable_group(world, 1)[0].consumer_id
    world.kill(world.coordinator.machine.broker_id)
    world.run(7_000)
    assert stable_group(world, 1)[0].consumer_id != first


def test_a_group_that_fits_into_no_node_is_refused() -> None:
    world, (member,) = world_of(1)
    topics = [f"{number:04}-{'x' * 200}" for number in range(2_000)]
    assert Consumer(world).join(*topics).error_code == RewriteError.GROUP_TOO_LARGE
    assert world.coordinator.noted("request refused")[-1]["error"] == "GROUP_TOO_LARGE"
    assert member.heartbeat() == 0, "the group is as it was"


def test_offset_commits_1_are_accepted_before_the_joingroup() -> None:
    world, members = world_of(2)
    Consumer(world).join()
    assert members[0].heartbeat() == RewriteError.ILLEGAL_GENERATION
    assert members[0].commit(11) == 0
    assert members[0].committed() == [11]


def test_offset_commits_2_a_higher_generation_is_a_bug() -> None:
    world, (member,) = world_of(1)
    assert member.commit(5, member.generation + 1) == RewriteError.ILLEGAL_GENERATION
    assert "bug of the consumer" in world.coordinator.noted("request refused")[-1]["reason"]
    assert member.committed() == [-1]


def test_offset_commits_3_an_older_generation_is_refused() -> None:
    world, members = world_of(2)
    old = members[0].generation
    third = Consumer(world)
    assert third.join() is None
    rejoin(members)
    assert members[0].commit(5, old) == RewriteError.ILLEGAL_GENERATION
    assert members[0].commit(6) == 0
    assert members[0].committed() == [6]


def test_offset_commits_3_none_between_last_join_and_answer() -> None:
    world, members = world_of(2)
    change_partitions(world, members)
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
    world, (member,) = world_of(1)
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
    world, members = world_of(3)
    change_partitions(world, members)
    assert [member.join() for member in members[:2]] == [None, None]
    world.run(6_000)
    assert [member.take().error_code for member in members[:2]] == [RewriteError.REBALANCE_FAILED] * 2
    assert world.coordinator.noted("rebalance failed")[-1]["dead"] == members[2].consumer_id
    assert [member.heartbeat() for member in members[:2]] == [RewriteError.ILLEGAL_GENERATION] * 2
    answers = rejoin(members[:2])
    assert [answer.generation_id for answer in answers] == [3, 3]
    assert len(assigned(*answers)) == 4
    assert members[2].heartbeat() == RewriteError.UNKNOWN_CONSUMER_ID
