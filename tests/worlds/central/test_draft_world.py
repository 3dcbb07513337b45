"""A cluster of the draft on the virtual clock: it settles, and again after single faults."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kcoord_wire.central.draft.events import Partition
from kcoord_wire.worlds.central import CentralCluster

SESSION_MS = 6_000


@pytest.fixture
def sim() -> CentralCluster:
    made = CentralCluster(5, topics={"orders": 2}, brokers=2, members=2)
    made.run_until(made.is_settled, 20_000)
    return made


def leader(sim: CentralCluster) -> str:
    assert sim.leader is not None
    return sim.leader.name


def settles_with_another(sim: CentralCluster, former: str) -> None:
    sim.run_until(lambda: sim.is_settled() and leader(sim) != former, 60_000)


def test_every_partition_is_owned_and_consumed(sim: CentralCluster) -> None:
    assert sorted(sim.owners()) == [
        ("g", Partition("orders", f"{broker}-{number}")) for broker in (1, 2) for number in (0, 1)
    ]
    assert set(sim.owners().values()) == {"c1", "c2"}
    before = dict(sim.invariants.consumed_to)
    sim.run(5_000)
    assert all(sim.invariants.consumed_to[place] > before.get(place, 0) + 30 for place in sim.invariants.consumed_to)


@pytest.mark.parametrize(
    "fault",
    [
        lambda sim: sim.crash(leader(sim), 1_000_000),
        lambda sim: sim.pause(leader(sim), 3 * SESSION_MS),
        lambda sim: sim.cut_zookeeper(leader(sim), 3 * SESSION_MS),
        lambda sim: sim.expire(leader(sim)),
    ],
    ids=["crash", "pause", "cut", "expiry"],
)
def test_another_broker_takes_over(sim: CentralCluster, fault: Callable[[CentralCluster], None]) -> None:
    former = leader(sim)
    consumed = dict(sim.invariants.consumed_to)
    fault(sim)
    settles_with_another(sim, former)
    sim.run(30_000)
    reached = sim.invariants.consumed_to
    served = [place for place in reached if place.partition.name[0] != former[-1]]
    assert all(reached[place] > consumed.get(place, 0) + 100 for place in served)


def test_a_coordinator_comes_back_after_a_suspension(sim: CentralCluster) -> None:
    former = leader(sim)
    sim.reset_zookeeper(former)
    sim.run(5_000)
    assert [line.what for line in sim.trace].count("elected") == 2
    sim.run_until(sim.is_settled, 30_000)


@pytest.mark.parametrize("act", ["crash", "leave"])
def test_partitions_of_a_consumer_that_ends_move(sim: CentralCluster, act: str) -> None:
    getattr(sim, act)("c1")
    sim.run_until(lambda: sim.is_settled() and set(sim.owners().values()) == {"c2"}, 30_000)


def test_a_consumer_that_is_cut_off_loses_its_partitions(sim: CentralCluster) -> None:
    sim.cut("c1", None, 60_000)
    sim.run_until(lambda: set(sim.owners().values()) == {"c2"} and len(sim.owners()) == 4, 60_000)
    sim.heal()
    sim.run_until(lambda: sim.is_settled() and set(sim.owners().values()) == {"c1", "c2"}, 60_000)


def test_new_partitions_and_topics_are_given_out(sim: CentralCluster) -> None:
    sim.member("c3", "other", "*1*.*")
    sim.add_partitions("orders", 1, 3)
    sim.add_partitions("payments", 2, 2)
    sim.run_until(sim.is_settled, 30_000)
    assert len([each for each in sim.owners() if each[0] == "g"]) == 7
    assert len([each for each in sim.owners() if each[0] == "other"]) == 9


def test_nothing_happens_without_zookeeper(sim: CentralCluster) -> None:
    sim.stop_zookeeper(30_000)
    sim.run(15_000)
    assert sim.owners() == {}
    sim.run_until(sim.is_settled, 60_000)


def test_acts_that_make_no_sense_do_nothing(sim: CentralCluster) -> None:
    lines = len(sim.trace)
    for act in ("crash", "leave"):
        getattr(sim, act)("nobody")
    sim.pause("nobody", 10)
    sim.crash("broker-1", 1_000_000)
    after = len(sim.trace)
    sim.crash("broker-1")
    sim.pause("broker-1", 10)
    sim.cut_zookeeper("broker-1", 10)
    sim.reset_zookeeper("broker-1")
    sim.expire("broker-1")
    assert len(sim.trace) == after == lines + 1


def test_a_seed_has_one_trace() -> None:
    traces = []
    for _ in range(2):
        with CentralCluster(11, topics={"t": 1}, members=3) as sim:
            sim.run(4_000)
            sim.pause(leader(sim), 9_000)
            sim.run(20_000)
            traces.append([str(line) for line in sim.trace])
    assert traces[0] == traces[1]
