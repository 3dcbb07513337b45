"""The exchanges of one group, parted by weight: what the protocol says, as objects; signs of life, as columns.

Laws:

* The order of the rows and their chunks have no effect: everything is sorted by time, source and number of the frame.
* A heartbeat or commit that went well, or has no answer, never becomes an object: millions of them are a few columns.
* Nothing here raises over what is in a row: a field that is null where none should be reads as empty or 0; a row
  without the time of its request cannot be placed and is counted in `Rows.unplaced`.
* A broker looks at a request when the one before it on the same connection is answered: `Row.due` is that moment.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

__all__ = [
    "Key",
    "Leaver",
    "Offer",
    "Partition",
    "Row",
    "Rows",
    "Signs",
    "Told",
    "first_key",
    "last_key",
    "read_rows",
]

Key = tuple[int, str, int]
"""A moment: time in ns, source, number of the frame there. Frames of one source that share a time keep their order."""

Partition = tuple[str, int]

_LATER = 1 << 62
_CALM_APIS = ["Heartbeat", "OffsetCommit"]


class Offer(NamedTuple):
    """An assignor that a member offers, with its subscription.

    :ivar topics: None where the blob is no consumer's
    :ivar owned: None where the blob does not say
    """

    assignor: str
    topics: tuple[str, ...] | None
    owned: frozenset[Partition] | None
    metadata: bytes


class Told(NamedTuple):
    """A member as the leader is told of it."""

    instance_id: str | None
    topics: tuple[str, ...] | None
    owned: frozenset[Partition] | None


class Leaver(NamedTuple):
    """A member that a LeaveGroup request names."""

    member_id: str
    instance_id: str | None
    reason: str | None
    error_code: int | None


@dataclass(slots=True, eq=False)
class Row:
    """One exchange that may have changed something.

    :ivar key: when it was asked; `due` when the broker came to look at it; `answer_key` its answer, None without one
    :ivar members: what the leader is told; `assignments` what it gives; `assignment` what the answer gives its member
    """

    api: str
    version: int
    key: Key
    due: Key
    answer_key: Key | None
    connection: str
    client_id: str | None
    host: str
    error: int | None
    member_id: str
    instance_id: str | None
    generation: int | None
    session_ms: int | None
    rebalance_ms: int | None
    reason: str | None
    protocol_type: str | None
    offers: tuple[Offer, ...]
    given_id: str
    new_generation: int | None
    assignor: str | None
    leader_id: str | None
    members: dict[str, Told]
    assignments: dict[str, frozenset[Partition]]
    assignment: frozenset[Partition] | None
    leavers: tuple[Leaver, ...]
    topics: tuple[str, ...] | None
    topic_regex: str | None
    owned: frozenset[Partition] | None
    skip_assignment: bool

    @property
    def who(self) -> str:
        """The member id that it is about, as far as it is known: the answer's, else the request's."""
        return self.given_id or self.member_id

    @property
    def subscribed(self) -> tuple[str, ...]:
        """All topics of its offers."""
        return tuple(sorted({topic for offer in self.offers for topic in offer.topics or ()}))

    @property
    def assignors(self) -> list[str]:
        """The names of its offers, best first."""
        return [offer.assignor for offer in self.offers]


class Sighting(NamedTuple):
    """What a client learnt of the size of a topic."""

    key: Key
    client_id: str | None
    connection: str
    topic: str
    partitions: int


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

    :ivar modern: members of KIP-848 among them
    :ivar versions: member, api and the highest version of it that the member sent
    :ivar calm: times of heartbeats of the classic protocol that were answered without error, sorted
    """

    def __init__(self, table: pa.Table) -> None:
        heard = table.filter(pc.not_equal(table["member_id"], ""))
        heard = heard.sort_by([("member_id", "ascending"), *_ORDER])
        whole = pc.is_valid(heard["error_code"])
        self._answered = _Times(heard.filter(whole))
        self._faint = _Times(heard.filter(pc.invert(whole)))
        beats = table.filter(pc.and_(pc.equal(table["api"], "Heartbeat"), pc.is_valid(table["error_code"])))
        self.calm = _longs(beats.sort_by(_ORDER)["asked_ns"])
        self.first = _first_signs(heard)
        self.connections = _connections(heard)
        self.versions = _highest(heard)
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

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self._at = _longs(table["asked_ns"])
        self._slices: dict[str, tuple[int, int]] = {}
        runs = pc.run_end_encode(table["member_id"].combine_chunks())
        start = 0
        for member_id, end in _runs(runs):
            self._slices[member_id] = (start, end)
            start = end

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
        return (self._at[at - 1], row["source"][0].as_py(), row["seq"][0].as_py())

    def any(self, member_id: str, from_ns: int, to_ns: int) -> bool:
        found = self.next(member_id, from_ns)
        return found is not None and found < to_ns

    def gaps(self, least_ns: int) -> dict[str, list[int]]:
        """The rows at both sides of a wait of at least so long, by member."""
        table = self._table
        if len(table) < 2:
            return {}
        at, who = table["asked_ns"].combine_chunks(), table["member_id"].combine_chunks()
        wide = pc.greater(pc.subtract(at[1:], at[:-1]), min(least_ns, _LATER))
        same = pc.equal(who[1:], who[:-1])
        found: dict[str, list[int]] = {}
        for index in pc.indices_nonzero(pc.and_(wide, same)).to_pylist():
            found.setdefault(who[index].as_py(), []).extend((self._at[index], self._at[index + 1]))
        return found


