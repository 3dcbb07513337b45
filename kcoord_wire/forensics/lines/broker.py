"""A classic group as its coordinator logs it: ``Preparing to rebalance`` -> ``Stabilized`` -> ``Assignment received``.

| column      | line                                                                                           |
|-------------|------------------------------------------------------------------------------------------------|
| started     | Preparing to rebalance, with the reason (2.3 and newer)                                        |
| joined      | Stabilized: the joins are answered                                                             |
| ended       | Assignment received from leader; no line says when the members got it with their SyncGroup.    |
|             | Or: Group ... is now empty                                                                     |

Before 2.3 a line has no reason. What stands just before it decides then: a member that failed or left; the first join
of an empty group. Otherwise the cause is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from kcoord_wire.forensics.lines.reasons import Verdict, cause_of_client, judge_reason
from kcoord_wire.forensics.lines.tables import GroupTables, evidence_of
from kcoord_wire.forensics.model import NS_PER_MS, Cause, Generation, Identity, LogLine, end_rebalance

_JUST_BEFORE_NS: Final = 1_000 * NS_PER_MS
_INFERRED: Final = 0.95
_FROM_EMPTY: Final = 0.9
_GROUP_EMPTY: Final = 0.7  # the last member left, or was removed
_MEMBER: Final = re.compile(r"[^\s,(){}\[\]]{1,300}")
_GONE: Final = {"failed": "session timeout", "left": "left"}


class BrokerLines:
    """Reads the lines of brokers about one classic group, in order of time.

    :param left: the lines ``left`` by member id: they may stand before or behind the rebalance that follows from them
    """

    def __init__(self, tables: GroupTables, left: dict[str, LogLine]) -> None:
        self._tables = tables
        self._left = left
        self._last_gone: LogLine | None = None

    def read(self, row: LogLine) -> None:
        """Read one line; of kinds that say nothing of a classic group, nothing."""
        if (handle := _HANDLERS.get(row.kind)) is not None:
            handle(self, row)

    def _preparing(self, row: LogLine) -> None:
        verdict = judge_reason(row.reason) if row.reason else self._inferred(row)
        member_id = verdict.trigger.member_id
        evidence = [evidence_of(row)]
        if member_id is not None:
            verdict = verdict._replace(trigger=self._named(verdict.trigger, member_id, row))
            if verdict.cause == Cause.MEMBER_LEFT and (line := self._left.get(member_id)):
                evidence.append(evidence_of(line))
                verdict = _as_left(verdict, line)
        if not row.reason and self._last_gone is not None and member_id == self._last_gone.member_id:
            evidence.append(evidence_of(self._last_gone))
        self._tables.begin(
            row, verdict.cause, verdict.confidence, verdict.trigger, verdict.reason, _detail(row, verdict), evidence
        )
        self._tables.enter("PreparingRebalance", row.time_ns, row.generation_id)
        if verdict.cause == Cause.SESSION_EXPIRED and member_id in self._tables.present:
            self._tables.part(member_id or "", row, "session timeout")

    def _named(self, trigger: Identity, member_id: str, row: LogLine) -> Identity:
        """Return a trigger with what lines before have said of it."""
        life = self._tables.find(member_id) or self._tables.meet(member_id, row)
        client_id = life.client_id or trigger.client_id
        return Identity(member_id, client_id, life.client_host, life.instance_id or trigger.instance_id)

    def _inferred(self, row: LogLine) -> Verdict:
        """Judge a line without a reason by the one before it."""
        gone = self._last_gone
        if gone is not None and row.time_ns - gone.time_ns <= _JUST_BEFORE_NS and gone.member_id is not None:
            cause = Cause.SESSION_EXPIRED if gone.kind == "failed" else Cause.MEMBER_LEFT
            return Verdict(cause, _INFERRED, Identity(gone.member_id, gone.client_id, None, gone.instance_id))
        if row.generation_id == 0 or (self._tables.states and self._tables.states[-1].state == "Empty"):
            return Verdict(Cause.NEW_MEMBER, _FROM_EMPTY, Identity())
        return Verdict(Cause.UNKNOWN, 0.0, Identity())

    def _stabilized(self, row: LogLine) -> None:
        rebalance = self._tables.current
        if row.members is not None:
            self._tables.size = row.members
        generation = Generation(
            self._tables.group_id, row.generation_id or 0, row.time_ns, None, None, None, None, self._tables.size, 0
        )
        self._tables.next_generation(generation)
        self._tables.enter("CompletingRebalance", row.time_ns, row.generation_id)
        if rebalance is None:
            return
        rebalance.generation_id, rebalance.joined_ns = row.generation_id, row.time_ns
        rebalance.joining_ms = (row.time_ns - rebalance.started_ns) / NS_PER_MS
        rebalance.members_after = self._tables.size

    def _assigned(self, row: LogLine) -> None:
        tables, rebalance = self._tables, self._tables.current
        if row.members is not None:
            tables.size = row.members
        if row.member_id is not None:
            tables.meet(row.member_id, row)
        for life in tables.present.values():
            life.first_generation_id = (
                row.generation_id if life.first_generation_id is None else life.first_generation_id
            )
            life.last_generation_id = row.generation_id
        if tables.generations and tables.generations[-1].generation_id == row.generation_id:
            last = tables.generations[-1]
            last.stable_ns, last.leader_id = row.time_ns, row.member_id
            last.members = tables.size or last.members
        tables.enter("Stable", row.time_ns, row.generation_id)
        if rebalance is not None and rebalance.generation_id == row.generation_id:
            rebalance.leader_id, rebalance.members_after = row.member_id, tables.size
            end_rebalance(rebalance, row.time_ns, "stable")

    def _empty(self, row: LogLine) -> None:
        tables = self._tables
        tables.size = 0
        if tables.current is not None:
            tables.current.generation_id = row.generation_id
            if tables.current.cause == Cause.UNKNOWN:
                tables.current.cause, tables.current.confidence = Cause.MEMBER_LEFT, _GROUP_EMPTY
                tables.current.detail += "; the group is empty"
            end_rebalance(tables.current, row.time_ns, "empty")
        if tables.generations and tables.generations[-1].ended_ns is None:
            tables.generations[-1].ended_ns = row.time_ns
        tables.enter("Empty", row.time_ns, row.generation_id)

    def _member_gone(self, row: LogLine) -> None:
        if row.member_id is None:
            return
        self._last_gone = row
        stated = cause_of_client(row.reason) if row.reason else None
        why = "poll timeout" if stated == Cause.POLL_TIMEOUT else _GONE[row.kind]
        self._tables.part(row.member_id, row, why)

    def _removed_late(self, row: LogLine) -> None:
        for member_id in _members(row.reason):
            self._tables.part(member_id, row, "rebalance timeout")

    def _pending_gone(self, row: LogLine) -> None:
        life = self._tables.present.pop(row.member_id or "", None)
        if life is not None:
            self._tables.lives.remove(life)

    def _met(self, row: LogLine) -> None:
        if row.member_id is not None:
            self._tables.meet(row.member_id, row)

    def _replaced(self, row: LogLine) -> None:
        if row.other_id in self._tables.present:
            life = self._tables.present.pop(row.other_id or "")
            life.left_ns, life.why_left = row.time_ns, "replaced"
        self._met(row)

    def _loaded(self, row: LogLine) -> None:
        if row.members is not None:
            self._tables.size = row.members


def _as_left(verdict: Verdict, line: LogLine) -> Verdict:
    """Return a verdict with the reason that the client gave as it left."""
    reason = verdict.reason or _stated(line)
    cause = cause_of_client(reason) if reason else None
    return verdict._replace(reason=reason, cause=cause or verdict.cause)


def _stated(row: LogLine) -> str | None:
    reason = (row.reason or "").rstrip(".")
    return None if reason in ("", "not provided") else reason


def _members(text: str | None) -> Iterable[str]:
    names = _MEMBER.findall(text or "")
    return [name for name in names if name not in ("Set", "List", "HashSet", "Vector")]


def _detail(row: LogLine, verdict: Verdict) -> str:
    if row.reason:
        reason = verdict.reason
        return f"The coordinator states: {row.reason.rstrip('.')}" + (
            f"; the client states: {reason}" if reason and reason not in row.reason else ""
        )
    if verdict.cause == Cause.UNKNOWN:
        return "A broker of this release states no reason"
    if verdict.trigger.member_id is None:
        return "The group was empty, so that a member joined; a broker of this release states no reason"
    return f"{verdict.trigger.member_id} was removed just before; a broker of this release states no reason"


_HANDLERS: Final = {
    "preparing": BrokerLines._preparing,
    "stabilized": BrokerLines._stabilized,
    "assigned_by_leader": BrokerLines._assigned,
    "empty": BrokerLines._empty,
    "failed": BrokerLines._member_gone,
    "left": BrokerLines._member_gone,
    "removed_late": BrokerLines._removed_late,
    "pending_left": BrokerLines._pending_gone,
    "pending_expired": BrokerLines._pending_gone,
    "id_given": BrokerLines._met,
    "pending_joined": BrokerLines._met,
    "static_joined": BrokerLines._met,
    "static_replaced": BrokerLines._replaced,
    "loaded": BrokerLines._loaded,
}
