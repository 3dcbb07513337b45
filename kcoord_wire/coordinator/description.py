"""Groups as they are now, for tests and operators: who is in them, who owns what, whom a rebalance waits for;
and rebalances as the coordinator reports them: remembered, and as lines or JSON objects of its log.

Laws:

* A description is a copy: it does not change when the group does.
* Metadata and assignments are read where they are those of consumers, and left out where they cannot be read.
* Text that came from a client is bounded and free of control characters in the log's line, and bounded in its JSON: a
  member cannot write lines of the log, nor fill it.
* The accounts in memory are bounded by `REMEMBERED_JOINS`.
* Each line says what was known at its phase: phases that a rebalance reaches in one step of the coordinator are one
  line, that of the last of them.
"""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

from kcoord_wire.assignors.embedded import ConsumerProtocol
from kcoord_wire.assignors.kip932 import SIMPLE
from kcoord_wire.assignors.streams import STREAMS_ASSIGNOR
from kcoord_wire.assignors.subscriptions import MemberSubscription
from kcoord_wire.codec.fields import number_runs
from kcoord_wire.coordinator.consumer_groups.epoch_group import EpochGroup
from kcoord_wire.coordinator.consumer_groups.group import ConsumerGroup
from kcoord_wire.coordinator.consumer_groups.progress import preferred_assignor
from kcoord_wire.coordinator.core.events import Phase, RebalanceAccount, RebalanceReport
from kcoord_wire.coordinator.core.groups import CONSUMER, BaseGroup, Group, Member, State, TopicNames
from kcoord_wire.coordinator.fault_injection import ACTIONS, Fault, Strike
from kcoord_wire.coordinator.metrics import Metrics, durations
from kcoord_wire.coordinator.share_groups.share_group import ShareGroup
from kcoord_wire.coordinator.streams_groups.streams_group import StreamsGroup, StreamsMember
from kcoord_wire.errors import DecodeError

_EMBEDDED = ConsumerProtocol()
_MOST_MEMBERS = 20  # in a text for people
_MOST_OFFSETS = 20  # likewise


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group.

    :ivar member_id: its id
    :ivar client_id: from its request header
    :ivar client_host: its address, as Kafka writes it: ``/127.0.0.1``
    :ivar group_instance_id: of a static member; None if it is dynamic
    :ivar topics: its subscription; None if it is not a consumer's
    :ivar owned: topic to partitions that it said it owned when it joined (KIP-429); empty with eager assignors
    :ivar assignment: topic to partitions; of a member of a streams group those that its active tasks read; None if it
        is not a consumer's
    :ivar awaited: the request that the rebalance in progress waits for, ``JoinGroup``, ``SyncGroup`` or
        ``ConsumerGroupHeartbeat``; None if none
    :ivar member_epoch: the assignment epoch that a member of KIP-848 has reached; None in a classic group
    """

    member_id: str
    client_id: str
    client_host: str
    group_instance_id: str | None
    topics: tuple[str, ...] | None
    owned: Mapping[str, tuple[int, ...]]
    assignment: Mapping[str, tuple[int, ...]] | None
    awaited: str | None
    member_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group.

    :ivar group_id: the group
    :ivar state: as ListGroups names it: ``Empty``, ``PreparingRebalance``, ``CompletingRebalance``, ``Stable``; of a
        group of KIP-848 ``Empty``, ``Assigning``, ``Reconciling``, ``Stable``; of a share group ``Empty``, ``Stable``
    :ivar state_since: ms since the epoch
    :ivar generation_id: the current one; of a group of KIP-848 or a share group its group epoch
    :ivar protocol_type: ``consumer``, ``share``, ``connect`` ...; None for a group that never had a member
    :ivar protocol: the assignor of the current generation, of a group of KIP-848 that of the next target; None in a
        group without members
    :ivar leader_id: the member that computes the assignment; None likewise
    :ivar members: in the order in which they were added
    :ivar joining: member ids that were given out and are not used yet (KIP-394)
    :ivar offsets: topic to partition to committed offset, without partitions in which none is committed: ``{"orders":
        {0: 7, 3: 12}}``; the offset is that of the next record to read
    :ivar rebalance: the account of the rebalance in progress; None if there is none
    :ivar is_settled: no rebalance is in progress, and none is certain to follow: the group is Stable, every member has
        fetched its assignment, and no member owned a partition that it was not assigned. A cooperative member revokes
        such a partition and joins again (KIP-429). A share group has assigned all partitions of its topics, too.
    :ivar assignment_epoch: of a group of KIP-848 or a share group, the group epoch for which the assignment was
        computed; else None
    """

    group_id: str
    state: str
    state_since: int
    generation_id: int
    protocol_type: str | None
    protocol: str | None
    leader_id: str | None
    members: tuple[MemberDescription, ...]
    joining: tuple[str, ...]
    offsets: Mapping[str, Mapping[int, int]]
    rebalance: RebalanceAccount | None
    is_settled: bool
    assignment_epoch: int | None = None

    @property
    def owners(self) -> dict[tuple[str, int], list[str]]:
        """(topic, partition) to the ids of the members to which it is assigned: one, unless an assignor is wrong or the
        members share it."""
        owners: dict[tuple[str, int], list[str]] = {}
        for member in self.members:
            for topic, partitions in (member.assignment or {}).items():
                for partition in partitions:
                    owners.setdefault((topic, partition), []).append(member.member_id)
        return owners


