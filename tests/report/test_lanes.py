"""The lanes of clients, and the steps of what they own."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcoord_wire.forensics.model import Finding, GroupHistory, MemberLife, Ownership
from kcoord_wire.report.page.keys import GroupClock
from kcoord_wire.report.page.lanes import by_trouble, dead_spans, lanes_of, ownership_of
from tests.support.histories import MS, SECOND, START, summary


def life(member: str, client: str, start: int, end: int | None, host: str = "h") -> MemberLife:
    return MemberLife(
        "g", member, None, client, host, START + start * SECOND, None if end is None else START + end * SECOND, None,
        START, None, None, None, None, [], [],
    )  # fmt: skip


def test_a_returning_client_keeps_its_lane_and_twins_have_two() -> None:
    lanes = lanes_of([life("a", "c", 0, 5), life("b", "c", 2, None), life("d", "c", 5, 6), life("e", "c", 0, 9, "i")])
    assert [(lane.label, lane.host, [one.member_id for one in lane.lives]) for lane in lanes] == [
        ("c", "h", ["a", "d"]), ("c", "i", ["e"]), ("c (2)", "h", ["b"]),
    ]  # fmt: skip


def many(sick: str | None) -> GroupHistory:
    lives = [life(f"m-{at}", f"c-{at}", at, None) for at in range(200)]
    history = GroupHistory(summary("g", START + 300 * SECOND), members=lives)
    if sick is not None:
        found = Finding("g", "flapping_member", "warning", START, None, sick, "", "", 3.0, 3.0, [], [])
        history.findings = [found]
    return history


@pytest.mark.parametrize("subject", ["c-199", "m-199", "c-199 at h"])
def test_of_many_lanes_those_with_trouble_come_first(subject: str) -> None:
    history = many(subject)
    lanes, folded = by_trouble(lanes_of(history.members), history)
    assert [lane.label for lane in lanes[:3]] == ["c-199", "c-0", "c-1"]
    assert (len(lanes), folded) == (200, 199)


def test_a_session_timeout_is_trouble_and_leaving_is_not() -> None:
    history = many(None)
    for at, why in ((150, "left"), (160, "session timeout")):
        history.members[at].left_ns, history.members[at].why_left = START + 300 * SECOND, why
    lanes, folded = by_trouble(lanes_of(history.members), history)
    assert (lanes[0].label, folded) == ("c-160", 199)


def test_lanes_keep_their_order_where_all_are_seen() -> None:
    quiet = many(None)
    lanes = lanes_of(quiet.members)
    assert by_trouble(lanes, quiet) == (lanes, 0)
    sick = many("c-9")
    lanes = lanes_of(sick.members[:20])
    assert by_trouble(lanes, sick) == (lanes, 0)


def test_a_dead_owner_has_no_bar_but_a_span() -> None:
    history = GroupHistory(summary("g", START + 60 * SECOND), members=[life("a", "c", 0, 50), life("b", "d", 0, None)])
    history.ownership = [
        Ownership("g", "t", partition, "a", "c", 1, START, START + 50 * SECOND, START + 7 * SECOND)
        for partition in range(3)
    ]
    lanes, clock = lanes_of(history.members), GroupClock(history)
    assert dead_spans(history, lanes, clock, 10) == [[[7_000, 50_000, 3]], []]
    bars, _ = ownership_of(history, lanes, clock, 1000, 10_000, [])
    assert [bar[:3] for bar in bars] == [[0, 7_000, 3], []]


intervals = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 50), st.none() | st.integers(1, 30)), min_size=1, max_size=25
)


@settings(max_examples=150)
@given(intervals)
def test_steps_count_the_partitions_at_every_moment(found: list[tuple[int, int, int | None]]) -> None:
    history = GroupHistory(summary("g", START + 100 * MS), members=[life("a", "c", 0, None)])
    history.ownership = [
        Ownership("g", "t", partition, "a", "c", 1, START + start * MS,
                  None if length is None else START + (start + length) * MS)
        for partition, start, length in found
    ]  # fmt: skip
    cut: list[str] = []
    [flat], held = ownership_of(history, lanes_of(history.members), GroupClock(history), 1000, 10_000, cut)
    assert cut == []
    steps = [flat[at : at + 4] for at in range(0, len(flat), 4)]
    assert all(before[1] <= after[0] for before, after in pairwise(steps))
    for moment in range(101):
        expected = held_at(found, moment)
        counts = [(int(count), int(which)) for start, end, count, which in steps if start <= moment < end]
        assert [count for count, _ in counts] == ([len(expected)] if expected else [])
        assert all(numbers_of(held[which]) == expected for _, which in counts)


def held_at(found: list[tuple[int, int, int | None]], moment: int) -> set[int]:
    return {
        partition for partition, start, length in found if start <= moment < (100 if length is None else start + length)
    }


def numbers_of(text: str) -> set[int]:
    runs = re.findall(r"(\d)-?(\d?)", text.removeprefix("t "))
    return {number for first, last in runs for number in range(int(first), int(last or first) + 1)}
