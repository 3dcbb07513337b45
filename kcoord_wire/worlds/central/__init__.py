"""The 0.8 draft on a virtual clock: brokers, ZooKeeper, consumers and the network between them, in one thread.

with CentralCluster(seed=7, topics={"orders": 3}, brokers=2, consumers=2) as sim:
    sim.run_until(sim.is_settled)
    sim.pause_broker(1, 20_000)
    sim.run(60_000)
    print(sim.owners(), sim.invariants.deposed_messages)
"""

from kcoord_wire.worlds.central.cluster import CentralCluster

__all__ = ["CentralCluster"]
