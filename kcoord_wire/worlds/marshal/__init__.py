"""Marshal on a virtual clock: the coordination log, members and readers, in one thread.

with MarshalCluster(seed=7, topics={"orders": 6}, members=3) as sim:
    sim.run_until(sim.is_settled)
    sim.crash("m1")
    sim.run(60_000)
    print(sim.owners())

To add a fault: a method of `MarshalCluster`, then a row of `marshal_world.ROWS`. A law: a check in `marshal_laws` with
its line in the head, then a planted bug in tests/support/planted_marshal_bugs.py.
"""

from kcoord_wire.worlds.marshal.marshal_world import MarshalCluster

__all__ = ["MarshalCluster"]
