"""How long a group of KIP-848 waits for each member, seen from outside: the law ``silence is timed``, and ``heard``.

A member is heard by each request of it that is accepted, also by a Heartbeat that is answered REBALANCE_IN_PROGRESS.
That answer asks a classic member to join; when it has joined it is to sync. It has its rebalance timeout for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kcoord_wire import messages as m
from kcoord_wire.coordinator.consumer_groups.group import ConsumerGroup, Member
from kcoord_wire.coordinator.core import events
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.kernel.virtual.scripts import ViolationError
from kcoord_wire.protocol.error_codes import ErrorCode

_HEARD: Final = (m.ConsumerGroupHeartbeatRequest, m.JoinGroupRequest, m.SyncGroupRequest, m.HeartbeatRequest)


class Waits:
    """Checks the laws."""

    def __init__(self) -> None:
        self._heard_at: dict[str, int] = {}
        self._asked_at: dict[str, int] = {}  # to join
        self._joined_at: dict[str, int] = {}  # until the SyncGroup
        self._due: dict[str, tuple[int, int | None]] = {}  # by member id: when it is silent, and late

    def forget(self) -> None:
        """All timers start anew."""
        self.__init__()  # type: ignore[misc]

    def heard(
        self,
        event: events.Event,
        effects: Sequence[events.Effect],
        groups: Mapping[str, ConsumerGroup],
        now: int,
    ) -> None:
        """Note the request of an event, and its answer. Without groups there are no waits, nor what was before."""
        if not groups:
            self.forget()
        message: Any = event.message if isinstance(event, events.Request) else None
        if not isinstance(event, events.Request) or not isinstance(message, _HEARD) or message.group_id not in groups:
            return
        for effect in effects:
            if isinstance(effect, events.Reply) and effect.token == event.token:
                self._answered(message, effect.message, groups[message.group_id], now)

    def _answered(self, message: Any, answer: Any, group: ConsumerGroup, now: int) -> None:
        member_id = getattr(answer, "member_id", "") or message.member_id
        has_to_join = answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS
        if has_to_join:
            self._asked_at.setdefault(member_id, now)
        is_beat = isinstance(message, m.HeartbeatRequest)
        if answer.error_code and not (has_to_join and is_beat):
            return
        if isinstance(message, m.ConsumerGroupHeartbeatRequest) and message.member_epoch < 0:
            return
        self._heard_at[member_id] = now
        member = group.members.get(member_id)
        if is_beat and not answer.error_code and member is not None and member.epoch < group.epoch:
            raise ViolationError("heard", f"a heartbeat of {member_id} is answered in {member.epoch} of {group.epoch}")
        if not is_beat:
            self._joined_at.pop(member_id, None)
        if isinstance(message, m.JoinGroupRequest):
            self._joined_at[member_id] = now
        if not isinstance(message, m.HeartbeatRequest | m.SyncGroupRequest):
            self._asked_at.pop(member_id, None)

    def check(self, config: GroupConfig, group: ConsumerGroup, now: int) -> None:
        """Check that no member is in a group that should have been removed."""
        for member_id in self._heard_at.keys() - group.members.keys():
            for noted in (self._heard_at, self._asked_at, self._joined_at):
                noted.pop(member_id, None)
        self._due = {member.member_id: self._due_of(config, member, now) for member in group.members.values()}
        for member_id, (silent_at, late_at) in self._due.items():
            if now > min(silent_at, silent_at if late_at is None else late_at):
                text = f"{member_id} is there at {now}: silent since {silent_at}, late since {late_at}"
                raise ViolationError("silence is timed", text)

    def _due_of(self, config: GroupConfig, member: Member, now: int) -> tuple[int, int | None]:
        since = self._heard_at.setdefault(member.member_id, now)
        if member.classic is None:
            return since + config.consumer_session_timeout_ms, None
        waits = (noted.get(member.member_id) for noted in (self._asked_at, self._joined_at))
        late = min((at + member.rebalance_timeout_ms for at in waits if at is not None), default=None)
        return since + member.classic.session_timeout_ms, late

    def check_removal(self, member_id: str, now: int) -> None:
        """Check that a member that time has removed was silent or late."""
        silent_at, late_at = self._due.get(member_id, (now, None))
        if now < silent_at and (late_at is None or now < late_at):
            raise ViolationError("silence is timed", f"{member_id} is removed at {now}: {silent_at}, {late_at}")
