"""Captures of incidents: who died, whom rebalances waited for, and what of pauses cannot be known."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from kcoord_wire.forensics import analyze
from kcoord_wire.forensics.model import Finding, GroupHistory

DATA = Path(__file__).parents[1] / "data"
CAPTURES = DATA / "captures" / "incidents"


@cache
def histories(name: str) -> dict[str, GroupHistory]:
    return {history.group.group_id: history for history in analyze([CAPTURES / f"{name}.pcap.gz"]).histories}


def ends(history: GroupHistory) -> list[tuple[str | None, str | None]]:
    return [(life.client_id, life.end) for life in history.members]


def found(history: GroupHistory, detector: str) -> list[Finding]:
    return [finding for finding in history.findings if finding.detector == detector]


def test_a_crash_loop_is_found_by_its_deaths() -> None:
    loop = histories("batch2-lo")["crashloop"]
    died = [("w-2", "process died")] * 4
    assert ends(loop) == [("w-0", "left"), ("w-1", "left"), *died, ("w-2", "left")]
    waits = [(row.number, each.client_id, each.end) for row in loop.rebalances for each in row.waited_for]
    assert waits == [(number, "w-2", "process died") for number in (3, 4, 5)]
    assert all(5_000 < each.ms < 8_000 for row in loop.rebalances for each in row.waited_for)
    (flapping,) = found(loop, "flapping_member")
    assert "process died (4 x)" in flapping.text
    assert "OOM" in flapping.advice
    assert found(loop, "uneven_assignment") == [], "the leader's assignments were even"
    dead = [pause for pause in loop.pauses if pause.dead_until_ns is not None]
    assert len(dead) == 2, "the partitions of the only incarnation that received any"
    assert {pause.partition for pause in dead} == {4, 5}


def test_a_group_deleted_and_formed_again_has_all_its_rebalances() -> None:
    reborn = histories("batch2-lo")["reborn"]
    assert [(row.generation_id, row.outcome) for row in reborn.rebalances] == [
        (1, "stable"), (2, "empty"), (1, "stable"), (2, "empty"),
    ]  # fmt: skip
    (reset,) = found(reborn, "generation_reset")
    assert (reset.severity, "deleted when it was empty" in reset.text) == ("warning", True)


def test_hosts_that_are_cut_off_are_silent_and_not_dead() -> None:
    cut = histories("part2-br")["partition2"]
    lost = [life for life in cut.members if life.why_left == "session timeout"]
    assert [life.end for life in lost] == ["cut off", "cut off"]
    assert all(life.died_ns is not None and life.died_ns < (life.left_ns or 0) for life in lost)


def test_what_connect_workers_hold_is_not_known() -> None:
    connect = histories("connect")["connect-cluster"]
    assert connect.group.paused_ms is None
    assert any("protocol type connect" in said for said in connect.group.blind)
    assert connect.members[0].end == "process died"


def test_a_group_between_two_protocols_is_not_empty() -> None:
    both = histories("modern")["up848"]
    assert [row.number for row in both.rebalances if row.outcome == "empty"] == [10]


def test_a_killed_member_of_a_kip_848_group_is_dead() -> None:
    kip = histories("modern")["kip"]
    assert ("k-3", "process died") in ends(kip)
    assert sum(pause.dead_until_ns is not None for pause in kip.pauses) == 2


def test_members_that_no_broker_answers_are_not_dead() -> None:
    """A broker is frozen for 11 s; librdkafka closes its connections meanwhile, and lives on."""
    for history in analyze([DATA / "incidents" / "outage-freeze-long.pcap.gz"]).histories:
        (outage,) = history.outages
        assert outage.to_ns is not None
        died = [life.died_ns for life in history.members if life.died_ns is not None]
        assert all(at > outage.to_ns for at in died), "only the end of the run killed them"
