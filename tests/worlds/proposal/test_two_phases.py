"""The adopted protocol: who leads, what a resync does, what the leader's error does, and what the document's letter
would do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kcoord_wire.assignors import ASSIGNORS, TopicPartition
from kcoord_wire.kernel.virtual.scripts import ViolationError
from kcoord_wire.messages.proposal import ProposalConsumerMetadata
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.worlds.proposal import MemberOptions, ProposalCluster
from kcoord_wire.worlds.proposal.proposal_coordinator import (
    CoordinatorSettings,
    MemberState,
    Phase,
    Strategy,
    Subscription,
)
from kcoord_wire.worlds.proposal.proposal_world import Moved
from kcoord_wire.worlds.proposal.single_assignor import RANGE, ROUND_ROBIN
from kcoord_wire.worlds.proposal.traffic import CHANGED, measure
from kcoord_wire.worlds.proposal.two_phases import TwoPhaseCoordinator, TwoPhaseMember
from tests.support.proposals import consumes, count, group, in_phase, settle, settled

VARIANT = "two_phases"


def leader(sim: ProposalCluster) -> str:
    coordinator = group(sim)
    assert isinstance(coordinator, TwoPhaseCoordinator)
    return coordinator.leader.partition("-")[0]


def resyncs(sim: ProposalCluster) -> dict[str, int]:
    machines: Mapping[str, Any] = {name: process.machine for name, process in sim.processes.items()}
    return {name: machine.resyncs for name, machine in machines.items()}


def sizes(sim: ProposalCluster, name: str, message: str) -> list[int]:
    details = [line.detail for line in sim.trace if line.who == name and line.what == "gets"]
    return [each.size for each in details if isinstance(each, Moved) and each.message == message]


# ---- "Phase 1", "Phase 2"


def test_only_the_leader_gets_the_metadata_of_all() -> None:
    with settled(VARIANT, 5) as sim:
        first = leader(sim)
        joins = {name: sizes(sim, name, "ProposalJoinGroupResponse")[-1] for name in sim.processes}
        assert joins.pop(first) > 2 * max(joins.values())
        assert len(set(joins.values())) == 1


def test_the_coordinator_chooses_another_leader_at_times() -> None:
    with settled(VARIANT, 3) as sim:
        leaders = {leader(sim)}
        for _ in range(8):
            sim.restart("m1")
            settle(sim)
            leaders.add(leader(sim))
        assert leaders == {"m1", "m2", "m3"}


def test_the_leaders_session_ends_the_generation() -> None:
    with settled(VARIANT, 3) as sim:
        sim.member("m4")
        sim.run_until(in_phase(sim, Phase.SYNCHRONIZING))
        chosen, generation = leader(sim), group(sim).generation
        sim.crash(chosen)
        assert 5_000 < sim.run_until(in_phase(sim, Phase.JOINING)) <= 6_100, "its session timeout"
        assert settle(sim) > generation
        assert set(sim.owners().values()) == {"m1", "m2", "m3", "m4"} - {chosen}


def test_a_follower_that_is_late_is_answered_at_once() -> None:
    with settled(VARIANT, 3) as sim:
        sim.member("m4")
        sim.run_until(in_phase(sim, Phase.SYNCHRONIZING))
        late = next(name for name in ("m1", "m2", "m3") if name != leader(sim))
        sim.pause(late, 2_000)
        generation = group(sim).generation
        sim.run(1_000)
        assert group(sim).phase is Phase.STABLE, "the others do not wait for it"
        assert late not in sim.owners().values()
        assert settle(sim) == generation
        assert late in sim.owners().values()


# ---- "Assignment Failure"


def _raises(*_: Any) -> Any:
    raise RuntimeError("no")


def test_the_leaders_error_reaches_every_member() -> None:
    options = MemberOptions(strategies=(Strategy("odd", 0, _raises),))
    settings = CoordinatorSettings(initial_delay_ms=1_000)
    with ProposalCluster(VARIANT, topics={"orders": 9}, members=4, options=options, settings=settings) as sim:
        sim.run(20_000)
        machines = [process.machine for process in sim.processes.values()]
        assert {machine.state for machine in machines} == {MemberState.FAILED}
        assert {machine.error for machine in machines} == {ErrorCode.UNKNOWN_SERVER_ERROR}
        assert group(sim).phase is Phase.EMPTY


def test_unreadable_metadata_is_the_leaders_error(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = consumes(rack="x")
    encoded = TwoPhaseMember._encoded

    def of_another_version(self: TwoPhaseMember) -> bytes:
        if not self.settings.rack:
            return encoded(self)
        return self.codec.encode(ProposalConsumerMetadata(version=7, topics=["orders"]))

    monkeypatch.setattr(TwoPhaseMember, "_encoded", of_another_version)
    with settled(VARIANT, 2) as sim:
        sim.member("m3", wrong)
        sim.run(20_000)
        assert {process.machine.error for process in sim.processes.values()} == {ErrorCode.INCONSISTENT_GROUP_PROTOCOL}


# ---- "Topic Metadata Change"


def test_a_change_of_topics_is_a_resync_in_the_same_generation() -> None:
    with settled(VARIANT, 3) as sim:
        generation, since = group(sim).generation, sim.now
        sim.add_partitions("orders", 3)
        sim.run(5_000)
        assert settle(sim) == generation
        assert len(sim.owners()) == 12
        assert sum(count(sim, name, "JoinGroup", since=since) for name in sim.processes) == 0
        assert resyncs(sim) == {name: int(name == leader(sim)) for name in sim.processes}


def test_changes_of_one_batch_are_one_resync() -> None:
    for batch_ms, most in ((0, 5), (5_000, 1)):
        with settled(VARIANT, 3, options=consumes(batch_ms=batch_ms)) as sim:
            for _ in range(5):
                sim.add_partitions("orders", 1, refresh_ms=0)
                sim.run(500)
            settle(sim)
            assert len(sim.owners()) == 14
            assert 1 <= sum(resyncs(sim).values()) <= most
            assert (sum(resyncs(sim).values()) > 1) is (batch_ms == 0)


def test_by_the_letter_a_partition_has_two_owners() -> None:
    """The leader "can immediately compute the new assignment and initiate a SyncGroup": followers have the former."""
    settings = CoordinatorSettings(waits_in_resync=False)
    with settled(VARIANT, 3, settings=settings, options=consumes(strategies=(RANGE,))) as sim:
        sim.add_partitions("orders", 3)
        with pytest.raises(ViolationError, match="is held by"):
            sim.run(10_000)


def test_a_resync_whose_leader_fails_becomes_a_rebalance() -> None:
    with settled(VARIANT, 3) as sim:
        first = leader(sim)
        sim.add_partitions("orders", 3, refresh_ms=0)
        sim.run_until(in_phase(sim, Phase.SYNCHRONIZING))
        sim.crash(first)
        sim.run(20_000)
        settle(sim)
        assert (len(sim.owners()), first in sim.owners().values()) == (12, False)


def test_a_coordinator_that_fails_in_a_resync() -> None:
    with settled(VARIANT, 3) as sim:
        generation = group(sim).generation
        sim.add_partitions("orders", 3, refresh_ms=0)
        sim.run_until(in_phase(sim, Phase.SYNCHRONIZING))
        sim.crash("coordinator", 500)
        sim.run(5_000)
        assert settle(sim) == generation, "the leader sends SyncGroup again"
        assert len(sim.owners()) == 12


def test_a_pending_sync_is_sent_again_to_the_next_coordinator() -> None:
    """ "All members will re-initiate the SyncGroup once the new coordinator is ready": none joins again."""
    with settled(VARIANT, 3, options=consumes(assign_ms=300)) as sim:
        sim.member("m4")
        sim.run_until(in_phase(sim, Phase.SYNCHRONIZING))
        sim.run(100)
        generation, since = group(sim).generation, sim.now
        sim.crash("coordinator", 100)
        assert settle(sim) == generation
        assert [count(sim, name, "JoinGroup", since=since) for name in sim.processes] == [0] * 4


# ---- racks


def _at_home(sim: ProposalCluster) -> int:
    """How many partitions are consumed in the rack of their leader."""
    racks = {name: process.options.settings["rack"] for name, process in sim.processes.items()}
    return sum(racks[name] == sim.racks["orders"][index] for (_, index), name in sim.owners().items())


def test_a_leader_that_moves_to_another_rack_is_a_resync() -> None:
    by_rack = Strategy("range", 0, ASSIGNORS["range"].assign)
    with ProposalCluster(VARIANT, topics={"orders": 6}) as sim:
        for index in range(6):
            sim.move_leader("orders", index, "ab"[index % 2])
        for name, rack in (("m1", "a"), ("m2", "b")):
            sim.member(name, consumes(strategies=(by_rack,), rack=rack))
        generation = settle(sim)
        assert _at_home(sim) == 6
        before = sum(resyncs(sim).values())
        for index in range(6):
            sim.move_leader("orders", index, "ab"[index // 3])
        sim.run(5_000)
        assert settle(sim) == generation
        assert sum(resyncs(sim).values()) > before
        assert _at_home(sim) == 6


def test_without_racks_a_leader_that_moves_is_no_change() -> None:
    with settled(VARIANT, 2) as sim:
        sim.move_leader("orders", 0, "a")
        sim.run(5_000)
        assert set(resyncs(sim).values()) == {0}


# ---- subscriptions


def test_a_pattern_is_a_subscription() -> None:
    options = MemberOptions(subscription=Subscription(pattern="or.*"), strategies=(ROUND_ROBIN,))
    with ProposalCluster(VARIANT, topics={"orders": 4, "bills": 2}, members=2, options=options) as sim:
        sim.run(5_000)
        assert {topic for topic, _ in sim.owners()} == {"orders"}
        sim.add_partitions("origins", 2)
        sim.run(5_000)
        assert TopicPartition("origins", 1) in sim.owners()


# ---- what it costs


def test_a_resync_moves_less_and_a_batch_less_again() -> None:
    names = ("released", "two phases", "two phases, batched")
    released, resync, batched = (measure(CHANGED[name], 5, 340, changes=3) for name in names)
    assert released.total > resync.total > 2 * batched.total
    assert min(released.idle_ms, resync.idle_ms) > batched.idle_ms > 0
