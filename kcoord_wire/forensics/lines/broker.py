"""A group as its coordinator logs it.

A classic one: ``Preparing to rebalance`` -> ``Stabilized`` -> ``Assignment received``.

| column      | line                                                                                           |
|-------------|------------------------------------------------------------------------------------------------|
| started     | Preparing to rebalance, with the reason (2.3 and newer)                                        |
| joined      | Stabilized: the joins are answered                                                             |
| ended       | Assignment received from leader; no line says when the members got it with their SyncGroup.    |
|             | Or: Group ... is now empty                                                                     |

Before 2.3 a line has no reason. What stands just before it decides then: a member that failed or left; the first join
of an empty group. Otherwise the cause is unknown.

Sources of the reasons, by which a rebalance is explained: the arguments of ``prepareRebalance`` in
GroupCoordinator.scala (2.3.1, 2.8.2, 3.6.1) and GroupMetadataManager.java; clients' reasons (KIP-800) in
AbstractCoordinator.java and ConsumerCoordinator.java.

One of KIP-848: who joined or left, then ``Bumped group epoch``, then the target. A rebalance begins with the line that
names the member, or with the bump, and its joins are over when the target assignment is computed. Which member reached
the epoch when, only brokers before 4.1 log at INFO; otherwise the end of a rebalance is not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.lines.extraction import client_of
from kcoord_wire.forensics.lines.shapes import Shape
from kcoord_wire.forensics.lines.tables import GroupTables, evidence_of
from kcoord_wire.forensics.model import NS_PER_MS, Identity, LogLine

_CERTAIN: Final = 1.0
_LIKELY: Final = 0.6
_NOT_PROVIDED: Final = "not provided"
_REASONS: Final = tuple(
    (Shape(cause.name, template, ("broker",)), cause, confidence)
    for template, cause, confidence in (
        (
            "Adding new member <member> with group {instance id|instanceid} <instance>[[; client reason: <reason>]]",
            Cause.NEW_MEMBER,
            _CERTAIN,
        ),
        ("Adding new member <member>", Cause.NEW_MEMBER, _CERTAIN),
        ("emoving member <member> on heartbeat expiration", Cause.SESSION_EXPIRED, _CERTAIN),
        ("emoving member <member> on LeaveGroup[[; client reason: <reason>]]", Cause.MEMBER_LEFT, _CERTAIN),
        ("explicit `LeaveGroup` request for (<member>) members", Cause.MEMBER_LEFT, _CERTAIN),
        (
            "Leader <member> re-joining group during <state>[[; client reason: <reason>]]",
            Cause.LEADER_REJOINED,
            _CERTAIN,
        ),
        ("leader <member> re-joining group during <state>", Cause.LEADER_REJOINED, _CERTAIN),
        (
            "Updating metadata for static member <member> with instance id <instance>[[; client reason: <reason>]]",
            Cause.STATIC_REPLACED,
            _CERTAIN,
        ),
        (
            "Updating metadata for member <member> during <state>[[; client reason: <reason>]]",
            Cause.SUBSCRIPTION_CHANGED,
            _LIKELY,
        ),
        ("Updating metadata for member <member>", Cause.SUBSCRIPTION_CHANGED, _LIKELY),
        (
            "ember <member> {is |}joining group during <state>[[; client reason: <reason>]]",
            Cause.NEW_MEMBER,
            _LIKELY,
        ),
        (
            "Group's selectedProtocol will change because static member <member> with instance id <instance> joined "
            "with change of protocol[[; client reason: <reason>]]",
            Cause.STATIC_REPLACED,
            _CERTAIN,
        ),
        ("Removing <member> on pending sync request expiration", Cause.SYNC_EXPIRED, _CERTAIN),
        ("Freshly-loaded group <list> is over capacity<list>", Cause.GROUP_TOO_LARGE, _CERTAIN),
    )
)
_CLIENTS: Final = (  # what a client's reason contains
    ("poll timeout has expired", Cause.POLL_TIMEOUT),
    ("max.poll.interval", Cause.POLL_TIMEOUT),
    ("need to revoke partitions", Cause.COOPERATIVE_FOLLOW_UP),
    ("cached metadata has changed", Cause.TOPICS_CHANGED),
    ("Metadata for subscribed topic(s) has changed", Cause.TOPICS_CHANGED),
    ("subscription has changed", Cause.SUBSCRIPTION_CHANGED),
    ("session timed out", Cause.SESSION_EXPIRED),
    ("the consumer is being closed", Cause.MEMBER_LEFT),
    ("the consumer unsubscribed", Cause.MEMBER_LEFT),
)
_SET: Final = re.compile(r"(?:Set|List|HashSet)?[(\[{]?([^()\[\]{}]{1,300})")


class Verdict(NamedTuple):
    """What a reason says.

    :ivar reason: of the client, where it stated one
    """

    cause: Cause
    confidence: float
    trigger: Identity
    reason: str | None = None


def judge_reason(text: str) -> Verdict:
    """Return the cause in the reason of a broker's line ``Preparing to rebalance``."""
    for shape, cause, confidence in _REASONS:
        found = shape.match(text)
        if found is None:
            continue
        named = found.groupdict()
        reason = named.get("reason")
        reason = None if reason in (None, _NOT_PROVIDED) else reason.rstrip(".")
        stated = None if reason is None else cause_of_client(reason)
        if stated is not None and cause not in (Cause.NEW_MEMBER, Cause.STATIC_REPLACED):
            cause, confidence = stated, _CERTAIN
        return Verdict(cause, confidence, _identity(named.get("member"), named.get("instance")), reason)
    return Verdict(Cause.UNKNOWN, 0.0, Identity())