@dataclass(slots=True)
class Rows:
    """All exchanges of a group.

    :ivar rows: those that may have changed something, in order of time
    :ivar signs: the others
    :ivar commits: OffsetCommit requests, as columns, in order of time
    :ivar sightings: sizes of topics, in order of time
    :ivar closed: connections that were closed: when, by connection
    :ivar answered: when each connection had its first answer and its last
    :ivar horizon_ns: the last moment of the source that is known of
    """

    group_id: str
    rows: list[Row]
    signs: Signs
    commits: pa.Table
    sightings: list[Sighting]
    closed: dict[str, int]
    first_ns: int
    last_ns: int
    horizon_ns: int
    count: int
    commit_count: int
    unplaced: int = 0
    answered: dict[str, tuple[int, int]] = field(default_factory=dict)


_ORDER = [("asked_ns", "ascending"), ("source", "ascending"), ("seq", "ascending"), ("connection", "ascending")]
_SIGN_COLUMNS = [
    "api", "api_version", "source", "seq", "connection", "client_id", "client_host", "asked_ns", "answered_ns",
    "error_code", "member_id", "instance_id", "generation_id",
]  # fmt: skip
_COMMIT_COLUMNS = ["source", "seq", "connection", "asked_ns", "error_code", "member_id", "offsets"]


def read_rows(exchanges: pa.Table, topics: pa.Table) -> Rows:
    """Part the exchanges of one group.

    :param exchanges: of the schema of `model.Exchange`
    :param topics: of the schema of `model.TopicSighting`
    """
    placed = exchanges.filter(pc.is_valid(exchanges["asked_ns"]))
    for name, nothing in (("api", ""), ("source", ""), ("seq", 0), ("connection", ""), ("member_id", "")):
        filled = pc.fill_null(placed[name], nothing)
        placed = placed.set_column(placed.column_names.index(name), name, filled)
    calm = pc.fill_null(_is_calm(placed), False)
    bulk = placed.filter(calm)
    rows = [_row(item) for item in placed.filter(pc.invert(calm)).sort_by(_ORDER).to_pylist()]
    _place(rows)
    times = [value for name in ("asked_ns", "answered_ns") for value in _bounds(placed[name])]
    sightings, closed, seen = _read_topics(topics)
    groups = pc.drop_null(exchanges["group_id"])
    commits = placed.filter(pc.equal(placed["api"], "OffsetCommit")).select(_COMMIT_COLUMNS).sort_by(_ORDER)
    return Rows(
        group_id=groups[0].as_py() if len(groups) else "",
        rows=rows,
        signs=Signs(bulk.select(_SIGN_COLUMNS)),
        commits=commits,
        sightings=sightings,
        closed=closed,
        first_ns=min(times, default=0),
        last_ns=max(times, default=0),
        horizon_ns=max([*times, *seen], default=0),
        count=len(exchanges),
        commit_count=len(commits),
        unplaced=len(exchanges) - len(placed),
        answered=_spans(placed),
    )


