"""What must hold of a group of KIP-848 and its members, as predicates on their states.

The names are those of J. Vanlightly's TLA+ model of the protocol (kafka-tlaplus, consumer_group_protocol_kip_848_v2):

``NoDoubleClientAssignment``          no two clients that are members of the group own the same partition
``ValidMemberEpoch``                  a client in the epoch of the target owns nothing that the target gives to another
``ValidPartitionEpoch``               a partition without an epoch is held by no member; here also: one with an epoch by
                                      exactly one, in no other epoch than the member's
``LegalTargetAssignment``             the target gives no partition to two members, nor anything to who is no member
``ValidStableGroupState``             in a Stable group every member has its target of the group epoch, and no more
``GcSideMemberEpochIsMonotonic``      the coordinator never takes a member back to an earlier epoch, unless it joins
                                      again or leaves for a while
``ClientSideMemberEpochIsMonotonic``  nor does a client go back, unless it joins again or leaves; here also: none is
                                      ahead of the coordinator, which would have forgotten what it has answered
``GroupEpochIsMonotonic``             (not in the model by name) neither the group epoch nor the assignment epoch
                                      decreases, nor is the latter ahead
``WaitsForOthersOnly``                (not in the model) a member that begins to wait for partitions waits for some that
                                      another member holds (KAFKA-19449)
``EventuallyConverges``               (checked by the cluster and by the search) when nothing fails any more, every
                                      partition gets one owner, and all members reach the group epoch

They read the coordinator's own memory, which the log is compared with elsewhere (`snapshot`).

`ConsumerGroupInvariants` checks them after every event of a virtual cluster, with those of `worlds.group.laws` that do
not depend on the protocol. Of these stay ``commits``, ``answered once``, ``durable first``, ``never fails``; ``fenced``
becomes: a commit is accepted only in the member's epoch, or in an earlier one for a partition that it has held since
(KIP-1251). And also:

``log is complete``      what a coordinator reads from its log is a state that the one before it was in, no earlier
                         than the last that it had on disk
``revocation is timed``  a member that makes no progress with what it is to give up is removed after its rebalance
                         timeout
``silence is timed``     a member is removed when its session timeout has passed since its last request, or a classic
                         one its rebalance timeout since it was to join or to sync, and no earlier than that, or than
                         its rebalance timeout if it has something to give up
``heard``                a Heartbeat of a classic member that is behind the group epoch is not answered without an error
``TargetOfEpoch``        while the assignment epoch is the same a member keeps its target, and a static one that has
                         come back has that of its former process
``patterns are fresh``   with a heartbeat the patterns of a group are resolved anew if topics have changed or they are
                         old, 10 s after the last time and no earlier
"""

from __future__ import annotations

import uuid
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol

from kcoord_wire import messages as m
from kcoord_wire.assignors import TopicPartition
from kcoord_wire.assignors.embedded import ConsumerProtocol
from kcoord_wire.consumer.kip848_member import Partition
from kcoord_wire.coordinator.consumer_groups.group import (
    AWAY,
    NOBODY,
    ConsumerGroup,
    GroupState,
    Held,
    Member,
    MemberState,
)
from kcoord_wire.coordinator.consumer_groups.group import MemberState as Progress
from kcoord_wire.coordinator.consumer_groups.progress import REGEX_REFRESH_MIN_MS
from kcoord_wire.coordinator.core import events
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.groups import Group, TopicNames
from kcoord_wire.coordinator.core.machine import GroupMachine
from kcoord_wire.kernel import machines
from kcoord_wire.kernel.virtual.scripts import ViolationError
from kcoord_wire.worlds.consumer_groups.waits import Waits
from kcoord_wire.worlds.group.laws import Invariants
from kcoord_wire.worlds.group.wire import VirtualTopics

LAWS: Final = (
    "NoDoubleClientAssignment",
    "ValidMemberEpoch",
    "ValidPartitionEpoch",
    "LegalTargetAssignment",
    "ValidStableGroupState",
    "GcSideMemberEpochIsMonotonic",
    "ClientSideMemberEpochIsMonotonic",
    "GroupEpochIsMonotonic",
    "WaitsForOthersOnly",
    "EventuallyConverges",
)


