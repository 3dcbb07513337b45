"""What the replay records of members and rebalances, and what it may ask of the whole source (`ResponseIndex`).

Laws:

* `replay` fills the traces; every other module only reads them.
* The index is immutable, and each of its questions about a moment is a binary search, never a scan.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from kcoord_wire.forensics.model import NS_PER_MS, SightingKind
from kcoord_wire.forensics.wire.joins import Failover, Join
from kcoord_wire.forensics.wire.outages import OutageTrace
from kcoord_wire.forensics.wire.signs import LONG_NS, Moment
from kcoord_wire.forensics.wire.traffic import GroupRequest, GroupTraffic, Leaver, OfferedAssignor, Partition
from kcoord_wire.protocol.error_codes import ErrorCode

EMPTY: Final = "Empty"
PREPARING: Final = "PreparingRebalance"
COMPLETING: Final = "CompletingRebalance"
STABLE: Final = "Stable"
UNKNOWN_STATE: Final = ""
"""The state before the first sign of the group: the source may begin in the middle of its life."""


class LeaveReason(StrEnum):
    """Why a member id is no longer in the group, as in `model.MemberLife.why_left`."""

    LEFT = "left"
    POLL_TIMEOUT = "poll timeout"
    SESSION = "session timeout"
    REBALANCE = "rebalance timeout"
    SYNC = "sync timeout"
    REPLACED = "replaced"
    TOO_LARGE = "group.max.size"
    FAILOVER = "coordinator failover"
    OUTAGE = "outage"


@dataclass(slots=True, eq=False)
class MemberTrace:
    """The life of one member id.

    :ivar since: its first sign
    :ivar is_new: whether that sign was its first join
    :ivar left: when it left or was removed
    :ivar why: why it did
    :ivar leave: its LeaveGroup request
    :ivar joins: its JoinGroup requests that were parked or answered
    :ivar parked: its JoinGroup that waits for the others
    :ivar waits_sync: its SyncGroup that waits for the leader's
    :ivar held: the partitions that it was last assigned and has not given up
    :ivar gave_up: the partitions that its last assignment took from it
    :ivar gave_up_by: the SyncGroup that brought that assignment
    :ivar rejection: the last response that rejected its member id or generation
    :ivar former: the life that the same client had before
    :ivar alive_ns: when its session was last extended without a request of its own
    """

    member_id: str
    instance_id: str | None
    client_id: str | None
    host: str
    since: Moment
    is_new: bool
    left: Moment | None = None
    why: LeaveReason | None = None
    leave: GroupRequest | None = None
    joins: list[GroupRequest] = field(default_factory=list)
    parked: GroupRequest | None = None
    waits_sync: GroupRequest | None = None
    held: frozenset[Partition] = frozenset()
    gave_up: frozenset[Partition] = frozenset()
    gave_up_by: GroupRequest | None = None
    rejection: GroupRequest | None = None
    former: MemberTrace | None = None
    alive_ns: int = 0
    first_generation: int | None = None
    last_generation: int | None = None
    connections: set[str] = field(default_factory=set)

    @property
    def identity(self) -> str:
        """The same for a static member that returns under another member id."""
        return self.member_id if self.instance_id is None else f"instance {self.instance_id}"

    @property
    def session_ms(self) -> int | None:
        return next((request.session_ms for request in reversed(self.joins) if request.session_ms), None)

    @property
    def rebalance_ms(self) -> int | None:
        """Its rebalance timeout; versions of JoinGroup that have none use the session timeout."""
        for request in reversed(self.joins):
            if request.rebalance_ms is not None and request.rebalance_ms >= 0:
                return request.rebalance_ms
        return self.session_ms

    @property
    def last_join(self) -> GroupRequest | None:
        return self.joins[-1] if self.joins else None


def is_cooperative(offers: Iterable[OfferedAssignor]) -> bool:
    """Whether a client keeps its partitions while it rejoins: it does if every assignor that it offers allows that."""
    offered = list(offers)
    named = bool(offered) and all("cooperative" in offer.assignor for offer in offered)
    return named or any(offer.owned for offer in offered)


class StartKind(StrEnum):
    """What moved the group out of its state."""

    JOINED = "joined"  # JoinGroup of an unknown member
    REJOINED = "rejoined"  # JoinGroup of a member of the group
    STATIC = "static"  # JoinGroup with a known instance id under another member id
    LEFT = "left"  # LeaveGroup
    SESSION = "session"  # a session timeout
    SYNC = "sync"  # the timeout for SyncGroup
    VANISHED = "vanished"  # a member is gone, and its session timeout is not known
    HIDDEN = "hidden"  # nothing in the source


@dataclass(slots=True, eq=False)
class Start:
    """What started a rebalance, or would have if one had not been under way.

    :ivar former: the join before this one, of the same member
    :ivar leads: the member led the generation before
    :ivar gave_up: what the member's last assignment had taken from it
    :ivar gave_up_by: the SyncGroup that brought that assignment
    :ivar rejection: the response that rejected the member before it came back
    :ivar failover: the loss of the coordinator that the member comes back from
    :ivar is_repeat: that failover broke off the join that this one repeats; else it forgot the member
    :ivar outage: that the member comes back from, or that cost it its session
    :ivar missed: the completed join before this one, if this (static) member was not part of it
    :ivar inferred: no frame shows it: it follows from later frames
    """

    kind: StartKind
    at: Moment
    member: MemberTrace | None = None
    request: GroupRequest | None = None
    leaver: Leaver | None = None
    former: GroupRequest | None = None
    leads: bool = False
    gave_up: frozenset[Partition] = frozenset()
    gave_up_by: GroupRequest | None = None
    rejection: GroupRequest | None = None
    failover: Failover | None = None
    is_repeat: bool = False
    outage: OutageTrace | None = None
    missed: Join | None = None
    inferred: bool = False


@dataclass(slots=True, eq=False)
class RebalanceTrace:
    """How one rebalance went.

    :ivar before: the members when it started, by member id
    :ivar from_empty: there were none
    :ivar former_join: the completed join before it
    :ivar shown_by: the exchange that showed it, if its start is not in the source
    :ivar loaded: the failover after which this is the first rebalance
    :ivar others: what else would have started it
    :ivar joins: when members joined (KIP-848: had its epoch and what came with it), in any order
    :ivar removed: the members that it removed, and why
    :ivar join: the join that completed it; KIP-848 has none
    :ivar joined: when that was complete (KIP-848: when the first member received the epoch)
    :ivar after: the members by then
    :ivar stable: when the leader's assignment arrived
    :ivar over: when it ended
    :ivar outcome: as in `model.Rebalance.outcome`
    """

    start: Start
    before: dict[str, MemberTrace]
    from_empty: bool
    former_join: Join | None
    shown_by: GroupRequest | None = None
    loaded: Failover | None = None
    others: list[Start] = field(default_factory=list)
    joins: list[tuple[Moment, MemberTrace]] = field(default_factory=list)
    removed: list[tuple[MemberTrace, LeaveReason]] = field(default_factory=list)
    join: Join | None = None
    joined: Moment | None = None
    generation: int | None = None
    after: dict[str, MemberTrace] = field(default_factory=dict)
    stable: Moment | None = None
    over: Moment | None = None
    outcome: str = "open"

    @property
    def started(self) -> Moment:
        return self.start.at


CALM_NS: Final = 50 * NS_PER_MS
"""A heartbeat may be answered this long after the coordinator changed its state."""


class ResponseIndex:
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
            for link in self.traffic.links.of(name)
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
        end = self.traffic.links.closed_ns(request.connection)
        return end is not None and any(
            request.due <= failover.begin and failover.begin.time_ns <= end <= failover.end.time_ns
            for failover in self.failovers
        )

    def is_closed_after(self, request: GroupRequest) -> bool:
        """Whether its connection ended later, except by the client: the coordinator keeps what a process that died had
        sent.
        """
        links = self.traffic.links
        end_ns = links.closed_ns(request.connection)
        is_ended = end_ns is not None and end_ns >= request.asked.time_ns
        return is_ended and not any(link.by == "client" for link in links.of(request.connection))

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