def _is_calm(table: pa.Table) -> pa.Array:
    """Heartbeats and commits that change nothing, and those of which it is not known whether they do."""
    well = pc.fill_null(pc.equal(table["error_code"], 0), True)
    classic = pc.is_in(table["api"], value_set=pa.array([*_CALM_APIS, "OffsetFetch"]))
    said = [table[name] for name in ("assignment", "owned", "topics", "topic_regex")]
    silent = pc.is_null(said[0])
    for column in said[1:]:
        silent = pc.and_(silent, pc.is_null(column))
    same = pc.fill_null(pc.equal(table["generation_id"], table["new_generation_id"]), True)
    modern = pc.and_(pc.equal(table["api"], "ConsumerGroupHeartbeat"), pc.and_(silent, same))
    modern = pc.and_(modern, pc.fill_null(pc.greater(table["generation_id"], 0), False))
    return pc.and_(well, pc.or_(classic, modern))


def _row(item: dict[str, Any]) -> Row:
    key = (item["asked_ns"], item["source"], item["seq"])
    answered = item["answered_ns"]
    answer = None
    if answered is not None:
        seq = item["answer_seq"]
        answer = (max(answered, key[0]), item["source"], _LATER if seq is None else seq)
    return Row(
        api=item["api"],
        version=item["api_version"] or 0,
        key=key,
        due=key,
        answer_key=answer,
        connection=item["connection"],
        client_id=item["client_id"],
        host=item["client_host"] or "",
        error=None if answer is None else item["error_code"],
        member_id=item["member_id"],
        instance_id=item["instance_id"],
        generation=item["generation_id"],
        session_ms=item["session_timeout_ms"],
        rebalance_ms=item["rebalance_timeout_ms"],
        reason=item["reason"] or None,
        protocol_type=item["protocol_type"],
        offers=tuple(_offer(offered) for offered in item["offered"] or () if offered is not None),
        given_id=item["given_member_id"] or "",
        new_generation=item["new_generation_id"],
        assignor=item["assignor"],
        leader_id=item["leader_id"],
        members={told["member_id"]: _told(told) for told in item["members"] or () if told and told["member_id"]},
        assignments={
            to["member_id"]: _partitions(to["partitions"]) or frozenset()
            for to in item["assignments"] or ()
            if to and to["member_id"] is not None
        },
        assignment=_partitions(item["assignment"]),
        leavers=tuple(
            Leaver(left["member_id"] or "", left["instance_id"], left["reason"] or None, left["error_code"])
            for left in item["departures"] or ()
            if left is not None
        ),
        topics=_names(item["topics"]),
        topic_regex=item["topic_regex"] or None,
        owned=_partitions(item["owned"]),
        skip_assignment=bool(item["skip_assignment"]),
    )


def _offer(item: dict[str, Any]) -> Offer:
    subscription = item["subscription"] or {}
    return Offer(
        item["assignor"] or "",
        _names(subscription.get("topics")),
        _partitions(subscription.get("owned")),
        subscription.get("metadata") or b"",
    )


def _told(item: dict[str, Any]) -> Told:
    subscription = item["subscription"] or {}
    return Told(item["instance_id"], _names(subscription.get("topics")), _partitions(subscription.get("owned")))


def _names(items: Sequence[str | None] | None) -> tuple[str, ...] | None:
    return None if items is None else tuple(sorted(name for name in items if name is not None))


def _partitions(items: Sequence[dict[str, Any] | None] | None) -> frozenset[Partition] | None:
    if items is None:
        return None
    return frozenset(
        (entry["topic"] or "", number)
        for entry in items
        if entry is not None
        for number in entry["partitions"] or ()
        if number is not None
    )


