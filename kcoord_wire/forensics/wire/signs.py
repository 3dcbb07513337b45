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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.protocol.error_codes import ErrorCode

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


_NAMED: Final = ("api", "source", "connection", "client_id", "client_host", "member_id", "instance_id")
_ORDER: Final = ("member_id", "asked_ns", "source", "seq", "connection")

_VERSIONS: Final = 1 << 16
_WIDE: Final = 1 << 31
_RHYTHM: Final = 3
_LATEST: Final = 20

Names = dict[str, list[str]]
"""The strings of each column, sorted: a number in that column is an index into its list."""


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
    :ivar modern: member ids of the KIP-848 protocol
    :ivar versions: member id, api, and the highest version of it that the member sent
    :ivar calm: times of classic heartbeats that were answered without error, sorted: no member was joining then
    """

    def __init__(self, table: pa.Table, chosen: pa.Array) -> None:
        names, rows = _ranked(table, chosen)
        answered = rows["answered"]
        beats = pc.and_(answered, pc.equal(rows["api"], _rank(names["api"], "Heartbeat")))
        calm = rows["asked_ns"].filter(beats).combine_chunks()
        self.calm = longs(calm.take(pc.sort_indices(calm)))
        self.answered = Times(rows.filter(answered), names)
        self.unanswered = Times(rows.filter(pc.invert(answered)), names)
        self.first = _first_signs(rows, names)
        self.connections = _connections(rows, names)
        self.versions = _highest_versions(rows, names)
        self.modern = {member_id for member_id, api, _ in self.versions if api == "ConsumerGroupHeartbeat"}

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
        self, alive: Mapping[str, Iterable[int]], session_ns: Mapping[str, int], horizon_ns: int
    ) -> list[tuple[str, int]]:
        """Find members that sent nothing for longer than their session timeout, and since when; in order of time.

        :param alive: other signs of life, by member
        :param session_ns: members with their session timeout
        :param horizon_ns: where the source ends
        """
        gaps = self.answered.gaps(min(session_ns.values(), default=NEVER_NS))
        found = []
        for member_id, session in session_ns.items():
            marks = sorted({*alive.get(member_id, ()), *gaps.get(member_id, ()), *self.answered.ends(member_id)})
            for start, end in zip(marks, [*marks[1:], horizon_ns + 1], strict=True):
                if end - start > session and self.answered.before(member_id, end, start) is None:
                    found.append((member_id, start))
        return sorted(found, key=lambda silence: (silence[1], silence[0]))


class Times:
    """The times of each member's rows, in one column sorted by member and time."""

    def __init__(self, table: pa.Table, names: Names) -> None:
        self._table = table.select(["source", "seq", "member_id", "asked_ns"]).combine_chunks()
        self._names = names
        self._at = longs(self._table["asked_ns"])
        self._slices = _slices(self._table, names)

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
        row = self._table.slice(at - 1, 1)
        return Moment(self._at[at - 1], self._names["source"][row["source"][0].as_py()], row["seq"][0].as_py())

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
        at, who = _whole(self._table["asked_ns"]), _whole(self._table["member_id"])
        if not len(at):
            return {}
        wide = pc.greater(pc.subtract(at[1:], at[:-1]), least_ns)
        same = pc.equal(who[1:], who[:-1])
        found: dict[str, list[int]] = {}
        for index in pc.indices_nonzero(pc.and_(wide, same)).to_pylist():
            name = self._names["member_id"][who[index].as_py()]
            found.setdefault(name, []).extend((self._at[index], self._at[index + 1]))
        return found


