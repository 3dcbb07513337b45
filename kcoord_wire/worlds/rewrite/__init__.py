"""The rewrite of the consumer on a virtual clock: brokers, ZooKeeper, members and the network, in one thread.

with RewriteCluster(seed=7, topics={"orders": 6}, brokers=2, members=3) as sim:
    sim.run_until(sim.is_settled)
    sim.crash_broker(1)
    sim.run(60_000)
    print(sim.owners(), sim.invariants.overlaps)
"""

from kcoord_wire.worlds.rewrite.cluster import RewriteCluster

__all__ = ["RewriteCluster"]
