"""What each rebalance was: the coordinator's own account, refined by what the members really did.

Laws:

* A label comes from the coordinator's accounts, from the members' events and from the script; never from the frames.
* `RULES` has every rule by its name, in one sentence; `Label.rule` names the one that gave the cause.
* One account is one label, also if a crash of the coordinator cut the rebalance off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from kcoord_wire.coordinator.core.events import RebalanceAccount, Trigger
from kcoord_wire.forensics.causes import Cause
from kcoord_wire.kernel.virtual.clock import EPOCH_MS, TraceLine
from kcoord_wire.messages import JoinGroupResponse, LeaveGroupRequest, SyncGroupRequest
from kcoord_wire.worlds.group.world import Cluster

RULES: Final = MappingProxyType(
    {
        "new": "A member id joined that the group does not know.",
        "missed the join": "The process that joins as new was removed for the rebalance timeout, and not in since.",
        "missed, not removed": "A static member rejoined after a join was completed without it.",
        "forgotten": "The process had a place in the group, which only a crash of the coordinator cost it.",
        "broken off": "A process in the group repeated the JoinGroup that a crash of the coordinator broke off.",
        "cut off": "No member was answered for a time, in which a process in the group lost its place.",
        "left": "A member sent LeaveGroup because its user or an operator wanted that.",
        "did not poll": "A member sent LeaveGroup although no user wanted that: max.poll.interval.ms was over.",
        "member refused": "The session timer fired of a member whose requests the coordinator had refused.",
        "session": "The coordinator's session timer fired.",
        "sync": "The coordinator's timer for SyncGroup fired.",
        "replaced": "A JoinGroup had no member id, and an instance id that is in the group.",
        "too large": "The coordinator loaded a group that has more members than group.max.size.",
        "gave up partitions": "The member rejoined because the last assignment took partitions from it.",
        "topics": "The leader rejoined, and topics differ from those that it assigned for.",
        "subscription": "The member rejoined because its user wants other topics.",
        "assignors": "The member rejoined because it offers other assignors.",
        "leader": "The leader rejoined for any other reason.",
        "metadata": "A member's JoinGroup differs from its last one for any other reason. Other assignors prove "
        "nothing if the group was loaded, because then only the chosen one is known.",
    }
)
"""The rules of `kcoord_wire.forensics.wire.rules`, by name, as the coordinator's account decides them."""

_RETRIES: Final = frozenset(
    {
        "a member id was given",
        "JoinGroup was to be tried again",
        "the member id was not known to JoinGroup",
        "the connection was lost while joining",
        "the coordinator has moved while joining",
        "the coordinator has moved during SyncGroup",
        "the coordinator was loading during SyncGroup",
        "SyncGroup was refused",
        "a rebalance began during SyncGroup",
    }
)
"""Reasons with which a member joins again without anything new (`Member.joined_for`)."""

_OWN_REASONS: Final = MappingProxyType(
    {
        "partitions were given up": ("gave up partitions", Cause.COOPERATIVE_FOLLOW_UP),
        "the topics have changed": ("topics", Cause.TOPICS_CHANGED),
        "the subscription has changed": ("subscription", Cause.SUBSCRIPTION_CHANGED),
        "the list of assignors has changed": ("assignors", Cause.ASSIGNORS_CHANGED),
    }
)

WRITE_MS: Final = 20
"""More than the coordinator's disk takes for a write (`Cluster`'s sync_ms)."""

NEVER_MS: Final = 1 << 62

_BY_TRIGGER: Final = MappingProxyType(
    {
        Trigger.GROUP_TOO_LARGE: ("too large", Cause.GROUP_TOO_LARGE),
        Trigger.SESSION_EXPIRED: ("session", Cause.SESSION_EXPIRED),
        Trigger.SYNC_EXPIRED: ("sync", Cause.SYNC_EXPIRED),
    }
)

_JOINED: Final = (
    Trigger.NEW_MEMBER,
    Trigger.STATIC_REPLACED,
    Trigger.LEADER_REJOINED,
    Trigger.SUBSCRIPTION_CHANGED,
    Trigger.PROTOCOLS_CHANGED,
)


