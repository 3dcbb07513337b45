"""Burrow's questions: OK, WARN, STALLED, STOPPED, and where a source cannot say."""

from __future__ import annotations

import pytest

from kcoord_wire.forensics.model import LagStatus
from kcoord_wire.forensics.wire.lag import WINDOW, Committed, lag_status

SECOND = 1_000_000_000


def window(offsets: list[int], lags: list[int]) -> list[Committed]:
    return [Committed(5 * n * SECOND, offset, lag) for n, (offset, lag) in enumerate(zip(offsets, lags, strict=True))]


@pytest.mark.parametrize(
    ("offsets", "lags", "now_s", "status", "since_s"),
    [
        ([1, 2, 3, 4], [9, 8, 9, 9], 16, LagStatus.OK, None),
        ([1, 2, 3, 4], [9, 0, 9, 9], 16, LagStatus.OK, None),
        ([1, 2, 3, 4], [5, 5, 6, 7], 16, LagStatus.WARN, 0),
        ([4, 4, 4, 4], [5, 5, 6, 7], 16, LagStatus.STALLED, 0),
        ([4, 4, 4, 4], [5, 5, 5, 5], 16, LagStatus.STALLED, 0),
        ([1, 2, 3, 4], [5, 5, 4, 7], 46, LagStatus.STOPPED, 15),
        ([1, 2, 3, 4], [5, 5, 4, 7], 45, LagStatus.OK, None),
        ([1, 2], [5, 6], 6, LagStatus.UNKNOWN, None),
        ([1], [5], 31, LagStatus.STOPPED, 0),
    ],
)
def test_the_rules(offsets: list[int], lags: list[int], now_s: int, status: LagStatus, since_s: int | None) -> None:
    since = None if since_s is None else since_s * SECOND
    assert lag_status(window(offsets, lags), lags[-1], now_s * SECOND) == (status, since)


def test_whoever_has_read_everything_is_ok() -> None:
    assert lag_status(window([1], [5]), 0, 999 * SECOND) == (LagStatus.OK, None)
    assert lag_status([], None, 0) == lag_status([], 7, 0) == (LagStatus.UNKNOWN, None)


def test_only_the_last_commits_count() -> None:
    lags = [0, *range(1, WINDOW + 1)]
    found = lag_status(window(list(range(WINDOW + 1)), lags), lags[-1], 51 * SECOND)
    assert found == (LagStatus.WARN, 5 * SECOND)
