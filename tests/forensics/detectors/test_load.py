"""Throttled clients, and lag that grows while its owner reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kcoord_wire.forensics.detectors import detect
from kcoord_wire.forensics.model import GroupHistory, Lag, LagStatus, Outage, PartitionState, Sighting, SightingKind
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.detector_groups import SECOND, group, held, life, of


def throttle(at_s: float, ms: int, client: str = "c1", api: str = "Fetch") -> Sighting:
    return Sighting(
        int(at_s * SECOND), "a.pcap", "10.0.0.1:1-10.0.0.9:9092#1", client, SightingKind.ERROR, api=api,
        error_code=ErrorCode.THROTTLING_QUOTA_EXCEEDED, throttle_ms=ms,
    )  # fmt: skip


def test_a_second_of_throttling_counts_once() -> None:
    history = group(100, members=[life("c1")], ownership=[held("c1", 0), held("c1", 1)])
    rows = [throttle(10, 8_000), throttle(12, 8_000, api="Heartbeat"), throttle(50, 4_000)]
    (found,) = detect(history, errors=rows)
    assert (found.detector, found.severity, found.value, found.cost_ms) == ("throttled", "warning", 14.0, 28_000.0)
    assert found.text == (
        "c1 (10.0.0.1) was throttled by the broker for 14.0 s of 90.0 s, since 00:00:10 UTC: a quota "
        "(throttle_time_ms up to 8,000, 2 Fetch, 1 Heartbeat)"
    )


def test_others_and_milliseconds_are_none() -> None:
    history = group(100, members=[life("c1")])
    assert detect(history, errors=[throttle(10, 8_000, client="producer")]) == []
    assert detect(history, errors=[throttle(10, 300)]) == []
    (found,) = detect(history, errors=[throttle(10, 2_000)])
    assert found.severity == "info"


# ---- growing lag


def lagging(
    lag_at: Callable[[int], int], seconds: int = 60, owner: Callable[[int], str] = lambda _at: "c1-id"
) -> GroupHistory:
    """A partition to which 100 records come each second."""
    rows = [
        Lag("billing", "orders", 0, at * SECOND, 100 * at - lag_at(at), None, 100 * at, lag_at(at), owner(at))
        for at in range(10, 10 + seconds)
    ]
    last = rows[-1]
    state = PartitionState(
        "billing", "orders", 0, LagStatus.WARN, None, last.time_ns, last.committed_offset, None, last.end_offset,
        last.lag, last.lag, last.member_id,
    )  # fmt: skip
    return group(10 + seconds, members=[life("c1")], lag=rows, partitions=[state])


def test_steady_growth_is_told_with_its_rates() -> None:
    (found,) = of("growing_lag", lagging(lambda at: 40 * at - 400))
    assert found.text == (
        "the lag of orders-0 grows steadily while c1 (10.0.0.1) reads it: from 0 to 2,360 within 59.0 s; "
        "100 records/s come, 60 are read"
    )
    assert found.cost_ms == pytest.approx(23_600.0)


@pytest.mark.parametrize(
    "lag_at",
    [
        lambda at: 500, lambda at: (at % 5) * 100, lambda at: 4_000 - 40 * at, lambda at: 5 * at,
        lambda at: 3_000 if at > 30 else 0, lambda at: 100 * at if at < 40 else 8_000 - 100 * at,
        lambda at: 100 * at - 1_000,
    ],
    ids=["constant", "commits", "catches up", "within seconds", "burst", "burst and back", "is not read"],
)  # fmt: skip
def test_what_is_no_steady_growth(lag_at: Callable[[int], int]) -> None:
    assert of("growing_lag", lagging(lag_at)) == []


def test_too_short_or_just_taken_over() -> None:
    assert of("growing_lag", lagging(lambda at: 60 * at - 600, seconds=20)) == []
    turns = lagging(lambda at: 40 * at - 400, seconds=46, owner=lambda at: "c1-id" if at > 33 else "c2-id")
    assert of("growing_lag", turns) == []


def test_growth_that_is_over_is_told_with_what_became_of_it() -> None:
    history = lagging(lambda at: 40 * at - 400 if at <= 60 else 0)
    (found,) = of("growing_lag", history)
    assert (found.severity, found.to_ns) == ("warning", 60 * SECOND)
    assert found.text == (
        "the lag of orders-0 grew steadily while c1 (10.0.0.1) read it: from 0 to 2,000 within 50.0 s; "
        "100 records/s came, 60 were read; 9.0 s later it was 0"
    )
    (found,) = of("growing_lag", lagging(lambda at: 40 * at - 400, owner=lambda at: f"c{1 if at > 50 else 2}-id"))
    assert found.text.endswith("; 19.0 s later it was 2,360"), "its next owner reads it as slowly"


def sparse(*lags: tuple[int, int]) -> GroupHistory:
    """A partition whose owner shows its lag at these seconds only, as it works on what one Fetch gave for long."""
    history = lagging(lambda at: dict(lags).get(at, 0))
    history.lag = [row for row in history.lag if row.time_ns // SECOND in dict(lags)]
    return history


@pytest.mark.parametrize(
    ("lags", "count"),
    [
        ([(10, 0), (20, 300), (40, 900), (60, 1_500)], 1), ([(10, 0), (20, 300), (40, 900), (60, 1_500), (61, 0)], 1),
        ([(10, 0), (11, 100), (20, 300), (40, 900), (60, 1_500)], 1),
        ([(10, 0), (50, 1_000), (55, 1_100), (60, 1_200)], 1), ([(10, 0), (25, 700), (40, 1_500)], 0),
        ([(10, 0), (20, 900), (30, 900), (40, 900), (50, 900), (60, 900)], 0),
        ([(10, 0), (20, 900), (40, 300), (60, 1_500)], 0), ([(10, 0), (15, 300), (20, 600), (29, 1_200)], 0),
    ],
    ids=["four", "and over", "the first records", "one long batch", "three", "one batch", "down between", "too short"],
)  # fmt: skip
def test_lag_that_each_fetch_shows(lags: list[tuple[int, int]], count: int) -> None:
    assert len(of("growing_lag", sparse(*lags))) == count


@pytest.mark.parametrize(("ends", "count"), [((0, 1_200, 2_500, 5_000), 1), ((0, 100, 200, 5_000), 0)])
def test_a_burst_before_the_last_fetch_is_no_steady_growth(ends: tuple[int, ...], count: int) -> None:
    history = sparse((10, 1), (20, 50), (30, 90), (50, 2_000))
    for row, end in zip(history.lag, ends, strict=True):
        row.end_offset, row.committed_offset = 1_000 + end, 1_000 + end - (row.lag or 0)
    assert len(of("growing_lag", history)) == count


@pytest.mark.parametrize(
    ("waiting", "count"),
    [
        ((10, 150, 320, 680), 1), ((10, 320, 150, 680), 0), ((10, 11, 12, 13), 0), ((10, 150, 400), 1),
        ((10, 400), 0),
    ],
    ids=["four", "down between", "constant", "three", "two are too few"],
)  # fmt: skip
def test_commits_behind_an_old_end_do_not_hide_lag(waiting: tuple[int, ...], count: int) -> None:
    """Each Fetch is followed by a commit of all that was there at that time, behind the end that it had read."""
    history = lagging(lambda _at: 0)
    reads = [row for row in history.lag if row.time_ns // SECOND in (10, 25, 40, 55)][-len(waiting) :]
    ends = [1_000, 1_500, 2_000, 2_500][-len(waiting) :]
    rows = []
    for row, end, lag in zip(reads, ends, waiting, strict=True):
        fetched = replace(row, end_offset=end, fetch_offset=end - lag, committed_offset=end - lag, lag=lag)
        rows += [fetched, replace(fetched, time_ns=row.time_ns + SECOND, committed_offset=end, lag=0)]
    history.lag = rows
    assert len(of("growing_lag", history)) == count


def test_it_grows_from_where_more_comes_on() -> None:
    history = sparse((10, 0), (11, 1), (12, 2), (15, 190), (24, 840), (49, 2_000))
    for row, end in zip(history.lag, (0, 1, 2, 200, 900, 2_800), strict=True):
        row.end_offset, row.committed_offset = 1_000 + end, 1_000 + end - (row.lag or 0)
    (found,) = of("growing_lag", history)
    assert "from 2 to 2,000 within 37.0 s; 76 records/s come, 22 are read" in found.text


@pytest.mark.parametrize(("to_s", "count"), [(25, 1), (60, 0), (None, 0)])
def test_lag_that_grows_in_an_outage_is_the_outages(to_s: int | None, count: int) -> None:
    """It grows from second 10 to 69, and the host of the owner is cut off from second 10 on."""
    history = lagging(lambda at: 40 * at - 400)
    until_ns = None if to_s is None else to_s * SECOND
    history.outages = [Outage("billing", "host blocked", 10 * SECOND, until_ns, "b:9092", ["c1-id"], "", None, [])]
    assert len(of("growing_lag", history)) == count


def test_lag_of_a_throttled_owner_is_the_quotas() -> None:
    history = lagging(lambda at: 40 * at - 400)
    assert [found.detector for found in detect(history, errors=[throttle(20, 20_000)])] == ["throttled"]


# ---- hot partition


def spread(*per_s: int, seconds: int = 40, committed: int | None = None) -> GroupHistory:
    """A topic with a partition for each rate, whose owner fetches all that comes."""
    rows = [
        Lag("billing", "orders", number, at * SECOND, committed, rate * at, rate * at, 0, "c1-id")
        for at in range(seconds + 1)
        for number, rate in enumerate(per_s)
    ]
    return group(60, members=[life("c1")], lag=rows)


def test_a_partition_that_gets_most_records_is_named() -> None:
    (found,) = of("hot_partition", spread(1, 90, 2, 0))
    assert (found.severity, found.subject) == ("info", "orders-1")
    assert found.text == (
        "records come to orders-1 faster than to the other 3 partitions of its topic together: 3,600 of 3,720 within "
        "40.0 s (90 records/s), which c1 (10.0.0.1) reads alone; whether it keeps up the source does not show, as no "
        "offset is committed"
    )
    assert "no offset" not in of("hot_partition", spread(0, 0, 10, committed=5))[0].text


@pytest.mark.parametrize("per_s", [(50, 20, 20, 20), (90, 60, 1, 1), (9, 0, 0), (90, 0), (0, 0, 0)])
def test_what_is_no_hot_partition(per_s: tuple[int, ...]) -> None:
    assert of("hot_partition", spread(*per_s)) == []


def test_ends_that_were_not_seen_as_long_are_not_compared() -> None:
    assert of("hot_partition", spread(90, 0, 0, seconds=19)) == []
    history = spread(90, 0, 0)
    history.lag = [row for row in history.lag if row.partition != 2 or row.time_ns < 10 * SECOND]
    assert of("hot_partition", history) == []
