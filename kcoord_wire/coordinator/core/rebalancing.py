"""Rebalances of groups of the classic protocol: what begins one, waits in it and ends it.

Theory of operation: see `machine.py`, whose handlers of requests call what is here.

Laws:

* A parked request is answered once: when the rebalance that it waits for ends, or its member is removed.
* Each rebalance has one account, which begins with its cause and ends with its outcome.

Source: KIP-134, 345, 814; Kafka's `GroupMetadataManager.java`, `ClassicGroup.java`.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core import events
from kcoord_wire.coordinator.core.apis import refusal
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.events import LoggedMachine
from kcoord_wire.coordinator.core.groups import Group, Member, Move, State, Subscribed, group_record
from kcoord_wire.protocol.error_codes import ErrorCode

GENERATIONS: Final = 1 << 31  # generations wrap to 0, since negative ones mean that there is none
LEAST_REPEATED_WAIT_MS: Final = 1_000  # members may have a rebalance timeout of 0


class RebalancingMachine(LoggedMachine):
    """The rebalances of groups; `GroupMachine` answers their requests.

    :param subscribed: decodes the topics of a subscription
    :param config: Kafka's defaults if None
    """

    def __init__(self, subscribed: Subscribed, config: GroupConfig | None) -> None:
        super().__init__(config)
        self._subscribed = subscribed

    def _rebalance(self, group: Group, trigger: events.Trigger, who: Member, reason: str | None = None) -> None:
        """Start a rebalance, or complete the one in progress if that is possible now."""
        if group.state is not State.PREPARING:
            self._prepare(group, trigger, who, reason)
        else:
            self._maybe_complete_join(group)

    def _prepare(self, group: Group, trigger: events.Trigger, who: Member, reason: str | None) -> None:
        now = self._effects.now
        if group.state is State.COMPLETING:
            for member in group.members.values():
                member.assignment = b""
                if member.sync is not None:
                    self._answer_sync(group, member, ErrorCode.REBALANCE_IN_PROGRESS)
        events.cancel(group.sync_timer)
        joined = [(member.member_id, 0) for member in group.members.values() if member.join is not None]
        group.begin_rebalance(
            self._effects, trigger, group.generation_id, who, who.group_instance_id, reason
        ).joins.extend(joined)
        from_empty, delay = group.state is State.EMPTY, self.config.initial_rebalance_delay_ms
        group.move(Move.PREPARE, now)
        if from_empty and delay:
            group.filling = True
            group.filling_grew = False
            self._fill(group, delay, max(group.rebalance_timeout_ms - delay, 0))
        elif from_empty or group.all_joined:
            self._complete_join(group)
        else:
            self._await_joins(group)

    def _fill(self, group: Group, delay: int, remaining: int) -> None:
        """Wait for more members of a group that was empty (KIP-134)."""
        filled = partial(self._filled, group, delay, remaining)
        group.join_timer = self._timers.start(self._effects.now + delay, filled)

    def _filled(self, group: Group, delay: int, remaining: int) -> None:
        if group.filling_grew and remaining:
            group.filling_grew = False
            self._fill(group, min(self.config.initial_rebalance_delay_ms, remaining), max(remaining - delay, 0))
        else:
            self._complete_join(group)

    def _await_joins(self, group: Group, least_ms: int = 0) -> None:
        until = self._effects.now + max(group.rebalance_timeout_ms, least_ms)
        group.join_timer = self._timers.start(until, partial(self._complete_join, group))

    def _maybe_complete_join(self, group: Group) -> None:
        if group.state is State.PREPARING and not group.filling and group.all_joined:
            self._complete_join(group)

    def _complete_join(self, group: Group) -> None:
        """Begin the next generation: all have joined, or time is up."""
        now = self._effects.now
        events.cancel(group.join_timer)
        group.join_timer = None
        absent = [member for member in group.members.values() if member.join is None]
        for member in absent:
            if member.group_instance_id is None:
                self._remove(group, member.member_id, "rebalance timeout")
        if group.members and not self._elect(group):
            # Only static members are left, and none of them is back: wait as long again.
            return self._await_joins(group, LEAST_REPEATED_WAIT_MS)
        group.filling = False
        group.generation_id = (group.generation_id + 1) % GENERATIONS
        group.unsynced.clear()
        if not group.members:
            group.protocol = None
            group.leader_id = None
            group.move(Move.LOSE_ALL, now)
            group.read_subscriptions(self._subscribed)
            self._effects.append(group, [group_record(group)])
            if group.rebalance is not None:
                group.rebalance.generation_id = group.generation_id
            return group.end_rebalance(self._effects, "empty")
        group.protocol = group.select_protocol()
        group.move(Move.COMPLETE_JOIN, now)
        group.read_subscriptions(self._subscribed)
        if group.rebalance is not None:
            rebalance = group.rebalance
            rebalance.generation_id = group.generation_id
            rebalance.protocol = group.protocol
            rebalance.leader_id = group.leader_id
            rebalance.joined_at = now
            self._effects.report(events.Phase.JOINED, rebalance)
        for member in group.members.values():
            request, member.join = member.join, None
            if request is not None:
                self._answer_join(group, member, request)
            member.is_new = False
            self._keep_alive(group, member)
        group.waiting = 0
        group.unsynced.update(group.members)
        until = now + group.rebalance_timeout_ms
        group.sync_timer = self._timers.start(until, partial(self._sync_expired, group))
        return None

    def _elect(self, group: Group) -> bool:
        """Choose a leader among those that have joined; return False if none has."""
        leader = group.members.get(group.leader_id or "")
        if leader is None or leader.join is None:
            leader = next((member for member in group.members.values() if member.join is not None), None)
        if leader is not None:
            group.leader_id = leader.member_id
        return leader is not None

    # ---- the answers

    def _refuse_join(self, request: events.Request, error: ErrorCode, member_id: str = "", after: int = 0) -> None:
        answer = refusal(request.message, request.version, error)
        answer.member_id = member_id
        self._effects.reply(request, answer, after)

    def _answer_join(self, group: Group, member: Member, request: events.Request, after: int = 0) -> None:
        leads = group.leader_id == member.member_id and group.state is State.COMPLETING
        self._effects.reply(request, self._join_response(group, member, members=leads), after)

    def _join_response(self, group: Group, member: Member, *, members: bool) -> m.JoinGroupResponse:
        return m.JoinGroupResponse(
            generation_id=group.generation_id,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol,
            leader=group.leader_id or "",
            member_id=member.member_id,
            members=[
                m.JoinGroupResponseMember(
                    member_id=other.member_id,
                    group_instance_id=other.group_instance_id,
                    metadata=other.metadata(group.protocol),
                )
                for other in group.members.values()
            ]
            if members
            else [],
        )

    def _answer_sync(self, group: Group, member: Member, error: ErrorCode) -> None:
        request, member.sync = member.sync, None
        assert request is not None, "only a parked request is answered"
        if error:
            self._refuse(request, error)
        else:
            answer = m.SyncGroupResponse(
                protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=member.assignment
            )
            self._effects.reply(request, answer, group.written)
        if member.member_id in group.members:
            self._keep_alive(group, member)

    # ---- sessions and removal

    def _keep_alive(self, group: Group, member: Member, timeout_ms: int | None = None) -> None:
        """Restart the timer after which a silent member is removed: its session timeout if not given."""
        until = self._effects.now + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
        if member.session is None or member.session.action is None:
            member.session = self._timers.start(until, partial(self._session_expired, group, member))
        else:
            member.session = self._timers.move(member.session, until)

    def _session_expired(self, group: Group, member: Member) -> None:
        member.session = None
        if not member.is_new and (member.join is not None or member.sync is not None):
            return  # its request is parked; the answer restarts the timer
        self._remove(group, member.member_id, "session timeout")
        self._rebalance(group, events.Trigger.SESSION_EXPIRED, member)

    def _sync_expired(self, group: Group) -> None:
        """Remove members that have not fetched their assignment; the leader may not have sent it."""
        late = [member for member in group.members.values() if member.member_id in group.unsynced]
        for member in late:
            self._remove(group, member.member_id, "sync timeout")
        self._prepare(group, events.Trigger.SYNC_EXPIRED, late[0], None)

    def _pending_expired(self, group: Group, member_id: str) -> None:
        del group.pending[member_id]
        self._maybe_complete_join(group)

    def _remove(self, group: Group, member_id: str, why: str) -> Member | None:
        """Remove a member; its parked requests are answered UNKNOWN_MEMBER_ID."""
        member = group.members.get(member_id)
        if member is not None:
            self._answer_waiting(group, member, ErrorCode.UNKNOWN_MEMBER_ID)  # as in Kafka, without the id
            joining = group.rebalance if group.state is State.PREPARING else None
            removed = group.removed if joining is None else joining.removed
            removed.append(events.Removal(member_id, member.client_id, member.client_host, why))
        return group.remove(member_id)

    def _answer_waiting(self, group: Group, member: Member, error: ErrorCode, member_id: str = "") -> None:
        """Refuse the parked requests of a member; `member_id` is the one in the answer to JoinGroup."""
        if member.join is not None:
            group.waiting -= 1
            self._refuse_join(member.join, error, member_id)
        if member.sync is not None:
            self._refuse(member.sync, error)
        member.join = member.sync = None
