"""Hosts that a broker does not hear, or that do not hear it, although it serves others: a firewall, a route, a NAT.

Two things show it. A host repeats its SYN, and nothing answers, not even with a reset: a broker that is down, or a port
without one, resets the connection. Or bytes on a connection that was made are sent again and again, by either side,
because no acknowledgement arrives: the kernel acknowledges what comes for a process that is frozen, or busy.

Laws:

* Meanwhile the broker answered another host, a Fetch as well as a member's request, or let it connect, or what it sent
  itself was sent again: a machine that is off does neither. So it may be the coordinator, or a leader of partitions
  only. Where the source shows no other host of a broker, another one has to answer the host meanwhile, and that the
  machine of the broker may be off is said.
* What is answered near the ends of that time shows nothing: all hosts come back together from what was no host's alone.
* Brokers that a host does not reach at the same time are one outage. If none answers it, its own end may be the reason.
* The partitions that are not read meanwhile are those that members of the host hold, and that anyone had fetched from
  these brokers; none where the host goes on fetching from them on a connection that it had.
* It lasts until the bytes are acknowledged, until the broker answers the host on another connection, or the host can
  make one, or to the end of the source.
* Where the broker answers the host on other connections soon, or a connection had been idle for `_IDLE_NS` before and
  another could be made, only that connection is lost: what lies on the way had forgotten it. One that is answered
  again afterwards was not: its way loses packets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.coded import RowsByName
from kcoord_wire.forensics.model import (
    Evidence,
    Outage,
    Ownership,
    Rebalance,
    SightingKind,
    broker_address,
    client_host,
)
from kcoord_wire.forensics.wire.links import Fetched, Link, Links, Way, Ways
from kcoord_wire.forensics.wire.outages import SILENCE
from kcoord_wire.forensics.wire.signs import NEVER_NS, NS_PER_S
from kcoord_wire.forensics.wire.traffic import GroupTraffic, Partition
from kcoord_wire.protocol.wording import clock, counted, first_of, resent_in, syns_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kcoord_wire.forensics.wire.trace import MemberTrace

BLOCKED: Final = "host blocked"
FORGOTTEN: Final = "connection forgotten"

_ENOUGH_SYNS: Final = 3  # of all attempts: a SYN may be lost, two hardly
_LEAST_NS: Final = 3 * NS_PER_S  # of bytes that are sent again: four copies, whose timeouts double
_IDLE_NS: Final = 60 * NS_PER_S  # the least idle timeout of what keeps a table of connections; clouds have 240 or 350 s
_EDGE: Final = 0.1  # of the time, at either end of it
_SOON: Final = 0.4  # of the time of a connection; its timeouts double, so that it is not lost twice as long as its way
_NEAR_NS: Final = 60 * NS_PER_S  # within which a way that loses packets goes on losing them
_FOLLOWS_NS: Final = 60 * NS_PER_S  # within which the session of a member that is cut off has ended
_LOST: Final = frozenset({Cause.SESSION_EXPIRED, Cause.REBALANCE_TIMEOUT, Cause.SYNC_EXPIRED, Cause.OUTAGE})
_CITED: Final = 4
_NO_FRAME: Final = -1


class _Sign(NamedTuple):
    """A SYN without an answer, or bytes that were sent again and again.

    :ivar to_ns: until when at least; `NEVER_NS` for the end of the source
    :ivar times: how many SYNs, or copies
    :ivar quiet_ns: for how long the connection had carried nothing before
    """

    link: Link
    from_ns: int
    to_ns: int
    times: int
    quiet_ns: int = 0

    @property
    def is_syn(self) -> bool:
        return self.link.kind == SightingKind.REFUSED


@dataclass(slots=True)
class _Cut:
    """A time in which a host did not reach one broker, or several.

    :ivar is_forgotten: whether it was of connections alone, not of their way
    """

    host: str
    brokers: list[str]
    from_ns: int
    to_ns: int
    signs: list[_Sign] = field(default_factory=list)
    is_forgotten: bool = False

    @property
    def broken(self) -> list[_Sign]:
        """The signs that are no SYNs."""
        return [sign for sign in self.signs if not sign.is_syn]

    def is_sent_again_by(self, side: str) -> bool:
        """Whether that side, ``client`` or ``broker``, sent anything again; a SYN is the client's."""
        return any(side == ("client" if sign.is_syn else sign.link.by) for sign in self.signs)

    @property
    def is_enough(self) -> bool:
        syns = sum(sign.times for sign in self.signs if sign.is_syn)
        return syns >= _ENOUGH_SYNS or (bool(self.broken) and self.to_ns - self.from_ns >= _LEAST_NS)

    def carries(self, connection: str, at_ns: int) -> bool:
        """Whether a connection is none of those on which nothing arrives at a time."""
        return not any(sign.link.connection == connection and at_ns <= sign.link.time_ns for sign in self.signs)


