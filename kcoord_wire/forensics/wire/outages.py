"""The times in which no coordinator answered the members of a group, whatever became of the group.

Theory of operation. Between one good answer to a member and the next one, the coordinator may have been gone: its
connections ended or were refused, it said that it does not coordinate the group, requests waited for an answer, or all
members fell silent at once. All such signs between the same two answers are of one outage.

Laws:

* No member is answered during an outage, except that a move lasts until all members have found the new coordinator.
* A broker is no longer down once a host that had lost it can connect again, for whatever group.
* One member alone that is not answered, while others are, is no outage. That includes a process that ended.
* A connection that outlives an interval shows that the broker was not down in it.
* A rebalance that waits for a member is no silence: JoinGroup and SyncGroup requests are pending then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Final, NamedTuple

from kcoord_wire.forensics.model import NS_PER_MS, Evidence, Outage, SightingKind, broker_address, client_host
from kcoord_wire.forensics.wire.joins import Failover
from kcoord_wire.forensics.wire.links import IN_ORDER, Link, Way, way_of
from kcoord_wire.forensics.wire.signs import LONG_NS, NEVER_NS, NS_PER_S, Moment, Wait
from kcoord_wire.forensics.wire.traffic import GroupRequest, GroupTraffic
from kcoord_wire.forensics.wire.unwritten import Unwritten
from kcoord_wire.protocol.error_codes import describe_error

if TYPE_CHECKING:
    from kcoord_wire.forensics.wire.trace import MemberTrace, RebalanceTrace

BROKER_DOWN: Final = "broker down"
MOVED: Final = "coordinator moved"
LOADING: Final = "loading"
SILENCE: Final = "silence"
UNWRITTEN: Final = "log not written"

_NO_FRAME: Final = -1
_CITED: Final = 4  # facts of one kind
_RECONNECT_NS: Final = NS_PER_S  # a client that only changes its connection is back sooner
_LIVE_NS: Final = 10 * NS_PER_S  # a connection that answered within this time is in use
_LEAST_SILENCE_NS: Final = 5 * NS_PER_S
_MISSED_BEATS: Final = 3  # a member that misses one heartbeat may only be late
_ONE_MOVE_NS: Final = 10 * NS_PER_S  # members find out one after the other, by their heartbeats
_USUAL_SESSION_MS: Final = 10_000  # the default of clients before 3.0 (KIP-735)
_SEVERAL: Final = 2
_ENDS: Final = (SightingKind.CLOSED, SightingKind.RESET)


@dataclass(slots=True, eq=False)
class OutageTrace:
    """An outage.

    :ivar kind: as in `model.Outage`
    :ivar end_ns: when a member was answered again, or another client of its host could connect; None where
        the source ended first
    :ivar broker: the coordinator until then
    :ivar next_broker: the coordinator afterwards
    :ivar signs: what shows it, in words
    :ivar last_ns: where the source ends
    """

    kind: str
    begin_ns: int
    end_ns: int | None
    broker: str | None
    next_broker: str | None
    signs: list[str]
    evidence: list[Evidence]
    last_ns: int

    def covers(self, from_ns: int, to_ns: int) -> bool:
        """Whether any of it lies between two times."""
        return self.begin_ns < to_ns and (self.end_ns is None or self.end_ns > from_ns)

    @property
    def ends_ns(self) -> int:
        """When it was over, or the source."""
        return self.last_ns if self.end_ns is None else self.end_ns

    @property
    def length_ns(self) -> int:
        """How long it lasted, at least."""
        return self.ends_ns - self.begin_ns

    def costs_session(self, session_ms: int | None, *, rejected: bool) -> bool:
        """Whether it was long enough to cost a member its session; a part of that was over when the outage began.

        :param rejected: whether it is known that the session has ended
        """
        session_ns = (session_ms or _USUAL_SESSION_MS) * NS_PER_MS
        return self.length_ns >= (session_ns // 2 if rejected else session_ns)

    @property
    def text(self) -> str:
        """The outage in a sentence."""
        seconds = f"{self.length_ns / NS_PER_S:.1f} s"
        length = f"for {seconds}" if self.end_ns is not None else f"for {seconds}, to the end of the source"
        said = ", ".join(dict.fromkeys(self.signs))
        broker = self.broker or "the coordinator"
        if self.kind == UNWRITTEN:
            return f"{broker} stayed the coordinator and could not write its log (__consumer_offsets) {length} ({said})"
        if self.kind == MOVED:
            return (
                f"the coordinator moved from {broker} to {self.next_broker}; no member was answered {length} ({said})"
            )
        if self.next_broker not in (None, self.broker):
            said += f"; then {self.next_broker} served the group"
        if self.kind == BROKER_DOWN:
            return f"{broker} could not be reached {length} ({said})"
        if self.kind == LOADING:
            return f"{broker} did not serve the group {length} ({said})"
        return f"no member was answered by {broker} {length} ({said})"


def find_outages(
    traffic: GroupTraffic, failovers: list[Failover], unwritten: Sequence[Unwritten] = ()
) -> list[OutageTrace]:
    """Return the outages, in order of time.

    :param unwritten: times in which a coordinator stayed and could not write; what is in them is of no other outage
    """
    found = [outage for gap in _Gaps(traffic, failovers).found() if (outage := gap.outage()) is not None]
    stayed = [_of_unwritten(each, traffic.horizon_ns) for each in unwritten]
    found = [outage for outage in found if not any(each.covers(outage.begin_ns, outage.ends_ns) for each in stayed)]
    return _merged(sorted([*found, *stayed], key=lambda outage: outage.begin_ns))


def _of_unwritten(each: Unwritten, horizon_ns: int) -> OutageTrace:
    evidence = [
        evidence_at(sign.answered or sign.asked, f"{sign.api} was answered with {describe_error(sign.error or 0)}")
        for sign in each.signs[:_CITED]
    ]
    return OutageTrace(UNWRITTEN, each.from_ns, each.to_ns, each.broker, each.broker, [each.text], evidence, horizon_ns)


def evidence_at(at: Moment, text: str) -> Evidence:
    """Return what the frame of a moment shows."""
    return Evidence(at.time_ns, at.source, at.seq, text)


def outage_rows(
    group_id: str,
    outages: Sequence[OutageTrace],
    lives: Sequence[MemberTrace],
    rebalances: Sequence[RebalanceTrace],
) -> Iterator[Outage]:
    """Yield the rows of outages.

    :param lives: of all members
    :param rebalances: in order of their numbers
    """
    for outage in outages:
        present = sorted(
            life.member_id
            for life in lives
            if life.since.time_ns <= outage.begin_ns and (life.left is None or life.left.time_ns >= outage.begin_ns)
        )
        followed = (number for number, trace in enumerate(rebalances, 1) if _follows(trace, outage))
        yield Outage(
            group_id=group_id,
            kind=outage.kind,
            from_ns=outage.begin_ns,
            to_ns=outage.end_ns,
            broker=outage.broker,
            members=present,
            text=outage.text,
            rebalance=next(followed, None),
            evidence=outage.evidence,
        )


def _follows(trace: RebalanceTrace, outage: OutageTrace) -> bool:
    failover = trace.start.failover
    return trace.start.outage is outage or (
        failover is not None and outage.covers(failover.begin.time_ns - NS_PER_S, failover.end.time_ns + NS_PER_S)
    )


def _merged(outages: Iterable[OutageTrace]) -> list[OutageTrace]:
    """Merge what is of one outage: a broker that is back loads the group first, and members find a move one by one."""
    merged: list[OutageTrace] = []
    for outage in outages:
        last = merged[-1] if merged else None
        if last is not None and last.end_ns is not None and outage.begin_ns - last.end_ns <= _apart_ns(last, outage):
            last.end_ns, last.next_broker = outage.end_ns, outage.next_broker
            last.signs += outage.signs
            last.evidence += outage.evidence
        else:
            merged.append(outage)
    return merged


def _apart_ns(last: OutageTrace, outage: OutageTrace) -> int:
    if UNWRITTEN in (last.kind, outage.kind):
        return -NEVER_NS
    is_move = last.kind in (MOVED, LOADING) and outage.kind in (MOVED, LOADING)
    return _ONE_MOVE_NS if is_move and last.next_broker == outage.next_broker else LONG_NS


class _End(NamedTuple):
    """The end of a coordinator's connection that its client had not begun."""

    time_ns: int
    connection: str
    by: str | None


