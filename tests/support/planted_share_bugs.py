"""Bugs of share partitions, planted one by one, and the laws of the search that each breaks."""

from __future__ import annotations

from typing import Any

from kcoord_wire.coordinator.share import share_partition
from kcoord_wire.coordinator.share.share_partition import ACCEPT, Move, SharePartition, State, StateRange
from tests.support.planting import Patch, replaces


@replaces(share_partition, "_check_owner")
def others_may_acknowledge(check: Any, delivery: Any, member_id: str, not_acquired: str, not_owner: str) -> None:
    check(delivery, delivery.member_id, not_acquired, not_owner)


@replaces(share_partition._Delivery, "acquire")
def counts_twice(acquire: Any, self: Any, member_id: str, until: int) -> None:
    acquire(self, member_id, until)
    self.count += self.count > 1


@replaces(share_partition._Delivery, "release")
def has_no_limit(release: Any, self: Any, limit: int) -> None:
    """A record is delivered until somebody accepts it."""
    release(self, limit + 1)


@replaces(SharePartition, "acknowledge")
def renews_nothing(acknowledge: Any, self: SharePartition, member_id: str, asked: Any, now: int) -> bool:
    """A renewed lock runs out with the first one."""
    is_changed: bool = acknowledge(self, member_id, asked, now)
    for _, _, delivery in self._parts():
        delivery.until = min(delivery.until, self.deadline or now)
    return is_changed


@replaces(SharePartition, "snapshot")
def forgets_what_was_rejected(snapshot: Any, self: SharePartition) -> list[StateRange]:
    return [each for each in snapshot(self) if each.state is not State.ARCHIVED]


@replaces(SharePartition, "expire")
def locks_never_run_out(expire: Any, self: SharePartition, now: int) -> bool:
    return False


def delivers_what_was_accepted(patch: Patch) -> None:
    patch.setitem(share_partition._MOVES, ACCEPT, Move.RELEASE)


def never_moves_on(patch: Patch) -> None:
    """What is available again is not fetched again."""
    patch.setattr(SharePartition, "next_offset", property(lambda self: self.end_offset))


BY_SEARCH = [
    (others_may_acknowledge, "holder acknowledges"),
    (counts_twice, "deliveries"),
    (has_no_limit, "deliveries"),
    (delivers_what_was_accepted, "done stays done"),
    (renews_nothing, "one holder"),
    (forgets_what_was_rejected, "log is complete"),
    (locks_never_run_out, "holder acknowledges"),
    (never_moves_on, "EveryRecordEnds"),
]
