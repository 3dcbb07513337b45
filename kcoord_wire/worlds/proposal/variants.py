"""The variants of the proposal by name, and the strategies that their members offer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from kcoord_wire.assignors import ASSIGNORS
from kcoord_wire.worlds.proposal.all_members import AllMembersCoordinator, AllMembersMember
from kcoord_wire.worlds.proposal.coordinator import Coordinator
from kcoord_wire.worlds.proposal.events import Codec, CoordinatorSettings, MemberSettings, Save, Strategy
from kcoord_wire.worlds.proposal.member import Member
from kcoord_wire.worlds.proposal.single_assignor import SingleAssignorCoordinator, SingleAssignorMember
from kcoord_wire.worlds.proposal.subscription_hash import SubscriptionHashMember


class Variant(NamedTuple):
    """A variant of the proposal.

    :ivar family: of its JoinGroup, see schemas/README.md
    :ivar coordinator: makes the coordinator's machine
    :ivar member: makes a member's machine
    """

    family: str
    coordinator: Callable[[CoordinatorSettings, int, Save | None, int], Coordinator]
    member: Callable[[MemberSettings, Codec, Sequence[Strategy]], Member]


VARIANTS: Final[Mapping[str, Variant]] = MappingProxyType(
    {
        "all_members": Variant("all-members", AllMembersCoordinator, AllMembersMember),
        "subscription_hash": Variant("all-members", AllMembersCoordinator, SubscriptionHashMember),
        "single_assignor": Variant("single-assignor", SingleAssignorCoordinator, SingleAssignorMember),
    }
)

ROUND_ROBIN: Final = Strategy("round-robin", 0, ASSIGNORS["roundrobin"].assign)
RANGE: Final = Strategy("range", 0, ASSIGNORS["range"].assign)
