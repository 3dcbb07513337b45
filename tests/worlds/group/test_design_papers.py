"""The scenarios of the design papers of Kafka's group protocol, each played on the virtual cluster."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kcoord_wire import messages as m
from kcoord_wire.assignors import TopicPartition
from kcoord_wire.consumer.member_events import (
    MemberState,
)
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.groups import State
from kcoord_wire.kernel.virtual.clock import EPOCH_MS
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.worlds.group.members import MemberProcess
from kcoord_wire.worlds.group.world import Cluster
from tests.support.clusters import QUICK, SHORT

# ---- "Kafka 0.9 Consumer Rewrite Design", section "Various failure scenarios to consider"


def _generation(sim: Cluster) -> int:
    return max(process.member.generation_id for process in sim.processes.values())


def _messages(sim: Cluster, who: str, what: str, since: int) -> list[object]:
    return [line.detail for line in sim.trace if line.who == who and line.what == what and line.at >= since]


def test_a_soft_failure_before_joining_costs_the_membership(three: Cluster) -> None:
    m2 = three.processes["m2"]
    zombie = m2.member.member_id
    before = _generation(three)
    three.pause("m2", 60_000)
    three.member("m4", **SHORT)
    three.run(30_000)
    assert three.state() is State.STABLE
    removed = [removal for rebalance in three.rebalances for removal in rebalance.removed]
    assert [(removal.member_id, removal.why) for removal in removed] == [(zombie, "session timeout")]
    assert _generation(three) == before + 1

    assert _commit(three, zombie, before).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    three.run_until(three.is_settled)
    assert m2.member.member_id not in ("", zombie), "it has rejoined as a new member"
    assert len(set(three.owners().values())) == 4


def test_a_soft_failure_longer_than_the_rebalance_timeout(three: Cluster) -> None:
    slow = three.member("m4", session_timeout_ms=60_000, rebalance_timeout_ms=10_000)
    three.run_until(three.is_settled)
    for name in ("m1", "m2", "m3"):
        three.restart(name, rebalance_timeout_ms=10_000)
    three.run_until(three.is_settled)
    zombie = slow.member.member_id
    three.pause("m4", 40_000)
    three.crash("m1")
    three.run(30_000)
    assert [(r.member_id, r.why) for r in three.rebalances[-1].removed if r.member_id == zombie] == [
        (zombie, "rebalance timeout")
    ]
    three.run_until(three.is_settled)


@pytest.mark.parametrize(("pause_ms", "survives"), [(4_000, True), (30_000, False)])
def test_a_soft_failure_after_joining_ends_the_session(three: Cluster, pause_ms: int, survives: bool) -> None:
    m1 = three.processes["m1"]
    three.pause("m3", 3_000)  # so that the join of m1 has to wait
    three.member("m4", **SHORT)
    three.run_until(lambda: m1.member.state is MemberState.JOINING)
    former = m1.member.member_id
    three.pause("m1", pause_ms)
    three.run(40_000)
    three.run_until(three.is_settled)
    removed = [removal.member_id for rebalance in three.rebalances for removal in rebalance.removed]
    assert (former not in removed) is survives
    assert (m1.member.member_id == former) is survives


def test_a_joining_member_needs_no_heartbeats(three: Cluster) -> None:
    """The rebalance waits for m3 twice as long as the session timeout of the others, whose JoinGroup is parked."""
    three.leave("m3")
    three.restart("m3", session_timeout_ms=60_000)
    three.run_until(three.is_settled)
    start = EPOCH_MS + three.now
    three.pause("m3", 13_000)
    three.member("m4", **SHORT)
    m1 = three.processes["m1"]
    three.run_until(lambda: m1.member.state is MemberState.JOINING)
    joined = three.now
    three.run_until(lambda: m1.member.state is not MemberState.JOINING)
    assert three.now - joined > 2 * 0.9 * 6_000
    sent = _messages(three, "m1", "sends", joined + 1)
    assert not [message for message in sent if isinstance(message, m.HeartbeatRequest)]
    three.run_until(three.is_settled)
    assert not [r for rebalance in three.rebalances if rebalance.started_at > start for r in rebalance.removed]


def _commit(
    sim: Cluster, member_id: str, generation_id: int, group_id: str = "group"
) -> m.OffsetCommitResponsePartition:
    place = m.OffsetCommitRequestPartition(partition_index=0, committed_offset=sim.fresh_offset())
    request = m.OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation_id,
        member_id=member_id,
        topics=[m.OffsetCommitRequestTopic(name="orders", partitions=[place])],
    )
    answer: m.OffsetCommitResponsePartition = sim.ask(request, 8).topics[0].partitions[0]
    return answer


@pytest.mark.parametrize(
    ("ahead", "error"),
    [(1, ErrorCode.ILLEGAL_GENERATION), (-1, ErrorCode.ILLEGAL_GENERATION), (0, ErrorCode.NONE)],
)
def test_commits_of_other_generations_are_refused(three: Cluster, ahead: int, error: ErrorCode) -> None:
    member = three.processes["m1"].member
    assert _commit(three, member.member_id, member.generation_id + ahead).error_code == error


def test_the_old_generation_may_commit_until_the_new_one_begins(three: Cluster) -> None:
    """Before JoinGroup the old generation commits; between the join and the assignment no member can."""
    member = three.processes["m1"].member
    member_id, generation_id = member.member_id, member.generation_id
    three.pause("m3", 3_000)
    three.member("m4", **SHORT)
    three.run_until(lambda: three.state() is State.PREPARING)
    assert _commit(three, member_id, generation_id).error_code == ErrorCode.NONE
    three.run_until(lambda: three.state() is State.COMPLETING)
    assert _commit(three, member_id, generation_id).error_code == ErrorCode.ILLEGAL_GENERATION
    assert _commit(three, member_id, generation_id + 1).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    three.run_until(three.is_settled)
    assert _commit(three, member_id, generation_id + 1).error_code == ErrorCode.NONE


# ---- "Client-side Assignment Proposal", section "Handling Coordinator Failures": in each phase of a rebalance


def _none_has_joined(sim: Cluster) -> bool:
    return sim.state() is State.PREPARING


def _all_have_joined(sim: Cluster) -> bool:
    return sim.state() is State.COMPLETING


def _some_have_their_assignment(sim: Cluster) -> bool:
    return sim.state() is State.STABLE and 0 < _count_stable(sim) < 4


def _stable(sim: Cluster) -> bool:
    return sim.is_settled() and _count_stable(sim) == 4


def _count_stable(sim: Cluster) -> int:
    newest = _generation(sim)
    return sum(
        process.member.state is MemberState.STABLE and process.member.generation_id == newest
        for process in sim.processes.values()
    )


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
@pytest.mark.parametrize(
    "phase",
    [_none_has_joined, _all_have_joined, _some_have_their_assignment, _stable],
    ids=lambda phase: phase.__name__.strip("_"),
)
@pytest.mark.parametrize("writes", [0, 1, 2])
def test_the_coordinator_fails_over_in_each_phase(phase: Callable[[Cluster], bool], writes: int, assignor: str) -> None:
    with Cluster(writes, topics={"orders": 9}, config=QUICK, latency_ms=(1, 40)) as sim:
        for name in ("m1", "m2", "m3"):
            sim.member(name, assignors=(assignor,), **SHORT)
        sim.run_until(sim.is_settled)
        before = _generation(sim)
        offsets = _offsets(sim)
        sim.member("m4", assignors=(assignor,), **SHORT)
        sim.run_until(lambda: phase(sim) and _generation(sim) >= before)
        sim.crash_coordinator(2_000, load_ms=300, writes=writes)
        sim.run(10_000)
        sim.run_until(lambda: sim.is_settled() and len(set(sim.owners().values())) == 4)
        assert _generation(sim) > before
        after = _offsets(sim)
        assert all(after[partition] >= offset for partition, offset in offsets.items())


def _offsets(sim: Cluster) -> dict[TopicPartition, int]:
    request = m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(group_id="group", topics=None)])
    return {
        TopicPartition(topic.name, partition.partition_index): partition.committed_offset
        for topic in sim.ask(request, 9).groups[0].topics
        for partition in topic.partitions
    }


def test_a_restarted_coordinator_has_a_stable_group(three: Cluster) -> None:
    generation, ended = _generation(three), len(three.rebalances)
    three.crash_coordinator(1_000)
    three.run(30_000)
    assert three.is_settled()
    assert _generation(three) == generation
    assert len(three.rebalances) == ended


# ---- "Client-side Assignment Proposal": the leader fails before its SyncGroup


@pytest.mark.parametrize("fate", ["crash", "pause"])
def test_the_leader_fails_before_its_sync(fate: str) -> None:
    with Cluster(3, topics={"orders": 9}, config=QUICK, latency_ms=(5, 60)) as sim:
        for name in ("m1", "m2", "m3"):
            sim.member(name, **SHORT)
        sim.run_until(lambda: sim.state() is State.COMPLETING and sum(map(_syncs, sim.processes.values())) >= 1)
        leader = sim.leader()
        assert leader is not None
        if leader.member.state is MemberState.SYNCING:
            pytest.fail("the leader was too quick for this seed")
        generation = _generation(sim)
        if fate == "crash":
            sim.crash(leader.name)
        else:
            sim.pause(leader.name, 30_000)
        sim.run(20_000)
        others = [process for process in sim.processes.values() if process is not leader]
        assert {process.member.state for process in others} == {MemberState.STABLE}
        assert min(process.member.generation_id for process in others) > generation
        refused = [
            line.detail for line in sim.trace if line.what == "gets" and isinstance(line.detail, m.SyncGroupResponse)
        ]
        assert ErrorCode.REBALANCE_IN_PROGRESS in {answer.error_code for answer in refused}
        sim.run_until(sim.is_settled)


def _syncs(process: MemberProcess) -> bool:
    return process.member.state is MemberState.SYNCING


# ---- "Client-side Assignment Proposal", released: step 4, rolling upgrades, subscriptions and topics


def test_step_4_members_without_their_assignment_get_it_at_once() -> None:
    """The leader has synchronized, and that is on disk: the new coordinator answers the others in that generation."""
    with Cluster(4, topics={"orders": 9}, config=QUICK, latency_ms=(5, 60)) as sim:
        for name in ("m1", "m2", "m3", "m4"):
            sim.member(name, **SHORT)
        sim.run_until(sim.is_settled)
        before = _generation(sim)
        sim.rejoin(sim.leader().name)  # type: ignore[union-attr]  # a settled group has one

        def leader_alone_has_its_assignment() -> bool:
            leader = sim.leader()
            has_it = leader is not None and leader.member.state is MemberState.STABLE
            return has_it and _generation(sim) > before and _count_stable(sim) < 4

        sim.run_until(leader_alone_has_its_assignment)
        generation, ended = _generation(sim), len(sim.rebalances)
        sim.crash_coordinator(1_000)
        sim.run(20_000)
        assert sim.is_settled()
        assert (_generation(sim), len(sim.rebalances)) == (generation, ended)


def _protocol(sim: Cluster) -> str:
    [described] = sim.ask(m.DescribeGroupsRequest(groups=["group"]), 5).groups
    name: str = described.protocol_data
    return name


def test_a_rolling_upgrade_ends_with_the_new_assignor() -> None:
    """Released, a version is part of the name. The table of four phases, with the names in place of the versions."""
    with Cluster(1, topics={"orders": 9}, config=QUICK) as sim:
        for name in "ABC":
            sim.member(name, assignors=("range",), **SHORT)
        sim.run_until(sim.is_settled)
        phases = [_protocol(sim)]
        for name in "ABC":
            sim.leave(name)
            sim.restart(name, assignors=("roundrobin", "range"))
            sim.run(1)
            sim.run_until(sim.is_settled)
            phases.append(_protocol(sim))
        assert phases == ["range", "range", "range", "roundrobin"]


def test_an_assignor_that_the_group_lacks_is_rejected(three: Cluster) -> None:
    stranger = three.member("m4", assignors=("roundrobin",), **SHORT)
    three.run(20_000)
    assert stranger.member.state is MemberState.FAILED
    assert set(three.owners().values()) == {"m1", "m2", "m3"}


def _refused_heartbeats(sim: Cluster, since: int) -> dict[str, int]:
    """How often each member's heartbeat was answered with REBALANCE_IN_PROGRESS."""
    return {
        name: sum(
            isinstance(each, m.HeartbeatResponse) and each.error_code == ErrorCode.REBALANCE_IN_PROGRESS
            for each in _messages(sim, name, "gets", since)
        )
        for name in sim.processes
    }