def blocked_hosts(
    traffic: GroupTraffic,
    lives: Iterable[MemberTrace],
    rebalances: Sequence[Rebalance],
    ownership: Iterable[Ownership] = (),
) -> Iterator[Outage]:
    """Yield the outages of single hosts of the group's clients.

    :param lives: of all members
    :param rebalances: of the group
    :param ownership: of all partitions
    """
    lives = list(lives)
    hosts = {life.host for life in lives} | {client_host(name) for name in traffic.answered_ns}
    ways = [way for host in sorted(hosts) for way in traffic.links.ways_from(host)]
    runs = [cut for way in ways for cut in _runs(way, _signs(traffic, way))]
    if runs:
        answers = _Answers(traffic)
        cuts = [answers.until_answered(cut) for cut in runs]
        cuts = [cut for cut in cuts if cut.is_enough and answers.is_alive(cut)]
        for cut in _together(cuts):
            yield _outage(traffic, answers, cut, lives, rebalances, list(ownership))


def explains(blocked: Outage, silence: Outage, traffic: GroupTraffic) -> bool:
    """Whether nobody was answered for a time because the only members, or all of the source, were of a host cut off."""
    until_ns = NEVER_NS if blocked.to_ns is None else blocked.to_ns + NS_PER_S
    is_within = blocked.from_ns - NS_PER_S <= silence.from_ns and (silence.to_ns or NEVER_NS) <= until_ns
    is_alone = len({client_host(name) for name in traffic.service.spans}) == 1
    return silence.kind == SILENCE and is_within and (is_alone or set(silence.members) <= set(blocked.members))


def _signs(traffic: GroupTraffic, way: Way) -> Iterator[_Sign]:
    """Yield what shows that nothing came through between a host and a broker."""
    for sign, opened_ns in traffic.links.derived(way, _read_signs):
        lasts = not sign.is_syn and sign.link.time_ns >= traffic.horizon_ns
        yield sign._replace(to_ns=opened_ns) if lasts else sign


def _read_signs(links: Links, way: Way) -> list[tuple[_Sign, int]]:
    """Return the same as if the source went on, and when another connection was made after each began."""
    found = []
    for link in links.on(way, SightingKind.REFUSED):
        if times := syns_in(link.text or ""):
            since_ns = link.time_ns if link.since_ns is None else link.since_ns
            opened_ns = links.opened_after(way, since_ns, link.connection)
            found.append((_Sign(link, link.time_ns, opened_ns, times), opened_ns))
    for link in links.on(way, SightingKind.RESENT):
        if link.since_ns is not None and (said := resent_in(link.text or "")):
            opened_ns = links.opened_after(way, link.since_ns, link.connection)
            times, quiet_s = said
            to_ns = min(link.time_ns, opened_ns)
            found.append((_Sign(link, link.since_ns, to_ns, times, quiet_s * NS_PER_S), opened_ns))
    return found


def _runs(way: tuple[str, str], signs: Iterable[_Sign]) -> Iterator[_Cut]:
    """Yield the times that signs of one host and broker make up together."""
    cut: _Cut | None = None
    for sign in sorted(signs, key=lambda sign: (sign.from_ns, sign.link.connection, sign.link.order)):
        if cut is None or sign.from_ns > cut.to_ns:
            if cut is not None:
                yield cut
            cut = _Cut(way[0], [way[1]], sign.from_ns, sign.to_ns)
        cut.to_ns = max(cut.to_ns, sign.to_ns)
        cut.signs.append(sign)
    if cut is not None:
        yield cut


