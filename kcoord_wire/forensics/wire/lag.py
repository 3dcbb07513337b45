"""What a group commits, how far it is behind, partition by partition, and who changed its position.

    lag = read_lag(traffic, ownership, members)

An end is known from any client's Fetch or ListOffsets, and is behind what a Produce answer names; the committed offset
from OffsetCommit, and from OffsetFetch before the first commit; where the owner reads, from the Fetch requests of a
client with its client id and host.

Laws:

* A row states what was last seen by its time, of each of the three; what was not seen is None.
* `Lag.fetch_offset` is the owner's: it begins anew with each owner, and is None while two connections that could be the
  owner's read the partition (`_AMBIGUOUS_NS`).
* Rows of a partition are the last in each interval; intervals have at least a second and grow with the source, so that
  a group has some `MAX_ROWS` rows. Resets and states are found in all commits, whatever the intervals.
* An answer to OffsetFetch counts as a change of the committed offset only if the last commit had been answered before
  it was asked for.
* A row of `Reread` counts the responses with records from one offset on to one owner: on one connection, or on another
  after the one before had ended. Responses without records count nowhere, as those that wait for new ones.
* Commits and what else was seen are columns; `_AT_ONCE` events at most are objects at a time.

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from operator import itemgetter
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
    Reread,
    ResetKind,
    SightingKind,
    client_host,
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


_INTERVALS: Final = ((1, 300), (10, 3_600))  # seconds, and up to which span of all commits; a minute beyond that


def commit_rows(group_id: str, commits: pa.Table) -> list[CommitRow]:
    """Count commits by partition and interval.

    :param commits: OffsetCommit exchanges in order of time
    """
    topics = _topics(commits)
    asked = commits["asked_ns"].to_numpy()
    named = np.flatnonzero(pc.fill_null(pc.list_value_length(commits["offsets"]), 0).to_numpy())
    if not len(named):
        return []
    span_s = int(asked[named[-1]] - asked[named[0]]) / NS_PER_S
    interval_s = next((seconds for seconds, most in _INTERVALS if span_s <= most), 60)
    found: list[CommitRow] = []
    known: dict[str, str] = {}
    start = 0
    while start < len(commits):
        last = asked[min(start + _AT_ONCE, len(commits)) - 1] // (interval_s * NS_PER_S)
        end = int(np.searchsorted(asked, (last + 1) * (interval_s * NS_PER_S)))  # intervals stay whole
        found += _commit_rows(group_id, commits.slice(start, end - start), topics, interval_s, known)
        start = end
    return found


def _commit_rows(
    group_id: str, commits: pa.Table, topics: list[str], interval_s: int, known: dict[str, str]
) -> Iterator[CommitRow]:
    """Parameters as in `commit_rows`.

    :param commits: those of whole intervals
    :param known: the member ids of earlier rows
    """
    flat = flat_offsets(commits, topics)
    if not len(flat.row):
        return
    asked = commits["asked_ns"].to_numpy()
    since = asked[flat.row] // (interval_s * NS_PER_S)
    order = np.lexsort((flat.place, since))  # which keeps the order within a key
    since, place = since[order], flat.place[order]
    ends = np.append(np.flatnonzero((since[1:] != since[:-1]) | (place[1:] != place[:-1])) + 1, len(order))
    good = order[~flat.is_bad[order]]
    upto = np.searchsorted(np.flatnonzero(~flat.is_bad[order]), ends)  # good commits up to the end of each key
    before = np.concatenate([[0], upto[:-1]])
    offsets = np.append(flat.offset[good], -1)
    firsts = offsets[np.where(upto > before, before, -1)]
    lasts = offsets[np.where(upto > before, upto - 1, -1)]
    members = commits["member_id"].take(pa.array(flat.row[order[ends - 1]]))
    columns = (since[ends - 1] * (interval_s * NS_PER_S), place[ends - 1], np.diff(ends, prepend=0), upto - before)
    numbers = zip(*(column.tolist() for column in (*columns, firsts, lasts)), members.to_pylist(), strict=True)
    for from_ns, at, count, accepted, first, last, member_id in numbers:
        yield CommitRow(
            group_id=group_id,
            topic=topics[at >> _PLACE_BITS],
            partition=_partition(at),
            from_ns=from_ns,
            commits=accepted,
            errors=count - accepted,
            first_offset=first,
            last_offset=last,
            member_id=known.setdefault(member_id, member_id) if member_id else None,
            interval_s=interval_s,
        )


_PLACE_BITS: Final = 32
_LEAST_PARTITION: Final = -(1 << 31)  # partitions are int32, and those of a damaged row may be negative


class Offsets(NamedTuple):
    """The offsets of exchanges, one after the other.

    :ivar row: number of the exchange
    :ivar place: topic, as an index into a sorted list, and partition in one number that sorts as the two do
    :ivar is_bad: whether it was refused
    """

    row: NDArray[np.uint32]
    place: NDArray[np.int64]
    offset: NDArray[np.int64]
    is_bad: NDArray[np.bool_]


def _places(topics: pa.Array, partitions: pa.Array, names: list[str]) -> NDArray[np.int64]:
    ranks = pc.index_in(pc.fill_null(topics, ""), value_set=pa.array(names, topics.type)).to_numpy().astype(np.int64)
    numbers = pc.fill_null(partitions, -1).to_numpy().astype(np.int64) - _LEAST_PARTITION
    places: NDArray[np.int64] = ranks << _PLACE_BITS | numbers
    return places


def _partition(place: int) -> int:
    return (place & (1 << _PLACE_BITS) - 1) + _LEAST_PARTITION


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])


def _topics(*exchanges: pa.Table) -> list[str]:
    """Return the topics that exchanges name, sorted."""
    lists = (chunk for each in exchanges for chunk in each["offsets"].chunks)
    found = (pc.unique(pc.struct_field(pc.list_flatten(chunk), "topic")) for chunk in lists)
    return sorted({name or "" for names in found for name in names.to_pylist()})


def flat_offsets(exchanges: pa.Table, topics: list[str]) -> Offsets:
    """Return the offsets of exchanges.

    :param topics: the names of topics, sorted; all that the exchanges name are among them
    """
    parts = []
    start = 0
    for lists in exchanges["offsets"].chunks:
        flat = pc.list_flatten(lists)
        row = pc.list_parent_indices(lists).to_numpy().astype(np.uint32) + np.uint32(start)
        place = _places(pc.struct_field(flat, "topic"), pc.struct_field(flat, "partition"), topics)
        offset = pc.fill_null(pc.struct_field(flat, "offset"), -1).to_numpy()
        is_bad = pc.fill_null(pc.not_equal(pc.struct_field(flat, "error_code"), 0), False)
        parts.append(Offsets(row, place, offset, is_bad.to_numpy(zero_copy_only=False)))
        start += len(lists)
    if not parts:
        number = np.zeros(0, np.int64)
        return Offsets(number.astype(np.uint32), number, number, number.astype(np.bool_))
    return Offsets._make(np.concatenate(column) for column in zip(*parts, strict=True))


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
    rereads: list[Reread] = field(default_factory=list)


class _Event(NamedTuple):
    """Something that was seen of one partition.

    :ivar kind: _COMMIT (a good one), _ANSWER (of OffsetFetch) or _FETCHED (of Fetch or ListOffsets)
    :ivar row: the columns of the exchange or sighting that a walk reads
    """

    time_ns: int
    kind: int
    offset: int | None
    row: dict[str, Any]


_EXCHANGE_COLUMNS: Final = ("asked_ns", "answered_ns", "member_id", "generation_id", "client_id", "client_host")
_SIGHTING_COLUMNS: Final = ("end_offset", "start_offset", "api", "error_code", "connection", "client_id", "size")
_AT_ONCE: Final = 1 << 12  # events that are objects at a time


class _Events:
    """What was seen of all partitions, in columns; only what is being walked through becomes objects.

    :ivar topics: the names in `Offsets.place`
    :ivar last_ns: the last time, 0 for none
    """

    def __init__(self, traffic: GroupTraffic, owned: Iterable[Partition]) -> None:
        commits, positions = traffic.commits, traffic.positions
        self.topics = sorted({*_topics(commits, positions), *(topic for topic, _ in owned)})
        fetched = traffic.fetched.of_topics(self.topics)
        self._tables = (
            commits.select(_EXCHANGE_COLUMNS),
            positions.select(_EXCHANGE_COLUMNS),
            fetched.select(_SIGHTING_COLUMNS),
        )
        self._times = [commits["asked_ns"].to_numpy(), positions["answered_ns"].to_numpy()]
        self._times.append(fetched["time_ns"].to_numpy())
        committed = self._good(commits, commits["asked_ns"], 0)
        answered = self._good(positions, positions["answered_ns"], None)
        ranks = {name: rank for rank, name in enumerate(self.topics)}
        held = [ranks[topic] << _PLACE_BITS | number - _LEAST_PARTITION for topic, number in owned]
        wanted = np.unique(np.concatenate([np.array(held, np.int64), committed.place, answered.place]))
        place = _places(_whole(fetched["topic"]), _whole(fetched["partition"]), self.topics)
        row = np.flatnonzero(np.isin(place, wanted)).astype(np.uint32)
        fetch_offset = fetched["fetch_offset"].take(pa.array(row))
        known = fetch_offset.is_valid().to_numpy()
        seen = Offsets(row, place[row], pc.fill_null(fetch_offset, 0).to_numpy(), ~known)
        del place
        kinds = (committed, answered, seen)
        self._kind = np.repeat(np.arange(len(kinds), dtype=np.int8), [len(each.row) for each in kinds])
        self._row = np.concatenate([each.row for each in kinds])
        self._offset = np.concatenate([each.offset for each in kinds])
        self._is_known = np.concatenate([~each.is_bad for each in kinds])
        self._place = np.concatenate([each.place for each in kinds])
        del committed, answered, seen, kinds
        time = self._time_of(self._kind, self._row)
        self.last_ns = int(time.max()) if len(time) else 0
        self._order = np.lexsort((self._kind, time, self._place)).astype(np.uint32)

    def _time_of(self, kinds: NDArray[np.int8], rows: NDArray[np.uint32]) -> NDArray[np.int64]:
        """Return the times of events."""
        found = np.zeros(len(rows), np.int64)
        for kind, times in enumerate(self._times):
            found[kinds == kind] = times[rows[kinds == kind]]
        return found

    def _good(self, exchanges: pa.Table, times: pa.ChunkedArray, least: int | None) -> Offsets:
        """Return the offsets that were not refused, of exchanges that have the time.

        :param least: the least offset that is one; None: -1 is one, too: nothing is committed
        """
        flat = flat_offsets(exchanges, self.topics)
        is_good = ~flat.is_bad & times.is_valid().to_numpy()[flat.row]
        if least is not None:
            is_good &= flat.offset >= least
        return Offsets._make(column[is_good] for column in flat)

    def count(self) -> int:
        """Return of how many partitions something was seen."""
        return len(np.unique(self._place))

    def by_partition(self) -> Iterator[tuple[Partition, Iterator[_Event]]]:
        """Yield the events of each partition, in order; take them before the next partition."""
        for place, events in groupby(self._in_order(), itemgetter(0)):
            yield (self.topics[place >> _PLACE_BITS], _partition(place)), (event for _, event in events)

    def _in_order(self) -> Iterator[tuple[int, _Event]]:
        for start in range(0, len(self._order), _AT_ONCE):
            chosen = self._order[start : start + _AT_ONCE]
            kinds, numbers = self._kind[chosen], self._row[chosen]
            rows: list[dict[str, Any]] = [{}] * len(chosen)
            known = self._is_known[chosen].tolist()
            offsets = [
                at if is_known else None for at, is_known in zip(self._offset[chosen].tolist(), known, strict=True)
            ]
            for kind, table in enumerate(self._tables):
                places = np.flatnonzero(kinds == kind)
                if not len(places):
                    continue
                unique, of_row = np.unique(numbers[places], return_inverse=True)
                each = table.take(pa.array(unique)).to_pylist()
                for place, number in zip(places.tolist(), of_row.tolist(), strict=True):
                    rows[place] = each[number]
            times, names = self._time_of(kinds, numbers).tolist(), self._place[chosen].tolist()
            yield from zip(names, map(_Event, times, kinds.tolist(), offsets, rows), strict=True)


def read_lag(traffic: GroupTraffic, ownership: Sequence[Ownership], members: Sequence[MemberLife]) -> GroupLag:
    """Return the lag of a group.

    :param ownership: rows of the group
    :param members: rows of the group, for the hosts of the owners
    """
    owners: dict[Partition, list[Ownership]] = defaultdict(list)
    for holding in ownership:
        owners[holding.topic, holding.partition].append(holding)
    events = _Events(traffic, owners)
    hosts = {life.member_id: (life.client_id, life.client_host) for life in members}
    ends = _Ends(traffic)
    now_ns = max(traffic.horizon_ns, events.last_ns)
    interval_ns = max(NS_PER_S, (now_ns - traffic.first_ns) * events.count() // MAX_ROWS)
    found = GroupLag()
    for place, seen in events.by_partition():
        walk = _Walk(traffic.group_id, place, owners.get(place, []), hosts, bool(ownership), ends)
        walk.run(seen, interval_ns)
        found.rows += walk.rows
        found.resets += walk.resets
        found.rereads += walk.rereads
        if walk.rows:
            found.partitions.append(walk.state(now_ns))
    found.rows.sort(key=lambda row: (row.time_ns, row.topic, row.partition))
    found.resets.sort(key=lambda row: (row.time_ns, row.topic, row.partition))
    found.rereads.sort(key=lambda row: (row.from_ns, row.topic, row.partition))
    return found


_AT_ONCE_NS: Final = NS_PER_S  # after a response, in which its reader ends the connection because of it
_GIVEN: Final = 64  # offsets of a partition that are remembered


class _Ends:
    """When and by whom connections were ended."""

    def __init__(self, traffic: GroupTraffic) -> None:
        self._links = traffic.links

    def was_over(self, connection: str, at_ns: int) -> bool:
        """Whether a connection had ended by then."""
        return any(link.kind in _OVER and link.time_ns <= at_ns for link in self._links.of(connection))

    def was_cut(self, connection: str, at_ns: int) -> bool:
        """Whether the client ended a connection just after that time."""
        return any(
            link.kind in _OVER and link.by == "client" and at_ns <= link.time_ns <= at_ns + _AT_ONCE_NS
            for link in self._links.of(connection)
        )


_OVER: Final = (SightingKind.CLOSED, SightingKind.RESET)


class _Given:
    """The offsets from which on records were sent to one owner of a partition.

    :param row: makes the row of an offset
    """

    def __init__(self, ends: _Ends, row: Callable[[_Event], Reread]) -> None:
        self._ends, self._row = ends, row
        self._rows: dict[int, tuple[Reread, str]] = {}  # by offset, with the connection of the last response

    def note(self, event: _Event) -> None:
        """Note a response with records."""
        offset, connection, now_ns = event.offset or 0, event.row["connection"], event.time_ns
        cut = self._ends.was_cut(connection, now_ns)
        held = self._rows.get(offset)
        if held is None:
            row = self._row(event)
            row.cut_off = int(cut)
            self._rows[offset] = row, connection
            self._forget()
            return
        row, before = held
        if before == connection or self._ends.was_over(before, now_ns):
            row.times, row.to_ns, row.cut_off = row.times + 1, now_ns, row.cut_off + cut
            row.size = max(row.size, event.row["size"])
        self._rows[offset] = row, connection  # also where the end of the one before is missing

    def _forget(self) -> None:
        """Drop the oldest offset that was sent once."""
        if len(self._rows) > _GIVEN:
            oldest = next((at for at, (row, _) in self._rows.items() if row.times == 1), next(iter(self._rows)))
            del self._rows[oldest]

    def again(self) -> Iterator[Reread]:
        """Yield the rows of the offsets that were sent more than once."""
        yield from (row for row, _ in self._rows.values() if row.times > 1)


class _Walk:
    """The events of one partition, in order of time."""

    def __init__(
        self,
        group_id: str,
        place: Partition,
        owners: list[Ownership],
        hosts: dict[str, tuple[str | None, str | None]],
        has_owners: bool,
        ends: _Ends,
    ) -> None:
        self.rows: list[Lag] = []
        self.resets: list[OffsetReset] = []
        self.rereads: list[Reread] = []
        self._ends = ends
        self._given = _Given(ends, self._reread)
        self._group_id, self._place, self._hosts, self._has_owners = group_id, place, hosts, has_owners
        self._owners = sorted(owners, key=lambda holding: holding.from_ns)
        self._from = [holding.from_ns for holding in self._owners]
        self._owner: Ownership | None = None
        self._committed: int | None = None
        self._answered_ns: int | None = None  # when the last commit was answered
        self._committer: str | None = None  # member id of who sent it
        self._start: int | None = None
        self._end: int | None = None
        self._end_ns: int | None = None
        self._read_ns: int | None = None
        self._fetch: int | None = None
        self._readers: dict[str, int] = {}  # when each connection that may be the owner's has read it last
        self._out_of_range: tuple[int, int] | None = None  # time and offset that was refused
        self._window: deque[Committed] = deque(maxlen=WINDOW)
        self._most: int | None = None

    def run(self, events: Iterable[_Event], interval_ns: int) -> None:
        """Take all events."""
        takers = {_COMMIT: self._commit, _ANSWER: self._answer, _FETCHED: self._see}
        slot: int | None = None
        for event in events:
            owner = self._owner_at(event.time_ns)
            if owner is not self._owner:
                self._owner, self._fetch, self._out_of_range = owner, None, None
                self._readers.clear()
                self._begin_giving()
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
        self._begin_giving()

    def _begin_giving(self) -> None:
        self.rereads += self._given.again()
        self._given = _Given(self._ends, self._reread)

    def _reread(self, event: _Event) -> Reread:
        owner, offset, now_ns = self._owner, event.offset or 0, event.time_ns
        assert owner is not None
        who = (owner.member_id, owner.client_id)
        return Reread(self._group_id, *self._place, offset, now_ns, now_ns, 1, event.row["size"], 0, *who)

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
            self._end_ns,
            self._read_ns,
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
            elif offset < before and not self._is_overtaken(row):
                self._reset(event, ResetKind.COMMIT, before, offset)
        self._committed, self._answered_ns, self._read_ns = offset, row["answered_ns"], event.time_ns
        self._committer = row["member_id"]
        if self._end is not None:
            last = Committed(event.time_ns, offset, max(self._end - offset, 0))
            if self._window and event.time_ns - self._window[-1].time_ns < NS_PER_S:
                self._window[-1] = last
            else:
                self._window.append(last)

    def _is_overtaken(self, row: dict[str, Any]) -> bool:
        """Whether a commit was sent before its member had the answer to the one before: retries overtake each other."""
        done_ns = self._answered_ns
        return row["member_id"] == self._committer and (done_ns is None or row["asked_ns"] < done_ns)

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
            is_least = row["api"] == "Produce"  # the end is behind its first record, at least
            end = max(row["end_offset"], self._end or 0) if is_least else row["end_offset"]
            self._end, self._end_ns = end, event.time_ns
        if row["start_offset"] is not None:
            self._start = row["start_offset"]
        if row["api"] == "Fetch" and self._is_owners(row):
            self._read_ns = event.time_ns
            self._read(event)

    def _is_owners(self, row: dict[str, Any]) -> bool:
        """Whether the owner reads here, as far as client id and host show it."""
        if self._owner is None:
            return False
        host = client_host(row["connection"])
        return (row["client_id"], host) == self._hosts.get(self._owner.member_id)

    def _read(self, event: _Event) -> None:
        row, offset = event.row, event.offset
        if row["size"] and offset is not None and not row["error_code"]:
            self._given.note(event)
        if self._is_ambiguous(row["connection"], event.time_ns):
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

    def _is_ambiguous(self, connection: str, now_ns: int) -> bool:
        """Note that a connection reads; return whether another one that may be the owner's does, too.

        What two sources show of one connection has other numbers in its name (`broker_address`).
        """
        ends = connection.partition("#")[0]
        self._readers[ends] = now_ns
        others = (at for name, at in self._readers.items() if name != ends)
        return any(at > now_ns - _AMBIGUOUS_NS for at in others)

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
