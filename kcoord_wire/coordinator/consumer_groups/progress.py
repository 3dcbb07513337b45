"""What follows when something changes that an assignment depends on: a group epoch, a target, and a member's step.

Laws:

* Records are in the log in the order in which readers may rely on: members, the group epoch, targets, the assignment
  epoch, what a member holds.
* Nothing is computed by a timer: a target is computed, and a member moves on, with a heartbeat of a member.
* The account of a rebalance begins with a group epoch and ends when every member holds its target of it. After a
  restart it begins anew, with `Trigger.LOADED`.

How a member gets from what it holds to its target: give up first, then take what is free.

    STABLE                 holds its target of the epoch that it is in
    UNREVOKED_PARTITIONS   must give partitions up, and stays in its epoch until it reports that it has
    UNRELEASED_PARTITIONS  is in the target's epoch, and waits for partitions that others hold

* A member moves to another epoch only when it holds nothing that its target takes away.
* A partition is given only when no member holds it (`ConsumerGroup.partition_epoch`).
* Topics that the member does not subscribe to any more are taken away at once, whatever the target says.
* The assignor sees the present target as what members hold, so that nothing moves without need.
* A topic that does not exist has no partitions; when it is created, the hash of the subscribed topics changes and with
  it the group epoch.

Source: KIP-848; Kafka's `GroupMetadataManager.java` (consumerGroupHeartbeat, consumerGroupFenceMembers),
`CurrentAssignmentBuilder.java`, `TargetAssignmentBuilder.java`, `ModernGroup.java`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from kcoord_wire.assignors.embedded import ConsumerProtocol
from kcoord_wire.assignors.kip848 import SERVER_ASSIGNORS
from kcoord_wire.assignors.subscriptions import MemberSubscription
from kcoord_wire.coordinator.consumer_groups import records as log
from kcoord_wire.coordinator.consumer_groups.epoch_group import Target
from kcoord_wire.coordinator.consumer_groups.epoch_records import member_tombstones, target_record
from kcoord_wire.coordinator.consumer_groups.epochs import Epochs, Records, may_assign
from kcoord_wire.coordinator.consumer_groups.group import (
    NOBODY,
    ConsumerGroup,
    GroupState,
    Held,
    Member,
    MemberState,
    ResolvedRegex,
)
from kcoord_wire.coordinator.core import events
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.events import EffectCollector
from kcoord_wire.coordinator.core.groups import BaseGroup, TopicNames
from kcoord_wire.coordinator.core.regexes import CompileRegex, Resolution
from kcoord_wire.kernel.timers import Timer, Timers
from kcoord_wire.messages import ConsumerGroupHeartbeatRequestTopicPartitions as Owned


def preferred_assignor(group: ConsumerGroup, default: str) -> str:
    """Return the server assignor that most members ask for; of equals, the one asked for first."""
    return max(group.assignors, key=group.assignors.__getitem__) if group.assignors else default


def compute_target(group: ConsumerGroup, topics: TopicNames, assignor: str) -> dict[str, Target]:
    """Return the target of every member, by member id."""
    counts = {name: count for name in group.subscribed_topics() if (count := topics.partitions(name)) is not None}
    names = {topics.id_of(name): name for name in counts}
    members = {
        member_id: MemberSubscription(
            topics=tuple(group.subscription(member)),
            owned={
                names[topic_id]: sorted(partitions)
                for topic_id, partitions in group.target.get(member_id, {}).items()
                if topic_id in names
            },
            instance_id=member.instance_id,
            rack=member.rack_id,
        )
        for member_id, member in group.members.items()
    }
    assigned = SERVER_ASSIGNORS[assignor](counts, members)
    ids = {name: topic_id for topic_id, name in names.items() if topic_id is not None}
    return {
        member_id: {ids[name]: frozenset(partitions) for name, partitions in assigned[member_id].items()}
        for member_id in group.members
    }


class Goal(NamedTuple):
    """What a member is to reach.

    :ivar epoch: the assignment epoch
    :ivar target: its part of the target assignment
    :ivar subscribed: ids of the topics that it subscribes to
    :ivar partition_epoch: returns the epoch of a partition's holder, `NOBODY` if it has none
    """

    epoch: int
    target: Target
    subscribed: frozenset[uuid.UUID]
    partition_epoch: Callable[[uuid.UUID, int], int]


def reconcile(member: Member, goal: Goal, owned: Sequence[Owned] | None, *, has_new_topics: bool) -> Member:
    """Return the member after the next step towards its goal; the same if it can take none.

    :param owned: what the member reports that it holds; None if its heartbeat does not say
    :param has_new_topics: its subscription has changed with this heartbeat
    """
    if member.state is MemberState.STABLE and member.epoch == goal.epoch:
        return _drop_unsubscribed(member, goal, owned) if has_new_topics else member
    if member.state is MemberState.UNREVOKED_PARTITIONS and owns_any(owned, member.revoking):
        return _drop_unsubscribed(member, goal, owned) if has_new_topics else member
    if member.state is MemberState.UNKNOWN:  # of another release: the member has given up everything and begins anew
        member = replace(member, epoch=goal.epoch)
    return _step(member, goal, owned)


def owns_any(owned: Sequence[Owned] | None, held: Held) -> bool:
    """Return whether a member still holds any of these partitions, which it does unless it says what it holds."""
    if owned is None:
        return True
    return any(partition in held.get(item.topic_id, ()) for item in owned for partition in item.partitions)


def _step(member: Member, goal: Goal, owned: Sequence[Owned] | None) -> Member:
    kept: dict[uuid.UUID, dict[int, int]] = {}
    taken: dict[uuid.UUID, dict[int, int]] = {}
    given: dict[uuid.UUID, list[int]] = {}
    waits = False
    for topic_id in {**goal.target, **member.assigned}:
        target = goal.target.get(topic_id, frozenset()) if topic_id in goal.subscribed else frozenset()
        held = member.assigned.get(topic_id, {})
        kept[topic_id] = {partition: epoch for partition, epoch in held.items() if partition in target}
        taken[topic_id] = {partition: epoch for partition, epoch in held.items() if partition not in target}
        wanted = target.difference(held)
        given[topic_id] = _free(member, goal, topic_id, wanted)
        waits = waits or len(given[topic_id]) < len(wanted)
    if any(taken.values()) and owns_any(owned, taken):
        return _moved(member, MemberState.UNREVOKED_PARTITIONS, member.epoch, kept, taken)
    for topic_id, partitions in given.items():
        kept[topic_id].update(dict.fromkeys(partitions, goal.epoch))
    state = MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE
    return _moved(member, state, goal.epoch, kept, {})


def _free(member: Member, goal: Goal, topic_id: uuid.UUID, wanted: Iterable[int]) -> list[int]:
    """Return those of the partitions that no other member holds, ascending."""
    own = member.revoking.get(topic_id, {})
    return sorted(item for item in wanted if item in own or goal.partition_epoch(topic_id, item) == NOBODY)


def _drop_unsubscribed(member: Member, goal: Goal, owned: Sequence[Owned] | None) -> Member:
    dropped = {topic: held for topic, held in member.assigned.items() if topic not in goal.subscribed}
    if not dropped:
        return member
    kept = {topic: held for topic, held in member.assigned.items() if topic in goal.subscribed}
    revoking = {
        topic: {**member.revoking.get(topic, {}), **dropped.get(topic, {})}
        for topic in dict.fromkeys((*member.revoking, *dropped))
    }
    if owns_any(owned, revoking):
        return _moved(member, MemberState.UNREVOKED_PARTITIONS, member.epoch, kept, revoking)
    return _moved(member, member.state, member.epoch, kept, member.revoking)


def _moved(member: Member, state: MemberState, epoch: int, assigned: Held, revoking: Held) -> Member:
    return replace(
        member,
        state=state,
        epoch=epoch,
        previous_epoch=member.epoch,
        assigned={topic_id: held for topic_id, held in assigned.items() if held},
        revoking={topic_id: held for topic_id, held in revoking.items() if held},
    )


REGEX_REFRESH_MIN_MS: Final = 10_000
"""The least time between two resolutions of the patterns of a group."""


class Progress(Epochs[ConsumerGroup, Member]):
    """Moves groups and their members on.

    :param compile_regex: compiles a pattern of a subscription
    :ivar embedded: reads and writes the bytes of classic members
    :ivar downgrade: called when members are lost; returns whether the group has become a classic one
    """

    no_member = Member(member_id="")

    def __init__(
        self,
        groups: dict[str, BaseGroup],
        topics: TopicNames,
        config: GroupConfig,
        timers: Timers,
        effects: EffectCollector,
        compile_regex: CompileRegex,
        configs_of: Callable[[str], Mapping[str, str]],
    ) -> None:
        super().__init__(groups, topics, config, timers, effects, configs_of)
        self.compile_regex = compile_regex
        self.embedded = ConsumerProtocol()
        self.downgrade: Callable[[ConsumerGroup, Sequence[Member]], bool] = lambda group, members: False

    # ---- what members say of themselves

    def replace_static(self, group: ConsumerGroup, old: Member, member: Member, records: Records) -> None:
        """Put a static member in the place of the one that it was before."""
        target = group.target.get(old.member_id, {})
        records += member_tombstones(group, old.member_id)
        group.remove(old.member_id)
        group.put(member)
        group.target[member.member_id] = target
        records.append(log.member_record(group, member))
        records.append(target_record(group, member.member_id))
        records.append(log.assignment_record(group, member))

    def update(
        self, group: ConsumerGroup, member: Member, updated: Member, records: Records, *, is_replaced: bool
    ) -> bool:
        """Store what a request says of a member, and begin a group epoch if an assignment depends on it.

        :param member: as it was before
        :param is_replaced: it has taken the place of another static member
        :returns: whether the member's subscription has changed
        """
        if updated is member and group.topics_seen == self.topics.changes:
            return False
        default = self.config.consumer_assignors[0]
        is_new = member.member_id not in group.members
        assignor = preferred_assignor(group, default)
        if updated != member or is_new:
            group.put(updated)
            records.append(log.member_record(group, updated))
        has_new_regex = updated.regex != member.regex
        if has_new_regex:
            records += self.drop_regex(group, member.regex)
        is_resolved = has_new_regex and (updated.regex in group.regexes or not updated.regex)
        has_new_names = updated.topics != member.topics
        has_new_assignor = preferred_assignor(group, default) != assignor
        if has_new_names or is_resolved or has_new_assignor:
            trigger = _trigger(is_new, is_replaced, has_new_names or has_new_regex)
            self.bump(group, trigger, updated, records)
        else:
            self.refresh(group, updated, records)
        return has_new_names or has_new_regex

    # ---- epochs and targets

    def assign(self, group: ConsumerGroup, records: Records) -> None:
        """Compute the target of the group epoch, unless there is one, or the last one is too young."""
        if group.epoch <= group.assignment_epoch:
            return
        interval = self.setting(group, "consumer.assignment.interval.ms", self.config.consumer_assignment_interval_ms)
        if not may_assign(group, interval, self.effects.now):
            return
        assignor = preferred_assignor(group, self.config.consumer_assignors[0])
        self.set_target(group, compute_target(group, self.topics, assignor), assignor, records)

    def step(
        self,
        group: ConsumerGroup,
        member: Member,
        owned: Sequence[Owned] | None,
        records: Records,
        *,
        has_new_topics: bool = False,
    ) -> Member:
        """Move a member one step towards its target, and return it as it is then."""
        if not has_new_topics and member.is_reconciled(group.assignment_epoch):
            self.settle(group, member)
            return member
        topics = self.topics
        subscribed = frozenset(
            topic_id for name in group.subscription(member) if (topic_id := topics.id_of(name)) is not None
        )
        target = group.target.get(member.member_id, {})
        goal = Goal(group.assignment_epoch, target, subscribed, group.partition_epoch)
        updated = reconcile(member, goal, owned, has_new_topics=has_new_topics)
        if updated != member:
            group.put(updated)
            records.append(log.assignment_record(group, updated))
            self._time_revocation(group, updated)
        self.settle(group, updated)
        return updated

    def _time_revocation(self, group: ConsumerGroup, member: Member) -> None:
        """Restart the timer for what a member must give up, or end it. Classic members have other timers."""
        timers = group.timers[member.member_id]
        if member.classic is not None:
            return
        events.cancel(timers.rebalance)
        timers.rebalance = None
        if member.state is MemberState.UNREVOKED_PARTITIONS:
            until = self.effects.now + member.rebalance_timeout_ms
            action = partial(self._revocation_expired, group, member.member_id, member.epoch)
            timers.rebalance = self.timers.start(until, action)

    # ---- members that are silent, late or gone

    def session_timeout(self, group: ConsumerGroup, member: Member) -> int:
        """See `Epochs`."""
        if member.classic is not None:
            return member.classic.session_timeout_ms
        return self.setting(group, "consumer.session.timeout.ms", self.config.consumer_session_timeout_ms)

    def time_classic(self, group: ConsumerGroup, member: Member, trigger: events.Trigger) -> Timer:
        """Start the rebalance timeout of a classic member that has to join or to sync."""
        until = self.effects.now + member.rebalance_timeout_ms
        return self.timers.start(until, partial(self.expired, group, member.member_id, trigger))

    def restart_timers(self, group: ConsumerGroup) -> None:
        """Start the timers of all members, after the log has been read, and the account of a rebalance that is under
        way: the one of the coordinator before is not in the log."""
        super().restart_timers(group)
        for member in group.members.values():
            self._time_revocation(group, member)
        if group.state in (GroupState.ASSIGNING, GroupState.RECONCILING):
            account = group.begin_rebalance(
                self.effects, events.Trigger.LOADED, group.epoch, Member(member_id=""), None, None
            )
            if group.state is GroupState.RECONCILING:
                account.joined_at = self.effects.now
                self.effects.report(events.Phase.JOINED, account)

    def _revocation_expired(self, group: ConsumerGroup, member_id: str, epoch: int) -> None:
        member = group.members[member_id]
        if member.epoch == epoch:
            trigger = events.Trigger.REBALANCE_EXPIRED
            self.lose(group, [member], trigger, str(trigger))

    def lose(self, group: ConsumerGroup, members: Sequence[Member], trigger: events.Trigger, why: str) -> None:
        """See `Epochs`; the group becomes classic if only classic members are left."""
        self.note_removed(group, members, why)
        if not self.downgrade(group, members):
            self.remove(group, members, trigger)

    def forget(self, group: ConsumerGroup, member: Member) -> Records:
        """See `Epochs`: its pattern, too."""
        return self.drop_regex(group, member.regex)

    # ---- patterns

    def drop_regex(self, group: ConsumerGroup, pattern: str) -> Records:
        """Forget a pattern that no member subscribes to any more."""
        if pattern in group.matching or group.regexes.pop(pattern, None) is None:
            return []
        return [log.regex_tombstone(group, pattern)]

    def resolve_regexes(self, group: ConsumerGroup, who: Member) -> None:
        """Resolve the patterns of a group where that is due, and write what they match: as in Kafka after the heartbeat
        that needs it is answered, so that a later one gets the assignment."""
        if not group.matching or not (group.resolution is not None or self._has_to_resolve(group)):
            return
        if group.resolution is None:
            known = {pattern: resolved.topics for pattern, resolved in group.regexes.items()}
            topics = self.topics
            names = frozenset(topics.names())
            group.resolution = Resolution(group.matching, names, topics.changes, known, group.tested)
        if group.resolution.go_on(self.compile_regex):
            resolution, group.resolution = group.resolution, None
            self._resolved(group, who, resolution)

    def _has_to_resolve(self, group: ConsumerGroup) -> bool:
        now, version = self.effects.now, self.topics.changes
        last = max((resolved.timestamp for resolved in group.regexes.values()), default=None)
        if last is None:
            return True
        if now <= last + REGEX_REFRESH_MIN_MS:
            return False
        is_old = now > last + self.config.consumer_regex_refresh_interval_ms
        # Compared for equality: after a restart topics are counted anew.
        is_changed = any(resolved.version != version for resolved in group.regexes.values())
        return len(group.matching) != len(group.regexes) or is_changed or is_old

    def _resolved(self, group: ConsumerGroup, who: Member, resolution: Resolution) -> None:
        records: Records = []
        changed = False
        for pattern in group.matching:
            if pattern not in resolution.found:
                continue  # a member has come with it meanwhile
            before = group.regexes.get(pattern)
            topics = frozenset(resolution.found[pattern])
            changed = changed or topics != (frozenset() if before is None else before.topics)
            group.regexes[pattern] = ResolvedRegex(topics, resolution.version, self.effects.now)
            records.append(log.regex_record(group, pattern))
        group.tested = resolution.names
        if changed or self.hash(group) != group.metadata_hash:
            self.bump(group, events.Trigger.TOPICS_CHANGED, who, records)
        self.effects.append(group, records)


def _trigger(is_new: bool, is_replaced: bool, is_subscription: bool) -> events.Trigger:
    if is_replaced:
        return events.Trigger.STATIC_REPLACED
    if is_new:
        return events.Trigger.NEW_MEMBER
    return events.Trigger.SUBSCRIPTION_CHANGED if is_subscription else events.Trigger.ASSIGNOR_CHANGED
