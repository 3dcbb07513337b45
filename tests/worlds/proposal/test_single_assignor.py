"""The two-phase JoinGroup: how the synchronizer works, and both ways in which it fails."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord_wire.codec.registry import registry
from kcoord_wire.consumer.member_events import Arrived, TopicsKnown
from kcoord_wire.kernel.machines import Tick
from kcoord_wire.messages.proposal import (
    SingleAssignorJoinGroupRequest,
    SingleAssignorJoinGroupRequestJoin,
    SingleAssignorJoinGroupRequestSyncedMember,
    SingleAssignorJoinGroupRequestSynchronized,
    SingleAssignorJoinGroupResponse,
    SingleAssignorJoinGroupResponseJoined,
)
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.worlds.proposal import MemberOptions, ProposalCluster
from kcoord_wire.worlds.proposal.proposal_coordinator import (
    Answer,
    Asked,
    Caller,
    CoordinatorSettings,
    MemberSettings,
    MemberState,
    Phase,
    Strategy,
    Subscribe,
    Subscription,
)
from kcoord_wire.worlds.proposal.proposal_world import MemberCodec
from kcoord_wire.worlds.proposal.single_assignor import (
    RANGE,
    ROUND_ROBIN,
    VARIANTS,
    SingleAssignorCoordinator,
    SingleAssignorMember,
)
from tests.support import proposals
from tests.support.proposals import consumes, count, group, in_phase, settle, settled

VARIANT = "single_assignor"


def _synchronizer(sim: ProposalCluster) -> str:
    coordinator = group(sim)
    assert isinstance(coordinator, SingleAssignorCoordinator)
    return coordinator.synchronizer.partition("-")[0]


def _states(sim: ProposalCluster) -> dict[str, MemberState]:
    return {name: process.machine.state for name, process in sim.processes.items()}


def test_only_the_synchronizer_gets_the_metadata_of_all() -> None:
    with settled(VARIANT) as sim:
        since = sim.now
        sim.member("m4")
        settle(sim)
        requests = {name: count(sim, name, "JoinGroupRequest", since=since) for name in sim.processes}
        assert requests.pop(_synchronizer(sim)) == 2
        assert set(requests.values()) == {1}


# ---- "Failure Scenarios", 1: synchronizer hard failure


def _asked_to_assign(sim: ProposalCluster) -> str:
    """Let m4 join; return the member that is asked to assign, before it has got the request."""
    sim.member("m4")
    sim.run_until(in_phase(sim, Phase.SYNCHRONIZING))
    return _synchronizer(sim)


def test_a_synchronizer_that_crashes_is_replaced() -> None:
    """The generation fails after the synchronization timeout; all rejoin, and another member assigns."""
    with settled(VARIANT, settings=CoordinatorSettings(synchronization_timeout_ms=2_000)) as sim:
        chosen = _asked_to_assign(sim)
        sim.crash(chosen)
        since = sim.now
        others = {"m1", "m2", "m3", "m4"} - {chosen}
        assert sim.run_until(in_phase(sim, Phase.JOINING)) == 2_000, "a limit on the time that JoinGroup takes"
        settle(sim)
        timed_out = [count(sim, name, "JoinGroup", since=since, error=ErrorCode.REQUEST_TIMED_OUT) for name in others]
        assert timed_out == [1, 1, 1]
        assert set(sim.owners().values()) == others


def test_a_synchronizer_that_is_late_is_refused() -> None:
    """It is alive: it rejoins, is not chosen twice in a row, and gets its partitions from another."""
    with settled(VARIANT, settings=CoordinatorSettings(synchronization_timeout_ms=1_000)) as sim:
        chosen = _asked_to_assign(sim)
        sim.pause(chosen, 3_000)
        since = sim.now
        settle(sim)
        assert count(sim, chosen, "JoinGroupResponse", since=since, error=ErrorCode.REBALANCE_IN_PROGRESS) == 1
        assert _synchronizer(sim) != chosen
        assert set(sim.owners().values()) == {"m1", "m2", "m3", "m4"}


def test_a_timeout_below_the_assignors_time_forms_no_group() -> None:
    """The document: "if the timeout is actually lower than the synchronization time, the group" never forms."""
    minute = consumes(assign_ms=60_000, session_timeout_ms=90_000, join_timeout_ms=200_000)
    with ProposalCluster(VARIANT, topics={"orders": 9}, members=2, options=minute) as sim:
        sim.run(1_800_000)
        assert sim.owners() == {}
        assert group(sim).generation > 5
        assert sum(count(sim, name, "JoinGroup", error=ErrorCode.REQUEST_TIMED_OUT) for name in sim.processes) > 5


# ---- "Failure Scenarios", 2: synchronizer soft failure


def _raises(*_: Any) -> Any:
    raise RuntimeError("no")


def _doubles(_: Any, members: Any, *__: Any) -> Any:
    return {member_id: {"orders": [0]} for member_id in members}


RAISING = consumes(strategies=(Strategy("odd", 0, _raises),))
DOUBLING = consumes(strategies=(Strategy("odd", 0, _doubles),))


@pytest.mark.parametrize(
    ("others", "last", "error"),
    [
        (consumes(), consumes(metadata_version="2"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (RAISING, RAISING, ErrorCode.UNKNOWN_SERVER_ERROR),
        (DOUBLING, DOUBLING, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
    ids=["metadata of another version", "an assignor that raises", "an assignor that returns nonsense"],
)
def test_an_error_of_the_synchronizer_reaches_all_members(
    others: MemberOptions, last: MemberOptions, error: ErrorCode
) -> None:
    """It is forwarded to the members that wait, and their applications have to handle it."""
    settings = CoordinatorSettings(initial_delay_ms=1_000)
    with ProposalCluster(VARIANT, topics={"orders": 9}, members=3, options=others, settings=settings) as sim:
        sim.member("m4", last)
        sim.run(20_000)
        assert set(_states(sim).values()) == {MemberState.FAILED}
        assert {process.machine.error for process in sim.processes.values()} == {error}
        answers = [line.detail for line in sim.trace if line.what == "gets" and "JoinGroup" in line.detail.message]
        assert [answer.error for answer in answers] == [0, *[error] * 4], "one was asked to assign"
        assert group(sim).phase is Phase.EMPTY


# ---- joins, subscriptions and topics


def test_a_member_that_joins_during_the_assignment_interrupts_it() -> None:
    with settled(VARIANT) as sim:
        chosen = _asked_to_assign(sim)
        sim.pause(chosen, 1_000)
        generation, since = group(sim).generation, sim.now
        sim.member("m5")
        assert settle(sim) == generation + 1
        assert count(sim, chosen, "JoinGroupResponse", since=since, error=ErrorCode.REBALANCE_IN_PROGRESS) == 1
        waiting = {"m1", "m2", "m3", "m4"} - {chosen}
        assert sum(count(sim, name, "JoinGroupRequest", since=since) for name in waiting) == 0, "they wait on"


@pytest.mark.parametrize("fails_over", [False, True])
def test_the_synchronizer_watches_the_topics(fails_over: bool) -> None:
    """One member rejoins, the others are asked to. After a failover it still knows that it has assigned."""
    with settled(VARIANT) as sim:
        generation = group(sim).generation
        watcher = _synchronizer(sim)
        if fails_over:
            sim.crash("coordinator", 500)
            sim.run(3_000)
        since = sim.now
        sim.add_partitions("orders", 3)
        assert settle(sim) == generation + 1
        assert len(sim.owners()) == 12
        told = {name: count(sim, name, "Heartbeat", since=since, error=27) for name in ("m1", "m2", "m3")}
        assert told.pop(watcher) == 0
        assert set(told.values()) == {1}


def test_a_synchronizer_with_stale_metadata_assigns_what_it_sees() -> None:
    """No two owners come of it, but partitions without one, until its metadata is up to date."""
    with settled(VARIANT) as sim:
        for name in {"m1", "m2", "m3"} - {_synchronizer(sim)}:
            sim.lag(name, 10_000)
        sim.add_partitions("orders", 3, refresh_ms=0)
        sim.run(8_000)
        assert len(sim.owners()) == 9
        settle(sim)
        assert len(sim.owners()) == 12


def test_a_synchronizer_that_dies_is_succeeded() -> None:
    """The leader's failure: its session ends, all rejoin, and another one assigns and watches."""
    with settled(VARIANT) as sim:
        sim.crash(_synchronizer(sim))
        sim.run(12_000)
        settle(sim)
        sim.add_partitions("orders", 3)
        settle(sim)
        assert len(sim.owners()) == 12


