"""Groups of the consumer rewrite: what each round of JoinGroup requests was, by script."""

from __future__ import annotations

import random

import pytest

from kcoord_wire.forensics.model import Cause, GroupHistory, Rebalance
from kcoord_wire.forensics.wire.history import explain_group
from tests.support.rewrite_script import RewriteScript, ScriptedMember

FIRST, SECOND = {"orders": [0, 1]}, {"orders": [2, 3]}


def history_of(script: RewriteScript) -> GroupHistory:
    analysis = script.analyze()
    assert analysis.losses == []
    (history,) = analysis.histories
    return history


def last_of(script: RewriteScript) -> Rebalance:
    return history_of(script).rebalances[-1]


def running() -> tuple[RewriteScript, ScriptedMember, ScriptedMember]:
    """Two members at work, in generation 2."""
    script = RewriteScript()
    first, second = ScriptedMember("c-1"), ScriptedMember("c-02")
    script.connect(first)
    script.park(first)
    script.assign([(first, {"orders": [0, 1, 2, 3]})])
    script.wait(1000)
    script.connect(second)
    script.park(second)
    script.beat(first, error=22)
    script.park(first)
    script.assign([(first, FIRST), (second, SECOND)])
    script.wait(1000)
    for member in (first, second):
        script.beat(member)
    return script, first, second


def test_members_without_an_id_are_new() -> None:
    script, *_ = running()
    history = history_of(script)
    assert [(row.cause, row.client_id, row.generation_id, row.outcome, row.moved) for row in history.rebalances] == [
        (Cause.NEW_MEMBER, "c-1", 1, "stable", 0),
        (Cause.NEW_MEMBER, "c-02", 2, "stable", 2),
    ]
    assert history.rebalances[1].detail == "c-02 (10.0.0.4) joined as a new member"
    assert (history.rebalances[1].last_client_id, history.rebalances[1].late_ms) == ("c-1", 3.0)
    assert [(life.member_id, life.protocol, life.assignors, life.topics) for life in history.members] == [
        ("c-1-id", "rewrite", ["range"], ["orders"]),
        ("c-02-id", "rewrite", ["range"], ["orders"]),
    ]


def test_a_member_that_is_silent_is_missing_from_the_next_round() -> None:
    script, first, _ = running()
    for _ in range(4):
        script.wait(2000)
        script.beat(first, error=22 if _ == 3 else 0)
    script.park(first)
    script.assign([(first, {"orders": [0, 1, 2, 3]})])
    row = last_of(script)
    assert (row.cause, row.client_id, row.moved) == (Cause.SESSION_EXPIRED, "c-02", 2)
    assert row.detail.startswith("c-02 (10.0.0.4) had sent nothing for 8.")
    assert [each.why for each in row.removed] == ["session timeout"]
    assert 1900 < (row.duration_ms or 0) < 2100  # from the end of its session, 6 s after its last heartbeat


def test_connections_closed_at_once_are_a_change_of_partitions() -> None:
    script, first, second = running()
    for member in (first, second):
        script.close(member)
    for member in (first, second):
        script.connect(member)
        script.beat(member, error=22)
        script.park(member)
    script.assign([(first, FIRST), (second, SECOND)])
    row = last_of(script)
    assert (row.cause, row.confidence, row.moved) == (Cause.TOPICS_CHANGED, 0.7, 0)
    assert row.detail.startswith("the connections of all 2 members were closed at once")


def test_partitions_that_are_new_show_the_change() -> None:
    script, first, second = running()
    for member in (first, second):
        script.beat(member, error=22)
        script.park(member)
    script.assign([(first, FIRST), (second, {"orders": [2, 3, 4]})])
    row = last_of(script)
    assert (row.cause, row.confidence) == (Cause.TOPICS_CHANGED, 0.9)
    assert row.detail == "partitions were assigned that no member had before: orders-4"


