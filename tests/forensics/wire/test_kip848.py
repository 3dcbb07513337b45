"""KIP-848 groups in scripted exchanges: epochs, members and owners.

Members of KIP-848 groups: what their heartbeats say and are answered.
"""

from __future__ import annotations

from typing import Any

import pytest

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.wire.kip848 import EpochReader, read_heartbeats
from kcoord_wire.forensics.wire.trace import LeaveReason
from tests.support.exchange_script import Script, at


def modern() -> Script:
    script = Script()
    script.consumer("c1", 0, 0, 1, {"orders": [0, 1]}, topics=["orders"], owned={}, rebalance_timeout_ms=300_000)
    script.consumer("c1", 100, 1, 1, owned={"orders": [0, 1]})
    return script


def test_epochs_rise_with_members() -> None:
    script = modern()
    script.consumer("c2", 5_000, 0, 2, {}, topics=["orders"], owned={}, rebalance_timeout_ms=300_000)
    script.consumer("c1", 6_000, 1, 1, {"orders": [0]})
    script.consumer("c1", 6_100, 1, 2, {"orders": [0]}, owned={"orders": [0]})
    script.consumer("c2", 8_000, 2, 2, {"orders": [1]})
    script.consumer("c2", 8_050, 2, 2, owned={"orders": [1]})
    history = script.history()
    first, second = history.rebalances
    assert (first.cause, first.generation_id, first.outcome, first.cooperative) == (Cause.NEW_MEMBER, 1, "stable", True)
    assert (second.cause, second.client_id, second.started_ns) == (Cause.NEW_MEMBER, "c2", at(5_000))
    assert (second.outcome, second.members_before, second.members_after, second.moved) == ("stable", 1, 2, 1)
    assert second.ended_ns == at(8_050)
    moved = [(row.member_id, row.from_ns, row.to_ns) for row in history.ownership if row.partition == 1]
    assert moved == [("c1-id", at(1), at(6_100)), ("c2-id", at(8_001), None)]
    (pause,) = history.pauses
    assert (pause.from_ns, pause.to_ns, pause.rebalance) == (at(6_100), at(8_001), 2)
    assert {life.protocol for life in history.members} == {"consumer"}
    assert [state.state for state in history.states] == ["Assigning", "Reconciling", "Stable"] * 2
    assert history.group.protocol_type == "consumer"
    assert "KIP-848" in history.group.blind[0]


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        ({"generation_id": -1, "new_generation_id": -1}, Cause.MEMBER_LEFT),
        ({"generation_id": 2, "new_generation_id": 2, "topics": ["orders", "payments"]}, Cause.SUBSCRIPTION_CHANGED),
    ],
)
def test_a_leave_or_a_subscription_raises_the_epoch(row: dict[str, Any], cause: Cause) -> None:
    script = modern()
    script.consumer("c2", 5_000, 0, 2, {}, topics=["orders"], owned={})
    script.consumer("c1", 6_000, 2, 2, owned={"orders": [0, 1]})
    script.add("ConsumerGroupHeartbeat", "c2", 10_000, 10_001, **row)
    script.consumer("c1", 11_000, 2, 3, {"orders": [0, 1]})
    last = script.last()
    assert (last.generation_id, last.cause, last.client_id, last.started_ns) == (3, cause, "c2", at(10_000))


def test_a_pattern_that_is_matched_later_is_part_of_the_join() -> None:
    script = Script()
    script.consumer("c1", 0, 0, 1, {}, topic_regex="^orders.*", owned={}, rebalance_timeout_ms=300_000)
    script.consumer("c1", 11_000, 1, 2, {"orders": [0]})
    script.consumer("c1", 11_100, 2, 2, owned={"orders": [0]})
    script.consumer("c1", 30_000, 2, 3, {"orders": [0], "orders-1": [0]})
    _, matched, created = script.history().rebalances
    assert (matched.cause, matched.confidence) == (Cause.NEW_MEMBER, 0.9)
    assert (
        matched.detail
        == "the broker has matched the pattern ^orders.* 11.0 s after c1 (10.0.0.1) joined: its first partitions"
    )
    assert created.cause == Cause.TOPICS_CHANGED


def test_a_silent_member_is_taken_to_have_timed_out() -> None:
    script = modern()
    script.consumer("c2", 5_000, 0, 2, {}, topics=["orders"], owned={})
    for ms in range(6_000, 60_000, 5_000):
        script.consumer("c1", ms, 2, 2)
    script.consumer("c1", 61_000, 2, 3, {"orders": [0, 1]})
    last = script.last()
    assert (last.cause, last.client_id) == (Cause.SESSION_EXPIRED, "c2")
    assert last.confidence < 0.8


