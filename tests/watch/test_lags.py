"""Lag per partition: rows where something changes, growth that is not noise, thinning."""

from __future__ import annotations

from itertools import pairwise

from kcoord_wire.watch.group import LagBook
from tests.support.watching import SECOND, START

A, B = ("orders", 0), ("orders", 1)


def take(book: LagBook, second: float, committed: dict, ends: dict) -> list:  # type: ignore[type-arg]  # of places
    return list(book.take(START + int(second * SECOND), committed, ends, {A: "m-1"}))


def test_rows_are_kept_where_something_changes() -> None:
    book = LagBook("g")
    for second in range(0, 65, 5):
        take(book, second, {A: 5, B: 5}, {A: 5, B: 5 + second})
    rows = book.rows()
    assert [(row.time_ns - START) // SECOND for row in rows if row.partition == 0] == [0, 60]
    assert len([row for row in rows if row.partition == 1]) == 13
    assert rows[-1].lag == 60


def test_without_a_commit_the_lag_is_unknown() -> None:
    book = LagBook("g")
    take(book, 0, {}, {A: 70})
    (row,) = book.rows()
    assert (row.committed_offset, row.lag, row.end_offset, row.member_id) == (None, None, 70, "m-1")


def test_a_commit_beyond_the_end_is_no_negative_lag() -> None:
    book = LagBook("g")
    take(book, 0, {A: 71}, {A: 70})
    assert book.now[A].lag == 0


def test_growth_is_not_noise() -> None:
    book = LagBook("g")
    for second in range(0, 61, 5):
        take(book, second, {A: 0, B: 0}, {A: 100 * second, B: 50 if second % 10 else 0})
    assert list(book.growth()) == [(A, 100.0)]


def test_a_partition_that_catches_up_does_not_grow() -> None:
    book = LagBook("g")
    for second in range(0, 121, 5):
        take(book, second, {A: 0}, {A: 100 * max(60 - second, 0)})
    assert list(book.growth()) == []


def test_a_short_watch_shows_no_growth() -> None:
    book = LagBook("g")
    take(book, 0, {A: 0}, {A: 1})
    take(book, 5, {A: 0}, {A: 9})
    assert list(book.growth()) == []


def test_offsets_that_go_back_are_returned() -> None:
    book = LagBook("g")
    assert take(book, 0, {A: 7, B: 3}, {A: 9, B: 9}) == []
    assert [(back.place, back.before, back.after) for back in take(book, 5, {A: 2, B: 4}, {A: 9, B: 9})] == [(A, 7, 2)]


def test_a_partition_that_is_gone_is_forgotten() -> None:
    book = LagBook("g")
    take(book, 0, {A: 7, B: 3}, {A: 9, B: 9})
    take(book, 5, {A: 7}, {A: 9})
    assert set(book.now) == {A}


def test_thinning_drops_the_older_rows_first() -> None:
    book = LagBook("g")
    for second in range(100):
        take(book, second, {A: second}, {A: 200})
        book.thin(40)
    seconds = [(row.time_ns - START) // SECOND for row in book.rows()]
    assert len(seconds) <= 40
    assert seconds[-5:] == [95, 96, 97, 98, 99]
    gaps = [later - earlier for earlier, later in pairwise(seconds)]
    assert gaps[0] > gaps[-1] == 1
