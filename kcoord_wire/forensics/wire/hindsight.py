"""What the whole source shows about one moment: which members gave a sign of life before and after, which join is next.

Laws:

* Immutable.
* Every question about a moment is a binary search, never a scan.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from kcoord_wire.forensics.model import NS_PER_MS, SightingKind
from kcoord_wire.forensics.wire.failovers import Failover
from kcoord_wire.forensics.wire.joins import Join
from kcoord_wire.forensics.wire.moments import Moment
from kcoord_wire.forensics.wire.outages import OutageTrace
from kcoord_wire.forensics.wire.service import LONG_NS
from kcoord_wire.forensics.wire.trace import MemberTrace
from kcoord_wire.forensics.wire.traffic import GroupRequest, GroupTraffic
from kcoord_wire.protocol.error_codes import ErrorCode

CALM_NS: Final = 50 * NS_PER_MS
"""A heartbeat may be answered this long after the coordinator changed its state."""


class Hindsight:
    """Answers questions about the future of a moment, and about its past.

    :ivar asked_by: JoinGroup and SyncGroup requests by the member id in them
    :ivar alive: times at which each member was answered as a member, except by successful heartbeats and commits
    """

    def __init__(
        self,
        traffic: GroupTraffic,
        joins: list[Join],
        failovers: list[Failover],
        outages: Sequence[OutageTrace] = (),
    ) -> None:
        self.traffic = traffic
        self.joins = joins
        self.failovers = failovers
        self.outages = outages
        self.asked_by: dict[str, list[GroupRequest]] = {}
        for request in traffic.requests:
            if request.api in ("JoinGroup", "SyncGroup"):
                self.asked_by.setdefault(request.member_id, []).append(request)
        self.alive = _read_alive(traffic.requests)
        self._joined_at = [join.at for join in joins]
        self._rebalancing_ns = sorted(
            request.due.time_ns
            for request in traffic.requests
            if request.error == ErrorCode.REBALANCE_IN_PROGRESS or _is_in_join(request)
        )

    def last_joins(self) -> dict[str, GroupRequest]:
        """The last JoinGroup of each member that a completed join answered."""
        return {request.who: request for request in self.traffic.requests if request.who and _is_in_join(request)}

    # ---- signs of life

    def last_alive(self, member_id: str) -> int:
        """When a member was last answered as one; 0 for never."""
        times = self.alive.get(member_id)
        beat = self.traffic.heartbeats.answered.last(member_id)
        return max(times[-1] if times else 0, beat or 0)

    def next_alive(self, member_id: str, after_ns: int) -> int | None:
        """When a member was next answered as one."""
        times = self.alive.get(member_id, [])
        at = bisect_right(times, after_ns)
        request = times[at] if at < len(times) else None
        beat = self.traffic.heartbeats.answered.after(member_id, after_ns)
        return min((time for time in (request, beat) if time is not None), default=None)

    def alive_before(self, member_id: str, until_ns: int) -> int:
        """When a member was last answered as one up to a time; 0 for never."""
        times = self.alive.get(member_id, [])
        at = bisect_right(times, until_ns)
        beat = self.traffic.heartbeats.answered.before(member_id, until_ns)
        return max(times[at - 1] if at else 0, beat or 0)

    def calm_until_next_sign(self, now_ns: int) -> int | None:
        """The last heartbeat that shows that no member joins, before a sign that one does; None: there is none."""
        at = bisect_right(self._rebalancing_ns, now_ns)
        until = self._rebalancing_ns[at] if at < len(self._rebalancing_ns) else self.traffic.horizon_ns + 1
        return self.traffic.heartbeats.last_calm(now_ns + CALM_NS, until)

    def is_rejected_after(self, member_id: str, after_ns: int) -> bool:
        """Whether the coordinator did not know the member any more at some time after another."""
        return any(
            request.error == ErrorCode.UNKNOWN_MEMBER_ID and request.asked.time_ns >= after_ns
            for request in self.traffic.requests
            if request.member_id == member_id
        )

    def returns(self, member: MemberTrace, after_ns: int) -> bool:
        """Whether anything was sent after a time under a member's id or instance id, or its client joined as new."""
        beat_ns = self.traffic.heartbeats.last(member.member_id)
        if beat_ns is not None and beat_ns > after_ns:
            return True
        client = (member.client_id, member.host)
        return any(
            member.member_id in request.named
            or (request.instance_id is not None and request.instance_id == member.instance_id)
            or (request.api == "JoinGroup" and not request.member_id and request.client == client)
            for request in self.traffic.requests
            if request.asked.time_ns > after_ns
        )

    def has_hole(self, member: MemberTrace, from_ns: int, to_ns: int) -> bool:
        """Whether bytes of a member's connections are missing between two times: it may have sent something."""
        names = member.connections | self.traffic.heartbeats.connections.get(member.member_id, set())
        return any(
            link.kind == SightingKind.HOLE and link.time_ns >= from_ns and (link.since_ns or link.time_ns) <= to_ns
            for name in names
            for link in self.traffic.links_of.get(name, ())
        )

    # ---- outages

    def outage_between(self, from_ns: int, to_ns: int) -> OutageTrace | None:
        """The first outage of which some is between two times."""
        return next((outage for outage in self.outages if outage.covers(from_ns, to_ns)), None)

    def outage_of(self, member: MemberTrace, at_ns: int) -> OutageTrace | None:
        """The outage behind the silence of a member until now: before it, the member was not late with a heartbeat."""
        last_ns = self.alive_before(member.member_id, at_ns) or member.alive_ns
        outage = self.outage_between(last_ns, at_ns)
        if outage is None or not outage.costs_session(member.session_ms, rejected=True):
            return None
        late_ns = (member.session_ms or 0) * NS_PER_MS // 2
        return outage if outage.begin_ns - last_ns <= max(late_ns, LONG_NS) else None

    # ---- joins

    def next_join(self, at: Moment) -> Join | None:
        index = bisect_right(self._joined_at, at)
        return self.joins[index] if index < len(self.joins) else None

    def is_listed_later(self, member_id: str, at: Moment) -> bool:
        """Whether the next completed join has the member: then it was not removed before."""
        join = self.next_join(at)
        return join is not None and member_id in join.members

    def is_cut_off(self, request: GroupRequest) -> bool:
        """Whether it was parked when the coordinator was lost."""
        end = self.traffic.closed.get(request.connection)
        return end is not None and any(
            request.due <= failover.begin and failover.begin.time_ns <= end <= failover.end.time_ns
            for failover in self.failovers
        )

    def is_closed_after(self, request: GroupRequest) -> bool:
        """Whether its connection ended later, except by the client: the coordinator keeps what a process that died had
        sent.
        """
        is_ended = self.traffic.closed.get(request.connection, -1) >= request.asked.time_ns
        return is_ended and not any(link.by == "client" for link in self.traffic.links_of.get(request.connection, ()))

    def is_parked_to_the_end(self, request: GroupRequest) -> bool:
        """Whether no failover can have broken it off before the source ended."""
        return not any(failover.begin > request.due for failover in self.failovers)

    def name_of(self, request: GroupRequest) -> str:
        """The member id that a JoinGroup is about, as far as it is known."""
        who = request.given_id if request.error == 0 and request.given_id else request.member_id or request.given_id
        if who or request.join is None or request.instance_id is None:
            return who
        listed = request.join.members.items()
        return next((name for name, member in listed if member.instance_id == request.instance_id), "")


def _is_in_join(request: GroupRequest) -> bool:
    return request.api == "JoinGroup" and request.join is not None


def _read_alive(requests: list[GroupRequest]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for request in requests:
        if request.answered is None:
            continue
        asked_ns, answered_ns = request.due.time_ns, request.answered.time_ns
        if request.api == "JoinGroup" and request.error == 0:
            found.setdefault(request.who, []).extend((asked_ns, answered_ns))
        elif request.api in ("Heartbeat", "SyncGroup") and request.error in (0, ErrorCode.REBALANCE_IN_PROGRESS):
            found.setdefault(request.member_id, []).append(max(asked_ns, answered_ns))
    for times in found.values():
        times.sort()
    return found
