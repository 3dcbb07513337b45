"""What clients outside groups, and connections of any group, show: indexes that all groups of an analysis share.

A capture of a thousand groups has a hundred thousand links and as many sizes of topics: a group looks up those of its
own connections, hosts, brokers and topics. A walk over all of them for each group is quadratic. Where clocks
of sources differ, a group has a view of each index (`by_clock`): what it looks up is shifted, not all that there is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from copy import copy
from dataclasses import replace
from functools import cached_property
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.forensics.coded import RowsByName, in_order
from kcoord_wire.forensics.model import Sighting, SightingKind, broker_address, client_host
from kcoord_wire.forensics.wire.signs import NEVER_NS, Ahead, Moment, shift

Way = tuple[str, str]
"""A client's host and a broker's address."""

Client = tuple[str, str]
"""Client id and host; each is empty where it is not known."""

_ENDS: Final = frozenset({SightingKind.CLOSED, SightingKind.RESET})
T = TypeVar("T")

IN_ORDER: Final = attrgetter("time_ns", "source", "order")
"""The order of links."""

_TIME: Final = attrgetter("time_ns")


def way_of(connection: str) -> Way:
    """Return between which host and broker a connection is."""
    return client_host(connection), broker_address(connection)


class _Index:
    """An index that groups share, whose times are by the clocks of the sources."""

    _ahead: Ahead = MappingProxyType({})

    def by_clock(self, ahead: Ahead) -> Self:
        """Return the same by the clock of the reference."""
        view = copy(self)
        view._ahead = ahead
        return view


class Link(NamedTuple):
    """Something that happened to a connection, or to an attempt to make one. The fields are those of `model.Sighting`.

    :ivar kind: OPENED, CLOSED, RESET, REFUSED, RESENT or HOLE
    :ivar order: its number among those that are added to `Links`
    """

    time_ns: int
    kind: str
    connection: str
    client_id: str | None
    by: str | None
    text: str | None
    since_ns: int | None
    source: str
    order: int


class Ways:
    """Names of connections by the client's host and the broker's address.

    :param names: each once
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._on: dict[Way, list[str]] = {}
        self._hosts: dict[str, list[str]] = {}
        self._brokers: dict[str, list[str]] = {}
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        """Add a connection."""
        host, broker = way = way_of(name)
        if way not in self._on:
            self._on[way] = []
            self._hosts.setdefault(broker, []).append(host)
            self._brokers.setdefault(host, []).append(broker)
        self._on[way].append(name)

    def on(self, way: Way) -> Collection[str]:
        """Return the connections between a host and a broker."""
        return self._on.get(way, ())

    def hosts(self, broker: str) -> Collection[str]:
        """Return the hosts with connections to a broker."""
        return self._hosts.get(broker, ())

    def brokers(self, host: str) -> Collection[str]:
        """Return the brokers with connections from a host."""
        return self._brokers.get(host, ())


