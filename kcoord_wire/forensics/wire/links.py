"""What clients outside groups, and connections of any group, show: indexes that all groups of an analysis share.

A capture of a thousand groups has a hundred thousand links and as many sizes of topics: a group looks up those of its
own connections, hosts, brokers and topics. A walk over all of them for each group is quadratic.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.forensics.coded import RowsByName
from kcoord_wire.forensics.model import Sighting, SightingKind, broker_address, client_host
from kcoord_wire.forensics.wire.signs import NEVER_NS, Moment

Way = tuple[str, str]
"""A client's host and a broker's address."""

Client = tuple[str, str]
"""Client id and host; each is empty where it is not known."""

_ENDS: Final = frozenset({SightingKind.CLOSED, SightingKind.RESET})
T = TypeVar("T")

_IN_ORDER: Final = attrgetter("order")
_TIME: Final = attrgetter("time_ns")


def way_of(connection: str) -> Way:
    """Return between which host and broker a connection is."""
    return client_host(connection), broker_address(connection)


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


class Links:
    """What happened to connections; `add` in order of time.

    :ivar closed: when connections were closed, by connection
    :ivar opened: those that were made
    """

    def __init__(self) -> None:
        self.closed: dict[str, int] = {}
        self.opened = Ways()
        self._of: dict[str, list[Link]] = {}
        self._on: dict[Way, dict[str, list[Link]]] = {}
        self._to: dict[str, dict[str, list[Link]]] = {}
        self._from: dict[str, list[Way]] = {}
        self._derived: dict[tuple[Way, Callable[[Links, Way], Any]], Any] = {}

    def add(self, link: Link) -> None:
        """Add what happened next."""
        of = self._of.setdefault(link.connection, [])
        if link.kind in _ENDS:
            self.closed[link.connection] = link.time_ns
        elif link.kind == SightingKind.OPENED and all(each.kind != link.kind for each in of):
            self.opened.add(link.connection)
        of.append(link)
        way = way_of(link.connection)
        if way not in self._on:
            self._on[way] = {}
            self._from.setdefault(way[0], []).append(way)
        self._on[way].setdefault(link.kind, []).append(link)
        self._to.setdefault(way[1], {}).setdefault(link.kind, []).append(link)

    def of(self, connection: str) -> Collection[Link]:
        """Return what happened to a connection, in order."""
        return self._of.get(connection, ())

    def of_all(self, connections: Iterable[str]) -> list[Link]:
        """Return what happened to any of these connections, each given once, in order."""
        return sorted((link for name in connections for link in self.of(name)), key=_IN_ORDER)

    def on(self, way: Way, kind: SightingKind) -> list[Link]:
        """Return what happened between a host and a broker, in order; do not change it."""
        return self._on.get(way, {}).get(kind, [])

    def on_all(self, ways: Iterable[Way], *kinds: SightingKind) -> list[Link]:
        """Return the same of several kinds and ways, each given once."""
        return sorted((link for way in ways for kind in kinds for link in self.on(way, kind)), key=_IN_ORDER)

    def to(self, broker: str, kind: SightingKind, from_ns: int, to_ns: int) -> list[Link]:
        """Return what happened between any host and a broker in a time, its ends included."""
        links = self._to.get(broker, {}).get(kind, [])
        return links[bisect_left(links, from_ns, key=_TIME) : bisect_right(links, to_ns, key=_TIME)]

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
        opened = self.on(way, SightingKind.OPENED)
        at = bisect_right(opened, since_ns, key=_TIME)
        while at < len(opened) and opened[at].connection == connection:
            at += 1
        return opened[at].time_ns if at < len(opened) else NEVER_NS


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


class TopicSizes:
    """The sizes of topics; `add` in order of time."""

    def __init__(self) -> None:
        self._of: dict[str, list[tuple[int, TopicSize]]] = {}
        self._first: dict[tuple[str | None, str], Moment] = {}
        self._count = 0

    def __bool__(self) -> bool:
        return self._count > 0

    def add(self, size: TopicSize) -> None:
        """Add the next one."""
        self._of.setdefault(size.topic, []).append((self._count, size))
        self._first.setdefault(size.client, size.at)
        self._count += 1

    def of(self, topics: Iterable[str]) -> Iterator[TopicSize]:
        """Yield those of some topics, in order."""
        found = [each for topic in set(topics) for each in self._of.get(topic, ())]
        return (size for _, size in sorted(found, key=lambda each: each[0]))

    def first_of(self, client: tuple[str | None, str]) -> Moment | None:
        """Return when a client received one for the first time."""
        return self._first.get(client)


class ClientErrors:
    """The errors that clients were answered with.

    :ivar rows: of ERROR, and of FETCHED that an ACL refused
    """

    def __init__(self, rows: Iterable[Sighting] = ()) -> None:
        self.rows = list(rows)
        self._of: dict[Client, list[int]] = defaultdict(list)
        for index, row in enumerate(self.rows):
            self._of[row.client].append(index)

    def of(self, clients: Iterable[Client]) -> list[Sighting]:
        """Return those of some clients, in the order of `rows`."""
        found = (index for client in set(clients) for index in self._of.get(client, ()))
        return [self.rows[index] for index in sorted(found)]


class Fetched:
    """What Fetch and ListOffsets show.

    :param table: in order of time, as columns of `Sighting`; topics have their names
    """

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def of_topics(self, topics: Collection[str]) -> pa.Table:
        """Return the rows of some topics, in order of time."""
        return self._topics.of(self.table, topics)

    def on(self, connections: Iterable[str]) -> pa.Table:
        """Return the rows of Fetch on some connections, in order of time."""
        return self._connections.of(self._fetches, connections)

    @cached_property
    def ways(self) -> Ways:
        """The connections with rows of Fetch."""
        return Ways(self._connections.names)

    @cached_property
    def _fetches(self) -> pa.Table:
        return self.table.filter(pc.equal(self.table["api"], "Fetch"))

    @cached_property
    def _topics(self) -> RowsByName:
        return RowsByName(self.table["topic"])

    @cached_property
    def _connections(self) -> RowsByName:
        return RowsByName(self._fetches["connection"])