def _together(cuts: Iterable[_Cut]) -> list[_Cut]:
    """Merge what a host did not reach at the same time."""
    found: list[_Cut] = []
    for cut in sorted(cuts, key=lambda cut: (cut.host, cut.from_ns, cut.brokers)):
        last = found[-1] if found else None
        if last is None or last.host != cut.host or cut.from_ns > last.to_ns or last.is_forgotten or cut.is_forgotten:
            found.append(cut)
            continue
        last.brokers += cut.brokers
        last.signs += cut.signs
        last.to_ns = max(last.to_ns, cut.to_ns)
    return found


class _Answers:
    """When brokers answered hosts, and on which connection: members of the group, any Fetch, and who connected."""

    def __init__(self, traffic: GroupTraffic) -> None:
        self._links, self._fetched = traffic.links, traffic.fetched
        self._horizon_ns = traffic.horizon_ns
        self._service_ns, connections = traffic.service.answers
        self._of_service = RowsByName(connections)
        self._ways = Ways(self._of_service.names), traffic.fetched.ways, traffic.links.opened
        self._times: dict[str, NDArray[np.int64]] = {}

    def _on(self, way: Way) -> Iterator[str]:
        """Yield the connections of a way that were answered."""
        return (name for ways in self._ways for name in ways.on(way))

    def _others(self, broker: str, host: str) -> Iterator[Way]:
        """Yield the ways to a broker from other hosts, some of them several times."""
        return ((other, broker) for ways in self._ways for other in ways.hosts(broker) if other != host)

    def _times_of(self, name: str) -> NDArray[np.int64]:
        """Return when a connection was answered, in order."""
        if name not in self._times:
            opened = [link.time_ns for link in self._links.of(name) if link.kind == SightingKind.OPENED]
            fetched = self._fetched.on([name])["time_ns"].to_numpy()
            served = self._service_ns[self._of_service.rows([name])]
            self._times[name] = np.sort(np.concatenate([np.array(opened, np.int64), fetched, served]))
        return self._times[name]

    def _between(self, from_ns: int, to_ns: int, ways: Iterable[Way]) -> bool:
        """Whether anything was answered on the ways, not near the ends of a time."""
        to_ns = min(to_ns, self._horizon_ns)
        edge_ns = int((to_ns - from_ns) * _EDGE)
        times = (self._times_of(name) for way in ways for name in self._on(way))
        first, end = from_ns + edge_ns, to_ns - edge_ns
        return any(np.searchsorted(each, first, "right") < np.searchsorted(each, end) for each in times)

    def until_answered(self, cut: _Cut) -> _Cut:
        """Let a cut end where its host is answered on a connection that carries something."""
        if len(cut.broken) < len(cut.signs):
            return cut
        own_ns = max(sign.link.time_ns for sign in cut.signs)
        after = (
            at_ns
            for name in self._on((cut.host, cut.brokers[0]))
            for at_ns in self._after(name, cut.from_ns)
            if cut.carries(name, at_ns)
        )
        answered_ns = min(after, default=NEVER_NS)
        is_idle = all(sign.quiet_ns >= _IDLE_NS for sign in cut.signs)
        is_soon = answered_ns - cut.from_ns < _SOON * (own_ns - cut.from_ns)
        if answered_ns < own_ns and (is_idle or is_soon) and not self._loses(cut, own_ns):
            cut.is_forgotten = True
        else:
            cut.to_ns = min(cut.to_ns, answered_ns)
        return cut

    def _after(self, name: str, from_ns: int) -> list[int]:
        times = self._times_of(name)
        found: list[int] = times[np.searchsorted(times, from_ns, "right") :].tolist()
        return found

    def _loses(self, cut: _Cut, own_ns: int) -> bool:
        """Whether the way of a cut loses packets about that time: what was sent again and again on it got through."""
        signs, _ = zip(*self._links.derived((cut.host, cut.brokers[0]), _read_signs), strict=True)
        near = (sign for sign in signs if cut.from_ns - _NEAR_NS <= sign.from_ns <= own_ns + _NEAR_NS)
        return any(self._goes_on(sign) for sign in near if not sign.is_syn)

    def _goes_on(self, sign: _Sign) -> bool:
        """Whether a connection is answered after the bytes that were sent again, or others are sent on it."""
        name, over_ns = sign.link.connection, sign.link.time_ns
        resent = (link.since_ns for link in self._links.of(name) if link.kind == SightingKind.RESENT)
        return bool(self._after(name, over_ns)) or any(
            since_ns is not None and since_ns > over_ns for since_ns in resent
        )

    def is_alive(self, cut: _Cut) -> bool:
        """Whether the one broker of a cut was there meanwhile, or seems to have been."""
        [broker] = cut.brokers
        if cut.is_forgotten or cut.is_sent_again_by("broker") or self.serves_others(cut):
            return True
        has_others = any(self._others(broker, cut.host))
        return bool(cut.broken) and not has_others and self.reaches_others(cut)

    def serves_others(self, cut: _Cut) -> bool:
        """Whether a broker of a cut answered other hosts meanwhile."""
        ways = (way for broker in set(cut.brokers) for way in self._others(broker, cut.host))
        return self._between(cut.from_ns, cut.to_ns, ways)

    def reaches_others(self, cut: _Cut) -> bool:
        """Whether other brokers answered the host meanwhile."""
        brokers = {broker for ways in self._ways for broker in ways.brokers(cut.host)}.difference(cut.brokers)
        ways = ((cut.host, broker) for broker in brokers)
        return self._between(cut.from_ns, cut.to_ns, ways)


