"""The state of a group as its coordinator has it, and what may have started a rebalance whose start no frame shows.

Laws:

* A member id has one life at a time, and its removal is recorded once, in the rebalance that it caused or that caused
  it.
* A candidate for a start that no frame shows must fit all that was answered: a member with a later sign of life was not
  removed, and no member was joining while heartbeats were answered without error. The member of the candidate that fits
  is removed here, so that the replay goes on without it.
"""

from __future__ import annotations

from typing import Final

from kcoord_wire.forensics.model import NS_PER_MS
from kcoord_wire.forensics.wire.joins import Failover, Join
from kcoord_wire.forensics.wire.outages import OutageTrace
from kcoord_wire.forensics.wire.signs import LONG_NS, NS_PER_S, Moment
from kcoord_wire.forensics.wire.trace import (
    CALM_NS,
    COMPLETING,
    EMPTY,
    PREPARING,
    STABLE,
    UNKNOWN_STATE,
    LeaveReason,
    MemberTrace,
    RebalanceTrace,
    ResponseIndex,
    Start,
    StartKind,
    is_cooperative,
)
from kcoord_wire.forensics.wire.traffic import GroupRequest

_IN_FLIGHT_NS: Final = 50 * NS_PER_MS  # a request may be on its way while the coordinator is lost
_RETURN_NS: Final = 60 * NS_PER_S  # clients wait between two attempts to connect, ten seconds by default
_CUT_OFF: Final = (LeaveReason.OUTAGE, LeaveReason.FAILOVER, LeaveReason.SESSION, LeaveReason.REBALANCE)
_OUTLIVED: Final = (None, LeaveReason.FAILOVER)  # of a life that no rebalance has ended


