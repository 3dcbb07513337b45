"""Histories of classic groups from their GroupMetadata records: a record is a generation with members and assignment.

The coordinator writes one when the leader has assigned, when the last member is gone, and when a static member has been
replaced (then without a new generation). The events that lead there leave no record: joins, heartbeats, leaves,
timeouts. So the cause of a generation follows from the differences between two records, and is certain only where
nothing else makes that difference. `_RULES` has the causes in the order in which they are tried.

Laws:

* A rebalance is a record with a new generation. Replacing a static member within its generation is not a rebalance.
* Generations missing between two records were cut short before the leader had assigned; they are counted.

Source: kafka/group-coordinator `GroupMetadataManager.java`, `ClassicGroup.java`: `current_state_timestamp` of a
generation's record is the time at which the joins were answered; KIP-345, KIP-429.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.history import Place, identity_of, name_of, removed_members
from kcoord_wire.forensics.model import NS_PER_MS, MemberLife, Pause, Rebalance
from kcoord_wire.forensics.records.ledger import Departed, Entry, Explanation, Ledger, explain_departures
from kcoord_wire.protocol.wording import listed, only

_EAGER: Final = {"range", "roundrobin", "sticky"}
_CONSUMER: Final = "consumer"
_HAS_GENERATION: Final = b"\0\2"  # version 2 of a subscription, the first with a generation id
_NO_TIMEOUT: Final = -1  # rebalance timeout of record versions without one
_SEVERAL_GONE: Final = 0.8  # factor of the confidence where several members are gone: any of them may have been first
_CUT_SHORT: Final = "{} generation{s} ended before the leader had assigned: only the missing numbers show them."
_UNREADABLE: Final = "{} subscription{s} or assignment{s} of members could not be read."


@dataclass(slots=True)
class _Record:
    """A GroupMetadata record.

    :ivar entry: where and when it was written
    :ivar generation: its generation
    :ivar protocol_type: of the group
    :ivar assignor: that was chosen
    :ivar leader: member id of the leader
    :ivar joined: when the joins were answered; None where the record does not show it
    :ivar members: by member id
    :ivar topics: subscribed by each member; None where the subscription cannot be read
    :ivar claimed: what members said they owned when they joined
    :ivar assigned: the assignment
    :ivar joined_from: the generation each member said it came from; absent where its client does not send it (KIP-429)
    :ivar absent: static members that the join was completed without
    :ivar gone: members that left without a new generation
    """

    entry: Entry
    generation: int
    protocol_type: str | None
    assignor: str | None
    leader: str | None
    joined: int | None = None
    members: dict[str, MemberLife] = field(default_factory=dict)
    topics: dict[str, list[str] | None] = field(default_factory=dict)
    claimed: dict[Place, str] = field(default_factory=dict)
    assigned: dict[Place, str] = field(default_factory=dict)
    joined_from: dict[str, int] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    gone: dict[str, Departed] = field(default_factory=dict)

    @property
    def at(self) -> int:
        return self.entry.at

    @property
    def first_sign(self) -> int:
        """The earliest known time of its generation."""
        return self.at if self.joined is None else self.joined

    @property
    def cooperative(self) -> bool | None:
        if self.assignor is None or self.assignor in _EAGER:
            return None if self.assignor is None else False
        return True if "cooperative" in self.assignor else None

    @property
    def instances(self) -> set[str | None]:
        return {life.instance_id for life in self.members.values()} - {None}

    def summary(self) -> str:
        names = listed(life.client_id or life.member_id for life in self.members.values())
        return f"generation {self.generation}: {len(self.members)} members" + (f" ({names})" if names else "")


class ClassicRecords:
    """Reads the GroupMetadata records of one group, in their order, into its ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._last: _Record | None = None

    @property
    def generation(self) -> int | None:
        """Generation of the last record; None before the first one."""
        return None if self._last is None else self._last.generation

    def read(self, entry: Entry) -> None:
        ledger, last = self._ledger, self._last
        record = self._parse(entry)
        if last is not None and record.generation < last.generation:
            ledger.deleted(record.at)
            last = None
        if record.protocol_type:
            ledger.protocol_type = record.protocol_type
        if last is not None and record.generation == last.generation and bool(record.members) <= bool(last.members):
            self._amend(last, record)
        elif last is None and not record.members:
            ledger.enter(record.at, "Empty", record.generation)
        else:
            self._begin(last, record)
        self._last = record

    def forget(self) -> None:
        """Forget the last record: the group was deleted, or has changed to the newer protocol."""
        self._last = None

    def adopt(self, entry: Entry, epoch: int) -> None:
        """Take over a group from the newer protocol: its members and what they hold are in the ledger."""
        ledger = self._ledger
        ledger.revive(entry.at)
        record = _Record(entry, epoch, _CONSUMER, None, None)
        record.members = dict(ledger.members)
        record.topics = {member_id: list(life.topics) for member_id, life in ledger.members.items()}
        record.assigned = {place: item.member_id for place, item in ledger.held.items()}
        self._last = record

    # ---- a record

    def _parse(self, entry: Entry) -> _Record:
        value = entry.record.value
        record = _Record(entry, value.generation, value.protocol_type or None, value.protocol, value.leader)
        joined = value.current_state_timestamp * NS_PER_MS
        if value.members and (self._last is None or joined >= self._last.at) and 0 <= joined < entry.at:
            record.joined = joined
        nested = {member.member_id: member for member in entry.record.members}
        for member in value.members:
            self._parse_member(record, member, nested.get(member.member_id))
        return record

    def _parse_member(self, record: _Record, member: Any, blobs: Any) -> None:
        """Add a member to the record; `blobs` are its decoded subscription and assignment, None without any."""
        subscription, assignment = (None, None) if blobs is None else (blobs.subscription, blobs.assignment)
        if blobs is not None and blobs.error is not None:
            self._ledger.notes[_UNREADABLE] += 1
        topics = None if subscription is None else sorted(set(subscription.topics))
        timeout = member.rebalance_timeout
        record.topics[member.member_id] = topics
        record.members[member.member_id] = MemberLife(
            group_id=self._ledger.group_id,
            member_id=member.member_id,
            instance_id=member.group_instance_id or None,
            client_id=member.client_id,
            client_host=host_of(member.client_host),
            joined_ns=record.first_sign,
            last_seen_ns=record.at,
            first_generation_id=record.generation,
            last_generation_id=record.generation,
            session_timeout_ms=member.session_timeout,
            rebalance_timeout_ms=member.session_timeout if timeout == _NO_TIMEOUT else timeout,
            assignors=[] if record.assignor is None else [record.assignor],
            topics=topics or [],
        )
        if subscription is not None:
            record.claimed.update((place, member.member_id) for place in _places(subscription.owned_partitions))
            if member.subscription[: len(_HAS_GENERATION)] >= _HAS_GENERATION:
                record.joined_from[member.member_id] = subscription.generation_id
        if assignment is not None:
            record.assigned.update((place, member.member_id) for place in _places(assignment.assigned_partitions))

    def _amend(self, last: _Record, record: _Record) -> None:
        """Read the same generation written again: a static member has been replaced."""
        ledger = self._ledger
        record.joined, record.gone, record.absent = last.joined, last.gone, last.absent & record.members.keys()
        instances = record.instances
        for member_id, life in [each for each in last.members.items() if each[0] not in record.members]:
            why = "replaced"
            if life.instance_id not in instances:
                record.gone[member_id] = departed = ledger.departed(life, record.first_sign)
                why = departed.why
            ledger.lose(record.at, member_id, why)
        for life in record.members.values():
            if life.member_id not in last.members:
                life.joined_ns = record.at
            ledger.see(record.at, life)
        self._assign(record)

    def _assign(self, record: _Record) -> None:
        ledger = self._ledger
        for place in [place for place in ledger.held if place not in record.assigned]:
            ledger.release(record.at, place, ledger.number)
        for place, member_id in record.assigned.items():
            ledger.give(record.at, place, member_id, record.generation)

    # ---- a rebalance

    def _begin(self, last: _Record | None, record: _Record) -> None:
        ledger = self._ledger
        absent = [life for life in ledger.members.values() if life.member_id not in record.members]
        gone = self._gone(last, record, absent)
        if last is not None:
            record.absent = _absent(last, record)
        rebalance = self._rebalance(last, record, gone)
        for life in absent:
            departed = gone.get(life.member_id)
            ledger.lose(record.at, life.member_id, "replaced" if departed is None else departed.why, rebalance.number)
        for pause in ledger.paused.values():
            if pause.rebalance is None and pause.former_member_id in gone:
                pause.rebalance = rebalance.number
        rebalance.removed = removed_members(departed.life for departed in gone.values())
        for life in record.members.values():
            ledger.see(record.at, life)
        self._assign(record)
        ledger.count_moves(rebalance)
        if not record.members:
            ledger.empty(record.at, record.generation)
            return
        if record.joined is not None:
            ledger.enter(record.joined, "CompletingRebalance", record.generation)
        ledger.enter(record.at, "Stable", record.generation)
        ledger.begin_generation(
            record.generation,
            rebalance.started_ns,
            stable_ns=record.at,
            assignor=rebalance.assignor,
            leader_id=rebalance.leader_id,
            members=rebalance.members_after,
            partitions=len(record.assigned),
        )

    def _gone(self, last: _Record | None, record: _Record, absent: list[MemberLife]) -> dict[str, Departed]:
        """Return the members that are gone since the generation before: the absent ones that were not replaced."""
        gone = {} if last is None else dict(last.gone)
        for life in absent:
            if life.instance_id not in record.instances:
                gone[life.member_id] = self._ledger.departed(life, record.first_sign)
        return gone

    def _rebalance(self, last: _Record | None, record: _Record, gone: Mapping[str, Departed]) -> Rebalance:
        ledger = self._ledger
        found = _explain_first(record) if last is None else self._explain(last, record, gone)
        return ledger.add(
            record.first_sign,
            generation_id=record.generation,
            joined_ns=record.joined,
            ended_ns=record.at,
            outcome="stable" if record.members else "empty",
            cause=found.cause,
            trigger=identity_of(found.member_id, record.members, {key: item.life for key, item in gone.items()}),
            detail=found.detail,
            confidence=round(found.confidence, 2),
            evidence=[item.entry.evidence(item.summary()) for item in (last, record) if item is not None],
            protocol_type=record.protocol_type,
            assignor=record.assignor,
            leader_id=record.leader,
            cooperative=_is_cooperative(last, record),
            members_before=0 if last is None else len(last.members),
            members_after=len(record.members),
            is_start_known=False,
        )

    def _explain(self, last: _Record, record: _Record, gone: Mapping[str, Departed]) -> Explanation:
        """Return the cause by the first rule that applies, less certain where generations are missing in between."""
        change = _Change(last, record, gone, self._ledger.paused)
        found = next(found for rule in _RULES if (found := rule(change)) is not None)
        missing = change.missing
        if missing <= 0:
            return found
        self._ledger.notes[_CUT_SHORT] += missing
        detail = f"{found.detail}; {missing} generation{'s' * (missing > 1)} in between did not get that far"
        return found._replace(detail=detail, confidence=found.confidence * 0.7)


