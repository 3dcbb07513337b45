"""Bugs of the rewrite's coordinator and member, planted one by one, and the law of the simulation each breaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import pytest

from kcoord_wire.assignors import Assignment
from kcoord_wire.central.rewrite import membership
from kcoord_wire.central.rewrite.events import RewriteError, StartFetching
from kcoord_wire.central.rewrite.group import Group, GroupState, Shard
from kcoord_wire.central.rewrite.layout import GroupMetadata, shard_path
from kcoord_wire.central.rewrite.member import MemberPhase, RewriteMember
from kcoord_wire.central.rewrite.membership import Membership
from kcoord_wire.kernel.virtual.scripts import Row, with_odds
from kcoord_wire.messages import OffsetCommitRequest
from kcoord_wire.worlds.central.rewrite_world import ROWS
from kcoord_wire.zookeeper.requests import ANY_VERSION, Check, Multi, SetData, Write

Patch = pytest.MonkeyPatch


# ---- the coordinator


def assigns_a_partition_twice(patch: Patch) -> None:
    """Every member gets what the first one gets."""
    correct = Group.assignment

    def planted(self: Group) -> Assignment:
        assignment = correct(self)
        first = next(iter(assignment.values()), {})
        return dict.fromkeys(assignment, first)

    patch.setattr(Group, "assignment", planted)


def does_not_wait_for_all_members(patch: Patch) -> None:
    """A generation begins when one member has joined."""
    correct = Membership._try_to_complete

    def planted(self: Membership, group: Group) -> None:
        absent = [member for member in group.members.values() if not member.has_joined]
        if group.state is GroupState.PREPARING and len(absent) < len(group.members):
            for member in absent:
                group.set_joined(member, True)
        correct(self, group)

    patch.setattr(Membership, "_try_to_complete", planted)


def keeps_the_generation(patch: Patch) -> None:
    """A rebalance does not increment the generation."""
    correct = Group.record

    def planted(self: Group, partitions: Mapping[str, int]) -> GroupMetadata:
        record = correct(self, partitions)
        return replace(record, generation=max(self.generation, 1))

    patch.setattr(Group, "record", planted)


def writes_without_the_epoch(patch: Patch) -> None:
    """A broker whose shard has moved to another writes until it has read that."""

    def planted(self: Shard, *writes: Write) -> Multi:
        return Multi((Check(shard_path(self.number), ANY_VERSION), *map(_unconditional, writes)))

    patch.setattr(Shard, "guarded", planted)


def _unconditional(write: Write) -> Write:
    return SetData(write.path, write.data) if isinstance(write, SetData) else write


def takes_commits_of_any_generation(patch: Patch) -> None:
    """Generation and id of a commit are not compared; a member commits although it has been declared dead."""
    refused = RewriteMember._refused

    def commits(self: RewriteMember, error: int, now: int) -> None:
        is_dead = error == RewriteError.UNKNOWN_CONSUMER_ID
        refused(self, RewriteError.ILLEGAL_GENERATION if is_dead else error, now)

    def planted(self: membership.Offsets, shard: Shard, connection: int, request: OffsetCommitRequest) -> None:
        group = shard.groups.get(request.group_id)
        if group is None:
            self._outbox.refuse(connection, RewriteError.UNKNOWN_CONSUMER_ID)
        else:
            self._outbox.start(self._write(shard, group, connection, request))

    patch.setattr(membership.Offsets, "commit", planted)
    patch.setattr(membership, "_is_current", lambda group, request: True)
    patch.setattr(RewriteMember, "_refused", commits)


# ---- the member


def joins_while_it_fetches(patch: Patch) -> None:
    """A member does not stop before JoinGroup."""

    def planted(self: RewriteMember) -> None:
        self.phase = MemberPhase.JOINING

    patch.setattr(RewriteMember, "_rejoin", planted)


def ignores_a_new_generation(patch: Patch) -> None:
    """A member takes a refused heartbeat for an accepted one."""
    correct = RewriteMember._heard

    def planted(self: RewriteMember, error: int, sent_at: int, now: int) -> None:
        correct(self, RewriteError.NONE if error == RewriteError.ILLEGAL_GENERATION else error, sent_at, now)

    patch.setattr(RewriteMember, "_heard", planted)


def commits_ahead(patch: Patch) -> None:
    """A commit has the offset after the next one."""
    correct = RewriteMember._uncommitted

    def planted(self: RewriteMember) -> dict[Any, int]:
        return {partition: offset + 6 for partition, offset in correct(self).items()}

    patch.setattr(RewriteMember, "_uncommitted", planted)


def begins_after_the_committed_offset(patch: Patch) -> None:
    """A member leaves records out."""
    correct = RewriteMember._fetch

    def planted(self: RewriteMember, now: int) -> None:
        correct(self, now)
        last = self._effects[-1]
        assert isinstance(last, StartFetching)
        last.positions = {partition: offset + 50 for partition, offset in last.positions.items()}

    patch.setattr(RewriteMember, "_fetch", planted)


def never_finds_another_coordinator(patch: Patch) -> None:
    """NOT_COORDINATOR_FOR_GROUP is taken for a reason to try again at the same broker."""
    correct = RewriteMember._refused

    def planted(self: RewriteMember, error: int, now: int) -> None:
        is_lost = error == RewriteError.NOT_COORDINATOR_FOR_GROUP
        correct(self, RewriteError.COORDINATOR_STARTUP_NOT_COMPLETE if is_lost else error, now)

    patch.setattr(RewriteMember, "_refused", planted)


def fetches_after_its_session(patch: Patch) -> None:
    """With `stops_with_session`: the end of the session is taken to be a minute later."""
    correct = RewriteMember._heard

    def planted(self: RewriteMember, error: int, sent_at: int, now: int) -> None:
        correct(self, error, sent_at + 60_000, now)

    patch.setattr(RewriteMember, "_heard", planted)


class Planted(NamedTuple):
    """A bug.

    :ivar law: that it breaks
    :ivar rows: of the actions that bring it out
    """

    law: str
    plant: Callable[[Patch], None]
    rows: Sequence[Row] = ROWS


_MEMBERS_DIE: Final = with_odds(ROWS, pause=40, member=40, cut=20)
PLANTED: Final = (
    Planted("one owner", assigns_a_partition_twice),
    Planted("members only", does_not_wait_for_all_members),
    Planted("generations", keeps_the_generation),
    Planted("one coordinator", writes_without_the_epoch),
    Planted("offsets", takes_commits_of_any_generation, _MEMBERS_DIE),
    Planted("join", joins_while_it_fetches),
    Planted("settles", ignores_a_new_generation),
    Planted("offsets", commits_ahead),
    Planted("no gap", begins_after_the_committed_offset),
    Planted("settles", never_finds_another_coordinator),
    Planted("no overlap", fetches_after_its_session, _MEMBERS_DIE),
)
