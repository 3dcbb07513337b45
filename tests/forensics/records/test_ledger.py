"""The ledger of a group: what happens at one moment, why a member may be gone, and what counts as moved."""

from __future__ import annotations

import pytest

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.history import GONE, identity_of
from kcoord_wire.forensics.model import Identity, MemberLife
from kcoord_wire.forensics.records.ledger import (
    CommitTimes,
    Ledger,
    explain_departures,
)

SECOND = 1_000_000_000
PLACE = ("orders", 0)


def life(member_id: str, instance_id: str | None = None) -> MemberLife:
    return MemberLife(
        "g", member_id, instance_id, member_id.upper(), "10.0.0.1", 0, None, None, 0, 1, 1, 10_000, 300_000, [],
        ["orders"],
    )  # fmt: skip


def ledger(*members: MemberLife, commits: list[int] | None = None) -> Ledger:
    times = [] if commits is None else commits
    made = Ledger("g", CommitTimes(times, {PLACE: (0, len(times))}))
    for member in members:
        made.see(0, member)
    return made


def test_a_partition_returned_at_once_was_held_throughout() -> None:
    book = ledger(life("a"))
    book.give(0, PLACE, "a", 1)
    book.release(5, PLACE, 1)
    book.give(5, PLACE, "a", 2)
    history = book.history(0, 9, [], [])
    assert [(row.member_id, row.from_ns, row.to_ns) for row in history.ownership] == [("a", 0, None)]
    assert history.pauses == []


def test_a_release_is_a_pause_until_the_next_owner() -> None:
    book = ledger(life("a"), life("b"))
    book.give(0, PLACE, "a", 1)
    book.lose(5, "a", "left", 1)
    book.give(8, PLACE, "b", 2)
    (pause,) = book.history(0, 9, [], []).pauses
    assert (pause.from_ns, pause.to_ns, pause.former_member_id, pause.next_member_id) == (5, 8, "a", "b")


@pytest.mark.parametrize(("why", "ended"), [("left", 6), (GONE, 6), ("session timeout", 3_600)])
def test_a_group_that_was_closed_in_order_is_not_paused(why: str, ended: int) -> None:
    """Until it is deleted, an hour later, unless a member had failed."""
    book = ledger(life("a"), life("b"))
    book.give(0, PLACE, "a", 1)
    book.lose(5 * SECOND, "a", "left", 1)
    book.lose(6 * SECOND, "b", why, 1)
    book.empty(6 * SECOND, 2)
    book.deleted(3_600 * SECOND)
    for _ in range(2):  # the tables of a group that goes on are taken again and again
        (pause,) = book.history(0, 9, [], []).pauses
        assert (pause.from_ns, pause.to_ns, pause.next_member_id) == (5 * SECOND, ended * SECOND, None)


@pytest.mark.parametrize(
    ("commits", "at", "cause", "why"),
    [
        ([], 60, Cause.MEMBER_LEFT, GONE),
        ([55], 60, Cause.MEMBER_LEFT, "left"),
        ([1, 4, 7], 60, Cause.SESSION_EXPIRED, "session timeout"),
        ([7], 60, Cause.MEMBER_LEFT, GONE),
    ],
    ids=["no commits", "within its session", "steady, then silent", "one long before"],
)
def test_commits_show_why_a_member_is_gone(commits: list[int], at: int, cause: Cause, why: str) -> None:
    book = ledger(life("a"), commits=[second * SECOND for second in commits])
    book.give(0, PLACE, "a", 1)
    departed = book.departed(book.members["a"], at * SECOND)
    assert (departed.cause, departed.why) == (cause, why)
    assert departed.text.startswith("A is gone")


def test_the_likeliest_of_several_departures_explains() -> None:
    book = ledger(life("a"), life("b"), commits=[55 * SECOND])
    book.give(0, PLACE, "b", 1)
    gone = {key: book.departed(member, 60 * SECOND) for key, member in book.members.items()}
    found = explain_departures(gone)
    assert (found.cause, found.confidence, found.member_id) == (Cause.MEMBER_LEFT, 0.9, None)
    assert found.detail.startswith("B is gone; it committed 5000 ms before")


def test_a_static_member_keeps_its_partitions_over_a_restart() -> None:
    book = ledger(life("a-1", "i"), life("b"))
    book.give(0, PLACE, "a-1", 1)
    rebalance = book.open(
        5, generation_id=2, cause=Cause.UNKNOWN, confidence=0.0, detail="", evidence=[], members_before=2
    )
    book.lose(5, "a-1", "replaced")
    book.see(5, life("a-2", "i"))
    book.give(5, PLACE, "a-2", 2)
    book.close(5, "stable")
    assert rebalance.moved == 0


def test_members_are_restored_where_a_group_changes_its_protocol() -> None:
    book = ledger(life("a"))
    book.give(0, PLACE, "a", 1)
    book.deleted(5)
    book.revive(5)
    assert (book.members["a"].left_ns, book.members["a"].why_left) == (None, None)


def test_members_are_named_from_the_first_mapping_that_has_them() -> None:
    assert identity_of("a", {}, {"a": life("a")}) == Identity("a", "A", "10.0.0.1", None)
    assert identity_of("b", {"a": life("a")}) == Identity("b")


def test_one_rebalance_is_under_way_at_a_time() -> None:
    book = ledger(life("a"), life("b"))
    book.give(0, PLACE, "a", 1)
    columns = {"generation_id": 2, "cause": Cause.UNKNOWN, "confidence": 0.0, "detail": "", "evidence": []}
    first = book.open(5, **columns, members_before=2)
    book.release(6, PLACE, 1)
    book.give(7, PLACE, "b", 2)
    second = book.open(8, **columns, members_before=2)
    assert (first.number, first.outcome, first.ended_ns, first.moved) == (1, "interrupted", 8, 1)
    assert (second.number, book.current, book.number) == (2, second, 2)
    book.close(9, "stable")
    assert (second.outcome, second.moved, book.current) == ("stable", 0, None)