# ---- causes


class _Change:
    """What differs between two records.

    :ivar last: the earlier record
    :ivar now: the later record
    :ivar gone: members that are gone
    :ivar paused: partitions without owner at the time of `now`
    :ivar missing: generations that were cut short in between
    :ivar new: members that joined
    :ivar back: static members that came back with a new member id
    """

    def __init__(
        self, last: _Record, now: _Record, gone: Mapping[str, Departed], paused: Mapping[Place, Pause]
    ) -> None:
        self.last, self.now, self.gone, self.paused = last, now, gone, paused
        self.missing = now.generation - last.generation - 1
        instances = last.instances
        fresh = [life for life in now.members.values() if life.member_id not in last.members]
        self.new = [life for life in fresh if life.instance_id not in instances]
        self.back = [life for life in fresh if life.instance_id in instances]

    @cached_property
    def subscribed(self) -> list[MemberLife]:
        """The members that subscribe to other topics than before."""
        before, now = self.last.topics, self.now.topics
        return [life for key, life in self.now.members.items() if now[key] != before.get(key, now[key])]

    @cached_property
    def withheld(self) -> dict[Place, str]:
        """What the first round of a cooperative rebalance took, for the next, from members that are still present."""
        last = self.last
        if not last.cooperative:
            return {}
        claims = dict(last.claimed)
        claims |= {place: item.former_member_id for place, item in self.paused.items() if item.from_ns == last.at}
        staying = last.members.keys() & self.now.members.keys()
        known = {topic for topics in last.topics.values() for topic in topics or ()}
        return {
            place: member_id
            for place, member_id in claims.items()
            if place not in last.assigned and member_id in staying and place[0] in known
        }