def _unread(traffic: GroupTraffic, cut: _Cut, members: Iterable[str], ownership: Iterable[Ownership]) -> str:
    """Return which partitions the host does not read meanwhile, and when they were fetched last."""
    fetched, brokers = traffic.fetched, set(cut.brokers)
    own = fetched.on(name for broker in brokers for name in fetched.ways.on((cut.host, broker)))
    times = own["time_ns"].to_pylist()
    held = {(row.topic, row.partition) for row in ownership if row.member_id in members and _is_at(row, cut.from_ns)}
    led = _led(fetched, brokers, {topic for topic, _ in held})
    unread = [f"{topic}-{number}" for topic, number in sorted(held & led)]
    until_ns = min(cut.to_ns, traffic.horizon_ns)
    if not unread or any(cut.from_ns + NS_PER_S < at < until_ns - NS_PER_S for at in times):
        return ""
    last_ns = max((at for at in times if at <= cut.from_ns + NS_PER_S), default=None)
    since = "" if last_ns is None else f", since {clock(last_ns)} UTC"
    return f", and did not read {first_of(unread)} meanwhile{since}"


def _is_at(row: Ownership, at_ns: int) -> bool:
    return row.from_ns <= at_ns and (row.to_ns is None or row.to_ns > at_ns)


def _led(fetched: Fetched, brokers: Collection[str], topics: Collection[str]) -> set[Partition]:
    """Return which partitions of some topics anyone fetches from one of the brokers."""
    rows = fetched.of_topics(topics)
    columns = (rows[name].to_pylist() for name in ("topic", "partition", "api", "connection"))
    return {
        (topic, number)
        for topic, number, api, connection in zip(*columns, strict=True)
        if api == "Fetch" and broker_address(connection) in brokers
    }


def _outage(
    traffic: GroupTraffic,
    answers: _Answers,
    cut: _Cut,
    lives: Iterable[MemberTrace],
    rebalances: Sequence[Rebalance],
    ownership: Iterable[Ownership],
) -> Outage:
    lasts = cut.to_ns >= traffic.horizon_ns
    until_ns = traffic.horizon_ns if lasts else cut.to_ns
    of_host = [life for life in lives if _was_there(life, cut.host, cut.from_ns, until_ns)]
    members = sorted(life.member_id for life in of_host)
    length = f"{(until_ns - cut.from_ns) / NS_PER_S:.1f} s, from {clock(cut.from_ns)}"
    length += " UTC to the end of the source" if lasts else f" to {clock(cut.to_ns)} UTC"
    said = _who(cut, of_host), length, _unread(traffic, cut, members, ownership)
    return Outage(
        group_id=traffic.group_id,
        kind=FORGOTTEN if cut.is_forgotten else BLOCKED,
        from_ns=cut.from_ns,
        to_ns=None if lasts else cut.to_ns,
        broker=cut.brokers[0],
        members=members,
        text=_forgotten_text(cut, *said) if cut.is_forgotten else _blocked_text(traffic, answers, cut, *said),
        rebalance=next((row.number for row in rebalances if _follows(row, cut, until_ns)), None),
        evidence=list(_evidence(traffic, cut)),
    )