def _revoked(owned: Mapping[str, tuple[int, ...]], assigned: Mapping[str, tuple[int, ...]] | None) -> bool:
    return assigned is not None and any(
        set(partitions) - set(assigned.get(topic, ())) for topic, partitions in owned.items()
    )


def describe_group(group: BaseGroup, topics: TopicNames, default_assignor: str | None = None) -> GroupDescription:
    """Return a group as it is now.

    :param default_assignor: of groups of KIP-848 whose members ask for none
    """
    if isinstance(group, ConsumerGroup):
        return _describe_epochs(group, topics, preferred_assignor(group, default_assignor or ""))
    if isinstance(group, ShareGroup):
        return _describe_epochs(group, topics, SIMPLE, is_incomplete=group.is_incomplete)
    if isinstance(group, StreamsGroup):
        return _describe_epochs(group, topics, STREAMS_ASSIGNOR)
    assert isinstance(group, Group), "there are four kinds of groups"
    rebalance = group.rebalance
    if rebalance is not None:
        rebalance = replace(rebalance, joins=[*rebalance.joins], removed=[*rebalance.removed])
    members = tuple(_describe_member(group, member) for member in group.members.values())
    return GroupDescription(
        group_id=group.group_id,
        state=str(group.state),
        state_since=group.state_since,
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        leader_id=group.leader_id,
        members=members,
        joining=tuple(group.pending),
        offsets=_offsets(group),
        rebalance=rebalance,
        is_settled=_is_settled(str(group.state), members),
    )


def _offsets(group: BaseGroup) -> Mapping[str, Mapping[int, int]]:
    return {
        topic: {partition: committed.offset for partition, committed in sorted(partitions.items())}
        for topic, partitions in group.offsets.items()
    }


def _describe_epochs(
    group: EpochGroup[Any], topics: TopicNames, assignor: str, *, is_incomplete: bool = False
) -> GroupDescription:
    """Return a group whose target assignment the coordinator computes.

    :param is_incomplete: whether another assignment is certain to follow
    """
    rebalance = group.rebalance
    if rebalance is not None:
        rebalance = replace(rebalance, joins=[*rebalance.joins], removed=[*rebalance.removed])

    def by_name(held: Mapping[uuid.UUID, Collection[int]]) -> dict[str, tuple[int, ...]]:
        names = ((topics.name_of(topic_id), sorted(partitions)) for topic_id, partitions in held.items())
        return {name: tuple(partitions) for name, partitions in names if name is not None}

    members = tuple(
        MemberDescription(
            member_id=member.member_id,
            client_id=member.client_id,
            client_host=member.client_host,
            group_instance_id=member.instance_id,
            topics=tuple(sorted(group.subscription(member))),
            owned={},
            assignment=_inputs(group, member) if isinstance(group, StreamsGroup) else by_name(member.assigned),
            awaited=group.heartbeat if member.member_id in group.unsettled else None,
            member_epoch=member.epoch,
        )
        for member in group.members.values()
    )
    return GroupDescription(
        group_id=group.group_id,
        state=str(group.state),
        state_since=group.state_since,
        generation_id=group.epoch,
        protocol_type=group.protocol_type,
        protocol=(assignor or None) if members else None,
        leader_id=None,
        members=members,
        joining=(),
        offsets=_offsets(group),
        rebalance=rebalance,
        is_settled=_is_settled(str(group.state), members) and not is_incomplete,
        assignment_epoch=group.assignment_epoch,
    )


