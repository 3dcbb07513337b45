"""A group of the rewrite on a virtual clock, in the failures that the document describes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.worlds.central import RewriteCluster

SESSION = 6_000


@pytest.fixture
def sim() -> Iterator[RewriteCluster]:
    """A settled group of three members over six partitions, with two brokers."""
    with RewriteCluster(7, topics={"orders": 6}, brokers=2, members=3) as cluster:
        cluster.run_until(cluster.is_settled)
        cluster.run(5_000)
        yield cluster


def whats(sim: RewriteCluster, who: str, since: int = 0) -> list[str]:
    return [line.what for line in sim.trace if line.at >= since and line.who.startswith(who)]


def coordinator(sim: RewriteCluster) -> str:
    """The broker that has completed the last rebalance."""
    names = [line.who for line in sim.trace if line.what == "rebalance completed"]
    return names[-1]


def generation(sim: RewriteCluster) -> int:
    return sim.invariants.record.generation


def test_a_group_settles_with_each_partition_at_one_member(sim: RewriteCluster) -> None:
    assert sorted(sim.owners()) == [TopicPartition("orders", number) for number in range(6)]
    assert set(sim.owners().values()) == {"m1", "m2", "m3"}
    before = dict(sim.invariants.committed)
    sim.run(10_000)
    assert before.keys() == sim.owners().keys()
    assert all(sim.invariants.committed[partition] > offset for partition, offset in before.items())


def test_failover_3_no_member_stops_and_the_generation_stays(sim: RewriteCluster) -> None:
    at, before = sim.now, generation(sim)
    sim.crash(coordinator(sim), 60_000)
    sim.run(30_000)
    assert "coordinator lost" in whats(sim, "m", at)
    assert "stops" not in whats(sim, "m", at)
    assert (sim.is_settled(), generation(sim)) == (True, before)


def test_failover_1_a_join_waits_for_the_groups_to_be_read(sim: RewriteCluster) -> None:
    sim.crash(coordinator(sim), 60_000)
    sim.member("m4")
    sim.run_until(sim.is_settled)
    assert "m4" in sim.owners().values()
    assert not sim.invariants.overlaps


def test_partitions_2_all_members_lose_their_connections(sim: RewriteCluster) -> None:
    at, before = sim.now, generation(sim)
    sim.add_partitions("orders", 2)
    sim.run_until(sim.is_settled)
    assert {line.who for line in sim.trace if line.at >= at and line.what == "coordinator lost"} == {"m1", "m2", "m3"}
    assert generation(sim) == before + 1
    assert len(sim.owners()) == 8


def test_heartbeats_2_a_pause_before_the_join_fails_it(sim: RewriteCluster) -> None:
    at, before = sim.now, generation(sim)
    sim.pause("m1", 2 * SESSION)
    sim.add_partitions("orders", 2)
    sim.run(2 * SESSION)
    assert "rebalance failed" in whats(sim, "broker", at)
    assert "rebalance failed" in whats(sim, "m2", at), "the others are answered RebalanceFailed"
    assert set(sim.owners().values()) >= {"m2", "m3"}
    sim.run_until(sim.is_settled)
    assert set(sim.owners().values()) == {"m1", "m2", "m3"}
    assert generation(sim) >= before + 2


def test_heartbeats_2_after_a_short_pause_it_goes_on(sim: RewriteCluster) -> None:
    sim.add_partitions("orders", 2)
    before = generation(sim)
    sim.run_until(lambda: generation(sim) > before)
    sim.pause("m1", SESSION - 1_000)
    sim.run_until(sim.is_settled)
    sim.run(SESSION)
    assert generation(sim) == before + 1


def test_heartbeats_2_after_a_long_pause_it_is_dead(sim: RewriteCluster) -> None:
    sim.add_partitions("orders", 2)
    before = generation(sim)
    sim.run_until(lambda: generation(sim) > before)
    sim.pause("m1", 3 * SESSION)
    sim.run(3 * SESSION)
    assert generation(sim) == before + 2
    sim.run_until(sim.is_settled)
    assert set(sim.owners().values()) == {"m1", "m2", "m3"}


def test_a_member_that_shuts_down_is_missed_after_its_session(sim: RewriteCluster) -> None:
    at = sim.now
    sim.leave("m3")
    sim.run_until(sim.is_settled)
    assert sim.now - at >= SESSION - 1_800
    assert set(sim.owners().values()) == {"m1", "m2"}


def test_wildcard_members_get_topics_that_are_new() -> None:
    with RewriteCluster(3, topics={"orders": 2}, brokers=1) as sim:
        sim.member("m1", "ord.*")
        sim.member("m2", "ord.*")
        sim.run_until(sim.is_settled)
        sim.add_partitions("orders-eu", 2)
        sim.add_partitions("payments", 1)
        sim.run_until(lambda: len(sim.owners()) == 4 and sim.is_settled())
        assert {partition.topic for partition in sim.owners()} == {"orders", "orders-eu"}


def test_a_broker_cut_off_from_zookeeper_gives_its_groups_up(sim: RewriteCluster) -> None:
    at, first = sim.now, coordinator(sim)
    sim.cut_zookeeper(first, 30_000)
    sim.run(30_000)
    resigned = next(line.at for line in sim.trace if line.at >= at and line.what == "broker resigned")
    assert resigned - at <= SESSION * 2 // 3
    assert first not in {line.who for line in sim.trace if line.what == "coordination started" and line.at > at}
    assert sim.is_settled()


def test_a_paused_coordinator_does_not_act_when_it_resumes(sim: RewriteCluster) -> None:
    at, first = sim.now, coordinator(sim)
    sim.pause(first, 30_000)
    sim.add_partitions("orders", 2)
    sim.run(60_000)
    assert "broker resigned" in whats(sim, first, at)
    assert sim.is_settled()
    assert len(sim.owners()) == 8


def test_actions_that_make_no_sense_do_nothing(sim: RewriteCluster) -> None:
    for name in ("crash", "leave"):
        getattr(sim, name)("m9")
    sim.pause("m9", 1_000)
    for name in ("crash", "pause", "cut_zookeeper"):
        getattr(sim, name)("broker-9", 1_000)
    sim.expire("broker-9")
    assert sim.is_settled()