def cause_of_client(reason: str) -> Cause | None:
    """Return the cause in the reason that a client states, or None."""
    return next((cause for part, cause in _CLIENTS if part in reason), None)


def _identity(member: str | None, instance: str | None) -> Identity:
    if member and (first := _SET.match(member)):
        member = first[1].split(", ")[0]
    if instance is not None:
        instance = instance.removeprefix("Some(").removesuffix(")")
        instance = None if instance in ("None", "null") else instance
    return Identity(member, client_of(member), None, instance)


_JUST_BEFORE_NS: Final = 1_000 * NS_PER_MS
_INFERRED: Final = 0.95
_FROM_EMPTY: Final = 0.9
_GROUP_EMPTY: Final = 0.7  # the last member left, or was removed
_MEMBER: Final = re.compile(r"[^\s,(){}\[\]]{1,300}")


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
        self._tables.enter(row.time_ns, "PreparingRebalance", row.generation_id)
        if verdict.cause == Cause.SESSION_EXPIRED and member_id in self._tables.members:
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
        if row.generation_id == 0 or self._tables.state == "Empty":
            return Verdict(Cause.NEW_MEMBER, _FROM_EMPTY, Identity())
        return Verdict(Cause.UNKNOWN, 0.0, Identity())

    def _stabilized(self, row: LogLine) -> None:
        rebalance = self._tables.current
        if row.members is not None:
            self._tables.size = row.members
        self._tables.begin_generation(row.generation_id or 0, row.time_ns, members=self._tables.size)
        self._tables.enter(row.time_ns, "CompletingRebalance", row.generation_id)
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
        for life in tables.members.values():
            life.first_generation_id = (
                row.generation_id if life.first_generation_id is None else life.first_generation_id
            )
            life.last_generation_id = row.generation_id
        if tables.generations and tables.generations[-1].generation_id == row.generation_id:
            last = tables.generations[-1]
            last.stable_ns, last.leader_id = row.time_ns, row.member_id
            last.members = tables.size or last.members
        tables.enter(row.time_ns, "Stable", row.generation_id)
        if rebalance is not None and rebalance.generation_id == row.generation_id:
            rebalance.leader_id, rebalance.members_after = row.member_id, tables.size
            tables.close(row.time_ns, "stable")

    def _empty(self, row: LogLine) -> None:
        tables = self._tables
        tables.size = 0
        if tables.current is not None:
            tables.current.generation_id = row.generation_id
            if tables.current.cause == Cause.UNKNOWN:
                tables.current.cause, tables.current.confidence = Cause.MEMBER_LEFT, _GROUP_EMPTY
                tables.current.detail += "; the group is empty"
            tables.close(row.time_ns, "empty")
        tables.empty(row.time_ns, row.generation_id)

    def _member_gone(self, row: LogLine) -> None:
        if row.member_id is None:
            return
        self._last_gone = row
        self._tables.part(row.member_id, row, _left(row) if row.kind == "left" else "session timeout")

    def _removed_late(self, row: LogLine) -> None:
        for member_id in _members(row.reason):
            self._tables.part(member_id, row, "rebalance timeout")

    def _pending_gone(self, row: LogLine) -> None:
        life = self._tables.members.pop(row.member_id or "", None)
        if life is not None:
            self._tables.lives.remove(life)

    def _met(self, row: LogLine) -> None:
        if row.member_id is not None:
            self._tables.meet(row.member_id, row)

    def _replaced(self, row: LogLine) -> None:
        if row.other_id in self._tables.members:
            life = self._tables.members.pop(row.other_id or "")
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


