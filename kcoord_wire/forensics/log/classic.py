"""Classic groups as their GroupMetadata records tell of them: a record is a generation with its members and assignment.

The coordinator writes one when the leader has assigned, when the last member is gone, and when a static member has been
replaced (then without a new generation). What leads there leaves no record: joins, heartbeats, leaves, timeouts. So why
a generation came follows from what differs between two records, and is certain only where nothing else gives that
difference.

Laws:

* A rebalance is a record with a new generation. A static member that was replaced within its generation is none.
* Generations that are missing between two records were cut short before the leader had assigned; they are counted.

Source: kafka/group-coordinator `GroupMetadataManager.java`, `ClassicGroup.java`: `current_state_timestamp` of a
generation's record is the time at which the joins were answered; KIP-345, KIP-429.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kcoord_wire.forensics.log.ledger import MS, Departed, Entry, Ledger, Place
from kcoord_wire.forensics.model import Cause, Generation, MemberLife, new_rebalance

__all__ = ["ClassicRecords", "host_of"]

_EAGER: Final = {"range", "roundrobin", "sticky"}
_CONSUMER: Final = "consumer"
_TELLS_GENERATION: Final = b"\0\2"  # version of a subscription
_CUT_SHORT: Final = (
    "{} generation{s} ended before the leader had assigned: only the number that is missing tells of them."
)
_UNREADABLE: Final = "{} subscription{s} or assignment{s} of members could not be read."


_Gone = tuple[MemberLife, Departed]


@dataclass(slots=True)
class _Seen:
    """A record with a generation.

    :ivar joined: when the joins were answered; None where the record does not tell
    :ivar topics: subscribed by each member; None where the subscription cannot be read
    :ivar claimed: what members said they owned when they joined
    :ivar joined_from: the generation each member said it came from; None where its client does not say (KIP-429)
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
    gone: dict[str, _Gone] = field(default_factory=dict)

    @property
    def at(self) -> int:
        return self.entry.at

    @property
    def cooperative(self) -> bool | None:
        if self.assignor is None or self.assignor in _EAGER:
            return None if self.assignor is None else False
        return True if "cooperative" in self.assignor else None

    def told(self) -> str:
        """The record in a sentence."""
        names = ", ".join(sorted(life.client_id or life.member_id for life in self.members.values())[:8])
        more = "" if len(self.members) <= 8 else f" and {len(self.members) - 8} more"
        return f"generation {self.generation}: {len(self.members)} members" + (f" ({names}{more})" if names else "")


@dataclass(slots=True)
class _Verdict:
    cause: Cause
    confidence: float
    detail: str
    member_id: str | None = None


