"""What is done with each number of consumers, and what is written down of it."""

from __future__ import annotations

import asyncio
import gc
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

from kcoord_wire.zookeeper.ensemble import Ensemble

from ..scale.servers import cpu_seconds, memory_of, program
from .load import Load, Pings

TOPIC = "orders"


@dataclass(frozen=True)
class Plan:
    """How much of it.

    :ivar consumers: that are connected at once
    :ivar group_size: consumers of each group
    :ivar session_ms: of the consumers
    :ivar seconds: of pings
    """

    consumers: int
    group_size: int
    session_ms: int
    seconds: float


async def measure(plan: Plan) -> dict[str, Any]:
    """Start ZooKeeper and a coordinator, and measure; see the notes in report.py."""
    arguments = ["-m", "kcoord_wire", "central", "serve", "--port", "0", "--topics", f"{TOPIC}:{plan.group_size}"]
    arguments += ["--session-timeout-ms", "60000", "--offset-commit-interval-ms", "10000"]
    with ExitStack() as stack:
        zookeeper = stack.enter_context(Ensemble())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        running = stack.enter_context(program(folder, *arguments, "--zookeeper", zookeeper.connect))
        load = Load(running.address, TOPIC, plan.group_size, group_size=plan.group_size, session_ms=plan.session_ms)
        gc.disable()  # its pauses would be the coordinator's
        try:
            measured = await _measure(load, running.pid, plan)
        finally:
            gc.enable()
            await load.close()
    return {"consumers": plan.consumers, "group_size": plan.group_size} | measured


async def _measure(load: Load, pid: int, plan: Plan) -> dict[str, Any]:
    empty, cpu = memory_of(pid), cpu_seconds(pid)
    registered = await load.grow(plan.consumers)
    result: dict[str, Any] = {"form": registered, "form_cpu": cpu_seconds(pid) - cpu}
    _log(plan, f"all registered after {registered:.1f} s")
    await asyncio.sleep(plan.session_ms / 3000)
    result["rss"] = memory_of(pid).rss - empty.rss
    load.measure_pings()
    cpu = cpu_seconds(pid)
    await asyncio.sleep(plan.seconds)
    result["cpu_share"] = (cpu_seconds(pid) - cpu) / plan.seconds
    result["pings"] = _lateness(load.pings)
    _log(plan, f"pings: {result['pings']}")
    cpu = cpu_seconds(pid)
    total, stopped = await load.rebalance(load.leave)
    result["rebalance"] = {"seconds": total, "stopped": stopped, "cpu": cpu_seconds(pid) - cpu}
    result["peak_rss"] = memory_of(pid).rss - empty.rss
    _log(plan, f"rebalance: {result['rebalance']}")
    return result


def _lateness(pings: Pings) -> dict[str, float]:
    """Milliseconds after a third of the session timeout, of the percentiles of pings."""
    if len(pings.lateness) < 2:
        raise RuntimeError(f"{len(pings.lateness)} pings are too few to say anything")
    cuts = quantiles(pings.lateness, n=100, method="inclusive")
    return {
        "count": len(pings.lateness),
        "retries": pings.retries,
        "p50_ms": 1000 * cuts[49],
        "p99_ms": 1000 * cuts[98],
        "max_ms": 1000 * max(pings.lateness),
    }


def _log(plan: Plan, text: str) -> None:
    print(f"{plan.consumers} consumers: {text}", file=sys.stderr, flush=True)
