"""The virtual cluster of transactions: applications commit, are fenced and come back, and so do the brokers."""

from __future__ import annotations

import pytest

from kcoord_wire.worlds.transactions.world import SOURCE, TransactionCluster

FIRST = (SOURCE, 0)


def started(**settings: object) -> TransactionCluster:
    sim = TransactionCluster(7, abort_odds=0.0, **settings)  # type: ignore[arg-type] # keywords
    for transactional_id in sim.ids:
        sim.member(transactional_id)
    sim.run(2_000)
    return sim


def advance(sim: TransactionCluster) -> None:
    wanted = {source: offset + 2 for source, offset in sim.committed().items()}
    sim.run_until(lambda: all(sim.committed()[source] >= offset for source, offset in wanted.items()), 60_000)


@pytest.mark.parametrize("version", [1, 2])
def test_what_is_committed_is_what_is_read(version: int) -> None:
    with started(ids={"t1": version}) as sim:
        sim.end(1_000)
        assert sim.committed()[FIRST] == sim.visible() > 5


@pytest.mark.parametrize("version", [1, 2])
def test_a_zombie_is_fenced_when_it_resumes(version: int) -> None:
    with started(ids={"t1": version}) as sim:
        sim.pause("t1", 2_500)
        sim.member("t1")
        sim.run(5_000)
        zombie, other = sim.processes.values()
        assert not zombie.is_working
        assert other.is_working
        sim.end(1_000)


def test_an_application_that_is_too_slow_starts_anew() -> None:
    with started(ids={"t1": 1}) as sim:  # with version 2 it is given the next epoch when it aborts
        sim.run_until(sim.has_open)
        sim.pause("t1", 20_000)
        sim.run(21_000)
        assert [process.is_working for process in sim.processes.values()] == [False, True]
        advance(sim)
        sim.end(1_000)


def test_what_a_broker_handles_late_or_twice_is_in_the_trace() -> None:
    with started() as sim:
        sim.slow_down(500, 30, twice=1.0)
        sim.run(1_000)
        late = [line.detail for line in sim.trace if line.what == "is late with"]
        assert late
        assert all(message in [line.detail for line in sim.trace if line.what == "sends"] for message in late)


@pytest.mark.parametrize("on", ["logs", "records"])
@pytest.mark.parametrize("writes", [0, 1, 3])
def test_the_brokers_come_back_with_everything(writes: int, on: str) -> None:
    with started(ids={"t1": 1, "t2": 2}) as sim:
        sim.kill_brokers(writes=writes, on=on)
        sim.run(5_000)
        sim.heal()
        advance(sim)
        sim.end(1_000)


@pytest.mark.parametrize("on", ["logs", "records"])
def test_a_full_disk_stops_all_and_loses_nothing(on: str) -> None:
    with started() as sim:
        sim.fill_disk(on, 10_000)
        sim.run(1_500)
        held = sim.committed()
        sim.run(1_500)
        assert sim.committed() == held
        sim.run(8_000)
        advance(sim)
        sim.end(1_000)


def test_applications_find_what_has_moved() -> None:
    with started(ids={"t1": 2}, brokers=3) as sim:
        for place in ("transactions", "t1", 0), ("topics", "output", 1), ("groups", "applications", 0):
            before = sim.locate(place)
            assert before is not None
            sim.move(place, before + 1)
            assert sim.locate(place) == (before + 1) % 3
            advance(sim)
        sim.end(1_000)


def test_sources_are_handed_over() -> None:
    with started(ids={"t1": 1, "t2": 2}) as sim:
        sim.swap("t1", "t2")
        advance(sim)
        sim.end(1_000)


def test_a_stop_ends_after_the_transaction() -> None:
    with started() as sim:
        sim.stop("t1")
        sim.run(3_000)
        first = sim.processes["t1.1"]
        assert not first.is_working
        assert first.application.attempt is not None, "it has begun"
        assert first.application.attempt.is_answered


def test_actions_without_sense_do_nothing() -> None:
    with TransactionCluster(7) as sim:
        sim.crash("t1")
        sim.pause("t1", 5)
        sim.partition("t1", 5)
        sim.stop("t1")
        sim.kill_brokers(down_ms=50)
        sim.kill_brokers()
        sim.move(("transactions", "t1", 0), 1)
        sim.run(5_000)
        assert sim.committed() == {}
