"""Groups of KIP-848 in the simulation: members that send heartbeats to the real coordinator, and what must hold then.

`ConsumerGroupCluster` is the virtual cluster; `consumer_group_world.random_script` draws runs of it, and
`search.search` goes through all runs of a few members up to a bound. `rolling_bounce` computes what a deploy costs a
group, of either protocol.

To add a law: a predicate in `consumer_group_laws`, used there and in `search`, then a planted bug in
tests/support/planted_consumer_group_bugs.py.
"""

from __future__ import annotations

from kcoord_wire.worlds.consumer_groups.consumer_group_world import ConsumerGroupCluster

__all__ = ["ConsumerGroupCluster"]
