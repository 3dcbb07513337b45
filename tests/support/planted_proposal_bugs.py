"""Bugs of the machines of the proposal's variants, planted one by one, and the law of the simulation each breaks."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.worlds.proposal import all_members, member, proposal_coordinator


def keeps_its_partitions(patch: pytest.MonkeyPatch) -> None:
    """A member joins without giving up what it has."""

    def join(self: member.Member) -> None:
        owned = self.owned
        correct(self)
        self.owned = owned

    correct = member.Member._join
    patch.setattr(member.Member, "_join", join)


def ignores_hashes(patch: pytest.MonkeyPatch) -> None:
    """Members do not compare what they see."""
    correct = all_members.AllMembersMember.agreed

    def agreed(self: all_members.AllMembersMember, response: Any, **_: Any) -> Any:
        return correct(self, response, needs_agreement=False)

    patch.setattr(all_members.AllMembersMember, "agreed", agreed)


def chooses_another_sub_group(patch: pytest.MonkeyPatch) -> None:
    """Members do not choose the same sub-group."""
    turns = itertools.cycle([min, max])
    patch.setattr(all_members, "largest", lambda hashes: next(turns)(hashes))


def does_not_wait(patch: pytest.MonkeyPatch) -> None:
    """A generation begins although members of the last one have not joined."""
    patch.setattr(
        proposal_coordinator.Coordinator, "_all_wait", lambda self: any(each.waiting for each in self.members.values())
    )


def keeps_errors(patch: pytest.MonkeyPatch) -> None:
    """A member takes a refused heartbeat for an accepted one."""
    correct = member.Member._heard

    def heard(self: member.Member, error: int, sent_at: int) -> None:
        correct(self, ErrorCode.NONE if error == ErrorCode.REBALANCE_IN_PROGRESS else error, sent_at)

    patch.setattr(member.Member, "_heard", heard)


PLANTED = (
    (keeps_its_partitions, "one owner", "single_assignor"),
    (ignores_hashes, "one owner", "all_members"),
    (chooses_another_sub_group, "one owner", "subscription_hash"),
    (does_not_wait, "one owner", "all_members"),
    (keeps_errors, "settles", "all_members"),
)
"""Each with its law, and the variant in which it shows."""
