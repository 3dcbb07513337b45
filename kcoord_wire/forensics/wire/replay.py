"""A group's history, replayed: what the coordinator must have gone through to answer as it did.

    replay = Replay(traffic, joins, failovers)
    replay.run()
    replay.rebalances

Theory of operation. The requests are given to a model of the coordinator in the order in which it read them. Unlike the
coordinator, the model knows every response beforehand: which JoinGroup requests waited for which join, which were
refused, who was in the leader's list. It computes no outcomes. It finds what moved the group out of its state: a join,
a leave, or a timer. Where the responses show a rebalance that nothing in the source started, `UnseenStarts`
looks for what fits.

Laws:

* The replay never contradicts a response: a member that is answered well under its id has not been removed before.
* One rebalance per completed join, as the coordinator counts them: a start while members join adds to the rebalance
  that is under way; a start while the leader's SyncGroup is pending ends it as ``interrupted`` and begins the next.
* Nothing raises: requests may be missing, members unknown, times out of order.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

from kcoord_wire.forensics.model import EPOCH_APIS, NS_PER_MS
from kcoord_wire.forensics.wire.group import FIRST_VERSION_WITH_ID, TOLERANCE_NS, GroupState, UnseenStarts, is_follower
from kcoord_wire.forensics.wire.joins import PARKED_NS, Failover, Join, unshown_members
from kcoord_wire.forensics.wire.outages import BROKER_DOWN, OutageTrace
from kcoord_wire.forensics.wire.signs import Moment, end_of
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
)
from kcoord_wire.forensics.wire.traffic import GroupRequest, GroupTraffic, Leaver
from kcoord_wire.protocol.error_codes import ErrorCode

_REFUSED_NS: Final = 5 * NS_PER_MS  # a refusal that took longer was parked first
_PARKED_ERRORS: Final = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
)
"""Errors that a parked JoinGroup may be answered with."""

_REJECTIONS: Final = frozenset(
    {ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}
)


class Rank(IntEnum):
    """The order of events of the same moment."""

    FAILOVER = 0  # everything else of that moment meets a coordinator that has lost its memory
    FIRST_SIGN = 1  # a member known by heartbeats alone has to be in the group before another event names it
    JOIN_COMPLETE = 2  # the first response marks the moment: the state has changed when a response goes out
    ASKED = 3  # a request is read before its response, which may carry the same time stamp
    ANSWERED = 4
    OBSERVED = 5  # error 27 proves a rebalance only after every start that the source shows has been replayed
    TIMEOUT = 6  # a timer loses against every request of its moment, which extends the session or the join


class _Event(NamedTuple):
    """A step to be taken. `order` keeps events of one moment and rank as they were planned."""

    at: Moment
    rank: Rank
    order: int
    step: Callable[..., None]
    about: tuple[Any, ...]


class Replay(GroupState):
    """The state of the group (`GroupState`) with the steps that events make it take.

    When `run` has returned, `rebalances`, `traces` and `states` are complete.
    """

    def __init__(
        self,
        traffic: GroupTraffic,
        joins: list[Join],
        failovers: list[Failover],
        outages: Sequence[OutageTrace] = (),
    ) -> None:
        super().__init__(ResponseIndex(traffic, joins, failovers, outages))
        self._traffic = traffic
        self._unseen = UnseenStarts(self)
        self._unshown = {name for join in joins for name in unshown_members(join, traffic)}
        self._written: tuple[Join, dict[str, MemberTrace]] | None = None  # what a failover leaves of the group
        self._loaded_ns = 0
        self._events: list[_Event] = []
        self._count = 0

    def run(self) -> None:
        self._plan_requests()
        self._plan_silences()
        while self._events:
            event = heapq.heappop(self._events)
            event.step(event.at, *event.about)
        self._finish()

    # ---- events

    def _plan(self, at: Moment, rank: Rank, step: Callable[..., None], *about: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, _Event(at, rank, self._count, step, about))

    def _plan_timer(self, end_ns: int, step: Callable[..., None], *about: Any) -> None:
        self._plan(end_of(end_ns), Rank.TIMEOUT, step, *about)

    def _plan_requests(self) -> None:
        for request in self._traffic.requests:
            self._plan_request(request)
        for join in self.responses.joins:
            self._plan(join.at, Rank.JOIN_COMPLETE, self._complete_join, join)
        for failover in self.responses.failovers:
            self._plan(failover.begin, Rank.FAILOVER, self._fail_over, failover)
        modern = {request.who for request in self._traffic.requests if request.api in EPOCH_APIS}
        modern |= self._traffic.heartbeats.modern.keys()
        for member_id, sign in self._traffic.heartbeats.first.items():
            if member_id not in modern:
                self._plan(sign.at, Rank.FIRST_SIGN, self._see_first_sign, member_id)

    def _plan_request(self, request: GroupRequest) -> None:
        asks = {"JoinGroup": self._ask_join, "SyncGroup": self._ask_sync, "LeaveGroup": self._ask_leave}
        ask = asks.get(request.api)
        if ask is not None:
            self._plan(request.due, Rank.ASKED, ask, request)
        if request.answered is None:
            return
        if request.api != "FindCoordinator":
            self._plan(request.answered, Rank.ANSWERED, self._answer, request)
        if request.error == ErrorCode.REBALANCE_IN_PROGRESS:
            if request.api == "SyncGroup":  # it may have waited until then
                self._plan(request.answered, Rank.OBSERVED, self._see_rebalancing, request)
            elif request.api == "Heartbeat":
                self._plan(request.due, Rank.OBSERVED, self._see_rebalancing, request)

    def _plan_silences(self) -> None:
        session_ns = {
            member_id: request.session_ms * NS_PER_MS
            for member_id, request in self.responses.last_joins().items()
            if request.session_ms
        }
        traffic = self._traffic
        for member_id, start_ns in traffic.heartbeats.silences(self.responses.alive, session_ns, traffic.seen_until):
            self._plan_timer(start_ns + session_ns[member_id], self._expire_session, member_id, start_ns)

    # ---- rebalances

    def _begin_rebalance(self, start: Start, shown_by: GroupRequest | None = None) -> None:
        for member in self.members.values():
            self._release_sync(member, start.at.time_ns)
        rebalance = self.begin(start, shown_by)
        timeout_ms = self._join_timeout_ms()
        if not rebalance.from_empty and timeout_ms is not None:
            self._plan_timer(start.at.time_ns + timeout_ms * NS_PER_MS, self._expire_join, rebalance)

    def _join_timeout_ms(self) -> int | None:
        """The longest rebalance timeout of the members; None if one of them is not known, or there is no member."""
        timeouts = [member.rebalance_ms for member in self.members.values()]
        known = [timeout for timeout in timeouts if timeout is not None]
        return max(known) if known and len(known) == len(timeouts) else None

    def _release_sync(self, member: MemberTrace, now_ns: int) -> None:
        """A SyncGroup that waited for the leader's is answered: its member's session begins anew."""
        if member.waits_sync is not None:
            member.waits_sync = None
            self._renew_session(member, now_ns)

    def _renew_session(self, member: MemberTrace, now_ns: int) -> None:
        """The coordinator begins a session anew without a request of the member."""
        member.alive_ns = max(member.alive_ns, now_ns)
        if member.session_ms:
            after = self.responses.next_alive(member.member_id, now_ns)
            end = now_ns + member.session_ms * NS_PER_MS
            if (after is None or after > end) and end <= self._traffic.horizon_ns:
                self._plan_timer(end, self._expire_session, member.member_id, now_ns)

    def _expire_join(self, at: Moment, rebalance: RebalanceTrace) -> None:
        """The time to join is over: if no member has joined, the group is empty."""
        if self.rebalance is not rebalance or self.state != PREPARING or at.time_ns > self._traffic.horizon_ns:
            return
        if any(member.parked is not None or member.instance_id is not None for member in self.members.values()):
            return
        join = self.responses.next_join(at)
        if join is not None and (join.generation == (self.generation or 0) + 1 or at > join.at):
            return
        for member in list(self.members.values()):
            self.remove(member, at, LeaveReason.REBALANCE)
        self._lose_members(None, at)

    def _lose_members(self, start: Start | None, at: Moment) -> None:
        """After members are gone, a rebalance begins, or goes on, or ends with an empty group; if only members are left
        of which the source shows no request, it ends unseen.
        """
        if start is not None and self.state != PREPARING:
            self._begin_rebalance(start)
        else:
            self.also_started_by(start)
        rebalance = self.rebalance
        if self.members and self._unshown.issuperset(self.members):
            self.end("unseen", at)
            self.move(UNKNOWN_STATE, at)
        if self.members or rebalance is None or self.state != PREPARING:
            return
        join = self.responses.next_join(at)
        expected = None if self.generation is None else self.generation + 1
        if rebalance.from_empty and join is not None and join.generation == expected:
            return  # others joined before the initial delay was over
        self.generation = rebalance.generation = expected
        self.end("empty", at)
        self.leader = self.join = self._written = None
        self.move(EMPTY, at)

    # ---- JoinGroup: was it parked, what does it start, who is its sender

    def _ask_join(self, at: Moment, request: GroupRequest) -> None:
        if request.error == ErrorCode.GROUP_MAX_SIZE_REACHED:
            self._reject_for_size(at, request)
            return
        who = self._parked_as(request)
        if not who:
            return
        holder = self.instances.get(request.instance_id) if request.instance_id is not None else None
        replaced = holder if holder != who or not request.member_id else None
        if request.is_late:
            self._join_late(at, request, who, replaced)
            return
        member = self.members.get(who)
        start = self._start_by_join(at, request, who, replaces=replaced is not None)
        if replaced is not None or member is None:
            member = self._admit_joining(at, request, who, replaced)
            rebalance = self.rebalance
            for each in (start, *(rebalance.others if rebalance is not None else ())):
                if each is not None and each.request is request:
                    each.member = member
        self.take_join(member, request)
        member.parked = request
        if self.rebalance is not None:
            self.rebalance.joins.append((at, member))

    def _reject_for_size(self, at: Moment, request: GroupRequest) -> None:
        member = self.members.get(request.member_id)
        if member is not None and not self.responses.is_listed_later(request.member_id, at):
            self.remove(member, at, LeaveReason.TOO_LARGE)

    def _parked_as(self, request: GroupRequest) -> str:
        """The member id under which a JoinGroup was parked; empty if it was not, or its id is not known."""
        if request.join is None and not self._was_parked(request):
            if request.error is None:
                self._unseen.unanswered.append(request)
            return ""
        who = self.responses.name_of(request)
        if not who and self.responses.is_cut_off(request):
            return f"?{request.connection}"  # the coordinator was lost before it sent the id
        if not who:
            self._unseen.unanswered.append(request)
        return who

    def _was_parked(self, request: GroupRequest) -> bool:
        """Whether a JoinGroup without a good response was parked at the coordinator all the same."""
        if request.error is None:
            return request.answered is None and self._was_parked_unanswered(request)
        if request.error == ErrorCode.NOT_COORDINATOR and request.given_id and not request.member_id:
            return True  # it had been given an id by then
        wait_ns = 0 if request.answered is None else request.answered.time_ns - request.due.time_ns
        least_ns = _REFUSED_NS if request.error == ErrorCode.NOT_COORDINATOR else PARKED_NS
        if wait_ns <= least_ns or request.error not in _PARKED_ERRORS or not request.who:
            return False
        if request.error == ErrorCode.UNKNOWN_MEMBER_ID and self.state != UNKNOWN_STATE:
            # An id that the coordinator does not know is refused at once, however long the response took.
            return request.member_id in self.members or request.member_id in self._unseen.pending
        return True

    def _was_parked_unanswered(self, request: GroupRequest) -> bool:
        if self.responses.is_cut_off(request):
            return bool(request.member_id) or request.version < FIRST_VERSION_WITH_ID or request.instance_id is not None
        join = self.responses.next_join(request.due)
        if join is not None:
            is_listed = join.is_listed and request.member_id in join.members
            return is_listed and request.member_id not in self.members
        is_closed = self.responses.is_closed_after(request)
        return not is_closed and bool(request.member_id) and self.responses.is_parked_to_the_end(request)

    def _start_by_join(self, at: Moment, request: GroupRequest, who: str, *, replaces: bool) -> Start | None:
        """Begin the rebalance that a parked JoinGroup starts or shows, or add to the one that is under way."""
        start = self.join_start(at, request, who, self.members.get(who), replaces=replaces)
        if self.state == PREPARING:
            self.also_started_by(start)
            return start
        if start is None or (start.kind == StartKind.REJOINED and is_follower(request)):
            start = self._unseen.find(at, start)
        is_hidden = start.kind == StartKind.HIDDEN
        self._begin_rebalance(start, request if is_hidden else None)
        if not is_hidden and start.request is not request:
            self.also_started_by(self.join_start(at, request, who, self.members.get(who), replaces=replaces))
        return start

    def _admit_joining(self, at: Moment, request: GroupRequest, who: str, replaced: str | None) -> MemberTrace:
        old = self.members.get(replaced) if replaced is not None else None
        if old is not None:
            self.remove(old, at, LeaveReason.REPLACED)
        member = self.admit(self.new_member(request, who, at))
        if old is not None:
            member.former, member.held = old, old.held
        return member

    def _join_late(self, at: Moment, request: GroupRequest, who: str, replaced: str | None) -> None:
        """A JoinGroup that was answered at once: only the process behind a static member may have changed."""
        member = self.members.get(who)
        if replaced is not None:
            old = self.members.get(replaced)
            member = self.new_member(request, who, at)
            if old is not None:
                self.remove(old, at, LeaveReason.REPLACED)
                member.former, member.held = old, frozenset()
                member.first_generation = member.last_generation = self.generation
            self.admit(member)
            if self.leader == replaced:
                self.leader = who
        elif member is None:
            member = self.admit(self.new_member(request, who, at))
            member.is_new = False
        self.take_join(member, request)

    # ---- the join is complete

    def _complete_join(self, at: Moment, join: Join) -> None:
        if self.state != PREPARING:
            shown_by = min(join.requests, key=lambda request: request.due, default=None)
            started = at if join.joined is not None else join.first_sync
            self._begin_rebalance(self._unseen.find(started, None), shown_by)
        rebalance = self.rebalance
        assert rebalance is not None, "one has begun"
        self._admit_listed(at, join)
        if join.leader_id in self._unshown and join.leader_id not in self.members:
            self.admit(MemberTrace(join.leader_id, None, None, "", at, is_new=False))
        for member in list(self.members.values()):
            if self._is_absent(member, join, at):
                self.remove(member, at, self._why_absent(member, at))
        rebalance.join, rebalance.joined = join, join.joined
        self.join = join
        rebalance.generation = self.generation = join.generation
        rebalance.after = dict(self.members)
        self.leader = join.leader_id
        self._unseen.unanswered.clear()
        for member in self.members.values():
            member.parked = None
            member.last_generation = join.generation
            if member.first_generation is None:
                member.first_generation = join.generation
            self._renew_session(member, at.time_ns)
        self.move(COMPLETING, at)
        timeout_ms = self._join_timeout_ms()
        if join.joined is not None and timeout_ms is not None:
            end_ns = at.time_ns + timeout_ms * NS_PER_MS
            self._unseen.sync_due = (end_ns, join)
            self._plan_timer(end_ns, self._expire_sync, join)

    def _admit_listed(self, at: Moment, join: Join) -> None:
        """Admit the members of a join of which the replay has seen no join of their own."""
        for member_id, listed in join.members.items():
            if member_id in self.members:
                continue
            asked = next((request for request in join.requests if request.who == member_id), None)
            asked = asked or self._unseen.pending.pop(member_id, None)
            lost = next((request for request in self._unseen.unanswered if request.member_id == member_id), None)
            if asked is None and lost is not None and lost.api == "JoinGroup":
                self.take_join(self.admit(self.new_member(lost, member_id, lost.due)), lost)
                continue
            member = MemberTrace(member_id, listed.instance_id, None, "", at, is_new=False)
            if asked is not None:
                member.client_id, member.host = asked.client_id, asked.host
            self.admit(member)

    def _is_absent(self, member: MemberTrace, join: Join, at: Moment) -> bool:
        if join.joined is None:
            return False
        if join.is_listed:
            return member.member_id not in join.members
        is_waiting = member.parked is not None or member.instance_id is not None or member.member_id in self._unshown
        return not is_waiting and self.responses.last_alive(member.member_id) <= at.time_ns

    def _why_absent(self, member: MemberTrace, at: Moment) -> LeaveReason:
        for request in self._unseen.unanswered:
            if request.api == "LeaveGroup" and any(each.member_id == member.member_id for each in request.leavers):
                return LeaveReason.LEFT
        is_unjoined = member.parked is not None and member.first_generation is None
        if member.instance_id is not None or is_unjoined:
            return LeaveReason.SESSION  # a join does not remove static members, nor members whose JoinGroup is parked
        last = max(self.responses.alive_before(member.member_id, at.time_ns), member.alive_ns)
        is_over = bool(member.session_ms) and last + (member.session_ms or 0) * NS_PER_MS <= at.time_ns
        if not is_over or member.parked is not None:
            return LeaveReason.REBALANCE
        return LeaveReason.SESSION if self.outage_behind(member, at) is None else LeaveReason.OUTAGE

    # ---- SyncGroup

    def _ask_sync(self, at: Moment, request: GroupRequest) -> None:
        join, member = request.join, self.members.get(request.member_id)
        if join is None or join is not self.join or member is None:
            return
        self.connect(member, request)
        if (request.error != 0 and request.answered is not None) or self.state != COMPLETING:
            return
        if request is join.leader_sync:
            self._become_stable(at)
        else:
            member.waits_sync = request

    def _become_stable(self, at: Moment) -> None:
        self.move(STABLE, at)
        if self.rebalance is not None:
            self.rebalance.stable = at
        self.end("stable", at)
        if self.join is not None:
            self._written = (self.join, dict(self.members))
        for member in self.members.values():
            self._release_sync(member, at.time_ns)

    def _expire_sync(self, at: Moment, join: Join) -> None:
        if self.join is not join or self.state not in (COMPLETING, STABLE) or at.time_ns > self._traffic.horizon_ns:
            return
        late = [
            member
            for member in self._unseen.late_for_sync(join, at)
            if self.responses.last_alive(member.member_id) <= at.time_ns + CALM_NS
        ]
        for member in late:
            self.remove(member, at, LeaveReason.SYNC)
        if late:
            self._lose_members(Start(StartKind.SYNC, at, late[0], inferred=True), at)

    # ---- LeaveGroup

    def _ask_leave(self, at: Moment, request: GroupRequest) -> None:
        leaving = [(self._leaving_member(at, request, leaver), leaver) for leaver in request.leavers]
        gone = [(member, leaver) for member, leaver in leaving if member is not None]
        for member, _ in gone:
            member.leave = request
            self.connect(member, request)
            self.remove(member, at, LeaveReason.LEFT)
        if gone:
            member, leaver = gone[0]
            leads = member.member_id == self.leader
            self._lose_members(Start(StartKind.LEFT, at, member, request, leaver, leads=leads), at)

    def _leaving_member(self, at: Moment, request: GroupRequest, leaver: Leaver) -> MemberTrace | None:
        who = leaver.member_id or self.instances.get(leaver.instance_id or "", "")
        if who in self._unseen.pending:
            del self._unseen.pending[who]
            return None
        if leaver.error_code or request.error or not who:
            return None
        member = self.members.get(who)
        if member is None:
            if request.answered is None or self.was_member(who):
                return None
            return self.admit(MemberTrace(who, leaver.instance_id, request.client_id, request.host, at, is_new=False))
        if request.answered is None and self.responses.last_alive(who) > at.time_ns + TOLERANCE_NS:
            self._unseen.unanswered.append(request)  # the coordinator has not received it
            return None
        return member

    # ---- sessions

    def _expire_session(self, at: Moment, member_id: str, start_ns: int) -> None:
        member = self.members.get(member_id)
        if member is None or not self._is_silent(member, at, start_ns):
            return
        if self.responses.has_hole(member, start_ns, at.time_ns):
            return  # it may have left, or sent a heartbeat: only what the others are answered shows that it is gone
        if start_ns < self._loaded_ns:
            self._renew_session(member, self._loaded_ns)
            return
        outage = self.responses.outage_between(start_ns, at.time_ns)
        if outage is not None and not self._outlasts(outage, member, at, start_ns):
            return
        calm_ns = self.responses.calm_until_next_sign(at.time_ns)
        if calm_ns is not None:  # no member was joining until then, so that it was still in the group
            unanswered = self._traffic.heartbeats.unanswered.before(member_id, at.time_ns, start_ns)
            end_ns = 0 if unanswered is None else unanswered + (member.session_ms or 0) * NS_PER_MS
            self._plan_timer(end_ns if end_ns > at.time_ns else calm_ns, self._expire_session, member_id, start_ns)
            return
        leads = member_id == self.leader
        cut_off = self.outage_behind(member, at)
        self.remove(member, at, LeaveReason.SESSION if cut_off is None else LeaveReason.OUTAGE)
        self._lose_members(Start(StartKind.SESSION, at, member, leads=leads, outage=cut_off, inferred=True), at)

    def _outlasts(self, outage: OutageTrace, member: MemberTrace, at: Moment, start_ns: int) -> bool:
        """Whether a session is known to have ended by the end of an outage; until then, no member was answered.

        The timers of a broker that was down begin anew. Those of a broker that was only cut off, or stood still, have
        ended if a rebalance more than the next join has been since.
        """
        if outage.end_ns is None:
            return False
        if at.time_ns < outage.end_ns:
            self._plan_timer(outage.end_ns, self._expire_session, member.member_id, start_ns)
            return False
        join = self.responses.next_join(at)
        if join is None:
            return self.responses.is_rejected_after(member.member_id, outage.begin_ns)
        if join.generation > (self.generation or 0) + 1:
            return True
        if outage.kind == BROKER_DOWN:
            self._renew_session(member, outage.end_ns)
        return False

    def _is_silent(self, member: MemberTrace, at: Moment, start_ns: int) -> bool:
        if at.time_ns > self._traffic.horizon_ns or member.parked is not None or member.waits_sync is not None:
            return False
        if start_ns < member.alive_ns or self.responses.last_alive(member.member_id) > at.time_ns + CALM_NS:
            return False
        return self.state == UNKNOWN_STATE or not self.responses.is_listed_later(member.member_id, at)

    def _see_first_sign(self, at: Moment, member_id: str) -> None:
        """A member whose join is not in the source."""
        if member_id in self.members or member_id in self._unseen.pending or self.was_member(member_id):
            return
        sign = self._traffic.heartbeats.first[member_id]
        old = self.members.get(self.instances.get(sign.instance_id or "", ""))
        if old is not None and self.responses.last_alive(old.member_id) <= at.time_ns:
            self.remove(old, at, LeaveReason.REPLACED)  # a static member that is back
        member = self.admit(MemberTrace(member_id, sign.instance_id, sign.client_id, sign.host, at, is_new=False))
        member.first_generation = member.last_generation = sign.generation
        if self.state == UNKNOWN_STATE:
            self.generation = sign.generation
            self.move(STABLE, at)

    # ---- responses

    def _answer(self, at: Moment, request: GroupRequest) -> None:
        if request.api == "JoinGroup" and request.error == ErrorCode.MEMBER_ID_REQUIRED and request.given_id:
            self._unseen.pending[request.given_id] = request
        elif request.api == "JoinGroup" and request.error == 0:
            self._unseen.pending.pop(request.who, None)
        elif request.api == "SyncGroup" and request.error == 0:
            self._assign(at, request)
        elif request.error in _REJECTIONS:
            for life in self.lives.get(request.member_id, ()):
                life.rejection = request

    def _assign(self, at: Moment, request: GroupRequest) -> None:
        member, join = self.members.get(request.member_id), request.join
        if member is None or join is None:
            return
        member.waits_sync = None
        if request.granted is not None:
            member.gave_up, member.gave_up_by = member.held - request.granted, request
            member.held = request.granted
        if join is self.join and self.state == COMPLETING:
            self._become_stable(at)

    def _see_rebalancing(self, at: Moment, request: GroupRequest) -> None:
        if not self.was_member(request.member_id):
            member = self.admit_known(request.member_id, request, at)
            member.last_generation = member.first_generation = request.generation
        if self.state == UNKNOWN_STATE:
            self.generation = request.generation
        sync = None if self.join is None else self.join.leader_sync
        if self.state == COMPLETING and sync is not None and sync.due > at:
            return  # the leader's SyncGroup is read later, so no member was joining: this request was sent twice
        if self.state in (PREPARING, EMPTY) or request.generation not in (None, self.generation):
            return
        start = self._unseen.find(at, None)
        if start.kind == StartKind.HIDDEN and request.answered is not None and at < request.answered:
            self._plan(request.answered, Rank.OBSERVED, self._see_rebalancing, request)  # it may have started meanwhile
            return
        self._begin_rebalance(start, request)

    # ---- the coordinator is lost

    def _fail_over(self, at: Moment, failover: Failover) -> None:
        following = self.responses.next_join(at)
        if self._was_written(following):
            self._become_stable(at)
        if self.state in (PREPARING, COMPLETING):
            self.end("interrupted", at)
        self.failover = failover
        self.is_loaded = True
        self.lost = []
        self._unseen.forget()
        self._loaded_ns = self._served_again_ns(at, failover)
        if self.state in (STABLE, EMPTY, UNKNOWN_STATE) or (self._written is None and following is None):
            return
        join, members = self._written if self._written is not None else (None, {})
        self.restore(join, members, at)
        for member in self.members.values():
            self._renew_session(member, self._loaded_ns)

    def _was_written(self, following: Join | None) -> bool:
        """Whether the join that is awaiting its SyncGroup was in the log: the next generation counts on from it."""
        join = self.join
        if self.state != COMPLETING or join is None or not join.asked:
            return False
        return following is not None and following.generation == join.generation + 1

    def _served_again_ns(self, at: Moment, failover: Failover) -> int:
        """When the coordinator answers well again: then it has loaded the group and all sessions begin anew."""
        times = [
            request.answered.time_ns
            for request in self._traffic.requests
            if request.error == 0 and request.answered is not None and request.due > at
        ]
        calm = self._traffic.heartbeats.next_calm(failover.end.time_ns)
        return min(times if calm is None else [*times, calm], default=failover.end.time_ns)

    def _finish(self) -> None:
        for rebalance in self.rebalances:
            if rebalance.outcome == "open" and rebalance is not self.rebalance:
                rebalance.outcome = "interrupted"
        for trace in self.traces:
            trace.connections |= self._traffic.heartbeats.connections.get(trace.member_id, set())
        self.traces.sort(key=lambda trace: trace.since)
