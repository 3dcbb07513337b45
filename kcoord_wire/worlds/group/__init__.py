"""Kafka's group protocol in the simulated world: a coordinator, its members, the laws, and random scripts of faults.

with Cluster(seed=7, topics={"orders": 12}, members=3) as sim:
    sim.run_until(sim.is_settled)

run_script(random_script(seed=7))

To add something that can happen to a group: a method of `world.Cluster`, then a row of `world.ROWS`. A law: a check in
`laws.Invariants` and its line in the module's head, then a planted bug that breaks it in tests/support/planted_bugs.py.
A client bug: a row of `kcoord_wire.clients.bugs`, a switch in `client_bugs`, a script in `bug_scripts`.
"""

from kcoord_wire.kernel.virtual.scripts import run_script
from kcoord_wire.worlds.group.members import MemberOptions
from kcoord_wire.worlds.group.world import Cluster, random_script

__all__ = ["Cluster", "MemberOptions", "random_script", "run_script"]
