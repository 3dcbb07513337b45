"""What the replay records: the life of each member id, what started each rebalance, and how the rebalance went.

Law: `replay` fills these; every other module only reads them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from kcoord_wire.forensics.wire.failovers import Failover
from kcoord_wire.forensics.wire.joins import Join
from kcoord_wire.forensics.wire.moments import Moment
from kcoord_wire.forensics.wire.outages import OutageTrace
from kcoord_wire.forensics.wire.traffic import GroupRequest, Leaver, OfferedAssignor, Partition

EMPTY: Final = "Empty"
PREPARING: Final = "PreparingRebalance"
COMPLETING: Final = "CompletingRebalance"
STABLE: Final = "Stable"
UNKNOWN_STATE: Final = ""
"""The state before the first sign of the group: the source may begin in the middle of its life."""


class Why(StrEnum):
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
    why: Why | None = None
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
    :ivar joins: the JoinGroup requests that were parked in it, with their members
    :ivar removed: the members that it removed, and why
    :ivar join: the join that completed it
    :ivar after: the members when that was complete
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
    joins: list[tuple[Moment, MemberTrace, GroupRequest]] = field(default_factory=list)
    removed: list[tuple[MemberTrace, Why]] = field(default_factory=list)
    join: Join | None = None
    generation: int | None = None
    after: dict[str, MemberTrace] = field(default_factory=dict)
    stable: Moment | None = None
    over: Moment | None = None
    outcome: str = "open"

    @property
    def started(self) -> Moment:
        return self.start.at
