"""Which member held which partition, when none did, and what moved, in scripted exchanges."""

from __future__ import annotations

from kcoord_wire.forensics.model import GroupHistory
from tests.support.exchange_script import Given, Script, at

COOPERATIVE = ("cooperative-sticky",)


def held(history: GroupHistory, partition: int) -> list[tuple[str, float, float | None]]:
    """The members that held a partition, from when to when, in ms."""
    zero = at(0)
    return [
        (row.client_id or "", (row.from_ns - zero) / 1e6, None if row.to_ns is None else (row.to_ns - zero) / 1e6)
        for row in history.ownership
        if row.partition == partition
    ]


def eager() -> Script:
    script = Script()
    script.form("c1", "c2", owners={"c1": {"orders": [0]}, "c2": {"orders": [1]}})
    script.leave("c2", 1_000, 1_001)
    script.join("c1", 1_500, 1_600, 2, members=["c1"])
    script.sync("c1", 1_601, 1_602, 2, {"orders": [0, 1]}, {"c1": {"orders": [0, 1]}})
    return script


def test_an_eager_member_gives_up_everything_when_it_rejoins() -> None:
    history = eager().history()
    assert held(history, 0) == [("c1", 20, 1_500), ("c1", 1_602, None)]
    assert held(history, 1) == [("c2", 20, 1_000), ("c1", 1_602, None)]
    last = history.rebalances[-1]
    assert (last.moved, last.moved_needlessly, last.paused_ms) == (1, 0, 102.0 + 602.0)
    assert [(pause.partition, pause.rebalance) for pause in history.pauses] == [(1, 2), (0, 2)]
    assert [(pause.former_member_id, pause.next_member_id) for pause in history.pauses] == [
        ("c2-id", "c1-id"), ("c1-id", "c1-id"),
    ]  # fmt: skip


def test_a_cooperative_member_gives_up_what_is_revoked() -> None:
    script = Script()
    everything = {"orders": [0, 1, 2]}
    script.join("c1", 0, 10, 1, members=["c1"], assignors=COOPERATIVE, owned={})
    script.sync("c1", 11, 20, 1, everything, {"c1": everything})
    script.join("c2", 1_000, 2_000, 2, assignors=COOPERATIVE, owned={}, member_id="")
    script.join("c1", 1_900, 2_000, 2, members=["c1", "c2"], assignors=COOPERATIVE, owned=everything)
    script.sync("c1", 2_001, 2_010, 2, {"orders": [0, 1]}, {"c1": {"orders": [0, 1]}, "c2": {}})
    script.sync("c2", 2_001, 2_010, 2, {})
    script.join("c1", 2_020, 2_500, 3, members=["c1", "c2"], assignors=COOPERATIVE, owned={"orders": [0, 1]})
    script.join("c2", 2_400, 2_500, 3, assignors=COOPERATIVE, owned={})
    gives = {"c1": {"orders": [0, 1]}, "c2": {"orders": [2]}}
    script.sync("c1", 2_501, 2_510, 3, {"orders": [0, 1]}, gives)
    script.sync("c2", 2_501, 2_510, 3, {"orders": [2]})
    history = script.history()
    assert held(history, 0) == [("c1", 20, None)]
    assert held(history, 2) == [("c1", 20, 2_010), ("c2", 2_510, None)]
    assert [each.moved for each in history.rebalances] == [0, 0, 1]
    (pause,) = history.pauses
    assert (pause.from_ns, pause.to_ns, pause.rebalance) == (at(2_010), at(2_510), 2)


def test_a_cooperative_join_gives_up_what_it_no_longer_names() -> None:
    script = Script()
    both = {"orders": [0, 1]}
    script.join("c1", 0, 10, 1, members=["c1"], assignors=COOPERATIVE, owned={})
    script.sync("c1", 11, 20, 1, both, {"c1": both})
    script.join("c1", 1_000, 1_100, 2, members=["c1"], assignors=COOPERATIVE, owned={"orders": [0]})
    script.sync("c1", 1_101, 1_110, 2, both, {"c1": both})
    assert held(script.history(), 1) == [("c1", 20, 1_000), ("c1", 1_110, None)]


def test_a_rejected_member_holds_nothing() -> None:
    script = Script()
    script.form("c1", "c2", owners={"c1": {"orders": [0]}, "c2": {"orders": [1]}})
    script.beat("c2", 2_000, 1, error=25)
    assert held(script.history(), 1) == [("c2", 20, 2_000)]


def test_a_dead_member_holds_its_partitions_until_removed() -> None:
    script = Script()
    script.form("c1", "c2", owners={"c1": {"orders": [0]}, "c2": {"orders": [1]}})
    script.beats("c1", 1_000, 7_000, 1)
    script.beat("c1", 7_000, 1, error=27)
    script.join("c1", 7_001, 7_001, 2, members=["c1"])
    assert held(script.history(), 1) == [("c2", 20, 6_020)]