def _left(row: LogLine) -> str:
    """Return why a member that left did so, as `MemberLife.why_left` says it."""
    return "poll timeout" if cause_of_client(row.reason or "") == Cause.POLL_TIMEOUT else "left"


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


_CAUSES: Final = {
    "epoch_joined": (Cause.NEW_MEMBER, "joined"),
    "epoch_left": (Cause.MEMBER_LEFT, "left"),
    "epoch_fenced": (Cause.SESSION_EXPIRED, "was removed"),
    "epoch_replaced": (Cause.STATIC_REPLACED, "took the place of a static member"),
    "epoch_subscribed": (Cause.SUBSCRIPTION_CHANGED, "changed its subscription"),
    "epoch_topics": (Cause.TOPICS_CHANGED, ""),
}
_FIRST: Final = 1  # epoch of a group
_UNREVOKED: Final = "UNREVOKED_PARTITIONS"
_TRANSITION: Final = "failed to transition"
_LIMIT: Final = re.compile(r"within (\d{1,9}) ?ms")


_NO_TOPICS: Final = "with metadata hash 0"  # none of the topics that members subscribe to was there
_AT_START_NS: Final = 10_000 * NS_PER_MS


def _why(before: LogLine | None, bumped: LogLine, last: LogLine | None) -> tuple[Cause, float, str]:
    """Return the cause of an epoch, from what was logged since the one before.

    :param last: the line of the epoch before
    :return: cause, confidence, sentence
    """
    is_first = last is not None and last.text.rstrip(".").endswith(_NO_TOPICS)
    if before is None and last is not None and is_first and bumped.time_ns - last.time_ns <= _AT_START_NS:
        return Cause.NEW_MEMBER, _LIKELY, "The topics of the first members are there from now on"
    if bumped.generation_id == _FIRST and (before is None or before.kind == "epoch_topics"):
        return Cause.NEW_MEMBER, _FROM_EMPTY, "It is the first epoch: a member has joined"
    if before is None:
        return Cause.TOPICS_CHANGED, _LIKELY, "No member came or went before the new epoch"
    cause, did = _CAUSES[before.kind]
    if before.member_id is None:
        return cause, _CERTAIN, f"The topics are now {before.reason}"
    why = f" because {before.reason}" if before.kind == "epoch_fenced" else ""
    return _as_stated(cause, before), _CERTAIN, f"{before.member_id} {did}{why}"


def _as_stated(cause: Cause, row: LogLine) -> Cause:
    """Return the cause that the line of a member has, more exactly if the line states a reason."""
    if row.kind == "epoch_left":  # of the classic protocol
        return cause_of_client(row.reason or "") or cause
    return Cause.REBALANCE_TIMEOUT if _TRANSITION in (row.reason or "") else cause


_AT_ONCE_NS: Final = 20 * NS_PER_MS
"""Within which the line of a member that raised an epoch may follow that of the epoch (Kafka 4.1 logs either first)."""