def _inputs(group: StreamsGroup, member: StreamsMember) -> dict[str, tuple[int, ...]]:
    return {topic: tuple(partitions) for topic, partitions in group.inputs(member.assigned.active).items()}


def _is_settled(state: str, members: Iterable[MemberDescription]) -> bool:
    return state == State.STABLE.value and not any(
        member.awaited or _revoked(member.owned, member.assignment) for member in members
    )


def _describe_member(group: Group, member: Member) -> MemberDescription:
    awaited = None
    if group.state is State.PREPARING:
        awaited = "JoinGroup" if member.join is None else None
    elif member.member_id in group.unsynced:
        awaited = "SyncGroup"
    subscription, assignment = None, None
    if group.protocol_type == CONSUMER:
        subscription = _subscription(member.metadata(group.protocol) or next((m for _, m in member.protocols), b""))
        assignment = _assignment(member.assignment)
    return MemberDescription(
        member_id=member.member_id,
        client_id=member.client_id,
        client_host=member.client_host,
        group_instance_id=member.group_instance_id,
        topics=None if subscription is None else tuple(subscription.topics),
        owned={} if subscription is None else _as_tuples(subscription.owned),
        assignment=assignment,
        awaited=awaited,
    )


def _subscription(metadata: bytes) -> MemberSubscription | None:
    try:
        return _EMBEDDED.decode_subscription(metadata, None)
    except DecodeError:
        return None


def _assignment(data: bytes) -> Mapping[str, tuple[int, ...]] | None:
    try:
        return _as_tuples(_EMBEDDED.decode_assignment(data).partitions)
    except DecodeError:
        return None


def _as_tuples(partitions: Mapping[str, Iterable[int]]) -> Mapping[str, tuple[int, ...]]:
    return {topic: tuple(numbers) for topic, numbers in partitions.items()}


def explain_group(group: GroupDescription, accounts: Iterable[RebalanceAccount], now: int) -> str:
    """Return a group as lines for people: its state, its members and whom it waits for, and its last rebalance.

    :param accounts: of rebalances that have ended, oldest first; of other groups too
    :param now: ms since the epoch
    """
    seconds = (now - group.state_since) / 1000
    protocol = "" if group.protocol is None else f", {shown(group.protocol)}"
    lines = [
        f"{group.state} for {seconds:.1f} s, generation {group.generation_id}{protocol}, members: {len(group.members)}"
    ]
    # Those that are waited for come first: with many members the rest of the list is cut.
    members = sorted(group.members, key=lambda member: member.awaited is None)
    lines += [f"  {_explain_member(member)}" for member in members[:_MOST_MEMBERS]]
    if len(members) > _MOST_MEMBERS:
        lines.append(f"  and {len(members) - _MOST_MEMBERS} more")
    if group.joining:
        lines.append(f"  member ids given out and not yet used: {', '.join(map(shown, group.joining[:_MOST_MEMBERS]))}")
    committed = [f"{shown(topic)}-{p} at {offset}" for topic, of in group.offsets.items() for p, offset in of.items()]
    if committed:
        more = " ..." if len(committed) > _MOST_OFFSETS else ""
        lines.append(f"committed: {', '.join(committed[:_MOST_OFFSETS])}{more}")
    if group.rebalance is not None:
        lines.append(f"rebalance in progress: {describe_rebalance(group.rebalance)}")
    ended = [account for account in accounts if account.group_id == group.group_id]
    lines += [f"last rebalance: {describe_rebalance(account)}" for account in ended[-1:]]
    return "\n".join(lines)


