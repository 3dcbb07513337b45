"""What a group commits, how far it is behind, partition by partition, and who changed its position.

    lag = read_lag(traffic, ownership, members)

An end is known from any client's Fetch or ListOffsets; the committed offset from OffsetCommit, and from OffsetFetch
before the first commit; where the owner reads, from the Fetch requests of a client with its client id and host.

Laws:

* A row states what was last seen by its time, of each of the three; what was not seen is None.
* `Lag.fetch_offset` is the owner's: it begins anew with each owner, and is None while two connections that could be the
  owner's read the partition (`_AMBIGUOUS_NS`).
* Rows of a partition are the last in each interval; intervals have at least a second and grow with the source, so that
  a group has some `MAX_ROWS` rows. Resets and states are found in all commits, whatever the intervals.
* An answer to OffsetFetch counts as a change of the committed offset only if the last commit had been answered before
  it was asked for.
* Commits are counted in columns: none becomes an object.

The status of a partition follows from the rules of Burrow's wiki, "Consumer Lag Evaluation Rules", in its order, over a
window of the last `WINDOW` commits, at most one per second:

1. A lag of 0 in the window: OK.
2. No commit for longer than the window spans, and not everything is read: STOPPED. Here for `LEAST_SILENCE_NS` at
   least, because the window of a short source spans little.
3. The same offset in the whole window while the lag does not fall: STALLED.
4. Offsets rise, and the lag never falls from one commit to the next: WARN.
5. Otherwise OK.

With fewer than `LEAST` commits only the first two rules can be judged; if neither holds, the status is UNKNOWN.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.forensics.model import (
    CommitRow,
    Lag,
    LagStatus,
    MemberLife,
    OffsetReset,
    Ownership,
    PartitionState,
    Rebalance,
    ResetKind,
)
from kcoord_wire.forensics.wire.signs import NS_PER_S
from kcoord_wire.forensics.wire.traffic import GroupTraffic, Partition
from kcoord_wire.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from numpy.typing import NDArray

WINDOW: Final = 10
LEAST: Final = 3
LEAST_SILENCE_NS: Final = 30 * NS_PER_S


class Committed(NamedTuple):
    """A commit.

    :ivar lag: records between it and the end at that time
    """

    time_ns: int
    offset: int
    lag: int


def lag_status(commits: Sequence[Committed], lag: int | None, now_ns: int) -> tuple[LagStatus, int | None]:
    """Return the status, and since when it holds; None for OK and UNKNOWN.

    :param commits: the last ones, in order of time; `WINDOW` of them count
    :param lag: now; None where the end is not known
    :param now_ns: the last time in the source
    """
    window = commits[-WINDOW:]
    if lag == 0:
        return LagStatus.OK, None
    if lag is None or not window:
        return LagStatus.UNKNOWN, None
    silent_ns = now_ns - window[-1].time_ns
    if silent_ns > max(window[-1].time_ns - window[0].time_ns, LEAST_SILENCE_NS):
        return LagStatus.STOPPED, window[-1].time_ns
    if any(each.lag == 0 for each in window):
        return LagStatus.OK, None
    if len(window) < LEAST:
        return LagStatus.UNKNOWN, None
    if any(after.lag < before.lag for before, after in pairwise(window)):
        return LagStatus.OK, None
    if window[0].offset == window[-1].offset:
        return LagStatus.STALLED, window[0].time_ns
    return LagStatus.WARN, window[0].time_ns


_KEYS: Final = ("from", "topic", "partition")
_INTERVALS: Final = ((1, 300), (10, 3_600))  # seconds, and up to which span of all commits; a minute beyond that


def commit_rows(group_id: str, commits: pa.Table) -> list[CommitRow]:
    """Count commits by partition and interval.

    :param commits: OffsetCommit exchanges in order of time
    """
    table = flat_offsets(commits)
    if table is None:
        return []
    bounds = pc.min_max(table["asked"]).as_py()
    span_s = (bounds["max"] - bounds["min"]) / NS_PER_S
    interval_s = next((seconds for seconds, most in _INTERVALS if span_s <= most), 60)
    size_ns = interval_s * NS_PER_S
    table = table.append_column("from", pc.multiply(pc.divide(table["asked"], size_ns), size_ns))
    table = table.sort_by([(name, "ascending") for name in _KEYS])  # which keeps the order within a key
    ends = _ends(table)
    lasts = table.take(pa.array(ends - 1)).to_pylist()
    offsets, good = table["offset"], np.flatnonzero(table["good"].to_numpy())
    upto = np.searchsorted(good, ends).tolist()  # how many good commits there are up to the end of each key
    rows = []
    for row, count, before, after in zip(lasts, np.diff(ends, prepend=0).tolist(), [0, *upto], upto, strict=False):
        first, last = (offsets[good[at].item()].as_py() if after > before else -1 for at in (before, after - 1))
        rows.append(
            CommitRow(
                group_id=group_id,
                topic=row["topic"],
                partition=row["partition"],
                from_ns=row["from"],
                commits=after - before,
                errors=count - (after - before),
                first_offset=first,
                last_offset=last,
                member_id=row["member"] or None,
                interval_s=interval_s,
            )
        )
    return rows


def _ends(table: pa.Table) -> NDArray[np.int64]:
    """Return behind which row each run of equal keys ends. (`Table.group_by` takes 0.3 s of CPU to load.)"""
    changes = np.zeros(max(len(table) - 1, 0), dtype=bool)
    for name in _KEYS:
        column = table[name].combine_chunks()
        changes |= pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    return np.append(np.flatnonzero(changes) + 1, len(table))


def flat_offsets(commits: pa.Table) -> pa.Table | None:
    """Return a row per partition of each exchange, ``row`` is the number of the exchange; None if there is none."""
    offsets = commits["offsets"].combine_chunks() if len(commits) else None
    if offsets is None or not len(offsets):
        return None
    if isinstance(offsets, pa.ChunkedArray):
        offsets = offsets.chunk(0)
    parents = pc.list_parent_indices(offsets)
    flat = pc.list_flatten(offsets)
    if not len(flat):
        return None
    asked = pc.take(commits["asked_ns"].combine_chunks(), parents)
    bad = pc.fill_null(pc.not_equal(flat.field("error_code"), 0), False)
    return pa.table(
        {
            "row": parents,
            "topic": pc.fill_null(flat.field("topic"), ""),
            "partition": pc.fill_null(flat.field("partition"), -1),
            "asked": asked,
            "offset": pc.fill_null(flat.field("offset"), -1),
            "bad": bad.cast(pa.int64()),
            "good": pc.invert(bad).cast(pa.int64()),
            "member": pc.take(commits["member_id"].combine_chunks(), parents),
        }
    )


MAX_ROWS: Final = 100_000
_AMBIGUOUS_NS: Final = 5 * NS_PER_S
_BEFORE_NS: Final = 30 * NS_PER_S
_COMMIT, _ANSWER, _FETCHED = range(3)


@dataclass(slots=True)
class GroupLag:
    """The tables of a group that are about its positions."""

    rows: list[Lag] = field(default_factory=list)
    partitions: list[PartitionState] = field(default_factory=list)
    resets: list[OffsetReset] = field(default_factory=list)


class _Event(NamedTuple):
    """Something that was seen of one partition.

    :ivar kind: _COMMIT (a good one), _ANSWER (of OffsetFetch) or _FETCHED (of Fetch or ListOffsets)
    :ivar row: of the exchange or sighting
    """

    time_ns: int
    kind: int
    offset: int | None
    row: dict[str, Any]


def read_lag(traffic: GroupTraffic, ownership: Sequence[Ownership], members: Sequence[MemberLife]) -> GroupLag:
    """Return the lag of a group.

    :param ownership: rows of the group
    :param members: rows of the group, for the hosts of the owners
    """
    owners: dict[Partition, list[Ownership]] = defaultdict(list)
    for holding in ownership:
        owners[holding.topic, holding.partition].append(holding)
    events: dict[Partition, list[_Event]] = defaultdict(list)
    for place, event in _commits(traffic.commits, _COMMIT, "asked_ns"):
        events[place].append(event)
    for place, event in _commits(traffic.positions, _ANSWER, "answered_ns"):
        events[place].append(event)
    for place, event in _fetched(traffic.fetched, {place[0] for place in (*owners, *events)}):
        if place in owners or place in events:
            events[place].append(event)
    hosts = {life.member_id: (life.client_id, life.client_host) for life in members}
    now_ns = max([traffic.horizon_ns, *(each[-1].time_ns for each in events.values())])
    interval_ns = max(NS_PER_S, (now_ns - traffic.first_ns) * len(events) // MAX_ROWS)
    found = GroupLag()
    for place in sorted(events):
        walk = _Walk(traffic.group_id, place, owners.get(place, []), hosts, bool(ownership))
        walk.run(sorted(events[place], key=lambda event: (event.time_ns, event.kind)), interval_ns)
        found.rows += walk.rows
        found.resets += walk.resets
        if walk.rows:
            found.partitions.append(walk.state(now_ns))
    found.rows.sort(key=lambda row: (row.time_ns, row.topic, row.partition))
    found.resets.sort(key=lambda row: (row.time_ns, row.topic, row.partition))
    return found


def _commits(exchanges: pa.Table, kind: int, time: str) -> Iterator[tuple[Partition, _Event]]:
    """Yield the offsets that were not refused. In an answer -1 is one, too: nothing is committed."""
    flat = flat_offsets(exchanges)
    if flat is None:
        return
    rows = exchanges.drop_columns(["offsets"]).to_pylist()
    good = flat.filter(pc.equal(flat["bad"], 0)).select(["row", "topic", "partition", "offset"])
    for number, topic, partition, offset in zip(*(column.to_pylist() for column in good.columns), strict=True):
        row = rows[number]
        if row[time] is not None and (offset >= 0 or kind == _ANSWER):
            yield (topic, partition), _Event(row[time], kind, offset, row)


def _fetched(fetched: pa.Table, topics: Iterable[str]) -> Iterator[tuple[Partition, _Event]]:
    wanted = pc.is_in(fetched["topic"], value_set=pa.array(sorted(topics), pa.string()))
    for row in fetched.filter(wanted).to_pylist():
        yield (row["topic"], row["partition"]), _Event(row["time_ns"], _FETCHED, row["fetch_offset"], row)


class _Walk:
    """The events of one partition, in order of time."""

    def __init__(
        self,
        group_id: str,
        place: Partition,
        owners: list[Ownership],
        hosts: dict[str, tuple[str | None, str | None]],
        has_owners: bool,
    ) -> None:
        self.rows: list[Lag] = []
        self.resets: list[OffsetReset] = []
        self._group_id, self._place, self._hosts, self._has_owners = group_id, place, hosts, has_owners
        self._owners = sorted(owners, key=lambda holding: holding.from_ns)
        self._from = [holding.from_ns for holding in self._owners]
        self._owner: Ownership | None = None
        self._committed: int | None = None
        self._answered_ns: int | None = None  # when the last commit was answered
        self._start: int | None = None
        self._end: int | None = None
        self._fetch: int | None = None
        self._readers: dict[str, int] = {}  # when each connection that may be the owner's has read it last
        self._out_of_range: tuple[int, int] | None = None  # time and offset that was refused
        self._window: deque[Committed] = deque(maxlen=WINDOW)
        self._most: int | None = None

    def run(self, events: list[_Event], interval_ns: int) -> None:
        """Take all events."""
        takers = {_COMMIT: self._commit, _ANSWER: self._answer, _FETCHED: self._see}
        slot = -1
        for event in events:
            owner = self._owner_at(event.time_ns)
            if owner is not self._owner:
                self._owner, self._fetch, self._out_of_range = owner, None, None
                self._readers.clear()
            takers[event.kind](event)
            if self._end is None:
                continue
            row = self._row(event.time_ns, self._end)
            if row.lag is not None:
                self._most = max(row.lag, self._most or 0)
            if slot == event.time_ns // interval_ns:
                self.rows[-1] = row
            else:
                self.rows.append(row)
                slot = event.time_ns // interval_ns

    def state(self, now_ns: int) -> PartitionState:
        last = self.rows[-1]
        status, since_ns = lag_status(list(self._window), last.lag, now_ns)
        return PartitionState(
            self._group_id,
            *self._place,
            str(status),
            since_ns,
            last.time_ns,
            last.committed_offset,
            last.fetch_offset,
            last.end_offset,
            last.lag,
            self._most,
            None if self._owner_at(now_ns) is None else last.member_id,
        )

    def _owner_at(self, now_ns: int) -> Ownership | None:
        index = bisect_right(self._from, now_ns) - 1
        if index < 0:
            return None
        holding = self._owners[index]
        return holding if holding.to_ns is None or holding.to_ns > now_ns else None

    def _row(self, time_ns: int, end: int) -> Lag:
        position = self._fetch if self._committed is None else self._committed
        if position is None and end == self._start:
            position = end  # the partition is empty
        lag = None if position is None else max(end - position, 0)
        owner = None if self._owner is None else self._owner.member_id
        return Lag(self._group_id, *self._place, time_ns, self._committed, self._fetch, end, lag, owner)

    # ---- what was seen

    def _commit(self, event: _Event) -> None:
        row, offset = event.row, event.offset or 0
        before = self._committed
        if before is not None and offset != before:
            generation = row["generation_id"]
            is_outside = not row["member_id"] and (generation is None or generation < 0)
            if is_outside and self._has_owners:
                self._reset(event, ResetKind.ADMIN, before, offset)
            elif offset < before:
                self._reset(event, ResetKind.COMMIT, before, offset)
        self._committed, self._answered_ns = offset, row["answered_ns"]
        if self._end is not None:
            last = Committed(event.time_ns, offset, max(self._end - offset, 0))
            if self._window and event.time_ns - self._window[-1].time_ns < NS_PER_S:
                self._window[-1] = last
            else:
                self._window.append(last)

    def _answer(self, event: _Event) -> None:
        offset = event.offset
        before, since_ns = self._committed, self._answered_ns
        if before is None:
            self._committed = offset if offset is not None and offset >= 0 else None
        elif offset is not None and offset < before and since_ns is not None and since_ns <= event.row["asked_ns"]:
            self._reset(event, ResetKind.UNSEEN, before, offset if offset >= 0 else None)
            self._committed = offset if offset >= 0 else None

    def _see(self, event: _Event) -> None:
        row = event.row
        if row["end_offset"] >= 0:
            self._end = row["end_offset"]
        if row["start_offset"] is not None:
            self._start = row["start_offset"]
        if row["api"] == "Fetch" and self._is_owners(row):
            self._read(event)

    def _is_owners(self, row: dict[str, Any]) -> bool:
        """Whether the owner reads here, as far as client id and host show it."""
        if self._owner is None:
            return False
        host = row["connection"].partition("-")[0].rpartition(":")[0].strip("[]")
        return (row["client_id"], host) == self._hosts.get(self._owner.member_id)

    def _read(self, event: _Event) -> None:
        row, offset = event.row, event.offset
        self._readers[row["connection"]] = event.time_ns
        others = (at for name, at in self._readers.items() if name != row["connection"])
        if max(others, default=0) > event.time_ns - _AMBIGUOUS_NS:
            self._fetch = self._out_of_range = None
            return
        if row["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE:
            position = offset if offset is not None else self._committed
            self._out_of_range = None if position is None else (event.time_ns, position)
            return
        if offset is None or row["error_code"]:
            return
        if self._out_of_range is not None:
            if offset != self._out_of_range[1]:
                self._reset(event, ResetKind.OUT_OF_RANGE, self._out_of_range[1], offset, at_ns=self._out_of_range[0])
                self._out_of_range = None
        elif self._fetch is not None and self._committed is not None and offset < min(self._fetch, self._committed):
            self._reset(event, ResetKind.SEEK, self._fetch, offset)
        self._fetch = offset

    def _reset(
        self, event: _Event, kind: ResetKind, before: int, after: int | None, *, at_ns: int | None = None
    ) -> None:
        row, owner = event.row, self._owner
        client: tuple[str | None, str | None, str | None] = (None, None, None)
        if kind in (ResetKind.ADMIN, ResetKind.COMMIT):
            client = (row["client_id"], row["client_host"], row["member_id"] or None)
        elif kind != ResetKind.UNSEEN and owner is not None:
            client = (*self._hosts.get(owner.member_id, (owner.client_id, None)), owner.member_id)
        time_ns = event.time_ns if at_ns is None else at_ns
        self.resets.append(OffsetReset(self._group_id, *self._place, time_ns, str(kind), before, after, *client))


# ---- growth


def note_growth(rebalances: Sequence[Rebalance], rows: Sequence[Lag]) -> None:
    """Set `Rebalance.lag_grown` and `Rebalance.caught_up_ns`.

    :param rebalances: in order of time
    :param rows: in order of time
    """
    times, totals = _totals(rows)
    ends = [*(bisect_right(times, each.started_ns) for each in rebalances[1:]), len(times)]
    for rebalance, end in zip(rebalances, ends, strict=False):
        start = bisect_right(times, rebalance.started_ns)
        if not 0 < start < end:
            continue
        before = max(totals[bisect_right(times, rebalance.started_ns - _BEFORE_NS, hi=start - 1) : start])
        worst = max(range(start, end), key=totals.__getitem__)
        rebalance.lag_grown = max(totals[worst] - before, 0)
        if rebalance.lag_grown:
            rebalance.caught_up_ns = next((times[at] for at in range(worst, len(times)) if totals[at] <= before), None)


def _totals(rows: Iterable[Lag]) -> tuple[list[int], list[int]]:
    """Return times, and the lag of all partitions together; the first lag of a partition counts from the beginning."""
    times: list[int] = []
    totals: list[int] = []
    last: dict[Partition, int] = {}
    total = 0
    for row in rows:
        if row.lag is not None:
            place = (row.topic, row.partition)
            total += row.lag - last.get(place, row.lag)
            last[place] = row.lag
            times.append(row.time_ns)
            totals.append(total)
    return times, totals
