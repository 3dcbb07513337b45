"""Bugs of the coordinator of KIP-848, planted one by one, and the laws of the simulation that each breaks.

Two of them were Kafka's: KAFKA-16147 (a partition that returns to its owner before it was given up loses its epoch, and
goes to a second member) and KAFKA-19449 (a member waits for a partition that only itself was to give up).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kcoord_wire import messages as m
from kcoord_wire.assignors import MemberAssignment
from kcoord_wire.consumer.classic_member import MemberMachine
from kcoord_wire.coordinator.consumer_groups import classic_members, machine, progress
from kcoord_wire.coordinator.consumer_groups.classic_members import ClassicMembers
from kcoord_wire.coordinator.consumer_groups.group import NOBODY, ConsumerGroup, GroupState, Member, MemberState
from kcoord_wire.coordinator.consumer_groups.machine import CoordinatorMachine
from kcoord_wire.coordinator.consumer_groups.progress import Goal, Progress
from kcoord_wire.coordinator.core.events import Append, Effect, Event, LogRecord, Reply
from kcoord_wire.coordinator.log.store import Store
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.planting import Patch, changes_effects, replaces


@replaces(ConsumerGroup, "put")
def kafka_16147(put: Any, self: ConsumerGroup, member: Member) -> None:
    """What a member no longer has to give up is forgotten after what it holds is noted, even where it is the same."""
    old = self.members.get(member.member_id)
    put(self, member)
    for topic_id, partitions in {} if old is None else old.revoking.items():
        for partition in partitions.keys() - member.revoking.get(topic_id, {}).keys():
            self._epochs.get(topic_id, {}).pop(partition, None)


@replaces(progress, "_step")
def kafka_19449(step: Any, member: Member, goal: Goal, owned: Any) -> Member:
    """A partition that the member itself is to give up counts as held by another."""
    result = step(replace(member, revoking={}), goal, owned)
    returned = [
        (topic_id, partition)
        for topic_id, found in member.revoking.items()
        for partition in found
        if partition in goal.target.get(topic_id, ())
    ]
    if not returned or result.state is MemberState.UNREVOKED_PARTITIONS:
        return result
    return replace(result, state=MemberState.UNRELEASED_PARTITIONS)


def gives_what_others_hold(patch: Patch) -> None:
    patch.setattr(ConsumerGroup, "partition_epoch", lambda self, topic_id, partition: NOBODY)


@replaces(progress, "owns_any")
def takes_silence_for_revocation(owns: Any, owned: Any, held: Any) -> bool:
    """A heartbeat that does not say what the member owns counts as if it owned nothing more."""
    return owned is not None and owns(owned, held)


@replaces(progress, "_moved")
def moves_on_before_revocation(
    moved: Any, member: Member, goal_state: MemberState, epoch: int, assigned: Any, revoking: Any
) -> Member:
    """A member gets the epoch of the target while it has partitions to give up."""
    if goal_state is MemberState.UNREVOKED_PARTITIONS:
        epoch += 1
    return moved(member, goal_state, epoch, assigned, revoking)


@replaces(ConsumerGroup, "remove")
def keeps_what_the_dead_held(remove: Any, self: ConsumerGroup, member_id: str) -> Member | None:
    """What a member held that is gone stays with it."""
    member = remove(self, member_id)
    if member is not None:
        self._hold(member)
    return member


@replaces(progress, "compute_target")
def assignor_gives_twice(compute: Any, group: ConsumerGroup, topics: Any, assignor: str) -> Any:
    target = compute(group, topics, assignor)
    fullest = max(target.values(), key=lambda given: sum(map(len, given.values())), default={})
    return dict.fromkeys(target, fullest)


def stable_too_early(patch: Patch) -> None:
    state = ConsumerGroup.state.fget
    assert state is not None

    def planted(self: ConsumerGroup) -> GroupState:
        found = state(self)
        return GroupState.STABLE if found is GroupState.RECONCILING else found

    patch.setattr(ConsumerGroup, "state", property(planted))


@replaces(Store, "append")
def epochs_not_written(append: Any, self: Store, records: list[LogRecord], *more: Any) -> None:
    append(self, [record for record in records if not isinstance(record.key, m.ConsumerGroupMetadataKey)], *more)


@replaces(Progress, "bump")
def group_epoch_goes_back(bump: Any, self: Progress, group: ConsumerGroup, *more: Any) -> None:
    if group.epoch > 3:
        group.epoch -= 2
    bump(self, group, *more)


@replaces(progress, "_moved")
def member_epoch_goes_back(
    moved: Any, member: Member, state: MemberState, epoch: int, assigned: Any, revoking: Any
) -> Member:
    return moved(member, state, max(epoch - 2, 1) if member.epoch > 2 else epoch, assigned, revoking)


@changes_effects(CoordinatorMachine)
def answer_is_ahead(_event: Event, effects: list[Effect]) -> list[Effect]:
    for effect in effects:
        if isinstance(effect, Reply) and isinstance(effect.message, m.ConsumerGroupHeartbeatResponse):
            effect.message.member_epoch += effect.message.member_epoch > 2
    return effects


def accepts_late_commits(patch: Patch) -> None:
    patch.setattr(ConsumerGroup, "check_partition", lambda *_: ErrorCode.NONE)


def silent_members_stay(patch: Patch) -> None:
    patch.setattr(Progress, "expired", lambda *_: None)


def late_members_stay(patch: Patch) -> None:
    patch.setattr(Progress, "_revocation_expired", lambda *_: None)


@replaces(CoordinatorMachine, "handle")
def assignments_not_written(handle: Any, self: CoordinatorMachine, event: Event, now: int) -> list[Effect]:
    effects = handle(self, event, now)
    for effect in effects:
        if isinstance(effect, Append) and len(effect.records) > 1:
            effect.records[:] = [
                record
                for record in effect.records
                if not isinstance(record.key, m.ConsumerGroupCurrentMemberAssignmentKey) or record.value is None
            ]
    return effects


@replaces(CoordinatorMachine, "handle")
def answers_before_the_write(handle: Any, self: CoordinatorMachine, event: Event, now: int) -> list[Effect]:
    return [replace(each, after=0) if isinstance(each, Reply) else each for each in handle(self, event, now)]


@replaces(classic_members, "_upgrade_member")
def upgrade_forgets_what_members_hold(upgrade: Any, shared: Any, group: Any, new: ConsumerGroup, member: Any) -> None:
    """A classic group that becomes one of KIP-848 takes its members for such that hold nothing."""
    upgrade(shared, group, new, member)
    new.put(replace(new.members[member.member_id], assigned={}))


@replaces(ClassicMembers, "sync")
def classic_members_get_their_target(
    sync: Any, self: ClassicMembers, request: Any, message: Any, group: ConsumerGroup
) -> None:
    """SyncGroup returns a member's target, whoever still holds it."""
    member = group.members.get(message.member_id)
    if member is not None:
        held = {topic: dict.fromkeys(found, member.epoch) for topic, found in group.target[member.member_id].items()}
        group.members[member.member_id] = replace(member, assigned=held)
    try:
        sync(self, request, message, group)
    finally:
        if member is not None:
            group.members[member.member_id] = member


