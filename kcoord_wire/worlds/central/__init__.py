"""The two designs on ZooKeeper in the simulated world: the 0.8 draft, and the consumer rewrite.

with CentralCluster(seed=7, topics={"orders": 3}, brokers=2, consumers=2) as sim:
    sim.run_until(sim.is_settled)
    sim.pause_broker(1, 20_000)
    sim.run(60_000)
    print(sim.owners(), sim.invariants.deposed_messages)
"""

from kcoord_wire.worlds.central.draft_world import CentralCluster
from kcoord_wire.worlds.central.rewrite_world import RewriteCluster

__all__ = ["CentralCluster", "RewriteCluster"]
