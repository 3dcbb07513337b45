"""Words for people."""

from __future__ import annotations

from kcoord_wire.protocol.wording import counted, first_of, listed, near_names, noted, only


def test_lists_are_as_long_as_their_bound() -> None:
    names = [f"c{number}" for number in range(9, -1, -1)]
    assert listed(names) == "c0, c1, c2, c3, c4, c5, c6, c7 and 2 more"
    assert first_of(names, 2) == "c9, c8 and 8 more"
    assert (listed([]), first_of([7], 1)) == ("", "7")


def test_counts_have_their_plural() -> None:
    assert (counted(1, "rebalance"), counted(1_024, "rebalance")) == ("1 rebalance", "1,024 rebalances")
    assert counted(2, "process", "processes") == "2 processes"
    assert (noted("{} record{s}", 1_000), noted("{} record{s}", 1)) == ("1,000 records", "1 record")


def test_the_one_name_there_is() -> None:
    assert (only({"a"}), only(["a", "a"]), only({"a", "b"}), only([])) == ("a", "a", None, None)


def test_near_names() -> None:
    known = ["JoinGroup", "LeaveGroup", "SyncGroup"]
    assert near_names("joingrop", known) == ["JoinGroup"]
    assert near_names("syngroup", known, 2) == ["SyncGroup", "JoinGroup"]
    assert near_names("fetch", known) == []