class GroupState:
    """A group at one moment of the replay, and what it has gone through so far.

    :ivar rebalances: in order
    :ivar traces: the lives of all members, in the order in which they were found
    :ivar states: each state that was entered, when, and with which generation
    :ivar members: the present members, by member id
    :ivar instances: the member ids of static members, by instance id
    :ivar lives: all lives, by member id
    :ivar join: the last completed join
    :ivar rebalance: the last rebalance
    :ivar lost: the members removed since that rebalance was over, and why
    :ivar failover: the last loss of the coordinator
    :ivar is_loaded: no rebalance has started since that loss
    """

    def __init__(self, responses: ResponseIndex) -> None:
        self.responses = responses
        self.rebalances: list[RebalanceTrace] = []
        self.traces: list[MemberTrace] = []
        self.states: list[tuple[str, Moment, int | None]] = []
        self.members: dict[str, MemberTrace] = {}
        self.instances: dict[str, str] = {}
        self.lives: dict[str, list[MemberTrace]] = {}
        self.state = UNKNOWN_STATE
        self.generation: int | None = None
        self.leader: str | None = None
        self.join: Join | None = None
        self.rebalance: RebalanceTrace | None = None
        self.lost: list[tuple[MemberTrace, LeaveReason]] = []
        self.failover: Failover | None = None
        self.is_loaded = False
        self._by_connection: dict[str, list[MemberTrace]] = {}
        self._by_client: dict[tuple[str | None, str], list[MemberTrace]] = {}

    # ---- states and rebalances

    def move(self, state: str, at: Moment) -> None:
        self.state = state
        self.states.append((state, at, self.generation))

    def begin(self, start: Start, shown_by: GroupRequest | None = None) -> RebalanceTrace:
        """Begin a rebalance; one that is under way ends as interrupted."""
        self.end("interrupted", start.at)
        self.rebalance = RebalanceTrace(
            start,
            before={**{member.member_id: member for member, _ in self.lost}, **self.members},
            from_empty=self.state == EMPTY or (self.state == UNKNOWN_STATE and not self.members),
            former_join=self.join,
            shown_by=shown_by,
            removed=self.lost,
            loaded=self.failover if self.is_loaded else None,
        )
        self.is_loaded = False
        self.lost = []
        self.rebalances.append(self.rebalance)
        self.move(PREPARING, start.at)
        return self.rebalance

    def end(self, outcome: str, at: Moment) -> None:
        if self.rebalance is not None and self.rebalance.outcome == "open":
            self.rebalance.outcome = outcome
            self.rebalance.over = at

    def also_started_by(self, start: Start | None) -> None:
        if start is not None and self.rebalance is not None:
            self.rebalance.others.append(start)

    # ---- members

    def outage_behind(self, member: MemberTrace, at: Moment) -> OutageTrace | None:
        """The outage that cost a member its session. One that alone does not come back from it was gone by itself."""
        outage = self.responses.outage_of(member, at.time_ns)
        if outage is None or outage.end_ns is None or self.responses.returns(member, outage.begin_ns):
            return outage
        others = [other for other in self.members.values() if other is not member]
        is_alone = others and all(self.responses.returns(other, outage.begin_ns) for other in others)
        return None if is_alone else outage

    def admit(self, member: MemberTrace) -> MemberTrace:
        self.members[member.member_id] = member
        self.lives.setdefault(member.member_id, []).append(member)
        self.traces.append(member)
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.member_id
        return member

    def admit_known(self, member_id: str, request: GroupRequest, at: Moment) -> MemberTrace:
        """Begin the life of a member that must have joined before its first sign in the source."""
        return self.admit(
            MemberTrace(member_id, request.instance_id, request.client_id, request.host, at, is_new=False)
        )

    def remove(self, member: MemberTrace, at: Moment, why: LeaveReason) -> None:
        """End the life of a member, as far as the coordinator is concerned."""
        member.left, member.why = at, why
        member.parked = member.waits_sync = None
        if self.members.get(member.member_id) is member:
            del self.members[member.member_id]
        if member.instance_id is not None and self.instances.get(member.instance_id) == member.member_id:
            del self.instances[member.instance_id]
        if why != LeaveReason.REPLACED:
            rebalance = self.rebalance if self.state == PREPARING else None
            (self.lost if rebalance is None else rebalance.removed).append((member, why))

    def restore(self, join: Join | None, members: dict[str, MemberTrace], at: Moment) -> None:
        """Go back to the last generation that the coordinator wrote to its log before it was lost."""
        for member in self.members.values():
            member.parked = member.waits_sync = None
            if member.member_id not in members:
                member.left, member.why = at, LeaveReason.FAILOVER
        self.members = {name: member for name, member in members.items() if member.why != LeaveReason.REPLACED}
        for member in self.members.values():
            member.left = member.why = None
            member.parked = member.waits_sync = None
        statics = [member for member in self.members.values() if member.instance_id is not None]
        self.instances = {member.instance_id or "": member.member_id for member in statics}
        self.join = join
        self.leader = None if join is None else join.leader_id
        self.generation = 0 if join is None else join.generation
        self.move(STABLE if self.members else EMPTY, at)

    def new_member(self, request: GroupRequest, who: str, at: Moment) -> MemberTrace:
        """A member that joins. Its connection, else client id and host, show which life the client had before."""
        member = MemberTrace(who, request.instance_id, request.client_id, request.host, at, is_new=True)
        gone = [life for life in self._by_connection.get(request.connection, ()) if life.left is not None]
        if not gone:
            same = self._by_client.get(request.client, [])
            gone = same if all(life.left is not None for life in same) else []
        member.former = gone[-1] if gone else None
        return member

    def take_join(self, member: MemberTrace, request: GroupRequest) -> None:
        """Record a JoinGroup of a member: an eager member holds nothing from then on."""
        stated = next((offer.owned for offer in request.offers if offer.owned is not None), None)
        if is_cooperative(request.offers):
            member.held = member.held if stated is None else stated
        else:
            member.held = frozenset()
        member.joins.append(request)
        member.client_id, member.host = request.client_id or member.client_id, request.host or member.host
        self.connect(member, request)
        member.gave_up, member.gave_up_by, member.rejection = frozenset(), None, None

    def connect(self, member: MemberTrace, request: GroupRequest) -> None:
        if request.connection not in member.connections:
            member.connections.add(request.connection)
            self._by_connection.setdefault(request.connection, []).append(member)
            same = self._by_client.setdefault(request.client, [])
            if member not in same:
                same.append(member)

    def unsynced(self, join: Join, at: Moment) -> list[MemberTrace]:
        """The members of a join that have not sent SyncGroup by then."""
        asked = [request for requests in join.asked.values() for request in requests if request.due <= at]
        names = {request.member_id for request in asked}
        instances = {request.instance_id for request in asked if request.instance_id is not None}
        return [
            member
            for member in self.members.values()
            if member.member_id in join.members
            and member.member_id not in names
            and member.instance_id not in instances
        ]

    def was_member(self, member_id: str) -> bool:
        return member_id in self.lives

    # ---- what a JoinGroup starts

    def join_start(
        self, at: Moment, request: GroupRequest, who: str, member: MemberTrace | None, *, replaces: bool
    ) -> Start | None:
        """What a parked JoinGroup starts in the present state; None: nothing, it only follows.

        :param member: the sender, if it is in the group
        :param replaces: it takes the place of a static member
        """
        if not replaces and member is not None:
            return self._rejoin_start(at, request, member, leads=who == self.leader)
        holder = self.members.get(self.instances.get(request.instance_id or "", ""))
        start = Start(StartKind.STATIC if replaces else StartKind.JOINED, at, None, request)
        if holder is not None:
            start.former = holder.last_join
            start.leads = holder.member_id == self.leader
        self._blame_failover(start, request, None)
        self._blame_outage(start, request, self._lives_of(request))
        return start

    def _rejoin_start(self, at: Moment, request: GroupRequest, member: MemberTrace, *, leads: bool) -> Start | None:
        former = member.last_join
        changed = former is None or former.subscription != request.subscription
        # A coordinator that has loaded the group knows only the assignor that was chosen: every join is news to it.
        loaded = self.is_loaded and self.state == STABLE and not is_follower(request)
        if not loaded and not self._can_start(member, leads=leads, changed=changed):
            return None
        start = Start(StartKind.REJOINED, at, member, request, None, former, leads, member.gave_up, member.gave_up_by)
        start.rejection = member.rejection
        last = self.join
        if member.instance_id is not None and last is not None and last.joined is not None:
            start.missed = None if any(each.who == member.member_id for each in last.requests) else last
        self._blame_failover(start, request, member)
        self._blame_outage(start, request, [member])
        if loaded and start.failover is None and not changed and not leads:
            return None
        return start

    def _can_start(self, member: MemberTrace, *, leads: bool, changed: bool) -> bool:
        """Whether a JoinGroup of a known member starts a rebalance: it has changed, or the leader asks for one."""
        if not changed:
            return leads and self.state != COMPLETING
        is_first_seen = not member.joins  # what it offered before is not in the source
        return not is_first_seen or leads or self.leader is None or bool(member.gave_up)

    def _blame_failover(self, start: Start, request: GroupRequest, member: MemberTrace | None) -> None:
        """Record the loss of the coordinator if this member comes back from it: the loss has broken off the join that
        this one repeats, or the coordinator has forgotten the member."""
        failover = self.failover
        if failover is None:
            return
        lives = [member] if member is not None else self._lives_of(request)
        before = [life for life in lives if life.since <= failover.begin]
        asked = self._asked_before(lives, request)
        if not before or any(other.due > failover.begin and other.error == 0 for other in asked):
            return
        rejection = _rejection_between(before, failover.begin, request.due)
        start.is_repeat = _is_broken_off(asked, failover)
        if start.is_repeat or rejection is not None:
            start.failover = failover
            start.rejection = rejection or start.rejection

    def _blame_outage(self, start: Start, request: GroupRequest, lives: list[MemberTrace]) -> None:
        """Record the outage that a member comes back from, if it lost its place in it: it was in the group before, has
        asked nothing since, and its session was over, or it was rejected."""
        outage = next((each for each in reversed(self.responses.outages) if each.begin_ns < request.due.time_ns), None)
        end_ns = request.due.time_ns if outage is None or outage.end_ns is None else outage.end_ns
        if outage is None or request.due.time_ns - end_ns > _RETURN_NS:
            return
        if any(self._is_cut_off(life, outage, request, end_ns) for life in lives):
            start.outage = outage

    def _is_cut_off(self, life: MemberTrace, outage: OutageTrace, request: GroupRequest, end_ns: int) -> bool:
        was_there = life.left is None or (life.left.time_ns >= outage.begin_ns and life.why in _CUT_OFF)
        if not was_there or life.since.time_ns >= outage.begin_ns:
            return False
        rejected = life.rejection is not None and life.rejection.asked.time_ns >= outage.begin_ns
        answered_ns = self.responses.alive_before(life.member_id, request.due.time_ns - 1)
        until_ns = outage.begin_ns if life.member_id == request.member_id else end_ns + LONG_NS
        return outage.costs_session(life.session_ms, rejected=rejected) and answered_ns <= until_ns

    def _lives_of(self, request: GroupRequest) -> list[MemberTrace]:
        """The lives that the sender of a join without a known member id may have had."""
        found = [*self._by_client.get(request.client, ()), *self._by_connection.get(request.connection, ())]
        if request.instance_id is not None:
            found += [life for life in self.traces if life.instance_id == request.instance_id]
        return list(dict.fromkeys(found))

    def _asked_before(self, lives: list[MemberTrace], request: GroupRequest) -> list[GroupRequest]:
        """The JoinGroup and SyncGroup requests of these lives before a request, in order."""
        asked_by = self.responses.asked_by
        own = [other for name in {life.member_id for life in lives} for other in asked_by.get(name, ())]
        nameless = [other for other in asked_by.get("", ()) if other.client == request.client]
        return sorted((other for other in (*own, *nameless) if other.due < request.due), key=lambda other: other.asked)


