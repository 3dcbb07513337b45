"""Bugs of the coordinator, its log and its assignors, planted one by one, and the law of the simulation each breaks.

A check that never fails checks nothing: `PLANTED` has at least one bug for every law.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from kcoord_wire import messages as m
from kcoord_wire.assignors import ASSIGNORS, Assignment, group_partitions, list_partitions
from kcoord_wire.consumer.classic_member import MemberMachine
from kcoord_wire.consumer.member_events import Arrived, Assigned, Left
from kcoord_wire.coordinator.core import admin, machine, offsets
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.events import (
    Append,
    Effect,
    EffectCollector,
    Event,
    LogRecord,
    Producer,
    Reply,
    Request,
)
from kcoord_wire.coordinator.core.groups import Group, Member, Move, State
from kcoord_wire.coordinator.core.machine import GroupMachine
from kcoord_wire.coordinator.host import Runtime
from kcoord_wire.coordinator.log.store import Store
from kcoord_wire.kernel.virtual.disk import VirtualDisk, VirtualFile
from kcoord_wire.kernel.virtual.scripts import Do, Script
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.worlds.group import Cluster, MemberOptions
from kcoord_wire.worlds.group import members as group_members
from tests.support.planting import Patch, changes_effects, replaces


@replaces(GroupMachine, "_complete_join")
def generation_not_increased(complete: Any, self: GroupMachine, group: Group) -> None:
    if group.generation_id:
        group.generation_id -= 1
    complete(self, group)


@replaces(Store, "append")
def generation_not_written(
    append: Any, self: Store, records: list[LogRecord], now: int, producer: Producer | None = None
) -> None:
    kept = [record for record in records if not isinstance(record.key, m.GroupMetadataKey)]
    append(self, kept, now, producer)


def sync_skipped_by_the_store(patch: Patch) -> None:
    patch.setattr(VirtualFile, "sync", lambda self: None)


def sync_skipped_by_the_disk(patch: Patch) -> None:
    patch.setattr(VirtualFile, "sync", lambda self: None)
    patch.setattr(VirtualDisk, "unsynced", set())


@replaces(EffectCollector, "reply")
def durable_too_early(reply: Any, self: EffectCollector, request: Request, message: object, after: int = 0) -> None:
    reply(self, request, message, 0)


@replaces(Runtime, "submit")
def sent_before_the_write(submit: Any, self: Runtime[Any], event: Event, now: int) -> None:
    self.durable = self.machine.appended + 5
    submit(self, event, now)


@changes_effects(GroupMachine)
def answered_twice(event: Event, effects: list[Effect]) -> list[Effect]:
    return effects * 2 if isinstance(event, Request) and isinstance(event.message, m.HeartbeatRequest) else effects


@changes_effects(GroupMachine)
def not_answered(event: Event, effects: list[Effect]) -> list[Effect]:
    if isinstance(event, Request) and event.token % 50 == 0:
        return [effect for effect in effects if not isinstance(effect, Reply) or effect.token != event.token]
    return effects


@replaces(GroupMachine, "_join_response")
def two_leaders(respond: Any, self: GroupMachine, group: Group, member: Member, *, members: bool) -> Any:
    answer = respond(self, group, member, members=True)
    answer.leader = answer.member_id
    return answer


@replaces(GroupMachine, "handle")
def old_generation_commits(handle: Any, self: GroupMachine, event: Event, now: int) -> list[Effect]:
    if isinstance(event, Request) and isinstance(event.message, m.OffsetCommitRequest):
        group = self.groups.get(event.message.group_id)
        if group is not None and event.message.generation_id_or_member_epoch >= 0:
            message = replace(event.message, generation_id_or_member_epoch=group.generation_id)
            event = replace(event, message=message)
    return handle(self, event, now)


@replaces(GroupMachine, "_answer_sync")
def one_assignment_for_all(answer: Any, self: GroupMachine, group: Group, member: Member, error: ErrorCode) -> None:
    member.assignment = max((other.assignment for other in group.members.values()), key=len)
    answer(self, group, member, error)


def assignor_gives_twice(patch: Patch) -> None:
    def planted(counts: Any, members: Any, _racks: Any) -> Assignment:
        assignment = ASSIGNORS["roundrobin"].assign(counts, members)
        first = min(each for partitions in assignment.values() for each in list_partitions(partitions))
        return {
            member_id: group_partitions([*list_partitions(partitions), first])
            for member_id, partitions in assignment.items()
        }

    patch.setattr(
        group_members, "ASSIGNORS", {name: replace(assignor, assign=planted) for name, assignor in ASSIGNORS.items()}
    )


@changes_effects(MemberMachine)
def applications_are_not_given_all(_event: Event, effects: list[Any]) -> list[Any]:
    return [replace(each, partitions=frozenset()) if isinstance(each, Assigned) else each for each in effects]


@changes_effects(MemberMachine)
def leaves_unasked(event: Any, effects: list[Any]) -> list[Any]:
    return [*effects, Left()] if isinstance(event, Arrived) else effects


def assignments_are_not_taken(patch: Patch) -> None:
    patch.setattr(MemberMachine, "_take_assignment", lambda self, assignment: None)


def expired_members_stay(patch: Patch) -> None:
    patch.setattr(GroupMachine, "_session_expired", lambda self, group, member: None)


@replaces(Group, "move")
def stable_too_early(move: Any, self: Group, what: Move, now: int) -> None:
    move(self, what, now)
    if what is Move.COMPLETE_JOIN:
        self.state = State.STABLE


def illegal_move(patch: Patch) -> None:
    patch.setattr(Group, "end_rebalance", lambda self, effects, outcome: self.move(Move.ASSIGN, effects.now))


@replaces(GroupMachine, "handle")
def commit_not_written(handle: Any, self: GroupMachine, event: Event, now: int) -> list[Effect]:
    effects = handle(self, event, now)
    for effect in effects:
        if isinstance(effect, Append) and len(effect.records) > 1:
            del effect.records[0]
    return effects


@replaces(Store, "recover")
def commit_lost_by_the_store(recover: Any, self: Store) -> list[LogRecord]:
    records = recover(self)
    commits = [record for record in records if isinstance(record.key, m.OffsetCommitKey)]
    return [record for record in records if record is not (commits or [None])[-1]]


@changes_effects(GroupMachine)
def fetch_shows_less(_event: Event, effects: list[Effect]) -> list[Effect]:
    for effect in effects:
        if isinstance(effect, Reply) and isinstance(effect.message, m.OffsetFetchResponse):
            for group in [*effect.message.groups, effect.message]:
                for topic in group.topics:
                    for partition in topic.partitions:
                        partition.committed_offset = -1
    return effects


# ---- answers and records


@replaces(Group, "check_member")
def any_generation_will_do(
    check: Any, self: Group, member_id: str, group_instance_id: str | None, generation_id: int | None = None
) -> ErrorCode:
    found: ErrorCode = check(self, member_id, group_instance_id)
    return found


@replaces(offsets, "_committed")
def long_texts_are_committed(committed: Any, item: Any, config: GroupConfig, at: int, expires: int = -1) -> Any:
    return committed(item, replace(config, offset_metadata_max_bytes=1 << 20), at, expires)


@replaces(admin, "_described")
def instances_are_not_described(described: Any, group: Group) -> Any:
    found = described(group)
    for member in () if found is None else found.members:
        member.group_instance_id = None
    return found


@changes_effects(GroupMachine)
def timeouts_are_not_written(_event: Event, effects: list[Effect]) -> list[Effect]:
    for effect in effects:
        for key, value in effect.records if isinstance(effect, Append) else ():
            for member in value.members if isinstance(key, m.GroupMetadataKey) and value is not None else ():
                member.session_timeout = 45_000
    return effects


# ---- time


@replaces(GroupMachine, "_keep_alive")
def sessions_end_too_early(
    keep: Any, self: GroupMachine, group: Group, member: Member, timeout_ms: int | None = None
) -> None:
    keep(self, group, member, (member.session_timeout_ms if timeout_ms is None else timeout_ms) * 4 // 5)


@replaces(GroupMachine, "_keep_alive")
def sessions_end_too_late(
    keep: Any, self: GroupMachine, group: Group, member: Member, timeout_ms: int | None = None
) -> None:
    keep(self, group, member, (member.session_timeout_ms if timeout_ms is None else timeout_ms) * 6 // 5)


@replaces(GroupMachine, "_session_expired")
def parked_joins_do_not_count(expired: Any, self: GroupMachine, group: Group, member: Member) -> None:
    join, is_new = member.join, member.is_new
    if join is not None and not is_new:
        member.is_new = True  # which is removed with a parked request
    expired(self, group, member)


@replaces(GroupMachine, "_session_expired")
def parked_syncs_do_not_count(expired: Any, self: GroupMachine, group: Group, member: Member) -> None:
    if member.sync is not None:
        member.is_new = True
    expired(self, group, member)


@replaces(GroupMachine, "_update")
def new_timeouts_are_ignored(_update: Any, *_: Any) -> None:
    """What a static member asks for that has come back."""


def _with_rebalance_timeout(patch: Patch, more_ms: int) -> None:
    right = Group.rebalance_timeout_ms.fget
    assert right is not None
    patch.setattr(Group, "rebalance_timeout_ms", property(lambda self: right(self) + more_ms))


def rebalances_end_too_early(patch: Patch) -> None:
    _with_rebalance_timeout(patch, -2_000)


def rebalances_end_too_late(patch: Patch) -> None:
    _with_rebalance_timeout(patch, 2_000)


def late_syncs_do_not_matter(patch: Patch) -> None:
    patch.setattr(GroupMachine, "_sync_expired", lambda self, group: None)


def heartbeats_hide_rebalances(patch: Patch) -> None:
    patch.setattr(machine, "_HEARTBEAT", {**machine._HEARTBEAT, State.PREPARING: ErrorCode.NONE})


@replaces(offsets, "expire")
def offsets_expire_too_early(expire: Any, effects: Any, groups: Any, pending: Any, retention_ms: int) -> None:
    expire(effects, groups, pending, retention_ms // 2)


def offsets_never_expire(patch: Patch) -> None:
    patch.setattr(offsets, "expire", lambda *_: None)


def offsets_in_use_expire(patch: Patch) -> None:
    patch.setattr(Group, "is_subscribed", lambda self, topic: False)


def _all_leave(seed: int) -> Script[Cluster]:
    """A group is left by its members, and time passes: random runs seldom wait for long enough."""
    config = GroupConfig(offsets_retention_ms=5_000, offsets_retention_check_interval_ms=3_000)
    actions = [Do(0, "member", "m1", MemberOptions(commit_ms=500)), Do(9_000, "leave", "m1"), Do(40_000, "leave", "m1")]
    return Script(Cluster, seed, {"config": config}, actions)


FOUND: Mapping[str, Callable[[int], Script[Cluster]]] = {"offsets_never_expire": _all_leave}
"""Scripts for what random ones seldom bring about."""

PLANTED = [
    (generation_not_increased, "generation"),
    (generation_not_written, "generation"),
    (sync_skipped_by_the_store, "durable first"),
    (sync_skipped_by_the_disk, "commits|generation|never fails"),
    (durable_too_early, "durable first"),
    (sent_before_the_write, "durable first"),
    (answered_twice, "answered once"),
    (not_answered, "answered once"),
    (two_leaders, "one leader"),
    (old_generation_commits, "fenced"),
    (one_assignment_for_all, "one owner"),
    (assignor_gives_twice, "one owner"),
    (assignments_are_not_taken, "settles"),
    (applications_are_not_given_all, "given"),
    (leaves_unasked, "stays"),
    (expired_members_stay, "sessions"),
    (stable_too_early, "transitions"),
    (illegal_move, "transitions"),
    (commit_not_written, "commits"),
    (commit_lost_by_the_store, "commits"),
    (fetch_shows_less, "commits"),
    (any_generation_will_do, "answers"),
    (long_texts_are_committed, "answers"),
    (instances_are_not_described, "described"),
    (timeouts_are_not_written, "log is complete"),
    (sessions_end_too_early, "sessions|rebalances are timed"),
    (sessions_end_too_late, "sessions"),
    (parked_joins_do_not_count, "sessions"),
    (parked_syncs_do_not_count, "sessions"),
    (new_timeouts_are_ignored, "sessions|rebalances are timed"),
    (rebalances_end_too_early, "rebalances are timed"),
    (rebalances_end_too_late, "rebalances are timed"),
    (late_syncs_do_not_matter, "rebalances are timed"),
    (heartbeats_hide_rebalances, "heard"),
    (offsets_expire_too_early, "retention"),
    (offsets_never_expire, "retention"),
    (offsets_in_use_expire, "retention"),
]
