"""The exchanges of one group, split by weight: requests that may change the group as objects, heartbeats as columns.

Laws:

* The order and the chunks of the input have no effect: requests are sorted by time, source and frame number.
* A heartbeat or commit that succeeded, or has no response, never becomes an object: a capture holds millions of them.
* Nothing raises over the content of a row. A null where the protocol has a value reads as empty or 0. A row without
  the time of its request has no place in the order; it is counted in `GroupTraffic.unplaced`.
* A broker reads the next request of a connection when it has answered the one before: that is `GroupRequest.due`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.forensics.coded import coded, in_order, names_of, ranked, whole
from kcoord_wire.forensics.model import EPOCH_APIS, Sighting, SightingKind
from kcoord_wire.forensics.wire.links import ClientErrors, Fetched, Link, Links, TopicSize, TopicSizes
from kcoord_wire.forensics.wire.signs import (
    UNKNOWN_SEQ,
    Ahead,
    Heartbeats,
    Moment,
    Service,
    answer_spans,
    distinct,
)
from kcoord_wire.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from kcoord_wire.forensics.wire.joins import Join

Partition = tuple[str, int]
"""Topic and partition number."""

_NO_FRAME: Final = -1  # a size was known before a frame of the same time, however many sightings there are
_AT_ONCE: Final = 1 << 10  # rows that are dictionaries at a time
_QUIET_APIS: Final = ["Heartbeat", "OffsetCommit", "OffsetFetch"]
_ORDER: Final = ("asked_ns", "source", "seq", "connection")
_SIGHTING_ORDER: Final = [
    (name, "ascending") for name in ("time_ns", "source", "connection", "kind", "topic", "partitions", "partition")
]
_OF_LINKS: Final = ("opened", "closed", "reset", "refused", "resent", "hole")
_LINK_COLUMNS: Final = ("time_ns", "kind", "connection", "client_id", "by", "text", "since_ns", "source")
_SIZE_COLUMNS: Final = ("time_ns", "source", "client_id", "connection", "topic", "partitions")
_OFFSET_COLUMNS: Final = [
    "asked_ns",
    "answered_ns",
    "generation_id",
    "offsets",
    "member_id",
    "client_id",
    "client_host",
]
_FETCHED_COLUMNS: Final = [
    *("time_ns", "source", "connection", "client_id", "topic", "partition", "end_offset", "start_offset"),
    *("fetch_offset", "api", "error_code", "size"),
]
_PLACES: Final = ["source", "connection"]
_DEFAULTS: Final = (("api", ""), ("source", ""), ("seq", 0), ("connection", ""), ("member_id", ""))


class OfferedAssignor(NamedTuple):
    """An assignor that a member offers, with its subscription.

    :ivar topics: None if the blob is not a consumer's subscription
    :ivar owned: the partitions that the member says it owns; None if the blob has no such field
    """

    assignor: str
    topics: tuple[str, ...] | None
    owned: frozenset[Partition] | None
    metadata: bytes


class ListedMember(NamedTuple):
    """A member in the list that the leader receives."""

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
class GroupRequest:
    """A request with its response that may have changed the group.

    :ivar asked: when the request was complete
    :ivar due: when the broker came to read it
    :ivar answered: when the response was sent; None without one
    :ivar members: the members that a JoinGroup response lists for the leader
    :ivar assignments: what a leader's SyncGroup request assigns, by member
    :ivar assignment: what the response assigns to the sender
    :ivar software: of the client, as its connection states it (KIP-511)
    :ivar join: the completed join that a JoinGroup or SyncGroup request belongs to; `find_joins` sets it
    :ivar granted: what a successful SyncGroup brought its sender; `find_joins` sets it
    """

    api: str
    version: int
    asked: Moment
    due: Moment
    answered: Moment | None
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
    offers: tuple[OfferedAssignor, ...]
    given_id: str
    new_generation: int | None
    assignor: str | None
    leader_id: str | None
    members: dict[str, ListedMember]
    assignments: dict[str, frozenset[Partition]]
    assignment: frozenset[Partition] | None
    leavers: tuple[Leaver, ...]
    topics: tuple[str, ...] | None
    topic_regex: str | None
    owned: frozenset[Partition] | None
    software: str | None
    join: Join | None = None
    granted: frozenset[Partition] | None = None

    @property
    def who(self) -> str:
        """The member id as far as it is known: the response's, else the request's."""
        return self.given_id or self.member_id

    @property
    def client(self) -> tuple[str | None, str]:
        """Client id and host, which stay the same when the member id changes."""
        return (self.client_id, self.host)

    @property
    def is_late(self) -> bool:
        """Whether a JoinGroup was read after its join was complete, and answered at once."""
        return self.join is not None and self.join.joined is not None and self.due > self.join.joined

    @property
    def subscribed(self) -> tuple[str, ...]:
        return tuple(sorted({topic for offer in self.offers for topic in offer.topics or ()}))

    @property
    def assignors(self) -> list[str]:
        """The names of its offers, the preferred one first."""
        return [offer.assignor for offer in self.offers]

    @property
    def subscription(self) -> tuple[tuple[str, bytes], ...]:
        """Its offers as the coordinator compares them, byte by byte."""
        return tuple((offer.assignor, offer.metadata) for offer in self.offers)

    @property
    def named(self) -> set[str]:
        """All member ids in the exchange."""
        return {self.member_id, self.given_id, *(leaver.member_id for leaver in self.leavers)} - {""}


@dataclass(frozen=True, slots=True)
class Sightings:
    """What a capture shows outside groups; all groups of an analysis share it.

    :ivar sizes: sizes of topics
    :ivar links: what happened to connections
    :ivar fetched: what Fetch and ListOffsets show
    :ivar errors: what clients were refused
    :ivar ends: the last time of each source in the table, 0 for none
    :ivar lasts: the same of all but `fetched`
    """

    sizes: TopicSizes
    links: Links
    fetched: Fetched
    errors: ClientErrors
    ends: Mapping[str, int]
    lasts: Mapping[str, int]

    @property
    def last_ns(self) -> int:
        """The last time in the table, 0 for none; that of `fetched` does not count."""
        return max(self.lasts.values(), default=0)

    def by_clock(self, ahead: Ahead) -> Sightings:
        """Return the same by the clock of the reference."""
        ends, lasts = (
            {source: ns and ns - ahead.get(source, 0) for source, ns in each.items()}
            for each in (self.ends, self.lasts)
        )
        sizes, links, fetched = self.sizes.by_clock(ahead), self.links.by_clock(ahead), self.fetched.by_clock(ahead)
        return Sightings(sizes, links, fetched, self.errors.by_clock(ahead), ends, lasts)


@dataclass
class GroupTraffic:
    """All exchanges of a group.

    :ivar requests: those that may have changed something, in order of time
    :ivar heartbeats: the others
    :ivar service: when members were answered
    :ivar commits: OffsetCommit requests, as columns (`_OFFSET_COLUMNS`), in order of time
    :ivar positions: answered OffsetFetch requests, in the same columns
    :ivar fetched: what Fetch and ListOffsets show, those of other groups included, as the next two
    :ivar sizes: sizes of topics
    :ivar links: what happened to connections
    :ivar answered_ns: times of the first and the last response on each connection
    :ivar horizon_ns: the last time in the source
    :ivar covered_ns: where there are several sources, until when those that show a member go on, by member id
    :ivar unplaced: exchanges without the time of their request
    """

    group_id: str
    requests: list[GroupRequest]
    heartbeats: Heartbeats
    service: Service
    commits: pa.Table
    positions: pa.Table
    fetched: Fetched
    sizes: TopicSizes
    links: Links
    first_ns: int
    last_ns: int
    horizon_ns: int
    count: int
    unplaced: int
    answered_ns: dict[str, tuple[int, int]] = field(default_factory=dict)
    covered_ns: dict[str, int] = field(default_factory=dict)

    def seen_until(self, member_id: str) -> int:
        """Until when the source would show what a member sends: the capture of its host may end before the others."""
        return self.covered_ns.get(member_id, self.horizon_ns)

    @cached_property
    def names(self) -> set[str]:
        """The member ids under which something was sent or asked."""
        asked = {name for request in self.requests for name in request.named}
        return asked | {member_id for member_id, _, _ in self.heartbeats.versions}


def read_traffic(exchanges: pa.Table, topics: Sightings) -> GroupTraffic:
    """Split the exchanges of one group.

    :param exchanges: a table of `model.Exchange`
    """
    placed = exchanges = coded(exchanges)
    if exchanges["asked_ns"].null_count:
        placed = exchanges.filter(pc.is_valid(exchanges["asked_ns"]))
    for name, default in _DEFAULTS:
        if placed[name].null_count:
            placed = placed.set_column(placed.column_names.index(name), name, _filled(placed[name], default))
    quiet = pc.fill_null(_is_quiet(placed), False)
    requests = _requests(_in_order(placed, pc.invert(quiet)))
    _set_due(requests)
    times = [value for name in ("asked_ns", "answered_ns") for value in _bounds(placed[name])]
    groups = pc.drop_null(pc.unique(exchanges["group_id"]))
    return GroupTraffic(
        group_id=groups[0].as_py() if len(groups) else "",
        requests=requests,
        heartbeats=Heartbeats(placed, quiet),
        service=Service(placed),
        commits=_with_offsets(placed, pc.equal(placed["api"], "OffsetCommit")),
        positions=_with_offsets(placed, _has_positions(placed)),
        fetched=topics.fetched,
        sizes=topics.sizes,
        links=topics.links,
        first_ns=min(times, default=0),
        last_ns=max(times, default=0),
        horizon_ns=max([*times, topics.last_ns]),
        count=len(exchanges),
        unplaced=len(exchanges) - len(placed),
        answered_ns=answer_spans(placed["answered_ns"], placed["connection"]),
        covered_ns=_covered(placed, topics.ends),
    )


def _covered(exchanges: pa.Table, sighted: Mapping[str, int]) -> dict[str, int]:
    """Return until when the sources that show a member go on; empty where there is one source.

    Sources that have a connection or a member in common are of one place, such as the files of a recording.

    :param sighted: see `Sightings.ends`
    """
    sources = names_of(exchanges["source"])
    if len(sources) <= 1:
        return {}
    anything = pc.is_valid(exchanges["source"])
    members = distinct(exchanges, pc.not_equal(exchanges["member_id"], ""), ["source", "member_id"])
    links = {(source, name.rpartition("#")[0]) for source, name in distinct(exchanges, anything, _PLACES)}
    known = (sighted, _last_times(exchanges, "asked_ns"), _last_times(exchanges, "answered_ns"))
    ends = {source: max(each.get(source, 0) for each in known) for source in sources}
    together = _together({*links, *members})
    found: dict[str, int] = {}
    for source, member_id in members:
        end_ns = max(ends[each] for each in ends if together[each] == together[source])
        found[member_id] = max(found.get(member_id, 0), end_ns)
    return found


def _last_times(rows: pa.Table, column: str) -> dict[str, int]:
    """Return the last time of each source, 0 for none."""
    sources = names_of(rows["source"])
    last = np.zeros(len(sources) + 1, np.int64)  # the last one is for rows without a source
    codes = pc.fill_null(whole(ranked(rows["source"], sources)), len(sources)).to_numpy()
    np.maximum.at(last, codes, pc.fill_null(whole(rows[column]), 0).to_numpy())
    return dict(zip(sources, last.tolist(), strict=False))


def _together(links: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return one name for all sources that lead to each other.

    :param links: sources, with what they show
    """
    of_thing: dict[str, set[str]] = {}
    for source, thing in links:
        of_thing.setdefault(thing, set()).add(source)
    chosen = {source: source for sources in of_thing.values() for source in sources}
    for sources in of_thing.values():
        names = {chosen[source] for source in sources}
        if len(names) == 1:
            continue
        first = min(names)
        for source, name in chosen.items():
            if name in names:
                chosen[source] = first
    return chosen


