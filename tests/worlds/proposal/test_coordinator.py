"""The coordinator's failures, step by step as the proposal numbers them, and the sessions and joins of all variants."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.worlds.proposal.proposal_coordinator import CoordinatorSettings, Phase, Save, boot_of
from kcoord_wire.worlds.proposal.proposal_world import ProposalCluster
from tests.support.proposals import VARIANTS, consumes, count, group, in_phase, settle, settled

# ---- "Handling Coordinator Failures": 1. all members send JoinGroup; 2. generation metadata is persisted;
# 3. all members send SyncGroup; 4. sync metadata is persisted


REST = ("m1", "m2", "m3")


def _members(sim: ProposalCluster) -> set[str]:
    return {sim.processes[name].machine.member_id for name in REST}


def _answers(sim: ProposalCluster, since: int) -> list[int]:
    return [count(sim, name, "JoinGroupResponse", since=since, error=0) for name in REST]


def _decision_of(saved: Save) -> object:
    """What was decided in a generation; with two phases, the states of the members."""
    return getattr(saved.decision, "states", saved.decision)


def _is_saved(sim: ProposalCluster, generation: int, *, decided: bool = False) -> bool:
    saved = sim.saved
    return saved is not None and saved.generation == generation and (_decision_of(saved) is not None or not decided)


def _fail_in(sim: ProposalCluster, step: Callable[[], bool]) -> int:
    """Let m4 leave, crash the coordinator in a step of that rebalance, and return the generation that comes of it."""
    sim.leave("m4")
    sim.run_until(step)
    sim.crash("coordinator", 500)
    return settle(sim)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("is_persistent", [True, False])
def test_step_1_before_all_have_joined(variant: str, is_persistent: bool) -> None:
    with settled(variant, 4, is_persistent=is_persistent) as sim:
        before, generation = _members(sim), group(sim).generation
        after = _fail_in(sim, in_phase(sim, Phase.JOINING))
        assert (before == _members(sim)) is is_persistent, "without persistence no member is known any more"
        assert (after > generation) is is_persistent
        assert set(sim.owners().values()) == set(REST)


@pytest.mark.parametrize("variant", VARIANTS)
def test_step_1_before_the_generation_is_saved(variant: str) -> None:
    """m4 is still in what was saved before, so that all have to wait for its session."""
    with settled(variant, 4, write_ms=(20, 20)) as sim:
        generation = group(sim).generation + 1
        before, started = _members(sim), sim.now
        assert _fail_in(sim, lambda: group(sim).generation == generation) == generation, "no member has seen it"
        assert min(count(sim, name, "JoinGroupRequest", since=started) for name in REST) >= 2
        assert before == _members(sim)


@pytest.mark.parametrize("variant", ["all_members", "subscription_hash"])
@pytest.mark.parametrize("is_persistent", [True, False])
def test_step_2_before_members_are_answered(variant: str, is_persistent: bool) -> None:
    """There is no SyncGroup: with persistence each member gets its answer at once, and the generation remains valid."""
    with settled(variant, 4) as sim:
        generation = group(sim).generation + 1
        sim.leave("m4")
        sim.run_until(lambda: _is_saved(sim, generation))
        sim.is_persistent = is_persistent
        sim.crash("coordinator", 500)
        crashed = sim.now
        assert (settle(sim) == generation) is is_persistent
        assert (_answers(sim, crashed) == [1, 1, 1]) is is_persistent


def test_step_2_the_chosen_synchronizer_is_not_heard() -> None:
    """It has been asked to assign while the others are to join again: any JoinGroup aborts that synchronization."""
    with settled("single_assignor", 4, latency_ms=(10, 10)) as sim:
        generation = group(sim).generation + 1
        sim.leave("m4")
        sim.run_until(lambda: _is_saved(sim, generation))
        sim.run(5)  # the request to assign is under way
        sim.crash("coordinator", 0)
        crashed = sim.now
        assert settle(sim) == generation + 1
        assert sum(count(sim, name, "JoinGroupResponse", since=crashed, error=27) for name in REST) <= 1
        assert set(sim.owners().values()) == set(REST)


@pytest.mark.parametrize("is_persistent", [True, False])
def test_step_3_before_the_assignment_is_saved(is_persistent: bool) -> None:
    """All members initiate the synchronization anew: with this variant, by JoinGroup."""
    with settled("single_assignor", 4, is_persistent=is_persistent, write_ms=(20, 20)) as sim:
        generation = group(sim).generation + 1
        before = _members(sim)

        def is_decided() -> bool:
            return group(sim).generation == generation and group(sim).phase is Phase.STABLE

        if not is_persistent:
            sim.write_ms = (0, 0)
        after = _fail_in(sim, is_decided)
        assert (after == generation + 1) is is_persistent
        assert (before == _members(sim)) is is_persistent


@pytest.mark.parametrize("is_persistent", [True, False])
def test_step_4_before_members_have_their_assignment(is_persistent: bool) -> None:
    """The coordinator returns each member's state at once, without another synchronization, if that was persisted."""
    with settled("single_assignor", 4) as sim:
        generation = group(sim).generation + 1
        sim.leave("m4")
        sim.run_until(lambda: _is_saved(sim, generation, decided=True))
        sim.is_persistent = is_persistent
        sim.crash("coordinator", 500)
        crashed = sim.now
        assert (settle(sim) == generation) is is_persistent
        assert (_answers(sim, crashed) == [1, 1, 1]) is is_persistent