def classic_members_hear_of_nothing(patch: Patch) -> None:
    patch.setattr(ClassicMembers, "_has_to_join", lambda *_: False)


@replaces(Store, "append")
def downgrade_is_not_written(append: Any, self: Store, records: list[LogRecord], *more: Any) -> None:
    is_downgrade = isinstance(records[0].key, m.ConsumerGroupCurrentMemberAssignmentKey) and isinstance(
        records[-1].key, m.GroupMetadataKey
    )
    append(self, [] if is_downgrade else records, *more)


# ---- time


@replaces(Progress, "setting")
def sessions_end_too_early(setting: Any, self: Progress, group: ConsumerGroup, name: str, default: int) -> int:
    right: int = setting(self, group, name, default)
    return right * 4 // 5 if name == "consumer.session.timeout.ms" else right


@replaces(Progress, "time_classic")
def classic_members_may_take_longer(
    time: Any, self: Progress, group: ConsumerGroup, member: Member, trigger: Any
) -> Any:
    return time(self, group, replace(member, rebalance_timeout_ms=member.rebalance_timeout_ms * 2), trigger)


@replaces(Progress, "_time_revocation")
def revocations_end_too_early(time: Any, self: Progress, group: ConsumerGroup, member: Member) -> None:
    time(self, group, replace(member, rebalance_timeout_ms=member.rebalance_timeout_ms // 2))


@replaces(Progress, "replace_static")
def static_members_lose_their_target(
    put: Any, self: Progress, group: ConsumerGroup, old: Member, member: Member, records: Any
) -> None:
    put(self, group, old, member, records)
    group.target[member.member_id] = {}


def patterns_are_not_resolved_again(patch: Patch) -> None:
    patch.setattr(Progress, "_has_to_resolve", lambda self, group: not group.regexes)


def patterns_are_resolved_too_often(patch: Patch) -> None:
    patch.setattr(progress, "REGEX_REFRESH_MIN_MS", 1_000)


@replaces(machine, "downgraded")
def downgrade_begins_anew(downgraded: Any, *arguments: Any) -> Any:
    """A group that becomes classic has its first generation again."""
    group = downgraded(*arguments)
    group.generation_id = 0
    return group


@replaces(MemberMachine, "_encoded")
def leader_gives_all_to_all(encoded: Any, self: MemberMachine, assignments: Any) -> Any:
    everything = MemberAssignment({topic: list(range(count)) for topic, count in self._partition_counts.items()})
    return encoded(self, dict.fromkeys(assignments, everything))


@changes_effects(CoordinatorMachine)
def answers_twice(event: Event, effects: list[Effect]) -> list[Effect]:
    """A JoinGroup that was parked is answered, and answered again."""
    joins = [each for each in effects if isinstance(each, Reply) and isinstance(each.message, m.JoinGroupResponse)]
    return [*effects, *joins]


@replaces(CoordinatorMachine, "_maybe_downgrade")
def never_downgrades(downgrade: Any, self: CoordinatorMachine, group: ConsumerGroup, leaving: Any) -> bool:
    """A group that loses its last member of KIP-848 is gone, with its classic members."""
    for member in list(group.members.values()):
        if member.classic is not None:
            group.remove(member.member_id)
    return bool(downgrade(self, group, leaving))


BY_SEARCH_OF_CLASSIC = [
    (downgrade_begins_anew, "ConversionsKeepEpochs", 1),
    (leader_gives_all_to_all, "one owner", 2),
    (answers_twice, "answered once", 2),
    (never_downgrades, "log is complete", 1),
]
"""What the search finds with two members, so many of them classic, and one departure."""

BY_SEARCH = [
    (kafka_16147, "ValidPartitionEpoch"),
    (kafka_19449, "WaitsForOthersOnly"),
    (gives_what_others_hold, "ValidPartitionEpoch"),
    (takes_silence_for_revocation, "NoDoubleClientAssignment|ValidMemberEpoch"),
    (moves_on_before_revocation, "ValidMemberEpoch|GcSideMemberEpochIsMonotonic"),
    (keeps_what_the_dead_held, "WaitsForOthersOnly"),
    (assignor_gives_twice, "LegalTargetAssignment"),
    (stable_too_early, "ValidStableGroupState"),
    (group_epoch_goes_back, "GroupEpochIsMonotonic"),
    (member_epoch_goes_back, "GcSideMemberEpochIsMonotonic"),
    (answer_is_ahead, "ClientSideMemberEpochIsMonotonic"),
    (silent_members_stay, "EventuallyConverges"),
    (assignments_not_written, "log is complete"),
]
"""What the search finds with two members and one perturbation."""

BY_SEEDS = [
    (kafka_16147, "ValidPartitionEpoch"),
    (kafka_19449, "WaitsForOthersOnly"),
    (gives_what_others_hold, "ValidPartitionEpoch"),
    (takes_silence_for_revocation, "NoDoubleClientAssignment|ValidMemberEpoch"),
    (epochs_not_written, "log is complete"),
    (accepts_late_commits, "fenced"),
    (silent_members_stay, "silence is timed"),
    (late_members_stay, "revocation is timed"),
    (assignments_not_written, "log is complete"),
    (answers_before_the_write, "durable first"),
    (upgrade_forgets_what_members_hold, "ValidStableGroupState|NoDoubleClientAssignment"),
    (classic_members_get_their_target, "one owner"),
    (classic_members_hear_of_nothing, "heard"),
    (downgrade_is_not_written, "log is complete"),
    (sessions_end_too_early, "silence is timed"),
    (classic_members_may_take_longer, "silence is timed"),
    (revocations_end_too_early, "silence is timed"),
    (static_members_lose_their_target, "TargetOfEpoch"),
    (patterns_are_not_resolved_again, "patterns are fresh"),
    (patterns_are_resolved_too_often, "patterns are fresh"),
]
"""What random runs find."""