def _filled(column: pa.ChunkedArray, default: str | int) -> pa.ChunkedArray:
    filled = pc.fill_null(column, default)
    return filled.unify_dictionaries() if pa.types.is_dictionary(column.type) else filled


def _in_order(table: pa.Table, chosen: pa.ChunkedArray) -> pa.Table:
    """Return the chosen rows in order of time: a slice where they are one, as in a coded table."""
    rows = in_order(table, _ORDER, chosen)
    is_slice = len(rows) > 0 and bool((np.diff(rows) == 1).all())
    return table.slice(rows[0], len(rows)) if is_slice else table.take(pa.array(rows))


def _is_quiet(table: pa.Table) -> pa.Array:
    """Mark heartbeats and commits that change nothing, or have no response that says whether they do."""
    succeeded = pc.fill_null(pc.equal(table["error_code"], 0), True)
    classic = pc.is_in(table["api"], value_set=pa.array(_QUIET_APIS))
    silent = pc.is_null(table["assignment"])
    for name in ("owned", "topics", "topic_regex"):
        silent = pc.and_(silent, pc.is_null(table[name]))
    same_epoch = pc.fill_null(pc.equal(table["generation_id"], table["new_generation_id"]), True)
    modern = pc.and_(pc.is_in(table["api"], value_set=pa.array(list(EPOCH_APIS))), pc.and_(silent, same_epoch))
    modern = pc.and_(modern, pc.fill_null(pc.greater(table["generation_id"], 0), False))
    return pc.and_(succeeded, pc.or_(classic, modern))