def _rejection_between(lives: list[MemberTrace], after: Moment, before: Moment) -> GroupRequest | None:
    """The rejection that shows that the coordinator has forgotten one of these lives, which no rebalance has ended."""
    found = [life.rejection for life in lives if life.rejection is not None and life.why in _OUTLIVED]
    return next((each for each in reversed(found) if after < each.asked < before), None)


def _is_broken_off(asked: list[GroupRequest], failover: Failover) -> bool:
    """Whether the last request before a failover was still without a good response when that came."""
    latest = failover.begin.time_ns + _IN_FLIGHT_NS
    last = next((other for other in reversed(asked) if other.due.time_ns <= latest), None)
    return last is not None and (
        last.api == "JoinGroup" or last.error != 0 or last.answered is None or last.answered >= failover.begin
    )


def is_follower(request: GroupRequest) -> bool:
    """Whether the client states that it joins because the group rebalances already."""
    reason = (request.reason or "").lower()
    return "already rebalancing" in reason or "group is rebalancing" in reason


TOLERANCE_NS: Final = 1_000 * NS_PER_MS
"""Timers of brokers run late, and a capture may be taken at the clients' end."""

FIRST_VERSION_WITH_ID: Final = 4
"""From JoinGroup 4 on, a join without a member id is refused with a new id instead of being parked (KIP-394)."""