class Kip848Lines:
    """Reads the lines of brokers about one group of KIP-848, in order of time."""

    def __init__(self, tables: GroupTables) -> None:
        self._tables = tables
        self._held: list[LogLine] = []  # an epoch that nothing has raised so far, and the lines behind it
        self._before: LogLine | None = None  # what the next epoch follows from
        self._last: LogLine | None = None  # of the epoch before
        self._size = 0
        self._revoking: dict[str, int] = {}  # since when members have partitions to give up

    def read(self, row: LogLine) -> None:
        """Read one line; of kinds that say nothing of a group of KIP-848, nothing."""
        if self._held and (row.kind == "epoch_bumped" or row.time_ns - self._held[0].time_ns > _AT_ONCE_NS):
            self._release()
        if self._held and row.kind in _CAUSES and row.member_id is not None:
            self._read(row)
            self._release()
        elif self._held or (row.kind == "epoch_bumped" and self._may_follow(row)):
            self._held.append(row)
        else:
            self._read(row)

    def _may_follow(self, row: LogLine) -> bool:
        """Whether what raised an epoch may be logged behind it: no member so far, its topics are as before, or none."""
        if self._before is not None:
            return self._before.kind == "epoch_topics"
        last, topics = self._last, row.text.rpartition("with metadata hash")[2]
        return last is None or topics in (last.text.rpartition("with metadata hash")[2], " 0.", " 0")

    def _release(self) -> None:
        held, self._held = self._held, []
        for row in held:
            self._read(row)

    def _read(self, row: LogLine) -> None:
        if row.kind == "epoch_topics" and self._before is not None:
            return  # brokers before 4.1 log it with each member that comes or goes: it is no cause of its own then
        if row.kind in _CAUSES:
            if row.kind != "epoch_joined" or row.member_id not in self._tables.members:
                self._before = row  # a classic member is logged each time that it joins again for an epoch
            self._member(row)
        elif row.kind == "epoch_bumped":
            self._bumped(row)
        elif row.kind == "epoch_target":
            self._target(row)
        elif row.kind == "epoch_state":
            self._state(row)

    def _member(self, row: LogLine) -> None:
        tables = self._tables
        if row.member_id is None:
            return
        tables.protocol = "consumer"
        if row.kind in ("epoch_left", "epoch_fenced"):
            is_slow = _TRANSITION in (row.reason or "")
            why = _left(row) if row.kind == "epoch_left" else "rebalance timeout" if is_slow else "session timeout"
            if (since_ns := self._revoking.pop(row.member_id, None)) is not None:
                tables.revoked(row.member_id, since_ns, row.time_ns)
            if limit := _LIMIT.search(row.reason or "") if is_slow else None:
                tables.meet(row.member_id, row).rebalance_timeout_ms = int(limit[1])
            tables.part(row.member_id, row, why)
        else:
            if row.other_id in tables.members:
                tables.part(row.other_id or "", row, "replaced")
            tables.meet(row.member_id, row)
        tables.size = len(tables.members)

    def _bumped(self, row: LogLine) -> None:
        tables, before = self._tables, self._before
        self._before = None
        cause, confidence, detail = _why(before, row, self._last)
        self._last = row
        first = before or row
        if tables.current is not None:
            self._close(row)
        rebalance = tables.begin(
            first,
            cause,
            confidence,
            Identity(first.member_id, first.client_id, None, first.instance_id),
            None,
            detail,
            [evidence_of(line) for line in (before, row) if line is not None],
        )
        rebalance.members_before, rebalance.members_after = self._size, tables.size
        rebalance.generation_id, self._size = row.generation_id, tables.size
        tables.begin_generation(row.generation_id or 0, row.time_ns, members=tables.size)
        tables.enter(row.time_ns, "Assigning", row.generation_id)
        if not tables.members and rebalance.removed:
            tables.close(row.time_ns, "empty")
            tables.enter(row.time_ns, "Empty", row.generation_id)

    def _close(self, row: LogLine) -> None:
        """End a rebalance of which no line shows the end."""
        current = self._tables.current
        if current is not None and current.joined_ns is None:
            self._tables.close(row.time_ns, "interrupted")
        elif current is not None:
            current.outcome = "unseen"

    def _target(self, row: LogLine) -> None:
        tables, rebalance = self._tables, self._tables.current
        if tables.generations and tables.generations[-1].generation_id == row.generation_id:
            tables.generations[-1].assignor = row.assignor
        tables.enter(row.time_ns, "Reconciling", row.generation_id)
        if rebalance is not None and rebalance.generation_id == row.generation_id:
            rebalance.assignor, rebalance.joined_ns = row.assignor, row.time_ns
            rebalance.joining_ms = (row.time_ns - rebalance.started_ns) / NS_PER_MS

    def _state(self, row: LogLine) -> None:
        self._follow(row)
        last = self._tables.rebalances[-1] if self._tables.rebalances else None
        if last is not None and last.generation_id == row.generation_id and row.state == "STABLE":
            self._tables.close(row.time_ns, "stable", last)  # the last member that reaches it ends it

    def _follow(self, row: LogLine) -> None:
        """Follow how long a member takes to give up partitions."""
        if row.member_id is None:
            return
        if row.state == _UNREVOKED:
            self._revoking.setdefault(row.member_id, row.time_ns)
        elif (since_ns := self._revoking.pop(row.member_id, None)) is not None:
            self._tables.revoked(row.member_id, since_ns, row.time_ns)

    def finish(self) -> None:
        """The lines are over: what has its target is under way for as long as nothing says."""
        self._release()
        current = self._tables.current
        if current is not None and current.joined_ns is not None:
            current.outcome = "unseen"


READ: Final = frozenset({*_HANDLERS, *_CAUSES, "epoch_bumped", "epoch_target", "epoch_state"})
"""Kinds of lines that make the history of a group in a broker's log."""