def _place(rows: list[Row]) -> None:
    """Set `due`: a request waits for the answer to the one before it on its connection."""
    free: dict[tuple[str, str], Key] = {}
    for row in rows:
        place = (row.key[1], row.connection)
        row.due = max(row.key, free.get(place, row.key))
        if row.answer_key is not None:
            row.due = min(row.due, row.answer_key)
            free[place] = max(row.answer_key, row.due)


def _read_topics(topics: pa.Table) -> tuple[list[Sighting], dict[str, int], list[int]]:
    sightings, closed, seen = [], {}, []
    order = [("time_ns", "ascending"), ("source", "ascending"), ("connection", "ascending"), ("topic", "ascending")]
    for number, item in enumerate(topics.sort_by([*order, ("partitions", "ascending")]).to_pylist()):
        time_ns = item["time_ns"]
        if time_ns is None:
            continue
        seen.append(time_ns)
        if not item["topic"]:
            closed[item["connection"] or ""] = time_ns
        elif item["partitions"] is not None:
            key = (time_ns, item["source"] or "", number)
            place = item["connection"] or ""
            sightings.append(Sighting(key, item["client_id"], place, item["topic"], item["partitions"]))
    return sightings, closed, seen


def _first_signs(heard: pa.Table) -> dict[str, FirstSign]:
    """By member id, in order of time."""
    found = {}
    runs = pc.run_end_encode(heard["member_id"].combine_chunks()) if len(heard) else None
    start = 0
    for member_id, end in [] if runs is None else _runs(runs):
        item = heard.slice(start, 1).to_pylist()[0]
        found[member_id] = FirstSign(
            item["asked_ns"], item["generation_id"], item["instance_id"], item["client_id"],
            item["client_host"] or "", item["source"], item["seq"],
        )  # fmt: skip
        start = end
    return dict(sorted(found.items(), key=lambda entry: (entry[1].time_ns, entry[1].source, entry[1].seq)))


def _connections(heard: pa.Table) -> dict[str, set[str]]:
    pairs = heard.group_by(["member_id", "connection"]).aggregate([]) if len(heard) else heard
    found: dict[str, set[str]] = {}
    for member_id, place in zip(pairs["member_id"].to_pylist(), pairs["connection"].to_pylist(), strict=True):
        found.setdefault(member_id, set()).add(place)
    return found


def _spans(placed: pa.Table) -> dict[str, tuple[int, int]]:
    answered = placed.filter(pc.is_valid(placed["answered_ns"])).select(["connection", "answered_ns"])
    if not len(answered):
        return {}
    ends = answered.group_by("connection").aggregate([("answered_ns", "min"), ("answered_ns", "max")]).to_pylist()
    return {row["connection"]: (row["answered_ns_min"], row["answered_ns_max"]) for row in ends}


def _highest(heard: pa.Table) -> list[tuple[str, str, int]]:
    if not len(heard):
        return []
    counted = heard.group_by(["member_id", "api"]).aggregate([("api_version", "max")]).to_pylist()
    return sorted((row["member_id"], row["api"], row["api_version_max"] or 0) for row in counted)


def _runs(runs: Any) -> Iterable[tuple[str, int]]:
    arrays = runs.chunks if isinstance(runs, pa.ChunkedArray) else [runs]
    for array in arrays:
        yield from zip(array.values.to_pylist(), array.run_ends.to_pylist(), strict=True)


def _longs(column: pa.ChunkedArray) -> Any:
    """An int64 column without nulls as a sequence, without copying."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # no chunks at all
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if not len(array):
        return memoryview(b"").cast("q")
    return memoryview(array.buffers()[1]).cast("q")[array.offset : array.offset + len(array)]


def _bounds(column: pa.ChunkedArray) -> list[int]:
    if not len(column) or column.null_count == len(column):
        return []
    bounds = pc.min_max(column).as_py()
    return [bounds["min"], bounds["max"]]


def first_key(time_ns: int) -> Key:
    """Before everything at that time."""
    return (time_ns, "", -1)


def last_key(time_ns: int) -> Key:
    """After everything at that time."""
    return (time_ns, "\U0010ffff", _LATER)
