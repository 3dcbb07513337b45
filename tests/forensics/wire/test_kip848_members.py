"""Members of KIP-848 groups: what their heartbeats say and are answered."""

from __future__ import annotations

from kcoord_wire.forensics.model import Cause
from kcoord_wire.forensics.wire.kip848 import EpochReader, read_heartbeats
from kcoord_wire.forensics.wire.trace import LeaveReason
from tests.support.exchange_script import Script


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
    assert (member.timeout_ms, [count.size for count in reader.counts]) == (300_000, [1])
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
