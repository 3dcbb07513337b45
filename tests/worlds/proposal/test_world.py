"""The virtual cluster of the variants: members, faults, and the law of one owner."""

from __future__ import annotations

import pytest

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.kernel.virtual.scripts import ViolationError
from kcoord_wire.worlds.proposal import MemberOptions, ProposalCluster
from kcoord_wire.worlds.proposal.proposal_coordinator import MemberState
from tests.support.proposals import VARIANTS, group, settle, settled


@pytest.mark.parametrize("variant", VARIANTS)
def test_members_come_and_go(variant: str) -> None:
    with ProposalCluster(variant, topics={"orders": 9, "bills": 2}) as sim:
        assert sim.is_settled()
        for name in ("m1", "m2", "m3", "m4"):
            sim.member(name)
        settle(sim)
        assert sorted(list(sim.owners().values()).count(name) for name in sim.processes) == [2, 3, 3, 3]
        sim.leave("m1")
        sim.crash("m2")
        sim.run(12_000)
        settle(sim)
        assert set(sim.owners().values()) == {"m3", "m4"}
        assert sim.processes["m1"].machine.state is MemberState.LEFT


@pytest.mark.parametrize("variant", VARIANTS)
def test_compressed_metadata_gives_the_same_assignment(variant: str) -> None:
    with settled(variant) as plain, settled(variant, compresses=True) as compressed:
        assert plain.owners() == compressed.owners()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_member_that_was_cut_off_comes_back(variant: str) -> None:
    with settled(variant) as sim:
        sim.partition("m2", 20_000)
        sim.run(15_000)
        assert sim.processes["m2"].machine.owned == frozenset()
        assert set(sim.owners().values()) == {"m1", "m3"}
        sim.run(20_000)
        settle(sim)
        assert set(sim.owners().values()) == {"m1", "m2", "m3"}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_lossy_network_delays_the_group(variant: str) -> None:
    with settled(variant) as sim:
        sim.lose(20_000, drop=0.3, reset=0.1)
        sim.member("m4")
        sim.run(20_000)
        settle(sim)
        assert len(set(sim.owners().values())) == 4


def test_an_action_without_its_process_does_nothing() -> None:
    with settled("all_members") as sim:
        steps, lines = sim.steps, len(sim.trace)
        for call in (sim.crash, sim.leave):
            call("nobody")
        sim.pause("nobody", 10)
        sim.partition("nobody", 10)
        sim.subscribe("nobody", "orders")
        assert (sim.steps, len(sim.trace)) == (steps, lines)
        sim.crash("coordinator", 1_000)
        sim.crash("coordinator", 9_000)
        sim.run(1_500)
        assert sim.coordinator is not None, "the second crash has found no coordinator"


def test_a_broker_that_is_behind_shows_its_last_view() -> None:
    with settled("single_assignor") as sim:
        sim.lag("m1", 5_000)
        sim.add_partitions("orders", 1, refresh_ms=0)
        sim.run(1_000)
        assert [sim.processes[name].machine.counts["orders"] for name in ("m1", "m2")] == [9, 10]
        sim.run(5_000)
        assert sim.processes["m1"].machine.counts["orders"] == 10


# ---- the law


def test_two_owners_of_one_generation_are_a_violation() -> None:
    with settled("all_members") as sim:
        m1, m2 = sim.processes["m1"], sim.processes["m2"]
        with pytest.raises(ViolationError, match="is held by m1 and m2"):
            sim.owned_changed(m2, (), m1.machine.owned)


def test_two_owners_of_one_group_are_a_violation() -> None:
    """Even if one of them is still in an older generation."""
    with settled("all_members") as sim:
        m1, m2 = sim.processes["m1"], sim.processes["m2"]
        m2.machine.generation -= 1
        with pytest.raises(ViolationError, match="one owner"):
            sim.owned_changed(m2, (), m1.machine.owned)


def test_a_member_that_was_removed_is_no_rival() -> None:
    """It has been silent for its session, in an older generation: its commits would be refused."""
    with settled("all_members") as sim:
        m1, m2 = sim.processes["m1"], sim.processes["m2"]
        m2.machine.generation -= 1
        m2.machine.member_id = "removed"
        sim.owned_changed(m2, (), m1.machine.owned)
        assert TopicPartition("orders", 0) in sim.owners()


def test_a_removed_member_that_is_known_again_is_a_violation() -> None:
    """As it would be if a coordinator came back with members of a generation before the last."""
    with settled("all_members") as sim:
        m1, m2 = sim.processes["m1"], sim.processes["m2"]
        m2.machine.generation -= 1
        removed = group(sim).members.pop(m2.machine.member_id)
        sim.owned_changed(m2, (), m1.machine.owned)
        sim.members_changed()
        group(sim).members[m2.machine.member_id] = removed
        with pytest.raises(ViolationError, match="is held by m1 and m2"):
            sim.members_changed()


def test_a_dead_process_is_no_rival() -> None:
    with settled("all_members") as sim:
        owned = sim.processes["m1"].machine.owned
        sim.crash("m1")
        sim.owned_changed(sim.processes["m2"], (), owned)


# ---- what counts as settled


def test_a_group_is_not_settled_while_a_member_is_missing() -> None:
    with settled("all_members") as sim:
        sim.crash("m1")
        assert not sim.is_settled()
        sim.run(12_000)
        settle(sim)
        sim.pause("m2", 100)
        assert not sim.is_settled()
        sim.run(200)
        sim.member("m4", MemberOptions())
        assert not sim.is_settled()
        settle(sim)
        assert len(group(sim).members) == 3