@dataclass(slots=True)
class Label:
    """A rebalance as it happened. Times in ms since the epoch; hosts without the slash that Kafka writes.

    :ivar rule: the key of `RULES` that gave the cause
    :ivar generation_id: the generation that it led to; None: it was cut short before
    :ivar stable_ms: when the coordinator had the assignment
    :ivar ended_ms: when the last member received its own
    :ivar joins: (member id, ms after the start), in order
    :ivar removed: (member id, why)
    :ivar cut: a crash of the coordinator ended it
    """

    group_id: str
    number: int
    cause: Cause
    rule: str
    trigger: str
    generation_id: int | None
    started_ms: int
    joined_ms: int | None
    stable_ms: int | None
    ended_ms: int | None
    outcome: str
    member_id: str
    client_id: str
    client_host: str
    instance_id: str | None
    reason: str | None
    assignor: str | None
    leader_id: str | None
    joins: list[tuple[str, int]] = field(default_factory=list)
    removed: list[tuple[str, str]] = field(default_factory=list)
    cut: bool = False


class _Lives:
    """What the trace shows of processes and of the coordinator; times in ms since the start."""

    def __init__(self, sim: Cluster) -> None:
        self.hosts = {process.host: name for name, process in sim.processes.items()}
        self.groups = {name: process.options.group for name, process in sim.processes.items()}
        self.by_name: dict[str, list[TraceLine]] = {}
        self.names: dict[str, str] = {}  # of member ids
        self.outages: list[tuple[int, int]] = []  # when the coordinator lost its memory, and when it had it again
        lost_at: int | None = None
        for line in sim.trace:
            if line.who == "coordinator":
                if line.what in ("crashes", "cannot write"):
                    lost_at = line.at if lost_at is None else lost_at
                elif line.what == "serves" and lost_at is not None:
                    self.outages.append((lost_at, line.at))
                    lost_at = None
            else:
                self.by_name.setdefault(line.who, []).append(line)
                if line.what == "gets" and isinstance(line.detail, JoinGroupResponse) and line.detail.member_id:
                    self.names[line.detail.member_id] = line.who
        for account in sim.begun:
            self._know(account.member_id, account.client_host)
            for removal in account.removed:
                self._know(removal.member_id, removal.client_host)

    def _know(self, member_id: str, host: str) -> None:
        if host.lstrip("/") in self.hosts:
            self.names.setdefault(member_id, self.hosts[host.lstrip("/")])

    def last(self, name: str, at: int, *what: str) -> TraceLine | None:
        """The last line of this kind of a process up to a time."""
        lines = (line for line in reversed(self.by_name.get(name, ())) if line.at <= at and line.what in what)
        return next(lines, None)

    def first_outage(self, from_ms: int, to_ms: int) -> int | None:
        """When the coordinator first lost its memory between two times, in ms since the epoch."""
        return next((lost + EPOCH_MS for lost, _ in self.outages if from_ms <= lost + EPOCH_MS <= to_ms), None)

    def chain(self, name: str, at: int) -> list[TraceLine]:
        """The last JoinGroup of a process up to a time, and before it those that it repeats; newest first."""
        joins = []
        for line in reversed(self.by_name.get(name, ())):
            if line.at > at:
                continue
            if line.what == "starts":
                break
            if line.what == "joins":
                joins.append(line)
                if line.detail not in _RETRIES:
                    break
        return joins


def labels_of(sim: Cluster) -> list[Label]:
    """Label every rebalance that the coordinator began, in order."""
    lives = _Lives(sim)
    numbers: dict[str, int] = {}
    former: dict[str, list[RebalanceAccount]] = {}
    labels = []
    for account in sim.begun:
        before = former.setdefault(account.group_id, [])
        rule, cause = _cause(account, before, lives)
        numbers[account.group_id] = number = numbers.get(account.group_id, 0) + 1
        labels.append(_label(account, number, rule, cause))
        before.append(account)
    _set_ends(labels, lives)
    return labels