class ClassicRecords:
    """Reads the GroupMetadata records of one group, in their order, into its ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._last: _Seen | None = None

    @property
    def generation(self) -> int | None:
        """The generation that was told last."""
        return None if self._last is None else self._last.generation

    def tell(self, entry: Entry) -> None:
        """The next record; its value is there."""
        ledger = self._ledger
        seen = self._read(entry)
        last = self._last
        if last is not None and seen.generation < last.generation:
            ledger.deleted(seen.at)
            last = None
        if seen.protocol_type:
            ledger.protocol_type = seen.protocol_type
        if last is not None and seen.generation == last.generation and bool(seen.members) <= bool(last.members):
            self._amend(last, seen)
        elif last is None and not seen.members:
            ledger.state(seen.at, "Empty", seen.generation)
        else:
            self._begin(last, seen)
        self._last = seen

    def forget(self) -> None:
        """The group's record was deleted, or the group has gone over to the newer protocol."""
        self._last = None

    def adopt(self, entry: Entry, epoch: int) -> None:
        """The group comes from the newer protocol: its members and what they hold are in the ledger."""
        ledger = self._ledger
        ledger.revive(entry.at)
        seen = _Seen(entry, epoch, _CONSUMER, None, None)
        seen.members = dict(ledger.members)
        seen.topics = {member_id: list(life.topics) for member_id, life in ledger.members.items()}
        seen.assigned = {place: item.member_id for place, item in ledger.held.items()}
        self._last = seen

    # ---- a record

    def _read(self, entry: Entry) -> _Seen:
        value = entry.record.value
        seen = _Seen(entry, value.generation, value.protocol_type or None, value.protocol, value.leader)
        told = value.current_state_timestamp * MS
        if value.members and (self._last is None or told >= self._last.at) and 0 <= told < entry.at:
            seen.joined = told
        nested = {member.member_id: member for member in entry.record.members}
        for member in value.members:
            blobs = nested.get(member.member_id)
            subscription = None if blobs is None else blobs.subscription
            assignment = None if blobs is None else blobs.assignment
            if blobs is not None and blobs.error is not None:
                self._ledger.notes[_UNREADABLE] += 1
            topics = None if subscription is None else sorted(set(subscription.topics))
            timeout = member.rebalance_timeout
            seen.topics[member.member_id] = topics
            seen.members[member.member_id] = MemberLife(
                group_id=self._ledger.group_id,
                member_id=member.member_id,
                instance_id=member.group_instance_id or None,
                client_id=member.client_id,
                client_host=host_of(member.client_host),
                joined_ns=seen.at if seen.joined is None else seen.joined,
                left_ns=None,
                why_left=None,
                last_seen_ns=seen.at,
                first_generation_id=seen.generation,
                last_generation_id=seen.generation,
                session_timeout_ms=member.session_timeout,
                rebalance_timeout_ms=member.session_timeout if timeout == -1 else timeout,
                assignors=[] if value.protocol is None else [value.protocol],
                topics=topics or [],
            )
            if subscription is not None and member.subscription[:2] >= _TELLS_GENERATION:
                seen.joined_from[member.member_id] = subscription.generation_id
            owned = () if subscription is None else _places(subscription.owned_partitions)
            seen.claimed.update((place, member.member_id) for place in owned)
            given = () if assignment is None else _places(assignment.assigned_partitions)
            seen.assigned.update((place, member.member_id) for place in given)
        return seen

    def _amend(self, last: _Seen, seen: _Seen) -> None:
        """The same generation told again: a static member has been replaced."""
        ledger = self._ledger
        seen.joined, seen.gone, seen.absent = last.joined, last.gone, last.absent & seen.members.keys()
        instances = {life.instance_id for life in seen.members.values()} - {None}
        for member_id in last.members.keys() - seen.members.keys():
            life = last.members[member_id]
            if life.instance_id not in instances:
                seen.gone[member_id] = self._departed(seen, life)
            ledger.lose(
                seen.at, member_id, "replaced" if life.instance_id in instances else seen.gone[member_id][1].why
            )
        for life in seen.members.values():
            if life.member_id not in last.members:
                life.joined_ns = seen.at
            ledger.see(seen.at, life)
        self._hand_out(seen)

    def _hand_out(self, seen: _Seen) -> None:
        ledger = self._ledger
        number = ledger.rebalances[-1].number if ledger.rebalances else None
        for place in [place for place in ledger.held if place not in seen.assigned]:
            ledger.release(seen.at, place, number)
        for place, member_id in seen.assigned.items():
            ledger.give(seen.at, place, member_id, seen.generation)

    # ---- a rebalance

    def _begin(self, last: _Seen | None, seen: _Seen) -> None:
        ledger = self._ledger
        first_sign = seen.at if seen.joined is None else seen.joined
        kept = {life.instance_id for life in seen.members.values()} - {None}
        absent = [life for life in ledger.members.values() if life.member_id not in seen.members]
        gone = {} if last is None else dict(last.gone)
        gone |= {life.member_id: self._departed(seen, life) for life in absent if life.instance_id not in kept}
        if last is not None:
            seen.absent = _absent(last, seen)
        verdict = self._verdict(last, seen, gone)
        who = seen.members.get(verdict.member_id or "")
        if verdict.member_id in gone:
            who = gone[verdict.member_id][0]
        rebalance = new_rebalance(
            group_id=ledger.group_id,
            number=len(ledger.rebalances) + 1,
            generation_id=seen.generation,
            started_ns=first_sign,
            joined_ns=seen.joined,
            ended_ns=seen.at,
            outcome="stable" if seen.members else "empty",
            cause=verdict.cause,
            trigger=ledger.identified(verdict.member_id, who),
            detail=verdict.detail,
            confidence=round(verdict.confidence, 2),
            evidence=[item.entry.evidence(item.told()) for item in (last, seen) if item is not None],
            protocol_type=seen.protocol_type,
            assignor=seen.assignor,
            leader_id=seen.leader,
            cooperative=_is_cooperative(last, seen),
            members_before=0 if last is None else len(last.members),
            members_after=len(seen.members),
            is_start_known=False,
        )
        ledger.rebalances.append(rebalance)
        before = ledger.owners()
        for life in absent:
            why = gone[life.member_id][1].why if life.member_id in gone else "replaced"
            ledger.lose(seen.at, life.member_id, why, rebalance.number)
        for pause in ledger.paused.values():
            if pause.rebalance is None and pause.former_member_id in gone:
                pause.rebalance = rebalance.number
        rebalance.removed = ledger.removed(life for life, _ in gone.values())
        for life in seen.members.values():
            ledger.see(seen.at, life)
        self._hand_out(seen)
        ledger.count_moves(before, rebalance)
        if not seen.members:
            ledger.end_generation(seen.at)
            ledger.state(seen.at, "Empty", seen.generation)
            return
        if seen.joined is not None:
            ledger.state(seen.joined, "CompletingRebalance", seen.generation)
        ledger.state(seen.at, "Stable", seen.generation)
        ledger.generation(
            Generation(
                group_id=ledger.group_id,
                generation_id=seen.generation,
                joined_ns=first_sign,
                stable_ns=seen.at,
                ended_ns=None,
                assignor=seen.assignor,
                leader_id=seen.leader,
                members=len(seen.members),
                partitions=len(seen.assigned),
            )
        )

    def _departed(self, seen: _Seen, life: MemberLife) -> _Gone:
        until = seen.at if seen.joined is None else seen.joined
        return life, self._ledger.departed(life.member_id, until, life.session_timeout_ms)

    # ---- causes

    def _verdict(self, last: _Seen | None, seen: _Seen, gone: Mapping[str, _Gone]) -> _Verdict:
        if last is None:
            if seen.generation == 1:
                detail = f"{_names(list(seen.members.values()))} joined: the group's first generation"
                return _Verdict(Cause.NEW_MEMBER, 1.0, detail, seen.leader)
            detail = f"the log begins with generation {seen.generation}: what was before has been compacted away"
            return _Verdict(Cause.UNKNOWN, 0.0, detail)
        missing = seen.generation - last.generation - 1
        verdict = self._cause(last, seen, gone, missing)
        if missing > 0:
            self._ledger.notes[_CUT_SHORT] += missing
            verdict.detail += f"; {missing} generation{'s' if missing > 1 else ''} in between did not get that far"
            verdict.confidence *= 0.7
        return verdict

    def _cause(self, last: _Seen, seen: _Seen, gone: Mapping[str, _Gone], missing: int) -> _Verdict:
        instances = {life.instance_id for life in last.members.values()} - {None}
        fresh = [life for life in seen.members.values() if life.member_id not in last.members]
        new = [life for life in fresh if life.instance_id not in instances]
        back = [life for life in fresh if life.instance_id in instances]
        if new and not last.members:
            names = _names(new)
            return _Verdict(Cause.NEW_MEMBER, 1.0, f"{names} joined the empty group", seen.leader)
        if back and not new and not gone:
            only = _only(back)
            detail = f"{_names(back)} came back with a new member id" + (
                "" if seen.assignor == last.assignor else f", and the assignor is now {seen.assignor}"
            )
            return _Verdict(Cause.STATIC_REPLACED, 0.8, detail, only)
        if new:
            only = _only(new)
            detail = f"{_names(new)} joined"
            confidence = 0.95 if only else 0.85
            if gone:
                detail += f" and {_names([life for life, _ in gone.values()])} went, either of which may have begun it"
                confidence = 0.6
            elif self._withheld(last, seen):
                detail += "; the second round of a cooperative rebalance was due as well"
                confidence = 0.7
            return _Verdict(Cause.NEW_MEMBER, confidence, detail, only)
        if gone:
            ordered = sorted(gone.items(), key=lambda item: (-item[1][1].confidence, item[0]))
            member_id, (_, best) = ordered[0]
            detail = "; ".join(departed.text for _, (_, departed) in ordered[:4])
            if len(ordered) > 4:
                detail += f"; and {len(ordered) - 4} more"
            confidence = best.confidence if len(ordered) == 1 else best.confidence * 0.8
            return _Verdict(best.cause, confidence, detail, member_id if len(ordered) == 1 else None)
        return self._cause_among_the_same(last, seen, missing)

    def _cause_among_the_same(self, last: _Seen, seen: _Seen, missing: int) -> _Verdict:
        """Why the same members have another generation."""
        withheld = self._withheld(last, seen)
        given = sum(place in seen.assigned for place in withheld)
        if given:
            members = sorted(set(withheld.values()))
            detail = f"{given} of {len(withheld)} partitions that generation {last.generation} revoked are given out"
            return _Verdict(Cause.COOPERATIVE_FOLLOW_UP, 0.95, detail, members[0] if len(members) == 1 else None)
        changed = [
            life
            for life in seen.members.values()
            if seen.topics[life.member_id] != last.topics.get(life.member_id, seen.topics[life.member_id])
        ]
        known = {topic for topics in last.topics.values() for topic in topics or ()}
        fresh = {place for place in seen.assigned.keys() - last.assigned.keys() if place[0] in known}
        stale = {place for place in last.assigned.keys() - seen.assigned.keys() if not changed}
        leader = seen.members.get(seen.leader or "")
        if fresh or stale:
            parts = [f"{len(fresh)} more partitions"] * bool(fresh) + [f"{len(stale)} fewer partitions"] * bool(stale)
            topics = ", ".join(sorted({topic for topic, _ in fresh | stale})[:8])
            confidence = 0.6 if changed else 0.9
            return _Verdict(
                Cause.TOPICS_CHANGED,
                confidence,
                f"{' and '.join(parts)} of {topics}, the members and what they subscribe to as before",
                _only([leader] if leader else []),
            )
        if changed:
            only = _only(changed)
            now = ", ".join(seen.topics[changed[0].member_id] or ())
            detail = f"{_names(changed)} subscribed to other topics" + (f": {now}" if only and now else "")
            return _Verdict(Cause.SUBSCRIPTION_CHANGED, 0.9, detail, only)
        if seen.assignor != last.assignor:
            detail = f"the assignor was {last.assignor} and is {seen.assignor}"
            return _Verdict(Cause.ASSIGNORS_CHANGED, 0.8, detail)
        back = [seen.members[member_id] for member_id in last.absent - seen.absent if member_id in seen.members]
        if back:
            detail = f"{_names(back)}, without whom the join of generation {last.generation} had ended, came back"
            return _Verdict(Cause.REBALANCE_TIMEOUT, 0.8, detail, _only(back))
        detail = "the same members with the same subscriptions: the leader rejoined"
        if seen.leader != last.leader and leader is not None:
            detail += f", or did not and {leader.client_id or leader.member_id} leads now"
        if missing > 0:
            detail += ", or somebody came and went"
        return _Verdict(Cause.LEADER_REJOINED, 0.6 if not missing else 0.4, detail, _only([leader] if leader else []))

    def _withheld(self, last: _Seen, seen: _Seen) -> dict[Place, str]:
        """What the first round of a cooperative rebalance took from members that are still there, for the next."""
        if not last.cooperative:
            return {}
        claims = dict(last.claimed)
        for place, pause in self._ledger.paused.items():
            if pause.from_ns == last.at:
                claims[place] = pause.former_member_id
        return {
            place: member_id
            for place, member_id in claims.items()
            if place not in last.assigned
            and member_id in last.members
            and member_id in seen.members
            and any(place[0] in (topics or ()) for topics in last.topics.values())
        }