def _has_positions(table: pa.Table) -> pa.Array:
    """Mark OffsetFetch requests that were answered."""
    return pc.and_(pc.equal(table["api"], "OffsetFetch"), pc.is_valid(table["answered_ns"]))


def _with_offsets(table: pa.Table, chosen: pa.ChunkedArray) -> pa.Table:
    """Return the chosen rows with what is read of commits, in order of time; names of members and clients as codes."""
    return _in_order(table.select([*_OFFSET_COLUMNS, *_ORDER[1:]]), chosen).select(_OFFSET_COLUMNS)


# ---- one request


def _requests(table: pa.Table) -> list[GroupRequest]:
    """Return the rows of a table as objects, which share equal strings."""
    known: dict[str, str] = {}
    found = []
    for batch in table.to_batches(_AT_ONCE):
        for item in batch.to_pylist():
            item |= {name: known.setdefault(text, text) for name, text in item.items() if isinstance(text, str)}
            found.append(_request(item))
    return found


def _request(item: dict[str, Any]) -> GroupRequest:
    asked = Moment(item["asked_ns"], item["source"], item["seq"])
    answered = _answered(item, asked)
    return GroupRequest(
        api=item["api"],
        version=item["api_version"] or 0,
        asked=asked,
        due=asked,
        answered=answered,
        connection=item["connection"],
        client_id=item["client_id"],
        host=item["client_host"] or "",
        error=None if answered is None else item["error_code"],
        member_id=item["member_id"],
        instance_id=item["instance_id"],
        generation=item["generation_id"],
        session_ms=item["session_timeout_ms"],
        rebalance_ms=item["rebalance_timeout_ms"],
        reason=item["reason"] or None,
        protocol_type=item["protocol_type"],
        offers=tuple(_offer(offered) for offered in _present(item["offered"])),
        given_id=item["given_member_id"] or "",
        new_generation=item["new_generation_id"],
        assignor=item["assignor"],
        leader_id=item["leader_id"],
        members={listed["member_id"]: _listed(listed) for listed in _present(item["members"]) if listed["member_id"]},
        assignments=_assignments(item["assignments"]),
        assignment=_partitions(item["assignment"]),
        leavers=tuple(
            Leaver(left["member_id"] or "", left["instance_id"], left["reason"] or None, left["error_code"])
            for left in _present(item["departures"])
        ),
        topics=_names(item["topics"]),
        topic_regex=item["topic_regex"] or None,
        owned=_partitions(item["owned"]),
        software=item["software"],
    )


