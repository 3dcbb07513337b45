"""Random runs of a virtual group, which are replayed by seed and reduced when they break a law.

`random_script` makes a `GroupScript` from a seed. `run_script` plays it, ends all faults, and waits until the group has
settled; where a law of invariants.py breaks, it raises `SimulationFailure` with the seed and a short script that breaks
the same law. See `kernel.virtual.script` for what all scripts have in common, and ``kcoord simulate`` for the command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Literal, NamedTuple

from kcoord_wire.consumer.events import CLIENT_VERSIONS
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.kernel.virtual.script import Action, Script, choose, draw_times
from kcoord_wire.kernel.virtual.violation import ViolationError
from kcoord_wire.worlds.group import acts
from kcoord_wire.worlds.group.cluster import Cluster
from kcoord_wire.worlds.group.members import MemberOptions

SETTLE_MS: Final = 300_000
"""A group with the timeouts of `random_script` is Stable within this after the last fault: a session timeout, the join
timeout of a member that was killed while it was new, two rebalances, and a sync that is never completed."""

HOLD_MS: Final = 10_000
"""A group that is Stable counts as settled if it still is after this, which is longer than any heartbeat interval."""


class Report(NamedTuple):
    """The result of a script that broke no law.

    :ivar steps: number of events delivered
    :ivar virtual_ms: how long it took on the virtual clock
    :ivar settled_ms: how long after the last fault the group had settled
    :ivar rebalances: how many have ended
    """

    steps: int
    virtual_ms: int
    settled_ms: int
    rebalances: int


@dataclass(frozen=True, kw_only=True, repr=False)
class GroupScript(Script[Cluster, Report]):
    """A run of a virtual cluster; the fields that every script has are in `Script`.

    :ivar topics: name to number of partitions
    :ivar config: settings of the coordinator that differ from the defaults of `GroupConfig`
    :ivar segment_bytes: of the coordinator's log, see `Store`
    :ivar min_compaction_bytes: of the coordinator's log, see `Store`
    """

    topics: Mapping[str, int]
    config: Mapping[str, Any] = field(default_factory=dict)
    segment_bytes: int = 65_536
    min_compaction_bytes: int = 65_536

    def world(self) -> Cluster:
        """Return a cluster without members."""
        return Cluster(
            self.seed,
            topics=self.topics,
            config=GroupConfig(**self.config),
            segment_bytes=self.segment_bytes,
            min_compaction_bytes=self.min_compaction_bytes,
        )

    def finish(self, world: Cluster) -> Report:
        """End all faults, and wait until the group has settled and stays so.

        :raises ViolationError: ``settles``
        """
        world.heal()
        settled_ms = _settle(world)
        return Report(world.steps, world.now, settled_ms, len(world.rebalances))


def _settle(sim: Cluster) -> int:
    """Wait until the group has settled and stays so; return how long that took, in ms."""
    start = sim.now
    deadline = start + SETTLE_MS
    nudged = False
    while True:
        try:
            sim.run_until(sim.is_settled, max(deadline - sim.now, 0))
        except TimeoutError:
            if nudged or not sim.rests_on_static_members():
                working = [process for process in sim.processes.values() if process.is_working]
                text = f"not Stable {sim.now - start} ms after the last fault: {working}"
                raise ViolationError("settles", f"{text}, {len(sim.owners())} partitions held") from None
            sim.nudge()
            nudged = True
            deadline = sim.now + SETTLE_MS
            continue
        settled_ms, rebalances = sim.now - start, len(sim.rebalances)
        sim.run(HOLD_MS)
        if sim.is_settled() and len(sim.rebalances) == rebalances:
            return settled_ms
        if sim.now > deadline:
            raise ViolationError("settles", f"still rebalancing {sim.now - start} ms after the last fault")


# ---- random scripts

_ASSIGNOR_LISTS: Final = (
    ("range",),
    ("roundrobin", "range"),
    ("sticky", "range"),
    ("cooperative-sticky",),
    ("cooperative-sticky", "range"),
)
_STRAYS: Final = ("heartbeat", "commit", "leave", "simple commit", "delete group", "delete offsets", "describe", "list")
_APIS: Final = ("FindCoordinator", "JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "OffsetCommit", "OffsetFetch")
_MEDDLINGS: Final[tuple[Literal["delay", "drop", "duplicate", "error", "disconnect"], ...]] = (
    "delay",
    "drop",
    "duplicate",
    "error",
    "disconnect",
)
_SIDES: Final[tuple[Literal["request", "response"], ...]] = ("request", "response")
_ERRORS: Final = ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR")
_LOSSES: Final = ((0.02, 0.0), (0.0, 0.05), (0.2, 0.05), (0.05, 0.2))
_DURATIONS_MS: Final = (500, 2_000, 5_000, 8_000, 15_000)


def random_script(seed: int, actions: int = 40) -> GroupScript:
    """Return a run of one group with up to eight members; the seed alone decides what happens in it.

    :param actions: at most so many, and at least half as many, besides the first joins
    """
    return _Generator(seed).script(actions)


def moves(seed: int, until: int) -> list[tuple[int, int, bool]]:
    """Draw the moves of a run's coordinator: when, how long the groups are read, and whether its broker stops. They
    have a source of their own, so that the other actions of a seed are the same without them.

    :param until: the time of the last action, in ms
    """
    random = Random(f"{seed}/moves")
    count = random.choice([0, 0, 1, 3])
    return [(random.randint(0, until), random.choice([0, 50, 1_500]), random.random() < 0.5) for _ in range(count)]


class _Generator:
    """Draws a script. What all its actions have in common is drawn first: names, topics, clients, assignors."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random = Random(f"{seed}/script")
        self.names = [f"m{number}" for number in range(1, random.randint(2, 8) + 1)]
        self.topics = {f"t{number}": random.randint(1, 9) for number in range(1, random.randint(1, 3) + 1)}
        self.assignor_lists = self._draw_assignor_lists()
        clients = list(CLIENT_VERSIONS)
        self.clients = random.choice([clients, ["java"], [random.choice(clients)]])
        self.has_static = random.random() < 0.4
        self.config = self._draw_config()

    def _draw_assignor_lists(self) -> list[tuple[str, ...]]:
        """A member with cooperative-sticky alone shares no protocol with one that has range alone (error 23) and gives
        up. That is worth some seeds (15 %), but not all of them."""
        mixed = self.random.random() < 0.15
        base = self.random.choice(_ASSIGNOR_LISTS)
        if mixed:
            return list(_ASSIGNOR_LISTS)
        return [base] if base == ("cooperative-sticky",) else [each for each in _ASSIGNOR_LISTS if "range" in each]

    def _draw_config(self) -> dict[str, int]:
        random = self.random
        config = {
            "initial_rebalance_delay_ms": random.choice([0, 0, 500, 3_000]),
            "new_member_join_timeout_ms": random.choice([15_000, 40_000]),
        }
        if random.random() < 0.15:
            config["max_size"] = random.randint(1, len(self.names))
        if random.random() < 0.2:
            config["offsets_retention_ms"] = random.choice([5_000, 60_000])
            config["offsets_retention_check_interval_ms"] = 3_000
        return config

    def script(self, count: int) -> GroupScript:
        """Draw the actions, and the sizes of the log."""
        random = self.random
        actions: list[Action[Cluster]] = [self.join(0, name, 0) for name in self.names if random.random() < 0.7]
        at = 0
        haste_ms = random.choice([100, 1_000, 3_000])  # so that in some runs actions meet in the middle of a rebalance
        for at in draw_times(random, count, haste_ms):
            name = random.choice(self.names)
            duration_ms = random.choice(_DURATIONS_MS)
            actions.append(choose(random, _ODDS)(self, at, name, duration_ms))
        actions += [acts.MoveCoordinator(at=when, load_ms=ms, stops=stops) for when, ms, stops in moves(self.seed, at)]
        return GroupScript(
            seed=self.seed,
            topics=self.topics,
            config=self.config,
            segment_bytes=random.choice([1_000, 4_000, 65_536]),
            min_compaction_bytes=random.choice([2_000, 10_000, 65_536]),
            actions=actions,
        )

    def _some_topics(self) -> tuple[str, ...]:
        return tuple(self.random.sample(sorted(self.topics), self.random.randint(1, len(self.topics))))

    # ---- one action each

    def join(self, at: int, name: str, _duration_ms: int) -> acts.Join:
        random = self.random
        client = random.choice(self.clients)
        instance_id = None
        if self.has_static and random.random() < 0.6:
            # Clients whose heartbeats do not carry the instance id are never fenced: two with one id would replace each
            # other for ever. So each has an id of its own; the others may meet a second member with theirs.
            instance_id = f"i{random.randint(1, 4)}" if CLIENT_VERSIONS[client].heartbeat >= 3 else f"of-{name}"
        return acts.Join(
            at=at,
            name=name,
            options=MemberOptions(
                topics=random.choice([None, None, None, self._some_topics()]),
                assignors=random.choice(self.assignor_lists),
                instance_id=instance_id,
                client=client,
                session_timeout_ms=random.choice([6_000, 6_000, 9_000]),
                rebalance_timeout_ms=random.choice([6_000, 10_000, 15_000]),
                heartbeat_interval_ms=random.choice([300, 1_000, 2_000]),
                request_timeout_ms=5_000,
                commit_ms=random.choice([500, 2_000, 2_000, None]),
                release_ms=random.choice([0, 0, 10, 300]),
            ),
        )

    def leave(self, at: int, name: str, _duration_ms: int) -> acts.LeaveGroup:
        return acts.LeaveGroup(at=at, name=name)

    def crash(self, at: int, name: str, _duration_ms: int) -> acts.Crash:
        return acts.Crash(at=at, name=name)

    def pause(self, at: int, name: str, duration_ms: int) -> acts.Pause:
        return acts.Pause(at=at, name=name, ms=duration_ms)

    def cut_off(self, at: int, name: str, duration_ms: int) -> acts.CutOff:
        return acts.CutOff(at=at, name=name, ms=duration_ms)

    def lose(self, at: int, _name: str, duration_ms: int) -> acts.Lose:
        drop, reset = self.random.choice(_LOSSES)
        return acts.Lose(at=at, ms=duration_ms, drop=drop, reset=reset)

    def meddle(self, at: int, _name: str, _duration_ms: int) -> acts.Meddle:
        random = self.random
        action = random.choice(_MEDDLINGS)
        return acts.Meddle(
            at=at,
            api=random.choice(_APIS),
            action=action,
            on=random.choice(_SIDES),
            count=random.randint(1, 3),
            every=random.randint(1, 3),
            delay_ms=random.choice([50, 1_000, 7_000]) if action == "delay" else 0,
            error=random.choice(_ERRORS) if action == "error" else None,
        )

    def crash_coordinator(self, at: int, _name: str, _duration_ms: int) -> acts.CrashCoordinator:
        random = self.random
        return acts.CrashCoordinator(
            at=at,
            down_ms=random.choice([0, 200, 3_000, 12_000]),
            load_ms=random.choice([0, 100, 1_500]),
            writes=random.choice([0, 1, 2, 3, 5, 9]),
        )

    def fail_disk(self, at: int, _name: str, _duration_ms: int) -> acts.FailDisk:
        repaired_after_ms = self.random.choice([10, 2_000, 9_000])
        return acts.FailDisk(at=at, repaired_after_ms=repaired_after_ms, writes=self.random.randint(0, 3))

    def resubscribe(self, at: int, name: str, _duration_ms: int) -> acts.Resubscribe:
        return acts.Resubscribe(at=at, name=name, topics=self._some_topics())

    def stray(self, at: int, name: str, _duration_ms: int) -> acts.Stray:
        return acts.Stray(at=at, kind=self.random.choice(_STRAYS), name=name, ahead=self.random.choice([-1, 0, 1]))

    def add_partitions(self, at: int, _name: str, _duration_ms: int) -> acts.AddPartitions:
        return acts.AddPartitions(at=at, topic=self.random.choice(sorted(self.topics)), count=self.random.randint(1, 3))


_ODDS: Final[tuple[tuple[int, Callable[[_Generator, int, str, int], Action[Cluster]]], ...]] = (
    (30, _Generator.join),
    (8, _Generator.leave),
    (10, _Generator.crash),
    (12, _Generator.pause),
    (10, _Generator.cut_off),
    (6, _Generator.lose),
    (5, _Generator.meddle),
    (8, _Generator.crash_coordinator),
    (4, _Generator.fail_disk),
    (2, _Generator.resubscribe),
    (3, _Generator.stray),
    (2, _Generator.add_partitions),
)
"""How often each action is drawn, in percent."""
