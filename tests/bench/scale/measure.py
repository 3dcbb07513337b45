"""What is done to each server, and what is written down of it."""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from .servers import SERVERS, Running, cpu_seconds, floor, memory_of, pinned, settle
from .swarm import Swarm

PERIOD = 3.0  # seconds between two heartbeats of a member: Kafka's default


@dataclass(frozen=True)
class Plan:
    """How much of it.

    :ivar members: of the one large group
    :ivar groups: how many small ones
    :ivar size: members of each of those
    :ivar baseline: members of the group whose rebalances the large group's are compared with
    :ivar rounds: how often each rebalance is repeated; medians are reported
    :ivar seconds: of heartbeats, each time
    :ivar server_core: where the server runs; None anywhere
    """

    members: int
    groups: int
    size: int
    baseline: int
    rounds: int
    seconds: float
    server_core: int | None


def measure(name: str, plan: Plan) -> dict[str, Any]:
    """Start the server `name` of SERVERS, warm it up, and measure it; see the notes in report.py."""
    server = SERVERS[name]
    if server.timers:
        # The mock cluster ends a join after 3 s, which 20,000 members may not reach; and with 19,500 connections in
        # groups of ten it had used its core for 60 s on end and was not done with the join.
        plan = replace(plan, members=plan.baseline, groups=plan.baseline // plan.size)
    result: dict[str, Any] = {"title": server.title, "version": server.version(), "timers": server.timers}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        with pinned(plan.server_core):
            running = stack.enter_context(server.start(Path(folder)))
        settle(running.pid)
        _log(name, "warm-up")
        result["memory"] = warm_up(running, plan, timers=server.timers)
        if not server.timers:
            _log(name, f"a group of {plan.baseline}")
            with swarm_on(running, ["baseline"], plan.baseline, timers=False) as swarm:
                result["baseline"] = rebalances(running, swarm, plan, timers=False)
                swarm.leave_all()
        _log(name, f"a group of {plan.members}")
        result["large"] = one_group(running, plan, timers=server.timers)
        _log(name, f"{plan.groups} groups of {plan.size}")
        result["small"] = many_groups(running, plan, timers=server.timers)
        settle(running.pid)
    return result


def measure_floor(plan: Plan) -> dict[str, Any]:
    """Heartbeats of as many connections to a loop that only answers."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        with pinned(plan.server_core):
            running = stack.enter_context(floor(Path(folder)))
        _log("floor", f"{plan.members} connections")
        with swarm_on(running, ["floor"], plan.members, timers=False, finds=False) as swarm:
            swarm.beat(plan.seconds)
            return heartbeats(running, swarm, plan)


def _log(name: str, text: str) -> None:
    print(f"{name}: {text}", file=sys.stderr, flush=True)


@contextmanager
def swarm_on(running: Running, names: list[str], size: int, *, timers: bool, finds: bool = True) -> Iterator[Swarm]:
    """Members with open connections. Python's collector rests meanwhile: its pauses would be the server's."""
    swarm = Swarm(running.address, names, size, timers=timers, settle=partial(settle, running.pid))
    gc.collect()
    gc.disable()
    try:
        swarm.connect(finds=finds)
        settle(running.pid)
        yield swarm
    finally:
        gc.enable()
        swarm.close()


def warm_up(running: Running, plan: Plan, *, timers: bool) -> dict[str, float]:
    """Everything once, unmeasured but for the memory, which only a fresh process shows."""
    before = memory_of(running.pid)
    with swarm_on(running, ["warm-up"], plan.members, timers=timers) as swarm:
        swarm.form()
        settle(running.pid)
        grown = memory_of(running.pid) - before
        swarm.beat(plan.seconds)
        if not timers:
            for _ in range(plan.rounds):
                swarm.rejoin()
            swarm.leave_one()
            swarm.join_one()
        swarm.leave_all()
    settle(running.pid)
    return {"before": before.rss, "rss": grown.rss / plan.members, "pss": grown.pss / plan.members}


def one_group(running: Running, plan: Plan, *, timers: bool) -> dict[str, Any]:
    with swarm_on(running, ["large"], plan.members, timers=timers) as swarm:
        result = rebalances(running, swarm, plan, timers=timers) | heartbeats(running, swarm, plan)
        result["leave_all"] = swarm.leave_all()
    settle(running.pid)
    return result


def many_groups(running: Running, plan: Plan, *, timers: bool) -> dict[str, Any]:
    names = [f"small-{number}" for number in range(plan.groups)]
    with swarm_on(running, names, plan.size, timers=timers) as swarm:
        return rebalances(running, swarm, plan, timers=timers) | heartbeats(running, swarm, plan)


def rebalances(running: Running, swarm: Swarm, plan: Plan, *, timers: bool) -> dict[str, Any]:
    """Seconds: of forming once; of each round of the others. ``cpu`` has the server's processor time of each, ``load``
    that of the load, in seconds a member."""
    result: dict[str, Any] = {"cpu": {}, "load": {}}

    def timed(name: str, rebalance: Callable[[], float]) -> float:
        before, own = cpu_seconds(running.pid), time.process_time()
        seconds = rebalance()
        result["load"].setdefault(name, []).append((time.process_time() - own) / len(swarm.members))
        settle(running.pid)
        used = cpu_seconds(running.pid) - before
        result["cpu"].setdefault(name, []).append(used / len(swarm.members))
        return seconds

    result["form"] = timed("form", swarm.form)
    if not timers:
        result["rejoin"] = [timed("rejoin", swarm.rejoin) for _ in range(plan.rounds)]
        result["leave_one"], result["join_one"] = [], []
        for _ in range(plan.rounds):
            result["leave_one"].append(timed("leave_one", swarm.leave_one))
            result["join_one"].append(timed("join_one", swarm.join_one))
    return result


def heartbeats(running: Running, swarm: Swarm, plan: Plan) -> dict[str, Any]:
    settle(running.pid)
    before = cpu_seconds(running.pid)
    beats = swarm.beat(plan.seconds)
    used = cpu_seconds(running.pid) - before
    paced = swarm.beat(max(plan.seconds, PERIOD), PERIOD)
    return {
        "beats": asdict(beats) | {"rate": beats.rate, "per_cpu": beats.beats / max(used, 0.01)},
        "paced": asdict(paced) | {"rate": paced.rate},
    }
