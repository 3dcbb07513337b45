"""Rebalances in the log, in memory and in the metrics."""

from __future__ import annotations

import json
from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire.coordinator import description as rebalance_log
from kcoord_wire.coordinator.core.events import Phase, RebalanceAccount, RebalanceReport, Removal, Trigger
from kcoord_wire.coordinator.description import RebalanceLog, describe_rebalance, rebalance_to_json
from kcoord_wire.coordinator.metrics import Metrics
from tests.support.fixtures import StartCoordinator
from tests.support.group_client import become_stable
from tests.support.wire import Wire


def billing(**changes: Any) -> RebalanceAccount:
    values: dict[str, Any] = {
        "group_id": "billing",
        "generation_id": 7,
        "trigger": Trigger.NEW_MEMBER,
        "member_id": "c2-6f",
        "client_id": "c2",
        "client_host": "/10.0.0.7",
        "group_instance_id": None,
        "reason": None,
        "started_at": 1_760_000_000_000,
    }
    return RebalanceAccount(**values | changes)


def ended(**changes: Any) -> RebalanceAccount:
    values: dict[str, Any] = {
        "joined_at": 1_760_000_000_812,
        "ended_at": 1_760_000_000_821,
        "outcome": "stable",
        "protocol": "range",
        "leader_id": "c1-0a",
        "joins": [("c2-6f", 0), ("c1-0a", 640)],
        "removed": [Removal("c3-77", "c3", "/10.0.0.8", "session timeout")],
    }
    return billing(**values | changes)


def test_lines_of_a_rebalance() -> None:
    start = billing(trigger=Trigger.SESSION_EXPIRED, reason="poll timeout", group_instance_id="i-1")
    assert describe_rebalance(start) == (
        "group billing: rebalance of generation 7 has begun; "
        "session timeout: c2-6f (client c2, /10.0.0.7), instance i-1, stated reason: poll timeout"
    )
    assert describe_rebalance(ended(ended_at=None, outcome=None, removed=[])) == (
        "group billing: joined to generation 7 after 812 ms; new member: c2-6f (client c2, /10.0.0.7); "
        "2 joined, the last c1-0a, 640 ms after the one before; range, led by c1-0a"
    )
    assert describe_rebalance(ended()) == (
        "group billing: stable at generation 7 after 821 ms (join 812, sync 9); "
        "new member: c2-6f (client c2, /10.0.0.7); 2 joined, the last c1-0a, 640 ms after the one before; "
        "range, led by c1-0a; lost c3-77 (client c3, /10.0.0.8): session timeout"
    )
    alone = ended(joins=[("c1-0a", 3000)], removed=[Removal(f"m{n}", "c", "/h", "left") for n in range(9)])
    assert "1 joined, the last c1-0a, 3000 ms after the start" in describe_rebalance(alone)
    assert describe_rebalance(alone).endswith("lost m4 (client c, /h): left; and 4 more")
    requested = billing(trigger=Trigger.REQUESTED, member_id="", client_id="", client_host="", reason="a test")
    assert describe_rebalance(requested).endswith("begun; requested by the operator, stated reason: a test")
    emptied = billing(ended_at=1_760_000_000_001, outcome="empty", trigger=Trigger.MEMBER_LEFT)
    assert describe_rebalance(emptied).startswith("group billing: empty at generation 7 after 1 ms; member left: ")


def test_a_client_cannot_write_lines_of_the_log() -> None:
    evil = "x\n2026 ERROR \x1b[31m\u202e" + "y" * 100_000
    rebalance = ended(
        group_id=evil, member_id=evil, client_id=evil, reason=evil, group_instance_id=evil, leader_id=evil,
        protocol=evil, joins=[(evil, 0), (evil, 5)], removed=[Removal(evil, evil, "/h", "left")] * 5000,
    )  # fmt: skip
    line = describe_rebalance(rebalance)
    assert line.isprintable()
    assert len(line) < 10_000
    text = json.dumps(rebalance_to_json(rebalance, Phase.ENDED))
    assert text.isprintable()
    assert len(text) < 150_000


