"""Lag in words: sums, states with their time, the worst first, and what a rebalance added."""

from __future__ import annotations

from kcoord_wire.forensics.model import LagStatus, PartitionState
from kcoord_wire.report.lagging import growth, lag_sentence
from tests.support.detector_groups import SECOND, group, rebalance


def state(number: int, lag: int | None, status: str = "OK", since_s: int | None = None) -> PartitionState:
    since = None if since_s is None else since_s * SECOND
    return PartitionState("billing", "orders", number, status, since, 0, 1, 2, 3, lag, (lag or 0) + 5, None)


def test_lag_is_summed_and_the_worst_states_are_named() -> None:
    rows = [
        state(0, 0),
        state(1, 12_000, LagStatus.WARN, 5),
        state(2, 30, LagStatus.STALLED, 41),
        state(3, 4, LagStatus.STOPPED, 60),
        state(4, 3, LagStatus.WARN, 7),
        state(5, None),
    ]
    assert lag_sentence(group(partitions=rows)) == (
        "lag 12,037 on 4 of 5 partitions; orders-3 STOPPED since +1:00.000, orders-2 STALLED since +0:41.000, "
        "orders-1 WARN since +0:05.000, 1 more"
    )


def test_a_group_that_has_read_everything_or_shows_nothing() -> None:
    assert lag_sentence(group(partitions=[state(0, 0)])) == "no lag on 1 partition, 5 at most on one before"
    assert lag_sentence(group(partitions=[state(0, None)])) is None
    assert lag_sentence(group()) is None


def test_what_a_rebalance_added() -> None:
    assert growth(rebalance(1, 10)) == ""
    grown = rebalance(1, 10, lag_grown=1_300)
    assert growth(grown) == "lag grew by 1,300, not caught up"
    grown.caught_up_ns = 22 * SECOND
    assert growth(grown) == "lag grew by 1,300, caught up after 12.0 s"
