"""Random runs of a group of KIP-848, replayed by seed and reduced by `kernel.virtual.script`; ``kcoord simulate
consumer-groups`` is the command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.kernel.virtual.script import Do, Script, choose, draw_times
from kcoord_wire.kernel.virtual.violation import ViolationError
from kcoord_wire.worlds.consumer_groups.cluster import ConsumerGroupCluster
from kcoord_wire.worlds.group.script import Report, moves

SETTLE_MS: Final = 120_000
"""A group has converged within this after the last fault: sessions and rebalance timeouts of 6 to 15 s, one after the
other, and the refresh of regular expressions."""

CLASSIC_SETTLE_MS: Final = 300_000
"""The same of a group with classic members, in which a rebalance waits for those that are gone; see `group.script`."""

HOLD_MS: Final = 5_000
"""It counts as converged if it still is after this, some heartbeats later."""

STUCK_MS: Final = 600_000
"""An application that gives a partition up after this never does so within a rebalance timeout."""

SESSION_MS: Final = 6_000
HEARTBEAT_MS: Final = 1_000


@dataclass(frozen=True, kw_only=True, repr=False)
class ConsumerGroupScript(Script[ConsumerGroupCluster, Report]):
    """A run of a virtual group; the fields that every script has are in `Script`.

    :ivar topics: name to number of partitions
    :ivar config: settings of the coordinator that differ from the defaults of `GroupConfig`
    :ivar segment_bytes: of the coordinator's log, see `Store`
    """

    topics: Mapping[str, int]
    config: Mapping[str, Any]
    segment_bytes: int = 65_536

    def world(self) -> ConsumerGroupCluster:
        """Return a cluster without members."""
        return ConsumerGroupCluster(
            self.seed,
            topics=self.topics,
            config=GroupConfig(**dict(self.config)),
            segment_bytes=self.segment_bytes,
            min_compaction_bytes=2 * self.segment_bytes,
        )

    def finish(self, world: ConsumerGroupCluster) -> Report:
        """End all faults, and wait until the group has converged and stays so.

        :raises ViolationError: ``EventuallyConverges``
        """
        world.heal()
        start = world.now
        patience_ms = CLASSIC_SETTLE_MS if world.has_classic_members else SETTLE_MS
        deadline = start + patience_ms
        nudged = False
        while True:
            try:
                world.run_until(world.has_converged, max(deadline - world.now, 0))
            except TimeoutError:
                if not nudged and world.rests_on_static_members():
                    world.nudge()
                    deadline = world.now + patience_ms
                    nudged = True
                    continue
                working = {name: str(each.member.state) for name, each in world.processes.items() if each.is_working}
                text = f"not {world.now - start} ms after the last fault: {working}, owners {world.owners()}"
                raise ViolationError("EventuallyConverges", text) from None
            settled_ms = world.now - start
            world.run(HOLD_MS)
            if world.has_converged():
                return Report(world.steps, world.now, settled_ms, len(world.rebalances))


_ODDS: Final = (
    (23, "member"),
    (8, "leave"),
    (7, "restart"),
    (8, "crash"),
    (10, "pause"),
    (8, "partition"),
    (6, "lose"),
    (7, "meddle"),
    (6, "crash_coordinator"),
    (3, "fail_disk"),
    (8, "subscribe"),
    (3, "add_partitions"),
    (3, "stray_commit"),
)
"""How often each action is drawn, in percent."""

_DURATIONS_MS: Final = (200, 1_000, 3_000, 5_000, 8_000, 15_000)
_LOSSES: Final = ((0.02, 0.0), (0.0, 0.05), (0.2, 0.05), (0.05, 0.2))
_ASSIGNORS: Final = (("range",), ("cooperative-sticky",), ("cooperative-sticky", "range"))
_ERRORS: Final = ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR")
_MEDDLINGS: Final = ("delay", "drop", "duplicate", "error", "disconnect")


def random_script(seed: int, actions: int = 40) -> ConsumerGroupScript:
    """Return a run of one group with up to six members; the seed alone decides what happens in it.

    :param actions: at most so many, and at least half as many, besides the first joins
    """
    return _Generator(seed).script(actions)


class _Generator:
    """Draws a script: first what all its actions have in common."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random = Random(f"{seed}/consumer groups")
        self.names = [f"m{number}" for number in range(1, random.randint(2, 6) + 1)]
        self.topics = {f"t{number}": random.randint(1, 6) for number in range(1, random.randint(1, 3) + 1)}
        self.has_static = random.random() < 0.4
        self.has_patterns = random.random() < 0.3
        self.is_lazy = random.random() < 0.3
        self.assignors = random.choice(_ASSIGNORS) if random.random() < 0.5 else None

    def script(self, count: int) -> ConsumerGroupScript:
        """Draw the actions, and the settings of the coordinator."""
        random = self.random
        drawn = [
            Do(at=0, call="member", arguments=self.draw("member", name)) for name in self.names if random.random() < 0.7
        ]
        at = 0
        haste_ms = random.choice([30, 300, 2_000])  # so that in some runs actions meet in the middle of a rebalance
        for at in draw_times(random, count, haste_ms):
            call = choose(random, _ODDS)
            drawn.append(Do(at=at, call=call, arguments=self.draw(call, random.choice(self.names))))
        drawn += [
            Do(at=when, call="move_coordinator", arguments=(ms, stops)) for when, ms, stops in moves(self.seed, at)
        ]
        config: dict[str, Any] = {
            "consumer_session_timeout_ms": SESSION_MS,
            "consumer_heartbeat_interval_ms": random.choice([300, HEARTBEAT_MS]),
            "consumer_assignment_interval_ms": random.choice([0, 0, 1_000]),
        }
        if self.assignors is not None:
            config["initial_rebalance_delay_ms"] = random.choice([0, 500])
            config["new_member_join_timeout_ms"] = 15_000
            config["consumer_migration_policy"] = random.choice(["bidirectional", "bidirectional", "upgrade"])
        return ConsumerGroupScript(
            seed=self.seed,
            actions=drawn,
            topics=self.topics,
            config=config,
            segment_bytes=random.choice([1_000, 4_000, 65_536]),
        )

    def draw(self, call: str, name: str) -> tuple[Any, ...]:
        """Draw the arguments of a call."""
        random, ms = self.random, self.random.choice(_DURATIONS_MS)
        if call == "lose":
            return (ms, *random.choice(_LOSSES))
        if call == "meddle":
            return self._meddling()
        if call == "crash_coordinator":
            return (random.choice([0, 200, 3_000]), random.choice([0, 100, 1_500]), random.choice([0, 1, 2, 3, 5, 9]))
        if call == "fail_disk":
            return (random.choice([10, 2_000]), random.randint(0, 3))
        return self._of_member(call, name, ms)

    def _of_member(self, call: str, name: str, ms: int) -> tuple[Any, ...]:
        random = self.random
        if call == "member":
            return (name, self._options(name))
        if call == "leave":
            return (name, random.random() < 0.5)
        if call == "restart":
            migrates = self.assignors is not None and random.random() < 0.5
            return (name, self.assignors) if migrates else (name,)
        if call in ("pause", "partition"):
            return (name, ms)
        if call == "subscribe":
            return (name, self._some_topics(), self._pattern())
        if call == "stray_commit":
            topic = random.choice(sorted(self.topics))
            return (name, topic, random.randrange(self.topics[topic]), random.choice([-2, -1, 0, 1]))
        if call == "add_partitions":
            return (random.choice(sorted(self.topics)), random.randint(1, 3))
        return (name,)

    def _options(self, name: str) -> dict[str, Any]:
        random = self.random
        options: dict[str, Any] = {
            "topics": random.choice([tuple(self.topics), self._some_topics()]),
            "regex": self._pattern(),
            "assignor": random.choice([None, None, "uniform", "range"]),
            "rebalance_timeout_ms": random.choice([3_000, 10_000]),
            "request_timeout_ms": 2_000,
            "release_ms": random.choice([0, 10, 300, 1_500, STUCK_MS]) if self.is_lazy else random.choice([0, 0, 10]),
            "commit_ms": random.choice([500, 2_000, None]),
        }
        if self.has_static and random.random() < 0.6:
            options["instance_id"] = f"of-{name}"
        if self.assignors is not None and random.random() < 0.5:
            options |= {"assignors": self.assignors, "release_ms": random.choice([0, 0, 10, 300])}
        return options

    def _some_topics(self) -> tuple[str, ...]:
        return tuple(self.random.sample(sorted(self.topics), self.random.randint(1, len(self.topics))))

    def _pattern(self) -> str:
        return self.random.choice(["", "t[12]", "t.*"]) if self.has_patterns else ""

    def _meddling(self) -> tuple[Any, ...]:
        random = self.random
        action = random.choice(_MEDDLINGS)
        delay_ms = random.choice([50, 1_000, 7_000]) if action == "delay" else 0
        error = random.choice(_ERRORS) if action == "error" else None
        side = random.choice(["request", "response"])
        return (action, side, random.randint(1, 3), random.randint(1, 3), delay_ms, error)
