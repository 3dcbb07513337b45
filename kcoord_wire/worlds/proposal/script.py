"""Random runs of the proposal's variants, replayed by seed and reduced by `kernel.virtual.script`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from kcoord_wire.kernel.virtual.script import Do, Script, choose, draw_times
from kcoord_wire.kernel.virtual.violation import ViolationError
from kcoord_wire.worlds.proposal.cluster import ProposalCluster
from kcoord_wire.worlds.proposal.events import CoordinatorSettings
from kcoord_wire.worlds.proposal.processes import MemberOptions

SETTLE_MS: Final = 120_000
"""A group is settled within this after the last fault: sessions of 6 s, JoinGroups of 30 s that were lost, and the
delays of members that have disagreed."""


@dataclass(frozen=True, kw_only=True, repr=False)
class ProposalScript(Script[ProposalCluster, int]):
    """A run of a variant; the fields that every script has are in `Script`.

    :ivar variant: a key of `variants.VARIANTS`
    :ivar topics: name to number of partitions
    :ivar is_persistent: see `ProposalCluster`
    """

    variant: str
    topics: Mapping[str, int]
    is_persistent: bool

    def world(self) -> ProposalCluster:
        """Return a cluster without members."""
        return ProposalCluster(
            self.variant,
            self.seed,
            topics=self.topics,
            is_persistent=self.is_persistent,
            options=MemberOptions(settings={"max_disagreements": 50}),
            settings=CoordinatorSettings(synchronization_timeout_ms=3_000),
            latency_ms=(1, 40),
            write_ms=(0, 40),
        )

    def finish(self, world: ProposalCluster) -> int:
        """End all faults and return how long the group took to settle, in ms.

        :raises ViolationError: ``settles``
        """
        world.heal()
        try:
            return world.run_until(world.is_settled, SETTLE_MS)
        except TimeoutError:
            members = {name: process.machine.state for name, process in world.processes.items() if process.is_working}
            raise ViolationError("settles", f"not {SETTLE_MS} ms after the last fault: {members}") from None


_ODDS: Final = (
    (20, "member"),
    (8, "leave"),
    (10, "crash"),
    (14, "pause"),
    (12, "partition"),
    (8, "lose"),
    (10, "crash_coordinator"),
    (8, "subscribe"),
    (5, "add_partitions"),
    (5, "lag"),
)
"""How often each action is drawn, in percent."""


def random_script(variant: str, seed: int, actions: int = 40) -> ProposalScript:
    """Return a run of one group with up to six members; variant and seed decide what happens in it."""
    random = Random(f"{seed}/{variant}")
    names = [f"m{number}" for number in range(1, random.randint(2, 6) + 1)]
    topics = {f"t{number}": random.randint(1, 6) for number in (1, 2, 3)}
    haste_ms = random.choice([50, 500, 3_000])  # so that in some runs actions meet in the middle of a rebalance
    drawn = [Do(at=0, call="member", arguments=(name,)) for name in names]
    for at in draw_times(random, actions, haste_ms):
        call = choose(random, _ODDS)
        drawn.append(Do(at=at, call=call, arguments=_draw_arguments(random, call, names, sorted(topics))))
    return ProposalScript(seed=seed, actions=drawn, variant=variant, topics=topics, is_persistent=random.random() < 0.7)


def _draw_arguments(random: Random, call: str, names: list[str], topics: list[str]) -> tuple[Any, ...]:
    name = random.choice(names)
    ms = random.choice([200, 2_000, 5_000, 8_000, 15_000])
    if call in ("pause", "partition", "lag"):
        return (name, ms)
    if call == "lose":
        return (ms, *random.choice([(0.02, 0.0), (0.0, 0.05), (0.2, 0.05), (0.05, 0.2)]))
    if call == "crash_coordinator":
        return (random.choice([0, 200, 3_000, 12_000]),)
    if call == "subscribe":
        return (name, *random.sample(topics, random.randint(1, len(topics))))
    if call == "add_partitions":
        return (random.choice(topics), random.randint(1, 3))
    return (name,)
