"""The four assignors of Kafka's classic group protocol, as pure functions: which member gets which partition.

Laws:

* Every partition of a topic with subscribers goes to exactly one of them, except that `cooperative_sticky` withholds,
  until the next rebalance, a partition that another member still has to give up.
* The order of the mappings in the input does not change the result.
* `range_assign` and `round_robin` give what Kafka's own assignors give without racks. `sticky` is defined by its
  properties (balanced first, then sticky); its choices among equals differ from Kafka's.

To add an assignor: a function in a module here, then a row of `ASSIGNORS` (for KIP-848 in `kip848.py`),
docs/assignors.md, and `KEPT` in tests/assignors/test_check.py; one of another package is an entry point (`plugins.py`).
Equal subscriptions go the way of `equal.py`, others that of `leveling.py`.
To add a rule for assignors: `rules.py`, and a planted assignor in tests/assignors/test_check.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kcoord_wire.assignors.range import range_assign, round_robin
from kcoord_wire.assignors.sticky import cooperative_sticky, generation_user_data, sticky, sticky_user_data
from kcoord_wire.assignors.subscriptions import (
    NO_RACKS,
    Assign,
    Assignment,
    AssignmentUserData,
    Assignor,
    MemberAssignment,
    MemberSubscription,
    OnAssignment,
    OnJoin,
    Partitions,
    Racks,
    RebalanceProtocol,
    TopicPartition,
    group_partitions,
    list_partitions,
)

__all__ = [
    "ASSIGNORS",
    "NO_RACKS",
    "Assign",
    "Assignment",
    "AssignmentUserData",
    "Assignor",
    "MemberAssignment",
    "MemberSubscription",
    "OnAssignment",
    "OnJoin",
    "Partitions",
    "Racks",
    "RebalanceProtocol",
    "TopicPartition",
    "cooperative_sticky",
    "group_partitions",
    "list_partitions",
    "range_assign",
    "round_robin",
    "sticky",
]

ASSIGNORS: Final[Mapping[str, Assignor]] = MappingProxyType(
    {
        assignor.name: assignor
        for assignor in (
            Assignor("range", RebalanceProtocol.EAGER, range_assign),
            Assignor("roundrobin", RebalanceProtocol.EAGER, round_robin),
            Assignor("sticky", RebalanceProtocol.EAGER, sticky, sticky_user_data),
            Assignor("cooperative-sticky", RebalanceProtocol.COOPERATIVE, cooperative_sticky, generation_user_data),
        )
    }
)
"""By the name that members put into JoinGroup."""
