"""Random runs of applications with transactions, replayed by seed and reduced; ``kcoord simulate transactions``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final, NamedTuple

from kcoord_wire.kernel.virtual.script import Do, Script, choose, draw_times
from kcoord_wire.kernel.virtual.violation import ViolationError
from kcoord_wire.worlds.transactions.cluster import GROUP, OUTPUT, TransactionCluster

SETTLE_MS: Final = 20_000
"""Within this after the last fault every application has committed two more offsets: the transaction of its predecessor
times out, which takes less."""

END_MS: Final = 2_000
"""A transaction whose producer is gone has ended so long after its timeout at the latest: its markers are written."""

TIMEOUT_MS: Final = 3_000


class Report(NamedTuple):
    """The result of a script that broke no law.

    :ivar steps: number of events delivered
    :ivar virtual_ms: how long it took on the virtual clock
    :ivar settled_ms: how long after the last fault every application had committed
    :ivar transactions: how many were begun
    :ivar records: how many count
    """

    steps: int
    virtual_ms: int
    settled_ms: int
    transactions: int
    records: int


@dataclass(frozen=True, kw_only=True, repr=False)
class TransactionScript(Script[TransactionCluster, Report]):
    """A run; the fields that every script has are in `Script`.

    :ivar ids: the transactional ids, each with its transaction version
    :ivar outputs: how many partitions are written to
    :ivar brokers: how many there are
    :ivar abort_odds: how often an application aborts without a reason
    :ivar segment_bytes: of the coordinators' logs, see `Store`
    """

    ids: Mapping[str, int]
    outputs: int = 3
    brokers: int = 2
    abort_odds: float = 0.1
    segment_bytes: int = 65_536

    def world(self) -> TransactionCluster:
        """Return brokers without applications."""
        return TransactionCluster(
            self.seed,
            ids=self.ids,
            outputs=self.outputs,
            brokers=self.brokers,
            timeout_ms=TIMEOUT_MS,
            abort_odds=self.abort_odds,
            segment_bytes=self.segment_bytes,
        )

    def finish(self, world: TransactionCluster) -> Report:
        """End all faults, wait until every application has committed, then kill them all, and wait until every
        transaction has ended.

        :raises ViolationError: ``settles``, and what `TransactionCluster.end` raises
        """
        world.heal()
        before, start = world.committed(), world.now
        try:
            world.run_until(lambda: world.has_advanced(before), SETTLE_MS)
        except TimeoutError:
            text = f"not {SETTLE_MS} ms after the last fault: {world.committed()}, before {before}"
            raise ViolationError("settles", text) from None
        settled_ms = world.now - start
        world.end(END_MS)
        return Report(world.steps, world.now, settled_ms, world.transactions(), world.visible())


_ODDS: Final = (
    (14, "start"),
    (10, "crash"),
    (15, "pause"),
    (5, "swap"),
    (8, "partition"),
    (8, "lose"),
    (12, "slow_down"),
    (12, "kill_brokers"),
    (4, "fail_disk"),
    (4, "fill_disk"),
    (8, "move"),
)
"""How often each action is drawn, in percent."""

_DURATIONS_MS: Final = (200, 1_000, 2_500, 4_000, 8_000)
_LOSSES: Final = ((0.02, 0.0), (0.0, 0.05), (0.2, 0.05), (0.05, 0.2))
_SLOWNESS: Final = ((0.3, 0.0), (0.1, 0.1), (0.02, 0.3), (0.6, 0.2))


def random_script(seed: int, actions: int = 24) -> TransactionScript:
    """Return a run of up to three applications; the seed alone decides what happens in it.

    :param actions: at most so many, and at least half as many, besides the first starts
    """
    return _Generator(seed).script(actions)


class _Generator:
    """Draws a script: first what all its actions have in common."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random = Random(f"{seed}/transactions")
        self.ids = {f"t{number}": random.choice([1, 2, 2]) for number in range(1, random.randint(1, 3) + 1)}
        self.outputs = random.randint(1, 3)

    def script(self, count: int) -> TransactionScript:
        """Draw the actions, and the settings of the cluster."""
        random = self.random
        drawn = [Do(at=0, call="start", arguments=(each,)) for each in self.ids]
        haste_ms = random.choice([20, 150, 800])  # so that in some runs actions meet in the middle of a transaction
        for at in draw_times(random, count, haste_ms):
            call = choose(random, _ODDS)
            drawn.append(Do(at=at, call=call, arguments=self.draw(call, random.choice(sorted(self.ids)))))
        return TransactionScript(
            seed=self.seed,
            actions=drawn,
            ids=self.ids,
            outputs=self.outputs,
            brokers=random.choice([1, 2, 3]),
            abort_odds=random.choice([0.0, 0.1, 0.4]),
            segment_bytes=random.choice([1_000, 8_000, 65_536]),
        )

    def draw(self, call: str, name: str) -> tuple[Any, ...]:
        """Draw the arguments of a call."""
        random, ms = self.random, self.random.choice(_DURATIONS_MS)
        if call in ("start", "crash"):
            return (name,)
        if call == "swap":
            return (name, random.choice(sorted(self.ids)))
        if call in ("pause", "partition"):
            return (name, ms)
        if call == "lose":
            return (ms, *random.choice(_LOSSES))
        if call == "slow_down":
            return (ms, random.choice([30, 400, 3_000]), *random.choice(_SLOWNESS))
        return self._of_brokers(call, name, ms)

    def _of_brokers(self, call: str, name: str, ms: int) -> tuple[Any, ...]:
        random = self.random
        disk = random.choice(["logs", "records"])
        if call == "kill_brokers":
            outage = random.choice([0, 200, 1_500]), random.choice([0, 100, 1_000])
            return (*outage, random.choice([0, 1, 2, 3, 5, 9]), disk)
        if call == "fail_disk":
            return (disk, random.choice([10, 1_000]), random.randint(0, 3))
        if call == "fill_disk":
            return (disk, random.choice([50, 1_000, 4_000]))
        output = "topics", OUTPUT, random.randrange(self.outputs)
        return (random.choice([("transactions", name, 0), output, ("groups", GROUP, 0)]), random.randrange(3))
