"""Measures the scale: one server after the other, the same load for each; what there is is written after each.

Each member takes a file descriptor here and one in the server: where the system has fewer, there are fewer members, and
the report says so.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ..runner import Bench, Made
from . import report
from .measure import Plan, measure, measure_floor
from .servers import SERVERS, pinned

SPARE_FILES = 500  # of a server: a broker's logs and jars


def cores() -> tuple[int | None, int | None]:
    """One for the server, one for the load; None where there are no two, or they cannot be chosen."""
    if not hasattr(os, "sched_setaffinity"):
        return None, None
    allowed = sorted(os.sched_getaffinity(0))
    return (allowed[0], allowed[1]) if len(allowed) > 1 else (None, None)


def raise_limit() -> int:
    """Allow as many file descriptors as the system does, and return how many members may be connected."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard - SPARE_FILES


def measure_all(options: argparse.Namespace) -> Iterator[Made]:
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
    wanted = {"members": options.members, "groups": options.groups}
    servers: dict[str, Any] = {}
    with pinned(load_core):
        made = {"pinned": server_core is not None, "plan": asdict(plan), "wanted": wanted, "servers": servers}
        made["floor"] = measure_floor(plan)
        for name in options.servers:
            servers[name] = measure(name, plan)
            yield made


BENCH = Bench(
    about="thousands of members, next to Kafka's broker and to librdkafka's mock cluster.",
    results=report.RESULTS,
    measure=measure_all,
    markdown=report.markdown,
    options={
        "servers": {"nargs": "+", "choices": SERVERS, "default": list(SERVERS)},
        "members": {"type": int, "default": 20_000},
        "groups": {"type": int, "default": 2_000},
        "size": {"type": int, "default": 10},
        "baseline": {"type": int, "default": 5_000},
        "rounds": {"type": int, "default": 3},
        "seconds": {"type": float, "default": 10.0, "help": "of heartbeats, each time"},
    },
    title="The coordinator",
    command="make bench-scale",
    summary=report.summary,
)
