"""Bugs of the machines of the proposal's variants, planted one by one, and the law of the simulation each breaks."""

from __future__ import annotations

import itertools
from typing import Any

from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.worlds.proposal import all_members
from kcoord_wire.worlds.proposal.member import ProposalMember
from kcoord_wire.worlds.proposal.proposal_coordinator import Coordinator
from tests.support.planting import Patch, replaces


@replaces(ProposalMember, "_join")
def keeps_its_partitions(join: Any, self: ProposalMember) -> None:
    """A member joins without giving up what it has."""
    owned = self.owned
    join(self)
    self.owned = owned


@replaces(all_members.AllMembersMember, "agreed")
def ignores_hashes(agreed: Any, self: all_members.AllMembersMember, response: Any, **_: Any) -> Any:
    """Members do not compare what they see."""
    return agreed(self, response, needs_agreement=False)


def chooses_another_sub_group(patch: Patch) -> None:
    """Members do not choose the same sub-group."""
    turns = itertools.cycle([min, max])
    patch.setattr(all_members, "largest", lambda hashes: next(turns)(hashes))


@replaces(Coordinator, "_all_wait")
def does_not_wait(_all_wait: Any, self: Coordinator) -> bool:
    """A generation begins although members of the last one have not joined."""
    return any(each.waiting for each in self.members.values())


@replaces(ProposalMember, "_heard")
def keeps_errors(heard: Any, self: ProposalMember, error: int, sent_at: int) -> None:
    """A member takes a refused heartbeat for an accepted one."""
    heard(self, ErrorCode.NONE if error == ErrorCode.REBALANCE_IN_PROGRESS else error, sent_at)


PLANTED = (
    (keeps_its_partitions, "one owner", "single_assignor"),
    (ignores_hashes, "one owner", "all_members"),
    (chooses_another_sub_group, "one owner", "subscription_hash"),
    (does_not_wait, "one owner", "all_members"),
    (keeps_errors, "settles", "all_members"),
)
"""Each with its law, and the variant in which it shows."""