@pytest.mark.parametrize("variant", VARIANTS)
def test_step_4_one_member_has_missed_its_answer(variant: str) -> None:
    """Only that one asks again; the others keep their partitions throughout."""
    with settled(variant, 4, latency_ms=(10, 10)) as sim:
        generation = group(sim).generation + 1
        sim.leave("m4")
        sim.run_until(lambda: _is_saved(sim, generation, decided=True))
        sim.partition("m2", 20)
        sim.run(25)
        assert set(sim.owners().values()) == {"m1", "m3"}
        owners = sim.owners()
        sim.crash("coordinator", 500)
        sim.run_until(sim.is_settled)
        assert group(sim).generation == generation
        assert owners.items() <= sim.owners().items()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_new_member_that_misses_its_answer_is_a_stranger(variant: str) -> None:
    """It has no id to ask again with, so the group waits out the session of the member that it was (see KIP-394)."""
    with settled(variant, latency_ms=(10, 10)) as sim:
        generation = group(sim).generation + 1
        sim.member("m4")
        sim.run_until(lambda: _is_saved(sim, generation, decided=True))
        sim.partition("m4", 400)
        assert settle(sim) > generation
        assert len(group(sim).members) == 4


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_stable_group_outlives_a_persistent_coordinator(variant: str) -> None:
    with settled(variant) as sim:
        generation, owners = group(sim).generation, sim.owners()
        started = sim.now
        sim.crash("coordinator", 1_000)
        assert (settle(sim), sim.owners()) == (generation, owners)
        assert sum(count(sim, name, "JoinGroup", since=started) for name in sim.processes) == 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_without_persistence_all_members_rejoin_as_new(variant: str) -> None:
    with settled(variant, is_persistent=False) as sim:
        sim.crash("coordinator", 1_000)
        sim.run(10_000)
        settle(sim)
        assert {boot_of(member_id)[-1] for member_id in group(sim).members} == {"2"}
        refused = [count(sim, name, "Heartbeat", error=ErrorCode.UNKNOWN_MEMBER_ID) for name in sim.processes]
        assert refused == [1, 1, 1]


# ---- membership, in all variants


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_crashed_member_is_removed_after_its_session(variant: str) -> None:
    with settled(variant) as sim:
        generation = group(sim).generation
        sim.crash("m2")
        assert 5_000 <= sim.run_until(lambda: len(sim.owners()) == 9) <= 12_000
        assert settle(sim) > generation
        assert set(sim.owners().values()) == {"m1", "m3"}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_member_that_leaves_is_not_waited_for(variant: str) -> None:
    with settled(variant) as sim:
        sim.leave("m2")
        sim.run(1)
        assert sim.run_until(sim.is_settled) < 2_000
        assert set(sim.owners().values()) == {"m1", "m3"}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_waiting_join_is_not_timed(variant: str) -> None:
    """m3 has a session of 30 s and is silent: the others wait for it five times as long as their own session."""
    with settled(variant) as sim:
        sim.restart("m3", consumes(session_timeout_ms=30_000))
        settle(sim)
        ids = _members(sim)
        sim.pause("m3", 29_000)
        sim.member("m4")
        sim.run(25_000)
        assert group(sim).phase is Phase.JOINING
        sim.run_until(sim.is_settled)
        assert ids <= _members(sim)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_first_generation_waits_for_more_members(variant: str) -> None:
    with settled(variant, members=8, settings=CoordinatorSettings(initial_delay_ms=1_000)) as sim:
        assert group(sim).generation == 1