def _explain_first(record: _Record) -> Explanation:
    """Return why the first generation in the log began."""
    if record.generation == 1:
        detail = f"{_names(record.members.values())} joined: the group's first generation"
        return Explanation(Cause.NEW_MEMBER, 1.0, detail, record.leader)
    detail = f"the log begins with generation {record.generation}: what was before has been compacted away"
    return Explanation(Cause.UNKNOWN, 0.0, detail)


def _first_members(change: _Change) -> Explanation | None:
    if not change.new or change.last.members:
        return None
    return Explanation(Cause.NEW_MEMBER, 1.0, f"{_names(change.new)} joined the empty group", change.now.leader)


def _static_replaced(change: _Change) -> Explanation | None:
    if not change.back or change.new or change.gone:
        return None
    detail = f"{_names(change.back)} came back with a new member id"
    if change.now.assignor != change.last.assignor:
        detail += f", and the assignor is now {change.now.assignor}"
    return Explanation(Cause.STATIC_REPLACED, 0.8, detail, _only(change.back))


def _new_members(change: _Change) -> Explanation | None:
    if not change.new:
        return None
    confidence, detail = 0.95 if len(change.new) == 1 else 0.85, f"{_names(change.new)} joined"
    if change.gone:
        gone = _names(departed.life for departed in change.gone.values())
        confidence, detail = 0.6, f"{detail} and {gone} left, either of which may be the cause"
    elif change.withheld:
        confidence, detail = 0.7, f"{detail}; the second round of a cooperative rebalance was due as well"
    return Explanation(Cause.NEW_MEMBER, confidence, detail, _only(change.new))