def _explain_member(member: MemberDescription) -> str:
    parts = [f"{shown(member.member_id)} (client {shown(member.client_id)}, {shown(member.client_host)})"]
    if member.awaited is not None:
        parts.append(f"its {member.awaited} is awaited")
    elif member.assignment is not None:
        owned = (f"{shown(topic)} {number_runs(partitions)}" for topic, partitions in sorted(member.assignment.items()))
        parts.append("assigned " + (", ".join(owned) or "nothing"))
        if _revoked(member.owned, member.assignment):
            parts.append("has to revoke partitions and to join again")
    return ": ".join([parts[0], "; ".join(parts[1:])]) if parts[1:] else parts[0]


REMEMBERED_JOINS: Final = 100_000
"""Joins in the accounts that are remembered: the account of a rebalance of 5,000 members takes half a megabyte."""

_MOST_REMOVED: Final = 100  # named in one JSON object; a group can lose thousands at once
_MOST_REMOVED_IN_LINE: Final = 5
_MAX_TEXT: Final = 255  # as Kafka's clients cut the reason of a JoinGroup

_log = logging.getLogger("kcoord_wire.coordinator")


class RebalanceLog:
    """Counts, remembers and logs rebalances.

    :ivar accounts: the last rebalances that have ended, oldest first
    :ivar ended: how many have ended since the start
    """

    def __init__(self, metrics: Metrics) -> None:
        self.accounts: deque[RebalanceAccount] = deque()
        self.ended = 0
        self._metrics = metrics
        self._joins = 0  # in `accounts`, and one for each of them

    def report(self, report: RebalanceReport) -> None:
        """Take in that a rebalance has reached a phase."""
        rebalance = report.rebalance
        if report.phase is Phase.ENDED:
            self._metrics.count_rebalance(rebalance)
            self._remember(rebalance)
        if not _is_outdated(report) and _log.isEnabledFor(logging.INFO):
            _log.info("%s", describe_rebalance(rebalance), extra={"rebalance_report": report})

    def _remember(self, rebalance: RebalanceAccount) -> None:
        self.accounts.append(rebalance)
        self.ended += 1
        self._joins += 1 + len(rebalance.joins)
        while self._joins > REMEMBERED_JOINS and len(self.accounts) > 1:
            self._joins -= 1 + len(self.accounts.popleft().joins)


def _is_outdated(report: RebalanceReport) -> bool:
    """Return whether the rebalance has come further since; its account shows only how far it has come."""
    rebalance = report.rebalance
    if report.phase is Phase.STARTED:
        return rebalance.joined_at is not None or rebalance.ended_at is not None
    return report.phase is Phase.JOINED and rebalance.ended_at is not None


def _last_to_join(rebalance: RebalanceAccount) -> tuple[str, int] | None:
    """Return the member that joined last, and how many ms after the one before, or after the start if it is alone."""
    if rebalance.joined_at is None or not rebalance.joins:
        return None
    member_id, at = rebalance.joins[-1]
    return member_id, at - (rebalance.joins[-2][1] if len(rebalance.joins) > 1 else 0)


def rebalance_to_json(rebalance: RebalanceAccount, phase: Phase) -> dict[str, Any]:
    """Return a rebalance at one of its phases, for a log of JSON objects. Durations are in ms, or null.

    ::

        {"event": "rebalance", "phase": "ended", "group": "billing", "generation": 7, "outcome": "stable",
         "trigger": "new member", "member": "c2-6f...", "client": "c2", "host": "/10.0.0.7", "instance": null,
         "reason": null, "protocol": "range", "leader": "c1-0a...", "members": 2, "started_at": 1760000000000,
         "join_ms": 812, "sync_ms": 9, "whole_ms": 821, "last": {"member": "c1-0a...", "ms_after_the_one_before": 640},
         "lost": 1, "removed": [{"member": "c3-77...", "client": "c3", "host": "/10.0.0.8", "why": "session timeout"}]}

    ``lost`` counts all that were removed; ``removed`` names the first hundred.
    """
    join_ms, sync_ms, whole_ms = durations(rebalance)
    last = _last_to_join(rebalance)
    return {
        "event": "rebalance",
        "phase": str(phase),
        "group": _cut(rebalance.group_id),
        "generation": rebalance.generation_id,
        "outcome": rebalance.outcome,
        "trigger": str(rebalance.trigger),
        "member": _cut(rebalance.member_id),
        "client": _cut(rebalance.client_id),
        "host": rebalance.client_host,
        "instance": None if rebalance.group_instance_id is None else _cut(rebalance.group_instance_id),
        "reason": None if rebalance.reason is None else _cut(rebalance.reason),
        "protocol": None if rebalance.protocol is None else _cut(rebalance.protocol),
        "leader": None if rebalance.leader_id is None else _cut(rebalance.leader_id),
        "members": len({member_id for member_id, _ in rebalance.joins}),
        "started_at": rebalance.started_at,
        "join_ms": join_ms,
        "sync_ms": sync_ms,
        "whole_ms": whole_ms,
        "last": None if last is None else {"member": _cut(last[0]), "ms_after_the_one_before": last[1]},
        "lost": len(rebalance.removed),
        "removed": [
            {"member": _cut(gone.member_id), "client": _cut(gone.client_id), "host": gone.client_host, "why": gone.why}
            for gone in rebalance.removed[:_MOST_REMOVED]
        ],
    }


