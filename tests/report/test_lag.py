"""The curve of lag: sums over partitions, bounded, with its peaks."""

from __future__ import annotations

from kcoord_wire.forensics.model import Lag
from kcoord_wire.report.page.group_clock import GroupClock
from kcoord_wire.report.page.lag import lag_curve
from tests.support.detector_groups import SECOND, group


def row(partition: int, at_s: float, lag: int | None) -> Lag:
    return Lag("billing", "orders", partition, int(at_s * SECOND), None, None, 0, lag, None)


def test_the_curve_is_the_sum_of_what_was_last_seen() -> None:
    history = group(100, lag=[row(0, 1, 5), row(1, 1, 7), row(1, 2, None), row(0, 3, 1), row(1, 4, 0)])
    assert lag_curve(history, GroupClock(history), 10) == [[1_000, 12], [3_000, 8], [4_000, 1], [100_000, 1]]
    assert lag_curve(group(), GroupClock(group()), 10) == []


def test_a_long_curve_keeps_its_peaks() -> None:
    history = group(1_000, lag=[row(0, second, 900 if second == 500 else second % 7) for second in range(1_000)])
    curve = lag_curve(history, GroupClock(history), 50)
    assert len(curve) <= 51
    assert [500_000, 900] in curve
