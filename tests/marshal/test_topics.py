"""Where a tenure starts."""

from __future__ import annotations

import pytest

from kcoord_wire.marshal.inbox import choose_start


@pytest.mark.parametrize(
    ("from_log", "committed", "start"),
    [(7, 5, 7), (0, 5, 5), (0, 0, 3), (0, None, 3), (0, -1, 3), (10, None, 10), (3, 9, 3)],
)
def test_the_log_comes_first_then_the_commit_then_the_oldest(from_log: int, committed: int | None, start: int) -> None:
    assert choose_start(from_log, committed, 3, 10).offset == start


def test_an_offset_above_the_end_becomes_the_end_with_a_note() -> None:
    assert choose_start(11, 5, 3, 10) == (10, "the log's offset 11 is above the end, 10")
    assert choose_start(0, 12, 3, 10) == (10, "the group's committed offset 12 is above the end, 10")


def test_an_offset_below_the_oldest_becomes_it_with_a_note() -> None:
    assert choose_start(1, None, 3, 10) == (
        3,
        "the log's offset 1 is below the first record, 3: 2 offsets were removed",
    )
