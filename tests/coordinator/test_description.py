"""Groups in every state, described: members, owners, who is awaited, and whether a rebalance is certain to follow."""

from __future__ import annotations

import json
from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire import messages as m
from kcoord_wire.coordinator import description
from kcoord_wire.coordinator.core.events import Phase, RebalanceAccount, RebalanceReport, Removal, Trigger
from kcoord_wire.coordinator.description import (
    GroupDescription,
    RebalanceLog,
    describe_group,
    describe_rebalance,
    explain_group,
    rebalance_to_json,
)
from kcoord_wire.coordinator.metrics import Metrics
from tests.support.fixtures import StartCoordinator
from tests.support.group_client import become_stable
from tests.support.group_states import group_in
from tests.support.scripted import Script, subscription
from tests.support.wire import Wire


def described(script: Script) -> GroupDescription:
    return describe_group(script.machine.groups[script.group_id], script.topics)


def assignment(*partitions: int) -> bytes:
    assigned = [m.ConsumerProtocolAssignmentTopicPartition(topic="orders", partitions=list(partitions))]
    return kw.encode_prefixed(m.ConsumerProtocolAssignment(assigned_partitions=assigned if partitions else []), 1)


def claim(*partitions: int) -> bytes:
    owned = [m.ConsumerProtocolSubscriptionTopicPartition(topic="orders", partitions=list(partitions))]
    return kw.encode_prefixed(m.ConsumerProtocolSubscription(topics=["orders"], owned_partitions=owned), 1)


def shared_out(script: Script) -> tuple[str, str]:
    """Two members of generation 1 with three partitions each."""
    first, second = script.completing("a", "b")
    script.sync(first, assign={first: assignment(0, 1, 2), second: assignment(3, 4, 5)})
    script.sync(second)
    return first, second


def test_who_owns_what(script: Script) -> None:
    first, second = shared_out(script)
    script.commit(7, member_id=first, generation=1, partition=2)
    group = described(script)
    assert (group.state, group.generation_id, group.protocol, group.leader_id) == ("Stable", 1, "range", first)
    assert [(member.client_id, member.topics, member.assignment) for member in group.members] == [
        ("a", ("orders",), {"orders": (0, 1, 2)}),
        ("b", ("orders",), {"orders": (3, 4, 5)}),
    ]
    assert group.owners[("orders", 2)] == [first]
    assert group.owners[("orders", 3)] == [second]
    assert len(group.owners) == 6
    assert group.offsets == {"orders": {2: 7}}
    assert group.is_settled


def test_whom_a_rebalance_waits_for(script: Script) -> None:
    first, second = shared_out(script)
    script.join(first)
    group = described(script)
    assert {member.member_id: member.awaited for member in group.members} == {first: None, second: "JoinGroup"}
    assert group.rebalance is not None
    assert (group.rebalance.member_id, group.is_settled) == (first, False)
    joins = list(group.rebalance.joins)
    script.join(second)
    assert group.rebalance.joins == joins, "a description does not change"
    assert {member.awaited for member in described(script).members} == {"SyncGroup"}
    script.sync(first, 2, {first: assignment(0), second: assignment(1)})
    group = described(script)
    assert (group.state, [member.awaited for member in group.members]) == ("Stable", [None, "SyncGroup"])
    assert not group.is_settled, "the second member does not know its assignment yet"
    script.sync(second, 2)
    assert described(script).is_settled


def test_a_cooperative_member_has_to_join_again(script: Script) -> None:
    """KIP-429: what a member owned and was not assigned it revokes, and then it joins."""
    (first,) = script.stable("a", metadata=claim(0, 1))
    second, _ = script.admit(client_id="b", metadata=claim())
    script.join(first, metadata=claim(0, 1))
    script.sync(first, 2, {first: assignment(0), second: assignment()})
    script.sync(second, 2)
    group = described(script)
    assert (group.state, group.is_settled) == ("Stable", False)
    assert "has to revoke partitions and to join again" in explain_group(group, [], script.now)
    script.join(first, metadata=claim(0))
    script.join(second, metadata=claim())
    script.sync(first, 3, {first: assignment(0), second: assignment(1)})
    script.sync(second, 3)
    assert described(script).is_settled


def test_groups_that_are_not_of_consumers(script: Script) -> None:
    script.stable("a", protocol_type="connect", metadata=b"\xff")
    [member] = described(script).members
    assert (member.topics, member.owned, member.assignment) == (None, {}, None)
    assert described(script).is_settled


def test_metadata_that_cannot_be_read(script: Script) -> None:
    script.stable("a", metadata=b"\x00\x01\xff")
    [member] = described(script).members
    assert (member.topics, member.assignment) == (None, None)


@pytest.mark.parametrize("state", ["Empty", "PreparingRebalance", "CompletingRebalance", "Stable"])
def test_every_state_has_a_text(state: str) -> None:
    script, _, generation = group_in(state)
    group = described(script)
    assert (group.state, group.is_settled) == (state, state == "Stable")
    text = explain_group(group, [account for _, account in script.accounts], group.state_since + 1_500)
    assert text.startswith(f"{state} for 1.5 s, generation {generation}"), text


def test_the_text_names_those_that_are_awaited_first(script: Script) -> None:
    ids = script.stable(*(f"client-{number}" for number in range(30)), metadata=subscription("orders"))
    for member_id in ids[:-1]:
        script.join(member_id)
    script.join()  # asks for a member id
    lines = explain_group(described(script), [], script.now).splitlines()
    assert lines[0] == "PreparingRebalance for 0.0 s, generation 1, range, members: 30"
    assert lines[1] == f"  {ids[-1]} (client client-29, /127.0.0.1): its JoinGroup is awaited"
    assert len(lines) == 24
    assert lines[21] == "  and 10 more"
    assert lines[22].startswith("  member ids given out and not yet used: c-u")
    assert lines[23].startswith("rebalance in progress: group g: rebalance of generation 1 has begun; leader rejoined")


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
    monkeypatch.setattr(description, "REMEMBERED_JOINS", 10)
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