def test_a_group_whose_members_have_all_left_is_empty() -> None:
    script = modern()
    script.consumer("c1", 9_000, -1, -1)
    history = script.history()
    assert [each.outcome for each in history.rebalances] == ["stable", "empty"]
    assert history.ownership[0].to_ns == at(9_000)
    assert history.states[-1].state == "Empty"


def test_a_member_that_returns_after_its_leave_had_not_polled() -> None:
    script = modern()
    script.consumer("c2", 5_000, 0, 2, {}, topics=["orders"], owned={})
    script.consumer("c1", 6_000, 2, 2, owned={"orders": [0, 1]})
    script.consumer("c1", 300_000, -1, -1)
    script.consumer("c2", 301_000, 2, 3, {"orders": [0, 1]})
    script.consumer("c1", 310_000, 0, 4, {}, topics=["orders"], owned={})
    assert script.causes()[2:] == [Cause.POLL_TIMEOUT, Cause.NEW_MEMBER]


def test_a_source_may_begin_in_the_middle_of_epochs() -> None:
    script = Script()
    for ms in range(0, 20_000, 5_000):
        script.consumer("c1", ms, 7, 7)
        script.consumer("c2", ms + 10, 7, 7)
    script.consumer("c2", 21_000, -1, -1)
    script.consumer("c1", 22_000, 7, 8, {"orders": [0, 1]})
    history = script.history()
    (only,) = history.rebalances
    assert (only.generation_id, only.cause, only.client_id, only.members_before) == (8, Cause.MEMBER_LEFT, "c2", 2)
    assert [(life.member_id, life.first_generation_id) for life in history.members] == [("c1-id", 7), ("c2-id", 7)]
    assert (history.states[0].state, history.states[0].generation_id) == ("Stable", 7)


def read(script: Script) -> EpochReader:
    return read_heartbeats(script.traffic())


def joined() -> Script:
    script = Script()
    script.consumer("c1", 0, 0, 1, {"orders": [0]}, topics=["orders"], owned={}, rebalance_timeout_ms=300_000)
    return script


def test_a_member_joins_reports_and_receives_epochs() -> None:
    script = joined()
    script.consumer("c1", 100, 1, 2, owned={"orders": [0]})
    reader = read(script)
    (member,) = reader.lives
    assert [each.epoch for each in reader.epochs] == [1, 2]
    assert [(each.epoch, each.assignment) for each in member.received] == [(1, {("orders", 0)}), (2, None)]
    assert [each.owned for each in member.reports] == [{("orders", 0)}]
    assert (member.rebalance_ms, [*reader.members.values()]) == (300_000, [member])
    assert [(trigger.cause, trigger.text) for trigger in reader.triggers] == [
        (Cause.NEW_MEMBER, "c1 (10.0.0.1) joined as a new member")
    ]


def test_a_static_member_that_leaves_for_now_triggers_nothing() -> None:
    script = joined()
    script.consumer("c1", 100, -2, -2, instance_id="i")
    reader = read(script)
    assert (reader.lives[0].has_left_for_now, len(reader.triggers), reader.members) == (True, 1, {})


def test_a_fenced_member_that_joins_again_had_missed_something() -> None:
    script = joined()
    script.consumer("c1", 100, 1, None, error_code=110)
    script.consumer("c1", 200, 0, 2, {}, topics=["orders"], owned={})
    reader = read(script)
    assert [life.why for life in reader.lives] == [LeaveReason.REBALANCE, None]
    assert reader.triggers[-1].cause is Cause.REBALANCE_TIMEOUT


def test_an_instance_id_with_a_new_member_id_replaces_it() -> None:
    script = Script()
    script.consumer("c1", 0, 0, 1, {}, topics=["orders"], owned={}, instance_id="i")
    script.consumer("c2", 100, 0, 2, {}, topics=["orders"], owned={}, instance_id="i")
    reader = read(script)
    assert [life.why for life in reader.lives] == [LeaveReason.REPLACED, None]
    assert reader.triggers[-1].cause is Cause.STATIC_REPLACED


def test_another_assignor_triggers_an_epoch() -> None:
    script = Script()
    script.consumer("c1", 0, 0, 1, {}, topics=["orders"], owned={}, assignor="uniform")
    script.consumer("c1", 100, 1, 1, assignor="range", owned={})
    assert read(script).triggers[-1].text == "c1 (10.0.0.1) asks for range now"


def test_the_epoch_that_the_source_begins_with_is_not_new() -> None:
    script = Script()
    script.consumer("c1", 0, 7, 7)
    reader = read(script)
    assert (reader.base, reader.epochs, reader.lives[0].first_generation) == (7, [], 7)
