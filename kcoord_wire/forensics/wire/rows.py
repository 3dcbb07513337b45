"""The exchanges of one group, parted by weight: what the protocol says, as objects; signs of life, as columns.

Laws:

* The order of the rows and their chunks have no effect: everything is sorted by time, source and number of the frame.
* A heartbeat or commit that went well, or has no answer, never becomes an object: millions of them are a few columns.
* Nothing here raises over what is in a row: a field that is null where none should be reads as empty or 0; a row
  without the time of its request cannot be placed and is counted in `Rows.unplaced`.
* A broker looks at a request when the one before it on the same connection is answered: `Row.due` is that moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.forensics.wire.heartbeats import Signs

__all__ = [
    "Key",
    "Leaver",
    "Offer",
    "Partition",
    "Row",
    "Rows",
    "Told",
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
_COMMIT_COLUMNS = ["source", "seq", "connection", "asked_ns", "error_code", "member_id", "offsets"]


def read_rows(exchanges: pa.Table, topics: pa.Table) -> Rows:
    """Part the exchanges of one group.

    :param exchanges: of the schema of `model.Exchange`
    :param topics: of the schema of `model.TopicSighting`
    """
    placed = exchanges
    if exchanges["asked_ns"].null_count:
        placed = exchanges.filter(pc.is_valid(exchanges["asked_ns"]))
    for name, nothing in (("api", ""), ("source", ""), ("seq", 0), ("connection", ""), ("member_id", "")):
        if placed[name].null_count:
            filled = pc.fill_null(placed[name], nothing)
            placed = placed.set_column(placed.column_names.index(name), name, filled)
    calm = pc.fill_null(_is_calm(placed), False)
    rows = [_row(item) for item in placed.filter(pc.invert(calm)).sort_by(_ORDER).to_pylist()]
    _place(rows)
    times = [value for name in ("asked_ns", "answered_ns") for value in _bounds(placed[name])]
    sightings, closed, seen = _read_topics(topics)
    groups = pc.drop_null(pc.unique(exchanges["group_id"]))
    commits = placed.select(_COMMIT_COLUMNS).filter(pc.equal(placed["api"], "OffsetCommit")).sort_by(_ORDER)
    return Rows(
        group_id=groups[0].as_py() if len(groups) else "",
        rows=rows,
        signs=Signs(placed, calm),
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
    classic = pc.is_in(table["api"], value_set=pa.array([*_CALM_APIS, "OffsetFetch"], table["api"].type))
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


_Told = tuple[list[Sighting], dict[str, int], list[int]]
_last_told: tuple[pa.Table, _Told] | None = None  # all groups of an analysis are given the same table


def _read_topics(topics: pa.Table) -> _Told:
    """Sightings, when connections were closed, and all times. Nobody changes them: they are read once a table."""
    global _last_told
    known = _last_told
    if known is None or known[0] is not topics:
        known = _last_told = (topics, _sort_topics(topics))
    return known[1]


def _sort_topics(topics: pa.Table) -> _Told:
    sightings: list[Sighting] = []
    closed: dict[str, int] = {}
    seen: list[int] = []
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


def _spans(placed: pa.Table) -> dict[str, tuple[int, int]]:
    answered = placed.select(["connection", "answered_ns"]).filter(pc.is_valid(placed["answered_ns"]))
    if not len(answered):
        return {}
    ends = answered.group_by("connection").aggregate([("answered_ns", "min"), ("answered_ns", "max")]).to_pylist()
    return {row["connection"]: (row["answered_ns_min"], row["answered_ns_max"]) for row in ends}


def _bounds(column: pa.ChunkedArray) -> list[int]:
    if not len(column) or column.null_count == len(column):
        return []
    bounds = pc.min_max(column).as_py()
    return [bounds["min"], bounds["max"]]


def last_key(time_ns: int) -> Key:
    """After everything at that time."""
    return (time_ns, "\U0010ffff", _LATER)
