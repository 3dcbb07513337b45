"""The lanes of clients, and the steps of what they own."""

from __future__ import annotations

import re
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from kcoord_wire.forensics.model import GroupHistory, MemberLife, Ownership
from kcoord_wire.report.page.group_clock import GroupClock
from kcoord_wire.report.page.lanes import lanes_of, ownership_of
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
