"""The laws of time of classic groups: who is silent or late is removed at that time, and no other member.

``sessions``              a member is removed for its silence when its session timeout has passed since it was last
                          heard, and no request of it is parked; a new one after the join timeout of new members; no
                          later
``rebalances are timed``  who has not joined within the longest rebalance timeout of the members since the rebalance
                          began, or not synced within it since the join, is removed then, and no earlier; a static
                          member that has not joined stays
``heard``                 a Heartbeat is not answered without an error while its group waits for its members to join

Timeouts are those of each member's last JoinGroup that counted, or of the log that was read. What a member is heard by:
an accepted Heartbeat or commit, and the answer to a JoinGroup or SyncGroup that was parked. An answer that repeats a
JoinGroup's does not count, as in Kafka; it only makes the removal later than the law needs. A static member that takes
its place again without a rebalance has the session timeout of its former process until it is heard next, as in Kafka.

Of the machine's memory the members' ids are read, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core import apis, events
from kcoord_wire.coordinator.core.groups import Group
from kcoord_wire.coordinator.core.machine import GroupMachine
from kcoord_wire.kernel import machines
from kcoord_wire.kernel.timers import Timer, Timers
from kcoord_wire.kernel.virtual.scripts import ViolationError
from kcoord_wire.protocol.error_codes import ErrorCode

_OF_MEMBERS: Final = (m.JoinGroupRequest, m.SyncGroupRequest, m.HeartbeatRequest, m.OffsetCommitRequest)
_BEATS: Final = (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)


class _Member:
    """A member that has got an answer to its JoinGroup.

    :ivar alive_until: when its session ends, from what the coordinator must have noted of it
    :ivar heard_at: when it may have been noted last
    :ivar parked: tokens of its requests that wait
    :ivar has_joined: the rebalance in progress has its JoinGroup
    :ivar has_synced: its SyncGroup of the present generation has come
    """

    def __init__(self, member_id: str, instance_id: str | None, timeouts: tuple[int, int], now: int) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.session_timeout_ms, self.rebalance_timeout_ms = timeouts
        self.alive_until = now + self.session_timeout_ms
        self.heard_at = now
        self.parked: set[int] = set()
        self.has_joined = False
        self.has_synced = True
        self.timer: Timer | None = None


class _Asked:
    """A request of a member, until it is answered.

    :ivar since: when its member was first there, if that is new
    :ivar session_timeout_ms: that counts when it is answered: of a static member's former process, if there is one
    :ivar has_synced: what its member takes over from a former process
    """

    def __init__(self, request: events.Request, since: int) -> None:
        self.message: Any = request.message
        self.timeouts = _timeouts(request) if isinstance(self.message, m.JoinGroupRequest) else (0, 0)
        self.since = since
        self.session_timeout_ms = self.timeouts[0]
        self.has_synced = True


class _Known:
    """A group.

    :ivar members: by id
    :ivar size: how many the machine had after the last event
    :ivar until: when the wait for JoinGroup, or SyncGroup, ends; None where it is not known
    """

    def __init__(self) -> None:
        self.members: dict[str, _Member] = {}
        self.size = 0
        self.is_preparing = False
        self.until: int | None = None
        self.timer: Timer | None = None


class Sessions:
    """Checks the laws of time."""

    def __init__(self) -> None:
        self._groups: dict[str, _Known] = {}
        self._asked: dict[int, _Asked] = {}
        self._deadlines = Timers()

    def forget(self) -> None:
        """The coordinator begins anew, or gives its groups up."""
        self._groups.clear()
        self._asked.clear()
        self._deadlines.clear()

    def handled(self, machine: GroupMachine, event: events.Event, effects: Sequence[events.Effect], now: int) -> None:
        """The machine has handled an event.

        :raises ViolationError: a law is broken
        """
        if isinstance(event, events.Load | events.Resign):
            self.forget()
            if isinstance(event, events.Load):
                self._load(machine, event.records, now)
            return
        self._deadlines.run_due(now - 1)
        reports = [effect for effect in effects if isinstance(effect, events.RebalanceReport)]
        if isinstance(event, events.Request):
            self._ask(event, effects, bool(reports), now)
        is_tick = isinstance(event, machines.Tick)
        answers = [each for each in effects if isinstance(each, events.Reply) and each.token in self._asked]
        if is_tick:
            self._check_refusals(machine, answers, now)
        self._check_removals(machine, reports, is_tick, now)
        self._follow(machine, [report for report in reports if report.phase is not events.Phase.ENDED], answers, now)

    def _load(self, machine: GroupMachine, records: Iterable[events.LogRecord], now: int) -> None:
        values = {key.group: value for key, value in records if isinstance(key, m.GroupMetadataKey)}
        for group_id, value in values.items():
            if value is None or not isinstance(machine.groups.get(group_id), Group):
                continue
            known = self._groups[group_id] = _Known()
            for each in value.members:
                timeouts = (each.session_timeout, each.rebalance_timeout)
                member = _Member(each.member_id, each.group_instance_id, timeouts, now)
                known.members[each.member_id] = member
                self._hear(member, now)
            known.size = len(known.members)

    # ---- requests

    def _ask(self, request: events.Request, effects: Sequence[events.Effect], has_reports: bool, now: int) -> None:
        message = request.message
        if not isinstance(message, _OF_MEMBERS):
            return
        known = self._groups.setdefault(message.group_id, _Known())
        asked = self._asked[request.token] = _Asked(request, now)
        member = known.members.get(message.member_id)
        answers = (each for each in effects if isinstance(each, events.Reply) and each.token == request.token)
        answer = next((each.message for each in answers), None)
        is_refused = answer is not None and getattr(answer, "error_code", 0) not in _BEATS
        if is_refused:
            return
        if member is None:
            if isinstance(message, m.JoinGroupRequest):
                self._ask_anew(known, asked, message, request.token)
            return
        self._hear(member, now)
        if isinstance(message, m.JoinGroupRequest | m.SyncGroupRequest):
            member.parked.add(request.token)
            member.has_synced |= isinstance(message, m.SyncGroupRequest)
        if isinstance(message, m.JoinGroupRequest) and (answer is None or has_reports):
            member.has_joined = True
            member.session_timeout_ms, member.rebalance_timeout_ms = asked.timeouts

    def _ask_anew(self, known: _Known, asked: _Asked, message: m.JoinGroupRequest, token: int) -> None:
        """Who is not known as a member joins: a new one, or a static one in the place of its former process."""
        former = next((each for each in known.members.values() if each.instance_id == message.group_instance_id), None)
        if message.group_instance_id is not None and not message.member_id and former is not None:
            asked.has_synced, asked.session_timeout_ms = former.has_synced, former.session_timeout_ms
            self._drop(known, former)
        elif message.member_id:
            same = (each for each in self._asked.values() if each.message.member_id == message.member_id)
            asked.since = min(each.since for each in same)

    def _hear(self, member: _Member, now: int, *, is_certain: bool = False) -> None:
        member.heard_at = now
        until = now + member.session_timeout_ms
        if is_certain:
            member.alive_until = until
        if member.timer is None or not member.timer.live:
            member.timer = self._deadlines.start(until, partial(self._overdue, member))
        else:
            member.timer = self._deadlines.move(member.timer, until)

    def _overdue(self, member: _Member) -> None:
        if not member.parked:
            text = f"{member.member_id} was last heard at {member.heard_at} and has {member.session_timeout_ms} ms"
            raise ViolationError("sessions", text)

    def _drop(self, known: _Known, member: _Member) -> None:
        del known.members[member.member_id]
        events.cancel(member.timer)

    # ---- who is removed

    def _check_refusals(self, machine: GroupMachine, answers: Sequence[events.Reply], now: int) -> None:
        """Of parked requests time refuses only those of new members."""
        for answer in answers:
            asked, error = self._asked[answer.token], getattr(answer.message, "error_code", 0)
            known = self._groups.get(asked.message.group_id)
            if error != ErrorCode.UNKNOWN_MEMBER_ID or known is None:
                continue
            is_new = asked.message.member_id not in known.members and isinstance(asked.message, m.JoinGroupRequest)
            if not is_new or now < asked.since + machine.config.new_member_join_timeout_ms:
                raise ViolationError("sessions", f"{asked.message} is refused after {now - asked.since} ms")

    def _check_removals(
        self, machine: GroupMachine, reports: Sequence[events.RebalanceReport], is_tick: bool, now: int
    ) -> None:
        concerned = {report.rebalance.group_id for report in reports}
        for group_id, known in self._groups.items():
            group = machine.groups.get(group_id)
            members = group.members if isinstance(group, Group) else {}
            if not isinstance(group, Group):  # deleted, or of KIP-848 now
                known.is_preparing, known.until = False, None
                events.cancel(known.timer)
            if len(members) == known.size and group_id not in concerned:
                continue
            gone = [each for each in known.members.values() if each.member_id not in members]
            for member in gone:
                if is_tick and isinstance(group, Group):
                    self._check_removal(known, member, now)
                self._drop(known, member)
            known.size = len(members)

    @staticmethod
    def _check_removal(known: _Known, member: _Member, now: int) -> None:
        is_awaited = not (member.has_joined if known.is_preparing else member.has_synced)
        law = "sessions"
        if not member.parked:
            if now >= member.alive_until or known.until is None:
                return  # it was silent; or what it waits for is not known
            if is_awaited:
                if now >= known.until and not (known.is_preparing and member.instance_id is not None):
                    return
                law = "rebalances are timed"
        text = f"{member.member_id} may be silent until {member.alive_until}, waits with {len(member.parked)} requests"
        raise ViolationError(law, f"{text}; its group {'joins' if known.is_preparing else 'syncs'} until {known.until}")

    # ---- rebalances and answers

    def _follow(
        self,
        machine: GroupMachine,
        reports: Sequence[events.RebalanceReport],
        answers: Sequence[events.Reply],
        now: int,
    ) -> None:
        for report in reports:
            if isinstance(machine.groups.get(report.rebalance.group_id), Group):
                known = self._groups.setdefault(report.rebalance.group_id, _Known())
                if report.phase is events.Phase.STARTED:
                    self._started(known, now)
                else:
                    known.is_preparing = False
        for answer in answers:
            self._answered(self._asked.pop(answer.token), answer, now)
        for report in reports:
            joined = self._groups.get(report.rebalance.group_id)
            if report.phase is events.Phase.JOINED and joined is not None:
                self._joined(joined, now)

    def _joining(self, known: _Known) -> list[_Asked]:
        """Return the parked JoinGroups of those that are not yet known as members."""
        return [
            asked
            for asked in self._asked.values()
            if isinstance(asked.message, m.JoinGroupRequest)
            and self._groups.get(asked.message.group_id) is known
            and asked.message.member_id not in known.members
        ]

    def _started(self, known: _Known, now: int) -> None:
        known.is_preparing = True
        joining = self._joining(known)
        ids = {each.message.member_id or id(each) for each in joining}
        is_whole = len(known.members) + len(ids) == known.size
        timeouts = [each.rebalance_timeout_ms for each in known.members.values()]
        self._wait(known, is_whole, [*timeouts, *(each.timeouts[1] for each in joining)], now)

    def _joined(self, known: _Known, now: int) -> None:
        for member in known.members.values():
            member.has_synced = member.has_joined = False
            self._hear(member, now, is_certain=True)
        is_whole = len(known.members) == known.size
        self._wait(known, is_whole, [each.rebalance_timeout_ms for each in known.members.values()], now)

    def _wait(self, known: _Known, is_whole: bool, timeouts: Sequence[int], now: int) -> None:
        events.cancel(known.timer)
        known.until = now + max(timeouts) if is_whole and timeouts else None
        known.timer = None
        if known.until is not None:
            known.timer = self._deadlines.start(known.until, partial(self._waited, known))

    def _waited(self, known: _Known) -> None:
        """Time is up. A group of static members waits on if none of them is back; `until` is not known then."""
        if known.is_preparing:
            late = [each for each in known.members.values() if not each.has_joined and each.instance_id is None]
            is_stuck = bool(self._joining(known)) or any(each.has_joined for each in known.members.values())
            if late or is_stuck:
                raise ViolationError("rebalances are timed", f"{[each.member_id for each in late]} are late to join")
            known.until = None
        else:
            late = [each for each in known.members.values() if not each.has_synced]
            if late:
                raise ViolationError("rebalances are timed", f"{[each.member_id for each in late]} are late to sync")

    def _answered(self, asked: _Asked, answer: events.Reply, now: int) -> None:
        message, error = asked.message, getattr(answer.message, "error_code", ErrorCode.NONE)
        known = self._groups[message.group_id]
        member_id = message.member_id
        if isinstance(message, m.JoinGroupRequest) and not error:
            member_id = answer.message.member_id
            if member_id not in known.members:
                timeouts = (asked.session_timeout_ms, asked.timeouts[1])
                member = _Member(member_id, message.group_instance_id, timeouts, now)
                member.has_synced = asked.has_synced
                known.members[member_id] = member
                self._hear(member, now)
                member.session_timeout_ms = asked.timeouts[0]  # from its first heartbeat, or a rebalance, on
                member.parked.discard(answer.token)
                return
        found = known.members.get(member_id)
        if found is None:
            return
        found.parked.discard(answer.token)
        if error not in _BEATS:
            return
        is_beat = isinstance(message, m.HeartbeatRequest)
        if is_beat and not error and known.is_preparing:
            raise ViolationError("heard", f"a heartbeat of {member_id} is answered while its group rebalances")
        is_synced = isinstance(message, m.SyncGroupRequest) and not error
        self._hear(found, now, is_certain=is_beat or is_synced or _commits(message, answer.message))


def _commits(message: Any, answer: Any) -> bool:
    """Return whether a request is a commit of which something was accepted."""
    return isinstance(message, m.OffsetCommitRequest) and any(
        not partition.error_code for topic in answer.topics for partition in topic.partitions
    )


def _timeouts(request: events.Request) -> tuple[int, int]:
    """Return the session timeout and the rebalance timeout that a JoinGroup asks for."""
    message: Any = request.message
    is_given = request.version >= apis.REBALANCE_TIMEOUT_FROM and message.rebalance_timeout_ms >= 0
    return message.session_timeout_ms, message.rebalance_timeout_ms if is_given else message.session_timeout_ms