def _departures(change: _Change) -> Explanation | None:
    if not change.gone:
        return None
    found = explain_departures(change.gone)
    return found if len(change.gone) == 1 else found._replace(confidence=found.confidence * _SEVERAL_GONE)


def _second_round(change: _Change) -> Explanation | None:
    given = sum(place in change.now.assigned for place in change.withheld)
    if not given:
        return None
    generation = change.last.generation
    detail = f"{given} of {len(change.withheld)} partitions that generation {generation} revoked are given out"
    return Explanation(Cause.COOPERATIVE_FOLLOW_UP, 0.95, detail, only(change.withheld.values()))


def _topics_changed(change: _Change) -> Explanation | None:
    last, now = change.last, change.now
    known = {topic for topics in last.topics.values() for topic in topics or ()}
    more = {place for place in now.assigned.keys() - last.assigned.keys() if place[0] in known}
    fewer = set() if change.subscribed else last.assigned.keys() - now.assigned.keys()
    if not more and not fewer:
        return None
    parts = [f"{len(more)} more partitions"] * bool(more) + [f"{len(fewer)} fewer partitions"] * bool(fewer)
    detail = (
        f"{' and '.join(parts)} of {listed({topic for topic, _ in more | fewer})}, the members and what they subscribe "
        "to as before"
    )
    return Explanation(Cause.TOPICS_CHANGED, 0.6 if change.subscribed else 0.9, detail, _leader(now))


