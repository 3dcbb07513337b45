"""The assignors of Kafka's group coordinator for groups of KIP-848, as pure functions: uniform and range.

The coordinator keeps the assignment that the group is to reach, the target. A member's `owned` is its part of the
present target, so it is never disputed, and `generation` and user data have no meaning. Members give partitions up one
by one on the way to the target; nothing is withheld here.

Source: kafka/group-coordinator `UniformAssignor.java`, `RangeAssignor.java` (4.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kcoord_wire.assignors.range import range_assign
from kcoord_wire.assignors.sticky import balanced_target
from kcoord_wire.assignors.subscriptions import NO_RACKS, Assign, Assignment, MemberSubscription, Racks


def uniform(
    partitions_per_topic: Mapping[str, int], members: Mapping[str, MemberSubscription], _racks: Racks = NO_RACKS, /
) -> Assignment:
    """Assign balanced, keeping as much of the target as possible; see `subscriptions.Assign`.

    Members with equal subscriptions (a homogeneous group) differ by at most one partition, in Kafka too. With others
    (heterogeneous) this is the best balance that the subscriptions allow, where Kafka stops after 16 rounds of
    improvements over single topics. Nothing moves without need; Kafka gives the quota of one more to the members that
    come first, whether or not they have it, and lets the others give it up.
    """
    return balanced_target(partitions_per_topic, members)


def server_range(
    partitions_per_topic: Mapping[str, int], members: Mapping[str, MemberSubscription], _racks: Racks = NO_RACKS, /
) -> Assignment:
    """Split each topic among its subscribers in order, as the clients' range does without racks; see
    `subscriptions.Assign`."""
    return range_assign(partitions_per_topic, members)


SERVER_ASSIGNORS: Final[Mapping[str, Assign]] = MappingProxyType({"uniform": uniform, "range": server_range})
"""By the name that members put into ConsumerGroupHeartbeat, the coordinator's default first."""
