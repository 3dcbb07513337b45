"""Bugs of the rewrite's coordinator and member, planted one by one, and the law of the simulation each breaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

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
from tests.support.planting import Patch, Plant, replaces

# ---- the coordinator


@replaces(Membership, "heartbeat")
def sessions_end_too_early(correct: Any, self: Membership, *request: Any) -> None:
    """A heartbeat does not begin a session anew."""
    restart, self._restart_timer = self._restart_timer, lambda group, member: None  # type: ignore[method-assign]
    correct(self, *request)
    self._restart_timer = restart  # type: ignore[method-assign]


@replaces(Group, "assignment")
def assigns_a_partition_twice(correct: Any, self: Group) -> Assignment:
    """Every member gets what the first one gets."""
    assignment = correct(self)
    return dict.fromkeys(assignment, next(iter(assignment.values()), {}))


@replaces(Membership, "_try_to_complete")
def does_not_wait_for_all_members(correct: Any, self: Membership, group: Group) -> None:
    """A generation begins when one member has joined."""
    absent = [member for member in group.members.values() if not member.has_joined]
    if group.state is GroupState.PREPARING and len(absent) < len(group.members):
        for member in absent:
            group.set_joined(member, True)
    correct(self, group)


@replaces(Group, "record")
def keeps_the_generation(correct: Any, self: Group, partitions: Mapping[str, int]) -> GroupMetadata:
    """A rebalance does not increment the generation."""
    return replace(correct(self, partitions), generation=max(self.generation, 1))


@replaces(Shard, "guarded")
def writes_without_the_epoch(_correct: Any, self: Shard, *writes: Write) -> Multi:
    """A broker whose shard has moved to another writes until it has read that."""
    return Multi((Check(shard_path(self.number), ANY_VERSION), *map(_unconditional, writes)))


def _unconditional(write: Write) -> Write:
    return SetData(write.path, write.data) if isinstance(write, SetData) else write


def takes_commits_of_any_generation(patch: Patch) -> None:
    """Generation and id of a commit are not compared; a member commits although it has been declared dead."""

    @replaces(RewriteMember, "_refused")
    def commits(refused: Any, self: RewriteMember, error: int, now: int) -> None:
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
    commits(patch)


# ---- the member


@replaces(RewriteMember, "_rejoin")
def joins_while_it_fetches(_correct: Any, self: RewriteMember) -> None:
    """A member does not stop before JoinGroup."""
    self.phase = MemberPhase.JOINING


@replaces(RewriteMember, "_heard")
def ignores_a_new_generation(correct: Any, self: RewriteMember, error: int, sent_at: int, now: int) -> None:
    """A member takes a refused heartbeat for an accepted one."""
    correct(self, RewriteError.NONE if error == RewriteError.ILLEGAL_GENERATION else error, sent_at, now)


@replaces(RewriteMember, "_uncommitted")
def commits_ahead(correct: Any, self: RewriteMember) -> dict[Any, int]:
    """A commit has the offset after the next one."""
    return {partition: offset + 6 for partition, offset in correct(self).items()}


@replaces(RewriteMember, "_fetch")
def begins_after_the_committed_offset(correct: Any, self: RewriteMember, now: int) -> None:
    """A member leaves records out."""
    correct(self, now)
    last = self._effects[-1]
    assert isinstance(last, StartFetching)
    last.positions = {partition: offset + 50 for partition, offset in last.positions.items()}


@replaces(RewriteMember, "_refused")
def never_finds_another_coordinator(correct: Any, self: RewriteMember, error: int, now: int) -> None:
    """NOT_COORDINATOR_FOR_GROUP is taken for a reason to try again at the same broker."""
    is_lost = error == RewriteError.NOT_COORDINATOR_FOR_GROUP
    correct(self, RewriteError.COORDINATOR_STARTUP_NOT_COMPLETE if is_lost else error, now)


@replaces(RewriteMember, "_heard")
def fetches_after_its_session(correct: Any, self: RewriteMember, error: int, sent_at: int, now: int) -> None:
    """With `stops_with_session`: the end of the session is taken to be a minute later."""
    correct(self, error, sent_at + 60_000, now)


class Planted(NamedTuple):
    """A bug.

    :ivar law: that it breaks
    :ivar rows: of the actions that bring it out
    """

    law: str
    plant: Plant
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
    Planted("sessions", sessions_end_too_early),
    Planted("no overlap", fetches_after_its_session, _MEMBERS_DIE),
)
