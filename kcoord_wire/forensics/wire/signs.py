"""Moments of a capture, signs of life of members, and answers of the coordinator, as columns of numbers.

Laws:

* Moments sort by time, then by source and frame number, so that frames of one source that share a time stamp keep
  their order and the result does not depend on the order of the input.
* Heartbeats and commits never become objects: strings are replaced by their rank before sorting, a row is about 50
  bytes, and ties break the same way for any order of the input. Only a request that waited for `LONG_NS` is one.
* An answer that refuses because the broker does not coordinate the group now (14, 15, 16) is none; any other is one.
* JoinGroup and SyncGroup wait for other members: how long they take says nothing about the coordinator.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.forensics.coded import in_order, names_of, ranked, whole
from kcoord_wire.forensics.model import EPOCH_APIS, Clock, broker_address
from kcoord_wire.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from numpy.typing import NDArray

NS_PER_S: Final = 1_000_000_000

NEVER_NS: Final = 1 << 62
"""Later than every time stamp of a source (it is the year 2116), and still an int64."""

UNKNOWN_SEQ: Final = 1 << 62
"""In place of a frame number that is not known. It sorts behind the known frames of the same time."""

_AFTER_ALL_SOURCES: Final = "\U0010ffff"


class Moment(NamedTuple):
    """A point in the order of a capture.

    :ivar time_ns: ns since 1970
    :ivar source: the capture that has the frame
    :ivar seq: number of the frame there, or `UNKNOWN_SEQ`
    """

    time_ns: int
    source: str
    seq: int


BEGIN: Final = Moment(0, "", 0)
END: Final = Moment(NEVER_NS, "", 0)


def end_of(time_ns: int) -> Moment:
    """Return the moment behind all frames that carry this time stamp: a timer that ends then loses against them."""
    return Moment(time_ns, _AFTER_ALL_SOURCES, UNKNOWN_SEQ)


Ahead = Mapping[str, int]
"""By how much a clock is ahead, in ns, by source; those that are not corrected are missing."""

_TIMES: Final = {"asked_ns", "answered_ns", "time_ns", "since_ns"}


def ahead_by_source(clocks: Iterable[Clock]) -> Ahead:
    """Return by how much the clocks that differ are ahead."""
    return {clock.source: clock.ahead_ns for clock in clocks}


def shift(rows: pa.Table, ahead: Ahead) -> pa.Table:
    """Return rows with the times of each source by the clock of the reference.

    :param rows: any with a column ``source``
    """
    if not ahead:
        return rows
    names = names_of(rows["source"])
    by_source = np.array([*(ahead.get(name, 0) for name in names), 0], np.int64)  # the last one: rows without a source
    off = pa.array(by_source[pc.fill_null(whole(ranked(rows["source"], names)), -1).to_numpy()])
    for index, name in enumerate(rows.column_names):
        if name in _TIMES:
            rows = rows.set_column(index, rows.schema.field(index), pc.subtract(rows[name], off))
    return rows


_SIGN: Final = ["asked_ns", "source", "seq", "generation_id", "instance_id", "client_id", "client_host"]
_ORDER: Final = ("member_id", "asked_ns", "source", "seq", "connection")

_RHYTHM: Final = 3
_LATEST: Final = 20


class FirstSign(NamedTuple):
    """The first heartbeat or commit of a member."""

    at: Moment
    generation: int | None
    instance_id: str | None
    client_id: str | None
    host: str


class Heartbeats:
    """Heartbeats and commits of a group: the answered ones, which succeeded, and those without a response.

    A request without a response may or may not have reached the coordinator.

    :param table: a table of `model.Exchange`
    :param chosen: which of its rows these are
    :ivar answered: times of the answered ones
    :ivar unanswered: times of those without a response
    :ivar first: the first sign of each member, in order of time
    :ivar connections: the connections that each member used
    :ivar modern: member ids of groups whose coordinator assigns, with the API of their heartbeats
    :ivar versions: member id, api, and the highest version of it that the member sent
    :ivar calm: times of classic heartbeats that were answered without error, sorted: no member was joining then
    """

    def __init__(self, table: pa.Table, chosen: pa.Array) -> None:
        chosen = pc.and_(chosen, pc.not_equal(table["member_id"], ""))
        answered = pc.is_valid(table["error_code"])
        names = names_of(table["member_id"])
        rows = in_order(table, _ORDER, chosen)
        members = whole(ranked(table["member_id"], names)).to_numpy()[rows]
        is_answered = answered.to_numpy()[rows]
        self.answered = Times(table, rows[is_answered], members[is_answered], names)
        self.unanswered = Times(table, rows[~is_answered], members[~is_answered], names)
        self.first = _first_signs(table, rows, members, names)
        calm = pc.and_(pc.and_(chosen, answered), pc.equal(table["api"], "Heartbeat"))
        self.calm = longs(pa.array(np.sort(table["asked_ns"].filter(calm).to_numpy())))
        self.connections = _connections(table, chosen)
        self.versions = _highest_versions(table, chosen)
        self.modern = {member_id: api for member_id, api, _ in self.versions if api in EPOCH_APIS}

    def last(self, member_id: str) -> int | None:
        """When the member last sent one, answered or not."""
        ends = [times.last(member_id) for times in (self.answered, self.unanswered)]
        return max((end for end in ends if end is not None), default=None)

    def next_calm(self, after_ns: int) -> int | None:
        """The next heartbeat that was answered without error."""
        at = bisect_right(self.calm, after_ns)
        return self.calm[at] if at < len(self.calm) else None

    def is_calm(self, from_ns: int, to_ns: int) -> bool:
        """Whether a heartbeat between two times was answered without error."""
        at = self.next_calm(from_ns)
        return at is not None and at < to_ns

    def last_calm(self, from_ns: int, to_ns: int) -> int | None:
        """The last heartbeat between two times that was answered without error."""
        at = bisect_left(self.calm, to_ns) - 1
        return self.calm[at] if at >= 0 and self.calm[at] > from_ns else None

    def silences(
        self, alive: Mapping[str, Iterable[int]], session_ns: Mapping[str, int], until_ns: Callable[[str], int]
    ) -> list[tuple[str, int]]:
        """Find members that sent nothing for longer than their session timeout, and since when; in order of time.

        :param alive: other signs of life, by member
        :param session_ns: members with their session timeout
        :param until_ns: until when the source would show a member
        """
        gaps = self.answered.gaps(min(session_ns.values(), default=NEVER_NS))
        found = []
        for member_id, session in session_ns.items():
            marks = sorted({*alive.get(member_id, ()), *gaps.get(member_id, ()), *self.answered.ends(member_id)})
            for start, end in zip(marks, [*marks[1:], until_ns(member_id) + 1], strict=True):
                if end - start > session and self.answered.before(member_id, end, start) is None:
                    found.append((member_id, start))
        return sorted(found, key=lambda silence: (silence[1], silence[0]))


class Times:
    """The times of each member's rows, in one column sorted by member and time.

    :param table: a coded table of `model.Exchange`
    :param rows: numbers of rows in it, by member and time
    :param members: per row, its member as an index into `names`
    """

    def __init__(self, table: pa.Table, rows: NDArray[np.uint32], members: NDArray[np.int32], names: list[str]) -> None:
        self._table, self._rows = table, rows
        self._at = memoryview(whole(table["asked_ns"]).to_numpy()[rows])
        self._slices = _slices(members, names)

    def ends(self, member_id: str) -> tuple[int, ...]:
        span = self._slices.get(member_id)
        return () if span is None else (self._at[span[0]], self._at[span[1] - 1])

    def last(self, member_id: str) -> int | None:
        return self.ends(member_id)[-1] if member_id in self._slices else None

    def after(self, member_id: str, after_ns: int) -> int | None:
        start, end = self._slices.get(member_id, (0, 0))
        at = bisect_right(self._at, after_ns, start, end)
        return self._at[at] if at < end else None

    def before(self, member_id: str, to_ns: int, from_ns: int = -1) -> int | None:
        start, end = self._slices.get(member_id, (0, 0))
        at = bisect_left(self._at, to_ns, start, end)
        return self._at[at - 1] if at > start and self._at[at - 1] > from_ns else None

    def moment_before(self, member_id: str, until_ns: int | None) -> Moment | None:
        """The moment of the member's last row up to a time; None for the last of all."""
        start, end = self._slices.get(member_id, (0, 0))
        at = end if until_ns is None else bisect_right(self._at, until_ns, start, end)
        if at <= start:
            return None
        row = int(self._rows[at - 1])
        return Moment(self._at[at - 1], self._table["source"][row].as_py(), self._table["seq"][row].as_py())

    def rhythms(self, until_ns: int) -> dict[str, tuple[int, int]]:
        """The last row of each member up to a time, and the usual interval between its rows until then.

        Members with fewer than `_RHYTHM` rows have no usual interval.
        """
        found = {}
        for member_id, (start, end) in self._slices.items():
            at = bisect_right(self._at, until_ns, start, end)
            times = self._at[max(start, at - _LATEST) : at]
            if len(times) >= _RHYTHM:
                intervals = sorted(after - before for before, after in pairwise(times))
                found[member_id] = times[-1], intervals[len(intervals) // 2]
        return found

    def gaps(self, least_ns: int) -> dict[str, list[int]]:
        """The times on both sides of each gap of at least this length, by member."""
        wide = np.diff(np.asarray(self._at)) > least_ns
        found: dict[str, list[int]] = {}
        for member_id, (start, end) in self._slices.items():
            for index in (np.flatnonzero(wide[start : end - 1]) + start).tolist():
                found.setdefault(member_id, []).extend((self._at[index], self._at[index + 1]))
        return found


def _slices(members: NDArray[np.int32], names: list[str]) -> dict[str, tuple[int, int]]:
    """Where the rows of each member begin and end."""
    if not len(members):
        return {}
    starts = [0, *(np.flatnonzero(np.diff(members)) + 1).tolist()]
    ranks = members[starts].tolist()
    return dict(zip((names[rank] for rank in ranks), pairwise([*starts, len(members)]), strict=True))


def _first_signs(
    table: pa.Table, rows: NDArray[np.uint32], members: NDArray[np.int32], names: list[str]
) -> dict[str, FirstSign]:
    """By member id, in order of time. Parameters as in `Times`."""
    starts = {member_id: start for member_id, (start, _) in _slices(members, names).items()}
    firsts = table.select(_SIGN).take(pa.array(rows[list(starts.values())], pa.int64())).to_pylist()
    found = {
        member_id: FirstSign(
            Moment(item["asked_ns"], item["source"] or "", item["seq"]),
            item["generation_id"],
            item["instance_id"],
            item["client_id"],
            item["client_host"] or "",
        )
        for member_id, item in zip(starts, firsts, strict=True)
    }
    return dict(sorted(found.items(), key=lambda entry: entry[1].at))


def _connections(table: pa.Table, chosen: pa.ChunkedArray) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for member, connection in distinct(table, chosen, ["member_id", "connection"]):
        found.setdefault(member, set()).add(connection)
    return found


def _highest_versions(table: pa.Table, chosen: pa.ChunkedArray) -> list[tuple[str, str, int]]:
    highest: dict[tuple[str, str], int] = {}
    for member, api, version in distinct(table, chosen, ["member_id", "api", "api_version"]):
        highest[member, api] = max(version or 0, highest.get((member, api), 0))
    return sorted((member, api, version) for (member, api), version in highest.items())


def distinct(table: pa.Table, chosen: pa.ChunkedArray, names: list[str]) -> set[tuple[Any, ...]]:
    """Return the combinations of values in the chosen rows. (`Table.group_by` takes 0.3 s of CPU to load.)"""
    found: set[tuple[Any, ...]] = set()
    at = 0
    for batch in table.select(names).to_batches():
        rows = np.flatnonzero(chosen.slice(at, len(batch)).to_numpy())
        at += len(batch)
        codes = np.zeros(len(rows), np.int64)
        for column in batch.columns:
            numbers = (column.indices if pa.types.is_dictionary(column.type) else pc.fill_null(column, 0)).to_numpy()
            codes = codes * (int(numbers.max(initial=0)) + 1) + numbers[rows]
        _, firsts = np.unique(codes, return_index=True)
        found.update(map(tuple, (each.values() for each in batch.take(pa.array(rows[firsts])).to_pylist())))
    return found


def longs(column: Any) -> Any:
    """View an int64 column without nulls as a sequence, without copying."""
    array = whole(column) if isinstance(column, pa.ChunkedArray) else column
    if not len(array):
        return memoryview(b"").cast("q")
    return memoryview(array.buffers()[1]).cast("q")[array.offset : array.offset + len(array)]


REFUSALS: Final = frozenset(
    {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
)

LONG_NS: Final = 2 * NS_PER_S
"""A coordinator that works answers within milliseconds."""

_SILENCE_NS: Final = 5 * NS_PER_S  # shorter than this, members may just have nothing to ask
_PARKED: Final = ["JoinGroup", "SyncGroup"]
_AT_ONCE: Final = ["Heartbeat", "LeaveGroup", "OffsetCommit", "OffsetFetch", *EPOCH_APIS]


class Wait(NamedTuple):
    """A request that was answered late, or not at all.

    :ivar answered_ns: None without an answer
    """

    asked_ns: int
    answered_ns: int | None
    source: str
    seq: int
    api: str
    connection: str


class Service:
    """The answers of a group's coordinators.

    :param exchanges: rows of `model.Exchange` of a group, each with the time of its request
    :ivar waits: requests that waited for `LONG_NS` or longer, in order of time; JoinGroup and SyncGroup are never among
        them
    :ivar spans: by connection to a coordinator, its first and its last answer
    :ivar silences: intervals without any request to a coordinator, from the last one before, to the first after or None
    """

    def __init__(self, exchanges: pa.Table) -> None:
        wanted = pc.fill_null(pc.is_in(exchanges["api"], value_set=pa.array([*_PARKED, *_AT_ONCE])), False)
        refused = pc.is_in(exchanges["error_code"], value_set=pa.array(sorted(REFUSALS), exchanges["error_code"].type))
        is_served = pc.and_(wanted, pc.and_(pc.is_valid(exchanges["answered_ns"]), pc.invert(refused)))
        rows = in_order(exchanges, ["answered_ns", "connection"], is_served)
        self._answered = memoryview(whole(pc.fill_null(exchanges["answered_ns"], 0)).to_numpy()[rows])
        self._connections = exchanges["connection"].take(pa.array(rows))
        self.spans = answer_spans(exchanges["answered_ns"], exchanges["connection"], is_served)
        self.waits = _waits(exchanges)
        self.silences = _silences(exchanges, wanted)

    @property
    def answers(self) -> tuple[NDArray[np.int64], pa.ChunkedArray]:
        """The times at which members were answered, in order, and the connections."""
        return np.asarray(self._answered), self._connections

    def next_answer(self, after_ns: int) -> int | None:
        """When a member was next answered."""
        at = bisect_right(self._answered, after_ns)
        return self._answered[at] if at < len(self._answered) else None

    def last_answer(self, until_ns: int) -> int | None:
        """When a member was last answered, up to a time."""
        at = bisect_right(self._answered, until_ns)
        return self._answered[at - 1] if at else None

    def broker_before(self, until_ns: int) -> str | None:
        """The address of the broker that answered last, up to a time."""
        at = bisect_right(self._answered, until_ns)
        return broker_address(self._connections[at - 1].as_py()) if at else None

    def broker_after(self, after_ns: int) -> str | None:
        """The address of the broker that answered next."""
        at = bisect_right(self._answered, after_ns)
        return broker_address(self._connections[at].as_py()) if at < len(self._answered) else None


def answer_spans(
    answered: pa.ChunkedArray, connections: pa.ChunkedArray, chosen: pa.ChunkedArray | None = None
) -> dict[str, tuple[int, int]]:
    """Return by connection when its first and its last request were answered; requests without an answer do not count.

    :param answered: times of the answers
    :param connections: of the same rows, coded
    :param chosen: which rows count; None for all
    """
    if not len(answered):
        return {}
    names = connections.chunk(0).dictionary.to_pylist()
    first, last = np.full(len(names), NEVER_NS), np.full(len(names), -NEVER_NS)
    counts = pc.is_valid(answered) if chosen is None else pc.and_(chosen, pc.is_valid(answered))
    for batch in pa.table([answered, connections, counts], ["answered", "connection", "counts"]).to_batches():
        seen = batch.filter(batch.column(2))
        times, codes = seen.column(0).to_numpy(), seen.column(1).indices.to_numpy()
        np.minimum.at(first, codes, times)
        np.maximum.at(last, codes, times)
    spans = zip(names, first.tolist(), last.tolist(), strict=True)
    return {name: (begin, end) for name, begin, end in spans if begin <= end}


def _waits(exchanges: pa.Table) -> list[Wait]:
    is_late = pc.greater_equal(pc.subtract(exchanges["answered_ns"], exchanges["asked_ns"]), LONG_NS)
    is_late = pc.and_(pc.fill_null(is_late, True), pc.is_in(exchanges["api"], value_set=pa.array(_AT_ONCE)))
    late = exchanges.select(["asked_ns", "answered_ns", "source", "seq", "api", "connection"]).filter(is_late)
    columns = (late[name].to_pylist() for name in late.column_names)
    return sorted(map(Wait._make, zip(*columns, strict=True)), key=lambda wait: (wait.asked_ns, wait.source, wait.seq))


def _silences(exchanges: pa.Table, chosen: pa.ChunkedArray) -> list[tuple[int, int | None]]:
    """Two files may be of two days: what is between them is not known."""
    rows = in_order(exchanges, ["asked_ns", "source", "seq"], chosen)
    if not len(rows):
        return []
    times = whole(exchanges["asked_ns"]).to_numpy()[rows]
    sources = exchanges["source"]
    found: list[tuple[int, int | None]] = [
        (int(times[at]), int(times[at + 1]))
        for at in np.flatnonzero(np.diff(times) > _SILENCE_NS).tolist()
        if sources[int(rows[at])].as_py() == sources[int(rows[at + 1])].as_py()
    ]
    return [*found, (int(times[-1]), None)]
