"""The two designs on ZooKeeper in the simulated world: the 0.8 draft, and the consumer rewrite.

with CentralCluster(seed=7, topics={"orders": 3}, brokers=2, members=2) as sim:
    sim.run_until(sim.is_settled)
    sim.pause("broker-1", 20_000)
    sim.run(60_000)
    print(sim.owners(), sim.invariants.deposed_messages)

What both share is in `broker_world`. To add a fault: a method of `BrokerWorld` or of one world, then a row of its
`ROWS`. A law: a check in `draft_laws` or `rewrite_laws` with its line in the head, then a planted bug in tests/support.
"""

from kcoord_wire.worlds.central.draft_world import CentralCluster
from kcoord_wire.worlds.central.rewrite_world import RewriteCluster

__all__ = ["CentralCluster", "RewriteCluster"]