def _was_there(life: MemberTrace, host: str, from_ns: int, until_ns: int) -> bool:
    is_gone = life.left is not None and life.left.time_ns < from_ns
    return life.host == host and life.since.time_ns <= until_ns and not is_gone


def _follows(row: Rebalance, cut: _Cut, until_ns: int) -> bool:
    is_near = cut.from_ns <= row.started_ns <= until_ns + _FOLLOWS_NS
    return row.cause in _LOST and row.client_host == cut.host and is_near


def _who(cut: _Cut, of_host: Iterable[MemberTrace]) -> str:
    names = {life.client_id for life in of_host if life.client_id}
    names = names or {sign.link.client_id for sign in cut.signs if sign.link.client_id}
    return f"{first_of(sorted(names))} ({cut.host})" if names else cut.host


def _evidence(traffic: GroupTraffic, cut: _Cut) -> Iterator[Evidence]:
    for sign in cut.signs[:_CITED]:
        by = f"{sign.link.by}: " if sign.link.by else ""
        yield Evidence(sign.from_ns, "", _NO_FRAME, f"{sign.link.connection}: {by}{sign.link.text}")
    if any(sign.to_ns >= traffic.horizon_ns for sign in cut.broken):
        yield Evidence(traffic.horizon_ns, "", _NO_FRAME, "the source ends before anything is acknowledged")


def _blocked_text(traffic: GroupTraffic, answers: _Answers, cut: _Cut, who: str, length: str, unread: str) -> str:
    brokers = list(dict.fromkeys(cut.brokers))
    names = " and ".join([", ".join(brokers[:-1]), brokers[-1]] if len(brokers) > 1 else brokers)
    if traffic.service.broker_before(cut.from_ns) in brokers:
        names += ", its coordinator," if len(brokers) == 1 else ", the coordinator among them,"
    verb = "was cut off from" if cut.broken else "could not connect to"
    others, elsewhere = answers.serves_others(cut), answers.reaches_others(cut)
    meanwhile = " and ".join(
        part
        for part, holds in (
            ("the broker answered other hosts" if len(brokers) == 1 else "they answered other hosts", others),
            ("other brokers answered it", elsewhere),
        )
        if holds
    )
    why = "a firewall or a route between them"
    if not (others or cut.is_sent_again_by("broker")):
        why = f"the machine of that broker is off, or {why}"
    elif not (elsewhere or cut.is_sent_again_by("client")):
        why = "its host, or what lies between (a firewall, a route), for a frozen process still acknowledges"
    while_ = f", while {meanwhile}" if meanwhile else ""
    return f"{who} {verb} {names} for {length}{unread} ({_counts(cut)}){while_}: {why}"


def _counts(cut: _Cut) -> str:
    """Return how often was sent what was not answered; what two sources have counts once."""
    syns: Counter[str] = Counter()
    copies: dict[str, Counter[str]] = {"client": Counter(), "broker": Counter()}
    for sign in cut.signs:
        name = sign.link.connection.rpartition("#")[0]
        count = syns if sign.is_syn else copies[sign.link.by or "client"]
        count[name] = max(count[name], sign.times)
    parts = [
        f"bytes {'of it' if side == 'client' else 'to it'} sent again {counted(count.total(), 'time')}"
        for side, count in copies.items()
        if count
    ]
    text = " and ".join(parts) + (" without an acknowledgement" if parts else "")
    return "; ".join(filter(None, [text, f"{syns.total():,} SYNs without an answer" if syns else ""]))


def _forgotten_text(cut: _Cut, who: str, length: str, unread: str) -> str:
    idle_ns = min(sign.quiet_ns for sign in cut.signs)
    idle = f", which had been idle for {idle_ns // NS_PER_S:,} s before" if idle_ns >= _IDLE_NS else ""
    return (
        f"{who} got nothing through on a connection to {cut.brokers[0]} for {length}{unread}{idle} ({_counts(cut)}), "
        "while the broker answered it on another: a NAT, a firewall or a load balancer between them had forgotten it"
    )