class Links(_Index):
    """What happened to connections; `add` in order of time.

    :ivar opened: connections that were made
    :ivar show_ends: whether any was closed
    """

    def __init__(self) -> None:
        self.opened = Ways()
        self.show_ends = False
        self._of: dict[str, list[Link]] = {}
        self._on: dict[Way, dict[str, list[Link]]] = {}
        self._to: dict[str, dict[str, list[Link]]] = {}
        self._from: dict[str, list[Way]] = {}
        self._derived: dict[tuple[Way, Callable[[Links, Way], Any]], Any] = {}

    def add(self, link: Link) -> None:
        """Add what happened next."""
        of = self._of.setdefault(link.connection, [])
        if link.kind in _ENDS:
            self.show_ends = True
        elif link.kind == SightingKind.OPENED and all(each.kind != link.kind for each in of):
            self.opened.add(link.connection)
        of.append(link)
        way = way_of(link.connection)
        if way not in self._on:
            self._on[way] = {}
            self._from.setdefault(way[0], []).append(way)
        self._on[way].setdefault(link.kind, []).append(link)
        self._to.setdefault(way[1], {}).setdefault(link.kind, []).append(link)

    def by_clock(self, ahead: Ahead) -> Self:
        """Return the same by the clock of the reference; what is derived of it is its own."""
        view = super().by_clock(ahead)
        view._derived = {}
        return view

    def _by_clock(self, links: list[Link]) -> list[Link]:
        if not self._ahead:
            return links
        return sorted((link._replace(**_times(link, self._ahead)) for link in links), key=IN_ORDER)

    def of(self, connection: str) -> list[Link]:
        """Return what happened to a connection, in order; do not change it."""
        return self._by_clock(self._of.get(connection, []))

    def closed_ns(self, connection: str) -> int | None:
        """Return when a connection was closed."""
        return next((link.time_ns for link in reversed(self.of(connection)) if link.kind in _ENDS), None)

    def of_all(self, connections: Iterable[str]) -> list[Link]:
        """Return what happened to any of these connections, each given once, in order."""
        return sorted((link for name in connections for link in self.of(name)), key=IN_ORDER)

    def on(self, way: Way, kind: SightingKind) -> list[Link]:
        """Return what happened between a host and a broker, in order; do not change it."""
        return self._by_clock(self._on.get(way, {}).get(kind, []))

    def on_all(self, ways: Iterable[Way], *kinds: SightingKind) -> list[Link]:
        """Return the same of several kinds and ways, each given once."""
        return sorted((link for way in ways for kind in kinds for link in self.on(way, kind)), key=IN_ORDER)

    def to(self, broker: str, kind: SightingKind, from_ns: int, to_ns: int) -> list[Link]:
        """Return what happened between any host and a broker in a time, its ends included."""
        links = self._to.get(broker, {}).get(kind, [])
        if self._ahead:
            least_ns, most_ns = min(0, *self._ahead.values()), max(0, *self._ahead.values())
            links = self._by_clock(_between(links, from_ns + least_ns, to_ns + most_ns))
        return _between(links, from_ns, to_ns)

    def ways_from(self, host: str) -> Collection[Way]:
        """Return the ways from a host on which anything happened."""
        return self._from.get(host, ())

    def derived(self, way: Way, derive: Callable[[Links, Way], T]) -> T:
        """Return what a function makes of a way: called once, since groups of the same hosts ask for the same.

        :param derive: of a module; what it returns is shared
        """
        key = way, derive
        if key not in self._derived:
            self._derived[key] = derive(self, way)
        found: T = self._derived[key]
        return found

    def opened_after(self, way: Way, since_ns: int, connection: str) -> int:
        """Return when another connection of a way was made for the first time after a time; `NEVER_NS` for not."""
        opened = self.derived(way, _opened)
        at = bisect_right(opened, since_ns, key=_TIME)
        while at < len(opened) and opened[at].connection == connection:
            at += 1
        return opened[at].time_ns if at < len(opened) else NEVER_NS


def _opened(links: Links, way: Way) -> list[Link]:
    return links.on(way, SightingKind.OPENED)


def _between(links: list[Link], from_ns: int, to_ns: int) -> list[Link]:
    return links[bisect_left(links, from_ns, key=_TIME) : bisect_right(links, to_ns, key=_TIME)]


def _times(row: Link | Sighting, ahead: Ahead) -> dict[str, Any]:
    """Return the times of a row by the clock of the reference."""
    off_ns = ahead.get(row.source, 0)
    return {"time_ns": row.time_ns - off_ns, "since_ns": None if row.since_ns is None else row.since_ns - off_ns}


class TopicSize(NamedTuple):
    """The size of a topic as a Metadata response stated it."""

    at: Moment
    client_id: str | None
    connection: str
    topic: str
    partitions: int

    @property
    def client(self) -> tuple[str | None, str]:
        """Client id and host."""
        return self.client_id, client_host(self.connection)