def _subscription_changed(change: _Change) -> Explanation | None:
    members = change.subscribed
    if not members:
        return None
    topics = ", ".join(change.now.topics[members[0].member_id] or ())
    detail = f"{_names(members)} subscribed to other topics" + (f": {topics}" if len(members) == 1 and topics else "")
    return Explanation(Cause.SUBSCRIPTION_CHANGED, 0.9, detail, _only(members))


def _assignor_changed(change: _Change) -> Explanation | None:
    before, now = change.last.assignor, change.now.assignor
    if before == now:
        return None
    return Explanation(Cause.ASSIGNORS_CHANGED, 0.8, f"the assignor was {before} and is {now}")


def _rejoined_late(change: _Change) -> Explanation | None:
    last, now = change.last, change.now
    late = [now.members[member_id] for member_id in sorted(last.absent - now.absent) if member_id in now.members]
    if not late:
        return None
    detail = f"{_names(late)}, without whom the join of generation {last.generation} had ended, came back"
    return Explanation(Cause.REBALANCE_TIMEOUT, 0.8, detail, _only(late))


def _leader_rejoined(change: _Change) -> Explanation:
    now = change.now
    leader = now.members.get(now.leader or "")
    detail = "the same members with the same subscriptions: the leader rejoined"
    if now.leader != change.last.leader and leader is not None:
        detail += f", or did not and {leader.client_id or leader.member_id} leads now"
    if change.missing > 0:
        detail += ", or a member came and went"
    return Explanation(Cause.LEADER_REJOINED, 0.4 if change.missing else 0.6, detail, _leader(now))


_RULES: Final[Sequence[Callable[[_Change], Explanation | None]]] = (
    _first_members,
    _static_replaced,
    _new_members,
    _departures,
    _second_round,
    _topics_changed,
    _subscription_changed,
    _assignor_changed,
    _rejoined_late,
    _leader_rejoined,
)
"""The causes of a generation that follows another, in the order in which they are tried; the last always applies."""


# ---- what a record shows


def _is_cooperative(last: _Record | None, record: _Record) -> bool | None:
    """Whether members kept what they owned: by the assignor, unless members with partitions joined without any.

    Such members offer an eager assignor as well, as during a migration, and so give everything up when they join.
    """
    if last is None or not record.cooperative:
        return record.cooperative
    held = {member_id for member_id in last.assigned.values() if record.topics.get(member_id) is not None}
    return not held - set(record.claimed.values()) - record.absent


def _absent(last: _Record, record: _Record) -> set[str]:
    """Return static members that have not joined for a generation: they come from the same old one as before."""
    newest = max(record.joined_from.values(), default=-1)
    return {
        member_id
        for member_id, joined_from in record.joined_from.items()
        if record.members[member_id].instance_id is not None
        and joined_from == last.joined_from.get(member_id)
        and joined_from < newest
    }


def host_of(client_host: str) -> str:
    """Return the address in a client host as Kafka's records have it: ``/127.0.0.1``."""
    return client_host.rpartition("/")[2]


def _places(topics: Any) -> list[Place]:
    return [(item.topic, partition) for item in topics for partition in item.partitions]


def _only(lives: Sequence[MemberLife]) -> str | None:
    return only(life.member_id for life in lives)


def _leader(record: _Record) -> str | None:
    return record.leader if record.leader in record.members else None


def _names(lives: Iterable[MemberLife]) -> str:
    return listed(name_of(life) for life in lives)
