"""Runs the scale benchmark: `python -m tests.bench.scale`. One server after the other, the same load for each.

Writes latest.json (what was measured) and latest.md (what `report` makes of it) into tests/bench/scale/results or
`--out`. `--servers` chooses, `--members`, `--groups`, `--rounds` and `--seconds` make it smaller. Each member takes a
file descriptor here and one in the server: where the system has fewer, there are fewer members, and the report says so.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..report import write_results
from . import report
from .measure import Plan, measure
from .servers import SERVERS

SPARE_FILES = 500  # of a server: a broker's logs and jars


def cores() -> tuple[int | None, int | None]:
    """One for the server, one for the load; None where there are no two, or they cannot be chosen."""
    if not hasattr(os, "sched_setaffinity"):
        return None, None
    allowed = sorted(os.sched_getaffinity(0))
    return (allowed[0], allowed[1]) if len(allowed) > 1 else (None, None)


def machine() -> dict[str, Any]:
    processor = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            processor = line.partition(":")[2].strip()
            break
    return {"processor": processor, "cores": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"}


def raise_limit() -> int:
    """Allow as many file descriptors as the system does, and return how many members may be connected."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard - SPARE_FILES


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.scale", description="Coordinators with thousands of members.")
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=list(SERVERS))
    for name, default in (("members", 20_000), ("groups", 2_000), ("size", 10), ("baseline", 5_000), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seconds", type=float, default=10.0, help="of heartbeats, each time")
    parser.add_argument("--out", type=Path, default=report.RESULTS, help="the folder of latest.md and latest.json")
    options = parser.parse_args(arguments)
    server_core, load_core = cores()
    most = raise_limit()
    plan = Plan(
        members=min(options.members, most),
        groups=min(options.groups, most // options.size),
        size=options.size,
        baseline=options.baseline,
        rounds=options.rounds,
        seconds=options.seconds,
        server_core=server_core,
    )
    load = round(os.getloadavg()[0], 2)
    before = os.sched_getaffinity(0) if load_core is not None else set()
    if load_core is not None:
        os.sched_setaffinity(0, {load_core})
    made: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "load": load,
        "pinned": server_core is not None,
        "plan": asdict(plan),
        "wanted": {"members": options.members, "groups": options.groups},
        "servers": {},
    }
    try:
        for name in options.servers:
            made["servers"][name] = measure(name, plan)
            write_results(options.out, made, report.markdown(made))  # what there is, should the next one fail
    finally:
        if load_core is not None:
            os.sched_setaffinity(0, before)


if __name__ == "__main__":
    main()