def describe_rebalance(rebalance: RebalanceAccount) -> str:
    """Return a rebalance in one line for people, as far as it has come."""
    join_ms, sync_ms, whole_ms = durations(rebalance)
    if whole_ms is not None:
        phases = "" if join_ms is None else f" (join {join_ms}, sync {sync_ms})"
        head = f"{rebalance.outcome} at generation {rebalance.generation_id} after {whole_ms} ms{phases}"
    elif join_ms is not None:
        head = f"joined to generation {rebalance.generation_id} after {join_ms} ms"
    else:
        head = f"rebalance of generation {rebalance.generation_id} has begun"
    who = f": {_member(rebalance.member_id, rebalance.client_id, rebalance.client_host)}" if rebalance.member_id else ""
    instance = "" if rebalance.group_instance_id is None else f", instance {shown(rebalance.group_instance_id)}"
    reason = f", stated reason: {shown(rebalance.reason)}" if rebalance.reason else ""
    parts = [f"group {shown(rebalance.group_id)}: {head}", f"{rebalance.trigger}{who}{instance}{reason}"]
    last = _last_to_join(rebalance)
    if last is not None:
        count = len({member_id for member_id, _ in rebalance.joins})
        before = "the one before" if count > 1 else "the start"
        parts.append(f"{count} joined, the last {shown(last[0])}, {last[1]} ms after {before}")
    if rebalance.protocol is not None and rebalance.leader_id is not None:
        parts.append(f"{shown(rebalance.protocol)}, led by {shown(rebalance.leader_id)}")
    for gone in rebalance.removed[:_MOST_REMOVED_IN_LINE]:
        parts.append(f"lost {_member(gone.member_id, gone.client_id, gone.client_host)}: {gone.why}")
    if len(rebalance.removed) > _MOST_REMOVED_IN_LINE:
        parts.append(f"and {len(rebalance.removed) - _MOST_REMOVED_IN_LINE} more")
    return "; ".join(parts)


def describe_strikes(strikes: Iterable[Strike]) -> Iterator[tuple[int, str]]:
    """Yield what faults have done: the time, in ms since the epoch, and a line for people; for several in sequence that
    differ by their time alone, those of the first."""
    for alike, found in groupby(strikes, key=lambda strike: strike._replace(at=0)):
        times = [strike.at for strike in found]
        done = " and ".join(map(_done, alike.faults))
        groups = f", {', '.join(map(shown, alike.groups))}" if alike.groups else ""
        often = f", {len(times)} times in {times[-1] - times[0]} ms" if len(times) > 1 else ""
        yield (
            times[0],
            f"fault: {done}: {alike.on} {alike.api} v{alike.version} of {shown(alike.client_id)}{groups}{often}",
        )


def _done(fault: Fault) -> str:
    key = ACTIONS[fault.action].parameter
    value = getattr(fault, key) if key else None
    return fault.action if value is None else f"{fault.action} {key}={getattr(value, 'name', value)}"


def _member(member_id: str, client_id: str, host: str) -> str:
    return f"{shown(member_id)} (client {shown(client_id)}, {shown(host)})"


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"


def shown(text: str) -> str:
    """Return a client's text for a log line: bounded, and with control characters escaped."""
    text = _cut(text)
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text or '""'