def test_json_of_a_rebalance() -> None:
    assert json.loads(json.dumps(rebalance_to_json(ended(), Phase.ENDED))) == {
        "event": "rebalance",
        "phase": "ended",
        "group": "billing",
        "generation": 7,
        "outcome": "stable",
        "trigger": "new member",
        "member": "c2-6f",
        "client": "c2",
        "host": "/10.0.0.7",
        "instance": None,
        "reason": None,
        "protocol": "range",
        "leader": "c1-0a",
        "members": 2,
        "started_at": 1_760_000_000_000,
        "join_ms": 812,
        "sync_ms": 9,
        "whole_ms": 821,
        "last": {"member": "c1-0a", "ms_after_the_one_before": 640},
        "lost": 1,
        "removed": [{"member": "c3-77", "client": "c3", "host": "/10.0.0.8", "why": "session timeout"}],
    }
    begun = rebalance_to_json(billing(reason="r", group_instance_id="i"), Phase.STARTED)
    assert (begun["phase"], begun["join_ms"], begun["sync_ms"], begun["whole_ms"]) == ("started", None, None, None)
    assert (begun["last"], begun["removed"], begun["reason"], begun["instance"]) == (None, [], "r", "i")


def test_rebalances_count_when_they_have_ended() -> None:
    metrics = Metrics()
    log = RebalanceLog(metrics)
    for phase in Phase:
        log.report(RebalanceReport(phase, ended()))
    log.report(
        RebalanceReport(Phase.ENDED, billing(ended_at=1_760_000_005_000, outcome="empty", trigger=Trigger.MEMBER_LEFT))
    )
    lines = metrics.exposition().decode().splitlines()
    for line in (
        'kcoord_rebalances_total{outcome="stable",trigger="new member"} 1.0',
        'kcoord_rebalances_total{outcome="empty",trigger="member left"} 1.0',
        'kcoord_members_removed_total{why="session timeout"} 1.0',
        'kcoord_rebalance_seconds_sum{phase="join"} 0.812',
        'kcoord_rebalance_seconds_sum{phase="whole"} 5.821',
        'kcoord_rebalance_seconds_count{phase="join"} 1.0',
    ):
        assert line in lines


def test_remembered_accounts_are_bounded_by_their_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebalance_log, "REMEMBERED_JOINS", 10)
    log = RebalanceLog(Metrics())
    for number in range(9):
        log.report(RebalanceReport(Phase.ENDED, ended(generation_id=number)))
    assert [account.generation_id for account in log.accounts] == [6, 7, 8]
    log.report(RebalanceReport(Phase.ENDED, ended(generation_id=9, joins=[("m", 0)] * 50)))
    assert [account.generation_id for account in log.accounts] == [9]


def test_phases_of_one_step_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """The account of a rebalance goes on changing, so reports of one step all show its end."""
    log = RebalanceLog(Metrics())
    with caplog.at_level("INFO", "kcoord_wire.coordinator"):
        for phase in Phase:
            log.report(RebalanceReport(phase, ended()))
        joined = ended(ended_at=None, outcome=None)
        for phase in (Phase.STARTED, Phase.JOINED):
            log.report(RebalanceReport(phase, joined))
        log.report(RebalanceReport(Phase.STARTED, billing()))
    reports = [vars(record)["rebalance_report"] for record in caplog.records]
    assert [report.phase for report in reports] == [Phase.ENDED, Phase.JOINED, Phase.STARTED]
    assert [report.rebalance.outcome for report in reports] == ["stable", None, None]


def test_a_member_alone_that_leaves_is_one_line(
    coordinator: StartCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    c = coordinator()
    with Wire(c.address) as wire:
        heartbeat = become_stable(wire, "g")
        with caplog.at_level("INFO", "kcoord_wire.coordinator"):
            leave = kw.LeaveGroupRequest(group_id="g", member_id=heartbeat.member_id)
            assert wire.call(leave, 0).error_code == 0
    (record,) = [record for record in caplog.records if "rebalance_report" in vars(record)]
    assert record.getMessage().startswith("group g: empty at generation 2 after 0 ms; member left: ")
