"""Random runs of the rewrite, replayed by seed and reduced by `kernel.virtual.script`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, NamedTuple

from kcoord_wire.kernel.virtual.script import Do, Script, choose, draw_times
from kcoord_wire.kernel.virtual.violation import ViolationError
from kcoord_wire.worlds.rewrite.cluster import RewriteCluster

SETTLE_MS: Final = 90_000
"""A group is settled within this after the last fault: a broker that is down for up to 12 s, sessions at ZooKeeper and
of members of 6 s each, a JoinGroup of 15 s that was lost, and the rebalances after them."""


class Report(NamedTuple):
    """What a run was.

    :ivar steps: number of events delivered
    :ivar settled_ms: from the last fault until the group had settled
    :ivar rebalances: number of generations of the group
    :ivar overlaps: partitions that two members fetched at a time, see `Invariants.overlaps`
    """

    steps: int
    settled_ms: int
    rebalances: int
    overlaps: int


@dataclass(frozen=True, kw_only=True, repr=False)
class RewriteScript(Script[RewriteCluster, Report]):
    """A run; the fields that every script has are in `Script`.

    :ivar topics: name to number of partitions
    :ivar brokers: how many there are
    :ivar stops_with_session: see `RewriteCluster`
    :ivar allows_overlaps: likewise
    :ivar latency_ms: likewise
    """

    topics: Mapping[str, int]
    brokers: int = 2
    stops_with_session: bool = False
    allows_overlaps: bool = True
    latency_ms: tuple[int, int] = (1, 20)

    def world(self) -> RewriteCluster:
        """Return a cluster without members."""
        return RewriteCluster(
            self.seed,
            topics=self.topics,
            brokers=self.brokers,
            stops_with_session=self.stops_with_session,
            allows_overlaps=self.allows_overlaps,
            latency_ms=self.latency_ms,
        )

    def finish(self, world: RewriteCluster) -> Report:
        """End all faults and wait until the group has settled.

        :raises ViolationError: ``settles``
        """
        world.heal()
        try:
            settled_ms = world.run_until(world.is_settled, SETTLE_MS)
        except TimeoutError:
            members = {name: each.machine.phase.value for name, each in world.processes.items() if each.is_working}
            raise ViolationError("settles", f"not {SETTLE_MS} ms after the last fault: {members}") from None
        return Report(world.steps, settled_ms, world.invariants.record.generation, len(world.invariants.overlaps))


ODDS: Final = (
    (18, "member"),
    (6, "leave"),
    (8, "crash"),
    (12, "pause"),
    (10, "cut"),
    (6, "lose"),
    (10, "crash_broker"),
    (8, "pause_broker"),
    (6, "cut_broker"),
    (5, "expire"),
    (2, "stop_zookeeper"),
    (3, "lag_zookeeper"),
    (6, "add_partitions"),
)
"""How often each action is drawn, in percent."""


def random_script(
    seed: int,
    actions: int = 40,
    *,
    stops_with_session: bool = False,
    allows_overlaps: bool = True,
    odds: Sequence[tuple[int, str]] = ODDS,
) -> RewriteScript:
    """Return a run of a group with up to six members; the seed decides what happens in it.

    :param stops_with_session: see `RewriteCluster`, like `allows_overlaps`
    :param odds: like `ODDS`
    """
    random = Random(f"{seed}/rewrite")
    brokers = random.randint(1, 3)
    names = [f"m{number}" for number in range(1, random.randint(2, 6) + 1)]
    topics = {f"t{number}": random.randint(1, 5) for number in (1, 2)}
    haste_ms = random.choice([50, 500, 3_000])  # so that in some runs actions meet in the middle of a rebalance
    drawn = [Do(at=0, call="member", arguments=(name,)) for name in names]
    for at in draw_times(random, actions, haste_ms):
        call = choose(random, odds)
        drawn.append(Do(at=at, call=call, arguments=_draw(random, call, names, brokers)))
    return RewriteScript(
        seed=seed,
        actions=drawn,
        topics=topics,
        brokers=brokers,
        stops_with_session=stops_with_session,
        allows_overlaps=allows_overlaps,
        latency_ms=random.choice([(1, 20), (1, 20), (20, 400)]),
    )


def _draw(random: Random, call: str, names: list[str], brokers: int) -> tuple[Any, ...]:
    name, broker = random.choice(names), random.randint(1, brokers)
    ms = random.choice([200, 2_000, 5_000, 8_000, 15_000])
    drawn: dict[str, tuple[Any, ...]] = {
        "member": (name, *random.choice([(), (), ("t.*",), (None, ("t1",))])),
        "pause": (name, ms),
        "cut": (name, random.choice([None, broker]), ms),
        "lose": (ms, *random.choice([(0.02, 0.0), (0.0, 0.05), (0.2, 0.05), (0.05, 0.2)])),
        "crash_broker": (broker, random.choice([0, 200, 3_000, 12_000])),
        "pause_broker": (broker, ms),
        "cut_broker": (broker, ms),
        "expire": (broker,),
        "stop_zookeeper": (ms,),
        "lag_zookeeper": (random.randint(0, 2), ms),
        "add_partitions": (random.choice(["t1", "t2", "t3"]), random.randint(1, 2)),
    }
    return drawn.get(call, (name,))