class Client(Protocol):
    """A member's side, of either protocol.

    :ivar member_id: its id
    :ivar epoch: that it was given last, a classic member's generation; not positive while it has none
    :ivar owned: what it may use
    :ivar is_at_rest: whether it has what it was given, and nothing more to do
    """

    @property
    def member_id(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def owned(self) -> frozenset[Partition]: ...
    @property
    def is_at_rest(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Epochs:
    """The epochs of a group at one time, for `check_step`.

    :ivar group: the group epoch
    :ivar assignment: the assignment epoch
    :ivar members: by member id, with their epochs
    """

    group: int
    assignment: int
    members: Mapping[str, Member]

    @classmethod
    def of(cls, group: ConsumerGroup) -> Epochs:
        """Return those of a group."""
        return cls(group.epoch, group.assignment_epoch, dict(group.members))


def _held(held: Held) -> Iterable[Partition]:
    return (Partition(topic_id, number) for topic_id, numbers in held.items() for number in numbers)


def _targets(group: ConsumerGroup) -> dict[str, frozenset[Partition]]:
    return {
        member_id: frozenset(Partition(topic_id, number) for topic_id, numbers in target.items() for number in numbers)
        for member_id, target in group.target.items()
    }


def assigned(group: ConsumerGroup, member_id: str) -> frozenset[Partition]:
    """Return what a member may use; nothing if it is no member."""
    member = group.members.get(member_id)
    return frozenset() if member is None else frozenset(_held(member.assigned))


def wanted(group: ConsumerGroup, topics: TopicNames) -> set[Partition]:
    """Return the partitions that somebody in the group subscribes to."""
    found: set[Partition] = set()
    for member in group.members.values():
        for name in group.subscription(member):
            topic_id, count = topics.id_of(name), topics.partitions(name)
            if topic_id is not None and count is not None:
                found |= {Partition(topic_id, number) for number in range(count)}
    return found


# ---- the coordinator's side


def check_group(group: ConsumerGroup) -> None:
    """Check one group as the coordinator has it.

    :raises ViolationError: with the name of the law
    """
    _check_partition_epochs(group)
    _check_target(group)
    _check_stable(group)
    if group.assignment_epoch > group.epoch:
        text = f"the assignment epoch {group.assignment_epoch} is ahead of {group.epoch}"
        raise ViolationError("GroupEpochIsMonotonic", text)


def _check_partition_epochs(group: ConsumerGroup) -> None:
    holders = Counter(
        partition
        for member in group.members.values()
        for partition in chain(_held(member.assigned), _held(member.revoking))
    )
    for partition, count in holders.items():
        if count > 1:
            raise ViolationError("ValidPartitionEpoch", f"{partition} is held by {count} members: {_members(group)}")
    for member in group.members.values():
        for partition in chain(_held(member.assigned), _held(member.revoking)):
            epoch = group.partition_epoch(*partition)
            if epoch == NOBODY or epoch != member.epoch:
                text = f"{partition} is held by {member.member_id} in {member.epoch}, its epoch is {epoch}"
                raise ViolationError("ValidPartitionEpoch", text)


def _check_target(group: ConsumerGroup) -> None:
    given = Counter(partition for target in _targets(group).values() for partition in target)
    twice = [partition for partition, count in given.items() if count > 1]
    if twice:
        raise ViolationError("LegalTargetAssignment", f"{twice} are given to two members: {_targets(group)}")
    if group.target.keys() - group.members.keys():
        raise ViolationError("LegalTargetAssignment", f"a target of {group.target.keys() - group.members.keys()}")


def _check_stable(group: ConsumerGroup) -> None:
    if group.state is not GroupState.STABLE:
        return
    targets = _targets(group)
    for member_id, member in group.members.items():
        has = frozenset(_held(member.assigned))
        is_valid = (
            member.state is Progress.STABLE
            and member.epoch == group.epoch
            and not member.revoking
            and has == targets.get(member_id, frozenset())
        )
        if not is_valid:
            text = f"Stable in {group.epoch} with {_shown(member)}, target {targets.get(member_id)}"
            raise ViolationError("ValidStableGroupState", text)


def check_step(before: Epochs | None, group: ConsumerGroup, rejoined: Collection[str] = ()) -> None:
    """Check what an event has done to the epochs.

    :param before: those before it; None if there was no group, or another one
    :param rejoined: ids of members that joined again with the event
    :raises ViolationError: with the name of the law
    """
    if before is None:
        return
    if group.epoch < before.group or group.assignment_epoch < before.assignment:
        text = f"{(before.group, before.assignment)} became {(group.epoch, group.assignment_epoch)}"
        raise ViolationError("GroupEpochIsMonotonic", text)
    for member_id, member in group.members.items():
        was = before.members.get(member_id)
        if was is not None and member.epoch < was.epoch and member.epoch != AWAY and member_id not in rejoined:
            text = f"{member_id} went from {was.epoch} to {member.epoch}"
            raise ViolationError("GcSideMemberEpochIsMonotonic", text)
        if member.state is Progress.UNRELEASED_PARTITIONS and _has_moved(member, was):
            _check_waiting(group, member)


def _has_moved(member: Member, was: Member | None) -> bool:
    return was is None or (member.state, member.epoch, member.assigned) != (was.state, was.epoch, was.assigned)


def _check_waiting(group: ConsumerGroup, member: Member) -> None:
    """Check a member that has got a part of what it waits for, or has begun to wait."""
    if member.epoch == AWAY:
        return
    target = _targets(group).get(member.member_id, frozenset())
    others = {
        partition
        for other in group.members.values()
        if other is not member
        for partition in chain(_held(other.assigned), _held(other.revoking))
    }
    if not target & others:
        text = f"{_shown(member)} waits for what nobody else holds of {sorted(target)}"
        raise ViolationError("WaitsForOthersOnly", text)


# ---- the clients' side


def check_client_step(epoch: int, client: Client) -> None:
    """Check what an event has done to a client's epoch.

    :param epoch: its epoch before the event
    :raises ViolationError: ``ClientSideMemberEpochIsMonotonic``
    """
    if 0 < client.epoch < epoch:
        text = f"{client.member_id} went from {epoch} to {client.epoch}"
        raise ViolationError("ClientSideMemberEpochIsMonotonic", text)


# ---- both sides


def check_clients(group: ConsumerGroup, clients: Iterable[Client]) -> None:
    """Check what clients own against each other, and against the target.

    :param clients: those that run; only those that the coordinator counts among the group are compared
    :raises ViolationError: with the name of the law
    """
    targets = _targets(group)
    owners: dict[Partition, str] = {}
    for client in clients:
        member_id = client.member_id
        member = group.members.get(member_id)
        if member is None:
            continue
        for partition in client.owned:
            other = owners.setdefault(partition, member_id)
            if other != member_id:
                text = f"{partition} is owned by {other} and {member_id}: {_members(group)}"
                raise ViolationError("NoDoubleClientAssignment", text)
        _check_client(group, client, member, targets)


def _check_client(
    group: ConsumerGroup,
    client: Client,
    member: Member,
    targets: Mapping[str, frozenset[Partition]],
) -> None:
    if client.epoch > member.epoch and member.epoch != AWAY:
        text = f"{member.member_id} is in {client.epoch}, for the coordinator in {member.epoch}"
        raise ViolationError("ClientSideMemberEpochIsMonotonic", text)
    if client.epoch != group.assignment_epoch or client.epoch != member.epoch:
        return
    for other, target in targets.items():
        if other != member.member_id and (taken := target & client.owned):
            text = f"{member.member_id} owns {sorted(taken)} in {client.epoch}, which are {other}'s"
            raise ViolationError("ValidMemberEpoch", text)


def has_converged(group: ConsumerGroup, clients: Collection[Client], topics: TopicNames) -> bool:
    """Return whether the clients are the group, and own each partition that they want exactly once."""
    owned = [partition for client in clients for partition in client.owned]
    return (
        {client.member_id for client in clients} == group.members.keys()
        and all(client.is_at_rest and client.epoch == group.epoch for client in clients)
        and len(owned) == len(set(owned))
        and set(owned) == wanted(group, topics)
        and group.state in (GroupState.STABLE, GroupState.EMPTY)
    )


# ---- states as values


def snapshot(group: ConsumerGroup) -> Hashable:
    """Return what the log must bring back of a group."""
    members = tuple(_shown(member) for _, member in sorted(group.members.items()))
    targets = tuple(sorted((key, tuple(sorted(target))) for key, target in _targets(group).items() if target))
    regexes = tuple(sorted((pattern, tuple(sorted(found.topics))) for pattern, found in group.regexes.items()))
    return (group.epoch, group.assignment_epoch, members, targets, regexes, tuple(sorted(group.instances.items())))


def _shown(member: Member) -> tuple[Hashable, ...]:
    return (
        *(member.member_id, member.instance_id, member.epoch, member.previous_epoch, str(member.state.name)),
        *(_with_epochs(member.assigned), _with_epochs(member.revoking), member.topics, member.regex, member.assignor),
        member.classic,
    )


def _with_epochs(held: Held) -> tuple[tuple[uuid.UUID, int, int], ...]:
    return tuple(
        sorted((topic_id, number, epoch) for topic_id, found in held.items() for number, epoch in found.items())
    )


def _members(group: ConsumerGroup) -> list[tuple[Hashable, ...]]:
    return [_shown(member)[:7] for member in group.members.values()]


class _Kept(NamedTuple):
    """What all groups were after an append.

    :ivar append: its number
    :ivar groups: snapshots
    :ivar is_whole: whether it was the only one of its event; else the states between were not seen
    """

    append: int
    groups: Hashable
    is_whole: bool


def consumer_groups(machine: GroupMachine) -> dict[str, ConsumerGroup]:
    """Return the groups of the newer protocol that a coordinator has, by id."""
    return {group_id: group for group_id, group in machine.groups.items() if isinstance(group, ConsumerGroup)}


class _Before(NamedTuple):
    """What a group was before an event, as far as laws compare it."""

    assignment_epoch: int
    targets: Mapping[str, Any]
    regexes: Mapping[str, Any]

    @classmethod
    def of(cls, group: ConsumerGroup) -> _Before:
        """Return it of a group."""
        targets = {member.instance_id or key: group.target.get(key) for key, member in group.members.items()}
        return cls(group.assignment_epoch, targets, dict(group.regexes))

    def check_targets(self, group: ConsumerGroup) -> None:
        """Check ``TargetOfEpoch``."""
        after = self.of(group)
        if after.assignment_epoch != self.assignment_epoch:
            return
        for key in self.targets.keys() & after.targets.keys():
            if self.targets[key] and self.targets[key] != after.targets[key]:
                text = f"{key} had {self.targets[key]} in {self.assignment_epoch}, now {after.targets[key]}"
                raise ViolationError("TargetOfEpoch", text)

    def check_patterns(self, config: GroupConfig, group: ConsumerGroup, changes: int, now: int) -> None:
        """Check ``patterns are fresh`` after a heartbeat."""
        last = max((found.timestamp for found in self._known(group).values()), default=None)
        is_due = last is None or self._is_due(config, group, changes, now - last)
        may_begin = bool(group.matching) and (last is None or now > last + REGEX_REFRESH_MIN_MS)
        was_resolved = any(found.timestamp == now for found in group.regexes.values()) and last != now
        if group.resolution is None and (is_due and may_begin) != was_resolved:
            text = f"{list(group.matching)}, resolved at {last}, are {'' if was_resolved else 'not '}resolved at {now}"
            raise ViolationError("patterns are fresh", text)

    def _known(self, group: ConsumerGroup) -> dict[str, Any]:
        return {pattern: found for pattern, found in self.regexes.items() if pattern in group.matching}

    def _is_due(self, config: GroupConfig, group: ConsumerGroup, changes: int, age_ms: int) -> bool:
        known = self._known(group)
        is_changed = any(found.version != changes for found in known.values())
        return is_changed or len(known) < len(group.matching) or age_ms > config.consumer_regex_refresh_interval_ms


def _has_beaten(event: events.Event, effects: Sequence[events.Effect]) -> bool:
    """Return whether an event is a heartbeat of KIP-848 that was accepted."""
    if not isinstance(event, events.Request) or not isinstance(event.message, m.ConsumerGroupHeartbeatRequest):
        return False
    answers = [each.message for each in effects if isinstance(each, events.Reply) and each.token == event.token]
    return event.message.member_epoch >= 0 and not any(answer.error_code for answer in answers)


class ConsumerGroupInvariants(Invariants):
    """Checks the laws of one coordinator and its clients through all its boots.

    :param clients: returns those that run
    """

    def __init__(self, topics: VirtualTopics, clients: Callable[[], Iterable[Client]]) -> None:
        super().__init__(ConsumerProtocol().decode_assignment)
        self._topics = topics
        self._clients = clients
        self._machine: GroupMachine | None = None
        self._epochs: dict[str, Epochs] = {}
        self._kept: deque[_Kept] = deque([_Kept(0, (), is_whole=True)])
        self._revoking: dict[str, tuple[Member, int]] = {}  # by member id: as it is, and since when
        self._waits = Waits()
        self._before: dict[str, _Before] = {}
        self._members: Set[str] = set()
        self._returning: set[str] = set()  # members that came with partitions from before; see `check_clients`

    def began(self) -> None:
        """See `Invariants`."""
        super().began()
        self._machine = None
        self._epochs = {}
        self._revoking = {}
        self._before = {}
        self._waits.forget()

    def on_disk(self, last: int) -> None:
        """See `Invariants`."""
        super().on_disk(last)
        while len(self._kept) > 1 and self._kept[1].append <= self._durable:
            self._kept.popleft()

    def handled(self, machine: GroupMachine, event: events.Event, effects: Sequence[events.Effect], now: int) -> None:
        """See `Invariants`."""
        self._machine = machine
        groups = consumer_groups(machine)
        before = self._appended
        super().handled(machine, event, effects, now)
        if isinstance(event, events.Load):
            self._revoking = {}  # the timers start anew
            self._before = {}
            self._waits.forget()
            self._check_loaded_groups(groups)
        elif self._appended > before:
            self._kept.append(_Kept(self._appended, _all(groups), is_whole=self._appended == before + 1))
        rejoined = self._rejoined(event)
        self._waits.heard(event, effects, groups, now)
        for group_id, group in groups.items():
            check_step(self._epochs.get(group_id), group, rejoined)
            check_group(group)
            if isinstance(event, machines.Tick):
                self._check_removals(group_id, group, now)
            self._check_revocations(group, now)
            self._waits.check(machine.config, group, now)
            if (was := self._before.get(group_id)) is not None:
                was.check_targets(group)
                if _has_beaten(event, effects):
                    was.check_patterns(machine.config, group, self._topics.changes, now)
        self._before = {group_id: _Before.of(group) for group_id, group in groups.items()}
        self._epochs = {group_id: Epochs.of(group) for group_id, group in groups.items()}
        members = {member_id for group in groups.values() for member_id in group.members}
        self._returning |= {each.member_id for each in self._clients() if each.owned} & (members - self._members)
        self._members = members
        self.check_clients()

    def _check_revocations(self, group: ConsumerGroup, now: int) -> None:
        for member_id, member in group.members.items():
            if member.state is not MemberState.UNREVOKED_PARTITIONS or member.classic is not None:
                self._revoking.pop(member_id, None)
                continue
            known, since = self._revoking.get(member_id, (None, now))
            if member != known:
                self._revoking[member_id] = (member, now)
            elif now > since + member.rebalance_timeout_ms:
                text = f"{member_id} may take {member.rebalance_timeout_ms} ms, and has taken {now - since}"
                raise ViolationError("revocation is timed", text)

    def _check_removals(self, group_id: str, group: ConsumerGroup, now: int) -> None:
        """Check the members that time has removed."""
        epochs = self._epochs.get(group_id)
        for member_id in () if epochs is None else epochs.members.keys() - group.members.keys():
            known, since = self._revoking.pop(member_id, (None, now))
            if known is None or now < since + known.rebalance_timeout_ms:
                self._waits.check_removal(member_id, now)

    @staticmethod
    def _rejoined(event: events.Event) -> Sequence[str]:
        message = event.message if isinstance(event, events.Request) else None
        if isinstance(message, m.ConsumerGroupHeartbeatRequest) and message.member_epoch == 0:
            return [message.member_id]
        return []

    def check_clients(self) -> None:
        """Check what clients own, after something has happened to one of them.

        A classic member that the group had removed may come back by its id, and goes on with what it had until it gets
        its new assignment (as in Kafka; it cannot commit that). It counts when it has given up the rest.

        :raises ViolationError: with the name of the law
        """
        if self._machine is None:
            return
        for group in consumer_groups(self._machine).values():
            clients = list(self._clients())
            self._returning -= {each.member_id for each in clients if each.owned <= assigned(group, each.member_id)}
            check_clients(group, [each for each in clients if each.member_id not in self._returning])

    # ---- the log

    def _check_loaded_groups(self, groups: dict[str, ConsumerGroup]) -> None:
        loaded = _all(groups)
        kept, self._kept = self._kept, deque([_Kept(self._appended, loaded, is_whole=True)])
        was_seen = all(each.is_whole for each in list(kept)[1:])
        if was_seen and all(each.groups != loaded for each in kept):
            raise ViolationError("log is complete", f"read {loaded}, expected one of {[each.groups for each in kept]}")

    # ---- what differs from the classic protocol

    def _consumer_group(self, group_id: str) -> ConsumerGroup | None:
        return None if self._machine is None else consumer_groups(self._machine).get(group_id)

    def _note_report(self, report: events.RebalanceReport, touched: set[str]) -> None:
        if self._consumer_group(report.rebalance.group_id) is None:
            super()._note_report(report, touched)  # else the epochs are checked instead

    def _check_state(self, group_id: str, group: Group | None, event: events.Event) -> None:
        if self._consumer_group(group_id) is not None or group_id in self._epochs:
            self._view(group_id).state = None if group is None else group.state
        else:
            super()._check_state(group_id, group, event)

    def _check_join(self, request: m.JoinGroupRequest, answer: m.JoinGroupResponse) -> None:
        group = self._consumer_group(request.group_id)
        if group is None and request.group_id in self._epochs and not answer.generation_id:
            pass  # a static member whose return makes the group classic, which rebalances at once (as in Kafka)
        elif group is None:
            super()._check_join(request, answer)
        elif not answer.error_code and answer.generation_id != group.members[answer.member_id].epoch:
            text = f"{answer.member_id} joins {answer.generation_id}, for the coordinator {snapshot(group)}"
            raise ViolationError("generation", text)

    def _check_sync(self, request: m.SyncGroupRequest, reply: events.Reply) -> None:
        group = self._consumer_group(request.group_id)
        if group is None:
            super()._check_sync(request, reply)
        elif not reply.message.error_code:
            given = self._decode_assignment(reply.message.assignment).partitions
            held = group.members[request.member_id].assigned
            ids = {self._topics.id_of(name): set(numbers) for name, numbers in given.items() if numbers}
            if ids != {topic_id: set(numbers) for topic_id, numbers in held.items()}:
                text = f"{request.member_id} is given {given}, for the coordinator {snapshot(group)}"
                raise ViolationError("one owner", text)

    def _note_promise(self, request: m.SyncGroupRequest) -> None:
        if self._consumer_group(request.group_id) is None:
            super()._note_promise(request)

    def _check_fence(self, view: Any, request: m.OffsetCommitRequest, partition: TopicPartition) -> None:
        group = self._consumer_group(request.group_id)
        if group is None and self._machine is not None and request.group_id in self._machine.groups:
            return super()._check_fence(view, request, partition)
        member = None if group is None else group.members.get(request.member_id)
        epoch = request.generation_id_or_member_epoch
        if member is None:
            if epoch >= 0:
                raise ViolationError("fenced", f"a commit of {request.member_id} is accepted, who is no member")
            return
        topic_id = self._topics.id_of(partition.topic)
        since = None if topic_id is None else member.assignment_epoch(topic_id, partition.partition)
        if epoch != member.epoch and (since is None or not since <= epoch <= member.epoch):
            text = f"{partition} is committed in {epoch} by {member.member_id}, which has it since {since}"
            raise ViolationError("fenced", text)
        return None


def _all(groups: dict[str, ConsumerGroup]) -> Hashable:
    return tuple((group_id, snapshot(group)) for group_id, group in sorted(groups.items()))
