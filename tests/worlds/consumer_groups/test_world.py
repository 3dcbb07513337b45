"""The virtual cluster of KIP-848: groups form, members come and go, and the coordinator comes back with them."""

from __future__ import annotations

from collections import Counter

import pytest

from kcoord_wire.coordinator.consumer_groups.group import ConsumerGroup
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.groups import Group
from kcoord_wire.worlds.consumer_groups.consumer_group_world import ConsumerGroupCluster

CONFIG = GroupConfig(consumer_session_timeout_ms=6_000, consumer_heartbeat_interval_ms=500)


def settled(**settings: object) -> ConsumerGroupCluster:
    sim = ConsumerGroupCluster(7, topics={"orders": 6}, config=CONFIG, **settings)  # type: ignore[arg-type] # keywords
    sim.run_until(sim.is_settled)
    return sim


def shares(sim: ConsumerGroupCluster) -> Counter[str]:
    return Counter(sim.owners().values())


def test_members_share_the_partitions() -> None:
    with settled(members=3) as sim:
        assert shares(sim) == {"m1": 2, "m2": 2, "m3": 2}


def test_a_member_that_leaves_is_replaced_at_once() -> None:
    with settled(members=2) as sim:
        sim.leave("m1")
        assert sim.run_until(sim.is_settled) < 2_000
        assert shares(sim) == {"m2": 6}


def test_a_killed_member_is_replaced_after_its_session() -> None:
    with settled(members=2) as sim:
        sim.crash("m1")
        assert 4_000 < sim.run_until(sim.is_settled) < 9_000
        assert shares(sim) == {"m2": 6}


def test_cuts_end_before_applications_give_up() -> None:
    class Watched(ConsumerGroupCluster):
        def _end_faults(self) -> None:
            self.cuts = [process.cut_until for process in self.processes.values()]
            super()._end_faults()

    with Watched(7, topics={"orders": 6}, config=CONFIG, members=2) as sim:
        sim.partition("m1", 60_000)
        sim.heal()
        assert sim.cuts == [0, 0]


def test_a_static_member_returns_to_what_it_had() -> None:
    with ConsumerGroupCluster(7, topics={"orders": 6}, config=CONFIG) as sim:
        for name in "m1", "m2":
            sim.member(name, {"instance_id": f"of-{name}"})
        sim.run_until(sim.is_settled)
        before, begun = sim.owners(), len(sim.begun)
        sim.restart("m1")
        sim.run(3_000)
        assert sim.is_settled()
        assert sim.owners() == before
        assert [account.trigger for account in sim.begun[begun:]] == []


def test_a_pattern_finds_topics_that_come_later() -> None:
    with ConsumerGroupCluster(7, topics={"orders": 2}, config=CONFIG) as sim:
        sim.member("m1", {"topics": (), "regex": "order.*"})
        sim.run_until(sim.is_settled)
        sim.add_partitions("orders-eu", 3)
        sim.run_until(lambda: len(sim.owners()) == 5)


@pytest.mark.parametrize("writes", [0, 1, 3])
def test_the_coordinator_comes_back_with_the_group(writes: int) -> None:
    with settled(members=2) as sim:
        before = sim.owners()
        sim.crash_coordinator(writes=writes)
        sim.run(20_000)
        sim.heal()
        sim.run_until(sim.is_settled)
        assert sim.owners() == before


@pytest.mark.parametrize("assignors", [("range",), ("cooperative-sticky",)], ids=["eager", "cooperative"])
def test_a_group_changes_its_protocol_and_returns(assignors: tuple[str, ...]) -> None:
    with settled(members=3, options={"assignors": assignors}) as sim:
        for expected in ConsumerGroup, Group:
            for name in "m1", "m2", "m3":
                sim.restart(name, assignors)
                sim.run(20_000)
                assert sim.is_settled()
            assert shares(sim) == {"m1": 2, "m2": 2, "m3": 2}
            assert isinstance(sim.group, expected)


def test_classic_and_other_members_share_the_partitions() -> None:
    with settled(members=2) as sim:
        sim.member("m3", {"assignors": ("cooperative-sticky",)})
        sim.run_until(lambda: shares(sim) == {"m1": 2, "m2": 2, "m3": 2} and sim.is_settled())
        sim.crash("m3")
        sim.run_until(lambda: sum(shares(sim).values()) == 6 and sim.is_settled())


@pytest.mark.parametrize("stops", [False, True])
def test_a_group_goes_on_when_its_coordinator_moves(stops: bool) -> None:
    with settled(members=2) as sim:
        sim.member("m3", {"assignors": ("range",)})
        sim.run_until(lambda: shares(sim) == {"m1": 2, "m2": 2, "m3": 2} and sim.is_settled())
        owners, begun = sim.owners(), len(sim.begun)
        sim.move_coordinator(500, stops)
        sim.run(20_000)
        assert sim.is_settled()
        assert (sim.owners(), len(sim.begun)) == (owners, begun)


def test_a_stale_commit_and_its_answer_are_in_the_trace() -> None:
    with settled(members=1) as sim:
        sim.commit_stale("m1", "orders", 0, -1)
        assert [line.what for line in sim.trace if line.who == "late m1"] == ["sends", "gets"]


def test_actions_without_sense_do_nothing() -> None:
    with settled(members=1) as sim:
        for name in ("crash", "leave", "restart"):
            getattr(sim, name)("nobody")
        sim.pause("nobody", 5)
        sim.partition("nobody", 5)
        sim.subscribe("nobody", ("orders",))
        sim.commit_stale("nobody", "orders", 0, 0)
        assert sim.is_settled()