# ---- upgrades


def test_members_need_not_agree_on_the_strategy() -> None:
    """Range and round-robin in one group: the chosen one assigns, and the configuration alone changes."""
    with ProposalCluster(VARIANT, topics={"orders": 9}, members=3) as sim:
        for name in ("m1", "m2", "m3"):
            settle(sim)
            sim.restart(name, consumes(strategies=(RANGE,)))
        settle(sim)
        by_member = {
            name: sorted(p.partition for p in process.machine.owned) for name, process in sim.processes.items()
        }
        assert sorted(by_member.values()) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


# ---- Synchronized has no member id and no generation


def _join(connection: int, member_id: str = "") -> Asked:
    phase = SingleAssignorJoinGroupRequestJoin(session_timeout=6_000, member_id=member_id)
    request = SingleAssignorJoinGroupRequest(group_id="g", protocol_type="consumer", phase=phase)
    return Asked(Caller(connection, 1), "c", request)


def _synchronized(connection: int, member_id: str, state: bytes) -> Asked:
    states = [SingleAssignorJoinGroupRequestSyncedMember(member_id=member_id, synced_member_state=state)]
    phase = SingleAssignorJoinGroupRequestSynchronized(member_states=states)
    request = SingleAssignorJoinGroupRequest(group_id="g", protocol_type="consumer", phase=phase)
    return Asked(Caller(connection, 2), "c", request)


