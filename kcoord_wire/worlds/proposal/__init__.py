"""The variants of the client-side assignment proposal that were not released, runnable on the virtual clock.

with ProposalCluster("all_members", seed=7, topics={"orders": 12}, members=3) as sim:
    sim.run_until(sim.is_settled)

To add a variant: a coordinator and a member derived from those of `proposal_coordinator` and `member`, then a row of
`single_assignor.VARIANTS`.
"""

from kcoord_wire.worlds.proposal.proposal_world import MemberOptions, ProposalCluster

__all__ = ["MemberOptions", "ProposalCluster"]