def _is_cooperative(last: _Seen | None, seen: _Seen) -> bool | None:
    """By the assignor, unless members that had partitions joined without any: they offer an eager assignor as well, as
    in the midst of a migration, and so give everything up when they join."""
    if last is None or not seen.cooperative:
        return seen.cooperative
    held = {member_id for member_id in last.assigned.values() if seen.topics.get(member_id) is not None}
    return not held - set(seen.claimed.values()) - seen.absent


def _absent(last: _Seen, seen: _Seen) -> set[str]:
    """Static members that have not joined for a generation: they come from an older one than others do, as before."""
    newest = max(seen.joined_from.values(), default=-1)
    return {
        member_id
        for member_id, joined_from in seen.joined_from.items()
        if seen.members[member_id].instance_id is not None
        and member_id in last.joined_from
        and joined_from == last.joined_from[member_id]
        and joined_from < newest
    }


def host_of(told: str) -> str:
    """A client's address, of how Kafka's records have it: ``/127.0.0.1``."""
    return told.rpartition("/")[2]


def _places(topics: Any) -> list[Place]:
    return [(item.topic, partition) for item in topics for partition in item.partitions]


def _only(lives: list[MemberLife]) -> str | None:
    return lives[0].member_id if len(lives) == 1 else None


def _names(lives: list[MemberLife]) -> str:
    names = [
        (life.client_id or life.member_id) + ("" if life.instance_id is None else f" (instance {life.instance_id})")
        for life in lives
    ]
    return ", ".join(sorted(names)[:8]) + ("" if len(names) <= 8 else f" and {len(names) - 8} more")
