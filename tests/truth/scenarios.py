"""The scenarios that are played: every cause by itself and overlapping, on groups of all shapes.

Laws:

* A scenario is data: its name and the list's seed give it, and with it the same frames, everywhere.
* `scenarios(count, seed)` begins with the same ones whatever the count.
* A scenario aims at causes; what its rebalances really were, `labels` says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count as counting
from itertools import cycle, islice
from random import Random
from typing import Any

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.worlds.group.world import Cluster
from tests.truth.world import Crowd, Recorder, Shape, quick

SETTLE = -1
"""In place of a gap: wait until all groups have settled."""

CLIENTS = (
    ("java",),
    ("librdkafka",),
    ("java",),
    ("aiokafka",),
    ("kafka-python",),
    ("kafkajs",),
    ("java", "librdkafka", "aiokafka"),
    ("oldest",),
    ("java", "kafka-python", "kafkajs", "librdkafka", "aiokafka", "oldest"),
)
ASSIGNORS = (
    ("range",),
    ("cooperative-sticky",),
    ("roundrobin", "range"),
    ("sticky",),
    ("range", "roundrobin"),
    ("cooperative-sticky",),
    ("range", "cooperative-sticky"),
)
COOPERATIVE = ("cooperative-sticky",)
TWO = ("range", "roundrobin")
SIZES = (3, 1, 2, 5, 4, 8, 3, 12, 6, 20, 2, 10, 4, 30)
LARGE = (60, 84, 100, 40, 120, 150, 70, 200, 90, 50)

# Cause: what brings it about, and what the group has to be like for that.
ACTS: dict[Cause, tuple[tuple[str, dict[str, Any]], ...]] = {
    Cause.NEW_MEMBER: (("join", {}), ("join_many", {})),
    Cause.MEMBER_LEFT: (("leave", {}), ("evict", {"static": 2}), ("bounce", {}), ("evict", {})),
    Cause.SESSION_EXPIRED: (("crash", {}), ("freeze", {}), ("cut_off", {}), ("crash_leader", {}), ("restart", {})),
    Cause.POLL_TIMEOUT: (("stall", {}), ("stall_for_good", {})),
    Cause.STATIC_REPLACED: (
        ("replace_static", {"static": 1, "assignors": TWO, "clients": ("java", "kafkajs")}),
        ("replace_static_in_between", {"static": 1, "clients": ("java", "librdkafka"), "session_ms": 10_000}),
    ),
    Cause.REBALANCE_TIMEOUT: (("miss_the_join", {}), ("revoke_slowly", {"assignors": ("range",)})),
    Cause.SYNC_EXPIRED: (("miss_the_sync", {}), ("lead_slowly", {"session_ms": 30_000})),
    Cause.COOPERATIVE_FOLLOW_UP: (
        ("join", {"assignors": COOPERATIVE}),
        ("join_many", {"assignors": COOPERATIVE}),
        ("bounce", {"assignors": COOPERATIVE}),
    ),
    Cause.TOPICS_CHANGED: (("add_partitions", {}),),
    Cause.SUBSCRIPTION_CHANGED: (("subscribe", {"topics": ("orders",)}), ("subscribe", {})),
    Cause.ASSIGNORS_CHANGED: (
        ("offer", {"assignors": TWO}),
        ("offer", {"assignors": ("sticky", "range")}),
    ),
    Cause.LEADER_REJOINED: (("ask", {}), ("lose_the_leaders_sync", {})),
    Cause.COORDINATOR_FAILOVER: (("fail_over", {}), ("fail_over", {}), ("fail_the_disk", {})),
    Cause.GROUP_TOO_LARGE: (("shrink", {}),),
}
NETWORK = ("lose", "hiccup", "inject_fault")


@dataclass(frozen=True)
class Act:
    """A method of `Crowd`, its group, and how long to wait after it (ms), or `SETTLE`."""

    name: str
    wait_ms: int = SETTLE
    group: int = 0

    def __str__(self) -> str:
        wait = "and settle" if self.wait_ms == SETTLE else f"then {self.wait_ms} ms"
        return f"{self.name} ({wait})" if not self.group else f"{self.name} in group {self.group} ({wait})"


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What happens to a cluster.

    :ivar aims: the causes that it is made for
    :ivar metadata: whether the capture has the clients' Metadata exchanges
    """

    name: str
    seed: int
    aims: tuple[Cause, ...]
    shapes: tuple[Shape, ...]
    acts: tuple[Act, ...]
    topics: dict[str, int] = field(default_factory=lambda: {"orders": 12, "payments": 5})
    latency_ms: tuple[int, int] = (1, 5)
    delay_ms: int = 0
    apart_ms: int = 0
    metadata: bool = True

    def __str__(self) -> str:
        shapes = "; ".join(
            f"{shape.size} x {'/'.join(shape.clients)} with {','.join(shape.assignors)}"
            + (f", every {shape.static}. static" if shape.static else "")
            for shape in self.shapes
        )
        return f"{self.name}: {shapes}: {', '.join(map(str, self.acts))}"