def _answered(item: dict[str, Any], asked: Moment) -> Moment | None:
    time_ns, seq = item["answered_ns"], item["answer_seq"]
    if time_ns is None:
        return None
    return Moment(max(time_ns, asked.time_ns), asked.source, UNKNOWN_SEQ if seq is None else seq)


def _present(items: Sequence[dict[str, Any] | None] | None) -> Iterable[dict[str, Any]]:
    return (item for item in items or () if item is not None)


def _offer(item: dict[str, Any]) -> OfferedAssignor:
    subscription = item["subscription"] or {}
    return OfferedAssignor(
        item["assignor"] or "",
        _names(subscription.get("topics")),
        _partitions(subscription.get("owned")),
        subscription.get("metadata") or b"",
    )


def _listed(item: dict[str, Any]) -> ListedMember:
    subscription = item["subscription"] or {}
    return ListedMember(item["instance_id"], _names(subscription.get("topics")), _partitions(subscription.get("owned")))


def _assignments(items: Sequence[dict[str, Any] | None] | None) -> dict[str, frozenset[Partition]]:
    return {
        item["member_id"]: _partitions(item["partitions"]) or frozenset()
        for item in _present(items)
        if item["member_id"] is not None
    }


def _names(items: Sequence[str | None] | None) -> tuple[str, ...] | None:
    return None if items is None else tuple(sorted(name for name in items if name is not None))