def test_joins_at_another_broker_are_a_failover() -> None:
    script, first, second = running()
    for member in (first, second):
        script.close(member)
    script.coordinator = "10.9.9.2:9092"
    script.wait(500)
    for member in (first, second):
        script.connect(member)
    script.beat(first, error=14)
    script.park(first)
    script.fail([first], 110)
    script.wait(500)
    for member in (first, second):
        script.park(member)
    script.assign([(first, FIRST), (second, SECOND)])
    row = last_of(script)
    assert (row.cause, row.confidence, row.removed) == (Cause.COORDINATOR_FAILOVER, 1.0, [])
    assert "10.9.9.2:9092; the coordinator before was 10.9.9.1:9092" in row.detail
    assert [fact.text for fact in row.evidence] == [
        "Heartbeat was answered with 14",
        "JoinGroup was answered with 110",
    ]


def test_a_coordinator_that_starts_up_again_is_a_failover() -> None:
    script, first, second = running()
    script.beat(first, error=14)
    for member in (first, second):
        script.park(member)
    script.assign([(first, FIRST), (second, SECOND)])
    assert (last_of(script).cause, last_of(script).confidence) == (Cause.COORDINATOR_FAILOVER, 0.9)


def test_rebalance_failed_interrupts_a_round() -> None:
    script, first, second = running()
    script.beat(first, error=22)
    script.park(first)
    script.wait(6000)
    script.fail([first], 111)
    for member in (first, second):
        script.park(member)
    script.assign([(first, FIRST), (second, SECOND)])
    failed, again = history_of(script).rebalances[-2:]
    assert (failed.outcome, failed.generation_id) == ("interrupted", None)
    assert (failed.cause, failed.client_id) == (Cause.SESSION_EXPIRED, "c-02")
    assert (again.outcome, again.generation_id) == ("stable", 3)
    assert again.cause == Cause.NEW_MEMBER
    assert again.detail == "c-02 (10.0.0.4) joined again after a round without it"


def test_other_topics_are_a_change_of_subscription() -> None:
    script, first, second = running()
    first.topics = ("orders", "payments")
    for member in (first, second):
        script.park(member)
    script.assign([(first, {"orders": [0, 1], "payments": [0]}), (second, SECOND)])
    row = last_of(script)
    assert (row.cause, row.detail) == (Cause.SUBSCRIPTION_CHANGED, "c-1 (10.0.0.3) subscribes to orders, payments now")


def test_owners_hold_until_their_generation_is_rejected() -> None:
    script, *_ = running()
    history = history_of(script)
    first = [row for row in history.ownership if row.generation_id == 1]
    assert len(first) == 4
    rejected = next(row for row in script.exchanges()[0].to_pylist() if row["error_code"] == 22)
    assert {row.to_ns for row in first} == {rejected["answered_ns"]}
    assert len(history.pauses) == 4
    assert all(pause.rebalance == 2 for pause in history.pauses)


def test_a_repeated_join_of_the_same_generation_is_no_round() -> None:
    script, first, _ = running()
    script.park(first)
    script.generation -= 1
    script.assign([(first, FIRST)])
    assert len(history_of(script).rebalances) == 2


@pytest.mark.parametrize("seed", range(3))
def test_any_part_of_the_frames_gives_a_history(seed: int) -> None:
    script, first, second = running()
    for member in (first, second):
        script.close(member)
        script.connect(member)
        script.park(member)
    script.assign([(first, FIRST), (second, SECOND)])
    rng = random.Random(seed)
    whole = script.frames
    for _ in range(40):
        script.frames = [frame for frame in whole if rng.random() < rng.choice((0.5, 0.9, 0.99))]
        for history in script.analyze().histories:
            for row in history.rebalances:
                assert row.ended_ns is None or row.ended_ns >= row.started_ns


def test_the_order_of_the_rows_has_no_effect() -> None:
    script, *_ = running()
    matched = script.exchanges()
    expected = explain_group(*matched)
    shuffled = list(range(len(matched[0])))
    random.Random(1).shuffle(shuffled)
    assert explain_group(matched[0].take(shuffled), matched[1]) == expected
