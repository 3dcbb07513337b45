"""Bugs of the machines of the proposal's variants, planted one by one, and the law of the simulation each breaks."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.worlds.proposal import all_members, two_phases
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


@replaces(two_phases.TwoPhaseMember, "_sync_again")
def keeps_its_partitions_in_a_resync(sync_again: Any, self: two_phases.TwoPhaseMember) -> None:
    """A member sends SyncGroup for a resync without giving up what it has."""
    owned = self.owned
    sync_again(self)
    self.owned = owned


@replaces(two_phases.TwoPhaseCoordinator, "synchronized")
def resyncs_without_waiting(synchronized: Any, self: two_phases.TwoPhaseCoordinator, asked: Any) -> None:
    """As the letter of the document has it: the leader's states count as soon as they arrive."""
    self.settings = replace(self.settings, waits_in_resync=False)
    synchronized(self, asked)


@replaces(two_phases.TwoPhaseCoordinator, "_sync_error")
def takes_states_of_any_generation(_right: Any, self: two_phases.TwoPhaseCoordinator, request: Any) -> int:
    """A SyncGroup counts whatever its generation is."""
    return ErrorCode.NONE if request.member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID


@replaces(two_phases.TwoPhaseMember, "_hash")
def the_leader_does_not_watch_the_topics(_right: Any, self: two_phases.TwoPhaseMember) -> bytes:
    """It never assigns anew."""
    return b"the same"


PLANTED = (
    (keeps_its_partitions, "one owner", "single_assignor"),
    (ignores_hashes, "one owner", "all_members"),
    (chooses_another_sub_group, "one owner", "subscription_hash"),
    (does_not_wait, "one owner", "all_members"),
    (keeps_errors, "settles", "all_members"),
    (keeps_its_partitions_in_a_resync, "one owner", "two_phases"),
    (resyncs_without_waiting, "one owner", "two_phases"),
    (takes_states_of_any_generation, "settles", "two_phases"),
    (the_leader_does_not_watch_the_topics, "settles", "two_phases"),
)
"""Each with its law, and the variant in which it shows."""