def _partitions(items: Sequence[dict[str, Any] | None] | None) -> frozenset[Partition] | None:
    if items is None:
        return None
    return frozenset(
        (entry["topic"] or "", number)
        for entry in _present(items)
        for number in entry["partitions"] or ()
        if number is not None
    )


def _set_due(requests: list[GroupRequest]) -> None:
    """Set `due`: a request waits for the response to the one before it on its connection."""
    free: dict[tuple[str, str], Moment] = {}
    for request in requests:
        place = (request.asked.source, request.connection)
        request.due = max(request.asked, free.get(place, request.asked))
        if request.answered is not None:
            request.due = min(request.due, request.answered)
            free[place] = max(request.answered, request.due)


# ---- topics and connections


def read_sightings(topics: pa.Table) -> Sightings:
    """Read a table of `model.Sighting`. An analysis of many groups reads it once."""
    sizes, links = TopicSizes(), Links()
    topics = topics.sort_by(_SIGHTING_ORDER)
    is_fetched = pc.fill_null(pc.equal(topics["kind"], str(SightingKind.FETCHED)), False)
    fetched = topics.filter(is_fetched).select(_FETCHED_COLUMNS)
    for name in ("time_ns", "connection", "topic", "partition", "end_offset"):
        fetched = fetched.filter(pc.is_valid(fetched[name]))
    fetched = _with_names(fetched, topics)
    others = topics.filter(pc.and_(pc.invert(is_fetched), pc.is_valid(topics["time_ns"])))
    kinds = others["kind"]
    linked = others.filter(pc.is_in(kinds, pa.array(_OF_LINKS)))
    for order, (at_ns, kind, name, client_id, by, text, since_ns, source) in enumerate(_values(linked, _LINK_COLUMNS)):
        links.add(Link(at_ns, kind, name or "", client_id, by, text, since_ns, source or "", order))
    stated = pc.and_(pc.equal(kinds, str(SightingKind.TOPIC)), pc.is_valid(others["partitions"]))
    for time_ns, source, client_id, connection, topic, partitions in _values(others.filter(stated), _SIZE_COLUMNS):
        at = Moment(time_ns, source or "", _NO_FRAME)
        sizes.add(TopicSize(at, client_id, connection or "", topic or "", partitions))
    failed = others.filter(pc.equal(kinds, str(SightingKind.ERROR)))
    errors = [Sighting(**row) for row in failed.to_pylist()]
    forbidden = fetched.filter(pc.equal(fetched["error_code"], ErrorCode.TOPIC_AUTHORIZATION_FAILED.value))
    errors += [Sighting(kind=SightingKind.FETCHED, **row) for row in forbidden.to_pylist()]
    ends, lasts = (_last_times(each, "time_ns") for each in (topics, others))
    return Sightings(sizes, links, Fetched(fetched), ClientErrors(errors), ends, lasts)


def _values(rows: pa.Table, names: Sequence[str]) -> Iterable[tuple[Any, ...]]:
    """Return the rows as tuples of some columns."""
    return zip(*(rows[name].to_pylist() for name in names), strict=True)


def _with_names(fetched: pa.Table, topics: pa.Table) -> pa.Table:
    """Replace the topic ids (``id:``) in rows of FETCHED by names, where any row has the name."""
    named = topics.filter(pc.equal(topics["kind"], str(SightingKind.TOPIC)))
    ids = named.filter(pc.is_valid(named["topic_id"]))
    names = {f"id:{id_}": name for id_, name in zip(ids["topic_id"].to_pylist(), ids["topic"].to_pylist(), strict=True)}
    column = fetched["topic"].combine_chunks().dictionary_encode()
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    found = pa.array([names.get(name, name) for name in column.dictionary.to_pylist()], pa.string())
    return fetched.set_column(fetched.column_names.index("topic"), "topic", found.take(column.indices))


def _bounds(column: pa.ChunkedArray) -> list[int]:
    if column.null_count == len(column):
        return []
    bounds = pc.min_max(column).as_py()
    return [bounds["min"], bounds["max"]]
