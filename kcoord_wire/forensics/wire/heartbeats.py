"""Signs of life: heartbeats and commits that went well, or that nobody answered, as columns of numbers.

Law: names are replaced by their numbers in sorted order before anything is sorted or copied, so that a row weighs some
fifty bytes whatever its strings, and ties fall the same way in whatever order the rows came.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["FirstSign", "Signs"]

_LATER = 1 << 62
_NAMED = ("api", "source", "connection", "client_id", "client_host", "member_id", "instance_id")
_ORDER = [(name, "ascending") for name in ("member_id", "asked_ns", "source", "seq", "connection")]


class FirstSign(NamedTuple):
    """Who a member known by its heartbeats or commits is."""

    time_ns: int
    generation: int | None
    instance_id: str | None
    client_id: str | None
    host: str
    source: str
    seq: int


class Signs:
    """Heartbeats and commits that went well (`answered`), and those that nobody answered (`faint`).

    :param table: of the schema of `model.Exchange`; `chosen`: which of its rows are such
    :ivar modern: members of KIP-848 among them
    :ivar versions: member, api and the highest version of it that the member sent
    :ivar calm: times of heartbeats of the classic protocol that were answered without error, sorted
    """

    def __init__(self, table: pa.Table, chosen: pa.Array) -> None:
        names, heard = _numbered(table, chosen)
        self._names = names
        answered = heard["answered"]
        beats = pc.and_(answered, pc.equal(heard["api"], _number(names["api"], "Heartbeat")))
        calm = heard["asked_ns"].filter(beats).combine_chunks()
        self.calm = _longs(calm.take(pc.sort_indices(calm)))
        self._answered = _Times(heard.filter(answered), names)
        self._faint = _Times(heard.filter(pc.invert(answered)), names)
        self.first = _first_signs(heard, names)
        self.connections = _connections(heard, names)
        self.versions = _highest(heard, names)
        self.modern = {member_id for member_id, api, _ in self.versions if api == "ConsumerGroupHeartbeat"}

    def last(self, member_id: str) -> int | None:
        """When the member was last seen, answered or not."""
        ends = [times.last(member_id) for times in (self._answered, self._faint)]
        return max((end for end in ends if end is not None), default=None)

    def last_row(self, member_id: str, until_ns: int | None) -> tuple[int, str, int] | None:
        """Time, source and frame of the member's last answered sign up to a moment."""
        return self._answered.row_before(member_id, until_ns)

    def last_answered(self, member_id: str) -> int | None:
        """When the member was last seen and answered well."""
        return self._answered.last(member_id)

    def last_answered_before(self, member_id: str, until_ns: int) -> int | None:
        """The same, up to a moment."""
        return self._answered.before(member_id, -1, until_ns)

    def next_calm(self, after_ns: int) -> int | None:
        """The first heartbeat after that moment that was answered without error."""
        at = bisect_right(self.calm, after_ns)
        return self.calm[at] if at < len(self.calm) else None

    def next(self, member_id: str, after_ns: int) -> int | None:
        """The member's first sign of life after that moment that was answered well."""
        return self._answered.next(member_id, after_ns)

    def faint_before(self, member_id: str, from_ns: int, to_ns: int) -> int | None:
        """The last sign in between that nobody answered: it may or may not have reached the coordinator."""
        return self._faint.before(member_id, from_ns, to_ns)

    def is_calm(self, from_ns: int, to_ns: int) -> bool:
        """Whether a heartbeat in between was answered without error: then nobody was joining."""
        at = bisect_right(self.calm, from_ns)
        return at < len(self.calm) and self.calm[at] < to_ns

    def last_calm(self, from_ns: int, to_ns: int) -> int | None:
        """The last heartbeat in between that was answered without error."""
        at = bisect_left(self.calm, to_ns) - 1
        return self.calm[at] if at >= 0 and self.calm[at] > from_ns else None

    def silences(
        self, alive: Mapping[str, Iterable[int]], session_ns: Mapping[str, int], horizon_ns: int
    ) -> list[tuple[str, int, int]]:
        """Who was not heard of for longer than its session timeout, from when, until when.

        :param alive: other signs of life, by member
        :param session_ns: members with their session timeout
        :param horizon_ns: where the source ends
        """
        gaps = self._answered.gaps(min(session_ns.values(), default=_LATER))
        found = []
        for member_id, session in session_ns.items():
            marks = sorted({*alive.get(member_id, ()), *gaps.get(member_id, ()), *self._answered.ends(member_id)})
            for start, end in zip(marks, [*marks[1:], horizon_ns + 1], strict=True):
                if end - start > session and not self._answered.any(member_id, start, end):
                    found.append((member_id, start, end))
        return sorted(found, key=lambda silence: (silence[1], silence[0]))