class TopicSizes(_Index):
    """The sizes of topics; `add` in order of time."""

    def __init__(self) -> None:
        self._of: dict[str, list[tuple[int, TopicSize]]] = {}
        self._first: dict[tuple[str | None, str], dict[str, Moment]] = {}
        self._count = 0

    def __bool__(self) -> bool:
        return self._count > 0

    def add(self, size: TopicSize) -> None:
        """Add the next one."""
        self._of.setdefault(size.topic, []).append((self._count, size))
        self._first.setdefault(size.client, {}).setdefault(size.at.source, size.at)
        self._count += 1

    def _by_clock(self, at: Moment) -> Moment:
        return at._replace(time_ns=at.time_ns - self._ahead[at.source]) if at.source in self._ahead else at

    def of(self, topics: Iterable[str]) -> Iterator[TopicSize]:
        """Yield those of some topics, in order."""
        found = [each for topic in set(topics) for each in self._of.get(topic, ())]
        if self._ahead:
            found = [(number, size._replace(at=self._by_clock(size.at))) for number, size in found]
        return (size for _, size in sorted(found, key=lambda each: (each[1].at, each[0])))

    def first_of(self, client: tuple[str | None, str]) -> Moment | None:
        """Return when a client received one for the first time."""
        return min(map(self._by_clock, self._first.get(client, {}).values()), default=None)


class ClientErrors(_Index):
    """The errors that clients were answered with.

    :ivar rows: of ERROR, and of FETCHED that an ACL refused; by the clocks of their sources
    """

    def __init__(self, rows: Iterable[Sighting] = ()) -> None:
        self.rows = list(rows)
        self._of: dict[Client, list[int]] = defaultdict(list)
        for index, row in enumerate(self.rows):
            self._of[row.client].append(index)

    def of(self, clients: Iterable[Client]) -> list[Sighting]:
        """Return those of some clients, in the order of `rows`."""
        found = (index for client in set(clients) for index in self._of.get(client, ()))
        rows = [self.rows[index] for index in sorted(found)]
        if not self._ahead:
            return rows
        rows = [replace(row, **_times(row, self._ahead)) for row in rows]
        return sorted(rows, key=lambda row: (row.kind == SightingKind.FETCHED, row.time_ns, row.source))


class Fetched(_Index):
    """What Fetch and ListOffsets show.

    :param table: in order of time, as columns of `Sighting`; topics have their names
    """

    def __init__(self, table: pa.Table) -> None:
        self._of_topics = _Named(table, "topic")
        self._fetches = _Named(table.filter(pc.equal(table["api"], "Fetch")), "connection")

    def _by_clock(self, rows: pa.Table) -> pa.Table:
        if not self._ahead:
            return rows
        rows = shift(rows, self._ahead)
        return rows.take(pa.array(in_order(rows, ("time_ns", "source"))))

    def of_topics(self, topics: Collection[str]) -> pa.Table:
        """Return the rows of some topics, in order of time."""
        return self._by_clock(self._of_topics.rows(topics))

    def on(self, connections: Iterable[str]) -> pa.Table:
        """Return the rows of Fetch on some connections, in order of time."""
        return self._by_clock(self._fetches.rows(connections))

    @property
    def ways(self) -> Ways:
        """The connections with rows of Fetch."""
        return self._fetches.ways


class _Named:
    """Rows by the strings of a column, of which an index is made when the first are asked for."""

    def __init__(self, table: pa.Table, column: str) -> None:
        self._table, self._column = table, column

    def rows(self, names: Iterable[str]) -> pa.Table:
        return self._index.of(self._table, names)

    @cached_property
    def ways(self) -> Ways:
        """The strings, which are connections."""
        return Ways(self._index.names)

    @cached_property
    def _index(self) -> RowsByName:
        return RowsByName(self._table[self._column])
