"""Groups of KIP-848 in the simulation: members that send heartbeats to the real coordinator, and what must hold then.

`ConsumerGroupCluster` is the virtual cluster; `script.random_script` draws runs of it, and `search.search` goes through
all runs of a few members up to a bound.
"""

from __future__ import annotations

from kcoord_wire.worlds.consumer_groups.consumer_group_world import ConsumerGroupCluster

__all__ = ["ConsumerGroupCluster"]
