"""Random runs of Marshal, replayed by seed and reduced by `kernel.virtual.script`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, NamedTuple

from kcoord_wire.kernel.virtual.script import Do, Script, choose, draw_times
from kcoord_wire.kernel.virtual.violation import ViolationError
from kcoord_wire.marshal.events import Delivery
from kcoord_wire.marshal.state import Rules
from kcoord_wire.worlds.marshal.anomalies import Anomaly
from kcoord_wire.worlds.marshal.cluster import JUNK, MarshalCluster

SETTLE: Final = 25
"""Heartbeat intervals within which each partition is held again after the last fault: an entry that lands late, two
until a claim is stale, one of cooldown, passes, and the pause of a group."""
_READ_MS: Final = 500  # until the last reader has read everything


class Report(NamedTuple):
    """What a run was.

    :ivar steps: number of events delivered
    :ivar settled_ms: from the last fault until each partition was held by one member
    :ivar tenures: how many have begun
    :ivar anomalies: how often each kind was seen (library)
    """

    steps: int
    settled_ms: int
    tenures: int
    anomalies: Counter[Anomaly]


@dataclass(frozen=True, kw_only=True, repr=False)
class MarshalScript(Script[MarshalCluster, Report]):
    """A run; the fields that every script has are in `Script`, the others in `MarshalCluster`."""

    topics: Mapping[str, int]
    rules: Rules = Rules.DOCUMENT
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    interval_ms: int = 3_000
    brokers_ms: Sequence[int] = (0,)
    is_append_time: bool = True
    has_holes: bool = False
    presence: bool = False
    balance: bool = False
    looks_for: Anomaly | None = None

    def world(self) -> MarshalCluster:
        """Return a cluster without members."""
        return MarshalCluster(
            self.seed,
            topics=self.topics,
            rules=self.rules,
            delivery=self.delivery,
            interval_ms=self.interval_ms,
            brokers_ms=self.brokers_ms,
            is_append_time=self.is_append_time,
            has_holes=self.has_holes,
            presence=self.presence,
            balance=self.balance,
            looks_for=self.looks_for,
        )

    def finish(self, world: MarshalCluster) -> Report:
        """End all faults, wait until the group has settled, and let a last reader compute the state.

        :raises ViolationError: ``settles``
        """
        world.heal()
        within_ms = SETTLE * self.interval_ms + world.set_back_ms
        try:
            settled_ms = world.run_until(world.is_settled, within_ms)
        except TimeoutError:
            if not world.is_lenient:
                raise ViolationError("settles", f"{world.owners()} after {within_ms} ms") from None
            settled_ms = within_ms
        world.observe()
        world.run(_READ_MS)
        return Report(world.steps, settled_ms, world.invariants.tenures, world.anomalies.found)


ODDS: Final = (
    (14, "member"),
    (10, "crash"),
    (12, "pause"),
    (3, "shut_down"),
    (3, "suspend"),
    (8, "set_clock"),
    (5, "lag"),
    (14, "trouble"),
    (7, "lead"),
    (6, "observe"),
    (4, "junk"),
    (4, "release"),
    (2, "fail_fetch"),
    (2, "grow"),
    (2, "reuse"),
    (1, "pause_group"),
    (2, "set_position"),
    (1, "crash_admin"),
)
"""How often each action is drawn, in percent."""
WRITERS: Final = ((55, "say"), (5, "misplace"), (10, "trouble"), (10, "lead"), (10, "observe"), (10, "junk"))
"""The same for a log without members: writers that keep to nothing."""
_SAID: Final = (
    (30, "ClaimingPartition"),
    (40, "Heartbeat"),
    (15, "ReleasingPartition"),
    (5, "ClaimingMessages"),
    (5, "ReleaseGroup"),
    (5, "HandingOver"),
)


def random_script(
    seed: int,
    actions: int = 40,
    *,
    rules: Rules = Rules.DOCUMENT,
    delivery: Delivery | None = None,
    is_append_time: bool = True,
    skew: float = 0.0,
    odds: Sequence[tuple[int, str]] = ODDS,
) -> MarshalScript:
    """Return a run of a group with up to five members; the seed decides what happens in it.

    :param delivery: None for one that the seed decides
    :param is_append_time: False: CreateTime, and `skew` is looked at
    :param skew: with CreateTime, the most that a member's clock is ahead of another's, in heartbeat intervals
    :param odds: like `ODDS`
    """
    random = Random(f"{seed}/marshal")
    interval_ms = random.choice([1_000, 2_000, 3_000])
    topics = {f"t{number}": random.randint(1, 4) for number in range(1, random.randint(1, 2) + 1)}
    names = [f"m{number}" for number in range(1, random.randint(2, 5) + 1)]
    skew_ms = random.choice([0, 0, interval_ms // 3, 3 * interval_ms // 4]) if is_append_time else 0
    brokers_ms = [random.randint(0, skew_ms) for _ in range(2)]
    draw = _Draw(random, names, topics, interval_ms, None if is_append_time else int(skew * interval_ms))
    haste_ms = interval_ms * random.choice([0.05, 0.3, 1.5])  # so that in some runs actions meet
    drawn = [] if odds is WRITERS else [Do(at=0, call="member", arguments=draw.member(name)) for name in names]
    drawn.append(Do(at=0, call="observe", arguments=draw.observe()))
    for at in draw_times(random, actions, haste_ms):
        call = choose(random, odds)
        drawn.append(Do(at=at, call=_CALLS.get(call, call), arguments=getattr(draw, call)()))
    return MarshalScript(
        seed=seed,
        actions=drawn,
        topics=topics,
        rules=rules,
        delivery=delivery or random.choice(list(Delivery)),
        interval_ms=interval_ms,
        brokers_ms=brokers_ms,
        is_append_time=is_append_time,
        has_holes=random.random() < 0.3,
        presence=random.random() < 0.5,
        balance=random.random() < 0.4,
    )


_CALLS: Final = {"reuse": "member", "misplace": "say"}


class _Draw:
    """Draws the arguments of an action, by the name of the action."""

    def __init__(
        self, random: Random, names: list[str], topics: Mapping[str, int], interval_ms: int, skew_ms: int | None
    ) -> None:
        self._skew_ms = skew_ms
        self._random = random
        self._names = names
        self._topics = topics
        self._interval_ms = interval_ms

    def _name(self) -> str:
        return self._random.choice(self._names)

    def _ms(self) -> int:
        return int(self._interval_ms * self._random.choice([0.1, 0.5, 0.9, 1.1, 1.9, 2.1, 4]))

    def _ahead_ms(self) -> int:
        if self._skew_ms is not None:
            return self._random.choice([0, self._skew_ms])
        return int(self._interval_ms * self._random.choice([-20, -2, -0.6, 0, 0.6, 2, 20]))

    def member(self, name: str = "") -> tuple[Any, ...]:
        return (name or self._name(), self._ahead_ms())

    def reuse(self) -> tuple[Any, ...]:
        return (*self.member(), self._name())

    def crash(self) -> tuple[Any, ...]:
        return (self._name(),)

    shut_down = suspend = release = fail_fetch = crash

    def pause(self) -> tuple[Any, ...]:
        return (self._name(), self._ms())

    def set_clock(self) -> tuple[Any, ...]:
        return (self._name(), self._ahead_ms())

    lag = pause

    def trouble(self) -> tuple[Any, ...]:
        return (self._ms(), self._random.choice([0, self._ms()]))

    def lead(self) -> tuple[Any, ...]:
        return (self._random.randrange(3), self._random.randrange(2))

    def observe(self) -> tuple[Any, ...]:
        return (self._ahead_ms(), self._random.choice([0, 0, self._ms()]))

    def pause_group(self) -> tuple[Any, ...]:
        return (self._ms(),)

    def set_position(self) -> tuple[Any, ...]:
        topic = self._random.choice(sorted(self._topics))
        return (topic, self._random.randrange(self._topics[topic]), self._random.randint(0, 60))

    def crash_admin(self) -> tuple[Any, ...]:
        return ()

    def junk(self) -> tuple[Any, ...]:
        return (self._random.randrange(3), self._random.randrange(len(JUNK)))

    def grow(self) -> tuple[Any, ...]:
        return (self._random.choice(sorted(self._topics)), self._random.randint(1, 2))

    def say(self) -> tuple[Any, ...]:
        topic = self._random.choice(sorted(self._topics))
        client = self._random.choice(["a", "b", "c"])
        instance = f"{client}{self._random.randint(1, 2)}"
        kind, number = choose(self._random, _SAID), self._random.randint(0, 9)
        return (kind, instance, client, topic, self._random.randrange(self._topics[topic]), number)

    def misplace(self) -> tuple[Any, ...]:
        return (*self.say(), 0, True)
