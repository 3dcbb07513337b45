"""Groups under the variants of the client-side assignment proposal, and what happened to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from kcoord_wire.worlds.proposal import MemberOptions, ProposalCluster
from kcoord_wire.worlds.proposal.proposal_coordinator import Coordinator, Phase, Strategy, Subscription
from kcoord_wire.worlds.proposal.proposal_world import Moved
from kcoord_wire.worlds.proposal.single_assignor import ROUND_ROBIN

VARIANTS: Final = ("all_members", "subscription_hash", "single_assignor", "two_phases")


@contextmanager
def settled(variant: str, members: int = 3, **options: Any) -> Iterator[ProposalCluster]:
    """A settled group over nine partitions, all of whose members have sent a heartbeat."""
    with ProposalCluster(variant, topics={"orders": 9}, members=members, **options) as sim:
        settle(sim)
        yield sim


def group(sim: ProposalCluster) -> Coordinator:
    """The coordinator, which is up."""
    assert sim.coordinator is not None
    return sim.coordinator


def in_phase(sim: ProposalCluster, phase: Phase) -> Callable[[], bool]:
    """Whether the coordinator is up and the group in that phase."""
    return lambda: sim.coordinator is not None and sim.coordinator.phase is phase


def settle(sim: ProposalCluster) -> int:
    """Wait until the group has settled and stays so; return its generation."""
    sim.run_until(sim.is_settled)
    generation = group(sim).generation
    sim.run(5_000)
    assert (sim.is_settled(), group(sim).generation) == (True, generation)
    return generation


def count(sim: ProposalCluster, name: str, message: str, *, since: int = 0, error: int | None = None) -> int:
    """How many messages of a class a member has sent or got, by a part of the class's name."""
    moved = [line.detail for line in sim.trace if line.who == name and line.at >= since]
    return sum(isinstance(each, Moved) and message in each.message and error in (None, each.error) for each in moved)


def consumes(*topics: str, strategies: tuple[Strategy, ...] = (ROUND_ROBIN,), **settings: Any) -> MemberOptions:
    """Options of a member that subscribes to these topics."""
    return MemberOptions(
        subscription=Subscription(topics) if topics else None, strategies=strategies, settings=settings
    )
