"""Marshal on a virtual clock: the coordination log, members and readers, in one thread.

with MarshalCluster(seed=7, topics={"orders": 6}, members=3) as sim:
    sim.run_until(sim.is_settled)
    sim.crash("m1")
    sim.run(60_000)
    print(sim.owners())
"""

from kcoord_wire.worlds.marshal.marshal_world import MarshalCluster

__all__ = ["MarshalCluster"]
