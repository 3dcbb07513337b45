"""Histories of groups whose coordinator assigns: KIP-848 from records 3 to 8 and 16, share groups (KIP-932) from 10 to
15, streams groups (KIP-1071) from 17 to 23.

What the group should become (epoch, target assignment) and what each member has (its epoch, what it holds, what it
still has to revoke) are separate records, written as they change. So a rebalance is recorded completely: an epoch
(record 3) begins it, the target assignment (6, 7) follows, and it ends when every member has reached that epoch and
holds its target (8).

Laws:

* A rebalance is an epoch; its cause is what the records since the epoch before say about members and topics.
* A member holds what it is assigned and what it still has to revoke. A static one that is away for a while (member
  epoch -2) holds nothing, and the group does not wait for it.
* A partition of a streams group is an active task, with the subtopology in place of the topic. Members of a share group
  have partitions together, and give none up.
* A topic gets its name from a record (ConsumerGroupPartitionMetadata until Kafka 4.0, OffsetCommit with topic ids,
  ShareGroupStatePartitionMetadata), or where subscriptions leave one name for one id (`infer_topic_names`); else
  ``id:`` and the id in hex.

Source: KIP-848; kafka/group-coordinator `GroupCoordinatorRecordHelpers.java`, `ConsumerGroup.java`, `MemberState.java`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.history import Place, identity_of, removed_members
from kcoord_wire.forensics.model import NS_PER_MS, Evidence, MemberLife, Rebalance
from kcoord_wire.forensics.records.classic import host_of
from kcoord_wire.forensics.records.ledger import Departed, Entry, Explanation, Ledger, explain_departures
from kcoord_wire.protocol.wording import counted, listed, only

_PROTOCOLS: Final = {"ConsumerGroup": "consumer", "ShareGroup": "share", "StreamsGroup": "streams"}
_AWAY: Final = -2  # member epoch of a static member that has left for a while
_FIRST: Final = 2  # the epoch with which groups begin since Kafka 4.3 (KAFKA-20268), by one member; before it was 1
_STABLE: Final = {"consumer": 0, "share": 0, "streams": 1}  # member state: nothing to revoke or to wait for
_FENCED: Final = 0.9  # its session may have run out at the same time
_TOPICS: Final = 4  # changes of topics in a sentence
_NO_NAMES: Final = "{} topic id{s} without a name: no record has it."


@dataclass(slots=True)
class _Member:
    """A member of the group, as its records describe it.

    :ivar names: topics it subscribes to
    :ivar regex: pattern it subscribes to
    :ivar assignor: server assignor it asks for
    :ivar epoch: its epoch
    :ivar state: its state, as the record numbers it; 0 before the first
    :ivar held: what it is assigned and what it still has to revoke
    :ivar revoking_ns: since when it has something to revoke; None where it has nothing
    :ivar target: its part of the target assignment
    """

    names: tuple[str, ...] = ()
    regex: str = ""
    assignor: str | None = None
    epoch: int = 0
    state: int = 0
    held: frozenset[Place] = frozenset()
    revoking_ns: int | None = None
    target: frozenset[Place] = frozenset()


@dataclass(slots=True)
class _Changes:
    """What has changed since the last epoch.

    :ivar new: members that joined
    :ivar gone: members that are gone
    :ivar replaced: static members that came back, with their former member ids
    :ivar subscribed: members that subscribed to other topics
    :ivar assignors: members that asked for another assignor
    :ivar topics: changes of topics, in sentences
    :ivar evidence: the records that show all that
    """

    new: dict[str, MemberLife] = field(default_factory=dict)
    gone: dict[str, Departed] = field(default_factory=dict)
    replaced: dict[str, str] = field(default_factory=dict)
    subscribed: list[str] = field(default_factory=list)
    assignors: list[str] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)

    @property
    def is_replacement(self) -> bool:
        """Whether the return of a static member is all that has changed. One that comes back as it was begins no epoch:
        what else has changed since then has."""
        others = set(self.subscribed) - self.replaced.keys()
        return bool(self.replaced) and not (self.new or self.gone or self.topics or others)

    @property
    def certainty(self) -> float:
        """The confidence in a cause: lower where several kinds of changes may have been it."""
        kinds = (self.new, self.gone, self.replaced, self.topics, self.subscribed, self.assignors)
        return 1.0 if sum(map(bool, kinds)) == 1 else 0.8


def protocol_and_part(kind: str) -> tuple[str, str]:
    """Return the protocol type of a record of such a group, and what it is of the group: ``share``, ``Metadata``."""
    name, _, part = kind.partition("Group")
    return _PROTOCOLS[f"{name}Group"], part


class EpochRecords:
    """Reads the records of one group, in their order, into its ledger.

    :ivar epoch: of the group; None before the first one
    """

    def __init__(self, ledger: Ledger, names: Mapping[bytes, str]) -> None:
        """Begin with a group that has no records yet.

        :param names: of topics, by the bytes of their ids, as far as any record has them
        """
        self.epoch: int | None = None
        self._ledger = ledger
        self._names = names
        self._members: dict[str, _Member] = {}
        self._counts: dict[str, int] = {}
        self._patterns: dict[str, tuple[str, ...]] = {}
        self._hash = 0
        self._changes = _Changes()
        self._reached: list[tuple[int, str]] = []  # who reached the epoch of the open rebalance, and when
        self._protocol = "consumer"
        self._initialized: dict[str, int] = {}  # partitions of topics with a share state
        self._topology = -1
        self._readers: dict[str, Callable[[Entry, Any, Any], None]] = {
            "Metadata": self._read_epoch,
            "PartitionMetadata": self._read_topics,
            "MemberMetadata": self._read_member,
            "TargetAssignmentMetadata": self._read_target_epoch,
            "TargetAssignmentMember": self._read_target,
            "CurrentMemberAssignment": self._read_current,
            "RegularExpression": self._read_pattern,
            "StatePartitionMetadata": self._read_share_states,
            "Topology": self._read_topology,
        }

    def read(self, entry: Entry) -> None:
        self._protocol, part = protocol_and_part(entry.record.kind)
        self._readers[part](entry, entry.record.key, entry.record.value)
        self._close_if_reached(entry)

    def adopt(self, generation: int | None) -> None:
        """Take over a group from the classic protocol: its members and what they hold are in the ledger."""
        self._forget()
        self.epoch = generation
        for member_id, life in self._ledger.members.items():
            self._members[member_id] = _Member(names=tuple(sorted(life.topics)))
        for place, item in self._ledger.held.items():
            if item.member_id in self._members:
                self._members[item.member_id].held |= {place}

    def settle(self) -> None:
        """Take what has changed since the last epoch for known."""
        self._changes = _Changes()

    def close(self) -> None:
        """Note what is still unknown after the last record."""
        unnamed = {topic for topic, _ in self._ledger.owners() if topic.startswith("id:")}
        if unnamed:
            self._ledger.notes[_NO_NAMES] += len(unnamed)

    def _forget(self) -> None:
        self._members.clear()
        self._counts.clear()
        self._patterns.clear()
        self._initialized.clear()
        self._topology = -1
        self._changes = _Changes()
        self._ledger.abandon()
        self._hash = 0
        self.epoch = None

    # ---- members and topics

    def _read_member(self, entry: Entry, key: Any, value: Any) -> None:
        if value is None:
            self._remove(entry, key.member_id)
            return
        names = tuple(sorted(set(getattr(value, "subscribed_topic_names", ()))))  # streams: the topology has them
        regex = getattr(value, "subscribed_topic_regex", None) or ""
        assignor = getattr(value, "server_assignor", None) or None
        topics = sorted({*names, *self._patterns.get(regex, ())})
        life = self._ledger.see(entry.at, self._life(entry, key.member_id, value, topics, assignor))
        self._ledger.protocol_type = self._protocol
        member = self._members.get(key.member_id)
        if member is None:
            self._members[key.member_id] = _Member(names, regex, assignor)
            self._note_new(entry, life)
            return
        changes, who = self._changes, self._ledger.named(key.member_id)
        if (member.names, member.regex) != (names, regex) and key.member_id not in changes.new:
            changes.subscribed.append(key.member_id)
            changes.evidence.append(entry.evidence(f"{who} subscribes to {', '.join([*names, regex]).strip(', ')}"))
        elif member.assignor != assignor:
            changes.assignors.append(key.member_id)
            changes.evidence.append(entry.evidence(f"{who} asks for the assignor {assignor}"))
        member.names, member.regex, member.assignor = names, regex, assignor

    def _life(self, entry: Entry, member_id: str, value: Any, topics: list[str], assignor: str | None) -> MemberLife:
        classic = getattr(value, "classic_member_metadata", None)
        rebalance_ms = getattr(value, "rebalance_timeout_ms", -1)
        supported = [] if classic is None else [protocol.name for protocol in classic.supported_protocols]
        return MemberLife(
            group_id=self._ledger.group_id,
            member_id=member_id,
            instance_id=getattr(value, "instance_id", None) or None,
            client_id=value.client_id,
            client_host=host_of(value.client_host),
            joined_ns=entry.at,
            last_seen_ns=entry.at,
            last_generation_id=self.epoch,
            session_timeout_ms=None if classic is None else classic.session_timeout_ms,
            rebalance_timeout_ms=None if rebalance_ms < 0 else rebalance_ms,
            assignors=supported or ([assignor] if assignor else []),
            topics=topics,
            protocol=self._protocol if classic is None else "classic",
        )

    def _note_new(self, entry: Entry, life: MemberLife) -> None:
        """Note a member without earlier records: a new one, or a static one with a new member id."""
        changes, who = self._changes, self._ledger.named(life.member_id)
        static = (key for key, item in changes.gone.items() if item.life.instance_id == life.instance_id is not None)
        former = next(static, None)
        if former is None:
            changes.new[life.member_id] = life
            changes.evidence.append(entry.evidence(f"{who} is new"))
            return
        changes.gone.pop(former).life.why_left = "replaced"
        changes.replaced[life.member_id] = former
        changes.evidence.append(entry.evidence(f"{who} takes the place of {former}"))

    def _remove(self, entry: Entry, member_id: str) -> None:
        changes = self._changes
        member = self._members.pop(member_id, None)
        life = self._ledger.members.get(member_id)
        if member is None or life is None:
            return
        if member.revoking_ns is not None:
            self._ledger.revoked(member_id, member.revoking_ns, entry.at)
        departed = self._departed(member, life, entry.at)
        self._ledger.lose(entry.at, member_id, departed.why)
        changes.replaced.pop(member_id, None)
        if changes.new.pop(member_id, None) is None:
            changes.gone[member_id] = departed
            changes.evidence.append(entry.evidence(f"{life.client_id or member_id} is gone"))

    def _read_topics(self, entry: Entry, _key: Any, value: Any) -> None:
        before, self._counts = self._counts, {}
        if value is None:
            return
        now = self._counts = {item.topic_name: item.num_partitions for item in value.topics}
        for topic in sorted(before.keys() & now.keys()):
            if before[topic] != now[topic]:
                self._note_topic(entry, f"{topic} had {before[topic]} partitions and has {now[topic]}")
        wanted = {name for member in self._members.values() for name in member.names}
        for topic in sorted((before.keys() ^ now.keys()) & wanted):
            if not self._changes.new and not self._changes.subscribed:
                self._note_topic(
                    entry, f"{topic}, which was subscribed to, {'is there' if topic in now else 'is gone'}"
                )

    def _read_pattern(self, entry: Entry, key: Any, value: Any) -> None:
        pattern = key.regular_expression
        before = self._patterns.pop(pattern, None)
        if value is None:
            return
        topics = self._patterns[pattern] = tuple(sorted(set(value.topics)))
        for member_id, member in self._members.items():
            if member.regex == pattern and member_id in self._ledger.members:
                self._ledger.members[member_id].topics = sorted({*member.names, *topics})
        if before is not None and before != topics:
            self._note_topic(entry, f"{pattern} matches {', '.join(topics) or 'nothing'}")

    def _read_share_states(self, entry: Entry, _key: Any, value: Any) -> None:
        """Partitions are assigned once their share state is initialized."""
        before, self._initialized = self._initialized, {}
        if value is None:
            return
        now = self._initialized = {item.topic_name: len(item.partitions) for item in value.initialized_topics}
        for topic, partitions in now.items():
            if partitions > before.get(topic, 0):
                new = counted(partitions - before.get(topic, 0), "partition")
                self._note_topic(entry, f"the share state of {new} of {topic} is initialized")

    def _read_topology(self, entry: Entry, _key: Any, value: Any) -> None:
        before, self._topology = self._topology, -1 if value is None else value.epoch
        if value is not None and 0 <= before != value.epoch:
            self._note_topic(entry, f"the topology has the epoch {value.epoch} and had {before}")

    def _note_topic(self, entry: Entry, text: str) -> None:
        self._changes.topics.append(text)
        self._changes.evidence.append(entry.evidence(text))

    # ---- target and current assignment

    def _read_target_epoch(self, entry: Entry, _key: Any, value: Any) -> None:
        """The target assignment is complete: the members begin to reconcile."""
        rebalance, epoch = self._ledger.current, -1 if value is None else value.assignment_epoch
        if rebalance is None or rebalance.joined_ns is not None or epoch < (rebalance.generation_id or 0):
            return
        rebalance.joined_ns = entry.at
        rebalance.joining_ms = (entry.at - rebalance.started_ns) / NS_PER_MS
        generation = self._ledger.generations[-1]
        generation.joined_ns = entry.at
        generation.partitions = sum(len(member.target) for member in self._members.values())
        self._ledger.enter(entry.at, "Reconciling", rebalance.generation_id)

    def _read_target(self, _entry: Entry, key: Any, value: Any) -> None:
        member = self._members.get(key.member_id)
        if member is not None:
            member.target = frozenset() if value is None else self._places(value, "topic_partitions", "active_tasks")

    def _read_current(self, entry: Entry, key: Any, value: Any) -> None:
        if value is None:
            if key.member_id in self._members:
                self._members[key.member_id].epoch = 0  # the member's own record follows, or the group is converted
            return
        # setdefault: the member's own record may have been compacted away.
        member = self._members.setdefault(key.member_id, _Member())
        was, member.epoch, member.state = member.epoch, value.member_epoch, value.state
        revoking = self._places(value, "partitions_pending_revocation", "active_tasks_pending_revocation")
        self._note_revoking(entry, key.member_id, member, bool(revoking))
        member.held = self._places(value, "assigned_partitions", "active_tasks") | revoking
        self._hold(entry, key.member_id, member)
        life = self._ledger.members.get(key.member_id)
        if life is not None:
            life.last_seen_ns = entry.at
            if member.epoch > 0:
                life.last_generation_id = member.epoch
                if life.first_generation_id is None:
                    life.first_generation_id = member.epoch
        rebalance = self._ledger.current
        if rebalance is not None and was != member.epoch == rebalance.generation_id:
            self._reached.append((entry.at, key.member_id))

    def _note_revoking(self, entry: Entry, member_id: str, member: _Member, is_revoking: bool) -> None:
        """Follow how long a member takes to give up partitions, and note it as one that others wait for."""
        since_ns = member.revoking_ns
        if is_revoking:
            member.revoking_ns = entry.at if since_ns is None else since_ns
            return
        member.revoking_ns = None
        if since_ns is not None:
            self._ledger.revoked(member_id, since_ns, entry.at)

    def _departed(self, member: _Member, life: MemberLife, at: int) -> Departed:
        """Explain why a member is gone: fenced, where it had partitions to give up for its rebalance timeout."""
        limit_ms = life.rebalance_timeout_ms
        if member.revoking_ns is None or not limit_ms or at - member.revoking_ns < limit_ms * NS_PER_MS:
            return self._ledger.departed(life, at)
        who = self._ledger.named(life.member_id)
        text = (
            f"{who} was fenced: it had not given up partitions within its rebalance timeout of {limit_ms / 1_000:g} s"
        )
        return Departed(life, Cause.REBALANCE_TIMEOUT, _FENCED, "rebalance timeout", text)

    def _hold(self, entry: Entry, member_id: str, member: _Member) -> None:
        """Release what the member does not hold any more, and give it what it holds."""
        ledger, is_away = self._ledger, member.epoch == _AWAY
        holds = frozenset() if is_away else member.held
        number = None if is_away else ledger.number
        for place in [place for place, item in ledger.held.items() if item.member_id == member_id]:
            if place not in holds:
                ledger.release(entry.at, place, number)
        for place in sorted(holds):
            ledger.give(entry.at, place, member_id, member.epoch if member.epoch > 0 else self.epoch or 0)

    def _places(self, value: Any, *fields: str) -> frozenset[Place]:
        """Return the partitions, or tasks, that the first of these fields has which the record has; none for none."""
        items = next((getattr(value, name) for name in fields if hasattr(value, name)), ())
        return frozenset((self._label(item), partition) for item in items for partition in item.partitions)

    def _label(self, item: Any) -> str:
        if self._protocol == "streams":
            return str(item.subtopology_id)
        return self._names.get(item.topic_id.bytes) or f"id:{item.topic_id.hex}"

    # ---- epochs

    def _read_epoch(self, entry: Entry, _key: Any, value: Any) -> None:
        if value is None:
            self._forget()
            return
        is_hash_new = value.metadata_hash != self._hash and self.epoch is not None
        self._hash = value.metadata_hash
        if value.epoch == self.epoch:
            return
        last, self.epoch = self.epoch, value.epoch
        ledger, changes = self._ledger, self._changes
        ledger.protocol_type = self._protocol
        if is_hash_new and not (changes.new or changes.gone or changes.subscribed or changes.topics):
            changes.topics.append("the hash of the subscribed topics' partitions has changed")
        rebalance = self._rebalance(entry, last, value.epoch)
        for pause in ledger.paused.values():
            if pause.former_member_id in changes.gone:
                pause.rebalance = rebalance.number
        self._changes, self._reached = _Changes(), []
        if self._members:
            ledger.enter(entry.at, "Assigning", value.epoch)
            ledger.begin_generation(value.epoch, entry.at, assignor=rebalance.assignor, members=rebalance.members_after)
        else:
            ledger.close(entry.at, "empty")
            ledger.empty(entry.at, value.epoch)

    def _rebalance(self, entry: Entry, last: int | None, epoch: int) -> Rebalance:
        ledger, changes = self._ledger, self._changes
        found = self._explain(last, epoch)
        gone = {member_id: departed.life for member_id, departed in changes.gone.items()}
        assignors = {member.assignor for member in self._members.values() if member.assignor is not None}
        return ledger.open(
            entry.at,
            generation_id=epoch,
            cause=found.cause,
            trigger=identity_of(found.member_id, ledger.members, gone),
            detail=found.detail,
            confidence=found.confidence,
            evidence=[*changes.evidence, entry.evidence(f"epoch {epoch}")],
            protocol_type=self._protocol,
            assignor=only(assignors),
            cooperative=True,
            members_before=len(self._members) - len(changes.new) + len(gone),
            members_after=len(self._members),
            removed=removed_members(gone.values()),
        )

    def _close_if_reached(self, entry: Entry) -> None:
        """End the rebalance when every member has reached its epoch and holds its target."""
        rebalance, ledger = self._ledger.current, self._ledger
        if rebalance is None or rebalance.joined_ns is None:
            return
        for member in self._members.values():
            is_there = (member.epoch, member.state) == (rebalance.generation_id, _STABLE[self._protocol])
            if member.epoch != _AWAY and not (is_there and member.held == member.target):
                return
        ledger.close(entry.at, "stable")
        if self._reached:
            at, member_id = self._reached[-1]
            last = identity_of(member_id, ledger.members)
            rebalance.last_member_id = last.member_id
            rebalance.last_client_id, rebalance.last_client_host = last.client_id, last.client_host
            rebalance.late_ms = (at - self._reached[-2][0]) / NS_PER_MS if len(self._reached) > 1 else None
        ledger.generations[-1].stable_ns = entry.at
        ledger.enter(entry.at, "Stable", rebalance.generation_id)

    def _may_begin(self, epoch: int) -> bool:
        """Return whether a group may have begun with this epoch."""
        return epoch == 1 or (epoch == _FIRST and len(self._changes.new) == 1)

    def _explain(self, last: int | None, epoch: int) -> Explanation:
        """Return why an epoch began: the first kind of change that there is, in this order."""
        changes = self._changes
        if last is None and not self._may_begin(epoch) and not changes.gone:
            detail = f"the log begins with epoch {epoch}: what was before has been compacted away"
            return Explanation(Cause.UNKNOWN, 0.0, detail)
        if changes.is_replacement:
            return self._by_members(Cause.STATIC_REPLACED, changes.replaced, "came back with a new member id")
        if changes.new:
            return self._by_members(Cause.NEW_MEMBER, changes.new, "joined")
        if changes.gone:
            return explain_departures(changes.gone)
        if changes.topics:
            return Explanation(Cause.TOPICS_CHANGED, changes.certainty, "; ".join(changes.topics[:_TOPICS]))
        if changes.subscribed:
            found = self._by_members(Cause.SUBSCRIPTION_CHANGED, set(changes.subscribed), "subscribed to other topics")
            member = self._members.get(found.member_id or "")
            if member is None:
                return found
            return found._replace(detail=f"{found.detail}: {', '.join(filter(None, [*member.names, member.regex]))}")
        if changes.assignors:
            return self._by_members(Cause.ASSIGNORS_CHANGED, set(changes.assignors), "asked for another assignor")
        return Explanation(Cause.UNKNOWN, 0.0, "no record shows a change")

    def _by_members(self, cause: Cause, member_ids: Collection[str], what: str) -> Explanation:
        names = {self._ledger.named(member_id) for member_id in member_ids}
        return Explanation(cause, self._changes.certainty, f"{listed(names)} {what}", only(member_ids))


def infer_topic_names(entries: Sequence[Entry], names: dict[bytes, str]) -> None:
    """Add to the names of topics those that follow from subscriptions.

    A target assignment has only topics of the member's subscription: where that leaves one topic id without a name and
    one name without an id, they belong together.
    """
    subscribed: dict[str, set[str]] = {}
    for entry in entries:
        kind, key, value = entry.record.kind, entry.record.key, entry.record.value
        if value is None:
            continue
        if kind in ("ConsumerGroupMemberMetadata", "ShareGroupMemberMetadata"):
            is_pattern = getattr(value, "subscribed_topic_regex", None)
            subscribed[key.member_id] = set() if is_pattern else {*value.subscribed_topic_names}
        elif kind in ("ConsumerGroupTargetAssignmentMember", "ShareGroupTargetAssignmentMember"):
            unnamed = {item.topic_id.bytes for item in value.topic_partitions} - names.keys()
            left = subscribed.get(key.member_id, set()) - set(names.values())
            if len(unnamed) == len(left) == 1:
                names[unnamed.pop()] = left.pop()
