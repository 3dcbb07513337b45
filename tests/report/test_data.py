"""The data of the page: the values of the history, and sentences on what is left out.

The curve of lag: sums over partitions, bounded, with its peaks.
"""

from __future__ import annotations

from kcoord_wire.forensics.model import Lag
from kcoord_wire.report.page.data import PageLimits, lag_curve, page_data
from kcoord_wire.report.page.keys import GroupClock
from tests.support.detector_groups import SECOND, group
from tests.support.histories import bare, empty, losses, storm, typical


def test_truncation_is_reported() -> None:
    limits = PageLimits(groups=2, rebalances=60, lanes=50, lives=60, steps=500, held_chars=500, points=40, findings=1)
    data = page_data([storm(), typical(), bare(), empty()], losses(), title="", source="", limits=limits)
    assert data["cut"] == ["2 quieter groups of 4 are not in this page."]
    group = next(group for group in data["groups"] if group["id"] == "clickstream")
    assert sum(len(group["rebalances"]) for group in data["groups"]) == 60
    assert len(group["lanes"]) == 50
    assert sum(map(len, group["bars"])) <= 4 * 500
    assert len(group["pauses"]) <= 41
    text = " ".join(group["cut"])
    for words in ("Of 1,000 rebalances", "clients the 50", "member id", "intervals of ownership", "curve", "summed"):
        assert words in text


def test_a_simplified_curve_keeps_its_height() -> None:
    history = storm("g", 20, 200)
    fine, coarse = (
        page_data([history], [], title="", source="", limits=PageLimits(points=points))["groups"][0]["pauses"]
        for points in (10**6, 100)
    )
    assert max(value for _, value in fine) == max(value for _, value in coarse)
    assert fine[-1][1] == coarse[-1][1]
    assert fine[0] == [0, 0]


def test_values_are_those_of_the_history() -> None:
    history = typical()
    [group] = page_data([history], [], title="", source="")["groups"]
    assert [row["n"] for row in group["rebalances"]] == list(range(1, 8))
    slow = group["rebalances"][4]
    assert (slow["took"], slow["last"], slow["late"], slow["start"]) == (8100, "billing-2", 6480, 64_200)
    assert slow["end"] - slow["start"] == 8100
    assert [lane["label"] for lane in group["lanes"]] == ["billing-0", "billing-1", "billing-2"]
    assert [len(lane["lives"]) for lane in group["lanes"]] == [1, 2, 1]
    first = group["bars"][0][:4]
    assert first[:3] == [900, 9900, 12]
    assert group["held"][first[3]] == "orders 1-2, 4-5, 7-8, 10-11; payments 0, 3, 6, 9"
    assert sum(point[2] for point in group["commits"]) == history.group.commits
    assert [row["severity"] for row in group["findings"]] == ["critical", "warning", "info"]
    assert group["findings"][0]["end"] == group["span"]


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