class _Times:
    """Times of the rows of each member, in one column sorted by member and time."""

    def __init__(self, table: pa.Table, names: dict[str, list[str]]) -> None:
        self._table = table.select(["source", "seq", "member_id", "asked_ns"]).combine_chunks()
        self._names = names
        self._at = _longs(self._table["asked_ns"])
        self._slices = _slices(self._table, names)

    def ends(self, member_id: str) -> tuple[int, ...]:
        span = self._slices.get(member_id)
        return () if span is None else (self._at[span[0]], self._at[span[1] - 1])

    def last(self, member_id: str) -> int | None:
        return self.ends(member_id)[-1] if member_id in self._slices else None

    def next(self, member_id: str, after_ns: int) -> int | None:
        start, end = self._slices.get(member_id, (0, 0))
        at = bisect_right(self._at, after_ns, start, end)
        return self._at[at] if at < end else None

    def before(self, member_id: str, from_ns: int, to_ns: int) -> int | None:
        start, end = self._slices.get(member_id, (0, 0))
        at = bisect_left(self._at, to_ns, start, end)
        return self._at[at - 1] if at > start and self._at[at - 1] > from_ns else None

    def row_before(self, member_id: str, until_ns: int | None) -> tuple[int, str, int] | None:
        start, end = self._slices.get(member_id, (0, 0))
        at = end if until_ns is None else bisect_right(self._at, until_ns, start, end)
        if at <= start:
            return None
        row = self._table.slice(at - 1, 1)
        return (self._at[at - 1], self._names["source"][row["source"][0].as_py()], row["seq"][0].as_py())

    def any(self, member_id: str, from_ns: int, to_ns: int) -> bool:
        found = self.next(member_id, from_ns)
        return found is not None and found < to_ns

    def gaps(self, least_ns: int) -> dict[str, list[int]]:
        """The rows at both sides of a wait of at least so long, by member."""
        if len(self._table) < 2:
            return {}
        at, who = _whole(self._table["asked_ns"]), _whole(self._table["member_id"])
        wide = pc.greater(pc.subtract(at[1:], at[:-1]), min(least_ns, _LATER))
        same = pc.equal(who[1:], who[:-1])
        found: dict[str, list[int]] = {}
        for index in pc.indices_nonzero(pc.and_(wide, same)).to_pylist():
            name = self._names["member_id"][who[index].as_py()]
            found.setdefault(name, []).extend((self._at[index], self._at[index + 1]))
        return found


def _numbered(table: pa.Table, chosen: pa.Array) -> tuple[dict[str, list[str]], pa.Table]:
    """The chosen rows that have a member id, by member and time, with numbers for names, and the names."""
    names, columns = {}, {}
    for name in _NAMED:
        names[name] = sorted(pc.drop_null(pc.unique(table[name])).to_pylist())
        columns[name] = pc.index_in(table[name], value_set=pa.array(names[name], table[name].type)).filter(chosen)
    for name in ("asked_ns", "seq", "api_version", "generation_id"):
        columns[name] = table[name].filter(chosen)
    columns["answered"] = pc.is_valid(table["error_code"]).filter(chosen)
    heard = pa.table(columns)
    heard = heard.filter(pc.not_equal(heard["member_id"], _number(names["member_id"], "")))
    return names, heard.sort_by(_ORDER).combine_chunks()


def _number(names: list[str], name: str) -> int:
    at = bisect_left(names, name)
    return at if at < len(names) and names[at] == name else -1


def _slices(heard: pa.Table, names: dict[str, list[str]]) -> dict[str, tuple[int, int]]:
    """Where the rows of each member are."""
    slices = {}
    start = 0
    if len(heard):
        runs = pc.run_end_encode(_whole(heard["member_id"]))
        for number, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            slices[names["member_id"][number]] = (start, end)
            start = end
    return slices


def _first_signs(heard: pa.Table, names: dict[str, list[str]]) -> dict[str, FirstSign]:
    """By member id, in order of time."""
    found = {}
    starts = {member_id: start for member_id, (start, _) in _slices(heard, names).items()}
    firsts = heard.take(pa.array(list(starts.values()), pa.int64())).to_pylist()

    def name(item: dict[str, Any], column: str) -> str | None:
        return None if item[column] is None else names[column][item[column]]

    for member_id, item in zip(starts, firsts, strict=True):
        found[member_id] = FirstSign(
            item["asked_ns"], item["generation_id"], name(item, "instance_id"), name(item, "client_id"),
            name(item, "client_host") or "", name(item, "source") or "", item["seq"],
        )  # fmt: skip
    return dict(sorted(found.items(), key=lambda entry: (entry[1].time_ns, entry[1].source, entry[1].seq)))


def _connections(heard: pa.Table, names: dict[str, list[str]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    pairs = heard.group_by(["member_id", "connection"]).aggregate([])
    for number, place in zip(pairs["member_id"].to_pylist(), pairs["connection"].to_pylist(), strict=True):
        found.setdefault(names["member_id"][number], set()).add(names["connection"][place])
    return found


def _highest(heard: pa.Table, names: dict[str, list[str]]) -> list[tuple[str, str, int]]:
    counted = heard.group_by(["member_id", "api"]).aggregate([("api_version", "max")]).to_pylist()
    return sorted(
        (names["member_id"][row["member_id"]], names["api"][row["api"]], row["api_version_max"] or 0) for row in counted
    )


def _whole(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) and whole.num_chunks else whole


def _longs(column: Any) -> Any:
    """An int64 column without nulls as a sequence, without copying."""
    array = _whole(column) if isinstance(column, pa.ChunkedArray) else column
    if not len(array):
        return memoryview(b"").cast("q")
    return memoryview(array.buffers()[1]).cast("q")[array.offset : array.offset + len(array)]
