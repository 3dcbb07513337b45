"""Kafka's group protocol in the simulated world: a coordinator, its members, the laws, and random scripts of faults.

with Cluster(seed=7, topics={"orders": 12}, members=3) as sim:
    sim.run_until(sim.is_settled)

run_script(random_script(seed=7))
"""

from kcoord_wire.kernel.virtual.script import run_script
from kcoord_wire.worlds.group.cluster import Cluster
from kcoord_wire.worlds.group.members import MemberOptions
from kcoord_wire.worlds.group.script import GroupScript, random_script

__all__ = ["Cluster", "GroupScript", "MemberOptions", "random_script", "run_script"]
