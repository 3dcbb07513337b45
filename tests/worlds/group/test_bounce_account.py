"""The account of a bounce, against figures worked out by hand from short lists of events."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.worlds.group.rolling_bounce import BounceResult, Work, WorkEvent, account

ALL = [TopicPartition("t", number) for number in range(4)]
A, B = frozenset(ALL[:2]), frozenset(ALL[2:])
STEADY = [
    WorkEvent(0, "a", Work.STARTS),
    WorkEvent(0, "b", Work.STARTS),
    WorkEvent(10, "a", Work.TAKES, A),
    WorkEvent(10, "b", Work.TAKES, B),
]


def cost(*events: WorkEvent, **changes: Any) -> BounceResult:
    options: dict[str, Any] = {
        "partitions": ALL,
        "rate_per_s": 10.0,
        "capacity_per_s": 40.0,
        "window_ms": (2_000, 6_000),
        "rebalances": 3,
        "around_ms": 1_000,
    }
    return account("test", [*STEADY, *events], **options | changes)


def test_a_quiet_window_costs_nothing() -> None:
    result = cost()
    assert (result.label, result.took_ms, result.rebalances) == ("test", 4_000, 3)
    assert (result.pause_partition_ms, result.pause_instance_ms, result.down_instance_ms) == (0, 0, 0)
    assert (result.longest_pause_ms, result.moves, result.opened, result.lag_records) == (0, 0, 0, 0.0)
    assert result.caught_up_ms == result.took_ms
    assert result.times_ms == [-1_000, 0, 1_000, 2_000, 3_000, 4_000]
    assert result.throughput == pytest.approx([40.0] * 6)


def test_a_listener_pauses_all_partitions_of_its_instance() -> None:
    result = cost(WorkEvent(2_000, "a", Work.BLOCKS), WorkEvent(3_000, "a", Work.RESUMES))
    assert result.pause_partition_ms == 2 * 1_000
    assert result.pause_instance_ms == 1_000
    assert result.longest_pause_ms == 1_000
    assert result.down_instance_ms == 0
    assert (result.instances["a"].paused_ms, result.instances["b"].paused_ms) == (1_000, 0)


def test_lag_is_worked_off_with_the_spare_capacity() -> None:
    """In one second 20 records of `a` pile up; at 40 per second, with 20 more arriving, they are gone after another."""
    result = cost(WorkEvent(2_000, "a", Work.BLOCKS), WorkEvent(3_000, "a", Work.RESUMES))
    assert result.throughput == pytest.approx([40, 20, 60, 40, 40, 40])
    assert result.instances["a"].throughput == pytest.approx([20, 0, 40, 20, 20, 20])
    assert result.instances["a"].records == pytest.approx(6 * 20)
    assert result.lag_records == pytest.approx(0)


def test_a_partition_takes_its_lag_to_its_next_instance() -> None:
    result = cost(
        WorkEvent(5_000, "a", Work.STOPS),
        WorkEvent(5_000, "b", Work.TAKES, A),
        WorkEvent(5_500, "a", Work.STARTS),
        WorkEvent(5_600, "b", Work.DROPS, frozenset(ALL[:1])),
        WorkEvent(6_000, "a", Work.TAKES, frozenset(ALL[:1])),
    )
    assert result.moves == 3
    assert result.opened == 3
    assert result.pause_partition_ms == 400
    assert result.down_instance_ms == 500
    assert result.pause_instance_ms == 500, "from its start to its first partition"
    assert result.lag_records == pytest.approx(4), "of the partition without an owner; the other instance kept up"


def test_without_spare_capacity_the_lag_grows_and_stays() -> None:
    result = cost(WorkEvent(2_000, "a", Work.STOPS), WorkEvent(2_000, "b", Work.TAKES, A), capacity_per_s=30.0)
    assert result.lag_records == pytest.approx(4 * 10)
    assert result.caught_up_ms is None
    assert result.down_instance_ms == 4_000


def test_the_rest_of_the_lag_is_foreseen() -> None:
    result = cost(WorkEvent(3_000, "a", Work.BLOCKS), WorkEvent(6_000, "a", Work.RESUMES))
    assert result.lag_records == pytest.approx(60)
    assert result.caught_up_ms == pytest.approx(4_000 + 3_000)


def test_a_pause_that_goes_on_counts_until_the_end() -> None:
    result = cost(WorkEvent(5_000, "a", Work.DROPS, frozenset(ALL[:1])), WorkEvent(7_500, "a", Work.TAKES, A))
    assert (result.longest_pause_ms, result.pause_partition_ms) == (1_000, 1_000)
    assert result.caught_up_ms is None, "a partition without an owner"


def test_events_of_a_stopped_instance_do_not_count() -> None:
    """A client's last answers may come after its application has begun to stop."""
    late = [WorkEvent(2_100, "a", Work.TAKES, A), WorkEvent(2_200, "a", Work.RESUMES)]
    events = [WorkEvent(2_000, "a", Work.STOPS), *late, WorkEvent(3_000, "b", Work.TAKES, A)]
    result = cost(*events)
    assert result.pause_partition_ms == 2 * 1_000
    assert result.moves == 2


def random_events(random: Random) -> list[WorkEvent]:
    """A history in which only partitions without an owner are taken, by instances that run."""
    owned = {"a": set(A), "b": set(B)}
    is_up = {"a": True, "b": True}
    events, at = [], 2_000.0
    while at < 6_000:
        name, some = random.choice("ab"), frozenset(random.sample(ALL, 2))
        what = random.choice(list(Work))
        if what is Work.TAKES:
            some = frozenset(set(ALL) - owned["a"] - owned["b"])
            owned[name] |= some if is_up[name] else set()
        elif what in (Work.DROPS, Work.STOPS):
            owned[name] -= some if what is Work.DROPS else set(ALL)
        is_up[name] = what is Work.STARTS or (is_up[name] and what is not Work.STOPS)
        events.append(WorkEvent(at, name, what, some))
        at += random.uniform(1, 400)
    return events


@pytest.mark.parametrize("capacity", [15.0, 40.0, 1_000.0])
def test_what_arrives_is_processed_or_is_lag(capacity: float) -> None:
    random = Random(5)
    for _ in range(50):
        result = cost(*random_events(random), window_ms=(2_000, 7_000), around_ms=0.0, capacity_per_s=capacity)
        processed = sum(result.throughput)
        assert processed == pytest.approx(sum(each.records for each in result.instances.values()))
        assert processed + result.lag_records == pytest.approx(5 * 40)
        assert max(result.throughput) <= 2 * capacity + 1e-6


def test_partitions_that_were_not_processed_before_are_an_error() -> None:
    with pytest.raises(ValueError, match="1 partitions are not processed before the bounce"):
        cost(WorkEvent(500, "a", Work.DROPS, frozenset(ALL[:1])), WorkEvent(3_000, "a", Work.BLOCKS))
    with pytest.raises(ValueError, match="4 partitions are not processed"):
        account("x", [], partitions=ALL, rate_per_s=1, capacity_per_s=1, window_ms=(0, 1), rebalances=0)