def test_a_subscription_change_reaches_the_others_by_heartbeat(three: Cluster) -> None:
    three.run(3_000)
    generation, since = _generation(three), three.now
    three.add_partitions("bills", 2)
    three.subscribe("m2", ["orders", "bills"])
    three.run_until(lambda: three.is_settled() and len(three.owners()) == 11)
    refused = _refused_heartbeats(three, since)
    assert refused.pop("m2") == 0, "it has sent JoinGroup unasked"
    assert min(refused.values()) >= 1
    assert _generation(three) > generation


def test_a_topic_change_is_the_leaders_to_notice(three: Cluster) -> None:
    """The proposal lets the leader send another SyncGroup; released, it sends JoinGroup, and all rejoin."""
    three.run(3_000)
    leader, since, generation = three.leader(), three.now, _generation(three)
    assert leader is not None
    three.add_partitions("orders", 3)
    three.run_until(lambda: three.is_settled() and len(three.owners()) == 12)
    refused = _refused_heartbeats(three, since)
    assert refused.pop(leader.name) == 0
    assert set(refused.values()) == {1}
    assert _generation(three) == generation + 1


# ---- "From Eager to Smarter in Apache Kafka Consumer Rebalances": a rolling bounce of ten instances


def rolling_bounce(assignor: str, *, static: bool = False) -> tuple[int, int]:
    """Return how long partitions were revoked (ms, summed), and how many rebalances that took."""
    with Cluster(10, topics={"input": 100}, config=GroupConfig()) as sim:
        for number in range(10):
            instance = f"i{number}" if static else None
            sim.member(
                f"m{number}",
                assignors=(assignor,),
                instance_id=instance,
                poll_ms=3_000,
                release_ms=5,
                commit_ms=None,
            )
        sim.run_until(sim.is_settled)
        sim.run(10_000)
        ended = len(sim.rebalances)
        for number in range(10):
            sim.leave(f"m{number}")
            sim.run(5_000)
            sim.restart(f"m{number}")
            sim.run(1)
            sim.run_until(sim.is_settled)
            sim.run(20_000)
        assert sim.is_settled()
        return sim.idle_ms().revoked, len(sim.rebalances) - ended


def test_a_cooperative_bounce_stops_less_work_than_an_eager_one() -> None:
    eager, once = rolling_bounce("sticky")
    cooperative, twice = rolling_bounce("cooperative-sticky")
    assert cooperative < eager / 8, f"eager {eager} ms, cooperative {cooperative} ms; the paper has 37,138 to 3,522"
    assert (once, twice) == (20, 30), "a join costs a second rebalance, a leave does not"


def test_a_bounce_of_static_members_rebalances_nothing() -> None:
    _, rebalances = rolling_bounce("range", static=True)
    assert rebalances == 0
