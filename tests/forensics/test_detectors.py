"""Each detector on a group that has what it looks for, and on one that only looks like it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from kcoord_wire.forensics.detectors import detect, findings_of
from kcoord_wire.forensics.model import (
    Cause,
    Exchange,
    Finding,
    Generation,
    GroupHistory,
    GroupSummary,
    MemberLife,
    Offered,
    OffsetsCommitted,
    Ownership,
    Rebalance,
    RemovedMember,
    StateInterval,
    Subscription,
    table_of,
)

SECOND = 1_000_000_000
MINUTE = 60 * SECOND


def group(last_s: float = 3600, **lists: Any) -> GroupHistory:
    summary = GroupSummary("billing", "wire", "consumer", 0, int(last_s * SECOND), 0, 0, 0, 0, 0, 0.0, [])
    return GroupHistory(summary, **lists)


def rebalance(
    number: int, start_s: float, cause: Cause = Cause.NEW_MEMBER, client: str = "c1", **more: Any
) -> Rebalance:
    values: dict[str, Any] = {
        "group_id": "billing", "number": number, "generation_id": number, "started_ns": int(start_s * SECOND),
        "joined_ns": int((start_s + 1) * SECOND), "ended_ns": int((start_s + 2) * SECOND), "outcome": "stable",
        "cause": cause, "member_id": f"{client}-id", "client_id": client, "client_host": "10.0.0.1",
        "instance_id": None, "reason": None, "detail": "", "confidence": 1.0, "evidence": [],
    }  # fmt: skip
    return Rebalance(**{**values, **more})


def life(name: str, from_s: float = 0, to_s: float | None = None, **more: Any) -> MemberLife:
    values: dict[str, Any] = {
        "group_id": "billing", "member_id": f"{name}-id", "instance_id": None, "client_id": name,
        "client_host": "10.0.0.1", "joined_ns": int(from_s * SECOND),
        "left_ns": None if to_s is None else int(to_s * SECOND), "why_left": None if to_s is None else "left",
        "last_seen_ns": int((3600 if to_s is None else to_s) * SECOND), "first_generation_id": 1,
        "last_generation_id": 1, "session_timeout_ms": 45_000, "rebalance_timeout_ms": 300_000,
        "assignors": ["range"], "topics": ["orders"],
    }  # fmt: skip
    return MemberLife(**{**values, **more})


def generation(number: int, joined_s: float, ended_s: float | None = None, members: int = 2) -> Generation:
    end = None if ended_s is None else int(ended_s * SECOND)
    joined = int(joined_s * SECOND)
    return Generation("billing", number, joined, joined, end, "range", "c1-id", members, 4)


def held(name: str, partition: int, from_s: float = 0, to_s: float | None = None) -> Ownership:
    end = None if to_s is None else int(to_s * SECOND)
    return Ownership("billing", "orders", partition, f"{name}-id", name, 1, int(from_s * SECOND), end)


def state(name: str, from_s: float, to_s: float | None) -> StateInterval:
    end = None if to_s is None else int(to_s * SECOND)
    return StateInterval("billing", name, int(from_s * SECOND), end, 1)


def exchange(api: str, at_s: float, **more: Any) -> Exchange:
    at = int(at_s * SECOND)
    values: dict[str, Any] = {
        "group_id": "billing", "api": api, "api_version": 5, "source": "a.pcap", "seq": int(at_s), "answer_seq": None,
        "connection": "10.0.0.1:1-10.0.0.9:9092#1", "client_id": "c1", "client_host": "10.0.0.1", "asked_ns": at,
        "answered_ns": at + 1000, "error_code": 0, "member_id": "c1-id", "generation_id": 1,
    }  # fmt: skip
    return Exchange(**{**values, **more})


def commit(at_s: float, partition: int, error: int = 0, **more: Any) -> Exchange:
    offsets = [OffsetsCommitted("orders", partition, 7, error)]
    return exchange("OffsetCommit", at_s, offsets=offsets, error_code=error, **more)


def offers(*assignors: str) -> list[Offered]:
    return [Offered(name, Subscription(["orders"], [], -1, None, b"")) for name in assignors]


def of(detector: str, history: GroupHistory, exchanges: Sequence[Exchange] | None = None) -> list[Finding]:
    table: pa.Table | None = None if exchanges is None else table_of(Exchange, list(exchanges))
    found = findings_of(detector, history, table)
    assert all(finding.detector == detector and finding.group_id == "billing" for finding in found)
    assert all(finding.value >= finding.threshold for finding in found)
    return found


def test_storm_counts_what_coming_and_going_does_not_explain() -> None:
    causes = [Cause.POLL_TIMEOUT, Cause.LEADER_REJOINED]
    storm = group(rebalances=[rebalance(n, n * 3.0, causes[n % 2], f"c{n % 4}") for n in range(1, 201)])
    (found,) = of("storm", storm)
    assert (found.severity, found.value, found.rebalances[0], found.rebalances[-1]) == ("critical", 200, 1, 200)
    assert "200 rebalances in 10 min" in found.text
    few = group(rebalances=storm.rebalances[:9])
    assert of("storm", few) == []
    slow = group(rebalances=[rebalance(n, n * 120.0, Cause.POLL_TIMEOUT) for n in range(1, 101)])
    assert of("storm", slow) == []  # five in ten minutes


def test_a_rolling_bounce_of_many_is_no_storm() -> None:
    moves = [(Cause.MEMBER_LEFT, f"c{n}") for n in range(100)]
    bounce = [move for left in moves for move in (left, (Cause.NEW_MEMBER, left[1]))]
    rounds = []
    for cause, client in bounce:
        rounds += [(cause, client), (Cause.COOPERATIVE_FOLLOW_UP, client)]
    calm = group(rebalances=[rebalance(n, n * 1.0, *move) for n, move in enumerate(rounds, 1)])
    assert of("storm", calm) == []
    again = group(rebalances=calm.rebalances[:40] + [replace(r, number=r.number + 40) for r in calm.rebalances[:40]])
    assert of("storm", again)[0].value == 40  # the same clients a second time


def test_flapping_is_one_life_after_the_other() -> None:
    flaps = [life("c1", n * 30, n * 30 + 20, member_id=f"c1-{n}", why_left="session timeout") for n in range(5)]
    (found,) = of("flapping_member", group(members=[*flaps, life("c2")]))
    assert (found.subject, found.value) == ("c1 at 10.0.0.1", 4)
    assert "session timeout" in found.text
    together = [life("rdkafka", n, 3000, member_id=f"rdkafka-{n}") for n in range(10)]
    assert of("flapping_member", group(members=together)) == []
    bounced = [life("rdkafka", 3100 + n, member_id=f"new-{n}") for n in range(10)]
    assert of("flapping_member", group(members=[*together, *bounced])) == []  # each of the ten came back once
    hourly = [life("c1", n * 3600, n * 3600 + 20, member_id=f"c1-{n}") for n in range(9)]
    assert of("flapping_member", group(36_000, members=hourly)) == []


def test_stuck_preparing_blames_who_did_not_come() -> None:
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


def test_generation_reset() -> None:
    growing = [generation(n, n * 10, n * 10 + 10) for n in (7, 8, 9)]
    assert of("generation_reset", group(generations=growing)) == []
    (found,) = of("generation_reset", group(generations=[*growing, generation(1, 200)]))
    assert (found.severity, found.text) == ("critical", "generation 1 follows generation 9")


def test_uneven_assignment_compares_equals_in_the_longest_generation() -> None:
    members = [life("c1"), life("c2"), life("c3", topics=["payments"])]
    uneven = group(
        generations=[generation(1, 0, 10), generation(2, 10, None, members=3)],
        members=members,
        ownership=[*[held("c1", n) for n in range(5)], held("c2", 5)],
    )
    (found,) = of("uneven_assignment", uneven)
    assert (found.subject, found.value) == ("c1", 5 / 3)
    assert "where 3.0 would be even" in found.text
    fair = replace(uneven, ownership=[held(f"c{1 + n % 2}", n) for n in range(5)])
    assert of("uneven_assignment", fair) == []
    short = replace(uneven, ownership=[held("c1", n, 0, 5) for n in range(6)] + [held("c2", n, 8) for n in range(1)])
    assert of("uneven_assignment", short) == []


def test_mixed_assignors_that_stay_side_by_side() -> None:
    rdkafka = life("py", assignors=["range"], library="librdkafka")
    java = life("java", assignors=["cooperative-sticky", "range"])
    (found,) = of("mixed_assignors", group(members=[rdkafka, java]))
    assert found.subject == "py"
    assert "eager to cooperative" in found.text
    assert "librdkafka" in found.text
    bouncing = [life("py", 0, 300), life("java", 0, assignors=["cooperative-sticky", "range"])]
    assert of("mixed_assignors", group(members=bouncing)) == []
    newer = [life("old"), life("new", protocol="consumer", assignors=[])]
    assert "KIP-848" in of("mixed_assignors", group(members=newer))[0].text
    refused = [exchange("JoinGroup", n, error_code=23, client_id="py", offered=offers("range")) for n in (5, 6)]
    (found,) = of("mixed_assignors", group(members=[java]), refused)
    assert (found.severity, found.subject, found.value) == ("critical", "py", 2)
    assert found.evidence[0].text == "it offers range"


def test_commit_after_revoke_refused_and_accepted() -> None:
    history = group(
        rebalances=[rebalance(1, 100), rebalance(2, 200)],
        members=[life("c1"), life("c2")],
        ownership=[held("c1", 0, 0, 100), held("c1", 1, 0, None), held("c2", 0, 102)],
    )
    rejoins = [exchange("JoinGroup", at) for at in (1, 100)]
    rows = [
        *rejoins,
        commit(50, 0),
        commit(100, 0),
        commit(101, 0),
        commit(101.5, 1),
        commit(150, 0, 22),
        commit(160, 0, 22, member_id=""),
    ]
    found = of("commit_after_revoke", history, rows)
    assert [(f.subject, f.severity, f.value) for f in found] == [("c1", "warning", 1), ("c1", "critical", 1)]
    assert found[1].evidence[0].text == "c1 commits orders-0, which it has lost"
    assert found[1].rebalances == [1]
    assert of("commit_after_revoke", history, [*rejoins, commit(99, 0), commit(150, 1)]) == []
    giving_up = [
        exchange("JoinGroup", at) for at in (1, 101.2)
    ]  # cooperative: the assignment took it, then it rejoined
    assert of("commit_after_revoke", history, [*giving_up, commit(100.5, 0)]) == []
    assert len(of("commit_after_revoke", history, [*giving_up, commit(101.5, 0)])) == 1
    assert of("commit_after_revoke", history, []) == []


def test_commit_after_revoke_of_what_another_holds_when_the_group_is_stable() -> None:
    """A worker goes on with a partition that its member has lost; a cooperative member commits what it gives up."""
    history = group(
        members=[life("c1"), life("c2")],
        ownership=[held("c1", 0, 0, 100), held("c1", 1, 0), held("c2", 2, 0), held("c2", 0, 105, 200)],
    )
    gives_up, own, late, freed = commit(101, 0), commit(150, 1), commit(151, 0), commit(201, 0)
    nothing = exchange("OffsetCommit", 152, offsets=[])
    (found,) = of("commit_after_revoke", history, [gives_up, own, late, freed, nothing])
    assert (found.subject, found.severity, found.value) == ("c1", "critical", 1)
    assert [item.time_ns for item in found.evidence] == [151 * SECOND]
    never_held = commit(160, 2)
    assert of("commit_after_revoke", history, [gives_up, own, freed, never_held]) == []


def test_detect_gives_the_worst_first_and_needs_no_exchanges() -> None:
    everything = group(
        rebalances=[rebalance(n, n * 3.0, Cause.POLL_TIMEOUT) for n in range(1, 60)],
        generations=[generation(5, 0, 10, members=0), generation(1, 10)],
        members=[life("old"), life("new", protocol="consumer", assignors=[])],
    )
    found = detect(everything)
    assert [f.severity for f in found] == ["critical", "warning", "warning"]
    assert found[0].detector == "storm"
    assert detect(group()) == []
    assert detect(everything, table_of(Exchange, [])) == found