def test_an_assignment_that_cannot_be_read_is_an_error() -> None:
    member = SingleAssignorMember(MemberSettings(), MemberCodec(), [RANGE])
    member.handle(Subscribe(Subscription(("orders",))), 0)
    [join] = member.handle(TopicsKnown({"orders": 3}), 0)
    phase = SingleAssignorJoinGroupResponseJoined(synced_member_state=b"\xff")
    response = SingleAssignorJoinGroupResponse(group_generation_id=1, member_id="m-1", phase=phase)
    [failed] = member.handle(Arrived(join.request_id, response), 10)
    assert (member.state, member.owned) == (MemberState.FAILED, frozenset())
    assert failed.text.startswith("the assignment cannot be read")


def _answers(effects: list[Any]) -> list[Any]:
    return [effect.message for effect in effects if isinstance(effect, Answer)]


def test_a_synchronized_of_an_old_connection_is_refused() -> None:
    """A member reconnects while it computes: what it sent before must not be taken for the new generation's."""
    coordinator = SingleAssignorCoordinator(CoordinatorSettings(), 1, None, 0)
    [asked] = _answers(coordinator.handle(_join(1), 0))
    [again] = _answers(coordinator.handle(_join(2, asked.member_id), 10))
    assert again.group_generation_id == asked.group_generation_id + 1
    [refused] = _answers(coordinator.handle(_synchronized(1, asked.member_id, b"old"), 20))
    assert refused.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    [joined] = _answers(coordinator.handle(_synchronized(2, asked.member_id, b"new"), 30))
    assert (joined.error_code, joined.phase.synced_member_state) == (0, b"new")


def test_the_synchronization_timeout_is_a_deadline() -> None:
    coordinator = SingleAssignorCoordinator(CoordinatorSettings(synchronization_timeout_ms=500), 1, None, 0)
    coordinator.handle(_join(1), 100)
    assert coordinator.deadline == 600
    assert coordinator.handle(Tick(), 599) == []
    assert coordinator.handle(Tick(), 600) == [], "no member waits"
    assert (coordinator.phase, coordinator.deadline) == (Phase.JOINING, 6_600)


def test_each_variant_has_a_join_group_of_its_family() -> None:
    assert tuple(VARIANTS) == proposals.VARIANTS
    for variant in VARIANTS.values():
        assert registry.request(11, variant.family).name.endswith("JoinGroupRequest")


def test_the_strategies_are_those_of_kafka() -> None:
    assert [(each.name, each.version) for each in (RANGE, ROUND_ROBIN)] == [("range", 0), ("round-robin", 0)]


def test_another_name_is_an_error() -> None:
    with pytest.raises(KeyError, match="no_such"):
        ProposalCluster("no_such", topics={"orders": 1})