def play(scenario: Scenario) -> tuple[Cluster, Recorder]:
    """Play a scenario; at the end the network is healed, and the groups get time to settle."""
    recorder = Recorder(metadata=scenario.metadata)
    sim = Cluster(
        scenario.seed,
        topics=scenario.topics,
        config=quick(scenario.delay_ms),
        latency_ms=scenario.latency_ms,
        min_compaction_bytes=1 << 40,
        segment_bytes=1 << 20,
        tap=recorder,
    )
    names = ["group"] if len(scenario.shapes) == 1 else [f"group-{number}" for number in range(len(scenario.shapes))]
    crowds = [Crowd(sim, shape, scenario.seed, name) for shape, name in zip(scenario.shapes, names, strict=True)]
    for crowd in crowds:
        for _ in range(crowd.shape.size):
            crowd.start()
            if scenario.apart_ms:
                sim.run(crowd.random.randint(0, scenario.apart_ms))
    crowds[0].settle()
    for act in scenario.acts:
        getattr(crowds[act.group], act.name)()
        if act.wait_ms == SETTLE:
            crowds[act.group].settle()
        else:
            sim.run(act.wait_ms)
    sim.heal()
    crowds[0].settle(5_000)
    return sim, recorder


# ---- the list


def scenarios(count: int, seed: int = 0) -> list[Scenario]:
    """Return this many scenarios; a smaller count gives the beginning of the same list."""
    kinds = {
        "single": _singles(seed),
        "overlap": _overlaps(seed),
        "network": _networks(seed),
        "groups": _several(seed),
        "large": _larges(seed),
    }
    turns = cycle(["single"] * 5 + ["overlap"] * 2 + ["single"] * 5 + ["network", "overlap", "overlap"] * 1
                  + ["single"] * 5 + ["overlap"] * 2 + ["large", "network"] + ["single"] * 5
                  + ["overlap"] * 2 + ["groups", "network"])  # fmt: skip
    return [next(kinds[kind]) for kind in islice(turns, count)]


def _shape(number: int, random: Random, **changes: Any) -> Shape:
    """The shape with this number: each list is cycled by itself."""
    shape = Shape(
        size=SIZES[number % len(SIZES)],
        assignors=ASSIGNORS[number % len(ASSIGNORS)],
        clients=CLIENTS[number % len(CLIENTS)],
        static=random.choice([0, 0, 0, 0, 2, 3]),
        heartbeat_ms=random.choice([300, 1_000, 1_000, 2_000]),
        commit_ms=random.choice([None, 1_000, 5_000]),
        release_ms=random.choice([0, 0, 5, 50]),
        poll_ms=random.choice([0, 0, 100, 500]),
        client_id=random.choice([None, None, "consumer-app-1"]),
    )
    return replace(shape, **changes)


def _rest(random: Random) -> dict[str, Any]:
    return {
        "latency_ms": random.choice([(1, 5), (1, 5), (0, 1), (5, 60)]),
        "delay_ms": random.choice([0, 0, 500, 3_000]),
        "apart_ms": random.choice([0, 0, 30, 400]),
        "metadata": random.random() < 0.7,
    }


def _least(act: str) -> int:
    """The members that a group needs for an act."""
    return {"shrink": 3, "replace_static_in_between": 2}.get(act, 1)