def _label(account: RebalanceAccount, number: int, rule: str, cause: Cause) -> Label:
    got_there = account.joined_at is not None or account.outcome == "empty"
    return Label(
        group_id=account.group_id,
        number=number,
        cause=cause,
        rule=rule,
        trigger=account.trigger.name,
        generation_id=account.generation_id if got_there else None,
        started_ms=account.started_at,
        joined_ms=account.joined_at,
        stable_ms=account.ended_at if account.outcome == "stable" else None,
        ended_ms=account.ended_at,
        outcome=account.outcome or "open",
        member_id=account.member_id,
        client_id=account.client_id,
        client_host=account.client_host.lstrip("/"),
        instance_id=account.group_instance_id,
        reason=account.reason,
        assignor=account.protocol,
        leader_id=account.leader_id,
        joins=list(account.joins),
        removed=[(removal.member_id, removal.why) for removal in account.removed],
    )


def _set_ends(labels: Sequence[Label], lives: _Lives) -> None:
    """Set when the last member had its assignment, and mark what an outage of the coordinator cut off."""
    assigned: dict[tuple[str, int], list[int]] = {}
    for name, lines in lives.by_name.items():
        for line in lines:
            if line.what == "assigned":
                group = lives.groups.get(name, "")
                assigned.setdefault((group, line.detail.generation_id), []).append(line.at + EPOCH_MS)
    following: dict[str, int] = {}
    for label in reversed(labels):
        until = following.get(label.group_id, NEVER_MS)
        following[label.group_id] = label.started_ms
        if label.outcome == "stable":
            times = assigned.get((label.group_id, label.generation_id or 0), ())
            _set_stable_end(label, [at for at in times if (label.joined_ms or 0) <= at < until], lives)
        elif label.ended_ms is None or label.outcome == "interrupted":
            crash = lives.first_outage(label.started_ms, label.ended_ms or until)
            if crash is not None:
                _cut_off(label, crash)


def _set_stable_end(label: Label, assigned: Sequence[int], lives: _Lives) -> None:
    """:param assigned: when members received their assignments, in ms since the epoch"""
    ended = label.ended_ms or 0
    crash = lives.first_outage(ended, ended + WRITE_MS)
    if crash is not None and not assigned:  # the responses waited for the disk, and the crash came first
        _cut_off(label, crash)
    else:
        label.ended_ms = max([ended, *assigned])


def _cut_off(label: Label, crash_ms: int) -> None:
    label.cut = True
    label.outcome = "interrupted"
    label.ended_ms = crash_ms


def _cause(account: RebalanceAccount, former: Sequence[RebalanceAccount], lives: _Lives) -> tuple[str, Cause]:
    """The rule that applies, and its cause."""
    at = account.started_at - EPOCH_MS
    name = lives.names.get(account.member_id, "")
    if account.trigger in _BY_TRIGGER:
        return _BY_TRIGGER[account.trigger]
    if account.trigger is Trigger.MEMBER_LEFT:
        return _why_left(name, at, lives)
    assert account.trigger in _JOINED, account.trigger
    joins = lives.chain(name, at)
    places = _places(name, former, lives)
    if joins and (rule := _lost_by_crash(name, at, joins, former, places, lives)):
        return rule, Cause.COORDINATOR_FAILOVER
    if account.trigger is Trigger.STATIC_REPLACED:
        return "replaced", Cause.STATIC_REPLACED
    if account.trigger is Trigger.NEW_MEMBER:
        if places and places[-1] == "rebalance timeout" and _is_same_life(name, at, former, lives):
            return "missed the join", Cause.REBALANCE_TIMEOUT
        return "new", Cause.NEW_MEMBER
    return _why_rejoined(account, name, joins, former, lives)


def _why_rejoined(
    account: RebalanceAccount, name: str, joins: Sequence[TraceLine], former: Sequence[RebalanceAccount], lives: _Lives
) -> tuple[str, Cause]:
    own: Any = joins[-1].detail if joins else None
    if own in _OWN_REASONS and not _is_used_up(name, joins[-1], former, lives):
        return _OWN_REASONS[own]
    last = next((each for each in reversed(former) if each.joined_at is not None), None)
    joined = {member_id for member_id, _ in last.joins} if last is not None else {account.member_id}
    if account.group_instance_id is not None and account.member_id not in joined:
        return "missed, not removed", Cause.REBALANCE_TIMEOUT
    if account.trigger is Trigger.LEADER_REJOINED or (last is not None and last.leader_id == account.member_id):
        if joins and _knows_other_topics(name, joins[0].at, lives):
            return "topics", Cause.TOPICS_CHANGED
        return "leader", Cause.LEADER_REJOINED
    return "metadata", Cause.SUBSCRIPTION_CHANGED


