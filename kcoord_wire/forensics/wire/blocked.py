"""Hosts that cannot connect to a broker although it answers others: a firewall or a route, neither broker nor process.

Laws:

* The host repeats its SYN, and nothing answers, not even with a reset: a broker that is down, or a port without one,
  resets the connection.
* Meanwhile the broker answered another host, a Fetch as well as a member's request, or let it connect: a machine that
  is off does not answer. So it may be the coordinator, or a leader of partitions only.
* The partitions that are not read meanwhile are those that members of the host hold, and that anyone had fetched from
  this broker; none where the host goes on fetching from it on a connection that it had.
* It lasts until the host can connect to the broker, or to the end of the source.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.forensics.model import Evidence, Outage, Ownership, SightingKind, client_host
from kcoord_wire.forensics.wire.signs import NS_PER_S, broker_address
from kcoord_wire.forensics.wire.traffic import GroupTraffic, Link
from kcoord_wire.protocol.wording import clock, first_of

if TYPE_CHECKING:
    from kcoord_wire.forensics.wire.trace import MemberTrace, RebalanceTrace

BLOCKED: Final = "host blocked"

_SYNS: Final = re.compile(r"no answer to (\d{1,9}) SYNs")
_ENOUGH_SYNS: Final = 3  # of all attempts: a SYN may be lost, two hardly
_CITED: Final = 4
_NO_FRAME: Final = -1


def blocked_hosts(
    traffic: GroupTraffic,
    lives: Iterable[MemberTrace],
    rebalances: Sequence[RebalanceTrace],
    ownership: Iterable[Ownership] = (),
) -> Iterator[Outage]:
    """Yield the outages of single hosts of the group's clients.

    :param lives: of all members
    :param rebalances: in order of their numbers
    :param ownership: of all partitions
    """
    ownership = list(ownership)
    lives = list(lives)
    hosts = {life.host for life in lives} | {client_host(name) for name in traffic.answered_ns}
    unanswered = [link for link in traffic.links if link.kind == SightingKind.REFUSED and _syns(link)]

    def way(link: Link) -> tuple[str, str]:
        return client_host(link.connection), broker_address(link.connection)

    for (host, broker), links in groupby(sorted(unanswered, key=lambda link: (way(link), link.time_ns)), key=way):
        for tries in _runs(traffic, host, broker, list(links)):
            if host in hosts and sum(map(_syns, tries)) >= _ENOUGH_SYNS and _is_alive(traffic, broker, tries):
                outage = _outage(traffic, tries, lives, rebalances)
                outage.text += _unread(traffic, host, outage, ownership)
                yield outage


def _syns(link: Link) -> int:
    found = _SYNS.match(link.text or "")
    return 0 if found is None else int(found[1])


def _opened(traffic: GroupTraffic, host: str, broker: str) -> list[int]:
    return [
        link.time_ns
        for link in traffic.links
        if link.kind == SightingKind.OPENED
        if client_host(link.connection) == host and broker_address(link.connection) == broker
    ]


def _runs(traffic: GroupTraffic, host: str, broker: str, links: list[Link]) -> Iterator[list[Link]]:
    """Yield the attempts between two connections that were made."""
    opened = _opened(traffic, host, broker)
    for _, run in groupby(links, key=lambda link: sum(at < link.time_ns for at in opened)):
        yield list(run)


def _until(traffic: GroupTraffic, tries: Sequence[Link]) -> int | None:
    host, broker = client_host(tries[-1].connection), broker_address(tries[-1].connection)
    return min((at for at in _opened(traffic, host, broker) if at > tries[-1].time_ns), default=None)


def _is_alive(traffic: GroupTraffic, broker: str, tries: Sequence[Link]) -> bool:
    """Whether the broker answered another host from the first attempt on."""
    host, from_ns = client_host(tries[0].connection), tries[0].time_ns
    to_ns = _until(traffic, tries) or traffic.horizon_ns

    def is_other(connection: str) -> bool:
        return broker_address(connection) == broker and client_host(connection) != host

    spans = (span for name, span in traffic.answered_ns.items() if is_other(name))
    if any(last_ns > from_ns and first_ns < to_ns for first_ns, last_ns in spans):
        return True
    if any(
        from_ns < link.time_ns < to_ns and link.kind == SightingKind.OPENED and is_other(link.connection)
        for link in traffic.links
    ):
        return True
    times = _fetched(traffic, is_other)["time_ns"]
    return pc.any(pc.and_(pc.greater(times, from_ns), pc.less(times, to_ns))).as_py() is True


def _fetched(traffic: GroupTraffic, chosen: Callable[[str], bool]) -> pa.Table:
    """Return what was fetched, on the connections that are chosen by name."""
    names = [name for name in pc.unique(traffic.fetched["connection"]).to_pylist() if chosen(name)]
    of_these = pc.is_in(traffic.fetched["connection"], value_set=pa.array(names, pa.string()))
    rows: pa.Table = traffic.fetched.filter(pc.and_(of_these, pc.equal(traffic.fetched["api"], "Fetch")))
    return rows


def _unread(traffic: GroupTraffic, host: str, outage: Outage, ownership: Iterable[Ownership]) -> str:
    """Return which partitions the host does not read meanwhile, and when they were fetched last."""
    until_ns = traffic.horizon_ns if outage.to_ns is None else outage.to_ns
    rows = _fetched(traffic, lambda name: broker_address(name) == outage.broker)
    led = {(row["topic"], row["partition"]) for row in rows.select(["topic", "partition"]).to_pylist()}
    own = _fetched(traffic, lambda name: (client_host(name), broker_address(name)) == (host, outage.broker))
    times = own["time_ns"].to_pylist()
    held = {
        (row.topic, row.partition)
        for row in ownership
        if row.member_id in outage.members
        if row.from_ns <= outage.from_ns and (row.to_ns is None or row.to_ns > outage.from_ns)
    }
    unread = [f"{topic}-{number}" for topic, number in sorted(held & led)]
    if not unread or any(outage.from_ns < at < until_ns for at in times):
        return ""
    last_ns = max((at for at in times if at <= outage.from_ns), default=None)
    since = "" if last_ns is None else f", since {clock(last_ns)} UTC"
    return f"; it does not read {first_of(unread)} meanwhile{since}"


def _outage(
    traffic: GroupTraffic, tries: Sequence[Link], lives: Iterable[MemberTrace], rebalances: Sequence[RebalanceTrace]
) -> Outage:
    host, broker = client_host(tries[0].connection), broker_address(tries[0].connection)
    from_ns, to_ns = tries[0].time_ns, _until(traffic, tries)
    until_ns = traffic.horizon_ns if to_ns is None else to_ns
    length = f"for {(until_ns - from_ns) / NS_PER_S:.1f} s" + (
        "" if to_ns is not None else ", to the end of the source"
    )
    members = sorted(
        life.member_id
        for life in lives
        if life.host == host and life.since.time_ns <= until_ns and (life.left is None or life.left.time_ns >= from_ns)
    )
    followed = (
        number
        for number, trace in enumerate(rebalances, 1)
        if trace.started.time_ns >= from_ns and trace.start.member is not None and trace.start.member.host == host
    )
    return Outage(
        group_id=traffic.group_id,
        kind=BLOCKED,
        from_ns=from_ns,
        to_ns=to_ns,
        broker=broker,
        members=members,
        text=f"{host} could not connect to {broker} {length} ({sum(map(_syns, tries)):,} SYNs without an answer), "
        "while the broker answered other hosts: a firewall or a route between them",
        rebalance=next(followed, None),
        evidence=[Evidence(link.time_ns, "", _NO_FRAME, f"{link.connection}: {link.text}") for link in tries[:_CITED]],
    )