def _ranked(table: pa.Table, chosen: pa.Array) -> tuple[Names, pa.Table]:
    """Return the strings, and the chosen rows that have a member id, with ranks for strings, by member and time."""
    names, columns = {}, {}
    for name in _NAMED:
        names[name] = sorted(pc.drop_null(pc.unique(table[name])).to_pylist())
        columns[name] = pc.index_in(table[name], value_set=pa.array(names[name], table[name].type)).filter(chosen)
    for name in ("asked_ns", "seq", "api_version", "generation_id"):
        columns[name] = table[name].filter(chosen)
    columns["answered"] = pc.is_valid(table["error_code"]).filter(chosen)
    order = in_order(columns, _ORDER, pc.not_equal(columns["member_id"], _rank(names["member_id"], "")))
    return names, pa.table({name: columns.pop(name).take(order) for name in list(columns)}).combine_chunks()


def coded(column: pa.ChunkedArray) -> pa.Array:
    """Return a column of strings as numbers with a list of the strings."""
    return _whole(column.dictionary_encode())


def in_order(columns: Mapping[str, Any] | pa.Table, names: Sequence[str], chosen: pa.ChunkedArray) -> pa.Array:
    """Return the numbers of the chosen rows, sorted by columns.

    Strings are sorted by their rank, so that none is copied.

    :param columns: none of those named has a null
    """
    rows = pc.indices_nonzero(chosen)
    keys = {}
    for name in names:
        column = columns[name]
        if pa.types.is_string(column.type):
            ranks = pa.array(sorted(pc.unique(column).to_pylist()), column.type)
            column = pc.index_in(column, value_set=ranks)
        keys[name] = column.take(rows)
    return rows.take(pc.sort_indices(pa.table(keys), sort_keys=[(name, "ascending") for name in names]))


def _rank(names: list[str], name: str) -> int:
    at = bisect_left(names, name)
    return at if at < len(names) and names[at] == name else -1


def _slices(rows: pa.Table, names: Names) -> dict[str, tuple[int, int]]:
    """Where the rows of each member begin and end."""
    slices = {}
    start = 0
    if len(rows):
        runs = pc.run_end_encode(_whole(rows["member_id"]))
        for rank, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            slices[names["member_id"][rank]] = (start, end)
            start = end
    return slices


def _first_signs(rows: pa.Table, names: Names) -> dict[str, FirstSign]:
    """By member id, in order of time."""
    starts = {member_id: start for member_id, (start, _) in _slices(rows, names).items()}
    firsts = rows.take(pa.array(list(starts.values()), pa.int64())).to_pylist()

    def name(item: dict[str, Any], column: str) -> str | None:
        return None if item[column] is None else names[column][item[column]]

    found = {
        member_id: FirstSign(
            Moment(item["asked_ns"], name(item, "source") or "", item["seq"]),
            item["generation_id"],
            name(item, "instance_id"),
            name(item, "client_id"),
            name(item, "client_host") or "",
        )
        for member_id, item in zip(starts, firsts, strict=True)
    }
    return dict(sorted(found.items(), key=lambda entry: entry[1].at))


def _connections(rows: pa.Table, names: Names) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for member, connection in _distinct(rows["member_id"], rows["connection"]):
        found.setdefault(names["member_id"][member], set()).add(names["connection"][connection])
    return found


def _highest_versions(rows: pa.Table, names: Names) -> list[tuple[str, str, int]]:
    kinds = pc.add(pc.multiply(rows["api"].cast(pa.int64()), _VERSIONS), pc.fill_null(rows["api_version"], 0))
    highest: dict[tuple[int, int], int] = {}
    for member, kind in sorted(_distinct(rows["member_id"], kinds)):
        api, version = divmod(kind, _VERSIONS)
        highest[member, api] = version
    return sorted((names["member_id"][member], names["api"][api], most) for (member, api), most in highest.items())


def _distinct(first: pa.ChunkedArray, second: pa.ChunkedArray) -> Iterator[tuple[int, int]]:
    """Yield the pairs of numbers below 2**31 that stand side by side. (`Table.group_by` takes 0.3 s of CPU to load.)"""
    pairs = pc.add(pc.multiply(first.cast(pa.int64()), _WIDE), second.cast(pa.int64()))
    return (divmod(pair, _WIDE) for pair in pc.unique(pairs).to_pylist())


