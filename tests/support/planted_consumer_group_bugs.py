"""Bugs of the coordinator of KIP-848, planted one by one, and the laws of the simulation that each breaks.

Two of them were Kafka's: KAFKA-16147 (a partition that returns to its owner before it was given up loses its epoch, and
goes to a second member) and KAFKA-19449 (a member waits for a partition that only itself was to give up).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kcoord_wire import messages as m
from kcoord_wire.coordinator.consumer_groups import classic_members, progress
from kcoord_wire.coordinator.consumer_groups.classic_members import ClassicMembers
from kcoord_wire.coordinator.consumer_groups.group import NOBODY, ConsumerGroup, GroupState, Member, MemberState
from kcoord_wire.coordinator.consumer_groups.machine import CoordinatorMachine
from kcoord_wire.coordinator.consumer_groups.progress import Goal, Progress
from kcoord_wire.coordinator.core.events import Append, Effect, Event, LogRecord, Reply
from kcoord_wire.coordinator.log.store import Store
from kcoord_wire.protocol.error_codes import ErrorCode

Patch = pytest.MonkeyPatch


def kafka_16147(patch: Patch) -> None:
    """What a member no longer has to give up is forgotten after what it holds is noted, even where it is the same."""
    put = ConsumerGroup.put

    def planted(self: ConsumerGroup, member: Member) -> None:
        old = self.members.get(member.member_id)
        put(self, member)
        for topic_id, partitions in {} if old is None else old.revoking.items():
            for partition in partitions.keys() - member.revoking.get(topic_id, {}).keys():
                self._epochs.get(topic_id, {}).pop(partition, None)

    patch.setattr(ConsumerGroup, "put", planted)


def kafka_19449(patch: Patch) -> None:
    """A partition that the member itself is to give up counts as held by another."""
    step = progress._step

    def planted(member: Member, goal: Goal, owned: Any) -> Member:
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

    patch.setattr(progress, "_step", planted)


def gives_what_others_hold(patch: Patch) -> None:
    patch.setattr(ConsumerGroup, "partition_epoch", lambda self, topic_id, partition: NOBODY)


def takes_silence_for_revocation(patch: Patch) -> None:
    """A heartbeat that does not say what the member owns counts as if it owned nothing more."""
    owns = progress.owns_any
    patch.setattr(progress, "owns_any", lambda owned, held: owned is not None and owns(owned, held))


def moves_on_before_revocation(patch: Patch) -> None:
    """A member gets the epoch of the target while it has partitions to give up."""
    moved = progress._moved

    def planted(member: Member, goal_state: MemberState, epoch: int, assigned: Any, revoking: Any) -> Member:
        if goal_state is MemberState.UNREVOKED_PARTITIONS:
            epoch += 1
        return moved(member, goal_state, epoch, assigned, revoking)

    patch.setattr(progress, "_moved", planted)


def keeps_what_the_dead_held(patch: Patch) -> None:
    """What a member held that is gone stays with it."""
    remove = ConsumerGroup.remove

    def planted(self: ConsumerGroup, member_id: str) -> Member | None:
        member = remove(self, member_id)
        if member is not None:
            self._hold(member)
        return member

    patch.setattr(ConsumerGroup, "remove", planted)


def assignor_gives_twice(patch: Patch) -> None:
    compute = progress.compute_target

    def planted(group: ConsumerGroup, topics: Any, assignor: str) -> Any:
        target = compute(group, topics, assignor)
        fullest = max(target.values(), key=lambda given: sum(map(len, given.values())), default={})
        return dict.fromkeys(target, fullest)

    patch.setattr(progress, "compute_target", planted)


def stable_too_early(patch: Patch) -> None:
    state = ConsumerGroup.state.fget
    assert state is not None

    def planted(self: ConsumerGroup) -> GroupState:
        found = state(self)
        return GroupState.STABLE if found is GroupState.RECONCILING else found

    patch.setattr(ConsumerGroup, "state", property(planted))


def epochs_not_written(patch: Patch) -> None:
    append = Store.append

    def planted(self: Store, records: list[LogRecord], *more: Any) -> None:
        append(self, [record for record in records if not isinstance(record.key, m.ConsumerGroupMetadataKey)], *more)

    patch.setattr(Store, "append", planted)


def group_epoch_goes_back(patch: Patch) -> None:
    bump = Progress.bump

    def planted(self: Progress, group: ConsumerGroup, *more: Any) -> None:
        if group.epoch > 3:
            group.epoch -= 2
        bump(self, group, *more)

    patch.setattr(Progress, "bump", planted)


def member_epoch_goes_back(patch: Patch) -> None:
    moved = progress._moved

    def planted(member: Member, state: MemberState, epoch: int, assigned: Any, revoking: Any) -> Member:
        return moved(member, state, max(epoch - 2, 1) if member.epoch > 2 else epoch, assigned, revoking)

    patch.setattr(progress, "_moved", planted)


def _answers(change: Callable[[m.ConsumerGroupHeartbeatResponse], None]) -> Callable[[Patch], None]:
    def plant(patch: Patch) -> None:
        handle = CoordinatorMachine.handle

        def planted(self: CoordinatorMachine, event: Event, now: int) -> list[Effect]:
            effects = handle(self, event, now)
            for effect in effects:
                if isinstance(effect, Reply) and isinstance(effect.message, m.ConsumerGroupHeartbeatResponse):
                    change(effect.message)
            return effects

        patch.setattr(CoordinatorMachine, "handle", planted)

    return plant


def _is_ahead(answer: m.ConsumerGroupHeartbeatResponse) -> None:
    if answer.member_epoch > 2:
        answer.member_epoch += 1


def accepts_late_commits(patch: Patch) -> None:
    patch.setattr(ConsumerGroup, "check_partition", lambda *_: ErrorCode.NONE)


def silent_members_stay(patch: Patch) -> None:
    patch.setattr(Progress, "_expired", lambda *_: None)


def late_members_stay(patch: Patch) -> None:
    patch.setattr(Progress, "_revocation_expired", lambda *_: None)


def assignments_not_written(patch: Patch) -> None:
    handle = CoordinatorMachine.handle

    def planted(self: CoordinatorMachine, event: Event, now: int) -> list[Effect]:
        effects = handle(self, event, now)
        for effect in effects:
            if isinstance(effect, Append) and len(effect.records) > 1:
                effect.records[:] = [
                    record
                    for record in effect.records
                    if not isinstance(record.key, m.ConsumerGroupCurrentMemberAssignmentKey) or record.value is None
                ]
        return effects

    patch.setattr(CoordinatorMachine, "handle", planted)


def answers_before_the_write(patch: Patch) -> None:
    handle = CoordinatorMachine.handle

    def planted(self: CoordinatorMachine, event: Event, now: int) -> list[Effect]:
        return [replace(each, after=0) if isinstance(each, Reply) else each for each in handle(self, event, now)]

    patch.setattr(CoordinatorMachine, "handle", planted)


def upgrade_forgets_what_members_hold(patch: Patch) -> None:
    """A classic group that becomes one of KIP-848 takes its members for such that hold nothing."""
    upgrade = classic_members._upgrade_member

    def planted(shared: Any, group: Any, new: ConsumerGroup, member: Any) -> None:
        upgrade(shared, group, new, member)
        new.put(replace(new.members[member.member_id], assigned={}))

    patch.setattr(classic_members, "_upgrade_member", planted)


def classic_members_get_their_target(patch: Patch) -> None:
    """SyncGroup returns a member's target, whoever still holds it."""

    def planted(self: ClassicMembers, request: Any, message: Any, group: ConsumerGroup) -> None:
        member = group.members.get(message.member_id)
        if member is not None:
            held = {
                topic: dict.fromkeys(found, member.epoch) for topic, found in group.target[member.member_id].items()
            }
            group.members[member.member_id] = replace(member, assigned=held)
        sync(self, request, message, group)
        if member is not None:
            group.members[member.member_id] = member

    sync = ClassicMembers.sync
    patch.setattr(ClassicMembers, "sync", planted)


def classic_members_hear_of_nothing(patch: Patch) -> None:
    patch.setattr(ClassicMembers, "_has_to_join", lambda *_: False)


def downgrade_is_not_written(patch: Patch) -> None:
    append = Store.append

    def planted(self: Store, records: list[LogRecord], *more: Any) -> None:
        is_downgrade = isinstance(records[0].key, m.ConsumerGroupCurrentMemberAssignmentKey) and isinstance(
            records[-1].key, m.GroupMetadataKey
        )
        append(self, [] if is_downgrade else records, *more)

    patch.setattr(Store, "append", planted)


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
    pytest.param(_answers(_is_ahead), "ClientSideMemberEpochIsMonotonic", id="answer_is_ahead"),
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
    (silent_members_stay, "EventuallyConverges"),
    (late_members_stay, "revocation is timed"),
    (assignments_not_written, "log is complete"),
    (answers_before_the_write, "durable first"),
    (upgrade_forgets_what_members_hold, "ValidStableGroupState|NoDoubleClientAssignment"),
    (classic_members_get_their_target, "one owner"),
    (classic_members_hear_of_nothing, "EventuallyConverges"),
    (downgrade_is_not_written, "log is complete"),
]
"""What random runs find."""