def test_a_move_from_a_member_within_its_share_is_needless() -> None:
    script = Script()
    script.form("c1", "c2", owners={"c1": {"orders": [0]}, "c2": {"orders": [1]}})
    script.join("c1", 1_000, 1_100, 2, members=["c1", "c2"])
    script.join("c2", 1_050, 1_100, 2)
    script.sync("c1", 1_101, 1_102, 2, {"orders": [1]}, {"c1": {"orders": [1]}, "c2": {"orders": [0]}})
    script.sync("c2", 1_101, 1_102, 2, {"orders": [0]})
    last = script.last()
    assert (last.moved, last.moved_needlessly) == (2, 2)


def test_a_partition_revoked_and_given_back_moved_needlessly() -> None:
    script = Script()
    both = {"orders": [0, 1]}
    script.join("c1", 0, 10, 1, members=["c1"], assignors=COOPERATIVE, owned={})
    script.sync("c1", 11, 20, 1, both, {"c1": both})
    script.join("c1", 1_000, 1_100, 2, members=["c1"], assignors=COOPERATIVE, owned=both)
    script.sync("c1", 1_101, 1_110, 2, {"orders": [0]}, {"c1": {"orders": [0]}})
    script.join("c1", 1_120, 1_200, 3, members=["c1"], assignors=COOPERATIVE, owned={"orders": [0]})
    script.sync("c1", 1_201, 1_210, 3, both, {"c1": both})
    assert [(each.moved, each.moved_needlessly) for each in script.history().rebalances] == [(0, 0), (0, 0), (1, 1)]


def test_a_partition_without_a_new_owner_stays_paused() -> None:
    script = Script()
    script.form("c1", owners={"c1": {"orders": [0]}})
    script.leave("c1", 1_000, 1_500)
    history = script.history()
    (pause,) = history.pauses
    assert (pause.from_ns, pause.to_ns, pause.next_member_id) == (at(1_000), None, None)
    assert history.rebalances[-1].paused_ms == 500.0
    assert history.group.paused_ms == 500.0


def test_an_undecodable_assignment_is_taken_from_the_leader() -> None:
    script = Script()
    script.join("c1", 0, 10, 1, members=["c1"])
    script.sync("c1", 11, 20, 1, None, {"c1": {"orders": [3]}})
    assert held(script.history(), 3) == [("c1", 20, None)]


def test_a_partition_of_a_restarted_static_member_moves_once() -> None:
    """A leader may know an instance under its old and its new member id, and assign to both."""
    script = Script()
    script.form("c1", "c2", owners={"c1": {}, "c2": {"orders": [0]}})
    script.leave("c2", 1_000, 1_001)
    join = script.join("c1", 1_500, 1_600, 2, members=["c1", "c3", "c4"])
    assert join.members is not None
    for listed in join.members[1:]:
        listed.instance_id = "i"
    given: Given = {"orders": [0]}
    script.sync("c1", 1_603, 1_604, 2, {}, {"c1": {}, "c3": given, "c4": given})
    assert script.last().moved == 1


def test_a_deleted_topic_pauses_until_it_is_seen_to_be_gone() -> None:
    script = Script()
    script.form("c1", owners={"c1": {"orders": [0]}})
    script.saw("c1", 10, "orders", 1)
    script.join("c1", 2_000, 2_010, 2, members=["c1"])
    script.sync("c1", 2_011, 2_012, 2, {}, {"c1": {}})
    script.beats("c1", 3_000, 60_000, 2)
    (pause,) = script.history().pauses
    assert pause.to_ns is None
    script.saw("c1", 2_500, "orders", 0)
    (pause,) = script.history().pauses
    assert (pause.from_ns, pause.to_ns) == (at(2_000), at(2_500))
    script.saw("c1", 1_500, "orders", 0)
    assert script.history().pauses == []
    script.saw("c1", 2_600, "orders", 1)
    (pause,) = script.history().pauses
    assert pause.to_ns is None, "it was made again"


def unassigned(*alike: str) -> Script:
    """c3 joins in generation 3, and others of its client; what they are assigned is missing. They read on."""
    script = eager()
    for name in ("c3", *alike):
        script.join(name, 5_000, 5_500, 3, member_id="", client_id="c3", client_host="10.0.0.3")
        script.sync(name, 5_501, None, 3, client_id="c3", client_host="10.0.0.3")
    script.join("c1", 5_400, 5_500, 3, members=["c1", "c3", *alike])
    script.sync("c1", 5_502, 5_510, 3, {"orders": [0]})  # what it assigns is missing, too
    for partition, ms in ((2, 5_600), (1, 7_000), (0, 7_000)):  # the first may be of a request before
        script.fetch("c3", ms, partition, 0, 0)
    return script


def test_whose_assignment_is_missing_holds_what_it_reads() -> None:
    history = unassigned().history()
    assert held(history, 1)[-1] == ("c3", 5_500, None)
    assert [[name for name, *_ in held(history, each)] for each in (0, 2)] == [["c1"] * 3, []]
    assert history.rebalances[-1].paused_ms == 110.0 + 100.0
    assert [name for name, *_ in held(unassigned("c4").history(), 1)] == ["c2", "c1"], "either of them may read it"