def _singles(seed: int) -> Iterator[Scenario]:
    """Each cause by itself, on one shape after the other."""
    for number in counting():
        cause = list(ACTS)[number % len(ACTS)]
        lap = number // len(ACTS)
        act, needs = ACTS[cause][lap % len(ACTS[cause])]
        random = Random(f"{seed}/single/{number}")
        shape = _shape(number // 2 + lap, random, **needs)
        shape = replace(shape, size=max(shape.size, _least(act)))
        yield Scenario(
            name=f"{cause.name.lower()}-{lap}",
            seed=seed * 1_000_003 + number,
            aims=(cause,),
            shapes=(shape,),
            acts=(Act(act),),
            **_rest(random),
        )


def _overlaps(seed: int) -> Iterator[Scenario]:
    """Two to four causes, one in the middle of the other's rebalance or just behind it."""
    for number in counting():
        random = Random(f"{seed}/overlap/{number}")
        causes = random.sample(list(ACTS), random.randint(2, 4))
        chosen = [random.choice(ACTS[cause]) for cause in causes]
        needs: dict[str, Any] = {}
        for _, wanted in reversed(chosen):
            needs |= wanted
        shape = _shape(number, random, **needs)
        gaps = [random.choice([0, 3, 40, 200, 1_000, 4_000, 9_000]) for _ in chosen[:-1]] + [SETTLE]
        yield Scenario(
            name=f"overlap-{number}",
            seed=seed * 1_000_003 + 100_000 + number,
            aims=tuple(causes),
            shapes=(replace(shape, size=max(shape.size, 3)),),
            acts=tuple(Act(act, gap) for (act, _), gap in zip(chosen, gaps, strict=True)),
            **_rest(random),
        )


def _networks(seed: int) -> Iterator[Scenario]:
    """Two causes while the network has faults."""
    for number in counting():
        random = Random(f"{seed}/network/{number}")
        causes = random.sample([Cause.NEW_MEMBER, Cause.MEMBER_LEFT, Cause.SESSION_EXPIRED, Cause.TOPICS_CHANGED], 2)
        acts = []
        for cause in causes:
            acts.append(Act(random.choice(NETWORK), random.choice([0, 50, 500])))
            acts.append(Act(ACTS[cause][0][0], random.choice([1_000, 5_000, SETTLE])))
        acts.append(Act(random.choice(NETWORK), SETTLE))
        yield Scenario(
            name=f"network-{number}",
            seed=seed * 1_000_003 + 200_000 + number,
            aims=tuple(causes),
            shapes=(_shape(number, random),),
            acts=tuple(acts),
            **_rest(random),
        )


def _several(seed: int) -> Iterator[Scenario]:
    """Two to four groups at once, with clients of the same hosts' network and topics in common."""
    for number in counting():
        random = Random(f"{seed}/groups/{number}")
        groups = random.randint(2, 4)
        causes = random.sample([cause for cause in ACTS if cause is not Cause.GROUP_TOO_LARGE], groups)
        chosen = [random.choice(ACTS[cause]) for cause in causes]
        shapes = tuple(
            replace(_shape(number + place, random, **needs), size=random.randint(2, 8))
            for place, (_, needs) in enumerate(chosen)
        )
        acts = [Act(act, random.choice([0, 30, 1_000, SETTLE]), group) for group, (act, _) in enumerate(chosen)]
        yield Scenario(
            name=f"groups-{number}",
            seed=seed * 1_000_003 + 300_000 + number,
            aims=tuple(causes),
            shapes=shapes,
            acts=(*acts, Act("join", SETTLE)),
            **_rest(random),
        )


def _larges(seed: int) -> Iterator[Scenario]:
    """Up to 200 members."""
    causes = (Cause.NEW_MEMBER, Cause.SESSION_EXPIRED, Cause.MEMBER_LEFT, Cause.POLL_TIMEOUT, Cause.SYNC_EXPIRED)
    for number in counting():
        random = Random(f"{seed}/large/{number}")
        wanted = random.sample(causes, 2)
        acts = [Act(ACTS[cause][0][0], SETTLE) for cause in wanted]
        size = LARGE[number % len(LARGE)]
        shape = replace(_shape(number, random), size=size, heartbeat_ms=2_000, commit_ms=None)
        yield Scenario(
            name=f"large-{number}",
            seed=seed * 1_000_003 + 400_000 + number,
            aims=tuple(wanted),
            shapes=(shape,),
            acts=tuple(acts),
            topics={"orders": size + 7, "payments": 5},
            **_rest(random),
        )
