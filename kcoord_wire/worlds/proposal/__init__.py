"""The variants of the client-side assignment proposal that were not released, runnable on the virtual clock.

with ProposalCluster("all_members", seed=7, topics={"orders": 12}, members=3) as sim:
    sim.run_until(sim.is_settled)
"""

from kcoord_wire.worlds.proposal.cluster import ProposalCluster
from kcoord_wire.worlds.proposal.processes import MemberOptions

__all__ = ["MemberOptions", "ProposalCluster"]
