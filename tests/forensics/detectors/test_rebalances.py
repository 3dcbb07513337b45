"""The detector storm on a group with the problem, and on groups that only look like it.

The detectors of stuck rebalances on a group with the problem, and on groups that only look like it.

The detector cooperative_loop on a group with the problem, and on groups that only look like it.

The detector generation_reset on a group with the problem, and on groups that only look like it.

The detector leader_does_not_assign: a leader that joins again instead of sending the assignment.

Slow leaders: how long a leader's assignor takes while others wait.

The detector commits_instead_of_joining: a member that commits until the rebalance timeout removes it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.model import Awaited, Exchange, GroupHistory, RemovedMember, StateInterval
from tests.support.detector_groups import SECOND, exchange, generation, given, group, leader_join, life, of, rebalance


def test_storm_counts_rebalances_beyond_joins_and_leaves() -> None:
    causes = [Cause.POLL_TIMEOUT, Cause.LEADER_REJOINED]
    storm = group(rebalances=[rebalance(n, n * 3.0, causes[n % 2], f"c{n % 4}") for n in range(1, 201)])
    (found,) = of("storm", storm)
    assert (found.severity, found.value, found.rebalances[0], found.rebalances[-1]) == ("critical", 200, 1, 200)
    assert "200 rebalances in 10 min" in found.text
    few = group(rebalances=storm.rebalances[:9])
    assert of("storm", few) == []
    slow = group(rebalances=[rebalance(n, n * 120.0, Cause.POLL_TIMEOUT) for n in range(1, 101)])
    assert of("storm", slow) == []  # five in ten minutes


def test_a_rolling_bounce_is_not_a_storm() -> None:
    moves = [(Cause.MEMBER_LEFT, f"c{n}") for n in range(100)]
    bounce = [move for left in moves for move in (left, (Cause.NEW_MEMBER, left[1]))]
    rounds = []
    for cause, client in bounce:
        rounds += [(cause, client), (Cause.COOPERATIVE_FOLLOW_UP, client)]
    calm = group(rebalances=[rebalance(n, n * 1.0, *move) for n, move in enumerate(rounds, 1)])
    assert of("storm", calm) == []
    again = group(rebalances=calm.rebalances[:40] + [replace(r, number=r.number + 40) for r in calm.rebalances[:40]])
    assert of("storm", again)[0].value == 40  # the same clients a second time


def test_the_advice_fits_the_commonest_cause() -> None:
    for cause, word in ((Cause.POLL_TIMEOUT, "max.poll.records"), (Cause.SESSION_EXPIRED, "network")):
        (found,) = of("storm", group(rebalances=[rebalance(n, n * 3.0, cause) for n in range(1, 20)]))
        assert word in found.advice
    for other in (str(Cause.UNKNOWN), "a cause of another release"):
        (found,) = of("storm", group(rebalances=[rebalance(n, n * 3.0, cause=other) for n in range(1, 20)]))
        assert "set off most" in found.advice


def state(name: str, from_s: float, to_s: float | None) -> StateInterval:
    end = None if to_s is None else int(to_s * SECOND)
    return StateInterval("billing", name, int(from_s * SECOND), end, 1)


def test_stuck_preparing_names_the_late_member() -> None:
    gone = RemovedMember("c2-id", "c2", "10.0.0.2", "rebalance timeout")
    stuck = group(
        states=[state("PreparingRebalance", 10, 310), state("Stable", 310, None)],
        rebalances=[rebalance(1, 10, removed=[gone])],
    )
    (found,) = of("stuck_preparing", stuck)
    assert (found.severity, found.subject, found.value) == ("critical", "c2", 300_000)
    late = rebalance(1, 10, last_client_id="c3", late_ms=35_000.0)
    slow = group(states=[state("PreparingRebalance", 10, 50)], rebalances=[late])
    assert [(f.severity, f.subject) for f in of("stuck_preparing", slow)] == [("warning", "c3")]
    quick = group(states=[state("PreparingRebalance", 10, 39), state("CompletingRebalance", 39, 100)])
    assert of("stuck_preparing", quick) == []


def test_a_long_wait_for_a_dead_member_says_so() -> None:
    wait = Awaited("c2-id", "c2", "10.0.0.2", 10 * SECOND, 43_000.0, "process died", 9 * SECOND)
    stuck = group(states=[state("PreparingRebalance", 10, None)], rebalances=[rebalance(1, 10, waited_for=[wait])])
    (found,) = of("stuck_preparing", stuck)
    assert (found.severity, found.subject) == ("warning", "c2"), "its session ends"
    assert "waiting for c2, dead or silent by then" in found.text
    assert "max.poll.interval.ms" not in found.advice


def test_stuck_completing_names_the_leader_and_the_assignor() -> None:
    lost = [rebalance(n, n * 60, outcome="interrupted", leader_id="c1-id", assignor="sticky") for n in (1, 2, 3)]
    stuck = group(
        states=[state("CompletingRebalance", n * 60 + 1, n * 60 + 50) for n in (1, 2, 3)],
        rebalances=lost,
        members=[life("c1")],
    )
    (found,) = of("stuck_completing", stuck)
    assert (found.severity, found.subject, found.rebalances) == ("critical", "c1", [1, 2, 3])
    assert "sticky" in found.text
    still = group(100, states=[state("CompletingRebalance", 10, None)], rebalances=[rebalance(1, 9)])
    assert of("stuck_completing", still)[0].severity == "critical"
    assert of("stuck_completing", group(states=[state("CompletingRebalance", 10, 19)])) == []


@pytest.mark.parametrize(("rounds", "found"), [(1, 0), (2, 0), (3, 1), (30, 1)])
def test_cooperative_loop_is_more_than_two_rounds(rounds: int, found: int) -> None:
    causes = [Cause.NEW_MEMBER] + [Cause.COOPERATIVE_FOLLOW_UP] * rounds
    loop = group(rebalances=[rebalance(n, n, cause) for n, cause in enumerate(causes, 1)])
    assert len(of("cooperative_loop", loop)) == found


GROWING = [generation(n, n * 10, n * 10 + 10) for n in (7, 8, 9)]


def test_growing_generations_are_normal() -> None:
    assert of("generation_reset", group(generations=GROWING)) == []


def test_a_lost_log_is_critical_where_members_came_back_from_it() -> None:
    lost = [*GROWING, generation(1, 200)]
    failover = rebalance(4, 198, Cause.COORDINATOR_FAILOVER, generation_id=1)
    (found,) = of("generation_reset", group(generations=lost, rebalances=[failover]))
    assert (found.severity, found.text) == ("critical", "generation 1 follows generation 9: the group was lost")
    assert "lost its log" in found.advice
    (found,) = of("generation_reset", group(generations=lost))
    assert found.severity == "warning"


def test_a_deleted_group_was_empty_before() -> None:
    empty = StateInterval("billing", "Empty", 110 * SECOND, 199 * SECOND, 10)
    (found,) = of("generation_reset", group(generations=[*GROWING, generation(1, 200)], states=[empty]))
    assert found.severity == "warning"
    assert "deleted when it was empty, and formed again" in found.text
    assert "auto.offset.reset" in found.advice


def test_a_group_formed_again_may_have_the_same_number() -> None:
    again = replace(generation(1, 200), leader_id="c2-id")
    empty = StateInterval("billing", "Empty", 110 * SECOND, 199 * SECOND, 2)
    (found,) = of("generation_reset", group(generations=[generation(1, 0, 100), again], states=[empty]))
    assert found.value == found.threshold
    assert of("generation_reset", group(generations=[generation(1, 0, 100), generation(1, 200)])) == []


def test_a_member_of_the_classic_protocol_lags_behind_the_epoch() -> None:
    behind = [generation(6, 0, 100), generation(7, 110, 120), generation(6, 121)]
    modern = life("b", protocol="consumer")
    assert of("generation_reset", group(generations=behind, members=[life("a"), modern])) == []
    assert len(of("generation_reset", group(generations=behind, members=[life("a"), life("b", 200)]))) == 1
    gone = life("b", 0, 50, protocol="consumer")
    assert len(of("generation_reset", group(generations=behind, members=[life("a"), gone]))) == 1


HISTORY = group(members=[life("a"), life("b")])
MEMBERS = {"a": ({}, -1), "b": ({}, -1)}


def lists(count: int) -> list[Exchange]:
    return [leader_join("a", 10 * n, n, MEMBERS, "sticky") for n in range(1, count + 1)]


@pytest.mark.parametrize(("count", "severity"), [(3, None), (4, "warning"), (11, "critical")])
def test_lists_without_an_assignment_are_counted(count: int, severity: str | None) -> None:
    found = of("leader_does_not_assign", HISTORY, lists(count))
    assert [finding.severity for finding in found] == ([severity] if severity else [])
    if found:
        assert found[0].subject == "a"
        assert found[0].value == count - 1, "nothing follows the last one"
        assert "sticky" in found[0].text


def test_an_assignment_ends_the_stretch() -> None:
    rows = [*lists(5), given("a", 31, 3, {"a": {"orders": [0]}})]
    assert of("leader_does_not_assign", HISTORY, rows) == []


def test_a_leader_that_is_gone_did_not_give_up() -> None:
    rows = [leader_join(name, 10 * n, n, MEMBERS) for n, name in enumerate(("a", "b", "c", "d", "e"), start=1)]
    assert of("leader_does_not_assign", HISTORY, rows) == []


CLAIMS = {"c1": ({"orders": [0]}, 0), "c2": ({"orders": [1]}, 0)}


def test_the_leader_and_the_time_are_named() -> None:
    rows = [leader_join("c1", 10, 1, CLAIMS), given("c1", 15, 1, {"c1": {}, "c2": {}})]
    (found,) = of("slow_leader", group(60, rebalances=[rebalance(1, 10)]), rows)
    assert (found.severity, found.subject, found.rebalances) == ("warning", "c1", [1])
    assert round(found.value) == 5_000
    assert found.text == "the leader c1 took 5.0 s in its assignor (cooperative-sticky), and 1 other waited for it"


def test_a_second_is_a_warning_only_if_it_is_the_rule() -> None:
    rows = [
        row for at in (10, 20, 30) for row in (leader_join("c1", at, at, CLAIMS), given("c1", at + 1.2, at, {"c1": {}}))
    ]
    assert [found.severity for found in of("slow_leader", group(), rows[:4])] == ["info"]
    assert [found.severity for found in of("slow_leader", group(), rows)] == ["warning"]


def test_the_leader_of_streams_has_more_to_do() -> None:
    """It asks for the ends of all changelogs, and makes internal topics."""
    rows = [leader_join("c1", 10, 1, CLAIMS, assignor="stream"), given("c1", 15, 1, {"c1": {}})]
    (found,) = of("slow_leader", group(), rows)
    assert (found.severity, round(found.value)) == ("info", 5_000)


def test_a_quick_leader_or_one_alone_is_normal() -> None:
    quick = [leader_join("c1", 10, 1, CLAIMS), given("c1", 10.5, 1, {"c1": {}})]
    assert of("slow_leader", group(), quick) == []
    alone = [leader_join("c1", 10, 1, {"c1": ({}, 0)}), given("c1", 15, 1, {"c1": {}})]
    assert of("slow_leader", group(), alone) == []


def test_longer_waits_are_those_of_stuck_completing() -> None:
    rows = [leader_join("c1", 10, 1, CLAIMS), given("c1", 25, 1, {"c1": {}})]
    assert of("slow_leader", group(), rows) == []
    assert of("slow_leader", group(), None) == []


def history(why: str = "rebalance timeout") -> GroupHistory:
    gone = RemovedMember("c1-id", "c1", "10.0.0.1", why)
    row = rebalance(1, 100, joined_ns=140_000_000_000, ended_ns=141_000_000_000, removed=[gone])
    return group(members=[life("c1", 0, 140)], rebalances=[row])


TOLD = exchange("Heartbeat", 100.5, error_code=27)


@pytest.mark.parametrize(("commits", "found"), [(2, 0), (3, 1), (9, 1)])
def test_commits_while_the_group_waits_are_counted(commits: int, found: int) -> None:
    rows = [TOLD, *(exchange("OffsetCommit", 101 + n) for n in range(commits))]
    rows += [exchange("OffsetCommit", at) for at in (1, 2, 3, 150)]  # before and after
    rows += [exchange("OffsetCommit", 101 + n, member_id="c2-id") for n in range(9)]
    findings = of("commits_instead_of_joining", history(), rows)
    assert len(findings) == found
    for finding in findings:
        assert finding.subject == "c1"
        assert f"{commits} commits in one rebalance" in finding.text


def test_other_removals_and_refused_commits_do_not_count() -> None:
    rows = [TOLD, *(exchange("OffsetCommit", 101 + n) for n in range(9))]
    assert of("commits_instead_of_joining", history("session timeout"), rows) == []
    refused = [TOLD, *(exchange("OffsetCommit", 101 + n, error_code=25) for n in range(9))]
    assert of("commits_instead_of_joining", history(), refused) == []
    assert of("commits_instead_of_joining", history()) == []


def test_a_member_that_was_not_told_to_rejoin_did_nothing_wrong() -> None:
    rows = [exchange("OffsetCommit", 101 + n) for n in range(9)]
    assert of("commits_instead_of_joining", history(), rows) == []