def _is_used_up(name: str, wish: TraceLine, former: Sequence[RebalanceAccount], lives: _Lives) -> bool:
    """Whether a JoinGroup is no reason for another one: a rebalance has already taken it, so that the repetition only
    follows a lost response, or it was the first of its process."""
    began = lives.last(name, wish.at, "starts")
    later = (line for line in lives.by_name[name] if began is not None and line.at >= began.at and line.what == "joins")
    if next(later, None) is wish:
        return True
    return any(
        account.started_at + ms - EPOCH_MS >= wish.at
        for account in former
        for member_id, ms in account.joins
        if lives.names.get(member_id) == name
    )


def _knows_other_topics(name: str, at: int, lives: _Lives) -> bool:
    """Whether a leader has learned of topics since it last assigned, even if it joined for another reason."""
    lines = [line for line in lives.by_name.get(name, ()) if line.at <= at]
    assigned = [place for place, line in enumerate(lines) if line.what == "sends" and _is_assigning(line.detail)]
    if not assigned:
        return False
    learned = [line.detail for line in lines[: assigned[-1]] if line.what == "learns"]
    since = [line.detail for line in lines[assigned[-1] :] if line.what == "learns"]
    return bool(learned and since) and learned[-1] != since[-1]


def _is_assigning(message: object) -> bool:
    return isinstance(message, SyncGroupRequest) and bool(message.assignments)


def _why_left(name: str, at: int, lives: _Lives) -> tuple[str, Cause]:
    said = next(
        (
            line
            for line in reversed(lives.by_name.get(name, ()))
            if line.at <= at and line.what == "sends" and isinstance(line.detail, LeaveGroupRequest)
        ),
        None,
    )
    wanted = lives.last(name, at, "leaves")
    stalled = lives.last(name, at, "stalls")
    if said is not None and stalled is not None and (wanted is None or wanted.at < said.at) and stalled.at < said.at:
        evicted = lives.last(name, at, "starts")
        if evicted is not None and evicted.at < said.at and at - said.at < 60_000:
            return "did not poll", Cause.POLL_TIMEOUT
    return "left", Cause.MEMBER_LEFT


def _places(name: str, former: Sequence[RebalanceAccount], lives: _Lives) -> list[str]:
    """What the accounts say of a process, the oldest first: ``in``, or why it was removed."""
    found = []
    for account in former:
        if any(lives.names.get(member_id) == name for member_id, _ in account.joins):
            found.append("in")
        found += [removal.why for removal in account.removed if lives.names.get(removal.member_id) == name]
    return found


def _is_same_life(name: str, at: int, former: Sequence[RebalanceAccount], lives: _Lives) -> bool:
    """Whether the process started before it was last removed."""
    started = lives.last(name, at, "starts")
    removed = [
        account.joined_at or account.started_at
        for account in former
        if any(lives.names.get(removal.member_id) == name for removal in account.removed)
    ]
    return started is not None and bool(removed) and started.at + EPOCH_MS <= removed[-1]


def _lost_by_crash(
    name: str,
    at: int,
    joins: Sequence[TraceLine],
    former: Sequence[RebalanceAccount],
    places: Sequence[str],
    lives: _Lives,
) -> str | None:
    """The rule if the rebalance exists only because the coordinator lost its memory."""
    lost_at = next((lost for lost, back in reversed(lives.outages) if back <= at), None)
    if lost_at is None:
        return None
    started = lives.last(name, at, "starts")
    if started is None or started.at > lost_at:
        return None
    count = sum(account.started_at - EPOCH_MS <= lost_at for account in former)
    earlier, since = former[:count], former[count:]
    had_place = _places(name, earlier, lives)[-1:] == ["in"] and places[-1:] == ["in"]
    if not had_place or "in" in _places(name, since, lives):
        return None
    if joins[-1].at <= lost_at:
        return "broken off" if len(joins) > 1 else None
    return "forgotten" if str(joins[-1].detail).endswith(("is over", "is not known")) else None