@dataclass(slots=True, eq=False)
class _Gap:
    """The interval between two good answers to members, and what happened in it.

    :ivar from_ns: the answer before; 0 for none
    :ivar to_ns: the answer behind; None for none
    """

    traffic: GroupTraffic
    from_ns: int
    to_ns: int | None
    failovers: list[Failover] = field(default_factory=list)
    ends: list[_End] = field(default_factory=list)
    refused: list[Link] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)

    def outage(self) -> OutageTrace | None:
        """Return the outage that the signs prove."""
        is_down = self._is_down()
        refusals = [sign for failover in self.failovers if failover.is_refusal for sign in failover.signs]
        is_silent = self._is_cut() or self._is_unanswered()
        if not self.from_ns or not (is_down or refusals or is_silent):
            return None
        service = self.traffic.service
        before = service.broker_before(self.from_ns)
        after = None if self.to_ns is None else service.broker_after(self.to_ns - 1)
        begin_ns = self._begin_ns(is_down=is_down, is_silent=is_silent)
        kind = BROKER_DOWN if is_down else SILENCE
        if refusals and not self._is_known_before(refusals, begin_ns, is_down=is_down):
            kind = LOADING if after in (None, before) else MOVED
        signs, evidence = list(self._signs(is_down=is_down)), list(self._evidence(is_down=is_down))
        end_ns = self._end_ns(before, is_down=is_down)
        return OutageTrace(kind, begin_ns, end_ns, before, after, signs, evidence, self.traffic.horizon_ns)

    def _end_ns(self, broker: str | None, *, is_down: bool) -> int | None:
        """The answer behind; else when a host that had lost the broker, of the group or not, could connect again."""
        if self.to_ns is not None or not is_down:
            return self.to_ns
        lost = [(end.time_ns, end.connection) for end in self.ends]
        lost += [(link.time_ns, link.connection) for link in self.refused]
        last_ns, hosts = max(time_ns for time_ns, _ in lost), {client_host(name) for _, name in lost}
        since_ns = min(time_ns for time_ns, _ in lost)
        opened = () if broker is None else self.traffic.links.to(broker, SightingKind.OPENED, last_ns + 1, NEVER_NS)
        own = (link.time_ns for link in opened if client_host(link.connection) in hosts)
        others = (each.time_ns for each in opened if self._has_lost(way_of(each.connection), since_ns, each.time_ns))
        return next(own, None) or next(others, None)

    def _has_lost(self, way: Way, from_ns: int, to_ns: int) -> bool:
        """Whether a host had lost a broker between two times, or could not connect to it."""
        links = self.traffic.links.on_all([way], SightingKind.CLOSED, SightingKind.RESET, SightingKind.REFUSED)
        return any(from_ns <= link.time_ns < to_ns and link.by != "client" for link in links)

    @property
    def _until_ns(self) -> int:
        return self.traffic.horizon_ns if self.to_ns is None else self.to_ns

    def _is_down(self) -> bool:
        """Whether the broker could not be reached: it closed all connections, or lets none be made."""
        if not (self.ends or self.refused) or self._outlived():
            return False
        if self.refused:
            return True
        proven = any(failover.ended for failover in self.failovers) or all(end.by == "broker" for end in self.ends)
        return proven and self._until_ns - min(end.time_ns for end in self.ends) >= _RECONNECT_NS

    def _is_known_before(self, refusals: list[GroupRequest], begin_ns: int, *, is_down: bool) -> bool:
        """Whether the outage shows before the first refusal, for clients leave a broker that refuses."""
        first_ns = min(sign.answered.time_ns for sign in refusals if sign.answered is not None)
        if is_down:
            return bool(self.refused) or any(end.time_ns < first_ns for end in self.ends)
        return begin_ns < first_ns - NS_PER_S

    def _is_cut(self) -> bool:
        """Whether all members fell silent, without a request that waits, or a connection that ends."""
        if not self.silent or self.ends or self.refused:
            return False
        return all(wait.asked_ns - self.from_ns >= _LEAST_SILENCE_NS for wait in self.waits)

    def _outlived(self) -> bool:
        """Whether a connection to the coordinator was answered on before and after."""
        if self.to_ns is None:
            return False
        return any(first <= self.from_ns and last >= self.to_ns for first, last in self.traffic.service.spans.values())

    def _is_unanswered(self) -> bool:
        """Whether several members waited for an answer, or the only one."""
        waiting = {wait.connection for wait in self.waits if self._until_ns - wait.asked_ns >= LONG_NS}
        spans = self.traffic.service.spans.values()
        live = sum(first <= self.from_ns and last >= self.from_ns - _LIVE_NS for first, last in spans)
        return len(waiting) >= _SEVERAL or (bool(waiting) and live <= 1)

    def _begin_ns(self, *, is_down: bool, is_silent: bool) -> int:
        times = [failover.begin.time_ns for failover in self.failovers]
        times += [wait.asked_ns for wait in self.waits if is_silent]
        if is_down:
            times += [end.time_ns for end in self.ends] + [link.time_ns for link in self.refused]
        if self._is_cut():
            times.append(self.from_ns)
        return max(self.from_ns, min(times))

    def _signs(self, *, is_down: bool) -> Iterator[str]:
        if is_down and (ended := len(self.ends)):
            yield "its connection ended" if ended == 1 else f"{ended} connections ended"
        if is_down and (count := len(self.refused)):
            yield f"{count:,} {'attempt' if count == 1 else 'attempts'} to connect failed"
        for error, count in sorted(Counter(sign.error or 0 for sign in self._refusals()).items()):
            yield f"{count} x {describe_error(error)}"
        if waits := len({wait.connection for wait in self.waits}):
            yield "a request waited" if waits == 1 else f"requests of {waits} connections waited"
        if self._is_cut():
            yield f"all {len(self.silent)} members fell silent at once"

    def _refusals(self) -> list[GroupRequest]:
        return [sign for failover in self.failovers for sign in failover.signs if sign.answered and sign.error]

    def _evidence(self, *, is_down: bool) -> Iterator[Evidence]:
        if is_down:
            yield from self._broken_off()
        for sign in self._refusals()[:_CITED]:
            yield evidence_at(
                sign.answered or sign.asked, f"{sign.api} was answered with {describe_error(sign.error or 0)}"
            )
        for wait in [*self.waits[:_CITED], *self.waits[_CITED:][-1:]]:
            took = None if wait.answered_ns is None else (wait.answered_ns - wait.asked_ns) / NS_PER_S
            text = f"{wait.api} was not answered" + ("" if took is None else f" for {took:.1f} s")
            yield Evidence(wait.asked_ns, wait.source, wait.seq, text)
        waits = self.waits if self.to_ns is None else ()
        if waiting := {name for wait in waits if self.traffic.links.closed_ns(name := wait.connection) is None}:
            text = f"the source ends while requests of {len(waiting)} open connections wait"
            yield Evidence(self.traffic.horizon_ns, "", _NO_FRAME, text)
        if self._is_cut():
            yield Evidence(self.from_ns, "", _NO_FRAME, f"the last answer to {', '.join(sorted(self.silent)[:_CITED])}")

    def _broken_off(self) -> Iterator[Evidence]:
        for end in self.ends[:_CITED]:
            by = f" by the {end.by}" if end.by else ""
            yield Evidence(end.time_ns, "", _NO_FRAME, f"connection {end.connection} was closed{by}")
        for link in [*self.refused[:1], *self.refused[1:][-1:]]:
            why = f": {link.text}" if link.text else ""
            yield Evidence(link.time_ns, "", _NO_FRAME, f"{link.connection} could not be connected{why}")


