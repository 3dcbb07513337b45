"""Members as rows, and the client libraries behind them.

When members died or fell silent, in scripted exchanges.

Whom rebalances waited for, in scripted exchanges.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcoord_wire.forensics.model import GroupHistory, MemberLife, SightingKind
from kcoord_wire.forensics.wire.members import library_of
from tests.support.exchange_script import Script, at, two_members


@pytest.mark.parametrize(
    ("versions", "reasons", "library"),
    [
        ({"JoinGroup": 9, "SyncGroup": 5, "Heartbeat": 4, "OffsetCommit": 9}, ["rebalance failed due to x"], "Java"),
        ({"JoinGroup": 9, "SyncGroup": 5, "Heartbeat": 4, "OffsetCommit": 9}, [], None),
        ({"JoinGroup": 9, "OffsetCommit": 10}, [], "franz-go"),
        ({"JoinGroup": 7, "SyncGroup": 5, "Heartbeat": 4, "LeaveGroup": 5}, [], "kafka-python"),
        ({"JoinGroup": 7, "SyncGroup": 5, "Heartbeat": 4, "LeaveGroup": 4}, [], None),
        ({"JoinGroup": 5, "SyncGroup": 3, "Heartbeat": 1}, [], "aiokafka"),
        ({"JoinGroup": 5, "SyncGroup": 3, "Heartbeat": 3, "OffsetCommit": 9}, [], "librdkafka"),
        ({"JoinGroup": 5, "SyncGroup": 3, "Heartbeat": 3, "OffsetCommit": 5}, [], "kafkajs"),
        ({"JoinGroup": 5, "SyncGroup": 3, "Heartbeat": 3, "OffsetCommit": 7}, [], None),
        ({}, [], None),
    ],
)
def test_a_library_is_named_only_where_it_is_certain(
    versions: dict[str, int], reasons: list[str], library: str | None
) -> None:
    assert library_of(versions, reasons) == library


def life(history: GroupHistory, name: str) -> MemberLife:
    return next(row for row in history.members if row.member_id == f"{name}-id")


def end_of(script: Script, name: str = "c2") -> tuple[str | None, float | None]:
    """How a member ended, and when its process died, in ms."""
    row = life(script.history(), name)
    return row.end, None if row.died_ns is None else (row.died_ns - at(0)) / 1e6


def lost(ms: int = 12_000) -> Script:
    """c2 sends its last heartbeat at 2 s; c1 goes on, and rejoins alone when its session is over."""
    script = two_members()
    script.beats("c2", 1_000, 3_000, 1)
    script.beats("c1", 1_000, 8_000, 1)
    script.beat("c1", 8_050, 1, error=27)
    script.join("c1", 8_060, 8_061, 2, members=["c1"])
    script.sync("c1", 8_070, 8_071, 2, {"orders": [0, 1]}, {"c1": {"orders": [0, 1]}})
    script.beats("c1", 9_000, ms, 2)
    return script


def test_a_closed_connection_without_a_leave_is_a_death() -> None:
    script = lost()
    script.closed("c2", 2_500, by="client")
    assert end_of(script) == ("process died", 2_500)
    history = script.history()
    assert life(history, "c2").why_left == "session timeout", "the coordinator learns it later"
    assert "its process had died at 22:13:22 UTC" in history.rebalances[-1].detail
    assert end_of(script, "c1") == (None, None)


@pytest.mark.parametrize("fields", [{"kind": SightingKind.RESET, "by": "client"}, {}])
def test_a_reset_or_an_end_of_unknown_side_is_a_death(fields: dict[str, str]) -> None:
    script = lost()
    script.closed("c2", 2_500, **fields)
    assert end_of(script) == ("process died", 2_500)


def test_an_end_by_the_broker_proves_no_death() -> None:
    script = lost()
    script.closed("c2", 2_500, by="broker")
    assert end_of(script) == ("silent", 2_000)


def test_an_open_connection_without_a_sign_is_silence() -> None:
    script = lost()
    assert end_of(script) == ("silent", 2_000)
    assert "silent since 22:13:22 UTC on an open connection" in script.last().detail


def test_a_frozen_process_that_comes_back_was_silent() -> None:
    script = lost()
    script.beat("c2", 11_000, 1, error=25)
    script.closed("c2", 11_500, by="client")
    assert end_of(script) == ("silent", 2_000)
    row = life(script.history(), "c2")
    assert row.last_seen_ns == at(11_000)


def test_a_member_that_leaves_is_not_dead() -> None:
    script = two_members()
    script.leave("c2", 1_000, 1_001)
    script.closed("c2", 1_002, by="client")
    assert end_of(script) == ("left", None)


def test_a_leave_may_be_among_missing_bytes() -> None:
    script = lost()
    script.closed("c2", 2_400, kind=SightingKind.HOLE, by="client")
    script.closed("c2", 2_500, by="client")
    assert end_of(script) == ("gone", 2_500)


def test_a_static_member_closes_without_a_leave() -> None:
    script = Script()
    script.join("c1", 0, 10, 1, members=["c1"], member_id="", instance_id="i1")
    script.sync("c1", 11, 12, 1, {"orders": [0]}, {"c1": {"orders": [0]}}, instance_id="i1")
    script.closed("c1", 1_000, by="client")
    assert end_of(script, "c1") == ("process ended", 1_000)


def test_a_new_connection_of_the_same_member_is_life() -> None:
    script = two_members()
    script.closed("c2", 2_000, by="client")
    script.beat("c2", 2_500, 1, connection="10.0.0.2:4009-10.0.9.9:9092#again")
    script.beats("c1", 1_000, 9_000, 1)
    assert end_of(script)[0] != "process died"


def test_a_member_sent_to_another_broker_is_not_dead() -> None:
    script = two_members()
    script.beat("c2", 1_000, 1, error=16)
    script.closed("c2", 1_100, by="client")
    assert end_of(script) == (None, None)


def test_nobody_is_silent_when_the_coordinator_is() -> None:
    script = two_members()
    script.beats("c1", 1_000, 3_000, 1)
    script.beats("c2", 1_000, 3_000, 1)
    script.saw("c9", 60_000, "orders", 2)
    assert end_of(script, "c1") == (None, None)


def test_a_parked_join_is_not_silence() -> None:
    script = two_members()
    script.rebalance_ms = 60_000
    script.beat("c1", 1_000, 1, error=27)
    script.join("c3", 990, None, member_id="c3-id")
    script.join("c1", 1_010, None, member_id="c1-id")
    script.beats("c2", 1_000, 30_000, 1)
    assert end_of(script, "c1") == (None, None)


def test_the_partitions_of_a_dead_member_are_paused() -> None:
    script = lost()
    script.closed("c2", 2_500, by="client")
    history = script.history()
    row = next(row for row in history.ownership if row.member_id == "c2-id")
    assert (row.dead_from_ns, row.to_ns) == (at(2_500), at(8_000))
    pause = next(pause for pause in history.pauses if pause.former_member_id == "c2-id")
    assert (pause.from_ns, pause.dead_until_ns, pause.to_ns) == (at(2_500), at(8_000), at(8_071))
    assert pause.rebalance == 2
    assert history.rebalances[-1].paused_ms == (8_071 - 2_500) + (8_071 - 8_060)


def test_incarnations_that_died_joining_are_members() -> None:
    """A crash loop within one rebalance: no JoinGroup is answered before the source ends."""
    script = two_members()
    script.session_ms = script.rebalance_ms = 45_000
    for number in range(3, 6):
        at_ms = number * 1_000
        script.join(f"c{number}", at_ms, None, member_id=f"c{number}-id", client_id="loop", client_host="10.0.0.9")
        script.closed(f"c{number}", at_ms + 500, by="client")
    script.beats("c1", 1_000, 7_000, 1)
    loop = [row for row in script.history().members if row.client_id == "loop"]
    assert [(row.end, row.died_ns) for row in loop] == [("process died", at(ms)) for ms in (3_500, 4_500, 5_500)]
    script.topics = [replace(row, by="broker") for row in script.topics]
    assert not [row for row in script.history().members if row.client_id == "loop"], "the broker refused them"


def test_the_end_of_a_kip_848_member_is_in_the_sentence() -> None:
    script = Script()
    script.consumer("c1", 0, 0, 1, {"orders": [0, 1]}, topics=["orders"])
    script.consumer("c2", 1_000, 0, 2, {}, topics=["orders"])
    script.closed("c2", 2_000, by="client")
    for ms in range(2_500, 60_000, 5_000):
        script.consumer("c1", ms, 2, 2)
    script.consumer("c1", 60_000, 2, 3, {"orders": [0, 1]})
    assert end_of(script) == ("process died", 2_000)
    assert "its process had died at" in script.last().detail


def test_a_kip_848_member_back_under_its_id_was_silent() -> None:
    script = Script()
    script.consumer("c1", 0, 0, 1, {"orders": [0, 1]}, topics=["orders"])
    script.consumer("c2", 1_000, 0, 2, {}, topics=["orders"])
    for ms in range(2_500, 60_000, 5_000):
        script.consumer("c1", ms, 2, 2)
    script.consumer("c1", 60_000, 2, 3, {"orders": [0, 1]})
    script.consumer("c2", 62_000, 2, None, error_code=25)
    script.consumer("c2", 62_100, 0, 4, {}, topics=["orders"])
    script.consumer("c2", 63_000, -1, -1)
    (lost,) = [row for row in script.history().rebalances if row.cause == "session timeout"]
    assert "silent since 22:13:21 UTC" in lost.detail


def waited(script: Script, number: int = -1) -> list[tuple[str | None, float, float, str]]:
    """Client, since when (ms), how long (ms), and why, of those that a rebalance waited for."""
    row = script.history().rebalances[number]
    return [(each.client_id, (each.from_ns - at(0)) / 1e6, each.ms, each.end) for each in row.waited_for]


def crash(session_ms: int = 45_000) -> Script:
    """c2 dies at 2 s and is back as c3 at 3 s; the coordinator waits until the session of c2 is over."""
    script = Script()
    script.session_ms, script.rebalance_ms = session_ms, 300_000
    script.form("c1", "c2", owners={"c1": {"orders": [0]}, "c2": {"orders": [1]}})
    script.closed("c2", 2_000, by="client")
    script.join("c3", 3_000, session_ms + 30, 2, member_id="c3-id", client_id="c2")
    script.beat("c1", 4_000, 1, error=27)
    script.join("c1", 4_001, session_ms + 30, 2, members=["c1", "c3"])
    return script


def test_a_rebalance_waits_for_a_dead_member() -> None:
    script = crash()
    assert waited(script) == [("c2", 4_001, 45_020 - 4_001, "process died")]
    assert "; it waited 41.0 s for c2, dead since 22:13:22 UTC" in script.last().detail


def test_a_rebalance_still_waits_where_the_source_ends() -> None:
    script = crash()
    for row in script.rows[-3:]:
        if row.api == "JoinGroup":
            row.answered_ns = row.error_code = row.answer_seq = row.new_generation_id = None
    script.saw("c9", 20_000, "orders", 2)
    assert waited(script) == [("c2", 4_001, 15_999, "process died")]


def test_a_rebalance_waits_for_a_slow_member() -> None:
    script = two_members()
    script.join("c3", 1_000, 6_000, 2, member_id="c3-id")
    script.join("c1", 1_500, 6_000, 2, members=["c1", "c2", "c3"])
    script.beat("c2", 2_000, 1, error=27)
    script.join("c2", 5_999, 6_000, 2)
    assert waited(script) == [("c2", 1_500, 4_499, "late")]
    assert "it waited" not in script.last().detail, "the table has it in its columns"


def test_nobody_is_waited_for_when_a_group_is_new_or_quick() -> None:
    script = two_members()
    script.join("c3", 1_000, 1_400, 2, member_id="c3-id")
    script.join("c1", 1_100, 1_400, 2, members=["c1", "c2", "c3"])
    script.join("c2", 1_399, 1_400, 2)
    assert waited(script, 0) == []
    assert waited(script, 1) == []
