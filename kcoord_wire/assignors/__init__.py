"""Who gets which partition: the four assignors of Kafka's classic group protocol, as pure functions.

Laws:

* Every partition of a topic that somebody subscribes to goes to exactly one subscriber (`cooperative_sticky` holds
  back, until the next rebalance, what another member still has to give up).
* The same input gives the same output, in whatever order the mappings are.
* `range_assign` and `round_robin` give what Kafka's own assignors give where no racks are told. Of `sticky` only the
  properties are defined (balanced, then sticky); its choices among equals are our own.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from .model import Assign, Assignment, Assignor, MemberSubscription, RebalanceProtocol, TopicPartition
from .ranges import range_assign
from .round_robin import round_robin
from .sticky import cooperative_sticky, sticky, sticky_user_data

__all__ = [
    "ASSIGNORS",
    "Assign",
    "Assignment",
    "Assignor",
    "MemberSubscription",
    "RebalanceProtocol",
    "TopicPartition",
    "cooperative_sticky",
    "range_assign",
    "round_robin",
    "sticky",
    "sticky_user_data",
]

ASSIGNORS: Mapping[str, Assignor] = MappingProxyType(
    {
        assignor.name: assignor
        for assignor in (
            Assignor("range", RebalanceProtocol.EAGER, range_assign),
            Assignor("roundrobin", RebalanceProtocol.EAGER, round_robin),
            Assignor("sticky", RebalanceProtocol.EAGER, sticky),
            Assignor("cooperative-sticky", RebalanceProtocol.COOPERATIVE, cooperative_sticky),
        )
    }
)