class UnseenStarts:
    """Finds starts that are not in the source.

    :ivar unanswered: requests since the last completed join that have no response
    :ivar pending: member ids that were given out and have not joined yet, with the requests that they were given to
    :ivar sync_due: when the time for SyncGroup is over (ns), and for which join
    """

    def __init__(self, group: GroupState) -> None:
        self._group = group
        self._responses = group.responses
        self.unanswered: list[GroupRequest] = []
        self.pending: dict[str, GroupRequest] = {}
        self.sync_due: tuple[int, Join] | None = None

    def forget(self) -> None:
        """The coordinator has lost what it had not written to its log."""
        self.unanswered.clear()
        self.pending.clear()

    def find(self, at: Moment, fallback: Start | None) -> Start:
        """Find what may have started a rebalance that shows at a moment; else the fallback, else a hidden start."""
        found = self._expired_session(at) or self._missing_sync(at) or self._unanswered_request(at)
        found = found or fallback or self._lost_join(at) or self._vanished_member(at)
        return found or self._expired_session(at, self._last_failover()) or self._hidden(at)

    def late_for_sync(self, join: Join, at: Moment) -> list[MemberTrace]:
        """The members that have not sent SyncGroup by then and are not part of the next join."""
        return [
            member
            for member in self._group.unsynced(join, at)
            if not self._responses.is_listed_later(member.member_id, at)
        ]

    def _expired_session(self, at: Moment, failover: Failover | None = None) -> Start | None:
        """A member whose session is over.

        :param failover: count from the loss of the coordinator, not from the first answer of the next one. It counts
            sessions from when it has loaded the group, which no frame shows: Kafka's listener may open many seconds
            later (KRaft: the broker waits to be unfenced), so that sessions end while no member can be answered
        """
        for member in self._group.members.values():
            if self._has_expired(member, at, failover):
                outage = self._group.outage_behind(member, at)
                self._group.remove(member, at, LeaveReason.SESSION if outage is None else LeaveReason.OUTAGE)
                leads = member.member_id == self._group.leader
                return Start(StartKind.SESSION, at, member, leads=leads, outage=outage, inferred=True)
        return None

    def _has_expired(self, member: MemberTrace, at: Moment, failover: Failover | None) -> bool:
        session_ms, name = member.session_ms, member.member_id
        if not session_ms or member.parked is not None or self._responses.last_alive(name) > at.time_ns:
            return False
        renewed_ns = member.alive_ns if failover is None else failover.begin.time_ns
        last = max(renewed_ns, self._responses.alive_before(name, at.time_ns))
        is_over = bool(last) and last + session_ms * NS_PER_MS <= at.time_ns + TOLERANCE_NS
        return is_over and not self._responses.is_listed_later(name, at)

    def _missing_sync(self, at: Moment) -> Start | None:
        due_ns, join = self.sync_due or (0, None)
        if join is None or join is not self._group.join or due_ns > at.time_ns + TOLERANCE_NS:
            return None
        late = self.late_for_sync(join, at)
        if not late:
            return None
        for member in late:
            self._group.remove(member, at, LeaveReason.SYNC)
        leads = late[0].member_id == self._group.leader
        return Start(StartKind.SYNC, at, late[0], leads=leads, inferred=True)

    def _unanswered_request(self, at: Moment) -> Start | None:
        heartbeats = self._responses.traffic.heartbeats
        for request in self.unanswered:
            if request.due > at or heartbeats.is_calm(request.due.time_ns + CALM_NS, at.time_ns):
                continue
            found = self._by_leave(request, at) if request.api == "LeaveGroup" else self._by_join(request)
            if found is not None:
                return found
        return None

    def _by_leave(self, request: GroupRequest, at: Moment) -> Start | None:
        leaver = next((each for each in request.leavers if each.member_id in self._group.members), None)
        if leaver is None or self._responses.is_listed_later(leaver.member_id, at):
            return None
        member = self._group.members[leaver.member_id]
        member.leave = request
        self._group.remove(member, request.due, LeaveReason.LEFT)
        return Start(StartKind.LEFT, request.due, member, request, leaver, inferred=True)

    def _by_join(self, request: GroupRequest) -> Start | None:
        member = self._group.members.get(request.member_id)
        if member is not None:
            start = self._group.join_start(request.due, request, request.member_id, member, replaces=False)
            if start is not None:
                start.inferred = True
            return start
        needs_id = request.version >= FIRST_VERSION_WITH_ID and request.instance_id is None
        if request.member_id not in self.pending and (request.member_id or needs_id):
            return None  # the coordinator refused it
        return Start(StartKind.JOINED, request.due, None, request, inferred=True)

    def _lost_join(self, at: Moment) -> Start | None:
        """A member that was given an id, and goes on with it: only its JoinGroup is missing."""
        heartbeats = self._responses.traffic.heartbeats
        for member_id, request in self.pending.items():
            given = request.answered
            if given is None or given > at or self._group.was_member(member_id):
                continue
            if self._responses.last_alive(member_id) > at.time_ns:
                is_calm = heartbeats.is_calm(given.time_ns + CALM_NS, at.time_ns)
                return Start(StartKind.JOINED, at if is_calm else given, None, request, inferred=True)
        return None

    def _vanished_member(self, at: Moment) -> Start | None:
        join = self._responses.next_join(at)
        if join is None or not join.is_listed:
            return None
        for member in self._group.members.values():
            is_silent = self._responses.last_alive(member.member_id) <= at.time_ns
            if member.member_id not in join.members and member.session_ms is None and is_silent:
                return Start(StartKind.VANISHED, at, member, inferred=True)
        return None

    def _last_failover(self) -> Failover | None:
        """The last loss of the coordinator, if no join has been completed since."""
        failover, join = self._group.failover, self._group.join
        return failover if failover is not None and (join is None or join.at < failover.begin) else None

    def _hidden(self, at: Moment) -> Start:
        return Start(StartKind.HIDDEN, at, failover=self._last_failover(), inferred=True)
