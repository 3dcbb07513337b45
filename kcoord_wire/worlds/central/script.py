"""Random runs of a virtual cluster of the draft, replayed by seed and reduced by `kernel.virtual.script`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, NamedTuple, TypeAlias

from kcoord_wire.central.draft.events import CoordinatorSettings, RebalanceBy
from kcoord_wire.central.draft.subscription import format_topics
from kcoord_wire.kernel.virtual.script import Action, Do, Script, choose, draw_times
from kcoord_wire.kernel.virtual.violation import ViolationError
from kcoord_wire.worlds.central.cluster import CentralCluster
from kcoord_wire.worlds.central.invariants import Place

SESSION_MS: Final = 3_000
LONGEST_SESSION_MS: Final = 4_500
ZOOKEEPER_MS: Final = 4_000
SETTINGS: Final = CoordinatorSettings(offset_commit_interval_ms=500, rebalance_backoff_ms=500, max_rebalance_retries=3)
LATEST_MS: Final = 17_000  # a message that was sent in the longest cut, 12 s, and delayed by 5 s
ATTEMPT_MS: Final = LONGEST_SESSION_MS * 2 // 3 * 2 + SETTINGS.rebalance_backoff_ms  # StopFetcher and StartFetcher
SETTLE_MS: Final = (
    LATEST_MS + 2 * ZOOKEEPER_MS + 3 * LONGEST_SESSION_MS + (SETTINGS.max_rebalance_retries + 1) * ATTEMPT_MS
)
"""So long after the last fault every partition is owned at the latest: the last late message has come, a session of
ZooKeeper has expired and a coordinator was elected (two sessions), the consumers have suspected the former one (one
session) and have registered (two), and one rebalance has used all its retries. That is 64.5 s."""

LOOK_MS: Final = 250  # between two looks at whether it has settled
HOLD_MS: Final = 10_000
"""A settled cluster stays so for this, in which every partition is consumed and committed."""


class Report(NamedTuple):
    """The result of a script that broke no law.

    :ivar steps: number of events delivered
    :ivar settled_ms: how long after the last fault the cluster had settled
    :ivar rebalances: number of rebalances that were completed
    :ivar elections: number of coordinators that were elected
    :ivar deposed_messages: see `Invariants`
    """

    steps: int
    settled_ms: int
    rebalances: int
    elections: int
    deposed_messages: int


@dataclass(frozen=True, kw_only=True, repr=False)
class CentralScript(Script[CentralCluster, Report]):
    """A run of a cluster; the fields that every script has are in `Script`.

    :ivar topics: name to number of partitions at each broker
    :ivar brokers: how many
    :ivar rebalance_by: value of `RebalanceBy`
    :ivar is_fenced: see `CentralCluster`
    """

    topics: Mapping[str, int]
    brokers: int
    rebalance_by: str = RebalanceBy.FETCHERS.value
    is_fenced: bool = True

    def world(self) -> CentralCluster:
        """Return a cluster without consumers."""
        return CentralCluster(
            self.seed,
            topics=self.topics,
            brokers=self.brokers,
            settings=replace(SETTINGS, rebalance_by=RebalanceBy(self.rebalance_by)),
            zookeeper_timeout_ms=ZOOKEEPER_MS,
            is_fenced=self.is_fenced,
            kept=400,
        )

    def finish(self, world: CentralCluster) -> Report:
        """End all faults, wait until the cluster has settled, and see that it goes on.

        :raises ViolationError: ``settles``
        """
        world.heal()
        settled_ms = _settle(world)
        counted = Counter(line.what for line in world.trace)
        return Report(
            world.steps,
            settled_ms,
            counted["rebalance completed"],
            counted["elected"],
            world.invariants.deposed_messages.total(),
        )


def _settle(world: CentralCluster) -> int:
    """Wait until the cluster has settled, and goes on as it is; return how long that took, in ms."""
    start = world.now
    while True:
        while not world.is_settled():
            if world.now - start > SETTLE_MS:
                raise ViolationError("settles", f"not {SETTLE_MS} ms after the last fault: {_state(world)}")
            world.run(LOOK_MS)
        settled_at, elections, owners = world.now, _count(world, "elected"), world.owners()
        consumed = dict(world.invariants.consumed_to)
        world.run(HOLD_MS)
        if world.is_settled() and (_count(world, "elected"), world.owners()) == (elections, owners):
            break
    waiting = world.waiting()
    reached = world.invariants.consumed_to
    stuck = [place for place in map(Place._make, owners) if reached.get(place, 0) <= consumed.get(place, 0)]
    if waiting or stuck:
        raise ViolationError("settles", f"{HOLD_MS} ms later it waits for {waiting}; not consumed: {stuck}")
    return settled_at - start


def _count(world: CentralCluster, what: str) -> int:
    return sum(1 for line in world.trace if line.what == what)


def _state(world: CentralCluster) -> str:
    states = {name: process.machine.state.value for name, process in world.processes.items()}
    return f"{states}, not owned: {sorted(world.wanted() - world.owners().keys())}, waiting: {world.waiting()}"


# ---- random scripts

_DURATIONS_MS: Final = (200, 1_000, 2_500, 4_000, 7_000, 12_000)


def random_script(
    seed: int, *, rebalance_by: str = RebalanceBy.FETCHERS.value, is_fenced: bool = True, actions: int = 40
) -> CentralScript:
    """Return a run of up to three groups on two or three brokers; the arguments alone decide what happens in it.

    :param actions: at most so many, and at least half as many, besides the first consumers
    """
    return _Generator(seed, rebalance_by, is_fenced).script(actions)


class _Generator:
    """Draws a script. What all its actions have in common is drawn first: names, groups, topics, subscriptions."""

    def __init__(self, seed: int, rebalance_by: str, is_fenced: bool) -> None:
        self.seed = seed
        self.rebalance_by = rebalance_by
        self.is_fenced = is_fenced
        self.random = random = Random(f"{seed}/central")
        self.brokers = random.choice([2, 2, 3])
        self.topics = {f"t{number}": random.randint(1, 2) for number in range(1, random.randint(1, 3) + 1)}
        groups = [f"g{number}" for number in range(1, random.choice([1, 1, 2, 3] if is_fenced else [1]) + 1)]
        self.groups = {f"c{number}": random.choice(groups) for number in range(1, random.randint(2, 6) + 1)}
        self.names = list(self.groups)

    def script(self, count: int) -> CentralScript:
        """Draw the actions."""
        random = self.random
        actions: list[Action[CentralCluster]] = []
        for name in self.names:
            if random.random() < 0.8:
                actions.append(self._do(random.choice([0, 0, 3_000]), self.consumer(name)))
        start = random.choice([0, 5_000])
        # So that in some runs actions meet in the middle of a rebalance, and in others late messages do their work.
        haste_ms = random.choice([100, 700, 3_000] if self.is_fenced else [3_000])
        for at in draw_times(random, count, haste_ms, start):
            draw = choose(random, _ODDS if self.is_fenced else _ODDS_OF_DELAYS)
            actions.append(self._do(at, draw(self, random.choice(self.names))))
        return CentralScript(
            seed=self.seed,
            actions=actions,
            topics=self.topics,
            brokers=self.brokers,
            rebalance_by=self.rebalance_by,
            is_fenced=self.is_fenced,
        )

    def _do(self, at: int, drawn: _Call) -> Do:
        call, *arguments = drawn
        return Do(at=at, call=call, arguments=tuple(arguments))

    def _ms(self) -> int:
        return self.random.choice(_DURATIONS_MS)

    def _broker(self) -> int:
        return self.random.randint(1, self.brokers)

    def _ways(self) -> tuple[bool, bool]:
        return self.random.choice([(True, True), (True, True), (True, False), (False, True)])

    # ---- one call each

    def consumer(self, name: str) -> _Call:
        random = self.random
        topics = random.sample(sorted(self.topics), random.randint(1, len(self.topics)))
        named = format_topics({topic: random.choice([1, 1, 2]) for topic in topics})
        subscription = random.choice([None, None, named, "*1*t.*"])
        auto_commit = random.random() < 0.9
        return (
            "consumer",
            name,
            self.groups[name],
            subscription,
            auto_commit,
            random.choice([SESSION_MS, LONGEST_SESSION_MS]),
        )

    def crash(self, name: str) -> _Call:
        return ("crash", name)

    def shut_down(self, name: str) -> _Call:
        return ("shut_down", name)

    def pause(self, name: str) -> _Call:
        return ("pause", name, self._ms())

    def cut(self, name: str) -> _Call:
        random = self.random
        return (
            "cut",
            random.choice([name, name, None]),
            random.choice([None, self._broker()]),
            self._ms(),
            *self._ways(),
        )

    def delay(self, name: str) -> _Call:
        random = self.random
        where = random.choice([None, self._broker(), self._broker()])
        by_ms = random.choice([200, 1_500, 1_500, 5_000])
        return ("delay", name, where, random.choice([4_000, 7_000, 12_000]), *self._ways(), by_ms)

    def lose(self, _name: str) -> _Call:
        return ("lose", self._ms(), *self.random.choice([(0.02, 0.0), (0.0, 0.05), (0.1, 0.05)]))

    def crash_broker(self, _name: str) -> _Call:
        return ("crash_broker", self._broker(), self.random.choice([0, 200, 3_000, 9_000]))

    def pause_broker(self, _name: str) -> _Call:
        return ("pause_broker", self._broker(), self._ms())

    def cut_zookeeper(self, _name: str) -> _Call:
        return ("cut_zookeeper", self._broker(), self._ms(), *self._ways())

    def reset_zookeeper(self, _name: str) -> _Call:
        return ("reset_zookeeper", self._broker())

    def expire(self, _name: str) -> _Call:
        return ("expire", self._broker())

    def stop_zookeeper(self, _name: str) -> _Call:
        return ("stop_zookeeper", self._ms())

    def lag_zookeeper(self, _name: str) -> _Call:
        return ("lag_zookeeper", self.random.randint(0, 2), self._ms())

    def depose(self, _name: str) -> _Call:
        return ("depose",)

    def add_partitions(self, _name: str) -> _Call:
        return ("add_partitions", self.random.choice([*sorted(self.topics), "t9"]), self._broker(), 1)


_Call: TypeAlias = tuple[Any, ...]
_ODDS: Final[Sequence[tuple[int, Callable[[_Generator, str], _Call]]]] = (
    (14, _Generator.consumer),
    (8, _Generator.crash),
    (5, _Generator.shut_down),
    (10, _Generator.pause),
    (9, _Generator.cut),
    (6, _Generator.delay),
    (5, _Generator.lose),
    (9, _Generator.crash_broker),
    (9, _Generator.pause_broker),
    (7, _Generator.cut_zookeeper),
    (4, _Generator.reset_zookeeper),
    (3, _Generator.expire),
    (2, _Generator.stop_zookeeper),
    (3, _Generator.lag_zookeeper),
    (2, _Generator.depose),
    (4, _Generator.add_partitions),
)
"""How often each action is drawn, in percent."""

_ODDS_OF_DELAYS: Final[Sequence[tuple[int, Callable[[_Generator, str], _Call]]]] = (
    (25, _Generator.consumer),
    (60, _Generator.delay),
    (10, _Generator.cut),
    (5, _Generator.pause_broker),
)
"""The same without epochs: a search for two owners, which late messages bring about."""
