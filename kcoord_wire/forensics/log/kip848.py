"""Groups of the newer consumer protocol (KIP-848) as records 3 to 8 and 16 tell of them.

What the group is to be (epoch, target assignment) and what each member has (its epoch, what it holds, what it has still
to give up) are separate records, written as they change. So a rebalance is told in full: an epoch (record 3) begins it,
the target assignment (6, 7) follows, and it ends when every member has reached that epoch and holds its target (8).

Laws:

* A rebalance is an epoch; what was told of members and topics since the epoch before is why.
* A member holds what it is assigned and what it has still to give up. One that is static and away for a while (member
  epoch -2) holds nothing, and nobody waits for it.
* Topics are named where a record does (ConsumerGroupPartitionMetadata until Kafka 4.0, OffsetCommit with topic ids), or
  where what a member subscribes to leaves one name for one id (`name_topics`), else ``id:`` and the id in hex.

Source: KIP-848; kafka/group-coordinator `GroupCoordinatorRecordHelpers.java`, `ConsumerGroup.java`, `MemberState.java`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kcoord_wire.forensics.log.classic import host_of
from kcoord_wire.forensics.log.ledger import MS, Departed, Entry, Ledger, Place
from kcoord_wire.forensics.model import Cause, Evidence, Generation, MemberLife, Rebalance, end_rebalance, new_rebalance

__all__ = ["ConsumerRecords", "name_topics"]

_AWAY: Final = -2  # member epoch of a static member that has left for a while
_STABLE: Final = 0
_NO_NAMES: Final = "{} topic id{s} without a name: no record tells it."


@dataclass(slots=True)
class _Member:
    """What the records say of a member; `gone` once it is."""

    names: tuple[str, ...] = ()
    regex: str = ""
    assignor: str | None = None
    epoch: int = 0
    state: int = _STABLE
    held: frozenset[Place] = frozenset()
    pending: frozenset[Place] = frozenset()
    target: frozenset[Place] = frozenset()


@dataclass(slots=True)
class _News:
    """What was told since the last epoch, with the records that told it."""

    new: dict[str, MemberLife] = field(default_factory=dict)
    gone: dict[str, tuple[MemberLife, Departed]] = field(default_factory=dict)
    replaced: dict[str, str] = field(default_factory=dict)
    subscribed: list[str] = field(default_factory=list)
    assignors: list[str] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)


class ConsumerRecords:
    """Reads the records of one group, in their order, into its ledger.

    :param names: of topics, by the bytes of their ids, as far as any record tells them
    """

    def __init__(self, ledger: Ledger, names: Mapping[bytes, str]) -> None:
        self._ledger = ledger
        self._names = names
        self._members: dict[str, _Member] = {}
        self._counts: dict[str, int] = {}
        self._patterns: dict[str, tuple[str, ...]] = {}
        self._hash = 0
        self._news = _News()
        self._open: Rebalance | None = None
        self._before: dict[Place, str] = {}
        self._reached: list[tuple[int, str]] = []
        self._target_epoch = -1
        self.epoch: int | None = None
        self._tellers = {
            "ConsumerGroupMetadata": self._epoch,
            "ConsumerGroupPartitionMetadata": self._topics,
            "ConsumerGroupMemberMetadata": self._member,
            "ConsumerGroupTargetAssignmentMetadata": self._targets,
            "ConsumerGroupTargetAssignmentMember": self._target,
            "ConsumerGroupCurrentMemberAssignment": self._current,
            "ConsumerGroupRegularExpression": self._pattern,
        }

    def tell(self, entry: Entry) -> None:
        """The next record."""
        self._tellers[entry.record.kind](entry, entry.record.key, entry.record.value)
        self._look(entry)

    def adopt(self, generation: int | None) -> None:
        """The group comes from the classic protocol: its members and what they hold are in the ledger."""
        self._forget()
        self.epoch = generation
        for member_id, life in self._ledger.members.items():
            self._members[member_id] = _Member(names=tuple(sorted(life.topics)))
        for place, item in self._ledger.held.items():
            member = self._members[item.member_id] if item.member_id in self._members else _Member()
            member.held |= {place}

    def close(self) -> None:
        """The records are at their end."""
        unnamed = {topic for topic, _ in self._ledger.owners() if topic.startswith("id:")}
        if unnamed:
            self._ledger.notes[_NO_NAMES] += len(unnamed)

    def _forget(self) -> None:
        self._members.clear()
        self._counts.clear()
        self._patterns.clear()
        self._news = _News()
        self._open = None
        self._hash = 0
        self._target_epoch = -1
        self.epoch = None

    # ---- members and topics

    def _member(self, entry: Entry, key: Any, value: Any) -> None:
        ledger, news = self._ledger, self._news
        member_id = key.member_id
        if value is None:
            self._gone(entry, member_id)
            return
        names = tuple(sorted(set(value.subscribed_topic_names)))
        regex = value.subscribed_topic_regex or ""
        assignor = value.server_assignor or None
        classic = value.classic_member_metadata
        supported = [] if classic is None else [protocol.name for protocol in classic.supported_protocols]
        known = self._members.get(member_id)
        topics = sorted({*names, *self._patterns.get(regex, ())})
        life = MemberLife(
            group_id=ledger.group_id,
            member_id=member_id,
            instance_id=value.instance_id or None,
            client_id=value.client_id,
            client_host=host_of(value.client_host),
            joined_ns=entry.at,
            left_ns=None,
            why_left=None,
            last_seen_ns=entry.at,
            first_generation_id=None,
            last_generation_id=self.epoch,
            session_timeout_ms=None if classic is None else classic.session_timeout_ms,
            rebalance_timeout_ms=None if value.rebalance_timeout_ms < 0 else value.rebalance_timeout_ms,
            assignors=supported or ([] if assignor is None else [assignor]),
            topics=topics,
            protocol="consumer" if classic is None else "classic",
        )
        ledger.protocol_type = "consumer"
        life = ledger.see(entry.at, life)
        who = ledger.named(member_id)
        if known is None:
            self._members[member_id] = _Member(names, regex, assignor)
            former = next(
                (gone.member_id for gone, _ in news.gone.values() if gone.instance_id == life.instance_id is not None),
                None,
            )
            if former is None:
                news.new[member_id] = life
                news.evidence.append(entry.evidence(f"{who} is new"))
            else:
                replaced, _ = news.gone.pop(former)
                replaced.why_left = "replaced"
                news.replaced[member_id] = former
                news.evidence.append(entry.evidence(f"{who} takes the place of {former}"))
            return
        if (known.names, known.regex) != (names, regex) and member_id not in news.new:
            news.subscribed.append(member_id)
            news.evidence.append(entry.evidence(f"{who} subscribes to {', '.join([*names, regex]).strip(', ')}"))
        elif known.assignor != assignor:
            news.assignors.append(member_id)
            news.evidence.append(entry.evidence(f"{who} asks for the assignor {assignor}"))
        known.names, known.regex, known.assignor = names, regex, assignor

    def _gone(self, entry: Entry, member_id: str) -> None:
        news = self._news
        member = self._members.pop(member_id, None)
        life = self._ledger.members.get(member_id)
        if member is None or life is None:
            return
        departed = self._ledger.departed(member_id, entry.at, life.session_timeout_ms)
        self._ledger.lose(entry.at, member_id, departed.why)
        news.replaced.pop(member_id, None)
        if news.new.pop(member_id, None) is None:
            news.gone[member_id] = (life, departed)
            news.evidence.append(entry.evidence(f"{life.client_id or member_id} is gone"))

    def _topics(self, entry: Entry, key: Any, value: Any) -> None:
        counts = {} if value is None else {item.topic_name: item.num_partitions for item in value.topics}
        for topic in sorted(self._counts.keys() & counts.keys()):
            if self._counts[topic] != counts[topic]:
                text = f"{topic} had {self._counts[topic]} partitions and has {counts[topic]}"
                self._news.topics.append(text)
                self._news.evidence.append(entry.evidence(text))
        wanted = {name for member in self._members.values() for name in member.names}
        for topic in sorted((self._counts.keys() ^ counts.keys()) & wanted):
            if value is not None and not self._news.new and not self._news.subscribed:
                text = f"{topic}, which was subscribed to, {'is there' if topic in counts else 'is gone'}"
                self._news.topics.append(text)
                self._news.evidence.append(entry.evidence(text))
        self._counts = counts

    def _pattern(self, entry: Entry, key: Any, value: Any) -> None:
        before = self._patterns.pop(key.regular_expression, None)
        if value is not None:
            topics = tuple(sorted(set(value.topics)))
            self._patterns[key.regular_expression] = topics
            for member_id, member in self._members.items():
                if member.regex == key.regular_expression and member_id in self._ledger.members:
                    self._ledger.members[member_id].topics = sorted({*member.names, *topics})
            if before is not None and before != topics:
                text = f"{key.regular_expression} matches {', '.join(topics) or 'nothing'}"
                self._news.topics.append(text)
                self._news.evidence.append(entry.evidence(text))

    # ---- target and present assignment

    def _targets(self, entry: Entry, key: Any, value: Any) -> None:
        self._target_epoch = -1 if value is None else value.assignment_epoch
        rebalance = self._open
        if rebalance is None or rebalance.generation_id is None or self._target_epoch < rebalance.generation_id:
            return
        if rebalance.joined_ns is None:
            rebalance.joined_ns = entry.at
            rebalance.joining_ms = (entry.at - rebalance.started_ns) / MS
            generation = self._ledger.generations[-1]
            generation.joined_ns = entry.at
            generation.partitions = sum(len(member.target) for member in self._members.values())
            self._ledger.state(entry.at, "Reconciling", rebalance.generation_id)

    def _target(self, entry: Entry, key: Any, value: Any) -> None:
        member = self._members.get(key.member_id)
        if member is not None:
            member.target = frozenset() if value is None else self._places(value.topic_partitions)

    def _current(self, entry: Entry, key: Any, value: Any) -> None:
        member = self._members.get(key.member_id)
        if member is None:
            if value is None:
                return
            member = self._members[key.member_id] = _Member()  # the record that tells of it was compacted away
        if value is None:
            member.epoch = 0
            return  # the member's own record follows, or the group is converted
        was = member.epoch
        member.epoch, member.state = value.member_epoch, value.state
        assigned = self._places(value.assigned_partitions)
        member.pending = self._places(value.partitions_pending_revocation)
        member.held = assigned | member.pending
        holds = frozenset() if member.epoch == _AWAY else member.held
        ledger = self._ledger
        for place in [place for place, item in ledger.held.items() if item.member_id == key.member_id]:
            if place not in holds:
                away = member.epoch == _AWAY or not ledger.rebalances
                ledger.release(entry.at, place, None if away else ledger.rebalances[-1].number)
        epoch = value.member_epoch if value.member_epoch > 0 else self.epoch or 0
        for place in sorted(holds):
            ledger.give(entry.at, place, key.member_id, epoch)
        life = ledger.members.get(key.member_id)
        if life is not None:
            life.last_seen_ns = entry.at
            if value.member_epoch > 0:
                life.last_generation_id = value.member_epoch
                if life.first_generation_id is None:
                    life.first_generation_id = value.member_epoch
        if self._open is not None and was != member.epoch == self._open.generation_id:
            self._reached.append((entry.at, key.member_id))

    def _places(self, topics: Any) -> frozenset[Place]:
        return frozenset(
            (self._names.get(item.topic_id.bytes) or f"id:{item.topic_id.hex}", partition)
            for item in topics
            for partition in item.partitions
        )

    # ---- epochs

    def _epoch(self, entry: Entry, key: Any, value: Any) -> None:
        if value is None:
            self._forget()
            return
        hash_changed = value.metadata_hash != self._hash and self.epoch is not None
        self._hash = value.metadata_hash
        if value.epoch == self.epoch:
            return
        last, self.epoch = self.epoch, value.epoch
        ledger, news = self._ledger, self._news
        ledger.protocol_type = "consumer"
        self._interrupt(entry.at)
        if hash_changed and not (news.new or news.gone or news.subscribed or news.topics):
            news.topics.append("the hash of the subscribed topics' partitions has changed")
        cause, confidence, detail, member_id = self._why(last, value.epoch)
        who = ledger.members.get(member_id or "") or (news.gone[member_id][0] if member_id in news.gone else None)
        assignors = {member.assignor for member in self._members.values() if member.assignor is not None}
        gone = [life for life, _ in news.gone.values()]
        rebalance = new_rebalance(
            group_id=ledger.group_id,
            number=len(ledger.rebalances) + 1,
            generation_id=value.epoch,
            started_ns=entry.at,
            cause=cause,
            trigger=ledger.identified(member_id, who),
            detail=detail,
            confidence=confidence,
            evidence=[*news.evidence, entry.evidence(f"epoch {value.epoch}")],
            protocol_type="consumer",
            assignor=assignors.pop() if len(assignors) == 1 else None,
            cooperative=True,
            members_before=len(self._members) - len(news.new) + len(gone),
            members_after=len(self._members),
            removed=ledger.removed(gone),
        )
        self._before = ledger.owners()
        ledger.rebalances.append(rebalance)
        for pause in ledger.paused.values():
            if pause.former_member_id in news.gone:
                pause.rebalance = rebalance.number
        self._news = _News()
        self._reached = []
        if not self._members:
            end_rebalance(rebalance, entry.at, "empty")
            ledger.end_generation(entry.at)
            ledger.state(entry.at, "Empty", value.epoch)
            return
        self._open = rebalance
        ledger.state(entry.at, "Assigning", value.epoch)
        ledger.generation(
            Generation(
                group_id=ledger.group_id,
                generation_id=value.epoch,
                joined_ns=entry.at,
                stable_ns=None,
                ended_ns=None,
                assignor=rebalance.assignor,
                leader_id=None,
                members=len(self._members),
                partitions=0,
            )
        )

    def _interrupt(self, at: int) -> None:
        rebalance, self._open = self._open, None
        if rebalance is not None:
            end_rebalance(rebalance, at, "interrupted")
            self._ledger.count_moves(self._before, rebalance)

    def _look(self, entry: Entry) -> None:
        """Whether the rebalance has come to its end."""
        rebalance = self._open
        if rebalance is None or rebalance.joined_ns is None:
            return
        for member in self._members.values():
            if member.epoch == _AWAY:
                continue
            if member.epoch != rebalance.generation_id or member.state != _STABLE or member.held != member.target:
                return
        self._open = None
        end_rebalance(rebalance, entry.at, "stable")
        if self._reached:
            at, member_id = self._reached[-1]
            life = self._ledger.members.get(member_id)
            rebalance.last_member_id = member_id
            rebalance.last_client_id = None if life is None else life.client_id
            rebalance.last_client_host = None if life is None else life.client_host
            rebalance.late_ms = (at - self._reached[-2][0]) / MS if len(self._reached) > 1 else None
        self._ledger.count_moves(self._before, rebalance)
        self._ledger.generations[-1].stable_ns = entry.at
        self._ledger.state(entry.at, "Stable", rebalance.generation_id)

    def _why(self, last: int | None, epoch: int) -> tuple[Cause, float, str, str | None]:
        """Cause, confidence, a sentence, and who set it off."""
        news = self._news
        if last is None and epoch > 1 and not news.gone:
            return (
                Cause.UNKNOWN,
                0.0,
                f"the log begins with epoch {epoch}: what was before has been compacted away",
                None,
            )
        kinds = (news.new, news.gone, news.replaced, news.topics, news.subscribed, news.assignors)
        certain = 1.0 if sum(map(bool, kinds)) == 1 else 0.8
        if news.replaced:
            only = next(iter(news.replaced)) if len(news.replaced) == 1 else None
            return Cause.STATIC_REPLACED, certain, self._listed(news.replaced, "came back with a new member id"), only
        if news.new:
            only = next(iter(news.new)) if len(news.new) == 1 else None
            return Cause.NEW_MEMBER, certain, self._listed(news.new, "joined"), only
        if news.gone:
            ordered = sorted(news.gone.items(), key=lambda item: (-item[1][1].confidence, item[0]))
            member_id, (_, departed) = ordered[0]
            detail = "; ".join(told.text for _, (_, told) in ordered[:4])
            return departed.cause, departed.confidence, detail, member_id if len(ordered) == 1 else None
        if news.topics:
            return Cause.TOPICS_CHANGED, certain, "; ".join(news.topics[:4]), None
        if news.subscribed:
            only = news.subscribed[0] if len(set(news.subscribed)) == 1 else None
            detail = self._listed(news.subscribed, "subscribed to other topics")
            if only is not None and only in self._members:
                member = self._members[only]
                detail += ": " + ", ".join([*member.names, *([member.regex] if member.regex else [])])
            return Cause.SUBSCRIPTION_CHANGED, certain, detail, only
        if news.assignors:
            only = news.assignors[0] if len(set(news.assignors)) == 1 else None
            return Cause.ASSIGNORS_CHANGED, certain, self._listed(news.assignors, "asked for another assignor"), only
        return Cause.UNKNOWN, 0.0, "no record tells of a change", None

    def _listed(self, member_ids: Any, what: str) -> str:
        names = sorted({self._ledger.named(member_id) for member_id in member_ids})
        return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") + f" {what}"


def name_topics(entries: Sequence[Entry], names: dict[bytes, str]) -> None:
    """Add to the names of topics those that follow from subscriptions: a target assignment has topics of the member's
    subscription alone, so where that leaves one name without an id, it is that of the one id without a name."""
    subscribed: dict[str, set[str]] = {}
    for entry in entries:
        record = entry.record
        if record.value is None:
            continue
        if record.kind == "ConsumerGroupMemberMetadata":
            value = record.value
            subscribed[record.key.member_id] = (
                set() if value.subscribed_topic_regex else {*value.subscribed_topic_names}
            )
        elif record.kind == "ConsumerGroupTargetAssignmentMember":
            unnamed = {item.topic_id.bytes for item in record.value.topic_partitions} - names.keys()
            left = subscribed.get(record.key.member_id, set()) - set(names.values())
            if len(unnamed) == len(left) == 1:
                names[unnamed.pop()] = left.pop()