def _whole(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) and whole.num_chunks else whole


def longs(column: Any) -> Any:
    """View an int64 column without nulls as a sequence, without copying."""
    array = _whole(column) if isinstance(column, pa.ChunkedArray) else column
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
_AT_ONCE: Final = ["Heartbeat", "LeaveGroup", "OffsetCommit", "OffsetFetch", "ConsumerGroupHeartbeat"]


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
        asked = pc.is_in(exchanges["api"], value_set=pa.array([*_PARKED, *_AT_ONCE]))
        rows = _coded_rows(exchanges, asked)
        refused = pc.is_in(rows["error_code"], value_set=pa.array(sorted(REFUSALS), rows["error_code"].type))
        served = rows.select(["answered_ns", "connection"])
        served = served.filter(pc.and_(pc.is_valid(rows["answered_ns"]), pc.invert(refused)))
        served = served.sort_by("answered_ns").combine_chunks()
        self._answered = longs(served["answered_ns"])
        self._connections = served["connection"]
        self.spans = answer_spans(served)
        self.waits = _waits(rows)
        self.silences = list(_silences(rows))

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


def broker_address(connection: str) -> str:
    """Return the broker's address, ``host:port``, in the name of a connection."""
    return connection.partition("-")[2].rpartition("#")[0]


def answer_spans(served: pa.Table) -> dict[str, tuple[int, int]]:
    """Return by connection when its first and its last request were answered, of rows that were."""
    if not len(served):
        return {}
    names = coded(served["connection"])
    rows = pa.table({"name": names.indices, "answered_ns": _whole(served["answered_ns"])})
    rows = rows.sort_by([("name", "ascending"), ("answered_ns", "ascending")])
    times = longs(rows["answered_ns"])
    runs = pc.run_end_encode(_whole(rows["name"]))
    ends = runs.run_ends.to_pylist()
    connections = names.dictionary.take(runs.values).to_pylist()
    return {
        connection: (times[start], times[end - 1])
        for connection, start, end in zip(connections, [0, *ends[:-1]], ends, strict=True)
    }


def _coded_rows(exchanges: pa.Table, chosen: pa.ChunkedArray) -> pa.Table:
    """Return what `Service` reads of the chosen rows, strings as codes."""
    plain = ("asked_ns", "answered_ns", "seq", "error_code")
    columns = {name: exchanges[name].filter(chosen) for name in plain}
    return pa.table(columns | {name: coded(exchanges[name]).filter(chosen) for name in ("api", "source", "connection")})


def _waits(rows: pa.Table) -> list[Wait]:
    took = pc.subtract(rows["answered_ns"], rows["asked_ns"])
    is_late = pc.fill_null(pc.greater_equal(took, LONG_NS), True)
    late = rows.filter(pc.and_(is_late, pc.is_in(rows["api"], value_set=pa.array(_AT_ONCE))))
    columns = (late[name].to_pylist() for name in ("asked_ns", "answered_ns", "source", "seq", "api", "connection"))
    return sorted(map(Wait._make, zip(*columns, strict=True)), key=lambda wait: (wait.asked_ns, wait.source, wait.seq))


def _silences(rows: pa.Table) -> list[tuple[int, int | None]]:
    """Two files may be of two days: what is between them is not known."""
    asked = rows.select(["asked_ns", "source"]).sort_by("asked_ns").combine_chunks()
    times = asked["asked_ns"].combine_chunks()
    if not len(times):
        return []
    wide = pc.indices_nonzero(pc.greater(pc.subtract(times[1:], times[:-1]), _SILENCE_NS)).to_pylist()
    sources = asked["source"]
    found: list[tuple[int, int | None]] = [
        (times[at].as_py(), times[at + 1].as_py()) for at in wide if sources[at] == sources[at + 1]
    ]
    return [*found, (times[-1].as_py(), None)]
