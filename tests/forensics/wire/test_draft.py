"""Groups of the 0.8 draft: what each round of the coordinator was, by script."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from kcoord_wire.forensics.model import Cause, GroupHistory, Rebalance
from kcoord_wire.forensics.wire.history import explain_group
from tests.support.central_script import CentralScript, ScriptedConsumer
from tests.support.wire_samples import batch

PARTS = [("orders", f"1-{number}") for number in range(4)]
HALVES = {"c-1": PARTS[:2], "c-02": PARTS[2:]}


def history_of(script: CentralScript) -> GroupHistory:
    analysis = script.analyze()
    assert analysis.losses == []
    (history,) = analysis.histories
    return history


def last_of(script: CentralScript) -> Rebalance:
    return history_of(script).rebalances[-1]


def running(*, fenced: bool = False, wait_ms: int = 2000) -> tuple[CentralScript, ScriptedConsumer, ScriptedConsumer]:
    """Two consumers at work, after two rebalances."""
    script = CentralScript(fenced=fenced)
    first, second = script.consumer("c-1"), script.consumer("c-02")
    script.register(first)
    script.rebalance({"c-1": PARTS}, [first])
    script.register(second)
    script.rebalance(HALVES, [first, second])
    script.wait(wait_ms)
    for consumer in (first, second):
        script.ping(consumer)
    return script, first, second


def test_consumers_that_register_are_the_cause_of_their_rounds() -> None:
    script, *_ = running()
    rebalances = history_of(script).rebalances
    assert [(row.cause, row.member_id, row.confidence, row.outcome) for row in rebalances] == [
        (Cause.NEW_MEMBER, "c-1", 1.0, "stable"),
        (Cause.NEW_MEMBER, "c-02", 1.0, "stable"),
    ]
    second = rebalances[1]
    assert second.detail == "c-02 (10.0.0.4) registered"
    assert (second.members_before, second.members_after, second.moved) == (1, 2, 2)
    assert second.duration_ms == 9  # the request, its answer, four frames to stop, four to start
    assert (second.last_member_id, second.late_ms) == ("c-02", 1.0)


def test_a_consumer_that_answers_no_pings_was_silent() -> None:
    script, first, second = running()
    for retries in range(3):
        script.ping(second, answered=False, retries=retries)
        script.wait(2000)
        script.ping(first)
    script.close(second)
    script.rebalance({"c-1": PARTS}, [first])
    row = last_of(script)
    assert (row.cause, row.member_id) == (Cause.SESSION_EXPIRED, "c-02")
    assert row.detail == "c-02 (10.0.0.4) had not answered 3 pings for 6.0 s"
    assert [each.why for each in row.removed] == ["session timeout"]
    assert len(row.evidence) == 4  # the pings, and the end of the connection


def test_a_consumer_that_closes_its_connection_left() -> None:
    script, first, second = running()
    script.close(second)
    script.rebalance({"c-1": PARTS}, [first])
    row = last_of(script)
    assert (row.cause, row.member_id, row.moved) == (Cause.MEMBER_LEFT, "c-02", 2)
    assert [each.why for each in row.removed] == ["left"]


def test_a_ping_in_flight_at_the_close_is_no_silence() -> None:
    script, first, second = running()
    script.ping(second, answered=False)
    script.close(second)
    script.rebalance({"c-1": PARTS}, [first])
    assert last_of(script).cause == Cause.MEMBER_LEFT


def test_an_end_that_is_seen_after_the_first_stop_is_the_cause() -> None:
    script, first, second = running()
    script.stop([first])
    script.close(second)
    script.start([(first, PARTS)])
    assert (last_of(script).cause, last_of(script).confidence) == (Cause.MEMBER_LEFT, 0.9)


def test_the_last_consumer_leaves_an_empty_group() -> None:
    script, first, second = running()
    script.close(second)
    script.rebalance({"c-1": PARTS}, [first])
    script.wait(1000)
    script.close(first)
    history = history_of(script)
    row = history.rebalances[-1]
    assert (row.outcome, row.cause, row.member_id) == ("empty", Cause.MEMBER_LEFT, "c-1")
    assert history.states[-1].state == "Empty"


@pytest.mark.parametrize(("phase", "name"), [("stop", "StopFetcher"), ("start", "StartFetcher")])
def test_a_round_without_an_answer_is_tried_again(phase: str, name: str) -> None:
    script, first, second = running()
    script.stop([first, second], silent=[second] if phase == "stop" else ())
    if phase == "start":
        script.start([(first, PARTS[:2]), (second, PARTS[2:])], silent=[second])
    script.wait(4000)
    script.rebalance(HALVES, [first, second])
    interrupted, retried = history_of(script).rebalances[-2:]
    assert interrupted.outcome == "interrupted"
    assert interrupted.last_member_id == "c-02"
    assert (retried.cause, retried.member_id, retried.outcome) == (Cause.REBALANCE_TIMEOUT, "c-02", "stable")
    assert retried.detail.startswith(f"c-02 (10.0.0.4) had not answered {name}")
    assert retried.detail.endswith("and the coordinator tries again")


def test_new_partitions_show_a_change_of_topics() -> None:
    script, first, second = running()
    script.rebalance({"c-1": PARTS[:2], "c-02": [*PARTS[2:], ("orders", "2-0")]}, [first, second])
    row = last_of(script)
    assert (row.cause, row.confidence, row.member_id) == (Cause.TOPICS_CHANGED, 0.9, None)
    assert row.detail == "partitions were assigned that no consumer had before: orders/2-0"


def test_the_same_consumers_again_are_a_change_by_exclusion() -> None:
    script, first, second = running()
    script.rebalance(HALVES, [first, second])
    history = history_of(script)
    assert (history.rebalances[-1].cause, history.rebalances[-1].confidence) == (Cause.TOPICS_CHANGED, 0.6)
    assert "Nothing in the source started 1 of 3 rebalances." in history.group.blind


@pytest.mark.parametrize("fenced", [False, True])
def test_registrations_at_another_broker_are_a_takeover(fenced: bool) -> None:
    script, first, second = running(fenced=fenced)
    script.close(first)
    script.close(second)
    script.elect("10.9.9.2:9092")
    script.wait(3000)
    for consumer in (first, second):
        script.register(consumer)
    script.rebalance(HALVES, [first, second])
    row = last_of(script)
    assert (row.cause, row.confidence, row.moved, row.removed) == (Cause.COORDINATOR_FAILOVER, 1.0, 0, [])
    assert row.detail.startswith("2 consumers registered with 10.9.9.2:9092")
    assert ("epoch 2" in row.detail) == fenced
    assert 3000 < (row.duration_ms or 0) < 3100
    assert row.paused_ms == pytest.approx(4 * 3020, abs=60)


def test_a_consumer_that_a_takeover_lost_is_named() -> None:
    script, first, second = running()
    script.close(first)
    script.close(second)
    script.elect("10.9.9.2:9092")
    script.register(first)
    script.rebalance({"c-1": PARTS}, [first])
    row = last_of(script)
    assert row.cause == Cause.COORDINATOR_FAILOVER
    assert row.detail.endswith("with it: c-02 (10.0.0.4) closed its connection: it was shut down, or its process ended")
    assert [each.member_id for each in row.removed] == ["c-02"]


def test_the_same_address_with_a_higher_epoch_is_a_takeover() -> None:
    script, first, second = running(fenced=True)
    script.close(first)
    script.close(second)
    script.elect(script.coordinator)
    for consumer in (first, second):
        script.register(consumer)
    script.rebalance(HALVES, [first, second])
    assert last_of(script).cause == Cause.COORDINATOR_FAILOVER


def test_all_connections_lost_at_once_mean_a_lost_coordinator() -> None:
    script, first, second = running()
    script.close(first)
    script.close(second)
    script.wait(500)
    for consumer in (first, second):
        script.register(consumer)
    script.rebalance(HALVES, [first, second])
    row = last_of(script)
    assert (row.cause, row.confidence) == (Cause.COORDINATOR_FAILOVER, 0.7)


def test_a_first_takeover_is_known_by_epochs() -> None:
    script = CentralScript(fenced=True)
    script.elect("10.9.9.2:9092")
    consumer = script.consumer("c-1")
    script.register(consumer)
    script.rebalance({"c-1": PARTS}, [consumer])
    row = last_of(script)
    assert (row.cause, row.detail) == (
        Cause.COORDINATOR_FAILOVER,
        "1 consumer registered with 10.9.9.2:9092 (epoch 2), and had known epoch 1",
    )


def test_consumers_with_and_without_epochs_are_in_one_round() -> None:
    script, first, second = running(fenced=True)
    script.stop([first, second])
    script.start([(first, PARTS[:2]), (second, PARTS[2:])])
    for frame in script.frames:
        if frame.direction == "response" and b"c-02" in frame.frame:
            fence = script.epoch.to_bytes(4) + frame.frame[-4:]
            frame.frame = frame.frame.removesuffix(b"\x00\x01" + fence)
    assert [row.outcome for row in history_of(script).rebalances] == ["stable"] * 3


def test_a_consumer_that_registers_again_had_reconnected() -> None:
    script, first, second = running()
    script.close(second)
    script.wait(30)
    script.register(second)
    script.rebalance(HALVES, [first, second])
    row = last_of(script)
    assert (row.cause, row.confidence, row.member_id, row.moved) == (Cause.NEW_MEMBER, 0.9, "c-02", 0)
    assert "after its connection was closed" in row.detail


def test_other_topics_at_a_new_registration_are_a_subscription() -> None:
    script, first, second = running()
    script.close(second)
    second.topic_count = '{"payments": 1}'
    script.register(second)
    script.rebalance({"c-1": PARTS, "c-02": [("payments", "1-0")]}, [first, second])
    row = last_of(script)
    assert (row.cause, row.detail) == (
        Cause.SUBSCRIPTION_CHANGED,
        "c-02 (10.0.0.4) registered again for other topics: payments",
    )


def test_owners_hold_from_their_answers_to_their_answers() -> None:
    script, *_ = running()
    history = history_of(script)
    assert {(row.topic, row.member_id) for row in history.ownership} == {("orders/1", "c-1"), ("orders/1", "c-02")}
    first = [row for row in history.ownership if row.generation_id == 1]
    assert len(first) == 4
    for row in (row for row in history.ownership if row.generation_id == 2):
        before = next(each for each in first if each.partition == row.partition)
        assert before.to_ns is not None
        assert before.to_ns < row.from_ns
    assert [pause.rebalance for pause in history.pauses] == [2, 2, 2, 2]


def test_positions_in_answers_are_commits() -> None:
    script, *_ = running()
    history = history_of(script)
    last = {(row.topic, row.partition): (row.member_id, row.last_offset) for row in history.commits}
    assert {(*place, *committed) for place, committed in last.items()} == {
        ("orders/1", 0, "c-1", 5),
        ("orders/1", 1, "c-1", 5),
        ("orders/1", 2, "c-02", 5),
        ("orders/1", 3, "c-02", 5),
    }


def test_sockets_closed_to_rebalance_show_registrations() -> None:
    script = CentralScript()
    first, second = script.consumer("c-1"), script.consumer("c-02")
    script.register(first, owns=PARTS)
    script.wait(1000)
    script.park(second)
    script.close(first)
    script.park(first)
    script.assign([(second, PARTS[2:]), (first, PARTS[:2])])
    script.wait(1000)
    for consumer in (first, second):
        script.close(consumer)
    script.park(first)
    script.park(second)
    script.assign([(first, PARTS[:2]), (second, [*PARTS[2:], ("orders", "2-0")])])
    history = history_of(script)
    assert [(row.cause, row.member_id, row.outcome, row.moved) for row in history.rebalances] == [
        (Cause.NEW_MEMBER, "c-1", "stable", 0),
        (Cause.NEW_MEMBER, "c-02", "stable", 2),
        (Cause.TOPICS_CHANGED, None, "stable", 0),
    ]
    assert [state.state for state in history.states[:3]] == ["PreparingRebalance", "Stable", "PreparingRebalance"]
    assert history.group.members == 2


def test_an_error_in_an_answer_is_why_it_is_tried_again() -> None:
    script, first, second = running()
    script.stop([first, second], refused=[second])
    script.rebalance(HALVES, [first, second])
    row = last_of(script)
    assert (row.cause, row.member_id) == (Cause.REBALANCE_TIMEOUT, "c-02")
    assert row.detail == "c-02 (10.0.0.4) had answered StopFetcher with error 102, and the coordinator tries again"


def test_a_consumer_that_is_not_asked_any_more_is_named() -> None:
    script, first, _ = running()
    script.rebalance({"c-1": PARTS}, [first])
    row = last_of(script)
    assert (row.cause, row.member_id, row.confidence) == (Cause.MEMBER_LEFT, "c-02", 0.5)


def test_exchanges_of_kafka_of_the_same_group_are_counted() -> None:
    script, *_ = running()
    exchanges, topics = script.exchanges()
    row = exchanges.slice(0, 1).set_column(exchanges.column_names.index("api"), "api", [["Heartbeat"]])
    history, _ = explain_group(pa.concat_tables([exchanges, row.cast(exchanges.schema)]), topics)
    assert len(history.rebalances) == 2
    assert "1 exchanges of Kafka's protocol that name the group were left out." in history.group.blind


def test_any_part_of_a_capture_gives_a_history() -> None:
    script, first, second = running(fenced=True)
    script.close(second)
    script.rebalance({"c-1": PARTS}, [first])
    script.register(second)
    script.rebalance(HALVES, [first, second])
    rng = random.Random(1)
    whole = script.frames
    for _ in range(60):
        script.frames = [frame for frame in whole if rng.random() < rng.choice((0.5, 0.9, 0.99))]
        for history in script.analyze().histories:
            for row in history.rebalances:
                assert row.cause in set(Cause)
                assert row.ended_ns is None or row.ended_ns >= row.started_ns


def test_the_order_of_the_rows_has_no_effect() -> None:
    script, first, second = running()
    script.close(second)
    script.rebalance({"c-1": PARTS}, [first])
    assert batch(script.frames).num_rows == len(script.frames)
    matched = script.exchanges()
    expected = explain_group(*matched)
    for seed in range(5):
        shuffled = list(range(len(matched[0])))
        random.Random(seed).shuffle(shuffled)
        assert explain_group(matched[0].take(shuffled), matched[1]) == expected