class _Gaps:
    """All gaps in which something happened."""

    def __init__(self, traffic: GroupTraffic, failovers: list[Failover]) -> None:
        self._traffic = traffic
        self._failovers = failovers
        self._service = traffic.service
        self._gaps: dict[int, _Gap] = {}
        self._parked = [request for request in traffic.requests if request.api in ("JoinGroup", "SyncGroup")]
        self._leaves = {request.connection for request in traffic.requests if request.api == "LeaveGroup"}

    def found(self) -> list[_Gap]:
        for failover in self._failovers:
            if failover.is_refusal or failover.ended:
                self._at(failover.begin.time_ns, failover.end.time_ns).failovers.append(failover)
        for link in self._lost():
            if link.kind in _ENDS:
                self._note_end(link)
            elif self._is_to_coordinator(link):
                self._at(link.time_ns).refused.append(link)
        for wait in self._service.waits:
            if not self._is_parked(wait.asked_ns, wait.asked_ns, wait.connection):
                self._at(wait.asked_ns).waits.append(wait)
        for from_ns, to_ns in self._service.silences:
            self._note_silence(from_ns, to_ns)
        return list(self._gaps.values())

    def _lost(self) -> list[Link]:
        """Return in order the ends of its connections, and its hosts' attempts that its brokers refused."""
        links, spans = self._traffic.links, self._service.spans
        hosts, brokers = {client_host(name) for name in spans}, {broker_address(name) for name in spans}
        refused = links.on_all(product(hosts, brokers), SightingKind.REFUSED)
        ends = (link for name in spans for link in links.of(name) if link.kind in _ENDS)
        return sorted([*refused, *ends], key=IN_ORDER)

    def _is_to_coordinator(self, link: Link) -> bool:
        return broker_address(link.connection) == self._service.broker_before(link.time_ns)

    def _at(self, time_ns: int, until_ns: int | None = None) -> _Gap:
        to_ns = self._service.next_answer(time_ns if until_ns is None else until_ns)
        key = NEVER_NS if to_ns is None else to_ns
        from_ns = self._service.last_answer(time_ns) or 0
        gap = self._gaps.setdefault(key, _Gap(self._traffic, from_ns, to_ns))
        gap.from_ns = min(gap.from_ns, from_ns)
        return gap

    def _note_end(self, link: Link) -> None:
        span = self._service.spans.get(link.connection)
        if span is None or link.by == "client" or link.connection in self._leaves:
            return
        gap = self._at(link.time_ns)
        if span[1] <= gap.from_ns and span[1] >= gap.from_ns - _LIVE_NS:
            gap.ends.append(_End(link.time_ns, link.connection, link.by))

    def _note_silence(self, from_ns: int, to_ns: int | None) -> None:
        """Note an interval without requests, if several members fell silent in it that had sent heartbeats."""
        until_ns = self._traffic.horizon_ns if to_ns is None else to_ns
        begin_ns = self._service.last_answer(until_ns - 1)
        if begin_ns is None or self._is_parked(from_ns, until_ns):
            return
        begin_ns = max(begin_ns, from_ns)
        if until_ns - begin_ns < _LEAST_SILENCE_NS:
            return
        beats = self._traffic.heartbeats.answered.rhythms(begin_ns)
        left = {
            leaver.member_id
            for request in self._traffic.requests
            if request.due.time_ns <= begin_ns
            for leaver in request.leavers
        }
        silent = {
            member_id: interval_ns
            for member_id, (last_ns, interval_ns) in beats.items()
            if last_ns >= begin_ns - 2 * interval_ns
            and member_id not in left
            and not self._has_ended(member_id, begin_ns + 2 * interval_ns)
        }
        if len(silent) >= _SEVERAL and until_ns - begin_ns >= _MISSED_BEATS * max(silent.values()):
            self._at(begin_ns).silent = sorted(silent)

    def _is_parked(self, begin_ns: int, until_ns: int, connection: str | None = None) -> bool:
        """Whether a JoinGroup or SyncGroup was pending: what follows on its connection is read afterwards."""
        return any(
            request.due.time_ns <= begin_ns and (request.answered is None or request.answered.time_ns >= until_ns)
            for request in self._parked
            if connection in (None, request.connection)
        )

    def _has_ended(self, member_id: str, until_ns: int) -> bool:
        """Whether the connection that a member used last was closed by then, though not by the broker."""
        used = [name for name in self._traffic.heartbeats.connections.get(member_id, ()) if name in self._service.spans]
        latest = max(used, key=lambda name: self._service.spans[name][1], default="")
        links = self._traffic.links.of(latest)
        ended = [link.time_ns for link in links if link.kind in _ENDS and link.by != "broker"]
        return bool(ended) and ended[-1] <= until_ns
