"""Causes and rebalances beside holes.

What is said of groups of which the source shows only some members.
"""

from __future__ import annotations

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.model import GroupHistory, GroupSummary, SightingKind, table_of
from tests.support.exchange_script import Script, at, two_members


def silent(script: Script) -> Script:
    """c2 sends nothing after 4 s; the others see the rebalance at 11 s."""
    script.beats("c1", 1_000, 11_000, 1)
    script.beats("c2", 1_000, 5_000, 1)
    script.beat("c1", 11_000, 1, error=27)
    script.join("c1", 11_100, 11_200, 2, members=["c1"])
    script.sync("c1", 11_300, 11_310, 2, {}, {"c1": {}})
    return script


def hole(script: Script, client: str, since: float, ms: float) -> None:
    script.closed(client, ms, kind=SightingKind.HOLE, by="client", since_ns=at(since), text="bytes were not captured")


def test_a_silence_with_a_hole_is_a_guess() -> None:
    script = silent(two_members())
    whole = script.last()
    assert (whole.cause, whole.confidence >= 0.9) == (Cause.SESSION_EXPIRED, True)
    hole(script, "c2", 5_000, 6_000)
    row = script.last()
    assert row.confidence <= 0.4
    assert "may have sent something" in row.detail
    assert len(script.history().rebalances) == 2


def test_no_rebalance_is_made_of_a_silence_with_a_hole() -> None:
    script = two_members()
    script.beats("c1", 1_000, 5_000, 1)
    script.beats("c2", 1_000, 30_000, 1)
    hole(script, "c1", 5_000, 6_000)
    assert len(script.history().rebalances) == 1


def test_a_hole_of_another_member_leaves_some_doubt() -> None:
    script = two_members()
    script.join("c3", 5_000, 5_500, 2, member_id="")
    assert script.last().confidence == 1.0
    hole(script, "c2", 3_000, 4_000)
    assert script.last().confidence == 0.8


def test_holes_are_rows_and_are_said() -> None:
    script = two_members()
    hole(script, "c2", 3_000, 4_000)
    script.closed("c9", 4_000, "10.0.0.9:1-10.0.9.9:9092#other", kind=SightingKind.HOLE)
    history = script.history()
    (row,) = history.holes
    assert (row.from_ns, row.to_ns, row.by, row.members) == (at(3_000), at(4_000), "client", ["c2-id"])
    assert any("may be missing" in sentence for sentence in history.group.blind)


def of_one_host() -> Script:
    """c1 is captured; c9, which leads, is on another host. c1 leaves after 60 s and is back 40 s later."""
    script = Script()
    script.session_ms = 10_000
    script.join("c1", 0, 10, 5, leader="c9", member_id="")
    script.sync("c1", 11, 12, 5, {"orders": [0, 1]})
    script.beats("c1", 1_000, 60_000, 5)
    script.leave("c1", 60_000, 60_001)
    script.join("c1", 100_000, 100_010, 7, leader="c9", member_id="c1-2", given_member_id="c1-2")
    script.sync("c1", 100_011, 100_012, 7, {"orders": [0]}, member_id="c1-2")
    return script


def is_blind(history: GroupHistory, words: str) -> bool:
    return any(words in said for said in history.group.blind)


def test_a_group_that_others_hold_is_neither_empty_nor_paused() -> None:
    history = of_one_host().history()
    assert [row.outcome for row in history.rebalances] == ["stable", "unseen", "stable"]
    assert history.rebalances[1].duration_ms is None
    assert history.rebalances[2].started_ns == at(100_000)
    assert history.pauses == []
    assert history.group.paused_ms is None
    assert history.rebalances[1].paused_ms is None
    assert history.rebalances[0].paused_ms == 0.0, "nothing was taken from anyone"
    assert is_blind(history, "1 members of the group sent nothing")
    assert is_blind(history, "Pauses are not known")
    assert "Empty" not in {row.state for row in history.states}


def test_what_comes_back_within_one_rebalance_was_paused() -> None:
    script = Script()
    script.join("c1", 0, 10, 5, leader="c9", member_id="")
    script.sync("c1", 11, 12, 5, {"orders": [0]})
    script.beat("c1", 900, 5, error=27)
    script.join("c1", 1_000, 1_500, 6, leader="c9")
    script.sync("c1", 1_501, 1_512, 6, {"orders": [0]})
    history = script.history()
    (pause,) = history.pauses
    assert (pause.from_ns, pause.to_ns) == (at(1_000), at(1_512))
    assert history.group.paused_ms == 512


def test_a_member_on_another_host_may_have_got_the_partition() -> None:
    """The leader is captured, and its list names a member that is not."""
    script = Script()
    script.join("c1", 0, 10, 1, members=["c1"], member_id="")
    script.sync("c1", 11, 12, 1, {"orders": [0, 1]}, {"c1": {"orders": [0, 1]}})
    script.beat("c1", 900, 1, error=27)
    script.join("c1", 1_000, 1_500, 2, members=["c1", "c9"])
    script.sync("c1", 1_501, 1_512, 2, {"orders": [0]}, {"c1": {"orders": [0]}, "c9": {"orders": [1]}})
    history = script.history()
    assert [pause.partition for pause in history.pauses] == [0]
    assert history.group.paused_ms is None


def test_a_group_that_is_all_there_is_paused_when_it_leaves() -> None:
    script = Script()
    script.form("c1", owners={"c1": {"orders": [0]}})
    script.leave("c1", 1_000, 1_500)
    history = script.history()
    assert history.rebalances[-1].outcome == "empty"
    assert history.group.paused_ms == 500
    assert history.group.blind == []


def test_pauses_of_another_protocol_type_are_not_known() -> None:
    script = Script()
    script.join("c1", 0, 10, 1, members=["c1"], topics=None, protocol_type="connect", assignors=("sessioned",))
    script.sync("c1", 11, 12, 1, None, {"c1": {}})
    script.leave("c1", 1_000, 1_500)
    history = script.history()
    assert history.group.paused_ms is None
    assert {row.paused_ms for row in history.rebalances} == {None}
    assert is_blind(history, "protocol type connect")


def test_partitions_with_unseen_members_of_a_kip_848_group() -> None:
    script = Script()
    script.saw("c1", 0, "orders", 4)
    script.consumer("c1", 10, 0, 1, {"orders": [0, 1]}, topics=["orders"])
    script.consumer("c1", 1_000, 1, 1, owned={"orders": [0, 1]})
    script.consumer("c1", 5_000, -1, -1)
    history = script.history()
    assert history.pauses == []
    assert history.group.paused_ms is None
    assert is_blind(history, "2 partitions are with members that this source does not show")


def test_what_is_not_known_of_pauses_is_null_in_the_table() -> None:
    (row,) = table_of(GroupSummary, [of_one_host().history().group]).to_pylist()
    assert row["paused_ms"] is None
