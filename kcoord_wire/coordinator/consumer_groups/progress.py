"""What follows when something changes that an assignment depends on: a group epoch, a target, and a member's step.

Laws:

* Records are in the log in the order in which readers may rely on: members, the group epoch, targets, the assignment
  epoch, what a member holds.
* Nothing is computed by a timer: a target is computed, and a member moves on, with a heartbeat of a member.
* The account of a rebalance begins with a group epoch and ends when every member holds its target of it.

Source: KIP-848; Kafka's `GroupMetadataManager.java` (consumerGroupHeartbeat, consumerGroupFenceMembers).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from kcoord_wire.assignors.embedded import ConsumerProtocol
from kcoord_wire.coordinator.consumer_groups import records as log
from kcoord_wire.coordinator.consumer_groups.assignment import (
    compute_target,
    hash_topics,
    may_assign,
    preferred_assignor,
)
from kcoord_wire.coordinator.consumer_groups.group import (
    ConsumerGroup,
    GroupState,
    Member,
    MemberState,
    ResolvedRegex,
)
from kcoord_wire.coordinator.consumer_groups.reconciliation import Goal, reconcile
from kcoord_wire.coordinator.core import events
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.events import EffectCollector
from kcoord_wire.coordinator.core.groups import BaseGroup, TopicNames
from kcoord_wire.coordinator.core.regexes import CompileRegex, Resolution
from kcoord_wire.kernel.timers import Timer, Timers
from kcoord_wire.messages import ConsumerGroupHeartbeatRequestTopicPartitions as Owned

REGEX_REFRESH_MIN_MS: Final = 10_000
"""The least time between two resolutions of the patterns of a group."""

Records = list[events.LogRecord]


@dataclass(slots=True)
class Shared:
    """What the machines of both protocols share.

    :ivar groups: by id, of both protocols
    :ivar topics: the topics that exist
    :ivar config: settings of the coordinator
    :ivar timers: deadlines of all groups
    :ivar effects: what the present call returns
    :ivar compile_regex: compiles a pattern of a subscription
    :ivar embedded: reads and writes the bytes of classic members
    :ivar configs_of: returns the configs that a group has of its own, by Kafka's names
    """

    groups: dict[str, BaseGroup]
    topics: TopicNames
    config: GroupConfig
    timers: Timers
    effects: EffectCollector
    compile_regex: CompileRegex
    embedded: ConsumerProtocol
    configs_of: Callable[[str], Mapping[str, str]]

    def setting(self, group: ConsumerGroup, name: str, default: int) -> int:
        """Return a setting of a group, in ms: its own, or that of the coordinator."""
        own = self.configs_of(group.group_id).get(name)
        return default if own is None else int(own)


class Progress:
    """Moves groups and their members on.

    :ivar downgrade: called when members are lost; returns whether the group has become a classic one
    """

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.downgrade: Callable[[ConsumerGroup, Sequence[Member]], bool] = lambda group, members: False

    # ---- what members say of themselves

    def replace_static(self, group: ConsumerGroup, old: Member, member: Member, records: Records) -> None:
        """Put a static member in the place of the one that it was before."""
        target = group.target.get(old.member_id, {})
        records += log.member_tombstones(group, old.member_id)
        group.remove(old.member_id)
        group.put(member)
        group.target[member.member_id] = target
        records.append(log.member_record(group, member))
        records.append(log.target_record(group, member.member_id))
        records.append(log.assignment_record(group, member))

    def update(
        self, group: ConsumerGroup, member: Member, updated: Member, records: Records, *, is_replaced: bool
    ) -> bool:
        """Store what a request says of a member, and begin a group epoch if an assignment depends on it.

        :param member: as it was before
        :param is_replaced: it has taken the place of another static member
        :returns: whether the member's subscription has changed
        """
        if updated is member and group.topics_seen == self.shared.topics.changes:
            return False
        default = self.shared.config.consumer_assignors[0]
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

    def bump(
        self,
        group: ConsumerGroup,
        trigger: events.Trigger,
        who: Member,
        records: Records,
        reason: str | None = None,
    ) -> None:
        """Begin the next group epoch."""
        group.epoch += 1
        group.metadata_hash = self._hash(group)
        records.append(log.epoch_record(group))
        group.state_since = self.shared.effects.now
        group.begin_rebalance(self.shared.effects, trigger, group.epoch, who, who.instance_id, reason)

    def refresh(self, group: ConsumerGroup, who: Member, records: Records) -> None:
        """Begin the next group epoch if the subscribed topics have changed since the last one."""
        if group.topics_seen != self.shared.topics.changes and self._hash(group) != group.metadata_hash:
            self.bump(group, events.Trigger.TOPICS_CHANGED, who, records)

    def rebalance(self, group: ConsumerGroup, reason: str) -> None:
        """Begin the next group epoch because an operator wants it."""
        if group.members:
            records: Records = []
            self.bump(group, events.Trigger.REQUESTED, Member(member_id=""), records, reason)
            self.shared.effects.append(group, records)

    def _hash(self, group: ConsumerGroup) -> int:
        group.topics_seen = self.shared.topics.changes
        return hash_topics(self.shared.topics, group.subscribed_topics())

    def assign(self, group: ConsumerGroup, records: Records) -> None:
        """Compute the target of the group epoch, unless there is one, or the last one is too young."""
        shared, now = self.shared, self.shared.effects.now
        if group.epoch <= group.assignment_epoch:
            return
        interval = shared.setting(
            group, "consumer.assignment.interval.ms", shared.config.consumer_assignment_interval_ms
        )
        if not may_assign(group, interval, now):
            return
        assignor = preferred_assignor(group, shared.config.consumer_assignors[0])
        before, group.target = group.target, compute_target(group, shared.topics, assignor)
        records += [log.target_record(group, key) for key, target in group.target.items() if before.get(key) != target]
        group.set_assignment_epoch(group.epoch, now)
        records.append(log.target_epoch_record(group))
        if group.rebalance is not None:
            group.rebalance.protocol = assignor
            group.rebalance.joined_at = now
            shared.effects.report(events.Phase.JOINED, group.rebalance)

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
        topics = self.shared.topics
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
        if timers.rebalance is not None:
            timers.rebalance.cancel()
            timers.rebalance = None
        if member.state is MemberState.UNREVOKED_PARTITIONS:
            until = self.shared.effects.now + member.rebalance_timeout_ms
            action = partial(self._revocation_expired, group, member.member_id, member.epoch)
            timers.rebalance = self.shared.timers.start(until, action)

    # ---- members that are silent, late or gone

    def keep_alive(self, group: ConsumerGroup, member: Member) -> None:
        """Restart the timer after which a silent member is removed."""
        if member.classic is not None:
            timeout = member.classic.session_timeout_ms
        else:
            default = self.shared.config.consumer_session_timeout_ms
            timeout = self.shared.setting(group, "consumer.session.timeout.ms", default)
        timers = group.timers[member.member_id]
        until = self.shared.effects.now + timeout
        if timers.session is None or not timers.session.live:
            action = partial(self._expired, group, member.member_id, events.Trigger.SESSION_EXPIRED)
            timers.session = self.shared.timers.start(until, action)
        else:
            timers.session = self.shared.timers.move(timers.session, until)

    def time_classic(self, group: ConsumerGroup, member: Member, trigger: events.Trigger) -> Timer:
        """Start the rebalance timeout of a classic member that has to join or to sync."""
        until = self.shared.effects.now + member.rebalance_timeout_ms
        return self.shared.timers.start(until, partial(self._expired, group, member.member_id, trigger))

    def restart_timers(self, group: ConsumerGroup) -> None:
        """Start the timers of all members, after the log has been read."""
        for member in group.members.values():
            self.keep_alive(group, member)
            self._time_revocation(group, member)

    def _expired(self, group: ConsumerGroup, member_id: str, trigger: events.Trigger) -> None:
        self.lose(group, [group.members[member_id]], trigger, str(trigger))

    def _revocation_expired(self, group: ConsumerGroup, member_id: str, epoch: int) -> None:
        member = group.members[member_id]
        if member.epoch == epoch:
            trigger = events.Trigger.REBALANCE_EXPIRED
            self.lose(group, [member], trigger, str(trigger))

    def lose(self, group: ConsumerGroup, members: Sequence[Member], trigger: events.Trigger, why: str) -> None:
        """Remove members, and write that; the group becomes classic if only classic members are left."""
        for member in members:
            group.removed.append(events.Removal(member.member_id, member.client_id, member.client_host, why))
        if self.downgrade(group, members):
            return
        records: Records = []
        for member in members:
            records += log.member_tombstones(group, member.member_id)
            group.remove(member.member_id)
            records += self.drop_regex(group, member.regex)
        self.bump(group, trigger, members[0], records)
        if not group.members:
            group.set_assignment_epoch(group.epoch, 0)
            records.append(log.target_epoch_record(group))
            group.end_rebalance(self.shared.effects, "empty")
        self.shared.effects.append(group, records)

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
            topics = self.shared.topics
            names = frozenset(topics.names())
            group.resolution = Resolution(group.matching, names, topics.changes, known, group.tested)
        if group.resolution.go_on(self.shared.compile_regex):
            resolution, group.resolution = group.resolution, None
            self._resolved(group, who, resolution)

    def _has_to_resolve(self, group: ConsumerGroup) -> bool:
        now, version = self.shared.effects.now, self.shared.topics.changes
        last = max((resolved.timestamp for resolved in group.regexes.values()), default=None)
        if last is None:
            return True
        if now <= last + REGEX_REFRESH_MIN_MS:
            return False
        is_old = now > last + self.shared.config.consumer_regex_refresh_interval_ms
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
            group.regexes[pattern] = ResolvedRegex(topics, resolution.version, self.shared.effects.now)
            records.append(log.regex_record(group, pattern))
        group.tested = resolution.names
        if changed or self._hash(group) != group.metadata_hash:
            self.bump(group, events.Trigger.TOPICS_CHANGED, who, records)
        self.shared.effects.append(group, records)

    # ---- accounts

    def settle(self, group: ConsumerGroup, member: Member) -> None:
        """Note in the account that a member may have reached its target, and whether all have."""
        rebalance = group.rebalance
        if rebalance is None or rebalance.joined_at is None or member.member_id in group.unsettled:
            return
        if member.epoch == rebalance.generation_id:
            rebalance.joins.append((member.member_id, self.shared.effects.now - rebalance.started_at))
        if group.state is GroupState.STABLE:
            group.state_since = self.shared.effects.now
            group.end_rebalance(self.shared.effects, "stable")

    def release(self, group: ConsumerGroup) -> None:
        """Give up a group that another coordinator has now."""
        group.end_rebalance(self.shared.effects, "interrupted")
        group.end(self.shared.effects.now)


def _trigger(is_new: bool, is_replaced: bool, is_subscription: bool) -> events.Trigger:
    if is_replaced:
        return events.Trigger.STATIC_REPLACED
    if is_new:
        return events.Trigger.NEW_MEMBER
    return events.Trigger.SUBSCRIPTION_CHANGED if is_subscription else events.Trigger.ASSIGNOR_CHANGED
