"""What may have started a rebalance whose start no frame shows.

Law: a candidate must fit all that was answered: a member with a later sign of life was not removed, and no member was
joining while heartbeats were answered without error. The member of the candidate that fits is removed here, so that the
replay goes on without it.
"""

from __future__ import annotations

from typing import Final

from kcoord_wire.forensics.model import NS_PER_MS
from kcoord_wire.forensics.wire.failovers import Failover
from kcoord_wire.forensics.wire.group import GroupState
from kcoord_wire.forensics.wire.hindsight import CALM_NS
from kcoord_wire.forensics.wire.joins import Join
from kcoord_wire.forensics.wire.moments import Moment
from kcoord_wire.forensics.wire.trace import MemberTrace, Start, StartKind, Why
from kcoord_wire.forensics.wire.traffic import GroupRequest

TOLERANCE_NS: Final = 1_000 * NS_PER_MS
"""Timers of brokers run late, and a capture may be taken at the clients' end."""

FIRST_VERSION_WITH_ID: Final = 4
"""From JoinGroup 4 on, a join without a member id is refused with a new id instead of being parked (KIP-394)."""


class UnseenStarts:
    """Finds starts that are not in the source.

    :ivar unanswered: requests since the last completed join that have no response
    :ivar pending: member ids that were given out and have not joined yet
    :ivar sync_due: when the time for SyncGroup is over (ns), and for which join
    """

    def __init__(self, group: GroupState) -> None:
        self._group = group
        self._hindsight = group.hindsight
        self.unanswered: list[GroupRequest] = []
        self.pending: set[str] = set()
        self.sync_due: tuple[int, Join] | None = None

    def forget(self) -> None:
        """The coordinator has lost what it had not written to its log."""
        self.unanswered.clear()
        self.pending.clear()

    def find(self, at: Moment, fallback: Start | None) -> Start:
        """Find what may have started a rebalance that shows at a moment; else the fallback, else a hidden start."""
        found = self._expired_session(at) or self._missing_sync(at) or self._unanswered_request(at)
        found = found or fallback or self._vanished_member(at)
        return found or self._expired_session(at, self._last_failover()) or self._hidden(at)

    def late_for_sync(self, join: Join, at: Moment) -> list[MemberTrace]:
        """The members that have not sent SyncGroup by then and are not part of the next join."""
        return [
            member
            for member in self._group.unsynced(join, at)
            if not self._hindsight.is_listed_later(member.member_id, at)
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
                self._group.remove(member, at, Why.SESSION if outage is None else Why.OUTAGE)
                leads = member.member_id == self._group.leader
                return Start(StartKind.SESSION, at, member, leads=leads, outage=outage, inferred=True)
        return None

    def _has_expired(self, member: MemberTrace, at: Moment, failover: Failover | None) -> bool:
        session_ms, name = member.session_ms, member.member_id
        if not session_ms or member.parked is not None or self._hindsight.last_alive(name) > at.time_ns:
            return False
        renewed_ns = member.alive_ns if failover is None else failover.begin.time_ns
        last = max(renewed_ns, self._hindsight.alive_before(name, at.time_ns))
        is_over = bool(last) and last + session_ms * NS_PER_MS <= at.time_ns + TOLERANCE_NS
        return is_over and not self._hindsight.is_listed_later(name, at)

    def _missing_sync(self, at: Moment) -> Start | None:
        due_ns, join = self.sync_due or (0, None)
        if join is None or join is not self._group.join or due_ns > at.time_ns + TOLERANCE_NS:
            return None
        late = self.late_for_sync(join, at)
        if not late:
            return None
        for member in late:
            self._group.remove(member, at, Why.SYNC)
        leads = late[0].member_id == self._group.leader
        return Start(StartKind.SYNC, at, late[0], leads=leads, inferred=True)

    def _unanswered_request(self, at: Moment) -> Start | None:
        heartbeats = self._hindsight.traffic.heartbeats
        for request in self.unanswered:
            if request.due > at or heartbeats.is_calm(request.due.time_ns + CALM_NS, at.time_ns):
                continue
            found = self._by_leave(request, at) if request.api == "LeaveGroup" else self._by_join(request)
            if found is not None:
                return found
        return None

    def _by_leave(self, request: GroupRequest, at: Moment) -> Start | None:
        leaver = next((each for each in request.leavers if each.member_id in self._group.members), None)
        if leaver is None or self._hindsight.is_listed_later(leaver.member_id, at):
            return None
        member = self._group.members[leaver.member_id]
        member.leave = request
        self._group.remove(member, request.due, Why.LEFT)
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

    def _vanished_member(self, at: Moment) -> Start | None:
        join = self._hindsight.next_join(at)
        if join is None or not join.is_listed:
            return None
        for member in self._group.members.values():
            is_silent = self._hindsight.last_alive(member.member_id) <= at.time_ns
            if member.member_id not in join.members and member.session_ms is None and is_silent:
                return Start(StartKind.VANISHED, at, member, inferred=True)
        return None

    def _last_failover(self) -> Failover | None:
        """The last loss of the coordinator, if no join has been completed since."""
        failover, join = self._group.failover, self._group.join
        return failover if failover is not None and (join is None or join.at < failover.begin) else None

    def _hidden(self, at: Moment) -> Start:
        return Start(StartKind.HIDDEN, at, failover=self._last_failover(), inferred=True)
