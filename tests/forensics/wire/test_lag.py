"""The lag of a group from commits and fetches: rows, owners, resets of every kind, growth while it rebalances.

Commits by partition and interval.

Burrow's questions: OK, WARN, STALLED, STOPPED, and where a source cannot say.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kcoord_wire.forensics.model import NS_PER_MS, LagStatus, OffsetsCommitted, ResetKind, SightingKind
from kcoord_wire.forensics.wire import lag
from kcoord_wire.forensics.wire.lag import WINDOW, Committed, lag_status
from tests.support.exchange_script import MS, START, Script, at


def group(**owners: dict[str, list[int]]) -> Script:
    script = Script()
    script.form(*(owners or {"c1": {}}), owners=owners or {"c1": {"orders": [0, 1]}})
    return script


def rows(script: Script, partition: int = 0) -> list[tuple[Any, ...]]:
    found = [row for row in script.history().lag if row.partition == partition]
    return [(row.time_ns, row.committed_offset, row.fetch_offset, row.end_offset, row.lag) for row in found]


def resets(script: Script) -> list[tuple[Any, ...]]:
    return [
        (r.partition, r.kind, r.from_offset, r.to_offset, r.client_id, r.member_id) for r in script.history().resets
    ]


def test_lag_is_from_the_committed_offset_to_the_end() -> None:
    script = group()
    script.position("c1", 100, {0: -1})
    script.fetch("c1", 1_000, 0, 5, 40)
    script.commit("c1", 3_000, {0: 10})
    script.fetch("c1", 5_000, 0, 12, 44)
    assert rows(script) == [
        (at(1_000), None, 5, 40, 35),
        (at(3_000), 10, 5, 40, 30),
        (at(5_000), 10, 12, 44, 34),
    ]
    [row] = script.history().partitions
    assert (row.status, row.lag, row.most_lag, row.member_id) == ("UNKNOWN", 34, 35, "c1-id")


def test_the_end_comes_from_any_client_the_position_does_not() -> None:
    script = group()
    script.commit("c1", 500, {0: 10})
    script.fetch("c7", 1_000, 0, 3, 40)
    assert rows(script) == [(at(1_000), 10, None, 40, 30)]


def test_an_answer_to_produce_never_lowers_the_end() -> None:
    script = group()
    script.commit("c1", 500, {0: 10})
    script.fetch("c1", 1_000, 0, 10, 40)
    for ms, end in ((2_000, 35), (3_000, 60)):
        fetched = script.topics[-1]
        script.topics.append(replace(fetched, time_ns=at(ms), end_offset=end, api="Produce", fetch_offset=None))
    assert [(row[0], row[3]) for row in rows(script)] == [(at(1_000), 40), (at(2_000), 40), (at(3_000), 60)]
    [row] = script.history().partitions
    assert (row.end_ns, row.read_ns) == (at(3_000), at(1_000))


def test_a_position_begins_anew_with_each_owner() -> None:
    script = group(c1={"orders": [0]}, c2={"orders": [1]})
    script.fetch("c1", 1_000, 0, 5, 40)
    for client in ("c1", "c2"):
        script.join(client, 5_000, 5_010, 2, members=("c1", "c2") if client == "c1" else ())
    script.sync("c1", 5_011, 5_020, 2, {"orders": [1]}, {"c1": {"orders": [1]}, "c2": {"orders": [0]}})
    script.sync("c2", 5_012, 5_020, 2, {"orders": [0]})
    script.fetch("c1", 6_000, 0, 9, 50)
    script.fetch("c2", 7_000, 0, 8, 60)
    found = [(row.fetch_offset, row.member_id) for row in script.history().lag]
    assert found == [(5, "c1-id"), (None, "c2-id"), (8, "c2-id")]


def test_two_readers_of_one_name_leave_the_position_unknown() -> None:
    script = group()
    script.fetch("c1", 1_000, 0, 5, 40)
    script.fetch("c1", 2_000, 0, 30, 40)
    script.topics[-1].connection = "10.0.0.1:4999-10.0.9.9:9092#other"
    assert [row.fetch_offset for row in script.history().lag] == [5, None]


def test_rows_are_thinned_to_the_last_of_each_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    script = group()
    for n in range(100):
        script.fetch("c1", 1_000 + 100 * n, 0, n, 2 * n)
    assert len(rows(script)) == 10
    monkeypatch.setattr(lag, "MAX_ROWS", 4)
    thin = rows(script)
    assert len(thin) <= 5
    assert thin[-1][2:4] == (99, 198)


def test_an_operator_resets_an_empty_group() -> None:
    script = group()
    script.commit("c1", 1_000, {0: 500, 1: 500})
    script.leave("c1", 2_000, 2_001)
    outside = {"member_id": "", "generation_id": -1}
    script.commit("c9", 3_000, {0: 0, 1: 700}, **outside)
    assert resets(script) == [
        (0, ResetKind.ADMIN, 500, 0, "c9", None),
        (1, ResetKind.ADMIN, 500, 700, "c9", None),
    ]


def test_a_refused_commit_changes_nothing() -> None:
    script = group()
    script.commit("c1", 1_000, {0: 500})
    refused = script.commit("c9", 3_000, {0: 0}, member_id="", generation_id=-1, error_code=25)
    refused.offsets[0].error_code = 25
    assert resets(script) == []


def test_a_member_commits_less_than_before() -> None:
    script = group()
    script.commit("c1", 1_000, {0: 500})
    script.commit("c1", 2_000, {0: 501})
    script.commit("c1", 3_000, {0: 20})
    assert resets(script) == [(0, ResetKind.COMMIT, 501, 20, "c1", "c1-id")]


@pytest.mark.parametrize("is_answered", [True, False])
def test_commits_that_overtake_each_other_are_no_reset(is_answered: bool) -> None:
    script = group()
    script.commit("c1", 1_000, {0: 500})
    late = [script.commit("c1", 2_000, {0: 560})]
    for number, offset in enumerate((510, 520, 535, 560, 580)):  # what was refused is sent again, in one moment
        late.append(script.commit("c1", 2_100 + number, {0: offset}))
    for row in late:
        row.answered_ns = (row.asked_ns or 0) + 2_500 * NS_PER_MS
    late[0].answered_ns = late[0].answered_ns if is_answered else None
    assert resets(script) == []
    script.commit("c1", 9_000, {0: 20})
    assert resets(script) == [(0, ResetKind.COMMIT, 580, 20, "c1", "c1-id")]


@pytest.mark.parametrize(("answer", "after"), [(100, 100), (-1, None)])
def test_what_changed_an_offset_need_not_be_seen(answer: int, after: int | None) -> None:
    script = group()
    script.commit("c1", 1_000, {0: 500})
    script.position("c1", 9_000, {0: answer})
    assert resets(script) == [(0, ResetKind.UNSEEN, 500, after, None, None)]


def test_an_answer_that_a_commit_has_overtaken_is_no_reset() -> None:
    script = group()
    script.position("c1", 100, {0: 400})
    script.commit("c1", 1_000, {0: 500})
    asked = script.position("c1", 1_000, {0: 400})
    asked.answered_ns = at(1_005)
    assert resets(script) == []


def test_an_offset_out_of_range_is_told_with_where_it_went_on() -> None:
    script = group()
    script.commit("c1", 1_000, {0: 500})
    script.fetch("c1", 2_000, 0, 500, -1, error=1)
    script.fetch("c1", 3_000, 0, 800, 900)
    assert resets(script) == [(0, ResetKind.OUT_OF_RANGE, 500, 800, "c1", "c1-id")]
    assert script.history().resets[0].time_ns == at(2_000)


def test_reading_again_what_was_committed_is_a_seek() -> None:
    script = group()
    script.fetch("c1", 1_000, 0, 600, 900)
    script.commit("c1", 2_000, {0: 500})
    script.fetch("c1", 3_000, 0, 550, 900)
    assert resets(script) == [], "records that were fetched ahead are fetched again after a pause"
    script.fetch("c1", 4_000, 0, 100, 900)
    assert resets(script) == [(0, ResetKind.SEEK, 550, 100, "c1", "c1-id")]


def test_the_lag_that_a_rebalance_brings_is_above_what_was_usual() -> None:
    script = group(c1={"orders": [0]}, c2={"orders": [1]})
    for second in range(1, 20):
        script.fetch("c1", second * 1_000, 0, 10 * second, 10 * second + second % 5)
    script.join("c1", 20_000, 25_000, 2, members=("c1", "c2"))
    script.join("c2", 20_001, 25_000, 2)
    script.sync("c1", 25_001, 25_010, 2, {"orders": [0]}, {"c1": {"orders": [0]}, "c2": {"orders": [1]}})
    script.sync("c2", 25_001, 25_010, 2, {"orders": [1]})
    script.fetch("c1", 26_000, 0, 190, 260)
    script.fetch("c1", 28_000, 0, 277, 280)
    first, second = script.history().rebalances
    assert (first.lag_grown, first.caught_up_ns) == (None, None)
    assert (second.lag_grown, second.caught_up_ns) == (70 - 4, at(28_000))


def test_commits_are_counted_by_partition_and_interval() -> None:
    script = Script()
    for ms, offset, error in ((1_000, 5, 0), (2_000, 6, 0), (3_000, 7, 27), (61_000, 9, 0)):
        offsets = [OffsetsCommitted("orders", 0, offset, error)]
        script.add("OffsetCommit", "c1", ms, ms, generation_id=1, offsets=offsets, error_code=error)
    rows = script.history().commits
    seconds = [(row.from_ns - START // (1_000 * MS) * 1_000 * MS) // (1_000 * MS) for row in rows]
    assert seconds == [1, 2, 3, 61]
    assert {row.from_ns % (1_000 * MS) for row in rows} == {0}
    found = [(row.commits, row.errors, row.first_offset, row.last_offset) for row in rows]
    assert found == [(1, 0, 5, 5), (1, 0, 6, 6), (0, 1, -1, -1), (1, 0, 9, 9)]
    assert {row.member_id for row in rows} == {"c1-id"}


@pytest.mark.parametrize(("minutes", "interval_s"), [(1, 1), (5, 1), (6, 10), (60, 10), (61, 60)])
def test_the_interval_grows_with_the_source(minutes: int, interval_s: int) -> None:
    script = Script()
    for ms, offset in ((0, 5), (1, 6), (minutes * 60_000, 9)):
        offsets = [OffsetsCommitted("orders", 0, offset, 0)]
        script.add("OffsetCommit", "c1", ms, ms, generation_id=1, offsets=offsets, error_code=0)
    rows = script.history().commits
    assert {row.interval_s for row in rows} == {interval_s}
    assert sum(row.commits for row in rows) == 3
    assert {row.from_ns % (interval_s * 1_000 * MS) for row in rows} == {0}


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


def rereads(script: Script) -> list[tuple[Any, ...]]:
    return [(r.partition, r.offset, r.times, r.size, r.cut_off, r.member_id) for r in script.history().rereads]


def test_a_position_that_is_taken_back_again_and_again() -> None:
    script = group()
    for second in range(1, 6):
        script.fetch("c1", 1_000 * second, 0, 60, 70 + second, size=100 * second)
        script.fetch("c1", 1_000 * second + 500, 0, 60 + 2 * second, 70 + second, size=50)
    assert rereads(script) == [(0, 60, 5, 500, 0, "c1-id")]
    [row] = script.history().rereads
    assert (row.from_ns, row.to_ns) == (at(1_000), at(5_000))


def test_requests_that_wait_for_records_are_no_rereads() -> None:
    script = group()
    for second in range(1, 6):
        script.fetch("c1", 1_000 * second, 0, 60, 60)
    assert rereads(script) == []


def test_another_owner_reads_what_was_not_committed() -> None:
    script = group(c1={"orders": [0]}, c2={"orders": [1]})
    script.fetch("c1", 1_000, 0, 5, 40, size=9)
    for client in ("c1", "c2"):
        script.join(client, 5_000, 5_010, 2, members=("c1", "c2") if client == "c1" else ())
    script.sync("c1", 5_011, 5_020, 2, {"orders": [1]}, {"c1": {"orders": [1]}, "c2": {"orders": [0]}})
    script.sync("c2", 5_012, 5_020, 2, {"orders": [0]})
    script.fetch("c2", 6_000, 0, 5, 40, size=9)
    assert rereads(script) == []


@pytest.mark.parametrize(("by", "cut_off"), [("client", 3), ("broker", 0)])
def test_responses_after_which_the_client_ends_its_connection(by: str, cut_off: int) -> None:
    script = group()
    for second in range(1, 4):
        script.fetch("c1", 1_000 * second, 0, 0, 900, size=7_000, socket=f"f{second}")
        name = f"10.0.0.1:4002-10.0.9.9:9092#f{second}c1"
        script.closed("c1", 1_000 * second + 5, name, kind=SightingKind.RESET, by=by)
    assert rereads(script) == [(0, 0, 3, 7_000, cut_off, "c1-id")]


def test_two_connections_at_once_read_each_for_itself() -> None:
    script = group()
    for second in range(1, 4):
        script.fetch("c1", 1_000 * second, 0, 10, 900, size=7, socket=f"f{second}")
    assert rereads(script) == []


def test_the_end_of_a_connection_may_be_missing_before_rereads() -> None:
    script = group()
    script.fetch("c1", 1_000, 0, 60, 900, size=7, socket="before")
    for second in range(2, 6):
        script.fetch("c1", 1_000 * second, 0, 60, 900, size=7)
    assert rereads(script) == [(0, 60, 4, 7, 0, "c1-id")], "all but the second, which may be another reader's"


def test_the_offsets_that_are_remembered_are_bounded() -> None:
    script = group()
    for second in range(1, 400):
        script.fetch("c1", 1_000 * second, 0, second, 900, size=7)
    script.fetch("c1", 400_000, 0, 1, 900, size=7)
    script.fetch("c1", 401_000, 0, 399, 900, size=7)
    assert [row[1] for row in rereads(script)] == [399]
